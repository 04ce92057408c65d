//! What pods wait for, as the index tells it.

use super::super::tests::{index, known, reserve, uid};
use crate::ask::Ask;
use crate::pod::KnownPod;
use kerf_core::contract::Slices;
use kerf_core::names::PodKey;
use kerf_core::policy::SupplyIndex;
use kerf_core::request::GpuSelection;
use kerf_core::testing::request;
use kerf_core::units::SizeGb;

fn counts<N: Copy + Into<u64>>(slices: &Slices<N>) -> Vec<(String, u64)> {
    slices.iter().map(|(name, count)| (name.to_string(), (*count).into())).collect()
}

#[test]
fn a_pod_waits_from_its_coming_to_its_promise() {
    let mut index = index();
    assert_eq!(index.demand().pending, Slices::new());
    let big = KnownPod {
        request: Some(request("nvidia.com/mig-3g.40gb", 2).to_json().into()),
        ..known("big", None)
    };
    index.show_pod(known("a", None));
    index.show_pod(big.clone());
    index.show_pod(big);
    let small = "nvidia.com/mig-1g.10gb".to_owned();
    let large = "nvidia.com/mig-3g.40gb".to_owned();
    assert_eq!(counts(&index.demand().pending), [(small.clone(), 1), (large.clone(), 2)]);
    reserve(&mut index, "a");
    assert_eq!(counts(&index.demand().pending), [(large.clone(), 2)]);
    index.show_pod(KnownPod { deleting: true, ..known("big", None) });
    assert_eq!(index.demand().pending, Slices::new());
    index.pod_gone(&uid("a"));
    let demand = index.demand();
    assert_eq!((demand.pending, demand.epoch), (Slices::new(), 1));
    assert_eq!(counts(&demand.arrived), [(small, 1), (large, 2)], "who came has come");
}

#[test]
fn a_pod_that_lost_its_promise_waits_again_and_a_bound_one_does_not() {
    let mut index = index();
    reserve(&mut index, "a");
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
    index.remove_node(&"n".into());
    assert_eq!(room(&index, &mut supply), 0);
}

#[test]
fn only_pods_that_were_refused_and_have_nothing_are_looked_at() {
    let mut index = index();
    let ask = Ask::read(Some(&request("nvidia.com/mig-1g.10gb", 1).to_json())).unwrap();
    for pod in ["a", "quota", "promised"] {
        index.show_pod(known(pod, None));
        index.refused(&uid(pod), &PodKey::new("default", pod), &ask, &["n"], pod == "quota");
    }
    reserve(&mut index, "promised");
    let refused: Vec<_> = index.refused_pods().into_iter().map(|(_, pod, _)| pod.name).collect();
    assert_eq!(refused, ["a"]);
}
