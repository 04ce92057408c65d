//! Tests which processes an error names when something is in use.

use crate::node::{Node, instance, look, open, part, uuid};
use kerf_nvml::GpuBackend as _;
use kerf_nvml_mock::{MockControl, Process, ProcessKind};

/// The pid and the name of this process.
fn me() -> (u32, String) {
    let pid = std::process::id();
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap();
    (pid, format!("{pid} ({})", name.trim_end()))
}

pub fn a_busy_instance_names_its_processes(node: &Node) {
    let mut nvml = open();
    let gpu = uuid(&mut nvml, 0);
    let (pid, name) = me();
    let small = nvml.create(&gpu, instance("1g.10gb", 0, 1), None).unwrap();
    let whole = instance("4g.40gb", 0, 4);
    let large = nvml.create(&gpu, instance("3g.40gb", 4, 4), Some(part(0, 1))).unwrap();
    let large = nvml.create(&gpu, large.instance, Some(part(1, 1))).unwrap();
    assert!(nvml.create(&gpu, whole, None).is_err(), "there is no room");
    let busy = Process { ci: Some(1), ..Process::on_instance(pid, 0, large.gi, 5) };
    node.control(&MockControl::new().process(busy));

    let error = nvml.destroy(&gpu, &large, None).unwrap_err();
    assert!(error.is_busy());
    assert_eq!(error.to_string(), format!("a process runs on it: {name}"));
    let error = nvml.destroy(&gpu, &large, Some(part(1, 1))).unwrap_err();
    assert_eq!(error.to_string(), format!("a process runs on it: {name}"));
    nvml.destroy(&gpu, &large, Some(part(0, 1))).unwrap();
    nvml.destroy(&gpu, &small, None).unwrap();
    assert_eq!(look(&mut nvml, 0).instances.len(), 1);
}

pub fn an_unlisted_holder_is_named_as_a_guess(node: &Node) {
    let mut nvml = open();
    let gpu = uuid(&mut nvml, 0);
    let small = nvml.create(&gpu, instance("1g.10gb", 0, 1), None).unwrap();
    let hidden = Process { kind: ProcessKind::Holder, ..Process::on_instance(41, 0, small.gi, 5) };
    node.control(&MockControl::new().process(hidden));
    assert!(!look(&mut nvml, 0).instances[0].has_processes);
    let error = nvml.destroy(&gpu, &small, None).unwrap_err();
    assert!(error.is_busy() && error.to_string().contains("DCGM"), "{error}");
    assert_eq!(look(&mut nvml, 0).instances, [small]);
}

pub fn a_process_on_the_whole_gpu_keeps_it_from_being_cut(node: &Node) {
    let mut nvml = open();
    let gpu = uuid(&mut nvml, 0);
    let (pid, name) = me();
    node.control(&MockControl::new().process(Process::on_gpu(pid, 0, 5)));
    let error = nvml.create(&gpu, instance("1g.10gb", 0, 1), None).unwrap_err();
    assert_eq!(error.to_string(), format!("a process runs on it: {name}"));
}
