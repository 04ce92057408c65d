use super::*;
use kerf_core::testing::node_status;
use kerf_core::units::SizeGb;
use serde_json::{Value, json};

fn node(name: &str, status: Value) -> GpuNode {
    GpuNode { status: Some(status), ..GpuNode::new(&NodeName::new(name)) }
}

fn good(name: &str, models: &[&str]) -> GpuNode {
    node(name, json!(node_status(models)))
}

fn listed(nodes: impl IntoIterator<Item = GpuNode>) -> GpuIndex {
    let mut index = GpuIndex::default();
    assert!(!index.take(Event::Init));
    for node in nodes {
        assert!(!index.take(Event::InitApply(node)));
    }
    assert!(index.take(Event::InitDone));
    index
}

#[test]
fn an_empty_cluster_is_known_to_be_empty() {
    assert!(listed([]).supply().is_empty());
}

#[test]
fn one_unreadable_status_stops_nothing() {
    let mut index = listed([node("bad", json!({"gpus": "many"})), good("h100", &["H100-80GB"])]);
    assert_eq!(index.supply().largest(Kind::Mig), Some(SizeGb(80)));
    assert_eq!(index.unreadable.len(), 1);
    assert!(index.take(Event::Apply(good("bad", &["T4-16GB"]))));
    assert!(index.supply().largest(Kind::Mps).is_some());
    assert!(index.unreadable.is_empty());
    assert!(index.take(Event::Apply(node("bad", json!([])))));
    assert_eq!(index.supply().largest(Kind::Mps), None);
}

#[test]
fn a_status_that_changes_elsewhere_is_no_other_supply() {
    let mut index = listed([good("h100", &["H100-80GB"])]);
    let mut status = node_status(&["H100-80GB"]);
    status.observed_revision = 7;
    assert!(!index.take(Event::Apply(node("h100", json!(status)))));
    assert!(!index.take(Event::Delete(good("other", &[]))));
    assert!(index.take(Event::Delete(good("h100", &[]))));
    assert!(index.supply().is_empty());
}

#[test]
fn a_new_list_forgets_what_is_gone() {
    let mut index = listed([good("h100", &["H100-80GB"]), good("t4", &["T4-16GB"])]);
    index.take(Event::Init);
    index.take(Event::InitApply(good("t4", &["T4-16GB"])));
    assert_eq!(index.supply().largest(Kind::Mig), Some(SizeGb(80)), "a list counts when it is complete");
    assert!(index.take(Event::InitDone));
    assert_eq!(index.supply().largest(Kind::Mig), None);
}

#[tokio::test]
async fn nothing_is_known_until_the_first_list() {
    let (publisher, mut supply) = channel();
    assert!(supply.current().is_empty());
    publisher.send_replace(Some(Arc::new(listed([good("t4", &["T4-16GB"])]).supply())));
    supply.known().await.unwrap();
    assert!(!supply.current().is_empty());
    let (publisher, mut orphan) = channel();
    drop(publisher);
    assert!(orphan.known().await.is_err());
}
