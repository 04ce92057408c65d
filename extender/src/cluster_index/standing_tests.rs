use super::super::tests::{gpu_node, index, reserve, write};
use super::*;
use kerf_core::contract::GpuNodeSpec;
use kerf_core::testing::node_status;
use std::time::{Duration, Instant};

fn managed() -> BTreeMap<String, String> {
    [(kerf_core::keys::MANAGED.to_owned(), "true".to_owned())].into()
}

fn unserved(index: &ClusterIndex) -> Vec<(&str, Unserved)> {
    let mut unserved: Vec<_> = index.unserved().into_iter().map(|(name, why)| (name.as_str(), why)).collect();
    unserved.sort_unstable();
    unserved
}

#[test]
fn a_managed_node_without_an_agent_is_found_by_its_labels() {
    let mut index = index();
    assert_eq!((unserved(&index), index.managed_nodes()), (vec![], 1));
    index.show_labels("n".into(), Some(managed()));
    index.show_labels("new".into(), Some(managed()));
    index.show_labels("plain".into(), Some(BTreeMap::new()));
    assert_eq!((unserved(&index), index.managed_nodes()), (vec![("new", Unserved::NoAgent)], 2));
    index.show_shut("new".into(), true);
    assert_eq!(unserved(&index), [], "it is cordoned, or lost");
    index.show_shut("new".into(), false);
    index.show_labels("new".into(), None);
    assert_eq!(unserved(&index), []);
}

#[test]
fn an_agent_that_is_not_ready_or_does_not_follow_serves_nobody() {
    let mut index = index();
    let mut status = node_status(&["H100-80GB"]);
    reserve(&mut index, "a");
    let spec = write(&mut index).unwrap();
    index.show_node(&gpu_node(&spec, &status));
    let now = Instant::now();
    index.expire(now);
    assert_eq!(unserved(&index), []);
    index.expire(now + Duration::from_mins(1));
    assert_eq!(unserved(&index), [("n", Unserved::Silent)]);
    status.conditions[0].status = ConditionStatus::False;
    index.show_node(&gpu_node(&GpuNodeSpec::default(), &status));
    assert_eq!(unserved(&index), [("n", Unserved::NotReady)]);
    let counts = index.condition_counts();
    assert_eq!((counts[&("Ready", "False")], counts[&("Ready", "True")]), (1, 0));
    let mut unreadable = gpu_node(&GpuNodeSpec::default(), &status);
    unreadable.status = Some(serde_json::json!("?"));
    index.show_node(&unreadable);
    assert_eq!(unserved(&index), [("n", Unserved::Unreadable)]);
    assert_eq!(index.condition_counts()[&("Uncontested", "Unknown")], 1);
}
