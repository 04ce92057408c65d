//! Tests GPU memory limits of cgroups.

use crate::node::{Node, open, uuid};
use kerf_core::units::MemoryMib;
use kerf_nvml::{GpuBackend as _, GpuError, NvmlCode};

pub fn a_cgroup_is_limited_from_driver_r615_on(node: &Node) {
    let mut nvml = open();
    let gpu = uuid(&mut nvml, 0);
    // Any folder works, because the mock has no cgroups.
    let folder = node.folder("pod-1");
    let pod = folder.to_str().unwrap();
    nvml.limit_memory(&gpu, pod, Some(MemoryMib(10_240))).unwrap();
    let limits = node.state().gpus[0].memory_limits.clone();
    let limit = limits.get(pod).unwrap();
    assert_eq!((limit.soft, limit.hard), (10_240 << 20, 10_240 << 20));
    nvml.limit_memory(&gpu, pod, None).unwrap();
    nvml.limit_memory(&gpu, pod, None).unwrap();
    assert!(node.state().gpus[0].memory_limits.is_empty());

    std::fs::remove_dir(&folder).unwrap();
    nvml.limit_memory(&gpu, pod, None).unwrap();
    let error = nvml.limit_memory(&gpu, pod, Some(MemoryMib(1))).unwrap_err();
    assert_eq!(error.code(), NvmlCode::OperatingSystem);
    let error = nvml.limit_memory(&gpu, "a\0b", Some(MemoryMib(1))).unwrap_err();
    assert_eq!(error, GpuError::Cgroup("a\0b".to_owned()));
    nvml.set_mig_mode(&gpu, true, false).unwrap();
    let error = nvml.limit_memory(&gpu, "/", Some(MemoryMib(1))).unwrap_err();
    assert_eq!(error.code(), NvmlCode::NotSupported);
}

pub fn an_older_driver_is_refused_by_its_version(_: &Node) {
    let mut nvml = open();
    let gpu = uuid(&mut nvml, 0);
    let error = nvml.limit_memory(&gpu, "/sys/fs/cgroup", Some(MemoryMib(1))).unwrap_err();
    assert_eq!(error.code(), NvmlCode::FunctionNotFound);
    assert!(error.to_string().contains("the driver is older than R615"), "{error}");
}
