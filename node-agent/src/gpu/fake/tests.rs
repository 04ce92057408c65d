//! The rules of the fake GPUs on which the agent's tests rely.

use super::*;
use crate::gpu::{Compute, GpuBackend as _, ModeRefusal};
use kerf_core::mig::{ComputeInstance, Instance, Placement};

fn instance(profile: &str, start: u8, size: u8) -> Instance {
    Instance { profile: profile.parse().unwrap(), placement: Placement { start, size } }
}

#[test]
fn parts_are_created_and_destroyed_one_by_one() {
    let mut gpus = FakeGpus::new(&["H100-80GB"]);
    let whole = instance("3g.40gb", 4, 4);
    let [low, high] = [0, 1].map(|start| ComputeInstance { start, compute: 1 });
    gpus.create(&uuid(0), whole, Some(high)).unwrap();
    let both = gpus.create(&uuid(0), whole, Some(low)).unwrap();
    assert_eq!(
        both.devices().map(|(part, ci, _)| (part, ci)).collect::<Vec<_>>(),
        [(Some(low), 1), (Some(high), 0)]
    );
    assert!(gpus.create(&uuid(0), whole, Some(low)).is_err());

    let device = both.devices().next().unwrap().2.clone();
    gpus.set_processes(&device, true);
    assert!(gpus.gpus()[0].instances[0].has_processes);
    assert!(gpus.destroy(&uuid(0), &both, None).unwrap_err().is_busy());
    assert!(gpus.destroy(&uuid(0), &both, Some(low)).unwrap_err().is_busy());
    gpus.destroy(&uuid(0), &both, Some(high)).unwrap();
    gpus.set_processes(&device, false);
    gpus.destroy(&uuid(0), &both, Some(low)).unwrap();
    assert_eq!(gpus.gpus()[0].instances[0].compute, Compute::Missing);
    gpus.destroy(&uuid(0), &both, None).unwrap();
    assert!(gpus.gpus()[0].instances.is_empty());
}

#[test]
fn mig_mode_is_switched_only_on_an_empty_gpu() {
    let mut gpus = FakeGpus::uncut(&["H100-80GB", "A100-40GB", "T4-16GB"]);
    gpus.set_mig_mode(&uuid(0), true, false).unwrap();
    let hopper = &gpus.gpus()[0];
    assert!(hopper.mig == MigMode::Settled(true) && hopper.table.is_some() && hopper.minor != hopper.index);
    let refused = |refusal| Err(GpuError::MigMode(refusal));
    assert_eq!(gpus.set_mig_mode(&uuid(1), true, false), refused(ModeRefusal::NeedsReset(1)));
    assert_eq!(gpus.set_mig_mode(&uuid(2), true, false), refused(ModeRefusal::Unsupported));
    gpus.set_mig_mode(&uuid(1), true, true).unwrap();
    assert_eq!(gpus.gpus()[1].mig, MigMode::Pending(false));

    gpus.create(&uuid(0), instance("1g.10gb", 0, 1), None).unwrap();
    assert_eq!(gpus.set_mig_mode(&uuid(0), false, true), refused(ModeRefusal::Instances(1)));
    gpus.reboot();
    let modes: Vec<MigMode> = gpus.gpus().iter().map(|g| g.mig).collect();
    assert_eq!(modes, [MigMode::Settled(false), MigMode::Settled(true), MigMode::Unsupported]);

    gpus.set_compute_mode(&uuid(0), ComputeMode::ExclusiveProcess).unwrap();
    assert_eq!(gpus.set_mig_mode(&uuid(0), true, false), refused(ModeRefusal::ComputeMode(0)));
}

#[test]
fn a_lost_gpu_shows_its_last_state() {
    let mut gpus = FakeGpus::new(&["H100-80GB"]);
    gpus.create(&uuid(0), instance("1g.10gb", 0, 1), None).unwrap();
    gpus.set_lost(0, true);
    let seen = &gpus.gpus()[0];
    assert!(seen.fault.is_some() && seen.instances.len() == 1);
    assert!(gpus.create(&uuid(0), instance("1g.10gb", 1, 1), None).is_err());
    gpus.set_lost(0, false);
    assert_eq!(gpus.gpus()[0].fault, None);
}

#[test]
fn memory_processes_limits_and_repairs_are_seen() {
    let mut gpus = FakeGpus::uncut(&["L4-24GB"]);
    gpus.use_memory(0, MemoryMib(100));
    gpus.start_process(0, None, 41, Some(MemoryMib(512)));
    gpus.set_pending_repair(0, Some("a row"));
    let seen = &gpus.gpus()[0];
    assert_eq!((seen.used, seen.processes.len()), (MemoryMib(612), 1));
    assert_eq!(seen.pending_repair.as_deref(), Some("a row"));
    gpus.end_process(41);
    assert_eq!(gpus.gpus()[0].used, MemoryMib(100));
    gpus.limit_memory(&uuid(0), "/kubepods/x", Some(MemoryMib(1024))).unwrap();
    assert_eq!(gpus.limits().into_values().collect::<Vec<_>>(), [MemoryMib(1024)]);
    gpus.limit_memory(&uuid(0), "/kubepods/x", None).unwrap();
    assert!(gpus.limits().is_empty());
}
