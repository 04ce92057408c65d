//! The first start of an agent with a ledger where another agent has followed the GpuNode's spec.

use super::orders_tests::{order, reserve};
use super::tests::{ONE, Scene, mig, wanted, wanted_of};
use super::*;
use crate::gpu::fake::uuid;
use kerf_core::contract::{GpuNodeSpec, GpuNodeStatus, WantedSlice};
use kerf_core::ledger::Found;
use std::collections::BTreeSet;

/// A spec of this revision and epoch.
fn spec(revision: u64, epoch: u64, slices: Vec<WantedSlice>) -> GpuNodeSpec {
    GpuNodeSpec { revision, epoch, next_slice: 9, slices, ..GpuNodeSpec::default() }
}

fn reserved(id: &str, start: u8, pod: &str) -> WantedSlice {
    wanted(id, mig("1g.10gb", start, 1), Some((pod, ONE)))
}

/// A node whose previous agent has recorded this.
fn recorded(ledger: GpuNodeSpec) -> Scene {
    let mut scene = Scene::new(&["H100-80GB"]);
    scene.record = Restored { ledger: ledger.into(), uid: Some("uid".to_owned()), ..Restored::default() };
    scene.restart_agent();
    scene
}

/// The agent reads the GpuNode for the first time.
fn found(scene: &mut Scene, uid: &str, spec: GpuNodeSpec, status: Option<GpuNodeStatus>) {
    let policy = spec.policy.clone();
    let before = Predecessor { uid: Some(uid.to_owned()), spec, status };
    scene.node.on_predecessor(before, scene.now);
    scene.node.on_policy(Ok(policy));
}

/// The slices of the ledger, and its epoch.
fn taken(scene: &Scene) -> (Vec<String>, u64) {
    let ids = scene.node.desired().iter().map(|slice| slice.id.to_string());
    (ids.collect(), scene.node.ledger().epoch())
}

#[test]
fn the_spec_is_taken_over_before_anything_is_accepted_or_cut() {
    let mut scene = recorded(spec(5, 3, vec![reserved("s1", 0, "a")]));
    let decision = scene.decide();
    assert!(decision.step.is_none() && !decision.record.is_own);
    assert_eq!(scene.node.closed().as_deref(), Some("the GpuNode's spec has not been read yet"));
    let newer = spec(6, 4, vec![reserved("s1", 0, "a"), reserved("s2", 1, "b")]);
    found(&mut scene, "uid", newer, None);
    assert_eq!(taken(&scene), (vec!["s1".to_owned(), "s2".to_owned()], 4));
    let status = scene.settle();
    assert_eq!(scene.places().len(), 2, "what was ordered before is made");
    assert!(scene.record.is_own);
    assert_eq!(scene.node.closed(), None);
    // It is unknown whether their Bindings were sent.
    assert!(status.slices.iter().all(|slice| slice.reservation.as_ref().is_some_and(|r| r.binding)));
    scene.now += Duration::from_secs(81);
    assert_eq!(scene.decide().pods.look_up.len(), 2);
}

#[test]
fn the_newer_one_of_record_and_spec_is_taken_over() {
    let (record, empty) = (spec(5, 3, vec![reserved("s1", 0, "a")]), spec(0, 0, vec![]));
    let another = spec(1, 2, vec![reserved("s7", 0, "b")]);
    for (uid, spec, expected, epoch, why) in [
        ("uid", spec(4, 3, vec![]), "s1", 3, "an etcd restore"),
        ("uid", spec(5, 3, vec![reserved("s1", 0, "a")]), "s1", 3, "the same"),
        ("another", empty, "s1", 3, "a GpuNode that was just made anew"),
        ("another", another, "s7", 3, "one that a leader has written since"),
    ] {
        let mut scene = recorded(record.clone());
        found(&mut scene, uid, spec, None);
        assert_eq!(taken(&scene), (vec![expected.to_owned()], epoch), "{why}");
    }
}

#[test]
fn an_agent_with_its_own_ledger_takes_no_spec_over() {
    let mut scene = super::orders_tests::scene();
    scene.restart_agent();
    found(&mut scene, "uid", spec(99, 1, vec![reserved("s1", 0, "a")]), None);
    assert_eq!(taken(&scene).0, Vec::<String>::new());
}

#[test]
fn a_new_node_accepts_reservations_at_once_and_one_with_a_lost_ledger_does_not() {
    for was_served in [false, true] {
        let mut scene = super::orders_tests::scene();
        let status = scene.settle();
        scene.record = Restored::default();
        scene.restart_agent();
        found(&mut scene, "uid", spec(0, 0, vec![]), was_served.then_some(status));
        let due_at = scene.decide().next.due_at;
        assert_eq!(scene.node.closed().is_some(), was_served);
        assert_eq!(scene.decide().record.is_own, !was_served, "the next process waits as well");
        if was_served {
            // A pod that is bound here and to which the kubelet has allocated nothing yet.
            let mut pods = super::tests::admitted("a");
            for pod in pods.values_mut() {
                pod.assigned = vec![reserved("s7", 0, "a")];
            }
            scene.node.on_pods(pods);
            assert!(scene.decide().step.is_none());
            assert_eq!(taken(&scene).0, ["s7"]);
            scene.node.on_leader(Some(1), scene.now);
            let status = scene.decide().status;
            let ready = status.condition(kerf_core::contract::Condition::READY).unwrap();
            assert_eq!(ready.reason, "LedgerLost");
            let until = due_at.unwrap();
            assert!(until > scene.now + Duration::from_secs(79), "{:?}", until - scene.now);
            scene.now = until;
            let status = scene.settle();
            assert_eq!(scene.node.closed(), None);
            assert_eq!(scene.places(), ["1g.10gb at 0:1"]);
            let slice = super::tests::slice(&status, "s7");
            assert_eq!(slice.ready_for.as_ref().map(PodUid::as_str), Some("a-uid"));
        }
    }
}

/// The disk came from another machine, perhaps of another cluster: its checkpoint is of GPUs that are not here, and of pods
/// that are gone or elsewhere. The Node's UID is not in the checkpoint: a Node that was deleted and registered anew has
/// another one, and its checkpoint is right.
#[test]
fn a_record_of_another_machine_takes_no_place_and_its_reservations_end_by_look_ups() {
    let mut there = Scene::new(&["H100-80GB", "H100-80GB"]);
    there.want(vec![
        wanted_of(1, "s1", mig("1g.10gb", 0, 1), Some(("gone", ONE))),
        wanted_of(1, "s2", mig("1g.10gb", 1, 1), Some(("elsewhere", ONE))),
        wanted_of(1, "s3", mig("1g.10gb", 2, 1), None),
    ]);
    there.settle();
    let mut record = there.record;
    record.gpus.retain(|gpu, _| *gpu == uuid(1));
    record.mig_on.retain(|gpu| *gpu == uuid(1));
    assert_eq!((record.is_own, record.ledger.desired.slices.len()), (true, 3));

    let mut scene = Scene::new(&["H100-80GB"]);
    scene.record = record.after_reload();
    scene.restart_agent();
    scene.read_gpu_node();
    // The first look-ups have found nothing yet.
    scene.now += Duration::from_secs(30);
    let looked_up: BTreeSet<String> = scene.decide().pods.look_up.keys().map(ToString::to_string).collect();
    assert_eq!(looked_up, ["elsewhere-uid", "gone-uid"].map(str::to_owned).into());
    let asked = scene.tick();
    for (uid, found) in [("elsewhere-uid", Found::Elsewhere), ("gone-uid", Found::Gone)] {
        scene.node.on_looked_up(&PodUid::new(uid), asked, found);
    }
    let status = scene.decide().status;
    assert!(status.slices.iter().all(|slice| slice.reservation.is_none()), "{:?}", status.slices);
    // GPUs that were here before may only be slow to answer.
    let closed = scene.node.closed().unwrap_or_default();
    assert!(closed.contains("GPU-1 has not answered"), "{closed}");
    scene.now += Duration::from_secs(20);
    scene.observe();
    scene.decide();
    assert_eq!(scene.node.closed(), None);
    order(&mut scene, reserve("here", 1)).answer.unwrap();
    let status = scene.settle();
    assert_eq!(scene.places(), ["1g.10gb at 1:1"]);
    assert_eq!(status.slices.iter().filter(|slice| slice.ready_for.is_some()).count(), 1);
    assert_eq!(status.slices.len(), 1, "{:?}", status.slices);
}
