use super::*;
use crate::resource::all_names;
use crate::testing::{gpu_uuid, node_status, static_node, with_neutral_names};
use proptest::prelude::*;

fn all() -> GpuSelection {
    GpuSelection::default()
}

fn named(text: &str) -> ResourceName {
    format!("nvidia.com/{text}").parse().unwrap()
}

fn of(status: &GpuNodeStatus, spec: &GpuNodeSpec) -> Supply {
    let mut index = SupplyIndex::default();
    index.show("n".into(), spec, status);
    index.supply()
}

#[test]
fn every_name_that_an_empty_gpu_could_serve_is_served() {
    let supply = Supply::from_statuses(&[node_status(&["H100-80GB", "T4-16GB"])]);
    for (name, is_served) in [
        ("mig-1g.10gb", true),
        ("mig-7g.80gb", true),
        ("mig-1g.10gb.me", true),
        ("mig-1c.3g.40gb", false),
        ("gpu", true),
        ("gpu-14gb", true),
        ("gpu-10gb.shared", true),
        ("gpu-16gb", false),
        ("gpu.shared", false),
    ] {
        assert_eq!(supply.has_managed(named(name), &all()), is_served, "{name}");
    }
    assert!(!supply.has_share(Kind::Mps, SizeGb(u32::MAX), None, &all()), "no share has this size");
}

#[test]
fn a_name_without_a_size_has_the_largest_slice_as_limit() {
    let status = node_status(&["T4-16GB", "L4-24GB"]);
    let policy = r#"{"gpus": [{"select": {"indexes": [0]}, "kinds": ["time-slicing"], "timeSlicing": {"replicas": 3}}]}"#;
    let spec = GpuNodeSpec { policy: serde_json::from_str(policy).unwrap(), ..GpuNodeSpec::default() };
    let supply = of(&status, &spec);
    let most = |name: &str| supply.at_most(named(name), &all()).map(|size| size.0);
    assert_eq!(["gpu", "gpu.shared", "gpu-4gb"].map(most), [Some(23), Some(4), None]);
    let t4 = GpuSelection { models: vec!["T4-16GB".to_owned()], ..all() };
    assert_eq!(supply.at_most(named("gpu"), &t4), None, "it is shared in equal parts");
}

#[test]
fn the_largest_slice_of_a_kind_is_of_a_gpu_that_serves_the_kind() {
    let supply = Supply::from_statuses(&[node_status(&["T4-16GB", "H100-80GB"])]);
    let largest = [Kind::Whole, Kind::Mig, Kind::Mps].map(|kind| supply.largest(kind).map(|size| size.0));
    assert_eq!(largest, [Some(15), Some(80), Some(14)], "an H100 in MIG mode is not given whole");
    assert_eq!(Supply::from_statuses(&[node_status(&["T4-16GB"])]).largest(Kind::Mig), None);
}

#[test]
fn a_pod_is_answered_for_the_gpus_that_it_may_have() {
    let supply = Supply::from_statuses(&[
        node_status(&["H100-80GB", "A30-24GB"]),
        node_status(&["T4-16GB", "L4-24GB"]),
    ]);
    let selected = |json: &str| -> GpuSelection { serde_json::from_str(json).unwrap() };
    let (h100, no_h100) =
        (selected(r#"{"models": ["H100-80GB"]}"#), selected(r#"{"notModels": ["H100-80GB"]}"#));
    let profiles = |gb, gpus: &GpuSelection| -> Vec<String> {
        let asked = Asked::for_size(SizeGb(gb));
        supply.fitting_profiles(&asked, gpus).iter().map(ToString::to_string).collect()
    };
    assert_eq!(profiles(5, &all()), ["1g.6gb", "1g.10gb"], "the smallest of each model");
    assert_eq!(profiles(5, &h100), ["1g.10gb"]);
    assert_eq!(profiles(40, &no_h100), [""; 0]);
    assert!(
        supply.has_share(Kind::Mps, SizeGb(14), None, &no_h100)
            && !supply.has_share(Kind::Mps, SizeGb(14), None, &h100)
    );
    assert!(!supply.has_whole(&Asked::for_size(SizeGb(24)), &selected(r#"{"notModels": ["L4-24GB"]}"#)));
    // Both nodes' second GPUs have this UUID.
    let [second, not_second] =
        ["uuids", "notUuids"].map(|key| selected(&format!(r#"{{"{key}": ["{}"]}}"#, gpu_uuid(1))));
    let has = |name, gpus: &GpuSelection| supply.has_managed(named(name), gpus);
    assert_eq!((has("gpu-20gb", &second), has("gpu-20gb", &not_second)), (true, false));
    assert_eq!((has("mig-7g.80gb", &second), has("mig-7g.80gb", &not_second)), (false, true));
    assert_eq!(supply.largest_gpu(), Some(SizeGb(80)));
}

#[test]
fn a_profile_with_exactly_what_is_asked_for_fits() {
    let status = node_status(&["H100-80GB"]);
    let supply = Supply::from_statuses(std::slice::from_ref(&status));
    let real = status.gpus[0].profiles.entry("1g.10gb".parse().unwrap()).unwrap().memory;
    let fitting = |asked: Asked| supply.fitting_profiles(&asked, &all()).first().map(ToString::to_string);
    let of_memory = |more| Asked { memory: Some(MemoryMib(real.0 + more)), ..Asked::for_size(SizeGb(10)) };
    assert_eq!(fitting(of_memory(0)).as_deref(), Some("1g.10gb"));
    assert_eq!(fitting(of_memory(1)).as_deref(), Some("1g.20gb"));
    let of_compute =
        |percent| Asked { compute: ComputePercent::try_from(percent).ok(), ..Asked::for_size(SizeGb(10)) };
    assert_eq!(fitting(of_compute(14)).as_deref(), Some("1g.10gb"), "a seventh is 14.3 %");
    assert_eq!(fitting(of_compute(15)).as_deref(), Some("2g.20gb"));
    assert_eq!(fitting(of_compute(42)).as_deref(), Some("3g.40gb"));
    assert_eq!(fitting(of_compute(43)).as_deref(), Some("4g.40gb"), "three sevenths are 42.9 %");
    assert_eq!(fitting(of_compute(100)).as_deref(), Some("7g.80gb"));
}

#[test]
fn what_nvidias_plugin_serves_changes_the_supply_where_kerf_does_not_manage_the_node() {
    let mut index = SupplyIndex::default();
    let shared = |count| Some(static_node(&[("gpu.product", "Tesla-T4")], &[("gpu", count)]));
    assert!(index.show_static("a".into(), shared(1)) && !index.show_static("a".into(), shared(1)));
    assert!(index.claim("a".into()), "it was static until now");
    assert!(!index.show_static("a".into(), shared(2)), "it counts once the GpuNode is gone");
    assert!(index.remove(&"a".into()));
    assert!(index.show_static("a".into(), None));
    assert!(!index.claim("b".into()) && !index.show_static("b".into(), shared(1)));
    assert!(!index.claim("c".into()) && !index.remove(&"c".into()), "it offers nothing");
    assert!(index.show_static("d".into(), shared(1)) && !index.remove(&"d".into()), "it has no GpuNode");
}

#[test]
fn static_nodes_of_one_model_that_serve_the_same_names_are_a_group() {
    let mut index = SupplyIndex::default();
    for (name, model, count) in [("a", "Tesla-T4", 1), ("b", "Tesla-T4", 4), ("c", "NVIDIA-L4", 1)] {
        index.show_static(name.into(), Some(static_node(&[("gpu.product", model)], &[("gpu", count)])));
    }
    let groups = index.supply().static_groups();
    let names = |group: &Supply| group.statics.keys().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(groups.iter().map(names).collect::<Vec<_>>(), [vec!["a", "b"], vec!["c"]]);
}

#[test]
fn use_does_not_change_the_supply() {
    let mut index = SupplyIndex::default();
    let (spec, mut status) = (GpuNodeSpec::default(), node_status(&["T4-16GB"]));
    assert!(index.show("a".into(), &spec, &status));
    status.gpus[0].outside = MemoryMib(4096);
    status.conditions.clear();
    assert!(
        !index.show("a".into(), &spec, &status),
        "nor what is used outside kerf, nor whether the agent is ready"
    );
    assert!(index.supply().has_managed(named("gpu"), &all()));
    assert!(index.show("b".into(), &spec, &node_status(&["L4-24GB"])));
    assert!(index.retain(|name| name.as_str() == "b") && !index.retain(|_| true));
    assert!(index.supply().models().eq(["L4-24GB"]), "a sort that no node has is forgotten");
    assert!(index.remove(&"b".into()) && !index.remove(&"b".into()));
    assert!(index.supply().is_empty() && index.nodes() == 0);
}

#[test]
fn another_gpu_or_other_names_of_the_same_gpu_change_the_supply() {
    let mut index = SupplyIndex::default();
    let mut show = |status: &GpuNodeStatus| index.show("a".into(), &GpuNodeSpec::default(), status);
    let mut status = node_status(&["T4-16GB"]);
    assert!(show(&status) && !show(&status));
    status.gpus[0].uuid = "GPU-another".into();
    assert!(show(&status), "a GPU of the same model has replaced it");
    let mut larger = node_status(&["L4-24GB"]);
    larger.gpus[0].uuid = status.gpus[0].uuid.clone();
    assert!(show(&larger), "it serves larger sizes");
    let mut two = node_status(&["T4-16GB"; 2]);
    assert!(show(&two) && !show(&two));
    two.gpus[1].uuid = "GPU-another".into();
    assert!(show(&two), "one of two is another");
}

#[test]
fn no_sort_that_a_node_has_is_forgotten() {
    let mut index = SupplyIndex::default();
    let mut show = |n: u64| {
        let mut status = node_status(&["T4-16GB"]);
        status.gpus[0].memory = MemoryMib(15_000 + n);
        index.show(NodeName::new(format!("n{n}")), &GpuNodeSpec::default(), &status)
    };
    assert!((0..80).all(&mut show));
    assert!(!(0..80).any(show), "each node is as before");
}

#[test]
fn neutral_names_are_given_once_an_agent_has_reported_them_or_while_there_is_none() {
    let mut index = SupplyIndex::default();
    assert!(index.supply().has_neutral_names());
    let (spec, old) = (GpuNodeSpec::default(), node_status(&["T4-16GB"]));
    index.show("old".into(), &spec, &old);
    assert!(!index.supply().has_neutral_names());
    index.show("new".into(), &spec, &old);
    assert!(index.show("new".into(), &spec, &with_neutral_names(old.clone())), "the names are other ones");
    assert!(index.supply().has_neutral_names());
    assert!(!index.show("new".into(), &spec, &old), "its kubelet starts anew");
    assert!(index.supply().has_neutral_names());
    assert!(!index.supply().with_concrete_names().has_neutral_names());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]
    /// The supply serves exactly what the extender serves on an empty node.
    #[test]
    fn a_served_name_fits_an_empty_node(
        models in prop::collection::vec(prop::sample::select(vec!["H100-80GB", "A30-24GB", "H200-141GB", "T4-16GB", "L4-24GB"]), 1..4),
        asked in prop::collection::vec(0_usize..400, 8),
        shares in prop::option::of(1_u32..5),
    ) {
        let mut status = node_status(&models);
        status.gpus.iter_mut().for_each(|gpu| gpu.mps_shares = shares);
        let (supply, names) = (Supply::from_statuses([&status]), all_names());
        for name in asked.into_iter().map(|name| names[name % names.len()]).filter(|name| !name.is_neutral()) {
            let request = crate::testing::request_sized(name, name.size().unwrap_or(SizeGb::ANY), 1);
            let node = crate::inventory::NodeInventory::from_spec(&GpuNodeSpec::default(), &status);
            let fits = crate::packing::fit(&node, &request, &crate::packing::Fleet::default()).is_ok();
            prop_assert_eq!(supply.has_managed(name, &all()), fits, "{}", name);
        }
    }
}
