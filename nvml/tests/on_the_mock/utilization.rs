//! Tests how busy processes and instances are.

use crate::node::{Node, instance, look, open};
use kerf_nvml::{GpuBackend as _, NvmlBackend, Utilization};
use kerf_nvml_mock::{Fault, MockControl, NvmlCode as Code, Process};
use std::thread::sleep;
use std::time::Duration;

fn measured(nvml: &mut NvmlBackend) -> [Utilization; 2] {
    let gpus = nvml.observe().unwrap();
    nvml.utilization(&gpus);
    sleep(Duration::from_millis(1100));
    let mut all = nvml.utilization(&gpus);
    let mut of = |index: usize| all.remove(&gpus[index].uuid).unwrap();
    [of(0), of(1)]
}

pub fn processes_and_instances_are_measured(node: &Node) {
    let mut nvml = open();
    let h100 = look(&mut nvml, 0).uuid;
    let busy = nvml.create(&h100, instance("1g.10gb", 0, 1), None).unwrap();
    let idle = nvml.create(&h100, instance("1g.10gb", 1, 1), None).unwrap();
    let control = MockControl::new()
        .process(Process::on_instance(41, 0, busy.gi, 512).busy(30))
        .process(Process::on_instance(42, 0, busy.gi, 512).busy(25))
        .process(Process::on_gpu(43, 1, 512).busy(60))
        .process(Process::on_gpu(44, 1, 512));
    node.control(&control.count_calls());
    let [h100, t4] = measured(&mut nvml);
    assert_eq!(h100.instances, [(busy.gi, 55), (idle.gi, 0)].into());
    assert_eq!((h100.gpu, h100.processes), (None, None), "in MIG mode there is nothing by process");
    assert_eq!((t4.gpu, t4.processes), (Some(60), Some([(43, 60)].into())));
    assert!(t4.instances.is_empty());
    drop(nvml);
    let calls = node.state().calls;
    assert_eq!(calls["nvmlGpmSampleAlloc"], 4);
    assert_eq!(calls["nvmlGpmSampleFree"], 4, "every sample was given back");
}

pub fn values_that_the_driver_does_not_report_are_left_out(node: &Node) {
    let mut nvml = open();
    let h100 = look(&mut nvml, 0).uuid;
    nvml.create(&h100, instance("1g.10gb", 0, 1), None).unwrap();
    let functions =
        ["nvmlGpmMigSampleGet", "nvmlDeviceGetProcessUtilization", "nvmlDeviceGetUtilizationRates"];
    let faults = functions.map(|function| Fault::new(function, Code::NOT_SUPPORTED));
    let repairs = ["nvmlDeviceGetRemappedRows", "nvmlDeviceGetRetiredPagesPendingStatus"];
    let refused = repairs.map(|function| Fault::new(function, Code::INVALID_ARGUMENT));
    node.control(&faults.into_iter().chain(refused).fold(MockControl::new(), MockControl::fault));
    assert_eq!(measured(&mut nvml), [Utilization::default(), Utilization::default()]);
    assert!(nvml.observe().unwrap().iter().all(|gpu| gpu.fault.is_none()));
}
