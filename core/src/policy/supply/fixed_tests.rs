//! What static nodes add to the supply.

use super::*;
use crate::contract::{ContainerRequest, RequestDocument};
use crate::testing::{node_status, request, request_sized, static_node};

const NAME: &str = "nvidia.com/mig-1g.10gb";

fn name() -> ResourceName {
    NAME.parse().unwrap()
}

fn all() -> GpuSelection {
    GpuSelection::default()
}

/// A static node with `count` GPU instances of 10 GB.
fn instances(memory: u64, count: u32) -> StaticNode {
    let memory = memory.to_string();
    let labels = [
        ("gpu.product", "NVIDIA-A100-SXM4-80GB"),
        ("gpu.memory", "81920"),
        ("mig-1g.10gb.count", "4"),
        ("mig-1g.10gb.memory", &memory),
        ("mig-1g.10gb.replicas", "1"),
    ];
    let mut node = static_node(&labels, &[("mig-1g.10gb", 4)]);
    node.offers[0].count = count;
    node
}

/// A static node that offers whole T4s, or that many time slices of each.
fn t4(turns: &str) -> StaticNode {
    let labels = [
        ("gpu.product", "Tesla-T4"),
        ("gpu.memory", "15360"),
        ("gpu.count", "1"),
        ("gpu.replicas", turns),
        ("gpu.sharing-strategy", if turns == "1" { "none" } else { "time-slicing" }),
    ];
    let name = if turns == "1" { "gpu" } else { "gpu.shared" };
    static_node(&labels, &[(name, turns.parse().unwrap())])
}

/// The supply of these static nodes beside managed nodes of these models.
fn supply(models: &[&str], statics: Vec<StaticNode>) -> Supply {
    let mut index = SupplyIndex::default();
    if !models.is_empty() {
        index.show("managed".into(), &GpuNodeSpec::default(), &node_status(models));
    }
    for (number, node) in statics.into_iter().enumerate() {
        index.show_static(NodeName::new(format!("static-{number}")), Some(node));
    }
    index.supply()
}

#[test]
fn a_supply_is_empty_only_if_nothing_serves_anything() {
    for (models, statics, is_empty, is_static) in [
        (vec![], vec![], true, false),
        (vec!["T4-16GB"], vec![], false, false),
        (vec![], vec![t4("1")], false, true),
        (vec!["T4-16GB"], vec![t4("1")], false, false),
    ] {
        let supply = supply(&models, statics);
        assert_eq!((supply.is_empty(), supply.is_static()), (is_empty, is_static), "{models:?}");
    }
    let mut status = node_status(&["T4-16GB", "L4-24GB"]);
    status.gpus[0].kinds.clear();
    assert!(!Supply::from_statuses([&status]).is_empty(), "one GPU serves");
    assert_eq!(Supply::from_statuses([&status]).largest_gpu(), Some(SizeGb(23)));
    status.gpus[1].kinds.clear();
    let idle = Supply::from_statuses([&status]);
    assert!(idle.is_empty() && !idle.is_static() && !idle.has_neutral_names());
    assert_eq!(idle.largest_gpu(), None);
    status.gpus.clear();
    assert!(
        Supply::from_statuses([&status]).has_neutral_names(),
        "a node without GPUs says nothing about names"
    );
}

#[test]
fn a_static_node_has_enough_devices_or_none_at_present() {
    let asked = Asked::for_size(SizeGb(10));
    for (there, count, holds) in [(4, 4, true), (4, 5, false), (0, 1, true), (0, 9, true), (1, 2, false)] {
        let supply = supply(&[], vec![instances(9728, there)]);
        assert_eq!(supply.holds_fixed(name(), &asked, count, &all()), holds, "{count} of {there}");
    }
    let two = supply(&[], vec![instances(9728, 1), instances(9728, 4)]);
    assert!(two.holds_fixed(name(), &asked, 2, &all()), "one of two nodes has them");
}

#[test]
fn one_static_node_that_serves_the_pod_is_enough() {
    let two = request(NAME, 2);
    let holds = |counts: [u32; 2]| {
        supply(&[], counts.map(|count| instances(9728, count)).into()).holds_statically(&two)
    };
    assert!(holds([1, 2]) && !holds([1, 1]), "all slices are of one node");
    let serves = |statics| supply(&[], statics).serves_statically(&two);
    assert!(serves(vec![t4("1"), instances(9728, 0)]) && !serves(vec![t4("1")]));
}

#[test]
fn the_least_memory_under_a_name_is_that_of_any_node() {
    let ResourceName::Mig(profile) = name() else { panic!("a profile") };
    let managed = node_status(&["H100-80GB"]).gpus[0].profiles.entry(profile).unwrap().memory.0;
    for (models, statics, least) in [
        (vec![], vec![], None),
        (vec!["H100-80GB"], vec![], Some(managed)),
        (vec!["A100-80GB", "H100-80GB"], vec![], Some(9728)),
        (vec![], vec![9984, 9728], Some(9728)),
        (vec!["H100-80GB"], vec![managed - 1], Some(managed - 1)),
        (vec!["H100-80GB"], vec![managed + 1], Some(managed)),
    ] {
        let supply = supply(&models, statics.iter().map(|memory| instances(*memory, 4)).collect());
        assert_eq!(supply.memory_of(profile, &all()), least.map(MemoryMib), "{models:?} {statics:?}");
    }
    let both = supply(&[], vec![instances(9984, 4), instances(9728, 4)]);
    let least = |memory| {
        let asked = Asked { memory: Some(MemoryMib(memory)), ..Asked::for_size(SizeGb(10)) };
        both.fixed_least(name(), &asked, &all()).and_then(|offer| offer.memory)
    };
    assert_eq!([9728, 9729, 9985].map(least), [Some(MemoryMib(9728)), Some(MemoryMib(9984)), None]);
}

#[test]
fn the_largest_offer_under_a_name_is_within_the_limit() {
    let supply = supply(&[], vec![t4("4"), t4("2")]);
    let largest = |most| supply.fixed_largest(ResourceName::Replica, SizeGb(most), &all());
    let gb = |size| Some(SizeGb(size));
    assert_eq!([3, 4, 7, 8, 80].map(largest), [None, gb(4), gb(4), gb(8), gb(8)]);
    assert_eq!(supply.at_most(ResourceName::Replica, &all()), gb(8));
    assert_eq!(supply.at_most(ResourceName::Whole, &all()), None);
    assert_eq!(supply.largest(Kind::TimeSlicing), gb(8));
    assert_eq!((supply.largest(Kind::Whole), supply.largest_gpu()), (None, gb(15)));
}

#[test]
fn a_whole_gpu_of_a_static_node_counts() {
    let (whole, shared) = (supply(&[], vec![t4("1")]), supply(&[], vec![t4("2")]));
    let has = |supply: &Supply, gb| supply.has_whole(&Asked::for_size(SizeGb(gb)), &all());
    assert!(has(&whole, 15) && !has(&whole, 16) && !has(&shared, 7));
    assert!(has(&supply(&["T4-16GB"], vec![]), 15), "as of a managed one");
}

#[test]
fn a_node_without_user_namespaces_keeps_pods_from_them_that_it_may_serve() {
    let mut index = SupplyIndex::default();
    index.show("managed".into(), &GpuNodeSpec::default(), &node_status(&["T4-16GB"]));
    index.show_static("static".into(), Some(t4("1")));
    index.show_user_namespaces(&"static".into(), false);
    let without = |index: &SupplyIndex, document: &RequestDocument| {
        index.supply().without_user_namespaces(document).map(ToString::to_string)
    };
    let whole = RequestDocument { static_nodes: true, ..request_whole() };
    assert_eq!(without(&index, &whole), None, "the managed node has them");
    index.show_user_namespaces(&"managed".into(), false);
    assert_eq!(without(&index, &whole).as_deref(), Some("managed"));
    index.show_user_namespaces(&"static".into(), true);
    assert_eq!(without(&index, &whole), None, "the static node has them");
    let elsewhere = RequestDocument { static_nodes: false, ..whole.clone() };
    assert_eq!(without(&index, &elsewhere).as_deref(), Some("managed"), "it may not be on the static one");
    let profile = RequestDocument { static_nodes: true, ..request(NAME, 1) };
    assert_eq!(without(&index, &profile), None, "none of them serves it");
}

#[test]
fn a_node_counts_if_one_gpu_may_serve_one_container_by_one_of_its_kinds() {
    let mut index = SupplyIndex::default();
    let mut status = node_status(&["T4-16GB", "L4-24GB"]);
    status.gpus[1].kinds = vec![Kind::Whole];
    index.show("t4".into(), &GpuNodeSpec::default(), &status);
    let mut mixed = t4("1");
    mixed.offers.extend(instances(9728, 4).offers);
    index.show_static("mixed".into(), Some(mixed));
    let without = |index: &SupplyIndex, containers: &[&ContainerRequest]| {
        let containers = containers.iter().copied().cloned().collect();
        let document = RequestDocument { containers, static_nodes: true, ..request_whole() };
        index.supply().without_user_namespaces(&document).map(ToString::to_string)
    };
    let (gb, instance) = (SizeGb(4), ContainerRequest::for_slice(name(), SizeGb(10)));
    let share = ContainerRequest::for_slice(ResourceName::Mps(gb), gb);
    let open = ContainerRequest {
        kinds: vec![Kind::Mps],
        ..ContainerRequest::for_slice(ResourceName::Neutral(gb), gb)
    };
    index.show_user_namespaces(&"t4".into(), false);
    assert_eq!(without(&index, &[&share, &instance]), None, "the static node has them");
    assert_eq!(without(&index, &[&open, &instance]).as_deref(), Some("t4"), "one name is neutral");
    index.show_user_namespaces(&"mixed".into(), false);
    assert_eq!(without(&index, &[&instance]).as_deref(), Some("mixed"), "it serves other kinds too");
    index.show_static("mixed".into(), None);
    assert_eq!(without(&index, &[&share, &instance]).as_deref(), Some("t4"), "it serves one of two");
}

fn request_whole() -> RequestDocument {
    request_sized(ResourceName::Whole, SizeGb(15), 1)
}

#[test]
fn time_slices_of_static_nodes_must_exist_at_present() {
    let turn = request_sized(ResourceName::Replica, SizeGb(7), 1);
    let may = |statics, document: &RequestDocument| supply(&[], statics).may_serve_statically(document);
    let containers = [request_whole().containers, turn.containers.clone()].concat();
    assert!(!may(vec![], &RequestDocument { containers, ..request_whole() }), "one container needs them");
    assert!(may(vec![t4("2")], &turn) && !may(vec![t4("1")], &turn) && !may(vec![], &turn));
    assert!(may(vec![], &request_whole()), "a node may come later");
}
