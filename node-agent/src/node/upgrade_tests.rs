//! The driver's upgrade: nothing new is offered, what pods have stays, and the driver is released once no MPS daemon is
//! needed.

use super::tests::{ONE, Scene, devices, failing, mig, slice, wanted};
use super::*;
use kerf_core::contract::{Condition, Shape, SliceState, WantedSlice};
use kerf_core::names::PodKey;
use kerf_core::units::SizeGb;
use std::collections::BTreeMap;

const SHARE: &str = "nvidia.com/gpu-4gb";
const EVIDENCE: &str = "the node's label x is paused-for-driver-upgrade";

fn begin(scene: &mut Scene) {
    scene.node.on_upgrade(Some(EVIDENCE.to_owned()));
}

fn share(pod: Option<&str>) -> WantedSlice {
    wanted("s1", Shape::mps(SizeGb(4)), pod.map(|pod| (pod, SHARE)))
}

/// A GPU on which the pod `a` holds an MPS share, with a daemon that serves.
fn shared() -> Scene {
    let gpus = crate::gpu::fake::FakeGpus::new(&["L4-24GB"]);
    let mut scene =
        Scene::with_settings(gpus, Settings { mps: Some("/run/kerf/mps".into()), ..Settings::default() });
    scene.want(vec![share(Some("a"))]);
    scene.decide();
    serve(&mut scene);
    scene.settle();
    scene.allocate("a", SHARE, "GPU-0::1");
    scene.settle();
    scene
}

/// Reports that the desired daemons serve.
fn serve(scene: &mut Scene) {
    let wanted = scene.decide().slices.unwrap().daemons;
    let serving = wanted.into_iter().map(|(gpu, wanted)| {
        (gpu, Daemon::Serving { generation: 1, limit: wanted.limit, threads: wanted.threads })
    });
    scene.node.on_daemons(serving.collect());
}

#[test]
fn an_upgrade_stops_new_slices_and_offers_and_keeps_held_slices() {
    let mut scene = Scene::new(&["H100-80GB"]);
    let held = wanted("s1", mig("1g.10gb", 0, 1), Some(("a", ONE)));
    scene.want(vec![held.clone()]);
    scene.settle();
    scene.allocate("a", ONE, "MIG-1");
    begin(&mut scene);
    scene.want(vec![held.clone(), wanted("s2", mig("1g.10gb", 1, 1), Some(("b", ONE)))]);
    let decision = scene.decide();
    assert_eq!((decision.step, devices(&decision.healthy)), (None, vec!["MIG-1"]));
    let status = decision.status;
    assert!(!status.is_ready() && status.gpus.iter().all(|gpu| gpu.kinds.is_empty()));
    assert_eq!(slice(&status, "s1").state, SliceState::Held);
    assert!(failing(&status, Condition::READY).unwrap().contains(EVIDENCE));
    assert_eq!(failing(&status, Condition::UNCONTESTED), None, "no other program manages the GPUs");
    assert!(decision.let_go.is_some(), "its pod holds the GPU itself");
    scene.node.on_upgrade(None);
    let status = scene.settle();
    assert!(status.is_ready());
    assert_eq!(slice(&status, "s2").state, SliceState::Ready);
    let reported = scene.reported.iter().filter(|note| matches!(note, NodeEvent::DriverUpgrade { .. }));
    assert_eq!(reported.count(), 1);
}

#[test]
fn the_driver_is_released_after_the_last_unused_mps_daemon_has_ended() {
    let mut scene = shared();
    begin(&mut scene);
    let decision = scene.decide();
    assert_eq!(decision.slices.unwrap().daemons.len(), 1, "its pod runs");
    assert_eq!(decision.let_go, None);
    // Whatever upgrades the driver evicts the pod.
    scene.end_pods();
    scene.want(vec![share(None)]);
    let decision = scene.decide();
    assert!(decision.slices.unwrap().daemons.is_empty());
    assert_eq!(decision.let_go, None, "it has not ended yet");
    scene.node.on_daemons(Daemons::new());
    let folder = Some("/run/kerf/mps".into());
    assert_eq!(scene.decide().let_go, Some(LetGo { evidence: EVIDENCE.to_owned(), daemons: folder }));
}

#[test]
fn a_bound_pod_keeps_its_daemon_and_a_pending_pod_does_not() {
    for is_bound in [true, false] {
        let gpus = crate::gpu::fake::FakeGpus::new(&["L4-24GB"]);
        let mut scene =
            Scene::with_settings(gpus, Settings { mps: Some("/run".into()), ..Settings::default() });
        scene.want(vec![share(Some("a"))]);
        scene.decide();
        serve(&mut scene);
        scene.settle();
        let (names, inits, requested) = (BTreeMap::new(), BTreeSet::new(), BTreeMap::new());
        let pod = NodePod {
            key: PodKey::new("ns", "a"),
            admitted: false,
            names,
            inits,
            requested,
            assigned: Vec::new(),
        };
        let bound = (PodUid::new("a-uid"), pod);
        scene.node.on_pods(is_bound.then_some(bound).into_iter().collect());
        begin(&mut scene);
        assert_eq!(scene.decide().slices.unwrap().daemons.is_empty(), !is_bound);
    }
}

#[test]
fn the_driver_is_not_released_before_the_holders_are_known() {
    let mut scene = shared();
    scene.start_agent();
    begin(&mut scene);
    assert_eq!(scene.decide().let_go, None);
}
