use super::*;
use crate::assumed::ASSUMED_TIMEOUT;
use crate::cluster_index::REQUEST_LIMIT;
use crate::cluster_index::scene::{Scene, filter, gpu_node};
use crate::objects::compute::Compute;
use crate::objects::pod::{KnownPod, SlicedPod};
use crate::objects::template::Template;
use k8s_openapi::api::core::v1::Taint;
use kerf_core::contract::{GpuNodeStatus, PassedKind, RequestDocument};
use kerf_core::keys;
use kerf_core::kind::Kind;
use kerf_core::ledger::{Moment, Proposal};
use kerf_core::packing::fraction::CpuMilli;
use kerf_core::resource::ResourceName;
use kerf_core::static_node::Devices;
use kerf_core::testing::{node_status, request, request_sized};
use kerf_core::units::{MemoryMib, SizeGb};
use serde_json::json;
use std::sync::Arc;

/// A cluster of these nodes with these GPUs.
pub(crate) fn cluster(nodes: &[(&str, &[&str])]) -> Scene {
    Scene::new(nodes)
}

pub(crate) fn pod(name: &str, resource: &str) -> Candidate {
    Candidate {
        devices: Devices::new(),
        tolerations: Vec::new(),
        nominated: None,
        uid: PodUid::new(format!("uid-{name}")),
        key: PodKey::new("default", name),
        ask: Ask::read(Some(&request(resource, 1).to_json())),
    }
}

fn bind(index: &mut Scene, pod: &Candidate, node: &str) -> Proposal {
    index.reserve(&pod.uid, &pod.key, &node.into(), None).unwrap()
}

/// Filters and prioritizes as the scheduler does, and returns its choice.
fn choose(index: &mut Scene, pod: &Candidate, nodes: &[&str], now: Instant) -> Option<String> {
    let fitting = filter(index, pod, nodes, now).fitting;
    let scores = prioritize(index, pod, &fitting, now);
    scores.into_iter().max_by_key(|(_, score)| *score).map(|(name, _)| name.to_owned())
}

/// Binds a pod; `movable` says whether its owner allows its eviction.
pub(super) fn run(index: &mut Scene, pod: &Candidate, node: &str, movable: bool) {
    bind(index, pod, node);
    index.show_pod(bound(pod, node, movable));
}

/// A pod as the watch shows it once it is bound.
pub(super) fn bound(pod: &Candidate, node: &str, movable: bool) -> KnownPod {
    let bound = KnownPod { node: Some(node.into()), ..unbound(pod) };
    bound.with(|template| template.movable_to = movable.then(Arc::default))
}

/// A pod as the watch shows it before it is bound.
pub(crate) fn unbound(pod: &Candidate) -> KnownPod {
    let template = Template {
        devices: Arc::new(pod.devices.clone()),
        request: pod.ask.as_ref().ok().map(|ask| ask.text.clone()),
        ..Template::default()
    };
    KnownPod::new(pod.uid.clone(), pod.key.clone(), template)
}

#[test]
fn one_movable_pod_restarts_elsewhere_to_make_room_for_a_bigger_one() {
    let mut index = cluster(&[("n1", &["H100-80GB"]), ("n2", &["H100-80GB"])]);
    index.begin();
    let (nodes, now) = (["n1", "n2"], Instant::now());
    let (small, half, whole) = (pod("small", SMALL), pod("half", HALF), pod("whole", WHOLE));
    for (pod, node, movable) in [(&half, "n2", false), (&small, "n1", true)] {
        filter(&mut index, pod, &[node], now);
        run(&mut index, pod, node, movable);
    }
    index.take_effects();
    assert!(filter(&mut index, &whole, &nodes, now).fitting.is_empty());
    let evictions = index.take_effects().evictions;
    assert_eq!(
        evictions.iter().map(|e| (e.pod.name.as_str(), e.node.as_str())).collect::<Vec<_>>(),
        [("small", "n1")]
    );
    assert!(filter(&mut index, &whole, &nodes, now).fitting.is_empty());
    assert!(index.take_effects().evictions.is_empty(), "it is asked to leave once");
    let newcomer = pod("small-again", SMALL);
    assert_eq!(
        filter(&mut index, &newcomer, &nodes, now).fitting,
        ["n2"],
        "no other pod gets the place meanwhile"
    );
    assert!(index.requeue(now).is_empty());
    index.pod_gone(&small.uid);
    assert_eq!(index.requeue(now).len(), 1, "the bigger one is requeued");
    assert_eq!(filter(&mut index, &whole, &nodes, now).fitting, ["n1"]);
}

#[test]
fn a_place_that_was_left_is_kept_until_the_agent_reports_it_free() {
    let mut index = cluster(&[("n1", &["H100-80GB"]), ("n2", &["H100-80GB"])]);
    index.begin();
    let (nodes, now) = (["n1", "n2"], Instant::now());
    let (small, half, whole) = (pod("small", SMALL), pod("half", HALF), pod("whole", WHOLE));
    for (pod, node, movable) in [(&half, "n2", false), (&small, "n1", true)] {
        filter(&mut index, pod, &[node], now);
        run(&mut index, pod, node, movable);
    }
    index.cut("n1", true);
    assert!(filter(&mut index, &whole, &nodes, now).fitting.is_empty());
    let newcomer = pod("small-again", SMALL);
    ClusterIndex::pod_gone(&mut index, &small.uid);
    assert!(filter(&mut index, &whole, &nodes, now).fitting.is_empty(), "no agent reports it free");
    assert_eq!(filter(&mut index, &newcomer, &nodes, now).fitting, ["n2"]);
    index.pod_gone(&small.uid);
    assert_eq!(index.requeue(now).len(), 1, "the bigger one is requeued");
    assert_eq!(filter(&mut index, &newcomer, &nodes, now).fitting, ["n2"]);
    assert_eq!(filter(&mut index, &whole, &nodes, now).fitting, ["n1"]);
}

#[test]
fn a_refused_eviction_is_not_repeated_and_keeps_no_place() {
    let mut index = cluster(&[("n1", &["H100-80GB"]), ("n2", &["H100-80GB"])]);
    let (nodes, now) = (["n1", "n2"], Instant::now());
    let (small, half, whole) = (pod("small", SMALL), pod("half", HALF), pod("whole", WHOLE));
    for (pod, node, movable) in [(&half, "n2", false), (&small, "n1", true)] {
        filter(&mut index, pod, &[node], now);
        run(&mut index, pod, node, movable);
    }
    filter(&mut index, &whole, &nodes, now);
    assert_eq!(index.take_effects().evictions.len(), 1);
    index.room_maker().refuse(&whole.uid);
    filter(&mut index, &whole, &nodes, now);
    assert!(index.take_effects().evictions.is_empty());
    assert_eq!(
        filter(&mut index, &pod("b", SMALL), &nodes, now).fitting.len(),
        2,
        "its place is not kept for the other"
    );
}

/// The nodes of shares that are bound one after the other, on two nodes with a T4 each.
fn shares(resource: &str, first_is_busy: bool) -> Vec<String> {
    let mut index = cluster(&[("n1", &["T4-16GB"]), ("n2", &["T4-16GB"])]);
    let all = Compute { cpu: CpuMilli(4000), memory: MemoryMib(16_384) };
    for node in ["n1", "n2"] {
        let left = if first_is_busy && node == "n1" { Compute { cpu: CpuMilli(0), ..all } } else { all };
        index.nodes().objects().set_allocatable(node.into(), Some(left));
    }
    let place = |n: usize| {
        let pod = pod(&n.to_string(), resource);
        let compute = Compute { cpu: CpuMilli(100), memory: MemoryMib(256) };
        index.show_pod(unbound(&pod).with(|template| template.compute = compute));
        let node = choose(&mut index, &pod, &["n1", "n2"], Instant::now()).unwrap();
        bind(&mut index, &pod, &node);
        node
    };
    (0..3).map(place).collect()
}

#[test]
fn mps_shares_fill_a_gpu_and_time_slices_spread_over_all() {
    assert_eq!(shares("nvidia.com/gpu-4gb", false), ["n1", "n1", "n1"]);
    assert_eq!(shares("nvidia.com/gpu-4gb.shared", false), ["n1", "n2", "n1"]);
}

/// Two nodes with a T4 and 4 CPUs each.
fn two_nodes() -> Scene {
    let mut index = cluster(&[("n1", &["T4-16GB"]), ("n2", &["T4-16GB"])]);
    for node in ["n1", "n2"] {
        let all = Compute { cpu: CpuMilli(4000), memory: MemoryMib(16_384) };
        index.nodes().objects().set_allocatable(node.into(), Some(all));
    }
    index
}

/// A pod that asks for a share of a T4 and for CPU.
fn share(index: &mut Scene, name: &str, cpu: u32) -> Candidate {
    let pod = pod(name, "nvidia.com/gpu-4gb");
    let compute = Compute { cpu: CpuMilli(cpu), memory: MemoryMib(256) };
    index.show_pod(unbound(&pod).with(|template| template.compute = compute));
    pod
}

#[test]
fn cpu_of_pods_that_are_not_kerfs_counts_for_a_share_until_they_are_gone() {
    let mut index = two_nodes();
    let foreign = pod("foreign", "nvidia.com/gpu-4gb");
    let compute = Compute { cpu: CpuMilli(4000), memory: MemoryMib(256) };
    let foreign = KnownPod { node: Some("n1".into()), ..unbound(&foreign) };
    let foreign = foreign.with(|template| (template.compute, template.request) = (compute, None));
    index.nodes().holders().show_unlabelled(&foreign);
    let asks = share(&mut index, "a", 100);
    assert_eq!(choose(&mut index, &asks, &["n1", "n2"], Instant::now()), Some("n2".to_owned()));
    index.nodes().holders().hide_unlabelled(&foreign.uid);
    assert_eq!(choose(&mut index, &asks, &["n1", "n2"], Instant::now()), Some("n1".to_owned()));
}

#[test]
fn cpu_of_kerfs_newest_pod_counts_for_the_next_share() {
    let mut index = two_nodes();
    let (first, second) = (share(&mut index, "a", 4000), share(&mut index, "b", 100));
    assert_eq!(choose(&mut index, &first, &["n1", "n2"], Instant::now()), Some("n1".to_owned()));
    // The reservation takes the place where the pod was assumed, so the inventory stays as it is.
    bind(&mut index, &first, "n1");
    assert_eq!(choose(&mut index, &second, &["n1", "n2"], Instant::now()), Some("n2".to_owned()));
}

/// Prices depend on what nodes have, not on what is left of it, so a pod elsewhere changes no price.
#[test]
fn a_pods_cpu_on_one_node_does_not_change_the_cost_of_a_share_on_another() {
    let mut index = two_nodes();
    let (first, second) = (share(&mut index, "a", 3000), share(&mut index, "b", 100));
    let ask = second.ask.clone().unwrap();
    let cost = |index: &mut Scene| index.scheduling().place("n2", &second.uid, &ask).unwrap();
    // Makes both nodes known to the ranking.
    index.scheduling().place("n1", &second.uid, &ask).unwrap();
    let before = cost(&mut index);
    bind(&mut index, &first, "n1");
    index.scheduling().place("n1", &second.uid, &ask).unwrap();
    assert_eq!(cost(&mut index), before);
}

#[test]
fn the_demand_of_many_pods_changes_the_cost_of_a_share() {
    let mut index = two_nodes();
    let pod = share(&mut index, "a", 100);
    let ask = pod.ask.clone().unwrap();
    let before = index.scheduling().place("n1", &pod.uid, &ask).unwrap();
    (0..40).for_each(|n| drop(share(&mut index, &format!("with-cpu-{n}"), 3000)));
    assert_ne!(index.scheduling().place("n1", &pod.uid, &ask).unwrap(), before);
}

#[test]
fn a_node_without_cpu_is_the_last_for_a_share() {
    assert_eq!(shares("nvidia.com/gpu-4gb", true), ["n2", "n2", "n2"]);
}

pub(crate) const SMALL: &str = "nvidia.com/mig-1g.10gb";
pub(crate) const HALF: &str = "nvidia.com/mig-3g.40gb";
pub(crate) const WHOLE: &str = "nvidia.com/mig-7g.80gb";

#[test]
fn every_refused_node_has_its_reason() {
    let mut index =
        cluster(&[("h100", &["H100-80GB", "H100-80GB"]), ("a100", &["A100-40GB"]), ("t4", &["T4-16GB"])]);
    index.nodes().show_gpu_node(&gpu_node("away"));
    index.add("asleep", GpuNodeStatus::default());
    index.add("closed", node_status(&["H100-80GB"]));
    index.close("closed");
    index.add("garbled", node_status(&["H100-80GB"]));
    let connection = index.managed().connection_of(&"garbled".into()).unwrap();
    index.nodes().agents().report_unreadable(&"garbled".into(), connection);
    let nodes = ["h100", "a100", "t4", "away", "asleep", "closed", "garbled", "stranger"];
    let filtered = filter(&mut index, &pod("a", WHOLE), &nodes, Instant::now());
    assert_eq!(filtered.fitting, ["h100"]);
    let expected = [
        ("a100", Refusal::NeverFits),
        ("t4", Refusal::NeverFits),
        ("away", Refusal::NotConnected),
        ("asleep", Refusal::AgentNotReady),
        ("closed", Refusal::AgentNotReady),
        ("garbled", Refusal::UnreadableStatus),
        ("stranger", Refusal::NoAgent),
    ];
    assert_eq!(filtered.refused, expected);
}

/// kube-scheduler offers each node once, but another caller must not get a place twice either.
#[test]
fn a_node_that_is_offered_twice_has_its_places_once() {
    let mut index = cluster(&[("n", &["H100-80GB"])]);
    let (now, offered) = (Instant::now(), ["n", "n", "stranger", "stranger"]);
    for number in 0..7 {
        let filtered = filter(&mut index, &pod(&number.to_string(), SMALL), &offered, now);
        assert_eq!(filtered.fitting, ["n", "n"], "{number}");
    }
    let filtered = filter(&mut index, &pod("late", SMALL), &offered, now);
    assert_eq!(filtered.fitting, [""; 0]);
    let [full, unknown] = [("n", Refusal::NoRoom), ("stranger", Refusal::NoAgent)];
    assert_eq!(filtered.refused, [full, full, unknown, unknown]);
}

#[test]
fn a_pod_that_the_webhook_did_not_see_fits_nowhere() {
    let mut index = cluster(&[("n", &["H100-80GB"])]);
    let stranger = Candidate { ask: Ask::read(None), ..pod("a", SMALL) };
    let filtered = filter(&mut index, &stranger, &["n"], Instant::now());
    assert_eq!(filtered.refused, [("n", Refusal::NotAdmitted)]);
}

#[test]
fn a_pod_with_a_reservation_gets_only_that_node() {
    let mut index = cluster(&[("n1", &["H100-80GB"]), ("n2", &["H100-80GB"])]);
    let (a, now) = (pod("a", SMALL), Instant::now());
    filter(&mut index, &a, &["n1", "n2"], now);
    bind(&mut index, &a, "n2");
    let filtered = filter(&mut index, &a, &["n1", "n2"], now);
    assert_eq!(filtered.fitting, ["n2"]);
    assert_eq!(filtered.refused, [("n1", Refusal::ReservedElsewhere)]);
    bind(&mut index, &a, "n2");
    assert_eq!(index.desired("n2").len(), 1, "it keeps what it has");
    assert!(index.reserve(&a.uid, &a.key, &"n1".into(), None).is_err());
}

#[test]
fn a_reservation_on_a_node_that_is_no_longer_offered_is_given_up() {
    let mut index = cluster(&[("n1", &["H100-80GB"]), ("n2", &["H100-80GB"])]);
    let (a, now) = (pod("a", SMALL), Instant::now());
    filter(&mut index, &a, &["n1", "n2"], now);
    bind(&mut index, &a, "n1");
    assert_eq!(choose(&mut index, &a, &["n2"], now).as_deref(), Some("n2"));
    index.obey();
    assert_eq!(index.desired("n1"), [("s1".to_owned(), None)]);
}

#[test]
fn a_reservation_whose_binding_may_have_been_made_is_not_given_up() {
    let mut index = cluster(&[("n1", &["H100-80GB"]), ("n2", &["H100-80GB"])]);
    let (a, now) = (pod("a", SMALL), Instant::now());
    filter(&mut index, &a, &["n1", "n2"], now);
    bind(&mut index, &a, "n1");
    index.bindings().send(&a.uid, &a.key, now);
    assert!(filter(&mut index, &a, &["n2"], now).fitting.is_empty());
    index.reserving().refuse_binding(&a.uid, now);
    assert_eq!(filter(&mut index, &a, &["n2"], now).fitting, ["n2"]);
}

#[test]
fn a_pod_whose_binding_was_not_made_is_requeued_for_an_offered_node() {
    let mut index = cluster(&[("n1", &["H100-80GB"]), ("n2", &["H100-80GB"])]);
    index.nodes().end_gpu_node_list();
    index.end_pod_list();
    index.take_over();
    let (a, now) = (pod("a", SMALL), Instant::now());
    filter(&mut index, &a, &["n1", "n2"], now);
    bind(&mut index, &a, "n1");
    index.bindings().send(&a.uid, &a.key, now);
    // The node is cordoned before the next try.
    assert!(filter(&mut index, &a, &["n2"], now).fitting.is_empty());
    let later = now + REQUEST_LIMIT;
    assert!(index.requeue(later).is_empty());
    index.looked_up(unbound(&a), later);
    assert_eq!(index.place_of(&a.uid), None, "its slice is others' again");
    assert_eq!(index.requeue(later), [(a.uid.clone(), a.key.clone())]);
    assert_eq!(filter(&mut index, &a, &["n2"], later).fitting, ["n2"]);
}

#[test]
fn the_last_place_is_not_offered_to_two_pods() {
    let mut index = cluster(&[("n1", &["H100-80GB"]), ("n2", &["H100-80GB"])]);
    let now = Instant::now();
    let nodes = ["n1", "n2"];
    let (a, b, c) = (pod("a", WHOLE), pod("b", WHOLE), pod("c", WHOLE));
    let first = choose(&mut index, &a, &nodes, now).unwrap();
    let second = choose(&mut index, &b, &nodes, now).unwrap();
    assert_ne!(first, second);
    assert_eq!(choose(&mut index, &c, &nodes, now), None);
    // A pod that is filtered again gets its own place.
    assert_eq!(choose(&mut index, &a, &nodes, now), Some(first));
    // The place of a pod that is not bound in time becomes free.
    assert!(choose(&mut index, &c, &nodes, now + ASSUMED_TIMEOUT).is_some());
}

#[test]
fn an_assumed_place_ends_with_its_pod() {
    let mut index = cluster(&[("n1", &["H100-80GB"])]);
    let (a, b, now) = (pod("a", WHOLE), pod("b", WHOLE), Instant::now());
    filter(&mut index, &a, &["n1"], now);
    assert_eq!(filter(&mut index, &b, &["n1"], now).refused, [("n1", Refusal::NoRoom)]);
    let deleting = KnownPod { deleting: true, ..unbound(&a) };
    index.hide_pod(&deleting.with(|template| template.request = None));
    assert_eq!(filter(&mut index, &b, &["n1"], now).fitting, ["n1"]);
}

#[test]
fn equal_places_have_equal_scores_except_where_the_pod_is_assumed() {
    let mut index = cluster(&[("n1", &["H100-80GB"]), ("n2", &["H100-80GB"]), ("n3", &["H100-80GB"])]);
    let now = Instant::now();
    let nodes = ["n3", "n2", "n1"];
    let a = pod("a", WHOLE);
    assert_eq!(prioritize(&mut index, &a, &nodes, now), [("n3", 1000), ("n2", 1000), ("n1", 1005)]);
    bind(&mut index, &a, "n1");
    assert_eq!(prioritize(&mut index, &a, &nodes, now).last(), Some(&("n1", 1005)), "where it is reserved");
    let b = pod("b", SMALL);
    assert_eq!(prioritize(&mut index, &b, &nodes, now), [("n3", 1000), ("n2", 1005), ("n1", 0)]);
    bind(&mut index, &b, "n2");
    let c = pod("c", SMALL);
    assert_eq!(prioritize(&mut index, &c, &nodes, now), [("n3", 1000), ("n2", 2005), ("n1", 0)]);
}

#[test]
fn a_few_nodes_pass_where_many_serve() {
    let names: Vec<String> = (10..40).map(|number| format!("n{number}")).collect();
    let nodes: Vec<(&str, &[&str])> = names.iter().map(|name| (name.as_str(), &["H100-80GB"][..])).collect();
    let mut index = cluster(&nodes);
    let offered: Vec<&str> = names.iter().map(String::as_str).collect();
    let (a, b, now) = (pod("a", WHOLE), pod("b", WHOLE), Instant::now());
    let first = filter(&mut index, &a, &offered, now);
    assert_eq!((first.fitting.len(), first.fitting[0], first.refused.len()), (8, "n10", 0));
    assert_eq!(index.scheduling().assumed_on(&a.uid), Some(&"n10".into()));
    let second = filter(&mut index, &b, &offered, now);
    assert_eq!((second.fitting.len(), second.fitting[0]), (8, "n11"), "the other's place is counted");
    assert_eq!(second.refused, [("n10", Refusal::NoRoom)]);
}

#[test]
fn the_cheapest_place_wins() {
    let mut index = cluster(&[("big", &["H200-141GB"]), ("idle", &["H100-80GB"]), ("new", &["H100-80GB"])]);
    let (a, b, now) = (pod("a", HALF), pod("b", HALF), Instant::now());
    filter(&mut index, &a, &["idle"], now);
    bind(&mut index, &a, "idle");
    index.pod_gone(&a.uid);
    let chosen = choose(&mut index, &b, &["new", "idle", "big"], now);
    assert_eq!(chosen.as_deref(), Some("idle"), "an idle slice need not be cut");
}

#[test]
fn a_pod_is_assumed_elsewhere_if_the_scheduler_drops_its_node() {
    let mut index = cluster(&[("n1", &["H100-80GB"]), ("n2", &["H100-80GB"])]);
    let (a, now) = (pod("a", WHOLE), Instant::now());
    filter(&mut index, &a, &["n1", "n2"], now);
    assert_eq!(index.scheduling().assumed_on(&a.uid), Some(&"n1".into()));
    // Another filter has removed n1.
    assert_eq!(prioritize(&mut index, &a, &["n2"], now), [("n2", 1005)]);
    assert_eq!(index.scheduling().assumed_on(&a.uid), Some(&"n2".into()));
}

#[test]
fn a_changed_status_changes_the_answer() {
    let mut index = cluster(&[("n1", &["H100-80GB"])]);
    let (a, now) = (pod("a", WHOLE), Instant::now());
    assert_eq!(filter(&mut index, &a, &["n1"], now).fitting, ["n1"]);
    index.add("n1", node_status(&["T4-16GB"]));
    assert_eq!(filter(&mut index, &a, &["n1"], now).refused, [("n1", Refusal::NeverFits)]);
}

/// A cluster that was listed and checked once, so that only later changes requeue pods.
fn awake(nodes: &[(&str, &[&str])], now: Instant) -> Scene {
    let mut index = Scene::leading(nodes);
    assert!(index.requeue(now).is_empty());
    index
}

#[test]
fn as_many_refused_pods_are_requeued_as_fit_the_longest_pending_first() {
    let now = Instant::now();
    let mut index = awake(&[("n", &["H100-80GB"])], now);
    let [a, b, c] = ["a", "b", "c"].map(|name| pod(name, WHOLE));
    choose(&mut index, &a, &["n"], now);
    index.reserve(&a.uid, &a.key, &"n".into(), a.ask.clone().ok()).unwrap();
    for waiting in [&b, &c] {
        assert_eq!(choose(&mut index, waiting, &["n"], now), None);
    }
    assert!(index.requeue(now).is_empty(), "no pod is requeued while there is no room");
    index.pod_gone(&a.uid);
    assert_eq!(index.requeue(now), [(b.uid.clone(), b.key.clone())]);
    assert_eq!(choose(&mut index, &b, &["n"], now).as_deref(), Some("n"));
    // The requeued pod does not come, so its place is free again after a while.
    index.scheduling().unschedulable().forget(&b.uid);
    assert_eq!(index.requeue(now + ASSUMED_TIMEOUT), [(c.uid, c.key)]);
}

/// Pods of a template are checked as one, but still keep the order among all templates.
#[test]
fn pods_of_several_templates_are_requeued_in_the_order_of_their_refusals() {
    let now = Instant::now();
    let mut index = awake(&[("n", &["H100-80GB"])], now);
    let all: Vec<Candidate> = (0..10)
        .map(|n| pod(&format!("p{n}"), ["nvidia.com/mig-3g.40gb", "nvidia.com/mig-4g.40gb"][n % 2]))
        .collect();
    let mut placed = Vec::new();
    for pod in &all {
        match choose(&mut index, pod, &["n"], now) {
            Some(_) => placed.push(bind(&mut index, pod, "n").owner.uid),
            None => assert!(placed.len() >= 2),
        }
    }
    let waiting: Vec<_> = all.iter().filter(|pod| !placed.contains(&pod.uid)).collect();
    for uid in &placed {
        index.pod_gone(uid);
    }
    let woken: Vec<_> = index.requeue(now).into_iter().map(|(uid, _)| uid).collect();
    let first: Vec<_> = waiting.iter().take(woken.len()).map(|pod| pod.uid.clone()).collect();
    assert!(woken.len() >= 2);
    assert_eq!(woken, first);
}

#[test]
fn a_failed_requeue_is_retried_unless_the_pod_was_filtered_meanwhile() {
    for (is_looked_at, woken) in [(false, 1), (true, 0)] {
        let now = Instant::now();
        let mut index = awake(&[("n", &["H100-80GB"])], now);
        let [a, b] = ["a", "b"].map(|name| pod(name, WHOLE));
        choose(&mut index, &a, &["n"], now);
        assert_eq!(choose(&mut index, &b, &["n"], now), None);
        index.pod_gone(&a.uid);
        assert_eq!(index.requeue(now).len(), 1);
        index.scheduling().unschedulable().was_not_called(&b.uid, now);
        if is_looked_at {
            choose(&mut index, &b, &["n"], now);
        }
        assert_eq!(index.requeue(now + ASSUMED_TIMEOUT).len(), woken);
    }
}

#[test]
fn room_on_a_node_that_the_scheduler_did_not_offer_requeues_no_pod() {
    let now = Instant::now();
    let mut index = awake(&[("free", &["H100-80GB"]), ("small", &["T4-16GB"])], now);
    assert_eq!(choose(&mut index, &pod("a", WHOLE), &["small"], now), None);
    index.add("free", node_status(&["H100-80GB", "H100-80GB"]));
    assert!(index.requeue(now).is_empty());
}

#[test]
fn a_new_leader_requeues_the_pods_that_its_predecessor_refused() {
    let now = Instant::now();
    let mut index = cluster(&[("n", &["H100-80GB"])]);
    let waiting = pod("a", WHOLE);
    index.show_pod(unbound(&waiting));
    assert!(index.requeue(now).is_empty(), "nothing is listed yet");
    index.nodes().end_gpu_node_list();
    index.end_pod_list();
    index.take_over();
    assert_eq!(index.requeue(now), [(waiting.uid, waiting.key)]);
    assert!(index.requeue(now).is_empty());
}

/// A pod that asks for 8 GB, of the first of these kinds that is free.
pub(crate) fn of_kinds(name: &str, kinds: &[Kind]) -> Candidate {
    asking(name, &neutral(8, kinds))
}

/// A pod with this request.
pub(crate) fn asking(name: &str, document: &RequestDocument) -> Candidate {
    Candidate { ask: Ask::read(Some(&document.to_json())), ..pod(name, SMALL) }
}

/// A request for this size by these kinds.
pub(crate) fn neutral(gb: u32, kinds: &[Kind]) -> RequestDocument {
    let mut document = request_sized(ResourceName::Neutral(SizeGb(gb)), SizeGb(gb), 1);
    document.containers[0].kinds = kinds.to_vec();
    document
}

/// A listed cluster of these nodes, whose kubelets have neutral names.
pub(crate) fn neutral_cluster(nodes: &[(&str, &[&str])]) -> Scene {
    let mut index = cluster(&[]);
    for (name, models) in nodes {
        show_neutral(&mut index, name, models, Some(SizeGb(80)));
    }
    index.begin();
    index.requeue(Instant::now());
    index
}

fn show_neutral(index: &mut Scene, name: &str, models: &[&str], neutral_up_to: Option<SizeGb>) {
    index.add(name, GpuNodeStatus { neutral_up_to, ..node_status(models) });
}

const MPS_FIRST: &[Kind] = &[Kind::Mps, Kind::Mig];

/// The kind of the slice that a pod has reserved.
fn kind_of(proposal: &Proposal) -> Kind {
    proposal.places[0].shape.kind()
}

#[test]
fn nodes_of_the_first_kind_with_room_are_returned_and_the_others_are_outranked() {
    let mut index =
        neutral_cluster(&[("mig", &["H100-80GB"]), ("t4-1", &["T4-16GB"]), ("t4-2", &["T4-16GB"])]);
    let nodes = ["mig", "t4-1", "t4-2"];
    let now = Instant::now();
    let filtered = filter(&mut index, &of_kinds("a", MPS_FIRST), &nodes, now);
    assert_eq!(filtered.fitting, ["t4-1", "t4-2"]);
    assert_eq!(filtered.refused, [("mig", Refusal::Outranked)]);
    let filtered = filter(&mut index, &of_kinds("b", &[Kind::Mig, Kind::Mps]), &nodes, now);
    assert_eq!(filtered.fitting, ["mig"]);
}

#[test]
fn the_next_kind_is_taken_where_no_node_of_the_first_is_offered() {
    let mut index = neutral_cluster(&[("mig", &["H100-80GB"]), ("t4", &["T4-16GB"])]);
    let taint =
        Taint { key: "spot".to_owned(), value: None, effect: "NoSchedule".to_owned(), ..Taint::default() };
    index.nodes().objects().set_taints("t4".into(), vec![taint]);
    let (a, now) = (of_kinds("a", MPS_FIRST), Instant::now());
    assert_eq!(choose(&mut index, &a, &["mig"], now).as_deref(), Some("mig"));
    assert_eq!(kind_of(&bind(&mut index, &a, "mig")), Kind::Mig);
    let assignment = index.reserving().assignment_of(&a.uid, &"mig".into()).unwrap();
    let passed = PassedKind { kind: Kind::Mps, full: 0, never: 1, excluded: 1, tainted: 1 };
    assert_eq!(assignment.passed, [passed]);
}

#[test]
fn a_preferred_kind_that_is_full_is_passed_over_and_recorded() {
    let mut index = neutral_cluster(&[("mig", &["H100-80GB"]), ("t4", &["T4-16GB"])]);
    let (nodes, now) = (["mig", "t4"], Instant::now());
    // A T4 has 15 GB for shares.
    let first = of_kinds("first", &[Kind::Mps]);
    choose(&mut index, &first, &nodes, now);
    bind(&mut index, &first, "t4");
    let next = of_kinds("next", MPS_FIRST);
    assert_eq!(choose(&mut index, &next, &nodes, now).as_deref(), Some("mig"));
    bind(&mut index, &next, "mig");
    let assignment = index.reserving().assignment_of(&next.uid, &"mig".into()).unwrap();
    assert_eq!(
        assignment.passed,
        [PassedKind { kind: Kind::Mps, full: 1, never: 1, excluded: 0, tainted: 0 }]
    );
    index.pod_gone(&next.uid);
    let best = of_kinds("best", &[Kind::Mig]);
    choose(&mut index, &best, &nodes, now);
    bind(&mut index, &best, "mig");
    let assignment = index.reserving().assignment_of(&best.uid, &"mig".into()).unwrap();
    assert_eq!(assignment.passed, [], "it passed over no kind");
}

/// A node with both kinds: one GPU in MIG mode and one that is shared.
const MIXED: &[&str] = &["H100-80GB", "T4-16GB"];

#[test]
fn a_bind_keeps_the_kind_that_filter_chose() {
    let mut index = neutral_cluster(&[("n", MIXED)]);
    let (a, b, now) = (of_kinds("a", MPS_FIRST), of_kinds("b", MPS_FIRST), Instant::now());
    assert_eq!(choose(&mut index, &a, &["n"], now).as_deref(), Some("n"));
    // Another pod takes the share before the first one is bound, because a filter does not see a bind under way
    // elsewhere.
    let taker = of_kinds("taker", &[Kind::Mps]);
    index.show_pod(unbound(&taker));
    bind(&mut index, &taker, "n");
    assert_eq!(
        index.reserve(&a.uid, &a.key, &"n".into(), a.ask.clone().ok()),
        Err(Refusal::NoRoom.into()),
        "it is filtered again, and does not take a place that another pod may be assumed at"
    );
    assert_eq!(choose(&mut index, &b, &["n"], now).as_deref(), Some("n"));
    assert_eq!(kind_of(&bind(&mut index, &b, "n")), Kind::Mig, "its filter counted the taker");
    assert_eq!(choose(&mut index, &a, &["n"], now).as_deref(), Some("n"));
    index.pod_gone(&taker.uid);
    assert_eq!(
        kind_of(&bind(&mut index, &a, "n")),
        Kind::Mig,
        "by the second filter, though a share is free"
    );
}

#[test]
fn a_bind_that_loses_its_reservation_keeps_the_kind_that_filter_chose() {
    let mut index = neutral_cluster(&[("n", MIXED)]);
    let now = Instant::now();
    let (taker, a) = (of_kinds("taker", &[Kind::Mps]), of_kinds("a", MPS_FIRST));
    for pod in [&taker, &a] {
        assert_eq!(choose(&mut index, pod, &["n"], now).as_deref(), Some("n"));
        bind(&mut index, pod, "n");
    }
    let chosen = index.reserving().assignment_of(&a.uid, &"n".into()).unwrap();
    assert_eq!((chosen.slices[0].shape.kind(), chosen.passed.len()), (Kind::Mig, 1));
    index.pod_gone(&taker.uid);
    // The agent could not make the slice, so the bind under way reserves another.
    index.show_pod(unbound(&a));
    index.agent("n").node.ledger.release(1, &a.uid, Moment::default()).unwrap();
    index.report("n");
    bind(&mut index, &a, "n");
    let again = index.reserving().assignment_of(&a.uid, &"n".into()).unwrap();
    assert_eq!((again.slices[0].shape.kind(), again.passed), (Kind::Mig, chosen.passed));
}

#[test]
fn a_pod_that_no_filter_sent_is_bound_by_the_best_kind_of_its_node() {
    let mut index = neutral_cluster(&[("n", MIXED)]);
    let kinds = ["a", "b"].map(|name| {
        let pod = of_kinds(name, MPS_FIRST);
        index.show_pod(unbound(&pod));
        kind_of(&bind(&mut index, &pod, "n"))
    });
    assert_eq!(kinds, [Kind::Mps, Kind::Mig]);
}

#[test]
fn two_pods_that_are_assumed_on_one_node_get_different_kinds() {
    let mut index = neutral_cluster(&[("n", MIXED)]);
    let now = Instant::now();
    let pods = ["a", "b"].map(|name| of_kinds(name, MPS_FIRST));
    for pod in &pods {
        assert_eq!(choose(&mut index, pod, &["n"], now).as_deref(), Some("n"));
    }
    let kinds = pods.each_ref().map(|pod| kind_of(&bind(&mut index, pod, "n")));
    assert_eq!(kinds, [Kind::Mps, Kind::Mig]);
}

#[test]
fn a_pending_pod_takes_free_slices_first() {
    let mut index = neutral_cluster(&[("mig", &["H100-80GB"]), ("t4", &["T4-16GB"])]);
    let (nodes, now) = (["mig", "t4"], Instant::now());
    let (big, share) = (pod("big", WHOLE), of_kinds("share", &[Kind::Mps]));
    for (pod, node) in [(&big, "mig"), (&share, "t4")] {
        assert_eq!(choose(&mut index, pod, &nodes, now).as_deref(), Some(node));
        bind(&mut index, pod, node);
    }
    let pending = of_kinds("pending", MPS_FIRST);
    let filtered = filter(&mut index, &pending, &nodes, now);
    assert_eq!(filtered.refused, [("mig", Refusal::NoRoom), ("t4", Refusal::NoRoom)]);
    assert!(index.requeue(now).is_empty());
    index.pod_gone(&big.uid);
    assert_eq!(index.requeue(now), [(pending.uid.clone(), pending.key.clone())]);
    assert_eq!(choose(&mut index, &pending, &nodes, now).as_deref(), Some("mig"));
    assert_eq!(kind_of(&bind(&mut index, &pending, "mig")), Kind::Mig);
}

#[test]
fn a_name_that_is_not_registered_is_refused() {
    let mut index = neutral_cluster(&[]);
    show_neutral(&mut index, "before", &["T4-16GB"], None);
    show_neutral(&mut index, "small", &["T4-16GB"], Some(SizeGb(7)));
    show_neutral(&mut index, "n", &["T4-16GB"], Some(SizeGb(16)));
    let filtered = filter(&mut index, &of_kinds("a", MPS_FIRST), &["before", "small", "n"], Instant::now());
    assert_eq!(filtered.fitting, ["n"]);
    let unknown = Refusal::NameNotRegistered;
    assert_eq!(filtered.refused, [("before", unknown), ("small", unknown)]);
}

#[test]
fn a_pod_that_needs_a_user_namespace_goes_only_to_nodes_that_have_them() {
    let mut index = neutral_cluster(&[("old", &["T4-16GB"]), ("new", &["T4-16GB"])]);
    let document = RequestDocument { user_namespace: true, ..neutral(8, &[Kind::Mps]) };
    let (a, now) = (asking("a", &document), Instant::now());
    assert_eq!(filter(&mut index, &a, &["old", "new"], now).fitting, ["old", "new"]);
    index.nodes().show_user_namespaces(&"old".into(), false);
    assert_eq!(filter(&mut index, &a, &["old", "new"], now).refused, [("old", Refusal::NoUserNamespaces)]);
    show_neutral(&mut index, "old", &["T4-16GB"], Some(SizeGb(80)));
    index.nodes().remove_gpu_node(&"old".into());
    show_neutral(&mut index, "old", &["T4-16GB"], Some(SizeGb(80)));
    assert_eq!(filter(&mut index, &a, &["old", "new"], now).fitting, ["new"], "its Node is the same");
    index.nodes().show_user_namespaces(&"old".into(), true);
    assert_eq!(filter(&mut index, &a, &["old", "new"], now).fitting, ["old", "new"]);
}

#[test]
fn a_nominated_node_is_ranked_among_the_offered_ones_only() {
    let mut index = neutral_cluster(&[("mig", &["H100-80GB"]), ("t4", &["T4-16GB"])]);
    let now = Instant::now();
    let a = Candidate { nominated: Some("mig".into()), ..of_kinds("a", MPS_FIRST) };
    assert_eq!(filter(&mut index, &a, &["mig"], now).fitting, ["mig"], "the scheduler offers it alone");
    bind(&mut index, &a, "mig");
    let assignment = index.reserving().assignment_of(&a.uid, &"mig".into()).unwrap();
    let passed = PassedKind { kind: Kind::Mps, full: 0, never: 1, excluded: 0, tainted: 0 };
    assert_eq!(assignment.passed, [passed], "the other node was not offered");
    index.pod_gone(&a.uid);
    assert_eq!(filter(&mut index, &a, &["mig", "t4"], now).fitting, ["t4"]);
}

#[test]
fn shares_by_a_neutral_name_fill_a_gpu_as_those_by_their_own_name_do() {
    let mut index = neutral_cluster(&[("n1", &["T4-16GB"]), ("n2", &["T4-16GB"])]);
    let now = Instant::now();
    let mut place = |name: &str, kind: Kind| {
        let pod = asking(name, &neutral(4, &[kind]));
        index.show_pod(unbound(&pod));
        let node = choose(&mut index, &pod, &["n1", "n2"], now).unwrap();
        bind(&mut index, &pod, &node);
        node
    };
    assert_eq!(["a", "b", "c"].map(|name| place(name, Kind::Mps)), ["n1", "n1", "n1"]);
    assert_eq!(place("d", Kind::TimeSlicing), "n2");
}

#[test]
fn a_pod_is_counted_by_any_kind_until_it_has_a_slice() {
    let mut index = neutral_cluster(&[("mig", &["H100-80GB"])]);
    let a = of_kinds("a", MPS_FIRST);
    let request = a.ask.as_ref().unwrap().text.clone();
    let metadata = json!({"name": "a", "namespace": "default", "uid": "uid-a", "annotations": {keys::REQUEST: *request}});
    index.show_pod(serde_json::from_value::<SlicedPod>(json!({"metadata": metadata})).unwrap().into());
    assert_eq!((a.kind(), index.statistics().counted(&a.uid).kind), (KindLabel::Any, KindLabel::Any));
    choose(&mut index, &a, &["mig"], Instant::now());
    bind(&mut index, &a, "mig");
    assert_eq!(index.statistics().counted(&a.uid).kind, KindLabel::Of(Kind::Mig));
}
