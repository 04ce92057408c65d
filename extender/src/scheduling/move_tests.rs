//! Tests which pods are evicted for which others, and which are not.

use super::Candidate;
use super::tests::{HALF, SMALL, WHOLE, asking, bound, neutral, neutral_cluster, pod, run};
use crate::cluster_index::ClusterIndex;
use crate::cluster_index::scene::{Scene, filter};
use crate::destinations::Destinations;
use crate::objects::ask::Ask;
use crate::objects::compute::Compute;
use crate::objects::pod::KnownPod;
use k8s_openapi::api::core::v1::Taint;
use kerf_core::contract::RequestDocument;
use kerf_core::kind::Kind;
use kerf_core::packing::fraction::CpuMilli;
use kerf_core::request::NodeSelection;
use kerf_core::units::MemoryMib;
use std::sync::Arc;
use std::time::{Duration, Instant};

const H100: &[&str] = &["H100-80GB"];
const NODES: [&str; 3] = ["n1", "n2", "n3"];

/// A listed cluster of nodes with an H100 each and these pods: name, request, node, and whether its owner allows its
/// eviction.
fn running(pods: &[(&str, &str, &str, bool)], now: Instant) -> Scene {
    let mut index = Scene::leading(&NODES.map(|name| (name, H100)));
    for (name, resource, node, movable) in pods {
        let pod = pod(name, resource);
        filter(&mut index, &pod, &[node], now);
        run(&mut index, &pod, node, *movable);
    }
    index.take_effects();
    index
}

/// Filters a pod on all nodes, and returns the names of the pods that are evicted for it.
fn evicted_for(index: &mut Scene, pod: &Candidate, now: Instant) -> Vec<String> {
    filter(index, pod, &NODES, now);
    index.take_effects().evictions.into_iter().map(|eviction| eviction.pod.name).collect()
}

fn deleting(pod: &Candidate, node: &str) -> KnownPod {
    KnownPod { deleting: true, ..bound(pod, node, true) }
}

#[test]
fn the_filter_itself_evicts_no_pod() {
    let now = Instant::now();
    let mut index = running(&[("a", SMALL, "n1", true), ("full", WHOLE, "n2", false)], now);
    let half = pod("half", HALF);
    filter(&mut index, &half, &["n3"], now);
    run(&mut index, &half, "n3", false);
    index.take_effects();
    let whole = pod("whole", WHOLE);
    let filtered = super::filter(&mut index, &whole, &NODES, now);
    assert_eq!(filtered.unserved.map(|unserved| unserved.owner.uid), Some(whole.uid.clone()));
    assert!(index.take_effects().evictions.is_empty());
    assert_eq!(evicted_for(&mut index, &whole, now), ["a"]);
}

#[test]
fn without_the_right_to_evict_no_pod_is_evicted() {
    let now = Instant::now();
    let pods = [("a", SMALL, "n1", true), ("full", WHOLE, "n2", false)];
    for (has_right, evicted) in [(true, vec!["a"]), (false, vec![])] {
        let mut index = running(&pods, now);
        if !has_right {
            index.room_maker().forbid();
        }
        let half = pod("half", HALF);
        filter(&mut index, &half, &["n3"], now);
        run(&mut index, &half, "n3", false);
        index.take_effects();
        assert_eq!(evicted_for(&mut index, &pod("whole", WHOLE), now), evicted, "{has_right}");
    }
}

#[test]
fn only_a_pod_on_a_suitable_gpu_is_evicted() {
    let now = Instant::now();
    let pods = [("a", SMALL, "n1", true), ("full", WHOLE, "n2", false), ("half", HALF, "n3", false)];
    for (model, evicted) in [("H100-80GB", vec!["a"]), ("A100-80GB", vec![])] {
        let mut index = running(&pods, now);
        let mut whole = pod("whole", WHOLE);
        let mut document = whole.ask.unwrap().document.as_ref().clone();
        document.gpus.models = vec![model.to_owned()];
        whole.ask = Ask::read(Some(&document.to_json()));
        assert_eq!(evicted_for(&mut index, &whole, now), evicted, "{model}");
    }
}

#[test]
fn a_pod_is_evicted_only_if_its_owner_admits_the_other_node() {
    let now = Instant::now();
    let pods = [("a", SMALL, "n1", true), ("full", WHOLE, "n2", false), ("half", HALF, "n3", false)];
    for (pool, evicted) in [(Some("red"), vec!["a"]), (Some("blue"), vec![]), (None, vec![])] {
        let mut index = running(&pods, now);
        let selector = [("pool".to_owned(), "red".to_owned())].into();
        let chosen = NodeSelection::from_template(&selector, None);
        let movable_to = Some(Arc::new(Destinations { chosen, ..Destinations::default() }));
        index.show_pod(bound(&pod("a", SMALL), "n1", true).with(|template| template.movable_to = movable_to));
        let labels = pool.map(|pool| [("pool".to_owned(), pool.to_owned())].into());
        index.nodes().objects().set_labels("n3".into(), labels);
        assert_eq!(evicted_for(&mut index, &pod("whole", WHOLE), now), evicted, "{pool:?}");
    }
}

#[test]
fn a_pod_is_evicted_only_if_the_other_node_has_cpu_and_no_taint_against_it() {
    let now = Instant::now();
    let pods = [("a", SMALL, "n1", true), ("full", WHOLE, "n2", false), ("half", HALF, "n3", false)];
    let asks = Compute { cpu: CpuMilli(1000), memory: MemoryMib(1024) };
    let has = |cpu| Compute { cpu: CpuMilli(cpu), memory: MemoryMib(4096) };
    let taint = || Taint { key: "pool".into(), effect: "NoSchedule".into(), ..Taint::default() };
    for (taints, cpu, evicted) in
        [(vec![], 1000, vec!["a"]), (vec![], 999, vec![]), (vec![taint()], 1000, vec![])]
    {
        let mut index = running(&pods, now);
        index.show_pod(bound(&pod("a", SMALL), "n1", true).with(|template| template.compute = asks));
        index.nodes().objects().set_allocatable("n3".into(), Some(has(cpu)));
        index.nodes().objects().set_taints("n3".into(), taints.clone());
        assert_eq!(evicted_for(&mut index, &pod("whole", WHOLE), now), evicted, "{taints:?} {cpu}");
    }
}

#[test]
fn a_pod_is_evicted_only_if_another_offered_node_can_take_it() {
    let now = Instant::now();
    let pods = [("a", SMALL, "n1", true), ("half", HALF, "n2", false), ("other", HALF, "n3", false)];
    for (offered, evicted) in [(&["n1", "n3"][..], &["a"][..]), (&["n1", "n2"], &["a"]), (&["n1"], &[])] {
        let mut index = running(&pods, now);
        filter(&mut index, &pod("whole", WHOLE), offered, now);
        let evictions = index.take_effects().evictions;
        assert_eq!(evictions.iter().map(|e| e.pod.name.as_str()).collect::<Vec<_>>(), evicted, "{offered:?}");
    }
}

#[test]
fn an_eviction_whose_answer_was_lost_was_made_if_the_pod_is_seen_to_leave() {
    let now = Instant::now();
    let pods = [("a", SMALL, "n1", true), ("b", SMALL, "n2", true), ("half", HALF, "n3", false)];
    let mut index = running(&pods, now);
    let whole = pod("whole", WHOLE);
    assert_eq!(evicted_for(&mut index, &whole, now), ["a"]);
    index.room_maker().refuse(&whole.uid);
    index.show_pod(deleting(&pod("a", SMALL), "n1"));
    for seconds in [50, 100, 150] {
        let later = now + Duration::from_secs(seconds);
        assert!(evicted_for(&mut index, &whole, later).is_empty(), "its grace period is long");
        assert_eq!(index.scheduling().assumed_on(&whole.uid), Some(&"n1".into()));
    }
}

/// An evictable pod on n1, one that must stay on n3, and one on n2 that has all of it and is ending.
const AROUND_ONE_THAT_ENDS: [(&str, &str, &str, bool); 3] =
    [("a", SMALL, "n1", true), ("before", WHOLE, "n2", false), ("half", HALF, "n3", false)];

#[test]
fn no_pod_is_evicted_while_a_left_place_is_not_yet_reported_free() {
    let now = Instant::now();
    let mut index = running(&AROUND_ONE_THAT_ENDS, now);
    let (before, whole) = (pod("before", WHOLE), pod("whole", WHOLE));
    index.cut("n2", true);
    ClusterIndex::pod_gone(&mut index, &before.uid);
    assert!(evicted_for(&mut index, &whole, now).is_empty());
    assert!(filter(&mut index, &pod("other", SMALL), &["n2"], now).fitting.is_empty(), "the place is kept");
    index.pod_gone(&before.uid);
    assert_eq!(filter(&mut index, &whole, &NODES, now).fitting, ["n2"]);
}

#[test]
fn no_pod_is_evicted_while_another_is_ending_unless_that_takes_too_long() {
    let now = Instant::now();
    let mut index = running(&AROUND_ONE_THAT_ENDS, now);
    let whole = pod("whole", WHOLE);
    index.show_pod(deleting(&pod("before", WHOLE), "n2").with(|template| template.movable_to = None));
    for seconds in [0, 30, 59] {
        assert!(evicted_for(&mut index, &whole, now + Duration::from_secs(seconds)).is_empty());
    }
    assert_eq!(evicted_for(&mut index, &pod("second", WHOLE), now), ["a"], "the place is the first one's");
    index.pod_gone(&pod("second", WHOLE).uid);
    assert_eq!(evicted_for(&mut index, &whole, now + Duration::from_mins(1)), ["a"]);
}

#[test]
fn a_new_leader_evicts_no_pod_while_one_that_its_predecessor_evicted_leaves() {
    let now = Instant::now();
    // The new leader finds them like this, and has no record of the eviction.
    let mut index =
        running(&[("a", SMALL, "n1", true), ("b", SMALL, "n2", true), ("half", HALF, "n3", false)], now);
    let (evicted, whole) = (pod("a", SMALL), pod("whole", WHOLE));
    index.cut("n1", true);
    index.show_pod(deleting(&evicted, "n1"));
    assert!(evicted_for(&mut index, &whole, now).is_empty());
    ClusterIndex::pod_gone(&mut index, &evicted.uid);
    assert!(evicted_for(&mut index, &whole, now).is_empty(), "its agent has not reported yet");
}

#[test]
fn no_pod_is_evicted_while_the_scheduler_offers_only_the_nominated_node() {
    let now = Instant::now();
    let mut index =
        running(&[("a", SMALL, "n1", true), ("b", SMALL, "n2", true), ("half", HALF, "n3", false)], now);
    let whole = Candidate { nominated: Some("n1".into()), ..pod("whole", WHOLE) };
    assert!(filter(&mut index, &whole, &["n1"], now).fitting.is_empty());
    assert!(index.take_effects().evictions.is_empty());
    assert_eq!(evicted_for(&mut index, &whole, now), ["a"]);
}

#[test]
fn for_a_pod_of_any_kind_another_is_evicted_only_for_an_allowed_gpu_instance() {
    let now = Instant::now();
    let mps_on_h100 = [("H100-80GB".to_owned(), vec![Kind::Mps])];
    for (kinds, kinds_by_model, evicted) in [
        (&[Kind::Mps, Kind::Mig][..], &[][..], &["a"][..]),
        (&[Kind::Mps, Kind::Whole], &[], &[]),
        (&[Kind::Mps, Kind::Mig], &mps_on_h100, &[]),
    ] {
        let mut index = neutral_cluster(&NODES.map(|name| (name, H100)));
        for (name, resource, node, movable) in
            [("a", SMALL, "n1", true), ("full", WHOLE, "n2", false), ("half", HALF, "n3", false)]
        {
            let pod = pod(name, resource);
            filter(&mut index, &pod, &[node], now);
            run(&mut index, &pod, node, movable);
        }
        index.take_effects();
        let kinds_by_model = kinds_by_model.iter().cloned().collect();
        let any = asking("any", &RequestDocument { kinds_by_model, ..neutral(80, kinds) });
        assert_eq!(evicted_for(&mut index, &any, now), evicted, "{kinds:?}");
        index.pod_gone(&pod("a", SMALL).uid);
        let fitting = filter(&mut index, &any, &NODES, now).fitting;
        assert_eq!(fitting.is_empty(), evicted.is_empty());
        if !evicted.is_empty() {
            let proposal = index.reserve(&any.uid, &any.key, &"n1".into(), None).unwrap();
            assert_eq!(proposal.places[0].shape.kind(), Kind::Mig);
        }
    }
}
