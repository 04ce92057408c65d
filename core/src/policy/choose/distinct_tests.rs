use super::tests::policy_with;
use super::*;
use crate::request::{Reading, read};
use crate::testing::{node_status, with_neutral_names};
use proptest::prelude::*;
use serde_json::{Value, json};

/// The answer to a pod that asks in any dialect. The policy allows these kinds for isolation `none`, and NVIDIA's usual
/// ones for `memory`. Each node of the cluster has the GPUs of one list.
fn answer(kinds: &[&str], nodes: &[&[&str]], metadata: &Value, limits: &Value) -> Result<Choice, Denied> {
    let dialects = ["nvidia", "hami", "gpushare", "kai", "runai"];
    let policy = policy_with(&json!({
        "defaultIsolation": "none", "isolation": {"memory": ["mig", "mps", "whole"], "none": kinds}, "dialects": dialects,
    }));
    let reading =
        Reading { dialects: &policy.spec().dialects, fraction_of: Some(SizeGb(80)), sidecars: None };
    let containers = json!([{"name": "main", "resources": {"limits": limits}}]);
    let pod = serde_json::from_value(json!({"metadata": metadata, "spec": {"containers": containers}}));
    let ask = read(&pod.unwrap(), &reading).unwrap().unwrap();
    let statuses: Vec<_> = nodes.iter().map(|models| node_status(models)).collect();
    choose(&policy, &Supply::from_statuses(&statuses), &ask)
}

/// Requests for two GPUs of 8 GB each, in the words of every other system.
fn asks_for_two_gpus() -> [(Value, Value); 5] {
    let noted = |notes: Value| json!({"annotations": notes});
    [
        (json!({}), json!({"nvidia.com/gpu": "2", "nvidia.com/gpumem": "8000"})),
        (json!({"labels": {"aliyun.com/gpu-count": "2"}}), json!({"aliyun.com/gpu-mem": "16"})),
        (json!({}), json!({"aliyun.com/gpu-mem": "16", "aliyun.com/gpu-count": "2"})),
        (noted(json!({"gpu-memory": "8000", "gpu-fraction-num-devices": "2"})), json!({})),
        (noted(json!({"gpu-fraction-num-devices": "2"})), json!({"nvidia.com/gpu": "0.1"})),
    ]
}

#[test]
fn several_gpus_of_a_dialect_are_served_by_time_slices() {
    let nodes = [&["H100-80GB", "T4-16GB", "T4-16GB"][..]];
    for (metadata, limits) in asks_for_two_gpus() {
        let choice = answer(&["mig", "mps", "time-slicing"], &nodes, &metadata, &limits).unwrap();
        let resource = choice.document.containers[0].resource;
        assert_eq!(resource.to_string(), "nvidia.com/gpu-8gb.shared", "{metadata} {limits}");
    }
}

/// The resource name with the warnings, or the refusal.
fn reported(kinds: &[&str], nodes: &[&[&str]], annotations: &Value, limits: &Value) -> String {
    match answer(kinds, nodes, &json!({"annotations": annotations}), limits) {
        Ok(choice) => {
            let warnings = choice.warnings.iter().map(ToString::to_string);
            let resource = choice.document.containers[0].resource.to_string();
            std::iter::once(resource).chain(warnings).collect::<Vec<_>>().join("\n")
        }
        Err(denied) => denied.to_string(),
    }
}

#[test]
fn time_slices_and_whole_gpus_serve_several_gpus() {
    let two = json!({"nvidia.com/gpu": "2", "nvidia.com/gpumem": "12000"});
    let first = |kinds: &[&str], nodes: &[&[&str]], limits: &Value| {
        reported(kinds, nodes, &json!({}), limits).lines().next().unwrap_or_default().to_owned()
    };
    let all = ["mig", "mps", "time-slicing", "whole"];
    let slices = "nvidia.com/gpu-12gb.shared";
    assert_eq!(first(&all, &[&["T4-16GB", "T4-16GB"]], &two), slices);
    let big = json!({"nvidia.com/gpu": "2", "nvidia.com/gpumem": "20000"});
    assert_eq!(first(&["whole", "time-slicing"], &[&["L4-24GB", "L4-24GB"]], &big), "nvidia.com/gpu");
    let small = json!({"nvidia.com/gpu": "2", "nvidia.com/gpumem": "4000"});
    let memory = json!({"kerf.dev/isolation": "memory"});
    let fenced = reported(&all, &[&["L4-24GB", "L4-24GB"]], &memory, &small);
    assert_eq!(
        fenced, "nvidia.com/gpu",
        "several fenced parts are whole GPUs, however little is asked of each"
    );
    let half = json!({"nvidia.com/gpu": "2", "nvidia.com/gpumem": "20000", "nvidia.com/gpucores": "50"});
    assert_eq!(first(&["time-slicing", "whole"], &[&["L4-24GB", "L4-24GB"]], &half), "nvidia.com/gpu");
    let one = json!({"nvidia.com/gpu": "1", "nvidia.com/gpumem": "8000"});
    assert_eq!(first(&all, &[&["H100-80GB"]], &one), "nvidia.com/mig-1g.10gb", "one GPU is of any kind");
}

#[test]
fn a_request_for_several_gpus_without_supply_is_answered_with_a_remedy() {
    let two = json!({"nvidia.com/gpu": "2", "nvidia.com/gpumem": "8000"});
    let half = json!({"nvidia.com/gpu": "2", "nvidia.com/gpumem": "8000", "nvidia.com/gpucores": "50"});
    let (none, memory) = (json!({}), json!({"kerf.dev/isolation": "memory"}));
    let t4 = &["T4-16GB"][..];
    let all = &["time-slicing", "mps", "mig", "whole"][..];
    let answers = [
        reported(&["mps", "mig"], &[t4], &none, &two),
        reported(&["mps", "time-slicing"], &[t4], &none, &half),
        reported(&["mps", "time-slicing"], &[&["H100-80GB"; 2]], &memory, &two),
        reported(all, &[t4, t4], &none, &two),
    ];
    insta::assert_snapshot!(answers.join("\n\n"));
}

#[test]
fn no_class_that_the_policy_forbids_is_suggested() {
    let policy = policy_with(&json!({"isolation": {"memory": ["mig", "mps"]}}));
    let mut two = super::tests::ask(Want::Size(SizeGb(8)), Some(IsolationClass::Memory));
    (two.containers[0].count, two.containers[0].distinct_gpus) = (2, true);
    let denied = choose(&policy, &Supply::default(), &two).unwrap_err().to_string();
    assert!(denied.contains("; ask for one GPU, or by kerf.dev/gpu-memory"), "{denied}");
}

#[test]
fn kerfs_count_counts_slices_and_several_instances_cause_a_warning() {
    let notes = json!({"kerf.dev/gpu-memory": "9Gi", "kerf.dev/gpu-count": "2"});
    let choice = answer(&["mig"], &[&["H100-80GB"]], &json!({"annotations": notes}), &json!({})).unwrap();
    assert!(!choice.document.containers[0].distinct_gpus);
    insta::assert_snapshot!(reported(&["mig"], &[&["H100-80GB"]], &notes, &json!({})));
    let one = json!({"kerf.dev/gpu-memory": "9Gi"});
    assert_eq!(reported(&["mig"], &[&["H100-80GB"]], &one, &json!({})), "nvidia.com/mig-1g.10gb");
    let shares =
        json!({"kerf.dev/gpu-memory": "4Gi", "kerf.dev/gpu-count": "2", "kerf.dev/isolation": "memory"});
    assert_eq!(reported(&["mig"], &[&["T4-16GB"]], &shares, &json!({})).lines().count(), 1, "no instances");
}

#[test]
fn replicas_of_nvidias_plugin_serve_no_request_for_different_gpus() {
    let labels = [("gpu.memory", "81920"), ("gpu.count", "2"), ("gpu.replicas", "4")];
    let mut index = crate::policy::SupplyIndex::default();
    index.show_static("n".into(), Some(crate::testing::static_node(&labels, &[("gpu", 8)])));
    let mut two = super::tests::ask(Want::Size(SizeGb(10)), Some(IsolationClass::None));
    (two.containers[0].count, two.containers[0].distinct_gpus) = (2, true);
    let policy = policy_with(&json!({"isolation": {"none": ["time-slicing", "whole"], "memory": ["mig"]}}));
    let denied = choose(&policy, &index.supply(), &two).unwrap_err();
    assert!(matches!(denied, Denied::Replicas { count: 2, .. }), "{denied}");
}

/// A bare count in HAMi or gpushare counts GPUs. MIG instances that a static node offers as GPUs do not count.
#[test]
fn a_bare_count_of_gpus_is_not_served_by_instances() {
    let supply = super::static_tests::beside(&[], &["mig-single"]);
    let policy =
        policy_with(&json!({"isolation": {"hardware": ["mig", "whole"], "memory": ["mig", "whole"]}}));
    let mut gpus = super::tests::ask(Want::Whole, None);
    gpus.containers[0].count = 2;
    let chosen =
        |ask: &PodAsk| String::from(choose(&policy, &supply, ask).unwrap().document.containers[0].resource);
    assert_eq!(chosen(&gpus), "nvidia.com/gpu=mig", "in NVIDIA's words it is what the plugin gives");
    gpus.containers[0].distinct_gpus = true;
    assert_eq!(chosen(&gpus), "nvidia.com/gpu");
}

fn distinct_ask() -> impl Strategy<Value = ContainerAsk> {
    let sizes = prop::sample::select(vec![4_u32, 8, 12, 20, 40, 90]);
    (sizes, 1_u32..4, any::<bool>(), prop::bool::weighted(0.2)).prop_map(|(gb, count, distinct, compute)| {
        let asked = super::tests::ask(Want::Size(SizeGb(gb)), None).containers.remove(0);
        let compute = crate::units::ComputePercent::new(30).filter(|_| compute);
        ContainerAsk { count, compute, distinct_gpus: distinct && count > 1, ..asked }
    })
}

proptest! {
    /// A container that asks for several GPUs gets only kinds that span GPUs.
    #[test]
    fn several_gpus_get_only_kinds_that_span_gpus(
        mut containers in prop::collection::vec(distinct_ask(), 1..3),
        nodes in prop::collection::vec(prop::collection::vec(prop::sample::select(vec!["T4-16GB", "L4-24GB", "H100-80GB"]), 1..4), 1..3),
        class in prop::sample::select(vec![IsolationClass::None, IsolationClass::Memory]),
        is_neutral in any::<bool>(),
    ) {
        for (number, container) in containers.iter_mut().enumerate() {
            container.name = format!("c{number}");
        }
        let status = |models: &Vec<&str>| {
            let status = node_status(models);
            if is_neutral { with_neutral_names(status) } else { status }
        };
        let statuses: Vec<_> = nodes.iter().map(status).collect();
        let mut pod = super::tests::ask(Want::Size(SizeGb(4)), Some(class));
        pod.containers = containers;
        let Ok(choice) = choose(&policy_with(&json!({})), &Supply::from_statuses(&statuses), &pod) else { return Ok(()) };
        for container in choice.document.containers.iter().filter(|container| container.distinct_gpus) {
            prop_assert!(!container.may_be(Kind::Mig) && !container.may_be(Kind::Mps), "{container:?}");
        }
    }
}
