use super::*;
use kerf_core::contract::GpuNodeSpec;
use kerf_core::ledger;
use kerf_core::names::NodeName;
use kerf_core::packing::Fleet;
use kerf_core::testing::node_status;
use kerf_core::testing::{owner_in_epoch, request};
use kerf_core::units::SizeGb;
use kube::runtime::watcher::Event;
use serde_json::{Value, json};

fn node(name: &str, status: Value) -> GpuNode {
    GpuNode { status: Some(status), ..GpuNode::new(&NodeName::new(name)) }
}

fn good(name: &str, models: &[&str]) -> GpuNode {
    node(name, json!(node_status(models)))
}

fn listed(nodes: impl IntoIterator<Item = GpuNode>) -> Index {
    let mut index = Index::default();
    assert!(!index.take(Event::Init));
    for node in nodes {
        assert!(!index.take(Event::InitApply(node)));
    }
    assert!(index.take(Event::InitDone));
    assert!(index.classes_unknown());
    index
}

#[test]
fn an_empty_cluster_is_known_to_be_empty() {
    assert!(listed([]).nodes.supply().is_empty());
}

#[test]
fn an_unreadable_status_does_not_stop_the_watch() {
    let mut index = listed([node("bad", json!({"gpus": "many"})), good("h100", &["H100-80GB"])]);
    assert_eq!(index.nodes.supply().largest(Kind::Mig), Some(SizeGb(80)));
    assert_eq!(index.unreadable.len(), 1);
    assert!(index.take(Event::Apply(good("bad", &["T4-16GB"]))));
    assert!(index.nodes.supply().largest(Kind::Mps).is_some());
    assert!(index.unreadable.is_empty());
    assert!(index.take(Event::Apply(node("bad", json!([])))));
    assert_eq!(index.nodes.supply().largest(Kind::Mps), None);
}

#[test]
fn an_unrelated_change_of_a_status_leaves_the_supply_equal() {
    let mut index = listed([good("h100", &["H100-80GB"])]);
    let mut status = node_status(&["H100-80GB"]);
    status.summary.held = 7;
    assert!(!index.take(Event::Apply(node("h100", json!(status)))));
    assert!(!index.take(Event::Delete(good("other", &[]))));
    assert!(index.take(Event::Delete(good("h100", &[]))));
    assert!(index.nodes.supply().is_empty());
}

#[test]
fn a_new_list_removes_missing_nodes() {
    let mut index = listed([good("h100", &["H100-80GB"]), good("t4", &["T4-16GB"])]);
    index.take(Event::Init);
    index.take(Event::InitApply(good("t4", &["T4-16GB"])));
    assert_eq!(
        index.nodes.supply().largest(Kind::Mig),
        Some(SizeGb(80)),
        "a list counts when it is complete"
    );
    assert!(index.take(Event::InitDone));
    assert_eq!(index.nodes.supply().largest(Kind::Mig), None);
}

#[tokio::test]
async fn the_supply_is_unknown_until_the_first_list() {
    let (publisher, mut supply) = channel();
    assert!(supply.current().is_empty());
    publisher.supply(listed([good("t4", &["T4-16GB"])]).nodes.supply());
    supply.known().await.unwrap();
    assert!(!supply.current().is_empty());
    let (publisher, mut orphan) = channel();
    drop(publisher);
    assert!(orphan.known().await.is_err());
}

#[test]
fn reservations_and_unserved_slices_leave_the_supply_equal() {
    let status = node_status(&["H100-80GB"]);
    let ask = request("nvidia.com/mig-1g.10gb", 2);
    let spec =
        ledger::reserve(&GpuNodeSpec::default(), &status, &ask, &owner_in_epoch("p"), &Fleet::default())
            .unwrap();
    let mut index = listed([good("h100", &["H100-80GB"])]);
    let cut = GpuNode { spec: Some(json!(spec)), ..good("h100", &["H100-80GB"]) };
    let unreadable = GpuNode { spec: Some(json!({"slices": "many"})), ..cut.clone() };
    let away = GpuNode { status: Some(json!({"conditions": [], "gpus": status.gpus})), ..cut.clone() };
    for node in [cut, unreadable, away] {
        assert!(!index.take(Event::Apply(node)));
        assert_eq!(index.nodes.supply().largest(Kind::Mig), Some(SizeGb(80)));
    }
}

/// A `DeviceClass` that maps this name, or none.
fn class(class: &str, name: Option<&str>) -> DynamicObject {
    let class = json!({"metadata": {"name": class}, "spec": {"extendedResourceName": name}});
    serde_json::from_value(class).unwrap()
}

#[test]
fn a_device_class_counts_while_it_maps_a_name() {
    let mut index = Index::default();
    for event in [Event::Init, Event::InitDone] {
        index.take(event);
    }
    index.nodes_unknown();
    assert!(index.supply().is_none(), "the classes are not known yet");
    assert!(!index.take_class(Event::Init));
    for name in [Some("nvidia.com/gpu"), None] {
        assert!(!index.take_class(Event::InitApply(class(name.unwrap_or("plain"), name))));
    }
    assert!(index.take_class(Event::InitDone));
    let mapping = |index: &Index| {
        let name = "nvidia.com/gpu".parse().unwrap();
        index.supply().unwrap().mapping(name).map(str::to_owned)
    };
    assert_eq!(mapping(&index).as_deref(), Some("nvidia.com/gpu"));
    assert!(
        !index.take_class(Event::Apply(class("nvidia.com/gpu", Some("nvidia.com/gpu")))),
        "nothing changed"
    );
    assert!(index.take_class(Event::Apply(class("a", Some("nvidia.com/gpu")))));
    assert_eq!(mapping(&index).as_deref(), Some("a"), "of several the first is named");
    assert!(index.take_class(Event::Delete(class("a", Some("nvidia.com/gpu")))));
    assert!(index.take_class(Event::Apply(class("nvidia.com/gpu", None))));
    assert_eq!(mapping(&index), None);
    assert!(!index.take_class(Event::Delete(class("plain", None))));
    assert!(!index.classes_unknown(), "they were known");
}

#[test]
fn a_cluster_without_device_classes_has_no_mapped_names() {
    let refused = |code| {
        let status = kube::core::Status { code, ..kube::core::Status::default() };
        watcher::Error::InitialListFailed(kube::Error::Api(status.boxed()))
    };
    assert!(is_missing(&refused(404)) && !is_missing(&refused(403)));
}

/// A Node with two time-sliced GPUs of NVIDIA's device plugin.
fn machine(name: &str) -> Machine {
    let labels = json!({
        "nvidia.com/gpu.product": "NVIDIA-A10G-SHARED", "nvidia.com/gpu.memory": "23028", "nvidia.com/gpu.count": "2",
        "nvidia.com/gpu.replicas": "4", "nvidia.com/gpu.sharing-strategy": "time-slicing",
    });
    let all = json!({"nvidia.com/gpu": "8"});
    let node = json!({"metadata": {"name": name, "labels": labels}, "status": {"capacity": all, "allocatable": all}});
    serde_json::from_value(node).unwrap()
}

#[test]
fn nodes_of_nvidias_device_plugin_are_supply_unless_they_have_a_gpu_node() {
    let mut index = listed([node("both", json!([]))]);
    assert!(index.supply().is_none(), "the Nodes are not known yet");
    assert!(!index.take_node(Event::Init));
    for name in ["both", "static"] {
        assert!(!index.take_node(Event::InitApply(machine(name))));
    }
    assert!(index.take_node(Event::InitDone));
    let has_static = |index: &Index| index.supply().unwrap().has_static();
    assert!(has_static(&index));
    assert!(!index.take_node(Event::Apply(machine("static"))), "nothing changed");
    assert!(index.take(Event::Apply(good("static", &["T4-16GB"]))));
    assert!(!has_static(&index), "who cannot be read is managed all the same");
    assert!(index.take(Event::Delete(good("both", &[]))));
    assert!(has_static(&index), "a managed node became a static one");
    index.take_node(Event::Init);
    index.take_node(Event::InitDone);
    assert!(!has_static(&index));
}

#[test]
fn managed_nodes_are_supply_where_nodes_cannot_be_watched() {
    let mut index = listed([good("h100", &["H100-80GB"])]);
    assert!(index.nodes_unknown() && !index.nodes_unknown());
    assert!(index.supply().is_some());
}
