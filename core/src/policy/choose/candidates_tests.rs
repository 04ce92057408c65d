use super::super::tests::{ask, policy_with};
use super::super::{Choice, Warning, choose};
use super::*;
use crate::contract::GpuNodeSpec;
use crate::kind::IsolationClass;
use crate::policy::{MappedNames, Supply, SupplyIndex};
use crate::testing::{node_status, static_node, with_neutral_names};
use crate::units::{ComputePercent, MemoryMib};
use serde_json::json;
use std::sync::Arc;

/// A node of each of these models whose GPUs are cut by these kinds, or by the model's default kinds.
fn cluster(nodes: &[(&str, &[Kind])]) -> Supply {
    let mut index = SupplyIndex::default();
    for (number, (model, kinds)) in nodes.iter().enumerate() {
        let mut status = with_neutral_names(node_status(&[model]));
        if !kinds.is_empty() {
            status.gpus[0].kinds = kinds.to_vec();
        }
        index.show(format!("n{number}").as_str().into(), &GpuNodeSpec::default(), &status);
    }
    index.supply()
}

const H100: (&str, &[Kind]) = ("H100-80GB", &[]);
const H200: (&str, &[Kind]) = ("H200-141GB", &[]);
const MPS: (&str, &[Kind]) = ("L40S-48GB", &[Kind::Mps]);
const TURNS: (&str, &[Kind]) = ("L40S-48GB", &[Kind::TimeSlicing]);
const T4: (&str, &[Kind]) = ("T4-16GB", &[]);

fn chosen(supply: &Supply, gb: u32, class: IsolationClass) -> Choice {
    choose(&policy_with(&json!({})), supply, &ask(Want::Size(SizeGb(gb)), Some(class))).unwrap()
}

/// The name, the kinds of a neutral one, and whether the user is warned that no GPU serves it.
fn reported(choice: &Choice) -> String {
    let main = &choice.document.containers[0];
    let unserved = choice.warnings.iter().any(|warning| matches!(warning, Warning::NoSupply(..)));
    let unserved = if unserved { ", unserved" } else { "" };
    format!("{}{}{unserved}", main.resource, join_kinds(&main.kinds))
}

fn join_kinds(kinds: &[Kind]) -> String {
    kinds.iter().fold(String::new(), |text, kind| text + " " + kind.as_str())
}

#[test]
fn one_kind_with_one_name_gets_that_name_and_others_a_neutral_one() {
    use IsolationClass::{Hardware, Memory, None};
    let any = "kerf.dev/gpu-10gb mig mps whole";
    for (nodes, class, expected) in [
        (&[H100][..], Memory, "nvidia.com/mig-1g.10gb"),
        (&[MPS], Memory, "nvidia.com/gpu-10gb"),
        (&[MPS, MPS], Memory, "nvidia.com/gpu-10gb"),
        (&[H100, MPS], Memory, any),
        // One kind, but two names: each model has its own profile.
        (&[H100, H200], Memory, any),
        (&[H100, H200], Hardware, "kerf.dev/gpu-10gb mig whole"),
        // More than half of a T4 may also be served by the whole GPU.
        (&[T4], Memory, any),
        (&[H100, MPS, TURNS], Hardware, "nvidia.com/mig-1g.10gb"),
        (&[H100, MPS, TURNS], None, "kerf.dev/gpu-10gb time-slicing mps mig whole"),
        (&[TURNS], None, "nvidia.com/gpu-10gb.shared"),
        (&[TURNS], Memory, "kerf.dev/gpu-10gb mig mps whole, unserved"),
        (&[], Memory, any),
    ] {
        assert_eq!(reported(&chosen(&cluster(nodes), 10, class)), expected, "{nodes:?} {class}");
    }
}

#[test]
fn a_neutral_name_is_the_smallest_step_that_holds_the_size() {
    let supply = cluster(&[H100, T4]);
    let of = |gb| {
        let choice = chosen(&supply, gb, IsolationClass::Memory);
        (choice.document.containers[0].resource.to_string(), choice.document.containers[0].size_gb.0)
    };
    assert_eq!(of(13), ("kerf.dev/gpu-14gb".to_owned(), 13));
    assert_eq!(of(8), ("kerf.dev/gpu-8gb".to_owned(), 8));
    let warned = chosen(&supply, 13, IsolationClass::Memory).warnings;
    assert!(warned.iter().any(|warning| matches!(warning, Warning::RoundedUp(_, SizeGb(13), SizeGb(14)))));
}

#[test]
fn memory_and_compute_narrow_the_kinds() {
    let supply = cluster(&[H100, T4]);
    let mut asking = ask(Want::Size(SizeGb(10)), Some(IsolationClass::None));
    asking.containers[0].compute = ComputePercent::new(20);
    let policy = policy_with(&json!({}));
    let choice = choose(&policy, &supply, &asking).unwrap();
    assert_eq!(
        reported(&choice),
        "kerf.dev/gpu-10gb mps mig whole",
        "a time slice has no compute for itself"
    );
    assert_eq!(choice.document.containers[0].compute, ComputePercent::new(20));
    asking.containers[0].memory = Some(MemoryMib(10_500));
    let choice = choose(&policy, &supply, &asking).unwrap();
    assert_eq!(reported(&choice), "kerf.dev/gpu-11gb mps mig whole", "10.25 GiB");
}

#[test]
fn kinds_by_model_go_with_a_neutral_name_only() {
    let policy = policy_with(&json!({"kindsByModel": {"H100-80GB": ["mig"], "T4-16GB": ["mps"]}}));
    let of = |nodes: &[(&str, &[Kind])]| {
        choose(&policy, &cluster(nodes), &ask(Want::Size(SizeGb(10)), None)).unwrap().document
    };
    let open = of(&[H100, T4]);
    assert_eq!(open.kinds_by_model, policy.spec().kinds_by_model);
    assert!(open.gpus.is_all(), "{:?}", open.gpus);
    let mut two = ask(Want::Size(SizeGb(10)), None);
    let share = Want::Share(Kind::Mps, SizeGb(10));
    two.containers.push(ContainerAsk { name: "exact".into(), want: share, ..two.containers[0].clone() });
    let of_l4 = policy_with(&json!({"kindsByModel": {"L4-24GB": ["mps"]}}));
    let mixed = choose(&of_l4, &cluster(&[H100, T4]), &two).unwrap().document;
    let names: Vec<_> = mixed.containers.iter().map(|container| container.resource.to_string()).collect();
    assert_eq!(names, ["kerf.dev/gpu-10gb", "nvidia.com/gpu-10gb"]);
    assert_eq!(mixed.kinds_by_model, of_l4.spec().kinds_by_model, "one neutral name is enough");
    let concrete = of(&[H100]);
    assert!(concrete.kinds_by_model.is_empty());
    assert_eq!(concrete.gpus.not_models, ["T4-16GB"]);
}

#[test]
fn the_first_kind_is_chosen_without_neutral_names() {
    let old = Supply::from_statuses(&[node_status(&["H100-80GB", "T4-16GB"])]);
    let off = cluster(&[H100, T4]).with_concrete_names();
    for supply in [old, off] {
        assert_eq!(reported(&chosen(&supply, 10, IsolationClass::Memory)), "nvidia.com/mig-1g.10gb");
        assert_eq!(reported(&chosen(&supply, 10, IsolationClass::None)), "nvidia.com/gpu-10gb.shared");
    }
}

#[test]
fn a_single_conceivable_name_is_given_if_no_gpu_serves() {
    let of = |spec: &serde_json::Value, gb| {
        let asking = ask(Want::Size(SizeGb(gb)), Some(IsolationClass::Memory));
        reported(&choose(&policy_with(spec), &Supply::default(), &asking).unwrap())
    };
    assert_eq!(of(&json!({"isolation": {"memory": ["mps"]}}), 10), "nvidia.com/gpu-10gb");
    assert_eq!(of(&json!({"isolation": {"memory": ["mig"]}}), 10), "kerf.dev/gpu-10gb mig");
    let a100 = json!({"isolation": {"memory": ["mig"]}, "models": ["A100-80GB"]});
    assert_eq!(of(&a100, 10), "nvidia.com/mig-1g.10gb");
    assert_eq!(of(&json!({}), 250), "kerf.dev/gpu-278gb mig whole");
}

fn mapping(names: &[&str]) -> Arc<MappedNames> {
    Arc::new(names.iter().map(|name| ((*name).to_owned(), "gpus.example".to_owned())).collect())
}

#[test]
fn a_name_that_a_device_class_maps_is_not_given() {
    let supply = cluster(&[H100]).mapped(mapping(&["nvidia.com/mig-1g.10gb", "nvidia.com/gpu"]));
    assert_eq!(reported(&chosen(&supply, 10, IsolationClass::Memory)), "kerf.dev/gpu-10gb mig");
    assert_eq!(reported(&chosen(&supply, 20, IsolationClass::Memory)), "nvidia.com/mig-1g.20gb");
    let policy = policy_with(&json!({"dialects": ["nvidia", "mig"]}));
    let profile = "1g.10gb".parse().unwrap();
    let exact = choose(&policy, &supply, &ask(Want::Profile(profile), None)).unwrap();
    assert_eq!(reported(&exact), "kerf.dev/gpu-10gb mig");
    assert_eq!(exact.document.containers[0].profile, Some(profile), "it is exact as before");
    let denied = choose(&policy, &supply, &ask(Want::Whole, None)).unwrap_err();
    insta::assert_snapshot!(denied, @"container main: DeviceClass gpus.example maps nvidia.com/gpu to DRA (spec.extendedResourceName), so the scheduler would not ask kerf for it; ask by size, for instance by metadata.annotations[kerf.dev/gpu-memory], or ask an admin to remove the field from the class; while the chart's webhook.neutralNames is off, or no agent of this version runs, kerf has no other name for a size");
    let part = "nvidia.com/mig-1c.3g.40gb";
    let mapped = cluster(&[H100]).mapped(mapping(&[part]));
    let want = Want::Compute("1c.3g.40gb".parse().unwrap());
    let denied = choose(&policy, &mapped, &ask(want, Some(IsolationClass::None)));
    assert!(
        matches!(denied, Err(Denied::Mapped { .. })),
        "no other name means a compute instance: {denied:?}"
    );
    for supply in [
        supply.with_concrete_names(),
        cluster(&[H100]).mapped(mapping(&["nvidia.com/mig-1g.10gb", "kerf.dev/gpu-10gb"])),
    ] {
        let asking = ask(Want::Size(SizeGb(10)), None);
        assert!(
            matches!(choose(&policy, &supply, &asking), Err(Denied::Mapped { .. })),
            "there is no other name"
        );
    }
}

#[test]
fn a_mapped_name_of_a_static_node_is_skipped() {
    let labels = [("gpu.product", "NVIDIA-A100-SXM4-80GB"), ("gpu.memory", "81920"), ("gpu.count", "2")];
    let mut index = SupplyIndex::default();
    index.show_static("s".into(), Some(static_node(&labels, &[("gpu", 2)])));
    let supply = index.supply();
    assert_eq!(reported(&chosen(&supply, 60, IsolationClass::Memory)), "nvidia.com/gpu");
    let supply = supply.mapped(mapping(&["nvidia.com/gpu"]));
    assert_eq!(reported(&chosen(&supply, 60, IsolationClass::Memory)), "nvidia.com/mig-1g.67gb, unserved");
}
