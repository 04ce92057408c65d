use super::tests::{ask, policy_with};
use super::*;
use crate::contract::GpuNodeSpec;
use crate::policy::SupplyIndex;
use crate::request::GpuSelection;
use crate::resource::PluginName;
use crate::static_node::{StaticNode, StaticOffer};
use crate::testing::{node_status, static_node, with_neutral_names};
use crate::units::ComputePercent;
use serde_json::json;

/// Layouts of static nodes with two A100-80GB.
pub(super) const LAYOUTS: [&str; 7] =
    ["whole", "time-sliced-4", "time-sliced-4-renamed", "mps-4", "mig-single", "mig-mixed", "unlabelled"];

/// A cluster with a managed node of these models, if there are any, and a static node of each of these layouts.
pub(super) fn beside(models: &[&str], layouts: &[&str]) -> Supply {
    let mut index = SupplyIndex::default();
    if !models.is_empty() {
        let status = with_neutral_names(node_status(models));
        index.show("managed".into(), &GpuNodeSpec::default(), &status);
    }
    for layout in layouts {
        index.show_static((*layout).into(), Some(node_of(layout)));
    }
    index.supply()
}

fn node_of(layout: &str) -> StaticNode {
    let gpus = |product: &'static str, replicas: &'static str, strategy: &'static str, name, count| {
        let memory = if product.contains("MIG") { "9728" } else { "81920" };
        let units = if product.contains("MIG") { "14" } else { "2" };
        let labels = [
            ("gpu.product", product),
            ("gpu.memory", memory),
            ("gpu.count", units),
            ("gpu.replicas", replicas),
            ("gpu.sharing-strategy", strategy),
        ];
        static_node(&labels, &[(name, count)])
    };
    let (plain, shared) = ("NVIDIA-A100-SXM4-80GB", "NVIDIA-A100-SXM4-80GB-SHARED");
    match layout {
        "whole" => gpus(plain, "1", "none", "gpu", 2),
        "time-sliced-4" => gpus(shared, "4", "time-slicing", "gpu", 8),
        "time-sliced-4-renamed" => gpus(plain, "4", "time-slicing", "gpu.shared", 8),
        "mps-4" => gpus(shared, "4", "mps", "gpu", 8),
        "mig-single" => gpus("NVIDIA-A100-SXM4-80GB-MIG-1g.10gb", "1", "none", "gpu", 14),
        "mig-mixed" => static_node(
            &[
                ("gpu.product", plain),
                ("gpu.memory", "81920"),
                ("mig-1g.10gb.count", "4"),
                ("mig-1g.10gb.memory", "9728"),
                ("mig-1g.10gb.replicas", "1"),
                ("mig-3g.40gb.count", "2"),
                ("mig-3g.40gb.memory", "40192"),
                ("mig-3g.40gb.replicas", "1"),
            ],
            &[("mig-1g.10gb", 4), ("mig-3g.40gb", 2)],
        ),
        _ => static_node(&[], &[("gpu", 2)]),
    }
}

/// A static node of this layout while none of its devices is healthy, as during a restart of its plugin.
fn away(layout: &str) -> Supply {
    let node = node_of(layout);
    let offers = node.offers.into_iter().map(|offer| StaticOffer { count: 0, ..offer }).collect();
    let mut index = SupplyIndex::default();
    index.show_static(layout.into(), Some(StaticNode { offers, ..node }));
    index.supply()
}

/// The name that each container gets, with the kind where the name does not say it, and the warnings.
fn reported(choice: Result<Choice, Denied>) -> String {
    let Ok(Choice { document, warnings }) = choice.as_ref() else { return choice.unwrap_err().to_string() };
    let gets = document.containers.iter().map(|c| String::from(c.resource));
    let warned =
        warnings.iter().filter(|w| !matches!(w, Warning::LessThanNominal(..))).map(ToString::to_string);
    assert!(document.static_nodes || !gets.clone().any(|name| name.contains('=')));
    gets.chain(warned).collect::<Vec<_>>().join(" | ")
}

fn chosen(supply: &Supply, gb: u32, isolation: IsolationClass) -> String {
    reported(choose(&policy_with(&json!({})), supply, &ask(Want::Size(SizeGb(gb)), Some(isolation))))
}

#[test]
fn a_request_by_size_gets_what_the_layout_has_under_the_plugins_name() {
    use IsolationClass::{Hardware, Memory, None};
    let larger = |size: &str| format!(" | container main: shares come in fixed sizes, 10 GB takes {size}");
    for (layout, gb, class, expected) in [
        ("whole", 60, Hardware, "nvidia.com/gpu".to_owned()),
        ("mps-4", 10, Memory, "nvidia.com/gpu=mps".to_owned() + &larger("20 GB")),
        ("mps-4", 20, Memory, "nvidia.com/gpu=mps".to_owned()),
        ("time-sliced-4", 10, None, "nvidia.com/gpu=time-slicing".to_owned() + &larger("20 GB")),
        (
            "time-sliced-4-renamed",
            10,
            None,
            "nvidia.com/gpu.shared=time-slicing".to_owned() + &larger("20 GB"),
        ),
        ("mig-single", 10, Hardware, "nvidia.com/gpu=mig".to_owned()),
        ("mig-mixed", 10, Hardware, "nvidia.com/mig-1g.10gb".to_owned()),
        ("mig-mixed", 11, Hardware, "nvidia.com/mig-3g.40gb".to_owned()),
    ] {
        let supply = beside(&[], &[layout]);
        let reported = chosen(&supply, gb, class);
        let (gets, warnings) = reported.split_once(" | ").unwrap_or((&reported, ""));
        let (expected, warned) = expected.split_once(" | ").unwrap_or((&expected, ""));
        assert_eq!(gets, expected, "{layout}");
        assert!(warnings.ends_with(warned), "{layout}: {warnings}");
    }
}

#[test]
fn a_kind_weaker_than_the_class_is_never_given() {
    for (layout, class) in [
        ("time-sliced-4", IsolationClass::Memory),
        ("time-sliced-4", IsolationClass::Hardware),
        ("mps-4", IsolationClass::Hardware),
        ("unlabelled", IsolationClass::None),
    ] {
        let reported = chosen(&beside(&[], &[layout]), 10, class);
        assert!(reported.contains("no GPU that the pod may have serves 10 GB"), "{layout}: {reported}");
    }
}

#[test]
fn managed_nodes_are_chosen_before_static_ones() {
    let layouts = ["mps-4", "mig-single", "mig-mixed"];
    assert_eq!(chosen(&beside(&[], &layouts), 10, IsolationClass::Memory), "nvidia.com/mig-1g.10gb");
    let both = beside(&["L40S-48GB"], &layouts);
    assert_eq!(chosen(&both, 10, IsolationClass::Memory), "nvidia.com/gpu-10gb", "the only kind of its node");
    let several = beside(&["H100-80GB", "L40S-48GB"], &layouts);
    assert_eq!(chosen(&several, 10, IsolationClass::Memory), "kerf.dev/gpu-10gb");
    let full = beside(&["H100-80GB"], &["mig-mixed"]);
    assert_eq!(chosen(&full, 10, IsolationClass::Memory), "nvidia.com/mig-1g.10gb", "both have it");
}

#[test]
fn a_pod_of_several_containers_is_for_static_nodes_with_healthy_devices() {
    let mut two = ask(Want::Size(SizeGb(10)), Some(IsolationClass::Hardware));
    two.containers.push(ContainerAsk { name: "second".to_owned(), ..two.containers[0].clone() });
    let given = |supply: &Supply| reported(choose(&policy_with(&json!({})), supply, &two));
    let healthy = given(&beside(&[], &["mig-single"]));
    assert_ne!(healthy, given(&beside(&[], &["mig-mixed"])));
    let mut broken = node_of("mig-mixed");
    broken.offers.iter_mut().for_each(|offer| offer.count = 0);
    broken.devices.values_mut().for_each(|count| *count = 0);
    for (first, second) in [(broken.clone(), node_of("mig-single")), (node_of("mig-single"), broken)] {
        let mut index = SupplyIndex::default();
        index.show_static("a".into(), Some(first));
        index.show_static("b".into(), Some(second));
        assert_eq!(given(&index.supply()), healthy);
    }
}

#[test]
fn several_replicas_are_refused_if_nothing_else_serves() {
    let mut asking = ask(Want::Size(SizeGb(10)), Some(IsolationClass::Memory));
    asking.containers[0].count = 2;
    let told_of =
        |layouts: &[&str]| reported(choose(&policy_with(&json!({})), &beside(&[], layouts), &asking));
    assert!(
        told_of(&["mps-4"]).contains("2 of nvidia.com/gpu (mps) give no more than one"),
        "{}",
        told_of(&["mps-4"])
    );
    assert!(told_of(&["mps-4", "mig-single"]).starts_with("nvidia.com/gpu=mig"));
}

#[test]
fn several_instances_come_from_one_static_node() {
    let mut index = SupplyIndex::default();
    for name in ["a", "b"] {
        index.show_static(name.into(), Some(node_of("mig-mixed")));
    }
    let mut asking = ask(Want::Size(SizeGb(10)), Some(IsolationClass::Hardware));
    let mut told_of = |count| {
        asking.containers[0].count = count;
        reported(choose(&policy_with(&json!({})), &index.supply(), &asking))
    };
    assert_eq!(told_of(4).split(" | ").next(), Some("nvidia.com/mig-1g.10gb"));
    assert!(told_of(4).contains("a CUDA process sees one MIG instance"), "{}", told_of(4));
    assert!(told_of(5).starts_with("nvidia.com/mig-1g.10gb"), "devices may be added: {}", told_of(5));
}

#[test]
fn a_share_of_compute_needs_devices_that_isolate_it() {
    let mut asking = ask(Want::Size(SizeGb(10)), Some(IsolationClass::Memory));
    let mut told_of = |percent| {
        asking.containers[0].compute = ComputePercent::new(percent);
        reported(choose(&policy_with(&json!({})), &beside(&[], &["mps-4"]), &asking))
    };
    assert!(told_of(25).starts_with("nvidia.com/gpu=mps"));
    assert!(told_of(26).contains("no GPU that the pod may have serves"), "{}", told_of(26));
}

/// The answer to a pod that asks for `nvidia.com/gpu`, as pods of NVIDIA's device plugin do.
fn by_name(layouts: &[&str], isolation: Option<IsolationClass>) -> String {
    let policy = policy_with(&json!({"dialects": ["nvidia"]}));
    reported(choose(&policy, &beside(&[], layouts), &ask(Want::Whole, isolation)))
}

#[test]
fn a_request_by_the_plugins_name_gets_what_nodes_offer_under_it() {
    assert_eq!(by_name(&["whole", "time-sliced-4"], None), "nvidia.com/gpu");
    assert_eq!(by_name(&["time-sliced-4"], None), "nvidia.com/gpu=time-slicing");
    assert_eq!(by_name(&["mps-4"], None), "nvidia.com/gpu=mps");
    assert_eq!(by_name(&["mig-single"], None), "nvidia.com/gpu=mig");
    assert_eq!(by_name(&["unlabelled"], None), "nvidia.com/gpu=time-slicing");
    let fenced = by_name(&["time-sliced-4", "unlabelled"], Some(IsolationClass::Hardware));
    assert!(
        fenced.starts_with(
            "nvidia.com/gpu | container main: no GPU that the pod may have serves nvidia.com/gpu at present"
        ),
        "{fenced}"
    );
    let shared = reported(choose(
        &policy_with(&json!({})),
        &beside(&[], &["time-sliced-4-renamed"]),
        &ask(Want::Replica, None),
    ));
    assert_eq!(shared, "nvidia.com/gpu.shared");
}

#[test]
fn several_replicas_are_refused_by_the_name_of_the_first_kind() {
    let mut several = ask(Want::Whole, Some(IsolationClass::None));
    several.containers[0].count = 2;
    let denied = choose(&policy_with(&json!({})), &beside(&[], &["mps-4", "time-sliced-4"]), &several);
    let turn = ResourceName::Plugin(PluginName::Gpu, Kind::TimeSlicing);
    assert!(matches!(denied, Err(Denied::Replicas { resource, .. }) if resource == turn), "{denied:?}");
}

#[test]
fn a_pod_with_one_name_of_the_plugin_is_for_static_nodes() {
    let mut node = node_of("mig-mixed");
    node.offers.extend(node_of("unlabelled").offers);
    let mut index = SupplyIndex::default();
    index.show_static("s".into(), Some(node));
    let mut asking = ask(Want::Profile("1g.10gb".parse().unwrap()), Some(IsolationClass::None));
    let gpus = ContainerAsk { want: Want::Whole, count: 2, ..asking.containers[0].clone() };
    asking.containers.push(ContainerAsk { name: "second".into(), ..gpus });
    let choice = choose(&policy_with(&json!({})), &index.supply(), &asking).unwrap();
    assert!(choice.document.static_nodes, "{:?}", choice.document);
    let names = "nvidia.com/mig-1g.10gb | nvidia.com/gpu=time-slicing";
    assert!(reported(Ok(choice)).starts_with(names));
}

#[test]
fn all_slices_of_a_pod_are_on_one_sort_of_node() {
    let mut asking = ask(Want::Size(SizeGb(10)), Some(IsolationClass::Memory));
    let second =
        ContainerAsk { name: "second".into(), want: Want::Size(SizeGb(20)), ..asking.containers[0].clone() };
    asking.containers.push(second);
    let told_of = |models: &[&str], layouts: &[&str]| {
        reported(choose(&policy_with(&json!({})), &beside(models, layouts), &asking))
    };
    let mps = "nvidia.com/gpu=mps | nvidia.com/gpu=mps";
    assert!(told_of(&[], &["mig-single", "mps-4"]).starts_with(mps), "20 GB is in none of 10");
    assert!(told_of(&["T4-16GB"], &["mps-4"]).starts_with(mps), "a T4 has no 20 GB");
    assert!(
        told_of(&["H100-80GB"], &["mps-4"]).starts_with("nvidia.com/mig-1g.10gb | nvidia.com/mig-1g.20gb")
    );
}

/// A pod's affinity cannot be changed later. So it allows static nodes even if they have nothing free when the pod is
/// created.
#[test]
fn static_nodes_are_allowed_if_they_could_ever_serve_the_pod() {
    let by_size = |gb, class| ask(Want::Size(SizeGb(gb)), Some(class));
    let instances = by_size(10, IsolationClass::Hardware);
    let mut twice = instances.clone();
    twice.containers.push(ContainerAsk { name: "second".into(), ..twice.containers[0].clone() });
    let uuids = vec![crate::names::GpuUuid::new("GPU-1")];
    let of_one_gpu = PodAsk { gpus: GpuSelection { uuids, ..GpuSelection::default() }, ..instances.clone() };
    let replica = ask(Want::Replica, None);
    for (supply, asking, expected, case) in [
        (beside(&["A100-80GB"], &["mig-mixed"]), &instances, true, "it has them"),
        (away("mig-mixed"), &instances, true, "its plugin starts anew"),
        (away("mig-mixed"), &twice, true, "for both containers"),
        (away("whole"), &ask(Want::Whole, None), true, "by name"),
        (beside(&["A100-80GB"], &["mps-4"]), &instances, true, "one with MIG may come"),
        (beside(&[], &["whole"]), &instances, true, "there are static nodes alone, and others may come"),
        (beside(&[], &[]), &instances, false, "nothing is known, and the name is neutral"),
        (beside(&[], &[]), &by_size(10, IsolationClass::None), false, "by size kerf alone slices time"),
        (beside(&[], &[]), &of_one_gpu, false, "no static node serves by UUID"),
        (beside(&[], &[]), &replica, false, "every node of the cluster would be eligible"),
        (away("time-sliced-4-renamed"), &replica, true, "some node has such"),
    ] {
        let choice = choose(&policy_with(&json!({"dialects": ["nvidia"]})), &supply, asking).unwrap();
        assert_eq!(choice.document.static_nodes, expected, "{case}: {:?}", choice.document);
    }
}

#[test]
fn a_pod_of_several_containers_stays_with_static_nodes_that_lost_their_devices() {
    let mut asking = ask(Want::Size(SizeGb(20)), Some(IsolationClass::Memory));
    asking.containers.push(ContainerAsk { name: "second".into(), ..asking.containers[0].clone() });
    let reported = reported(choose(&policy_with(&json!({})), &away("mps-4"), &asking));
    assert!(reported.starts_with("nvidia.com/gpu=mps | nvidia.com/gpu=mps"), "{reported}");
}
