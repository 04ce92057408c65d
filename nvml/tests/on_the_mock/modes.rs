//! Tests switches of MIG mode and compute mode.

use crate::node::{Node, instance, look, open, uuid};
use kerf_nvml::{ComputeMode, GpuBackend as _, GpuError, MigMode, ModeRefusal};
use kerf_nvml_mock::{Fault, MockControl, NvmlCode as Code, Process, ProcessKind};

fn refused(refusal: ModeRefusal) -> Result<(), GpuError> {
    Err(GpuError::MigMode(refusal))
}

pub fn mig_mode_is_switched_and_changes_the_minor(_: &Node) {
    let mut nvml = open();
    let before = look(&mut nvml, 0);
    assert_eq!((before.mig, before.minor, before.table), (MigMode::Settled(false), 0, None));
    nvml.set_mig_mode(&before.uuid, true, false).unwrap();
    let on = look(&mut nvml, 0);
    assert_eq!((on.mig, on.minor), (MigMode::Settled(true), 2), "1 is the neighbour's");
    assert_eq!((on.table.is_some(), on.uuid), (true, before.uuid.clone()));
    let made = nvml.create(&before.uuid, instance("1g.10gb", 0, 1), None).unwrap();
    nvml.destroy(&before.uuid, &made, None).unwrap();
    nvml.set_mig_mode(&before.uuid, true, false).unwrap();
    nvml.set_mig_mode(&before.uuid, false, false).unwrap();
    let off = look(&mut nvml, 0);
    assert_eq!((off.mig, off.minor, off.table), (MigMode::Settled(false), 0, None));
}

pub fn a_gpu_in_use_keeps_its_mig_mode(node: &Node) {
    let mut nvml = open();
    let gpu = uuid(&mut nvml, 0);
    nvml.create(&gpu, instance("1g.10gb", 0, 1), None).unwrap();
    nvml.create(&gpu, instance("1g.10gb+me", 3, 1), None).unwrap();
    assert_eq!(nvml.set_mig_mode(&gpu, false, true), refused(ModeRefusal::Instances(2)));
    for made in look(&mut nvml, 0).instances {
        nvml.destroy(&gpu, &made, None).unwrap();
    }
    node.control(&MockControl::new().process(Process::on_gpu(41, 0, 1)));
    let error = nvml.set_mig_mode(&gpu, false, true).unwrap_err();
    assert!(error.is_busy() && error.to_string().contains("41"), "{error}");
    node.control(&MockControl::new());
    nvml.set_compute_mode(&gpu, ComputeMode::ExclusiveProcess).unwrap();
    assert_eq!(nvml.set_mig_mode(&gpu, false, true), refused(ModeRefusal::ComputeMode(0)));
    assert_eq!(look(&mut nvml, 0).mig, MigMode::Settled(true), "nothing waits for a reset");
}

pub fn a_change_that_would_stay_pending_is_cancelled(node: &Node) {
    let mut nvml = open();
    let gpu = uuid(&mut nvml, 0);
    let hidden = Process { kind: ProcessKind::Holder, ..Process::on_gpu(41, 0, 1) };
    node.control(&MockControl::new().process(hidden));
    for reset in [false, true] {
        let error = nvml.set_mig_mode(&gpu, false, reset).unwrap_err();
        assert!(error.is_busy() && error.to_string().contains("DCGM"), "{error}");
        assert_eq!(look(&mut nvml, 0).mig, MigMode::Settled(true));
    }
    for (code, reported) in [(Code::NO_PERMISSION, "NO_PERMISSION"), (Code::IN_USE, "DCGM")] {
        node.control(&MockControl::new().fault(Fault::new("nvmlDeviceSetMigMode", code)));
        let error = nvml.set_mig_mode(&gpu, false, false).unwrap_err().to_string();
        assert!(error.contains(reported), "{error}");
    }
}

pub fn ampere_switches_with_a_reset(node: &Node) {
    let mut nvml = open();
    let gpu = uuid(&mut nvml, 0);
    assert_eq!(nvml.set_mig_mode(&gpu, true, false), refused(ModeRefusal::NeedsReset(0)));
    assert_eq!(look(&mut nvml, 0).mig, MigMode::Settled(false), "it was not even asked for");
    nvml.set_mig_mode(&gpu, true, true).unwrap();
    nvml.set_mig_mode(&gpu, true, true).unwrap();
    assert_eq!(look(&mut nvml, 0).mig, MigMode::Pending(false));
    nvml.set_mig_mode(&gpu, false, false).unwrap();
    assert_eq!(look(&mut nvml, 0).mig, MigMode::Settled(false), "what is called off needs no reset");
    nvml.set_mig_mode(&gpu, true, true).unwrap();
    node.control(&MockControl::new().boot("boot-2"));
    let after = look(&mut nvml, 0);
    assert_eq!((after.mig, after.table.is_some()), (MigMode::Settled(true), true));
}

pub fn ampere_switches_without_a_reset_where_the_driver_can(_: &Node) {
    let mut nvml = open();
    let gpu = uuid(&mut nvml, 0);
    nvml.set_mig_mode(&gpu, true, true).unwrap();
    assert_eq!(look(&mut nvml, 0).mig, MigMode::Settled(true));
}

pub fn a_gpu_without_mig_refuses_the_mode(_: &Node) {
    let mut nvml = open();
    let gpu = uuid(&mut nvml, 0);
    assert_eq!(nvml.set_mig_mode(&gpu, true, true), refused(ModeRefusal::Unsupported));
}

pub fn compute_mode_is_set_and_restored(node: &Node) {
    let mut nvml = open();
    let gpu = uuid(&mut nvml, 0);
    nvml.set_compute_mode(&gpu, ComputeMode::ExclusiveProcess).unwrap();
    assert_eq!(look(&mut nvml, 0).compute_mode, ComputeMode::ExclusiveProcess);
    nvml.set_compute_mode(&gpu, ComputeMode::Default).unwrap();
    nvml.set_compute_mode(&gpu, ComputeMode::Default).unwrap();
    assert_eq!(look(&mut nvml, 0).compute_mode, ComputeMode::Default);
    nvml.set_compute_mode(&gpu, ComputeMode::Other).unwrap();
    assert_eq!(nvml.compute_mode(&gpu), Ok(ComputeMode::Other), "prohibited");
    let denied = Fault::new("nvmlDeviceSetComputeMode", Code::NO_PERMISSION);
    node.control(&MockControl::new().fault(denied));
    let error = nvml.set_compute_mode(&gpu, ComputeMode::ExclusiveProcess).unwrap_err();
    assert_eq!(error.to_string(), "nvmlDeviceSetComputeMode answered NO_PERMISSION");
}
