//! What pods wait for, as the index tells it.

use super::super::tests::{index, known, reserve, uid, write};
use crate::pod::KnownPod;
use kerf_core::contract::{Chosen, Demand, RequestDocument, Revisions, Slices};
use kerf_core::names::PodKey;
use kerf_core::policy::{PodFacts, Policies, PolicyDocument, SupplyIndex};
use kerf_core::request::GpuSelection;
use kerf_core::testing::request;
use kerf_core::units::SizeGb;
use serde_json::json;
use std::sync::Arc;

/// A pod that this replica of the webhook admitted.
fn admitted(pod: &str, by: &str, resource: &str, count: u32) -> KnownPod {
    let chosen = Some(Chosen { by: by.to_owned(), ..Chosen::default() });
    let document = RequestDocument { chosen, ..request(resource, count) };
    KnownPod { request: Some(document.to_json().into()), ..known(pod, None) }
}

fn counts<N: Copy + Into<u64>>(slices: &Slices<N>) -> Vec<(String, u64)> {
    slices.iter().map(|(name, count)| (name.to_string(), (*count).into())).collect()
}

#[test]
fn a_pod_waits_from_its_coming_to_its_promise() {
    let mut index = index();
    assert_eq!(index.demand().pending, Slices::new());
    let big = admitted("big", "r1", "nvidia.com/mig-3g.40gb", 2);
    index.show_pod(admitted("a", "r2", "nvidia.com/mig-1g.10gb", 1));
    index.show_pod(big.clone());
    index.show_pod(big);
    let small = "nvidia.com/mig-1g.10gb".to_owned();
    let large = "nvidia.com/mig-3g.40gb".to_owned();
    assert_eq!(counts(&index.demand().pending), [(small.clone(), 1), (large.clone(), 2)]);
    reserve(&mut index, "a");
    assert_eq!(counts(&index.demand().pending).len(), 2, "nobody can see a promise that is not written");
    let before = index.demand().revisions.unwrap();
    write(&mut index);
    assert_eq!(counts(&index.demand().pending), [(large.clone(), 2)]);
    let revision = |of: &Revisions| of.get("n").copied().unwrap_or(0);
    let after = index.demand().revisions.unwrap();
    assert_eq!(revision(&after), revision(&before) + 1, "it says which spec has the promise");
    index.show_pod(KnownPod { deleting: true, ..known("big", None) });
    assert_eq!(index.demand().pending, Slices::new());
    index.pod_gone(&uid("a"));
    let demand = index.demand();
    assert_eq!((demand.pending, demand.epoch), (Slices::new(), 1));
    assert_eq!(counts(&demand.arrived["r1"]), [(large, 2)], "who came has come");
    assert_eq!(counts(&demand.arrived["r2"]), [(small, 1)]);
}

#[test]
fn a_pod_that_lost_its_promise_waits_again_and_a_bound_one_does_not() {
    let mut index = index();
    reserve(&mut index, "a");
    write(&mut index);
    index.show_pod(known("b", Some("n")));
    assert_eq!(index.demand().pending, Slices::new());
    assert!(index.give_up(&uid("a")));
    assert_eq!(counts(&index.demand().pending), [("nvidia.com/mig-1g.10gb".to_owned(), 1)]);
}

#[test]
fn the_supply_is_what_is_left_beside_all_promises() {
    let mut index = index();
    let mut supply = SupplyIndex::default();
    let room = |index: &super::ClusterIndex, supply: &mut SupplyIndex| {
        index.show_supply(supply);
        supply
            .supply()
            .room("nvidia.com/mig-1g.10gb".parse().unwrap(), SizeGb(10), &GpuSelection::default())
            .room
    };
    assert_eq!(room(&index, &mut supply), 7);
    reserve(&mut index, "a");
    assert_eq!(room(&index, &mut supply), 6);
    index.show_shut("n".into(), true);
    assert_eq!(room(&index, &mut supply), 0);
    index.show_shut("n".into(), false);
    assert_eq!(room(&index, &mut supply), 6);
    index.remove_node(&"n".into());
    assert_eq!(room(&index, &mut supply), 0);
}

#[test]
fn a_replica_that_admits_no_more_is_left_out() {
    let mut index = index();
    let mut show = |number: usize, by: &str| {
        index.show_pod(admitted(&format!("{by}-{number}"), by, "nvidia.com/mig-1g.10gb", 1));
        index.demand().arrived.keys().cloned().collect::<Vec<_>>()
    };
    show(0, "");
    assert_eq!(show(0, "gone"), ["gone"], "who admitted a pod is not always known");
    for number in 1..Demand::LATELY {
        assert_eq!(show(number, "new"), ["gone", "new"]);
    }
    assert_eq!(show(Demand::LATELY, "new"), ["new"]);
}

const SMALL: &str = "nvidia.com/mig-1g.10gb";

/// A pod of a namespace, under the policy `p`.
fn of(namespace: &str, pod: &str, count: u32) -> KnownPod {
    let facts = PodFacts { namespace: namespace.to_owned(), ..PodFacts::default() };
    let key = PodKey::new(namespace, pod);
    KnownPod { key, policy: Some("p".into()), facts: Arc::new(facts), ..admitted(pod, "r", SMALL, count) }
}

/// One policy, under which a namespace may have so many slices.
fn quota(slices: u32) -> Arc<Policies> {
    let document: PolicyDocument = serde_json::from_value(json!({
        "apiVersion": "kerf.dev/v1alpha1", "kind": "GpuPolicy", "metadata": {"name": "p"},
        "spec": {"quota": {"slices": slices}, "defaultIsolation": "none", "isolation": {"none": ["mig"]}},
    }))
    .unwrap();
    Arc::new(Policies { pods: vec![document.try_into().unwrap()], nodes: Vec::new() })
}

#[test]
fn a_pod_that_is_not_to_be_scheduled_yet_takes_nothing() {
    let mut index = index();
    index.show_pod(KnownPod { gated: true, ..known("a", None) });
    assert_eq!(index.demand().pending, Slices::new());
    index.show_pod(known("a", None));
    assert_eq!(counts(&index.demand().pending), [(SMALL.to_owned(), 1)]);
}

#[test]
fn of_pods_that_their_quota_keeps_back_as_many_wait_as_it_lets_through() {
    let mut index = index();
    index.set_policies(&quota(3));
    let pending = |index: &mut super::ClusterIndex| index.demand().pending.values().sum::<u32>();
    for pod in ["a", "b", "c", "d", "e"] {
        index.show_pod(of("full", pod, 1));
    }
    assert_eq!(pending(&mut index), 3);
    index.show_pod(of("full", "greedy", 4));
    index.show_pod(of("other", "f", 1));
    assert_eq!(pending(&mut index), 4, "the other namespace has a quota of its own");
    index.reserve(&uid("e"), &PodKey::new("full", "e"), &"n".into(), None).unwrap();
    assert_eq!(pending(&mut index), 4, "e is promised the third and not written; a and b take two");
    write(&mut index);
    assert_eq!(pending(&mut index), 3);
    let ask = of("full", "a", 1).ask().unwrap();
    for pod in ["a", "b", "c", "d"] {
        index.refused(&uid(pod), &PodKey::new("full", pod), &ask, &["n"], true);
    }
    assert_eq!(pending(&mut index), 1, "what is left may be too small where it depends on the place");
    index.set_policies(&Arc::default());
    assert_eq!(pending(&mut index), 9, "nobody limits them");
}
