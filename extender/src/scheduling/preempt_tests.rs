use super::*;
use crate::cluster_index::scene::{Scene, filter, gpu_node};
use crate::objects::ask::Ask;
use crate::objects::pod::KnownPod;
use crate::scheduling::filter::tests::{HALF, SMALL, WHOLE, pod, unbound};
use kerf_core::kind::Kind;
use kerf_core::packing::Terms;
use kerf_core::resource::{PluginName, ResourceName};
use kerf_core::static_node::{Devices, StaticNode};
use kerf_core::testing::{request_sized, static_node};
use kerf_core::units::SizeGb;
use std::time::Duration;

const H100: [&str; 1] = ["H100-80GB"];

/// A listed cluster of nodes of these names with an H100 each.
fn cluster(nodes: &[&str]) -> Scene {
    let nodes: Vec<_> = nodes.iter().map(|name| (*name, &H100[..])).collect();
    Scene::leading(&nodes)
}

fn uid(name: &str) -> PodUid {
    PodUid::new(format!("uid-{name}"))
}

fn uids(names: &[&str]) -> BTreeSet<PodUid> {
    names.iter().map(|name| uid(name)).collect()
}

fn known(pod: &Candidate, node: Option<&str>) -> KnownPod {
    KnownPod { node: node.map(NodeName::new), ..unbound(pod) }
}

/// Binds a pod, whose agent then reports that it holds its slices.
fn run(index: &mut Scene, pod: &Candidate, node: &str) {
    index.reserve(&pod.uid, &pod.key, &node.into(), pod.ask.clone().ok()).unwrap();
    index.show_pod(known(pod, Some(node)));
    index.cut(node, true);
}

/// The answer for a single plan.
fn answer(index: &mut ClusterIndex, pod: &Candidate, node: &str, victims: &[&str]) -> Result<(), Spared> {
    let answer = preempt(index, pod, &[(node, uids(victims))], Instant::now());
    match answer.spared.as_slice() {
        [] => {
            assert_eq!(answer.kept, [node]);
            Ok(())
        }
        [(_, why)] => Err(*why),
        more => panic!("one node was asked about: {more:?}"),
    }
}

const FULL: Result<(), Spared> = Err(Spared::Refused(Refusal::NoRoom));

/// The pods that hold slices, the victims, and whether a pod that asks for half a GPU then has a place.
type Case =
    (&'static str, &'static [(&'static str, &'static str)], &'static [&'static str], Result<(), Spared>);

const CASES: [Case; 7] = [
    ("a slice is free", &[("a", HALF)], &["cpu"], Ok(())),
    ("all slices are held by others", &[("a", HALF), ("b", HALF)], &["cpu"], FULL),
    ("a victim holds one that fits", &[("a", HALF), ("b", HALF)], &["cpu", "b"], Ok(())),
    ("a victim holds more", &[("a", WHOLE)], &["a"], Ok(())),
    ("a victim holds too little", &[("a", HALF), ("b", SMALL), ("c", SMALL)], &["b"], FULL),
    ("victims hold enough together", &[("a", HALF), ("b", SMALL), ("c", SMALL)], &["b", "c"], Ok(())),
    ("the victim holds its slice elsewhere", &[("a", WHOLE)], &["elsewhere"], FULL),
];

#[test]
fn a_node_stays_if_the_pod_has_its_slice_there_once_the_victims_are_gone() {
    for (what, holders, victims, expected) in CASES {
        let mut index = cluster(&["n", "other"]);
        run(&mut index, &pod("elsewhere", WHOLE), "other");
        for (name, resource) in holders {
            run(&mut index, &pod(name, resource), "n");
        }
        assert_eq!(answer(&mut index, &pod("p", HALF), "n", victims), expected, "{what}");
    }
}

#[test]
fn no_pod_is_evicted_on_an_unserved_node_or_for_a_pod_that_kerf_did_not_admit() {
    let mut index = cluster(&["n"]);
    index.nodes().show_gpu_node(&gpu_node("away"));
    let p = pod("p", HALF);
    assert_eq!(answer(&mut index, &p, "away", &["cpu"]), Err(Refusal::NotConnected.into()));
    assert_eq!(answer(&mut index, &p, "stranger", &["cpu"]), Err(Refusal::NoAgent.into()));
    let stranger = Candidate { ask: Ask::read(None), ..p };
    assert_eq!(answer(&mut index, &stranger, "n", &["cpu"]), Err(Refusal::NotAdmitted.into()));
}

#[test]
fn a_slice_that_its_pod_is_leaving_counts_as_free_and_an_unknown_pods_does_not() {
    let mut index = cluster(&["n"]);
    let (holder, p) = (pod("a", WHOLE), pod("p", HALF));
    run(&mut index, &holder, "n");
    assert_eq!(answer(&mut index, &p, "n", &["cpu"]), FULL);
    index.show_pod(KnownPod { deleting: true, ..known(&holder, Some("n")) });
    assert_eq!(answer(&mut index, &p, "n", &["cpu"]), Ok(()), "it is being deleted");
    index.show_pod(known(&holder, Some("n")));
    index.hide_pod(&known(&holder, Some("n")));
    assert_eq!(answer(&mut index, &p, "n", &["cpu"]), Ok(()), "it was deleted at once");
    index.show_stray(known(&holder, Some("n")));
    assert_eq!(answer(&mut index, &p, "n", &["cpu"]), FULL, "or it has lost its label");
    ClusterIndex::pod_gone(&mut index, &holder.uid);
    assert!(filter(&mut index, &p, &["n"], Instant::now()).fitting.is_empty(), "the agent has not said so");
    assert_eq!(answer(&mut index, &p, "n", &["cpu"]), Ok(()), "it is gone");

    // The agent has released the reservation, but the kubelet has not released the device.
    let moment = kerf_core::ledger::Moment::default();
    let ended = [(holder.uid.clone(), kerf_core::ledger::BoundPod::Ended)].into();
    index.agent("n").node.ledger.pods(&ended, moment);
    index.report("n");
    assert!(filter(&mut index, &p, &["n"], Instant::now()).fitting.is_empty());
    assert_eq!(answer(&mut index, &p, "n", &["cpu"]), Ok(()), "it is gone");
    // Another leader has no record of the pod that holds it.
    let mut successor = index.succeeded_by(ClusterIndex::new(2, Terms::default()));
    successor.connect();
    assert_eq!(answer(&mut successor, &p, "n", &["cpu"]), FULL);
}

#[test]
fn a_place_where_another_pod_is_assumed_is_not_free() {
    let mut index = cluster(&["n"]);
    let now = Instant::now();
    filter(&mut index, &pod("first", WHOLE), &["n"], now);
    assert_eq!(answer(&mut index, &pod("p", HALF), "n", &["cpu"]), FULL);
    let own = pod("own", WHOLE);
    let mut index = cluster(&["n"]);
    filter(&mut index, &own, &["n"], now);
    assert_eq!(answer(&mut index, &own, "n", &["cpu"]), Ok(()), "but its own is");
}

#[test]
fn for_a_pod_with_a_reservation_others_are_evicted_only_on_its_node() {
    let mut index = cluster(&["n1", "n2"]);
    let p = pod("p", HALF);
    index.reserve(&p.uid, &p.key, &"n2".into(), p.ask.clone().ok()).unwrap();
    let plans = [("n1", uids(&["a"])), ("n2", uids(&["b"]))];
    let answer = preempt(&mut index, &p, &plans, Instant::now());
    assert_eq!(answer.kept, ["n2"]);
    assert_eq!(answer.spared, [("n1", Refusal::ReservedElsewhere.into())]);
    assert!(index.place_of(&p.uid).is_some(), "a question changes no reservation");
    index.close("n2");
    let plans = [("n2", uids(&["b"]))];
    assert_eq!(preempt(&mut index, &p, &plans, Instant::now()).kept, [""; 0], "its agent is not ready");
    index.bindings().send(&p.uid, &p.key, Instant::now());
    assert_eq!(preempt(&mut index, &p, &plans, Instant::now()).spared, [("n2", Spared::BeingBound)]);
}

/// Two nodes on which `whole` finds room if `small` is evicted, and a third whose CPU is full.
fn with_a_movable_pod() -> (Scene, Candidate) {
    let mut index = cluster(&["n1", "n2", "cpu-full"]);
    run(&mut index, &pod("half", HALF), "n2");
    let small = pod("small", SMALL);
    run(&mut index, &small, "n1");
    index.show_pod(
        known(&small, Some("n1")).with(|template| template.movable_to = Some(std::sync::Arc::default())),
    );
    index.take_effects();
    (index, pod("whole", WHOLE))
}

#[test]
fn no_pod_is_preempted_for_a_pod_while_another_is_evicted_for_it() {
    let (mut index, whole) = with_a_movable_pod();
    let now = Instant::now();
    filter(&mut index, &whole, &["n1", "n2"], now);
    assert_eq!(index.take_effects().evictions.len(), 1);
    assert_eq!(answer(&mut index, &whole, "cpu-full", &["a"]), Err(Spared::MakingRoom));
    assert_eq!(index.scheduling().assumed_on(&whole.uid), Some(&"n1".into()), "its place is kept");
    index.room_maker().refuse(&whole.uid);
    assert_eq!(answer(&mut index, &whole, "cpu-full", &["a"]), Ok(()));
}

#[test]
fn no_movable_pod_is_evicted_after_a_preemption_unless_that_does_not_help() {
    let (mut index, whole) = with_a_movable_pod();
    let now = Instant::now();
    let nominated = Candidate { nominated: Some("cpu-full".into()), ..whole };
    assert!(filter(&mut index, &nominated, &["n1", "n2"], now).fitting.is_empty());
    assert!(index.take_effects().evictions.is_empty());
    run(&mut index, &pod("quicker", WHOLE), "cpu-full");
    filter(&mut index, &nominated, &["n1", "n2"], now);
    assert_eq!(index.take_effects().evictions.len(), 1);
}

#[test]
fn no_pod_is_preempted_on_a_second_node_while_victims_leave_the_first() {
    let mut index = cluster(&["n1", "n2"]);
    let victim = pod("victim", WHOLE);
    run(&mut index, &victim, "n1");
    ClusterIndex::pod_gone(&mut index, &victim.uid);
    let p = Candidate { nominated: Some("n1".into()), ..pod("p", HALF) };
    // Its CPU is free and its slice is not yet. The scheduler takes this node for one that never fits.
    assert!(filter(&mut index, &p, &["n1"], Instant::now()).fitting.is_empty());
    assert_eq!(answer(&mut index, &p, "n2", &["a"]), Err(Spared::Nominated));
    index.pod_gone(&victim.uid);
    run(&mut index, &pod("quicker", WHOLE), "n1");
    assert_eq!(answer(&mut index, &p, "n2", &["a"]), Ok(()), "another has its slice");
}

const REPLICA: ResourceName = ResourceName::Plugin(PluginName::Gpu, Kind::Mps);

/// A node with one A100-80GB, in two MPS replicas.
fn replicas() -> StaticNode {
    let labels = [
        ("gpu.product", "NVIDIA-A100-SXM4-80GB-SHARED"),
        ("gpu.memory", "81920"),
        ("gpu.count", "1"),
        ("gpu.replicas", "2"),
        ("gpu.sharing-strategy", "mps"),
    ];
    static_node(&labels, &[("gpu", 2)])
}

#[test]
fn on_a_static_node_the_devices_of_the_victims_count_as_free() {
    let ask = Ask::read(Some(&request_sized(REPLICA, SizeGb(10), 1).to_json()));
    let of_kerf = Candidate { ask, ..pod("p", HALF) };
    let devices = Devices::from([(PluginName::Gpu, 1)]);
    let plain = Candidate { ask: Err(Refusal::NotAdmitted), devices: devices.clone(), ..pod("q", HALF) };
    for p in [of_kerf, plain] {
        let mut index = ClusterIndex::new(1, Terms::default());
        index.nodes().show_static(&"n".into(), Some(replicas()));
        let holder = |name| Candidate { devices: devices.clone(), ..pod(name, HALF) };
        index.show_pod(known(&holder("a"), Some("n")));
        assert_eq!(answer(&mut index, &p, "n", &["cpu"]), Ok(()), "{}: one is free", p.key);
        index.show_pod(known(&holder("b"), Some("n")));
        assert_eq!(answer(&mut index, &p, "n", &["cpu"]), FULL, "{}", p.key);
        assert_eq!(answer(&mut index, &p, "n", &["cpu", "b"]), Ok(()), "{}", p.key);
        index.show_pod(KnownPod { deleting: true, ..known(&holder("a"), Some("n")) });
        assert_eq!(answer(&mut index, &p, "n", &["cpu"]), Ok(()), "{}: one is leaving", p.key);
        index.nodes().show_static(&"n".into(), Some(StaticNode { is_changing: true, ..replicas() }));
        assert_eq!(answer(&mut index, &p, "n", &["b"]), Err(Refusal::LayoutChanging.into()), "{}", p.key);
    }
}

#[test]
fn a_pod_gets_one_event_for_each_reason_why_no_pod_is_preempted() {
    let mut index = cluster(&["n1", "n2"]);
    for node in ["n1", "n2"] {
        run(&mut index, &pod(node, WHOLE), node);
    }
    let (p, now) = (pod("p", HALF), Instant::now());
    let plans = [("n1", uids(&["a"])), ("n2", uids(&["b"])), ("n3", uids(&["c"]))];
    let mut reported = |plans: &[Plan<'_>], now| {
        let answer = preempt(&mut index, &p, plans, now);
        record_answer(&mut index, &p, &answer, now);
        index.take_effects().no_preemption.into_iter().map(|event| event.message).collect::<Vec<_>>()
    };
    let first = reported(&plans, now);
    assert_eq!(first.len(), 1);
    assert!(first[0].ends_with(": 1 no kerf agent on the node, 2 GPU slices in use"), "{}", first[0]);
    assert!(reported(&plans, now + Duration::from_mins(5)).is_empty(), "it says the same");
    assert_eq!(reported(&plans[..1], now + Duration::from_mins(5)).len(), 1);
    assert!(reported(&plans[1..], now + Duration::from_mins(5)).is_empty(), "once a minute");
}
