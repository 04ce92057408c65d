//! Tests how nodes are counted that do not serve a pod by a kind that it prefers.

use super::super::scene::Scene;
use super::super::tests::uid;
use super::*;
use crate::scheduling::filter::tests::{neutral_cluster, of_kinds};
use k8s_openapi::api::core::v1::Taint;
use kerf_core::names::PodKey;
use kerf_core::packing::plans;
use serde_json::json;

const T4: &[&str] = &["T4-16GB"];

fn taint(effect: &str) -> Vec<Taint> {
    vec![serde_json::from_value(json!({"key": "spot", "effect": effect})).unwrap()]
}

/// Three T4s that are free, one of them with a taint and one with a temporary taint, one that is full, and an H100 in
/// MIG mode.
fn index() -> Scene {
    let nodes = ["free", "spot", "slow", "full"].map(|name| (name, T4));
    let h100: (&str, &[&str]) = ("mig", &["H100-80GB"]);
    let mut index = neutral_cluster(&[&nodes[..], &[h100]].concat());
    index.nodes().objects().set_taints("spot".into(), taint("NoSchedule"));
    index.nodes().objects().set_taints("slow".into(), taint("PreferNoSchedule"));
    let share = of_kinds("share", &[Kind::Mps]);
    index.reserve(&share.uid, &share.key, &"full".into(), share.ask.ok()).unwrap();
    index
}

fn passed(index: &mut Scene, kinds: &[Kind], chosen: Kind, offer: Offer<'_>) -> Vec<PassedKind> {
    let ask = of_kinds("a", kinds).ask.unwrap();
    let mut plans = plans(&ask.document).into_iter();
    let plan = plans.find(|plan| plan.kinds().all(|(_, kind)| kind == chosen)).unwrap();
    index.scheduling().passed(&ask, &plan, offer)
}

#[test]
fn each_node_is_counted_once_by_the_reason_that_excludes_it() {
    let mut index = index();
    let offer = Offer { nodes: &["mig", "full"], is_complete: true, tolerated: &[] };
    let kinds = [Kind::Mps, Kind::TimeSlicing, Kind::Mig];
    let mps = PassedKind { kind: Kind::Mps, full: 1, never: 1, excluded: 3, tainted: 1 };
    // A GPU that is time-sliced is not shared by MPS too.
    let time_slicing = PassedKind { kind: Kind::TimeSlicing, ..mps };
    assert_eq!(passed(&mut index, &kinds, Kind::Mig, offer), [mps, time_slicing]);
    assert_eq!(passed(&mut index, &kinds, Kind::TimeSlicing, offer), [mps]);
    assert_eq!(passed(&mut index, &kinds, Kind::Mps, offer), []);
    let tolerated = [serde_json::from_value(json!({"operator": "Exists"})).unwrap()];
    let tolerant = Offer { tolerated: &tolerated, ..offer };
    assert_eq!(
        passed(&mut index, &kinds[..2], Kind::TimeSlicing, tolerant),
        [PassedKind { tainted: 0, ..mps }]
    );
    let nominated = Offer { is_complete: false, nodes: &["mig"], ..offer };
    let alone = PassedKind { full: 0, excluded: 0, tainted: 0, ..mps };
    assert_eq!(passed(&mut index, &[Kind::Mps, Kind::Mig], Kind::Mig, nominated), [alone]);
}

/// Cached counts of a node are dropped when the node changes.
#[test]
fn a_node_that_changes_is_counted_anew() {
    let mut index = index();
    let offer = Offer { nodes: &["mig", "full"], is_complete: true, tolerated: &[] };
    let full = |index: &mut Scene| passed(index, &[Kind::Mps, Kind::Mig], Kind::Mig, offer)[0].full;
    assert_eq!(full(&mut index), 1);
    index.pod_gone(&uid("share"));
    assert_eq!(full(&mut index), 0);
    let share = of_kinds("again", &[Kind::Mps]);
    index.reserve(&share.uid, &PodKey::new("default", "again"), &"free".into(), share.ask.ok()).unwrap();
    assert_eq!(full(&mut index), 1);
}
