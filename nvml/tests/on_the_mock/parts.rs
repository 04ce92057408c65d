//! Tests creating and destroying instances, whole and in parts.

use crate::node::{Node, instance, look, open, part, uuid};
use kerf_core::mig::ComputeInstance;
use kerf_nvml::{Compute, GpuBackend as _, GpuError, GpuInstance, NvmlCode};
use kerf_nvml_mock::{Fault, MockControl, NvmlCode as Code};

const CREATE_FULL: &str = "nvmlGpuInstanceCreateComputeInstance";
const CREATE_PART: &str = "nvmlGpuInstanceCreateComputeInstanceWithPlacement";
const DESTROY_GI: &str = "nvmlGpuInstanceDestroy";

fn places(instance: &GpuInstance) -> Vec<Option<ComputeInstance>> {
    instance.devices().map(|(place, ..)| place).collect()
}

pub fn a_full_instance_is_created_and_destroyed(node: &Node) {
    let mut nvml = open();
    let gpu = uuid(&mut nvml, 0);
    // Hopper has two one-slice compute profiles. The one with more multiprocessors makes the most of double memory.
    for wanted in [instance("1g.20gb", 0, 2), instance("3g.40gb", 4, 4)] {
        let made = nvml.create(&gpu, wanted, None).unwrap();
        assert!(made.device().unwrap().as_str().starts_with("MIG-"), "{made:?}");
        assert!(look(&mut nvml, 0).instances.contains(&made));
    }
    let again = nvml.create(&gpu, instance("3g.40gb", 4, 4), None).unwrap_err();
    assert_eq!(again.code(), NvmlCode::InsufficientResources);
    for instance in look(&mut nvml, 0).instances {
        nvml.destroy(&gpu, &instance, None).unwrap();
        nvml.destroy(&gpu, &instance, None).unwrap();
    }
    assert!(node.state().gpus[0].instances.is_empty());
}

pub fn parts_are_created_and_destroyed_one_by_one(node: &Node) {
    let mut nvml = open();
    let gpu = uuid(&mut nvml, 0);
    let whole = instance("4g.40gb", 0, 4);
    let [low, high] = [part(0, 1), part(2, 2)];
    let first = nvml.create(&gpu, whole, Some(high)).unwrap();
    assert_eq!(places(&first), [Some(high)]);
    let both = nvml.create(&gpu, whole, Some(low)).unwrap();
    assert_eq!((places(&both), both.gi), (vec![Some(low), Some(high)], first.gi));
    assert_eq!(look(&mut nvml, 0).instances, std::slice::from_ref(&both));

    nvml.destroy(&gpu, &both, Some(low)).unwrap();
    nvml.destroy(&gpu, &both, Some(low)).unwrap();
    let left = look(&mut nvml, 0).instances.swap_remove(0);
    assert_eq!(places(&left), [Some(high)]);
    nvml.destroy(&gpu, &left, Some(high)).unwrap();
    let empty = look(&mut nvml, 0).instances.swap_remove(0);
    assert_eq!(empty.compute, Compute::Missing, "the GPU instance stays until it is destroyed itself");
    nvml.create(&gpu, whole, Some(low)).unwrap();
    nvml.create(&gpu, whole, Some(high)).unwrap();
    let both = look(&mut nvml, 0).instances.swap_remove(0);
    nvml.destroy(&gpu, &both, None).unwrap();
    assert!(node.state().gpus[0].instances.is_empty());
}

pub fn a_gpu_instance_without_its_compute_instance_is_destroyed(node: &Node) {
    let mut nvml = open();
    let gpu = uuid(&mut nvml, 0);
    let whole = instance("3g.40gb", 0, 4);
    let faults = [
        (None, Fault::new(CREATE_FULL, Code::INSUFFICIENT_RESOURCES)),
        (Some(part(1, 1)), Fault::new(CREATE_PART, Code::INSUFFICIENT_RESOURCES)),
        (None, Fault::new("nvmlComputeInstanceGetInfo_v2", Code::UNKNOWN)),
        (None, Fault::new(CREATE_FULL, Code::TIMEOUT).after_effect()),
        (Some(part(2, 1)), Fault::new(CREATE_PART, Code::TIMEOUT).after_effect()),
    ];
    for (part, fault) in faults {
        let reported = format!("{fault:?}");
        node.control(&MockControl::new().fault(fault.times(1)));
        nvml.create(&gpu, whole, part).unwrap_err();
        assert!(node.state().gpus[0].instances.is_empty(), "{reported}");
    }
}

pub fn a_gpu_instance_without_a_compute_instance_is_completed(node: &Node) {
    let mut nvml = open();
    let gpu = uuid(&mut nvml, 0);
    let whole = instance("2g.20gb", 2, 2);
    let refused = Fault::new(CREATE_FULL, Code::UNKNOWN).times(1);
    node.control(&MockControl::new().fault(refused).fault(Fault::new(DESTROY_GI, Code::UNKNOWN).times(1)));
    nvml.create(&gpu, whole, None).unwrap_err();
    let behind = look(&mut nvml, 0).instances.swap_remove(0);
    assert_eq!(behind.compute, Compute::Missing);

    // An instance that existed before stays if it cannot be completed.
    node.control(&MockControl::new().fault(Fault::new(CREATE_FULL, Code::UNKNOWN).times(1)));
    nvml.create(&gpu, whole, None).unwrap_err();
    assert_eq!(look(&mut nvml, 0).instances, std::slice::from_ref(&behind));
    let made = nvml.create(&gpu, whole, None).unwrap();
    assert_eq!((made.gi, node.state().gpus[0].instances.len()), (behind.gi, 1));
}

pub fn a_refused_part_leaves_the_others(_: &Node) {
    let mut nvml = open();
    let gpu = uuid(&mut nvml, 0);
    let whole = instance("3g.40gb", 0, 4);
    let one = nvml.create(&gpu, whole, Some(part(0, 1))).unwrap();
    for (second, code) in
        [(part(0, 1), NvmlCode::InsufficientResources), (part(1, 2), NvmlCode::InvalidArgument)]
    {
        assert_eq!(nvml.create(&gpu, whole, Some(second)).unwrap_err().code(), code);
        assert_eq!(look(&mut nvml, 0).instances, std::slice::from_ref(&one));
    }
}

pub fn an_interrupted_destruction_is_continued(node: &Node) {
    let mut nvml = open();
    let gpu = uuid(&mut nvml, 0);
    let made = nvml.create(&gpu, instance("1g.10gb", 0, 1), None).unwrap();
    node.control(&MockControl::new().fault(Fault::new(DESTROY_GI, Code::UNKNOWN).times(1)));
    assert!(nvml.destroy(&gpu, &made, None).is_err());
    assert_eq!(look(&mut nvml, 0).instances[0].compute, Compute::Missing);
    let lost = Fault::new(DESTROY_GI, Code::TIMEOUT).after_effect().times(1);
    node.control(&MockControl::new().fault(lost));
    // A caller repeats with what it observed before, so a missing part must not count as a change, and what an
    // unanswered call has destroyed must count as done.
    assert!(nvml.destroy(&gpu, &made, None).is_err());
    nvml.destroy(&gpu, &made, None).unwrap();
    assert!(node.state().gpus[0].instances.is_empty());
}

pub fn another_instance_in_the_same_place_is_not_destroyed(node: &Node) {
    let mut nvml = open();
    let gpu = uuid(&mut nvml, 0);
    let whole = instance("1g.10gb", 0, 1);
    let seen = nvml.create(&gpu, whole, None).unwrap();
    nvml.destroy(&gpu, &seen, None).unwrap();
    let other = nvml.create(&gpu, whole, None).unwrap();
    assert_eq!(other.gi, seen.gi, "NVML gives ids again");
    assert_eq!(nvml.destroy(&gpu, &seen, None), Err(GpuError::Changed(seen.gi)));
    nvml.destroy(&gpu, &other, None).unwrap();
    nvml.create(&gpu, instance("1g.10gb+me", 0, 1), None).unwrap();
    assert_eq!(nvml.destroy(&gpu, &other, None), Err(GpuError::Changed(seen.gi)));
    assert_eq!(node.state().gpus[0].instances.len(), 1);
}

pub fn an_unknown_profile_is_refused_by_its_name(node: &Node) {
    let mut nvml = open();
    let gpu = uuid(&mut nvml, 0);
    let error = nvml.create(&gpu, instance("1g.5gb", 0, 1), None).unwrap_err();
    assert_eq!(error.to_string(), "the GPU has no profile 1g.5gb");
    let error = nvml.create(&gpu, instance("4g.40gb", 0, 4), Some(part(0, 3))).unwrap_err();
    assert_eq!(error.to_string(), "a 4g.40gb offers no compute instance of 3 slices");
    assert!(node.state().gpus[0].instances.is_empty());
    let stranger = kerf_core::names::GpuUuid::new("GPU-0");
    let error = nvml.create(&stranger, instance("1g.10gb", 0, 1), None).unwrap_err();
    assert_eq!(error, GpuError::NoSuchGpu(stranger));
}

pub fn a_place_that_the_driver_lacks_is_refused_by_name(node: &Node) {
    const PLACES: &str = "nvmlGpuInstanceGetComputeInstancePossiblePlacements";
    let large = instance("3g.40gb", 4, 4);
    let mut nvml = open();
    let gpu = uuid(&mut nvml, 0);
    let error = nvml.create(&gpu, large, Some(part(1, 2))).unwrap_err();
    assert_eq!(error, GpuError::NoSuchPlace(2, large.profile, 1));
    assert!(node.state().gpus[0].instances.is_empty());
    // If the driver does not report the places, it is asked to create the instance anyway.
    node.control(&MockControl::new().fault(Fault::new(PLACES, Code::FUNCTION_NOT_FOUND)));
    let mut nvml = open();
    assert_ne!(nvml.create(&gpu, large, Some(part(1, 2))).unwrap_err(), error);
    nvml.create(&gpu, large, Some(part(2, 1))).unwrap();
}
