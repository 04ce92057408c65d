use super::*;
use crate::plugin_nodes::{PluginNode, close_renamed, served, with_pods};
use kerf_core::contract::{GpuNodeSpec, GpuNodeStatus, RequestDocument};
use kerf_core::kind::Kind;
use kerf_core::names::NodeName;
use kerf_core::packing::{Refusal, Terms};
use kerf_core::testing::{choose_among, node_status, owner_in_epoch, request_sized};
use kerf_core::units::SizeGb;
use kerf_runtime::cluster_policy::seen;
use kerf_runtime::destinations::Destinations;
use kerf_runtime::machine::Machine;
use serde_json::{Value, json};
use std::collections::BTreeMap;

fn status(model: &str) -> GpuNodeStatus {
    GpuNodeStatus { neutral_up_to: Some(SizeGb(80)), ..node_status(&[model]) }
}

fn nodes() -> Nodes {
    let of = |name: &str, model| (NodeName::new(name), Ok((GpuNodeSpec::default(), status(model))));
    Nodes::new([of("h100", "H100-80GB"), of("l4-a", "L4-24GB"), of("l4-b", "L4-24GB")], Terms::default())
}

fn neutral(size: u32, kinds: &[Kind]) -> RequestDocument {
    let size = SizeGb(size);
    let mut request = request_sized(kerf_core::resource::ResourceName::Neutral(size), size, 1);
    request.containers[0].kinds = kinds.to_vec();
    request
}

fn machine(value: Value) -> Machine {
    serde_json::from_value(value).unwrap()
}

fn choice(nodes: &Nodes, request: &RequestDocument) -> Choice {
    Choice::new(nodes, &Destinations::default(), request)
}

#[test]
fn the_first_possible_kind_is_chosen_and_later_ones_are_outranked() {
    let nodes = nodes();
    let found = choice(&nodes, &neutral(10, &[Kind::Mig, Kind::Mps]));
    assert_eq!(found.best, Some("h100".into()));
    assert_eq!(found.outranked.keys().collect::<Vec<_>>(), [&NodeName::from("l4-a"), &"l4-b".into()]);
    assert!(found.passed.is_empty());
    let found = choice(&nodes, &neutral(10, &[Kind::Mps, Kind::Mig]));
    assert_eq!((found.best, found.equal.len()), (Some("l4-a".into()), 2));
}

/// The order must be that of core, because only core's function decides on the node.
#[test]
fn the_nodes_are_sorted_as_core_sorts_them() {
    let statuses = [("a", "L4-24GB"), ("b", "H100-80GB"), ("c", "T4-16GB")];
    let statuses = statuses.map(|(name, model)| (NodeName::new(name), status(model)));
    let read = statuses.iter().map(|(name, it)| (name.clone(), Ok((GpuNodeSpec::default(), it.clone()))));
    let nodes = Nodes::new(read, Terms::default());
    let inventories = statuses.iter().map(|(name, it)| {
        (name.clone(), kerf_core::inventory::NodeInventory::from_spec(&GpuNodeSpec::default(), it))
    });
    let inventories: Vec<_> = inventories.collect();
    let mut fleet = kerf_core::packing::Fleet::new(Terms::default());
    for gpu in inventories.iter().flat_map(|(_, inventory)| &inventory.gpus) {
        gpu.join(&mut fleet, None);
    }
    for size in [2, 10, 14, 22, 40, 141] {
        for kinds in [&[Kind::Mig, Kind::Mps][..], &[Kind::Mps, Kind::Mig], &[Kind::Whole, Kind::Mig]] {
            let request = neutral(size, kinds);
            let selection = choose_among(&request, inventories.iter().map(|(n, i)| (n, i)), &fleet);
            let found = choice(&nodes, &request);
            assert_eq!(found.best.as_ref(), selection.best.map(|(name, _)| name), "{size} {kinds:?}");
            let equal: Vec<_> = selection.equal.iter().map(|(name, _)| *name).collect();
            assert_eq!(found.equal.keys().collect::<Vec<_>>(), equal);
            assert_eq!(found.outranked.keys().collect::<Vec<_>>(), selection.outranked);
            let refused: Vec<_> =
                selection.refused.into_iter().map(|(name, it)| (name.clone(), it)).collect();
            assert_eq!(found.refused, refused);
        }
    }
}

#[test]
fn nodes_with_unfit_taints_or_labels_are_left_out_and_named() {
    let gpu = json!({"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"});
    let spot = json!({"key": "spot", "effect": "PreferNoSchedule"});
    let nodes = nodes().with_machines([
        machine(json!({"metadata": {"name": "h100"}, "spec": {"taints": [spot, gpu]}})),
        machine(json!({"metadata": {"name": "l4-a", "labels": {"pool": "b"}}})),
        machine(
            json!({"metadata": {"name": "l4-b", "labels": {"pool": "a"}}, "spec": {"unschedulable": true}}),
        ),
    ]);
    assert!(nodes.know_machines());
    let request = neutral(10, &[Kind::Mig, Kind::Mps]);
    let pod = |spec: Value| Destinations::of_pod(&json!({"spec": spec})).unwrap();
    let found = Choice::new(&nodes, &pod(json!({"nodeSelector": {"pool": "b"}})), &request);
    assert_eq!(found.best, Some("l4-a".into()));
    let lines = found.lines();
    assert_eq!(
        lines[1..],
        ["h100, l4-b: left out: the pod's node selector or affinity does not match its labels".to_owned()]
    );
    let found = Choice::new(&nodes, &Destinations::default(), &request);
    assert_eq!(
        found.passed.iter().map(ToString::to_string).collect::<Vec<_>>(),
        ["mig was preferred: 1 node with free capacity is excluded by taints, 1 node cannot serve it"]
    );
    let lines = found.lines().join("\n");
    for line in [
        "h100: left out: the pod does not tolerate its taint nvidia.com/gpu=present:NoSchedule",
        "l4-b: left out: the pod does not tolerate its taint node.kubernetes.io/unschedulable:NoSchedule",
    ] {
        assert!(lines.contains(line), "{lines}");
    }
    let tolerates = pod(json!({"tolerations": [{"operator": "Exists"}]}));
    assert_eq!(Choice::new(&nodes, &tolerates, &request).best, Some("h100".into()));
}

#[test]
fn the_next_pod_does_not_get_the_capacity_of_the_last_one() {
    let mut nodes = nodes();
    let request = neutral(10, &[Kind::Mig, Kind::Mps]);
    let mut kinds: Vec<Option<Kind>> = Vec::new();
    for number in 0..12 {
        let found = choice(&nodes, &request);
        kinds.push(found.plan.kinds().next().map(|(_, kind)| kind).filter(|_| found.best.is_some()));
        if number == 7 {
            assert_eq!(
                found.passed[0].to_string(),
                "mig was preferred: no free capacity on 1 node, 2 nodes cannot serve it"
            );
        }
        if let Some(name) = &found.best {
            nodes.take(name, &request, &found.plan, &owner_in_epoch(&format!("p{number}"))).unwrap();
        } else {
            assert_eq!(found.refusals(), "3 nodes: GPU slices in use");
        }
    }
    let of = |kind: Option<Kind>| kinds.iter().filter(|it| **it == kind).count();
    assert_eq!((of(Some(Kind::Mig)), of(Some(Kind::Mps)), of(None)), (7, 4, 1));
}

#[test]
fn a_node_that_cannot_be_used_says_why() {
    let read = [
        ("a", Err(Refusal::UnreadableSpec)),
        ("b", Ok((GpuNodeSpec::default(), GpuNodeStatus::default()))),
        ("c", Ok((GpuNodeSpec::default(), node_status(&["L4-24GB"])))),
    ];
    let nodes = Nodes::new(read.map(|(name, read)| (NodeName::new(name), read)), Terms::default());
    let found = choice(&nodes, &neutral(10, &[Kind::Mps]));
    let refusals = [Refusal::UnreadableSpec, Refusal::AgentNotReady, Refusal::NameNotRegistered];
    assert_eq!(found.refused.iter().map(|(_, refusal)| *refusal).collect::<Vec<_>>(), refusals);
    assert_eq!(
        choice(&Nodes::from_objects(&[]), &neutral(10, &[Kind::Mps])).refusals(),
        "the snapshot has no node with GPUs"
    );
}

#[test]
fn a_pod_in_a_user_namespace_needs_a_node_with_user_namespaces() {
    let nodes = nodes().with_machines([machine(json!({"metadata": {"name": "l4-a"}}))]);
    let request = RequestDocument { user_namespace: true, ..neutral(10, &[Kind::Mps]) };
    let found = choice(&nodes, &request);
    assert_eq!(found.best, Some("l4-b".into()), "its Node was not read, so it stays a candidate");
    assert!(found.refused.contains(&("l4-a".into(), Refusal::NoUserNamespaces)));
}

fn by_turns(size: u32) -> RequestDocument {
    let container = json!({"name": "main", "sizeGb": size, "count": 1, "resource": "nvidia.com/gpu", "kind": "time-slicing"});
    RequestDocument::parse(&json!({"version": 1, "isolation": "none", "containers": [container]}).to_string())
        .unwrap()
}

fn of_static(nodes: &BTreeMap<String, PluginNode>) -> Nodes {
    Nodes::from_objects(&[]).with_static(nodes)
}

fn beside(pods: u32) -> Nodes {
    let t4 = json!({
        "metadata": {"name": "t4", "labels": {
            "nvidia.com/gpu.product": "Tesla-T4-SHARED", "nvidia.com/gpu.memory": "15360", "nvidia.com/gpu.count": "1",
            "nvidia.com/gpu.replicas": "2", "nvidia.com/gpu.sharing-strategy": "time-slicing",
        }},
        "status": {"allocatable": {"nvidia.com/gpu": "2"}},
    });
    let pod = |number| {
        json!({
            "metadata": {"namespace": "ml", "name": format!("p{number}"), "uid": format!("u{number}")},
            "spec": {"nodeName": "t4", "containers": [{"name": "a", "resources": {"requests": {"nvidia.com/gpu": "1"}}}]},
        })
    };
    let pods: Vec<_> = (0..pods).map(|number| serde_json::from_value(pod(number)).unwrap()).collect();
    of_static(&with_pods([("t4".to_owned(), served(&machine(t4)).unwrap())].into(), &pods))
}

#[test]
fn a_static_node_has_room_for_its_unused_devices() {
    let mut nodes = beside(1);
    let found = choice(&nodes, &by_turns(6));
    assert_eq!(found.lines(), ["t4: has room: 1 nvidia.com/gpu"]);
    nodes.take(&"t4".into(), &by_turns(6), &found.plan, &owner_in_epoch("next")).unwrap();
    for nodes in [nodes, beside(2)] {
        assert_eq!(choice(&nodes, &by_turns(6)).lines(), ["t4: GPU slices in use"]);
    }
}

#[test]
fn a_node_with_changing_mig_names_has_the_extenders_refusal() {
    let a100 = json!({
        "metadata": {"name": "a100", "labels": {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb"}},
        "status": {"allocatable": {"nvidia.com/gpu": "7"}},
    });
    let record = json!({"set": {}, "before": {}, "renaming": {"since": 1000, "nodes": ["a100"]}}).to_string();
    let policy = json!({
        "apiVersion": "nvidia.com/v1", "kind": "ClusterPolicy",
        "metadata": {"name": "cluster-policy", "annotations": {kerf_core::keys::PLUGIN_LAYOUT: record}},
        "spec": {"mig": {"strategy": "mixed"}},
    });
    let policy = seen(&serde_json::from_value(policy).unwrap()).unwrap();
    for (now, line) in [
        (1010, format!("a100: {}", Refusal::LayoutChanging)),
        (2000, "a100: has room: 1 nvidia.com/gpu".to_owned()),
    ] {
        let node = served(&machine(a100.clone())).unwrap();
        let mut nodes = with_pods([("a100".to_owned(), node)].into(), &[]);
        close_renamed(&mut nodes, &policy, now);
        assert_eq!(choice(&of_static(&nodes), &by_turns(0)).lines(), [line]);
    }
}

#[test]
fn many_nodes_are_reported_by_their_number() {
    let names: Vec<NodeName> = (0..10).map(|number| NodeName::new(format!("n{number}"))).collect();
    assert_eq!(listed(&names), "n0, n1, n2, n3, n4, n5, n6, n7 and 2 more");
    assert_eq!(listed(&names[..1]), "n0");
}
