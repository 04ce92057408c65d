//! A simulated node in its own process.
//!
//! The mock reads its files from the environment, once per process. So each test writes the files of a node and runs
//! this test binary again, with that environment and the name of one scenario. The scenario panics on a failure.

use kerf_core::mig::{ComputeInstance, Instance, Placement};
use kerf_core::names::GpuUuid;
use kerf_nvml::{EventWatch, Gpu, GpuBackend as _, NvmlBackend};
use kerf_nvml_mock::{MockConfig, MockControl, MockFiles, MockState, library_path};
use std::path::PathBuf;
use std::process::Command;

pub const SCENARIO_ENV: &str = "KERF_NVML_SCENARIO";
const FOLDER_ENV: &str = "KERF_NVML_FOLDER";

pub fn check(scenario: &str, config: &MockConfig) {
    let folder = tempfile::tempdir().unwrap();
    let files = MockFiles::in_folder(folder.path());
    config.write(&files.config).unwrap();
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "scenario", "--nocapture"])
        .env(SCENARIO_ENV, scenario)
        .env(FOLDER_ENV, folder.path())
        .envs(files.env())
        .output()
        .unwrap();
    let [stdout, stderr] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    assert!(output.status.success() && stdout.contains("1 passed"), "{scenario}:\n{stdout}{stderr}");
}

pub struct Node(MockFiles);

impl Node {
    pub fn here() -> Self {
        Self(MockFiles::in_folder(std::env::var_os(FOLDER_ENV).unwrap()))
    }

    pub fn folder(&self, name: &str) -> PathBuf {
        let folder = self.0.state.with_file_name(name);
        std::fs::create_dir(&folder).unwrap();
        folder
    }

    pub fn control(&self, control: &MockControl) {
        control.write(&self.0.control).unwrap();
    }

    pub fn state(&self) -> MockState {
        MockState::load(&self.0.state).unwrap()
    }

    pub fn set_state(&self, state: &MockState) {
        std::fs::write(&self.0.state, serde_json::to_vec(state).unwrap()).unwrap();
    }
}

pub fn open() -> NvmlBackend {
    NvmlBackend::open(library().as_os_str()).unwrap()
}

pub fn watch() -> EventWatch {
    EventWatch::open(library().as_os_str()).unwrap()
}

fn library() -> PathBuf {
    library_path().expect("cargo builds the cdylib with the tests")
}

pub fn look(nvml: &mut NvmlBackend, index: usize) -> Gpu {
    nvml.observe().unwrap().swap_remove(index)
}

pub fn uuid(nvml: &mut NvmlBackend, index: usize) -> GpuUuid {
    look(nvml, index).uuid
}

pub fn instance(profile: &str, start: u8, size: u8) -> Instance {
    Instance { profile: profile.parse().unwrap(), placement: Placement { start, size } }
}

pub fn part(start: u8, compute: u8) -> ComputeInstance {
    ComputeInstance { start, compute }
}
