//! Tests of static nodes in the index.

use super::scene::filter;
use super::*;
use crate::objects::ask::Ask;
use crate::objects::pod::KnownPod;
use crate::objects::pod::SlicedPod;
use crate::scheduling::filter::{Candidate, Filtered, prioritize};
use hashbrown::HashSet;
use kerf_core::contract::{Chosen, RequestDocument};
use kerf_core::kind::Kind;
use kerf_core::ledger::OwnerInEpoch;
use kerf_core::names::PodKey;
use kerf_core::packing::Refusal;
use kerf_core::policy::Policies;
use kerf_core::quota::Cap;
use kerf_core::request::{PodFacts, SelectingFields};
use kerf_core::resource::{PluginName, ResourceName};
use kerf_core::static_node::{Devices, StaticNode};
use kerf_core::testing::{request, request_sized, static_node};
use kerf_core::units::SizeGb;
use kerf_runtime::gpu_node::GpuNode;
use proptest::prelude::*;
use serde_json::json;
use std::sync::Arc;
use std::time::{Duration, Instant};

const MPS: ResourceName = ResourceName::Plugin(PluginName::Gpu, Kind::Mps);

/// A node with two A100-80GB, in four MPS replicas each.
fn mps() -> StaticNode {
    let labels = [
        ("gpu.product", "NVIDIA-A100-SXM4-80GB-SHARED"),
        ("gpu.memory", "81920"),
        ("gpu.count", "2"),
        ("gpu.replicas", "4"),
        ("gpu.sharing-strategy", "mps"),
    ];
    static_node(&labels, &[("gpu", 8)])
}

/// A listed cluster of these static nodes.
fn cluster(nodes: &[(&str, StaticNode)]) -> ClusterIndex {
    let mut index = ClusterIndex::new(1, Terms::default());
    for (name, node) in nodes {
        index.nodes().show_static(&NodeName::new(*name), Some(node.clone()));
    }
    index.nodes().end_gpu_node_list();
    index.end_pod_list();
    index.take_over();
    index.requeue(Instant::now());
    index
}

fn candidate(name: &str, request: RequestDocument) -> Candidate {
    let chosen = Some(Chosen { policy: "p".to_owned(), ..Chosen::default() });
    let facts = PodFacts::new("team", SelectingFields::default(), Vec::new());
    let ask = Ask::read(Some(&RequestDocument { chosen, ..request }.to_json())).unwrap();
    let (uid, key) = (PodUid::new(format!("uid-{name}")), PodKey::new("team", name));
    Candidate {
        uid,
        key,
        ask: Ok(ask.of(Arc::new(facts))),
        devices: Devices::new(),
        tolerations: Vec::new(),
        nominated: None,
    }
}

fn ten(name: &str) -> Candidate {
    candidate(name, request_sized(MPS, SizeGb(10), 1))
}

/// A pod as a watch shows it.
fn shown(
    name: &str,
    node: Option<&str>,
    phase: &str,
    requests: &serde_json::Value,
    ask: Option<&Ask>,
) -> KnownPod {
    let annotations = ask.map(|ask| json!({kerf_core::keys::REQUEST: *ask.text})).unwrap_or_default();
    let pod: SlicedPod = serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": "team", "uid": format!("uid-{name}"), "annotations": annotations},
        "spec": {"nodeName": node, "containers": [{"name": "main", "resources": {"requests": requests}}]},
        "status": {"phase": phase},
    }))
    .unwrap();
    pod.into()
}

fn one_gpu() -> serde_json::Value {
    json!({"cpu": "1", "nvidia.com/gpu": "1"})
}

fn kerfs(pod: &Candidate, node: Option<&str>) -> KnownPod {
    shown(&pod.key.name, node, "Running", &one_gpu(), pod.ask.as_ref().ok())
}

fn reserve(index: &mut ClusterIndex, pod: &Candidate, node: &str) -> Result<(), Unreservable> {
    index.show_pod(kerfs(pod, None));
    index.reserving().reserve_devices(&pod.uid, &pod.key, &node.into(), None).map(drop)
}

fn bind(index: &mut ClusterIndex, pod: &Candidate, node: &str) {
    reserve(index, pod, node).unwrap();
    index.show_pod(kerfs(pod, Some(node)));
}

fn refusals(filtered: &Filtered<'_>) -> Vec<Refusal> {
    filtered.refused.iter().map(|(_, refusal)| *refusal).collect()
}

fn held(index: &ClusterIndex, node: &str) -> u32 {
    index.nodes.static_nodes.taken(node).get(&PluginName::Gpu).copied().unwrap_or(0)
}

/// Another pod, which asks NVIDIA's device plugin and not kerf.
fn plain(name: &str) -> Candidate {
    let devices = [(PluginName::Gpu, 1)].into();
    Candidate { ask: Err(Refusal::NotAdmitted), devices, ..ten(name) }
}

#[test]
fn no_pod_is_placed_on_a_node_while_its_layout_changes() {
    let mut index = cluster(&[("n", mps())]);
    let (early, late) = (ten("early"), ten("late"));
    reserve(&mut index, &early, "n").unwrap();
    index.nodes().show_static(&"n".into(), Some(StaticNode { is_changing: true, ..mps() }));
    assert_eq!(
        reserve(&mut index, &early, "n"),
        Err(Refusal::LayoutChanging.into()),
        "the Binding was not made"
    );
    index.show_pod(kerfs(&late, None));
    for pod in [&early, &late, &plain("plain")] {
        let filtered = filter(&mut index, pod, &["n"], Instant::now());
        assert_eq!(refusals(&filtered), [Refusal::LayoutChanging], "{}", pod.key);
    }
    index.nodes().show_static(&"n".into(), Some(mps()));
    let called = index.requeue(Instant::now());
    assert!(called.iter().any(|(_, key)| *key == late.key), "the pending pod is not requeued: {called:?}");
    assert_eq!(filter(&mut index, &late, &["n"], Instant::now()).fitting, ["n"]);
}

#[test]
fn a_node_is_closed_for_a_change_only_if_no_pod_is_on_it_or_reserved() {
    let mut index = cluster(&[("n", mps())]);
    let (coming, late) = (ten("coming"), ten("late"));
    reserve(&mut index, &coming, "n").unwrap();
    assert!(!index.nodes().static_nodes().close(&"n".into()), "a reservation");
    index.show_pod(kerfs(&coming, Some("n")));
    assert!(!index.nodes().static_nodes().close(&"n".into()), "a pod");
    index.hide_pod(&KnownPod { deleting: true, ..kerfs(&coming, Some("n")) });
    assert!(index.nodes().static_nodes().close(&"n".into()));
    assert_eq!(refusals(&filter(&mut index, &late, &["n"], Instant::now())), [Refusal::LayoutChanging]);
    index.nodes().open_static_nodes(|_| true);
    assert_eq!(reserve(&mut index, &late, "n"), Err(Refusal::LayoutChanging.into()), "it is being changed");
    index.nodes().open_static_nodes(|_| false);
    assert_eq!(reserve(&mut index, &late, "n"), Ok(()));
}

#[test]
fn no_pod_is_placed_on_a_static_node_while_slices_of_an_agent_are_held_there() {
    let guest = |phase: &str| -> KnownPod {
        let slice = json!({"container": "main", "id": "s1", "gpu": "GPU-1", "shape": "mps:10gb"});
        let assignment = json!({"version": 1, "slices": [slice]}).to_string();
        let pod: SlicedPod = serde_json::from_value(json!({
            "metadata": {"name": "guest", "namespace": "team", "uid": "uid-guest",
                         "annotations": {kerf_core::keys::ASSIGNMENT: assignment}},
            "spec": {"nodeName": "n", "containers": [{"name": "main", "resources": {"requests": {"nvidia.com/gpu-10gb": "1"}}}]},
            "status": {"phase": phase},
        }))
        .unwrap();
        pod.into()
    };
    let now = Instant::now;
    for shows in [ClusterIndex::show_pod, |index: &mut ClusterIndex, pod| {
        index.nodes().holders().show_unlabelled(&pod);
    }] {
        let mut index = cluster(&[("n", mps()), ("other", mps())]);
        shows(&mut index, guest("Running"));
        for pod in [ten("late"), plain("plain")] {
            let filtered = filter(&mut index, &pod, &["n", "other"], now());
            assert_eq!(
                (filtered.fitting, filtered.refused),
                (vec!["other"], vec![("n", Refusal::SlicesLeft)])
            );
        }
        assert_eq!(held(&index, "n"), 0, "it has nothing of the plugin");
        shows(&mut index, guest("Succeeded"));
        assert_eq!(filter(&mut index, &ten("late"), &["n"], now()).fitting, ["n"]);
    }
}

#[test]
fn a_pod_that_holds_devices_of_the_plugin_closes_no_node() {
    let mut index = cluster(&[("n", mps())]);
    bind(&mut index, &ten("a"), "n");
    let assignment = json!({"version": 1, "slices": [], "devices": []}).to_string();
    let pod: SlicedPod = serde_json::from_value(json!({
        "metadata": {"name": "b", "uid": "b", "annotations": {kerf_core::keys::ASSIGNMENT: assignment}},
        "spec": {"nodeName": "n", "containers": [{"name": "main", "resources": {"requests": one_gpu()}}]},
    }))
    .unwrap();
    index.show_pod(pod.into());
    assert_eq!(
        (held(&index, "n"), filter(&mut index, &ten("c"), &["n"], Instant::now()).fitting),
        (2, vec!["n"])
    );
}

#[test]
fn no_more_devices_are_reserved_than_exist_and_a_bound_pod_counts_once() {
    let mut index = cluster(&[("n", mps())]);
    for number in 0..7 {
        bind(&mut index, &ten(&number.to_string()), "n");
        assert_eq!(held(&index, "n"), number + 1, "not counted twice");
    }
    let (last, late) = (ten("last"), ten("late"));
    reserve(&mut index, &last, "n").unwrap();
    assert_eq!(held(&index, "n"), 8);
    assert_eq!(reserve(&mut index, &late, "n"), Err(Refusal::NoRoom.into()));
    assert_eq!(refusals(&filter(&mut index, &late, &["n"], Instant::now())), [Refusal::NoRoom]);
    // The pod's Binding was refused, so another pod gets the device.
    let until = Instant::now();
    index.bindings().send(&last.uid, &last.key, until);
    index.reserving().refuse_binding(&last.uid, until);
    assert_eq!(reserve(&mut index, &late, "n"), Ok(()));
    assert_eq!(held(&index, "n"), 8);
}

#[test]
fn a_reservation_stays_while_the_outcome_of_its_binding_is_unknown() {
    let mut index = cluster(&[("n", mps()), ("m", mps())]);
    let pod = ten("a");
    reserve(&mut index, &pod, "n").unwrap();
    index.bindings().send(&pod.uid, &pod.key, Instant::now());
    assert_eq!(filter(&mut index, &pod, &["m", "n"], Instant::now()).fitting, ["n"]);
    assert_eq!(reserve(&mut index, &pod, "n"), Ok(()), "it keeps its reservation");
    assert!(!index.reserving().give_up(&pod.uid));
    index.bound(&pod.uid, &pod.key, &"n".into());
    assert_eq!(held(&index, "n"), 1, "until the watch shows it");
    index.show_pod(kerfs(&pod, Some("n")));
    assert_eq!(held(&index, "n"), 1);
    index.show_pod(shown("a", Some("n"), "Succeeded", &one_gpu(), pod.ask.as_ref().ok()));
    assert_eq!(held(&index, "n"), 0);
}

#[test]
fn a_refused_second_binding_leaves_the_first_ones_device_reserved() {
    let mut index = cluster(&[("n", mps())]);
    for number in 0..7 {
        bind(&mut index, &ten(&number.to_string()), "n");
    }
    let (pod, first) = (ten("a"), Instant::now());
    reserve(&mut index, &pod, "n").unwrap();
    index.bindings().send(&pod.uid, &pod.key, first);
    let second = first + Duration::from_secs(5);
    index.bindings().send(&pod.uid, &pod.key, second);
    index.reserving().refuse_binding(&pod.uid, second);
    assert_eq!(reserve(&mut index, &ten("late"), "n"), Err(Refusal::NoRoom.into()));
}

#[test]
fn the_assignment_names_the_devices_and_their_size() {
    let mut index = cluster(&[("n", mps())]);
    let pod = ten("a");
    index.show_pod(kerfs(&pod, None));
    let assignment = index.reserving().reserve_devices(&pod.uid, &pod.key, &"n".into(), None).unwrap();
    assert_eq!(
        assignment.to_json(),
        r#"{"devices":[{"container":"main","count":1,"resource":"nvidia.com/gpu=mps","sizeGb":20}],"slices":[],"version":1}"#
    );
}

#[test]
fn pods_that_other_schedulers_bound_count_while_they_live() {
    let mut index = cluster(&[("n", mps())]);
    index.nodes().objects().begin_unlabelled_list();
    index.nodes().holders().show_unlabelled(&shown(
        "big",
        Some("n"),
        "Running",
        &json!({"nvidia.com/gpu": "7"}),
        None,
    ));
    index.nodes().holders().show_unlabelled(&shown("none", Some("n"), "Running", &json!({"cpu": "1"}), None));
    index.nodes().holders().show_unlabelled(&shown("elsewhere", Some("m"), "Running", &one_gpu(), None));
    index.nodes().holders().end_unlabelled_list();
    assert_eq!(held(&index, "n"), 7);
    let (a, b) = (ten("a"), ten("b"));
    assert_eq!(reserve(&mut index, &a, "n"), Ok(()));
    assert_eq!(reserve(&mut index, &b, "n"), Err(Refusal::NoRoom.into()));
    index.nodes().holders().hide_unlabelled(&PodUid::new("uid-big"));
    assert_eq!(reserve(&mut index, &b, "n"), Ok(()));
    index.nodes().objects().begin_unlabelled_list();
    index.nodes().holders().end_unlabelled_list();
    assert_eq!(held(&index, "n"), 2, "that watch changes no reservations");
}

#[test]
fn a_pod_that_loses_kerfs_label_counts_until_it_is_gone() {
    let mut index = cluster(&[("n", mps())]);
    let pod = ten("a");
    bind(&mut index, &pod, "n");
    index.hide_pod(&kerfs(&pod, Some("n")));
    assert_eq!(held(&index, "n"), 1, "the other watch has not shown it yet");
    index.nodes().holders().show_unlabelled(&kerfs(&pod, Some("n")));
    index.nodes().holders().hide_unlabelled(&pod.uid);
    assert_eq!(held(&index, "n"), 0);
}

/// The node that passes the filter and has the highest score.
fn best<'n>(index: &mut ClusterIndex, pod: &Candidate, offered: &[&'n str], now: Instant) -> &'n str {
    let fitting = filter(index, pod, offered, now).fitting;
    let scores = prioritize(index, pod, &fitting, now);
    scores.into_iter().max_by_key(|(_, score)| *score).unwrap().0
}

#[test]
fn pods_are_assumed_where_they_waste_least_and_nodes_are_filled_one_by_one() {
    let l40s = [
        ("gpu.product", "NVIDIA-L40S-SHARED"),
        ("gpu.memory", "46068"),
        ("gpu.count", "1"),
        ("gpu.replicas", "4"),
        ("gpu.sharing-strategy", "mps"),
    ];
    let nodes = [("a", mps()), ("b", mps()), ("small", static_node(&l40s, &[("gpu", 4)]))];
    let (mut index, now) = (cluster(&nodes), Instant::now());
    bind(&mut index, &ten("first"), "b");
    let mut best_of = |name: &str| best(&mut index, &ten(name), &["a", "b", "small"], now);
    // Earlier pods are assumed there, although none of them is bound.
    for number in 0..4 {
        assert_eq!(best_of(&number.to_string()), "small", "12 GB rather than 20");
    }
    assert_eq!(best_of("next"), "b", "the fuller node");
}

#[test]
fn a_fixed_slice_is_taken_before_one_that_can_be_recut() {
    let labels = [("mig-1g.10gb.count", "2"), ("mig-1g.10gb.memory", "9984"), ("mig-1g.10gb.replicas", "1")];
    let mut index = cluster(&[("fixed", static_node(&labels, &[("mig-1g.10gb", 2)]))]);
    let _agent = super::scene::Agent::connected(&mut index, "managed");
    let pod = candidate("a", request("nvidia.com/mig-1g.10gb", 1));
    let (now, both) = (Instant::now(), ["fixed", "managed"]);
    assert_eq!(filter(&mut index, &pod, &both, now).fitting, both);
    assert_eq!(best(&mut index, &pod, &both, now), "fixed");
    let mps = ten("b");
    assert_eq!(refusals(&filter(&mut index, &mps, &both, now)), [Refusal::NeverFits; 2]);
}

#[test]
fn a_node_is_managed_while_it_has_a_gpu_node_and_held_devices_count_again_afterwards() {
    let mut index = cluster(&[("n", mps())]);
    bind(&mut index, &ten("a"), "n");
    index.nodes().show_gpu_node(&GpuNode::new(&"n".into()));
    assert_eq!(refusals(&filter(&mut index, &ten("b"), &["n"], Instant::now())), [Refusal::NotConnected]);
    index.nodes().remove_gpu_node(&"n".into());
    assert_eq!(held(&index, "n"), 1);
    assert_eq!(filter(&mut index, &ten("b"), &["n"], Instant::now()).fitting, ["n"]);
}

#[test]
fn pods_that_bypassed_the_webhook_are_counted_and_reserved_by_name() {
    let mut index = cluster(&[("n", static_node(&[], &[("gpu", 2)]))]);
    let plain = |name: &str| {
        let (uid, key) = (PodUid::new(format!("uid-{name}")), PodKey::new("team", name));
        let devices = Devices::from([(PluginName::Gpu, 1)]);
        Candidate {
            uid,
            key,
            ask: Err(Refusal::NotAdmitted),
            devices,
            tolerations: Vec::new(),
            nominated: None,
        }
    };
    let pod = |name: &str, node| shown(name, node, "Pending", &one_gpu(), None);
    for name in ["a", "b"] {
        assert_eq!(filter(&mut index, &plain(name), &["n"], Instant::now()).fitting, ["n"]);
        index.reserving().reserve_plain(&pod(name, None), &"n".into()).unwrap();
    }
    assert_eq!(refusals(&filter(&mut index, &plain("c"), &["n"], Instant::now())), [Refusal::NoRoom]);
    assert_eq!(index.reserving().reserve_plain(&pod("c", None), &"n".into()), Err(Refusal::NoRoom));
    index.nodes().holders().show_unlabelled(&pod("a", Some("n")));
    index.nodes().holders().hide_unlabelled(&plain("a").uid);
    assert_eq!(filter(&mut index, &plain("c"), &["n"], Instant::now()).fitting, ["n"]);
    assert!(index.unschedulable.pods().next().is_none(), "nothing is written on a pod that is not kerf's");
}

#[test]
fn a_pending_pod_is_requeued_when_a_device_is_free_again() {
    let mut index = cluster(&[("n", static_node(&[], &[("gpu", 1)]))]);
    let any = |name| {
        candidate(
            name,
            request_sized(ResourceName::Plugin(PluginName::Gpu, Kind::TimeSlicing), SizeGb::ANY, 1),
        )
    };
    let (now, waits) = (Instant::now(), any("waits"));
    bind(&mut index, &any("first"), "n");
    index.show_pod(kerfs(&waits, None));
    assert!(filter(&mut index, &waits, &["n"], now).fitting.is_empty());
    assert!(index.requeue(now).is_empty());
    index.pod_gone(&PodUid::new("uid-first"));
    assert_eq!(index.requeue(now), [(waits.uid.clone(), waits.key.clone())]);
    // Room also comes when allocatable rises.
    bind(&mut index, &waits, "n");
    let next = any("next");
    index.show_pod(kerfs(&next, None));
    assert!(filter(&mut index, &next, &["n"], now).fitting.is_empty());
    index.requeue(now);
    index.nodes().show_static(&"n".into(), Some(static_node(&[], &[("gpu", 2)])));
    assert_eq!(index.requeue(now).len(), 1);
}

#[test]
fn quotas_count_static_slices_by_their_size() {
    let mut index = cluster(&[("n", mps())]);
    let policy = json!({
        "apiVersion": "kerf.dev/v1alpha1", "kind": "GpuPolicy", "metadata": {"name": "p"},
        "spec": {
            "quota": Cap { memory_gb: Some(50), slices: None },
            "defaultIsolation": "memory", "isolation": {"memory": ["mps"]},
        },
    });
    let policy: kerf_core::policy::PolicyDocument = serde_json::from_value(policy).unwrap();
    index
        .nodes()
        .set_policies(&Arc::new(Policies { pods: vec![policy.try_into().unwrap()], nodes: Vec::new() }));
    for name in ["a", "b"] {
        bind(&mut index, &ten(name), "n");
    }
    // Two replicas of 20 GB are held; a third would make 60.
    assert_eq!(refusals(&filter(&mut index, &ten("c"), &["n"], Instant::now())), [Refusal::QuotaFull]);
    assert_eq!(reserve(&mut index, &ten("c"), "n"), Err(Refusal::QuotaFull.into()));
    index.pod_gone(&ten("a").uid);
    assert_eq!(reserve(&mut index, &ten("c"), "n"), Ok(()));
}

#[test]
fn a_leader_answers_once_nodes_and_all_pods_were_listed() {
    let mut index = ClusterIndex::new(1, Terms::default());
    index.nodes().objects().await_lists();
    index.nodes().end_gpu_node_list();
    index.end_pod_list();
    index.take_over();
    assert!(!index.is_listed());
    index.nodes().end_node_list();
    assert!(!index.is_listed());
    index.nodes().holders().end_unlabelled_list();
    assert!(index.is_listed());
}

proptest! {
    /// In any order of events, no more is reserved and held than there is, as long as only this index makes
    /// reservations. The sum is exactly what living pods have.
    #[test]
    fn a_static_node_is_never_over_committed(
        events in prop::collection::vec((0_u8..6, 0_usize..14), 1..120),
    ) {
        let (mut index, now) = (cluster(&[("n", mps())]), Instant::now());
        let pods: Vec<Candidate> = (0..14).map(|number| ten(&number.to_string())).collect();
        let mut bound: HashSet<usize> = HashSet::new();
        for (event, number) in events {
            let pod = &pods[number];
            match event {
                0 => {
                    if !bound.contains(&number) {
                        index.show_pod(kerfs(pod, None));
                        let _fits = filter(&mut index, pod, &["n"], now);
                    }
                }
                1 | 2 => {
                    let is_reserved = !bound.contains(&number) && reserve(&mut index, pod, "n").is_ok();
                    if is_reserved && event == 1 {
                        bound.insert(number);
                        index.show_pod(kerfs(pod, Some("n")));
                    }
                }
                3 => {
                    bound.remove(&number);
                    index.pod_gone(&pod.uid);
                }
                4 => {
                    if !bound.contains(&number) {
                        index.reserving().refuse_binding(&pod.uid, now);
                    }
                }
                _ => {
                    index.scheduling().assume(OwnerInEpoch { uid: pod.uid.clone(), key: pod.key.clone(), epoch: 1 }, pod.ask.clone().unwrap(), crate::assumed::KindChoice::default(), &"n".into(), now);
                }
            }
            let reserved = pods.iter().filter(|pod| index.place_of(&pod.uid).is_some()).count();
            prop_assert_eq!(held(&index, "n") as usize, bound.len() + reserved);
            prop_assert!(held(&index, "n") <= 8);
        }
    }
}
