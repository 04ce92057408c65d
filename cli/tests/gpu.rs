//! Tests `kerf gpu` with the GPUs of the NVML mock.

#![expect(clippy::unwrap_used, reason = "a fault of a test's own shows where it is")]

use kerf_nvml_mock::{
    Fault, MigMode, MockConfig, MockControl, MockFiles, MockState, Model, NvmlCode, Placement, Process,
    library_path,
};
use std::path::Path;
use std::process::{Command, Output};

/// A process id above Linux's largest, so that no process has it or a name for it.
const NOBODY: u32 = 4_194_305;

fn kerf(folder: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kerf"));
    command.args(args).envs(MockFiles::in_folder(folder).env()).output().unwrap()
}

fn on_the_mock(folder: &Path, args: &[&str]) -> String {
    let library = library_path().expect("cargo builds the mock with this test");
    let args = [args, &["--nvml", library.to_str().unwrap()]].concat();
    let output = kerf(folder, &args);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn node(folder: &Path) {
    let files = MockFiles::in_folder(folder);
    let config = MockConfig::new()
        .gpus(Model::H100, 1, MigMode::Enabled)
        .gpus(Model::A100Gb40, 1, MigMode::Disabled)
        .gpus(Model::T4, 2, MigMode::Disabled);
    config.write(&files.config).unwrap();
    let lost = Fault::new("*", NvmlCode::GPU_IS_LOST).on_gpu(3);
    let mut state = MockState::first_boot(&config).unwrap();
    let calm = MockControl::new();
    let mut cut = |profile, start, size| {
        state.create_gpu_instance(0, profile, Some(Placement { start, size }), &calm).unwrap()
    };
    let (small, large, _empty) = (cut(19, 0, 1), cut(9, 4, 4), cut(14, 2, 2));
    state.create_compute_instance(0, small, 0, None).unwrap();
    for start in 0..2 {
        state.create_compute_instance(0, large, 0, Some(Placement { start, size: 1 })).unwrap();
    }
    state.gpus[1].mig.pending = true;
    state.gpus[2].compute_mode = 3;
    let gi = state.gpus[0].instances.iter().find(|one| one.serial == large).unwrap().id;
    std::fs::write(&files.state, serde_json::to_vec(&state).unwrap()).unwrap();
    let part = Process { ci: Some(1), ..Process::on_instance(NOBODY, 0, gi, 512) };
    let whole = Process::on_gpu(NOBODY + 1, 2, 1024);
    calm.fault(lost).process(part).process(whole).write(&files.control).unwrap();
}

#[test]
fn a_node_is_listed_as_text() {
    let folder = tempfile::tempdir().unwrap();
    node(folder.path());
    insta::assert_snapshot!(on_the_mock(folder.path(), &["gpu", "list"]));
}

#[test]
fn a_node_is_listed_as_json() {
    let folder = tempfile::tempdir().unwrap();
    node(folder.path());
    let json: serde_json::Value =
        serde_json::from_str(&on_the_mock(folder.path(), &["gpu", "list", "-o", "json"])).unwrap();
    insta::assert_json_snapshot!(json["gpus"][0]);
    assert_eq!((&json["gpus"][1]["mig"], &json["gpus"][1]["migPending"]), (&"off".into(), &true.into()));
    assert_eq!(json["silent"][0]["index"], 3);
}

#[test]
fn profiles_of_mig_are_listed() {
    let folder = tempfile::tempdir().unwrap();
    let config =
        MockConfig::new().gpus(Model::H200, 1, MigMode::Disabled).gpus(Model::T4, 1, MigMode::Disabled);
    config.write(&MockFiles::in_folder(folder.path()).config).unwrap();
    insta::assert_snapshot!(on_the_mock(folder.path(), &["gpu", "profiles"]));
    let json: serde_json::Value =
        serde_json::from_str(&on_the_mock(folder.path(), &["gpu", "profiles", "-o", "json"])).unwrap();
    assert_eq!(json["gpus"][0]["profiles"][0]["profile"], "1g.18gb");
    assert_eq!(json["gpus"][1]["profiles"].as_array().map(Vec::len), Some(0));
}

#[test]
fn an_nvml_that_does_not_load_or_start_is_reported_with_a_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let output = kerf(folder.path(), &["gpu", "list", "--nvml", "/no/such/libnvidia-ml.so.1"]);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(stderr.starts_with("Error: failed to load NVML from /no/such/libnvidia-ml.so.1"), "{stderr}");
    assert!(stderr.trim_end().ends_with("is the driver installed and --nvml right?"), "{stderr}");

    let fault = Fault::new("nvmlInit_v2", NvmlCode::DRIVER_NOT_LOADED);
    MockConfig::new().write(&MockFiles::in_folder(folder.path()).config).unwrap();
    MockControl::new().fault(fault).write(&MockFiles::in_folder(folder.path()).control).unwrap();
    let library = library_path().unwrap();
    let output = kerf(folder.path(), &["gpu", "profiles", "--nvml", library.to_str().unwrap()]);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("is the driver loaded") && stderr.contains("DRIVER_NOT_LOADED"), "{stderr}");
}
