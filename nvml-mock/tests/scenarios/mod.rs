//! Runs each scenario in its own process, on its own node.
//!
//! The mock reads its files from the environment, once per process. So each test writes the files of a node and runs
//! its test binary again, with that environment and the name of one scenario. The scenario loads the library and panics
//! on a failure.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use kerf_nvml_mock::{MockConfig, MockFiles, PROC_ENV, library_path};
use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;

/// Names the scenario for a run of a test binary.
pub const SCENARIO_ENV: &str = "KERF_NVML_MOCK_SCENARIO";
/// The folder of the scenario's node.
const FOLDER_ENV: &str = "KERF_NVML_MOCK_FOLDER";

pub fn library() -> PathBuf {
    library_path().expect("cargo builds the cdylib with the tests")
}

pub fn init() -> Result<Nvml, NvmlError> {
    Nvml::builder().lib_path(library().as_os_str()).init()
}

/// The folder of the scenario that this process runs.
pub fn folder() -> PathBuf {
    PathBuf::from(std::env::var_os(FOLDER_ENV).unwrap())
}

/// The files of the scenario that this process runs.
pub fn files() -> MockFiles {
    MockFiles::in_folder(folder())
}

/// The folder that replaces `/proc` for the scenario's node.
pub fn proc_of(folder: &Path) -> PathBuf {
    folder.join("proc")
}

pub fn run(scenario: &str, folder: &Path) -> Output {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "scenario", "--nocapture"])
        .env(SCENARIO_ENV, scenario)
        .env(FOLDER_ENV, folder)
        .envs(MockFiles::in_folder(folder).env())
        .env(PROC_ENV, proc_of(folder))
        .output()
        .unwrap()
}

/// Whether the scenario ran to its end.
pub fn passed(output: &Output) -> bool {
    output.status.success() && String::from_utf8_lossy(&output.stdout).contains("1 passed")
}

/// Runs a scenario on a node in its own process.
pub fn check(scenario: &str, config: &MockConfig) {
    let folder = tempfile::tempdir().unwrap();
    config.write(&MockFiles::in_folder(folder.path()).config).unwrap();
    let output = run(scenario, folder.path());
    assert!(
        passed(&output),
        "{scenario}:\n{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Makes a test of each scenario, and the test `scenario`, which a process that was started for one runs. Scenarios
/// `by name` have no test, because another scenario runs them.
#[macro_export]
macro_rules! scenarios {
    (by name: [$($other:ident),*]; $($name:ident on $config:expr;)*) => {
        const SCENARIOS: &[(&str, fn())] = &[$((stringify!($name), $name),)* $((stringify!($other), $other),)*];

        /// Does nothing unless a test started this process for a scenario.
        #[test]
        fn scenario() {
            let Ok(name) = std::env::var(scenarios::SCENARIO_ENV) else { return };
            let (_, body) = SCENARIOS.iter().find(|(known, _)| *known == name).unwrap();
            body();
        }

        mod on_the_library {
            use super::*;
            $(#[test] fn $name() { scenarios::check(stringify!($name), &$config); })*
        }
    };
}
