//! What the shared library exports is what the crate says, and enough for the programs that load it.

use std::process::Command;

use kerf_nvml_mock::{exported_functions, library_path};

/// What `Nvml::init` and the agent cannot do without.
const NEEDED: [&str; 22] = [
    "nvmlInit_v2",
    "nvmlInitWithFlags",
    "nvmlShutdown",
    "nvmlErrorString",
    "nvmlSystemGetDriverVersion",
    "nvmlDeviceGetCount_v2",
    "nvmlDeviceGetHandleByIndex_v2",
    "nvmlDeviceGetHandleByUUID",
    "nvmlDeviceGetUUID",
    "nvmlDeviceGetMemoryInfo_v2",
    "nvmlDeviceGetMigMode",
    "nvmlDeviceSetMigMode",
    "nvmlDeviceGetGpuInstanceProfileInfoV",
    "nvmlDeviceGetGpuInstancePossiblePlacements_v2",
    "nvmlDeviceCreateGpuInstanceWithPlacement",
    "nvmlDeviceGetGpuInstances",
    "nvmlGpuInstanceCreateComputeInstance",
    "nvmlGpuInstanceGetComputeInstances",
    "nvmlComputeInstanceGetInfo_v2",
    "nvmlComputeInstanceDestroy",
    "nvmlGpuInstanceDestroy",
    "nvmlDeviceGetComputeRunningProcesses_v3",
];

#[test]
fn the_list_has_what_programs_need_and_no_name_twice() {
    let names = exported_functions();
    for needed in NEEDED {
        assert!(names.contains(&needed), "{needed}");
    }
    assert!(names.windows(2).all(|pair| pair[0] < pair[1]));
    assert!(names.iter().all(|name| name.starts_with("nvml")));
}

/// Needs `nm`, which a linker's package brings; skips nothing that the other test covers.
#[test]
fn the_library_exports_the_list() {
    let library = library_path().expect("cargo builds the cdylib with the tests");
    let Ok(output) = Command::new("nm").args(["-D", "--defined-only"]).arg(&library).output() else {
        return;
    };
    let text = String::from_utf8(output.stdout).unwrap();
    let exported: Vec<&str> = text
        .lines()
        .filter_map(|line| line.split_whitespace().nth(2))
        .filter(|name| name.starts_with("nvml"))
        .collect();
    assert_eq!(exported, exported_functions());
}
