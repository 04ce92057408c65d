use super::super::tests::{ONE, Scene, mig, slice, wanted, wanted_of};
use super::*;
use crate::gpu::fake::{FakeGpus, uuid};
use kerf_core::contract::{GpuNodeStatus, Holder, Shape, SliceState, SliceStatus};
use kerf_core::names::PodKey;
use kerf_core::units::SizeGb;
use std::time::Duration;

#[test]
fn foreign_device_ids_are_parsed() {
    let (gpu, uuid) = (nvidia_keys::GPU, |id: &str| Some(Foreign::Uuid(DeviceId::new(id))));
    let cases = [
        (gpu, "nvidia3", Some(Foreign::Gpu { minor: 3 })),
        (gpu, "nvidia3/vgpu0", Some(Foreign::Gpu { minor: 3 })),
        (gpu, "nvidia0/gi7", Some(Foreign::Instance { minor: 0, gi: 7 })),
        (gpu, "nvidia0/gi7/vgpu1", Some(Foreign::Instance { minor: 0, gi: 7 })),
        (gpu, "nvidia0/novel1", Some(Foreign::Unknown)),
        (gpu, "tegra", Some(Foreign::Unknown)),
        ("nvidia.com/gpu-of-old", "7", Some(Foreign::Unknown)),
        (gpu, "GPU-1", None),
        ("nvidia.com/gpu-4gb", "GPU-1::3", None),
        (ONE, "MIG-1", None),
        (ONE, "MIG-1::0", uuid("MIG-1")),
        ("nvidia.com/mig-1g.10gb.shared", "MIG-1::1", None),
        ("nvidia.com/mig-1g.10gb.shared", "MIG-1", uuid("MIG-1")),
        ("nvidia.com/renamed", "GPU-1::2", uuid("GPU-1")),
        ("nvidia.com/hostdev", "0000:3b:00.2", None),
        ("example.com/gpu", "GPU-1", None),
    ];
    for (resource, id, expected) in cases {
        assert_eq!(Foreign::from_plugin_device(resource, id), expected, "{resource} {id}");
    }
    let placed = |minor, start| Some(Foreign::Placed { minor, start });
    let cases = [
        (DRA_DRIVER, "gpu-2", Some(Foreign::Gpu { minor: 2 })),
        (DRA_DRIVER, "gpu-2-mig-19-4-1", placed(2, 4)),
        (DRA_DRIVER, "gpu-2-mig-1g10gb-19-4", placed(2, 4)),
        (DRA_DRIVER, "gpu-2-novel", Some(Foreign::Unknown)),
        (DRA_DRIVER, "gpu-vfio-0", None),
        ("compute-domain.nvidia.com", "channel-0", None),
    ];
    for (driver, device, expected) in cases {
        assert_eq!(Foreign::from_claim(driver, device), expected, "{driver} {device}");
    }
}

const WHOLE: Shape = Shape::Whole { size_gb: SizeGb(15) };

/// A node with these GPUs on which pod `a` holds these foreign devices.
fn scene(models: &[&str], foreign: &[Foreign]) -> Scene {
    let mut scene = Scene::with_settings(FakeGpus::new(models), crate::node::Settings::default());
    scene.foreign = had_by_a(foreign);
    scene.restart_agent();
    scene
}

fn had_by_a(foreign: &[Foreign]) -> Vec<(Foreign, Holder)> {
    let holder = Holder { namespace: "ns".into(), pod: "a".into(), container: "main".into() };
    foreign.iter().map(|foreign| (foreign.clone(), holder.clone())).collect()
}

/// Whether each whole GPU is offered to the pod with its reservation.
fn given(scene: &mut Scene) -> Vec<bool> {
    let ids = ["s0", "s1", "s2"];
    let all = ids.iter().zip(0..).map(|(id, n)| wanted_of(n, id, WHOLE, Some((id, nvidia_keys::GPU))));
    scene.want(all.collect());
    let status = scene.settle();
    ids.iter().map(|id| slice(&status, id).state == SliceState::Ready).collect()
}

#[test]
fn a_gpu_held_through_another_program_is_offered_to_no_pod_until_the_pod_ends() {
    let claim = || Foreign::from_claim(DRA_DRIVER, "gpu-1").unwrap();
    let cases = [
        (vec![Foreign::from_plugin_device(nvidia_keys::GPU, "nvidia1").unwrap()], [true, false, true]),
        (vec![claim()], [true, false, true]),
        (vec![Foreign::Uuid(DeviceId::new("GPU-2"))], [true, true, false]),
        (vec![claim(), Foreign::Gpu { minor: 0 }], [false, false, true]),
        (vec![Foreign::Unknown], [false; 3]),
        (vec![Foreign::Gpu { minor: 9 }], [false; 3]),
        (vec![Foreign::Uuid(DeviceId::new("GPU-9"))], [true; 3]),
    ];
    for (foreign, expected) in cases {
        let mut scene = scene(&["T4-16GB", "T4-16GB", "T4-16GB"], &foreign);
        assert_eq!(given(&mut scene), expected, "{foreign:?}");
        let status = scene.settle();
        let holders = status.slices.iter().filter(|s| s.holder.as_ref().is_some_and(|h| h.pod == "a"));
        assert_eq!(holders.count(), expected.iter().filter(|given| !**given).count());
        scene.foreign.clear();
        scene.node.on_pod_left(PodKey::new("ns", "a"), kerf_core::names::PodUid::new("a-uid"), scene.now);
        scene.list_holders();
        assert_eq!(given(&mut scene), [true; 3], "{foreign:?}");
    }
}

#[test]
fn an_unknown_foreign_device_is_no_gpu_with_shares_of_kerf() {
    let mut scene = scene(&["T4-16GB", "T4-16GB"], &[]);
    scene.want(vec![wanted("s1", Shape::TimeSlicing { size_gb: SizeGb(4) }, None)]);
    scene.settle();
    scene.foreign = had_by_a(&[Foreign::Unknown]);
    scene.list_holders();
    let status = scene.settle();
    assert_eq!((held(&status, "GPU-0"), held(&status, "GPU-1")), (false, true));
}

fn held(status: &GpuNodeStatus, device: &str) -> bool {
    let of_it = |s: &&SliceStatus| s.device == Some(DeviceId::new(device));
    status.slices.iter().find(of_it).is_some_and(|s| s.state == SliceState::Held)
}

/// Slices that kerf has cut, and another manager has allocated since.
#[test]
fn a_mig_device_held_through_another_program_is_offered_to_no_other_pod() {
    let cut = || [0, 1].map(|start| wanted(&format!("s{start}"), mig("1g.10gb", start, 1), None)).to_vec();
    let cases = [
        Foreign::Uuid(DeviceId::new("MIG-2")),
        Foreign::Placed { minor: 0, start: 1 },
        Foreign::Instance { minor: 0, gi: 2 },
    ];
    for foreign in cases {
        let mut scene = scene(&["H100-80GB"], &[]);
        scene.want(cut());
        scene.settle();
        let gis: Vec<_> = scene.gpus.gpus()[0].instances.iter().map(|i| i.gi).collect();
        assert_eq!(gis, [1, 2]);
        scene.foreign = had_by_a(std::slice::from_ref(&foreign));
        scene.list_holders();
        let mut reserved = cut();
        reserved[1] = wanted("s1", mig("1g.10gb", 1, 1), Some(("b", ONE)));
        scene.want(reserved);
        let status = scene.settle();
        assert_ne!(slice(&status, "s1").state, SliceState::Ready, "{foreign:?}");
        assert_eq!(slice(&status, "s0").state, SliceState::Idle, "{foreign:?}");
        scene.want(vec![wanted("s9", mig("7g.80gb", 0, 8), Some(("c", "nvidia.com/mig-7g.80gb")))]);
        scene.settle();
        assert!(scene.places().contains(&"1g.10gb at 1:1".to_owned()), "{foreign:?}");
    }
}

#[test]
fn a_kubelet_that_lists_no_pod_yet_frees_no_foreign_device() {
    let mut scene = scene(&["T4-16GB"], &[Foreign::Gpu { minor: 0 }]);
    let known = scene.foreign.clone();
    let mut is_held = |foreign: Vec<_>, later: Duration| {
        scene.foreign = foreign;
        scene.now += later;
        scene.list_holders();
        held(&scene.settle(), uuid(0).as_str())
    };
    assert!(is_held(known.clone(), Duration::ZERO));
    assert!(is_held(Vec::new(), Duration::from_secs(1)));
    assert!(is_held(known, Duration::from_secs(1)));
    assert!(!is_held(Vec::new(), Duration::from_mins(2)), "its end was missed");
}
