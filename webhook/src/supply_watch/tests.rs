use super::*;
use kerf_core::contract::GpuNodeSpec;
use kerf_core::ledger;
use kerf_core::names::NodeName;
use kerf_core::packing::Fleet;
use kerf_core::request::GpuSelection;
use kerf_core::testing::node_status;
use kerf_core::testing::{promisee, request};
use kerf_core::units::SizeGb;
use kube::runtime::watcher::Event;
use serde_json::{Value, json};
use std::collections::BTreeMap;

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
    index
}

#[test]
fn an_empty_cluster_is_known_to_be_empty() {
    assert!(listed([]).nodes.supply().is_empty());
}

#[test]
fn one_unreadable_status_stops_nothing() {
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
fn a_status_that_changes_elsewhere_is_no_other_supply() {
    let mut index = listed([good("h100", &["H100-80GB"])]);
    let mut status = node_status(&["H100-80GB"]);
    status.observed_revision = 7;
    assert!(!index.take(Event::Apply(node("h100", json!(status)))));
    assert!(!index.take(Event::Delete(good("other", &[]))));
    assert!(index.take(Event::Delete(good("h100", &[]))));
    assert!(index.nodes.supply().is_empty());
}

#[test]
fn a_new_list_forgets_what_is_gone() {
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
async fn nothing_is_known_until_the_first_list() {
    let (publisher, mut supply) = channel("me");
    assert!(supply.current(Instant::now()).supply.is_empty());
    publisher.supply(listed([good("t4", &["T4-16GB"])]).nodes.supply(), Revisions::new());
    supply.known().await.unwrap();
    assert!(!supply.current(Instant::now()).supply.is_empty());
    let (publisher, mut orphan) = channel("me");
    drop(publisher);
    assert!(orphan.known().await.is_err());
}

fn room(supply: &Supply, name: &str) -> (u32, u32) {
    let room = supply.room(name.parse().unwrap(), SizeGb(10), &GpuSelection::default());
    (room.room, room.pending)
}

#[test]
fn what_is_promised_leaves_less_room_and_what_is_not_served_none() {
    let status = node_status(&["H100-80GB"]);
    let ask = request("nvidia.com/mig-1g.10gb", 2);
    let spec =
        ledger::reserve(&GpuNodeSpec::default(), &status, &ask, &promisee("p"), &Fleet::default()).unwrap();
    let cut = GpuNode { spec: Some(json!(spec)), ..good("h100", &["H100-80GB"]) };
    let mut index = listed([cut.clone()]);
    assert_eq!(room(&index.nodes.supply(), "nvidia.com/mig-1g.10gb").0, 5);
    let unreadable = GpuNode { spec: Some(json!({"slices": "many"})), ..cut.clone() };
    let away = GpuNode { status: Some(json!({"conditions": [], "gpus": status.gpus})), ..cut.clone() };
    for closed in [unreadable, away] {
        assert!(index.take(Event::Apply(closed)));
        assert_eq!(room(&index.nodes.supply(), "nvidia.com/mig-1g.10gb").0, 0);
        assert_eq!(index.nodes.supply().largest(Kind::Mig), Some(SizeGb(80)));
        assert!(index.take(Event::Apply(cut.clone())));
    }
}

#[test]
fn who_was_admitted_a_moment_ago_waits_for_a_slice_too() {
    let (publisher, supply) = channel("me");
    publisher.supply(listed([good("h100", &["H100-80GB"])]).nodes.supply(), Revisions::new());
    let (now, ask) = (Instant::now(), request("nvidia.com/mig-1g.10gb", 2));
    let (first, second) = (supply.current(now), supply.current(now));
    assert!(supply.admit(&ask, &first, now));
    assert!(!supply.admit(&ask, &second, now), "it was decided without the first");
    let second = supply.current(now);
    assert_eq!(room(&second.supply, "nvidia.com/mig-1g.10gb"), (7, 2));
    assert!(supply.admit(&ask, &second, now));
    let name = "nvidia.com/mig-1g.10gb".parse().unwrap();
    publisher.demand(Some(Demand { pending: [(name, 1)].into(), ..Demand::of(1) }));
    assert_eq!(room(&supply.current(now).supply, "nvidia.com/mig-1g.10gb"), (7, 5));
}

#[test]
fn what_other_replicas_may_have_admitted_is_left_out_of_the_guess_alone() {
    let (publisher, supply) = channel("me");
    publisher.supply(listed([good("h100", &["H100-80GB"])]).nodes.supply(), Revisions::new());
    let (now, ask) = (Instant::now(), request("nvidia.com/mig-1g.10gb", 2));
    assert!(supply.admit(&ask, &supply.current(now), now));
    assert!(supply.current(now).guess.is_none(), "without an extender there is nothing to share by");
    let arrived = ["me", "other"].map(|replica| (replica.to_owned(), BTreeMap::new())).into();
    publisher.demand(Some(Demand { arrived, ..Demand::of(1) }));
    let seen = supply.current(now);
    assert_eq!(room(&seen.supply, "nvidia.com/mig-1g.10gb"), (7, 2));
    assert_eq!(room(&seen.by_guess(&ask.slices()).unwrap(), "nvidia.com/mig-1g.10gb"), (7, 4));
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
    let room = |index: &Index| {
        let asked = kerf_core::policy::Asked::of(SizeGb(6));
        let supply = index.supply().unwrap();
        let name = supply.fixed(Kind::TimeSlicing, &asked, 1, &GpuSelection::default());
        name.first().map_or(0, |name| supply.fixed_room(*name, &asked, &GpuSelection::default()))
    };
    assert_eq!(room(&index), 8, "who cannot be read is managed all the same");
    assert!(!index.take_node(Event::Apply(machine("static"))), "nothing changed");
    assert!(index.take(Event::Delete(good("both", &[]))));
    assert_eq!(room(&index), 16, "a managed node became a static one");
    assert!(index.take(Event::Apply(good("static", &["T4-16GB"]))));
    assert_eq!(room(&index), 8, "and the other way round");
    index.take_node(Event::Init);
    index.take_node(Event::InitDone);
    assert_eq!(room(&index), 0);
}

#[test]
fn what_is_cordoned_or_lost_is_no_room_whoever_serves_it() {
    let shut = |name: &str, node: Machine| Machine {
        spec: serde_json::from_value(json!({"unschedulable": true})).unwrap(),
        metadata: kube::api::ObjectMeta { name: Some(name.to_owned()), ..node.metadata.clone() },
        ..node
    };
    let mut index = listed([good("h100", &["H100-80GB"])]);
    index.take_node(Event::Init);
    index.take_node(Event::InitApply(shut("h100", Machine::default())));
    index.take_node(Event::InitApply(machine("static")));
    index.take_node(Event::InitDone);
    let asked = kerf_core::policy::Asked::of(SizeGb(6));
    let rooms = |index: &Index| {
        let supply = index.supply().unwrap();
        let name = supply.fixed(Kind::TimeSlicing, &asked, 1, &GpuSelection::default())[0];
        let fixed = supply.fixed_room(name, &asked, &GpuSelection::default());
        (room(&supply, "nvidia.com/mig-1g.10gb").0, fixed)
    };
    assert_eq!(rooms(&index), (0, 8));
    assert!(index.take_node(Event::Apply(shut("static", machine("static")))));
    assert_eq!(rooms(&index), (0, 0), "its names are known all the same");
    assert!(index.take_node(Event::Apply(machine("static"))));
    assert!(index.take_node(Event::Delete(shut("h100", Machine::default()))));
    assert_eq!(rooms(&index), (7, 8));
    index.take_node(Event::Apply(shut("h100", Machine::default())));
    index.take_node(Event::Init);
    index.take_node(Event::InitApply(machine("static")));
    index.take_node(Event::InitDone);
    assert_eq!(rooms(&index), (7, 8), "who is not listed any more");
}

#[test]
fn where_nodes_cannot_be_watched_managed_ones_are_served() {
    let mut index = listed([good("h100", &["H100-80GB"])]);
    assert!(index.nodes_unknown() && !index.nodes_unknown());
    assert!(index.supply().is_some());
}

#[test]
fn a_pod_is_chosen_for_by_the_labels_of_the_nodes() {
    let mut index = listed([good("h100", &["H100-80GB"]), good("t4", &["T4-16GB"])]);
    let labelled = |name: &str, pool: &str| -> Machine {
        serde_json::from_value(json!({"metadata": {"name": name, "labels": {"pool": pool}}})).unwrap()
    };
    index.take_node(Event::Init);
    index.take_node(Event::InitApply(labelled("h100", "a")));
    index.take_node(Event::InitApply(labelled("t4", "b")));
    assert!(index.take_node(Event::InitDone));
    let spec = serde_json::from_value(json!({"nodeSelector": {"pool": "b"}})).unwrap();
    let nodes = kerf_core::request::NodeSelection::of(&spec);
    let has_mig = |index: &Index| index.supply().unwrap().selected(&nodes).largest(Kind::Mig).is_some();
    assert!(!has_mig(&index));
    assert!(!index.take_node(Event::Apply(labelled("h100", "a"))), "nothing changed");
    assert!(index.take_node(Event::Apply(labelled("h100", "b"))));
    assert!(has_mig(&index));
    assert!(index.take_node(Event::Apply(labelled("h100", "a"))) && !has_mig(&index));
    assert!(
        index.take_node(Event::Delete(labelled("h100", "a"))) && has_mig(&index),
        "it is not known any more"
    );
}
