use super::super::tests::index;
use super::*;
use crate::cluster_index::ClusterIndex;
use kerf_core::testing::node_status;

fn managed() -> BTreeMap<String, String> {
    [(kerf_core::keys::MANAGED.to_owned(), "true".to_owned())].into()
}

fn unserved(index: &ClusterIndex) -> Vec<(&str, Unserved)> {
    let mut unserved: Vec<_> =
        index.statistics().unserved().into_iter().map(|(name, why)| (name.as_str(), why)).collect();
    unserved.sort_unstable();
    unserved
}

#[test]
fn a_managed_node_without_an_agent_is_found_by_its_labels() {
    let mut index = index();
    assert_eq!((unserved(&index), index.statistics().managed_nodes()), (vec![], 1));
    index.nodes().objects().set_labels("n".into(), Some(managed()));
    index.nodes().objects().set_labels("new".into(), Some(managed()));
    index.nodes().objects().set_labels("plain".into(), Some(BTreeMap::new()));
    assert_eq!((unserved(&index), index.statistics().managed_nodes()), (vec![("new", Unserved::NoAgent)], 2));
    index.nodes().objects().set_closed("new".into(), true);
    assert_eq!(unserved(&index), [], "it is cordoned, or lost");
    index.nodes().objects().set_closed("new".into(), false);
    index.nodes().objects().set_labels("new".into(), None);
    assert_eq!(unserved(&index), []);
}

#[test]
fn a_node_whose_agent_is_not_ready_or_not_connected_is_unserved() {
    let mut index = index();
    assert_eq!(unserved(&index), []);
    let mut status = node_status(&["H100-80GB"]);
    status.conditions[0].status = ConditionStatus::False;
    index.add("n", status);
    assert_eq!(unserved(&index), [("n", Unserved::NotReady)]);
    let counts = index.statistics().condition_counts();
    assert_eq!((counts[&("Ready", "False")], counts[&("Ready", "True")]), (1, 0));
    let connection = index.managed().connection_of(&"n".into()).unwrap();
    index.nodes().agents().report_unreadable(&"n".into(), connection);
    assert_eq!(unserved(&index), [("n", Unserved::Unreadable)]);
    assert_eq!(index.statistics().condition_counts()[&("Uncontested", "Unknown")], 1);
    index.disconnect("n");
    assert_eq!(unserved(&index), [("n", Unserved::NotConnected)]);
}
