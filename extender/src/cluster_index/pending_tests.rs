use super::super::tests::{index, known, reserve, uid};
use super::*;
use crate::cluster_index::ClusterIndex;
use kerf_core::names::PodKey;
use kerf_core::request::{PodFacts, SelectingFields};
use kerf_core::testing::{node_status, request};
use std::collections::BTreeMap;

fn reasons(index: &mut ClusterIndex) -> BTreeMap<String, PendingReason> {
    let name = |pending: &Pending| pending.uid.as_str().trim_start_matches("uid-").to_owned();
    index.scheduling().pending().into_iter().map(|pending| (name(&pending), pending.reason)).collect()
}

fn ask() -> Ask {
    Ask::read(Some(&request("nvidia.com/mig-1g.10gb", 1).to_json())).unwrap()
}

#[test]
fn a_pod_is_pending_for_the_first_reason_that_keeps_it() {
    let mut index = index();
    for pod in ["room", "full", "quota", "gated", "reserved", "ends", "leaves"] {
        index.show_pod(known(pod, None));
    }
    index.scheduling().unschedulable().refused(
        &uid("full"),
        &PodKey::new("default", "full"),
        &ask(),
        &["n"],
        false,
    );
    let elsewhere = PodFacts::new("other", SelectingFields::default(), Vec::new());
    let of_other = ask().of(Arc::new(elsewhere));
    index.scheduling().unschedulable().refused(
        &uid("quota"),
        &PodKey::new("other", "quota"),
        &of_other,
        &["n"],
        true,
    );
    index.show_pod(KnownPod { gated: true, ..known("gated", None) });
    reserve(&mut index, "reserved");
    index.show_pod(KnownPod { ended: true, ..known("ends", None) });
    index.show_pod(KnownPod { deleting: true, ..known("leaves", None) });
    index.show_pod(known("runs", Some("n")));
    let expected = [
        ("room", PendingReason::Room),
        ("full", PendingReason::Full),
        ("quota", PendingReason::Quota),
        ("gated", PendingReason::Gated),
        ("reserved", PendingReason::Reserved),
    ];
    assert_eq!(reasons(&mut index), expected.map(|(pod, reason)| (pod.to_owned(), reason)).into());
    let small = "nvidia.com/mig-1g.10gb".parse().unwrap();
    assert_eq!(
        pending_slices(&index.scheduling().pending()),
        [(small, 2)].into(),
        "of those that find room, or none"
    );
}

#[test]
fn a_pod_with_an_unreadable_request_is_pending_for_ever() {
    let mut index = index();
    index.show_pod(known("a", None).with(|template| template.request = Some("10Gi".into())));
    index.show_pod(known("past-kerf", None).with(|template| template.request = None));
    assert_eq!(reasons(&mut index), [("a".to_owned(), PendingReason::Never)].into());
    assert_eq!(pending_slices(&index.scheduling().pending()), BTreeMap::new());
}

#[test]
fn the_nodes_decide_the_reason_of_a_pod_that_no_filter_refused() {
    let mut index = index();
    index.show_pod(known("a", None));
    let only = |reason| BTreeMap::from([("a".to_owned(), reason)]);
    assert_eq!(reasons(&mut index), only(PendingReason::Room));
    index.nodes().objects().set_closed("n".into(), true);
    assert_eq!(reasons(&mut index), only(PendingReason::Never), "no node takes new pods");
    index.nodes().objects().set_closed("n".into(), false);
    for pod in ["b", "c", "d", "e", "f", "g", "h"] {
        reserve(&mut index, pod);
    }
    assert_eq!(reasons(&mut index)["a"], PendingReason::Full);
    index.nodes().remove_gpu_node(&"n".into());
    index.add("t4", node_status(&["T4-16GB"]));
    assert_eq!(reasons(&mut index)["a"], PendingReason::Never);
}
