//! Tests the files below `/proc` against those of an H200, and that they follow the state.

use super::*;
use crate::config::{MigMode, MockConfig};
use crate::control::MockControl;
use crate::model::Model;

fn node(model: Model, count: u32) -> MockState {
    MockState::first_boot(&MockConfig::new().gpus(model, count, MigMode::Enabled)).unwrap()
}

/// Every file below `capabilities`, by its relative path.
fn files_in(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        if path.is_dir() {
            found.extend(files_in(&path).into_iter().map(|below| format!("{name}/{below}")));
        } else {
            found.push(name);
        }
    }
    found.sort();
    found
}

#[test]
fn numbers_are_those_that_an_h200_lists() {
    let text = mig_minors();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 4322);
    assert_eq!(lines[..4], ["config 1", "monitor 2", "gpu0/gi0/access 3", "gpu0/gi0/ci0/access 4"]);
    for line in ["gpu0/gi1/access 12", "gpu31/gi14/ci6/access 4321", "gpu31/gi14/ci7/access 4322"] {
        assert!(lines.contains(&line), "{line}");
    }
    // The formula and the list agree on every instance.
    for line in &lines[2..] {
        let (path, number) = line.split_once(' ').unwrap();
        let ids: Vec<u32> = path
            .split('/')
            .filter_map(|part| part.trim_start_matches(char::is_alphabetic).parse().ok())
            .collect();
        let minor = capability_minor(ids[0], ids[1], ids.get(2).copied());
        assert_eq!(minor, number.parse().ok(), "{line}");
    }
    for (gpu, gi, ci) in [(32, 0, None), (0, 15, None), (0, 0, Some(8))] {
        assert_eq!(capability_minor(gpu, gi, ci), None);
    }
}

#[test]
fn every_instance_of_every_model_has_a_number() {
    for model in Model::ALL.into_iter().filter(|model| model.has_mig()) {
        for profile in model.profiles() {
            for placement in profile.places() {
                let id = crate::rules::instance_id(model, placement);
                assert!(capability_minor(31, id, Some(7)).is_some(), "{model:?} {}", profile.name);
            }
        }
    }
}

#[test]
fn files_follow_the_instances() {
    let folder = tempfile::tempdir().unwrap();
    let capabilities = folder.path().join("driver/nvidia/capabilities");
    let mut state = node(Model::H100, 2);
    state.write_proc(folder.path()).unwrap();
    assert_eq!(files_in(&capabilities), ["mig/config", "mig/monitor"]);
    assert!(capabilities.join("gpu1/mig").is_dir());
    let config = std::fs::read_to_string(capabilities.join("mig/config")).unwrap();
    assert_eq!(config, "DeviceFileMinor: 1\nDeviceFileMode: 256\nDeviceFileModify: 1\n");

    let gi = state.create_gpu_instance(1, 9, None, &MockControl::new()).unwrap();
    let ci = state.create_compute_instance(1, gi, 2, None).unwrap();
    state.write_proc(folder.path()).unwrap();
    let cut = ["gpu1/mig/gi2/access", "gpu1/mig/gi2/ci0/access", "mig/config", "mig/monitor"];
    assert_eq!(files_in(&capabilities), cut);
    let access = std::fs::read_to_string(capabilities.join("gpu1/mig/gi2/ci0/access")).unwrap();
    assert_eq!(access, "DeviceFileMinor: 157\nDeviceFileMode: 292\nDeviceFileModify: 1\n");
    let listed = std::fs::read_to_string(folder.path().join("driver/nvidia-caps/mig-minors")).unwrap();
    assert!(listed.contains("\ngpu1/gi2/ci0/access 157\n"));

    state.destroy_compute_instance(1, ci, &MockControl::new()).unwrap();
    state.write_proc(folder.path()).unwrap();
    assert_eq!(files_in(&capabilities), ["gpu1/mig/gi2/access", "mig/config", "mig/monitor"]);
    state.reboot("boot-2");
    state.write_proc(folder.path()).unwrap();
    assert_eq!(files_in(&capabilities), ["mig/config", "mig/monitor"]);
}

#[test]
fn a_new_minor_number_moves_the_folder() {
    let folder = tempfile::tempdir().unwrap();
    let mut state = node(Model::H200, 1);
    state.write_proc(folder.path()).unwrap();
    state.set_mig_mode(0, false, &MockControl::new()).unwrap();
    state.write_proc(folder.path()).unwrap();
    let capabilities = folder.path().join("driver/nvidia/capabilities");
    assert!(!capabilities.join("gpu0").exists() && capabilities.join("gpu1/mig").is_dir());
}

#[test]
fn devices_name_the_majors_and_what_cannot_be_cut_has_no_folder() {
    let folder = tempfile::tempdir().unwrap();
    node(Model::T4, 1).write_proc(folder.path()).unwrap();
    let devices = std::fs::read_to_string(folder.path().join("devices")).unwrap();
    assert!(devices.starts_with("Character devices:\n  1 mem\n195 nvidia\n"), "{devices}");
    assert!(devices.contains("\n241 nvidia-caps\n") && devices.contains("\n\nBlock devices:\n"));
    assert!(!folder.path().join("driver/nvidia/capabilities/gpu0").exists());
}
