//! Pods that ask for `nvidia.com/gpu` where node policy divides managed GPUs into equal MPS shares.

use super::tests::{ask, policy_with};
use super::*;
use crate::contract::GpuNodeSpec;
use crate::policy::SupplyIndex;
use crate::testing::node_status;
use crate::units::ComputePercent;
use proptest::prelude::*;
use serde_json::{Value, json};

/// A cluster with a node of this model whose GPU is shared by this rule, and a node with whole GPUs of `others`.
fn shared(model: &str, rule: &Value, others: &[&str]) -> Supply {
    let mut index = SupplyIndex::default();
    let policy = serde_json::from_value(json!({"gpus": [rule]})).unwrap();
    let spec = GpuNodeSpec { policy, ..GpuNodeSpec::default() };
    index.show("shared".into(), &spec, &node_status(&[model]));
    if !others.is_empty() {
        index.show("whole".into(), &GpuNodeSpec::default(), &node_status(others));
    }
    index.supply()
}

fn in_mps(replicas: u32) -> Value {
    json!({"kinds": ["mps"], "mps": {"replicas": replicas}})
}

fn given(policy: &Value, supply: &Supply, ask: &PodAsk) -> String {
    match choose(&policy_with(policy), supply, ask) {
        Ok(Choice { document, warnings }) => {
            let given = document.containers.iter().map(|container| container.resource.to_string());
            let warnings = warnings.iter().map(ToString::to_string);
            given.chain([document.isolation.to_string()]).chain(warnings).collect::<Vec<_>>().join(" | ")
        }
        Err(denied) => denied.to_string(),
    }
}

#[test]
fn a_request_for_a_gpu_gets_an_equal_mps_share_if_no_whole_gpu_exists() {
    let any = json!({});
    let four = shared("L40S-48GB", &in_mps(4), &[]);
    let by = |supply: &Supply, want, class| given(&any, supply, &ask(want, class));
    let share = "nvidia.com/gpu.mps | memory";
    assert_eq!(by(&four, Want::Whole, None), share);
    assert_eq!(by(&four, Want::Replica, None), "nvidia.com/gpu.mps | none", "the name guarantees no more");
    assert_eq!(by(&four, Want::MpsReplica, None), share);
    assert_eq!(by(&four, Want::Whole, Some(IsolationClass::None)), "nvidia.com/gpu.mps | none");
    let both = shared("L40S-48GB", &in_mps(4), &["T4-16GB"]);
    assert_eq!(by(&both, Want::Whole, None), "nvidia.com/gpu | hardware", "the strongest that some node has");
    assert_eq!(by(&both, Want::Whole, Some(IsolationClass::Memory)), "nvidia.com/gpu | memory");
    assert_eq!(by(&both, Want::MpsReplica, None), share);
    let by_model = json!({"models": ["H100-80GB", "L40S-48GB"], "kindsByModel": {"H100-80GB": ["mig"], "L40S-48GB": ["mps"]}});
    assert_eq!(given(&by_model, &four, &ask(Want::Whole, None)), share, "no model may be given whole");
}

#[test]
fn an_equal_mps_share_never_serves_a_larger_request() {
    let four = shared("L40S-48GB", &in_mps(4), &[]);
    let hardware = given(&json!({}), &four, &ask(Want::Whole, Some(IsolationClass::Hardware)));
    assert!(hardware.starts_with("nvidia.com/gpu | hardware | container main: no GPU"), "{hardware}");
    let several = |want| {
        let mut several = ask(want, None);
        (several.containers[0].count, several.containers[0].distinct_gpus) = (2, true);
        given(&json!({}), &four, &several)
    };
    let pair = several(Want::Whole);
    assert!(pair.starts_with("nvidia.com/gpu | hardware"), "{pair}");
    let refused = several(Want::MpsReplica);
    assert!(refused.contains("2 of nvidia.com/gpu.mps (mps) give no more than one"), "{refused}");
    let compute = |percent, want| {
        let mut asking = ask(want, Some(IsolationClass::Memory));
        asking.containers[0].compute = ComputePercent::new(percent);
        given(&json!({}), &four, &asking)
    };
    assert_eq!(compute(25, Want::Whole), "nvidia.com/gpu.mps | memory");
    let half = compute(50, Want::Whole);
    assert!(half.starts_with("nvidia.com/gpu | memory | container main: no GPU"), "{half}");
    let half = compute(50, Want::MpsReplica);
    assert!(half.contains("no GPU"), "{half}");
    let small = json!({"sizes": {"maxGb": 10}});
    let equal = json!({"sizes": {"maxGb": 11}});
    let given_equal = given(&equal, &four, &ask(Want::Whole, Some(IsolationClass::Memory)));
    assert_eq!(given_equal, "nvidia.com/gpu.mps | memory", "the largest size is that of a share");
    let mut one_and_two = ask(Want::Whole, None);
    let two = ContainerAsk {
        name: "two".into(),
        count: 2,
        distinct_gpus: true,
        ..one_and_two.containers[0].clone()
    };
    one_and_two.containers.push(two);
    let both = given(&json!({}), &four, &one_and_two);
    assert!(both.starts_with("nvidia.com/gpu | nvidia.com/gpu | hardware"), "{both}");
    let capped = given(&small, &four, &ask(Want::Whole, Some(IsolationClass::Memory)));
    assert!(!capped.contains("gpu.mps"), "a share has 11 GB: {capped}");
    let refused = given(&small, &four, &ask(Want::MpsReplica, None));
    assert!(refused.contains("11 GB") && refused.contains("10 GB"), "{refused}");
}

#[test]
fn an_equal_mps_share_is_no_share_by_size() {
    let four = shared("L40S-48GB", &in_mps(4), &[]);
    let by_size = given(&json!({}), &four, &ask(Want::Size(SizeGb(10)), Some(IsolationClass::Memory)));
    assert!(!by_size.contains("gpu.mps"), "{by_size}");
}

#[test]
fn a_mig_replica_serves_only_requests_by_name_without_isolation() {
    let by_turns = json!({"kinds": ["mig"], "mig": {"timeSlicing": 3}});
    let supply = shared("H100-80GB", &by_turns, &[]);
    let want = Want::MigReplica("1g.10gb".parse().unwrap());
    let none = json!({"isolation": {"memory": ["mig"], "none": ["mig"]}});
    let by = |policy: &Value, class| given(policy, &supply, &ask(want, class));
    let turn = "nvidia.com/mig-1g.10gb.shared | none";
    assert_eq!(by(&none, None), turn, "the name guarantees no more");
    assert_eq!(by(&none, Some(IsolationClass::None)), turn);
    let fenced = by(&none, Some(IsolationClass::Memory));
    assert!(fenced.contains("nvidia.com/mig-1g.10gb.shared does not give isolation memory"), "{fenced}");
    let forbidden = by(&json!({"isolation": {"memory": ["mig"], "none": ["time-slicing"]}}), None);
    assert!(forbidden.contains("does not give isolation memory"), "{forbidden}");
    let whole = given(&none, &supply, &ask(Want::Size(SizeGb(10)), Some(IsolationClass::None)));
    assert!(whole.starts_with("nvidia.com/mig-1g.10gb | none"), "who asks by size has one alone: {whole}");
    let mut asking = ask(want, None);
    asking.containers[0].count = 2;
    let several = given(&none, &supply, &asking);
    assert!(several.contains("2 of nvidia.com/mig-1g.10gb.shared (mig) give no more than one"), "{several}");
    (asking.containers[0].count, asking.containers[0].compute) = (1, ComputePercent::new(10));
    let compute = given(&none, &supply, &asking);
    assert!(compute.contains("10 %"), "{compute}");
    let unshared = given(&none, &shared("H100-80GB", &json!({"kinds": ["mig"]}), &[]), &ask(want, None));
    assert!(unshared.contains("no GPU that the pod may have serves"), "{unshared}");
}

proptest! {
    #[test]
    fn the_class_is_kept_whatever_gpus_are_shared(
        replicas in 2_u32..=48,
        kinds in prop::sample::subsequence(vec!["whole", "mps", "time-slicing"], 1..=3),
        want in prop::sample::select(vec![Want::Whole, Want::Replica, Want::MpsReplica, Want::Size(SizeGb(8))]),
        class in prop::option::of(prop::sample::select(IsolationClass::ALL.to_vec())),
        (count, compute) in (1_u32..4, 0_u8..=100),
        others in prop::sample::subsequence(vec!["T4-16GB", "H100-80GB"], 0..=2),
    ) {
        let mut rule = json!({"kinds": kinds});
        if kinds.contains(&"mps") {
            rule["mps"] = json!({"replicas": replicas});
        }
        let supply = shared("L40S-48GB", &rule, &others);
        let mut asking = ask(want, class);
        asking.containers[0].count = count;
        asking.containers[0].distinct_gpus = count > 1;
        asking.containers[0].compute = ComputePercent::new(compute);
        if let Ok(choice) = choose(&policy_with(&json!({})), &supply, &asking) {
            let given = &choice.document.containers[0];
            prop_assert!(strongest_class(given.resource) >= class.unwrap_or(choice.document.isolation));
            let is_share = given.resource == ResourceName::MpsReplica;
            prop_assert!(!is_share || count == 1);
            let is_enough = ComputePercent::new(u8::try_from(100 / replicas).unwrap()) >= given.compute;
            let is_told = choice.warnings.iter().any(|warning| matches!(warning, Warning::NoSupply(..)));
            // Shares of less than 1 GB, as 45 of this model are, have no name. Then nothing is offered at all, and in a
            // cluster without offers any kind may come later, so a pod is admitted without a warning.
            let is_served = !is_told && !supply.is_empty();
            prop_assert!(!is_share || !is_served || is_enough && kinds.contains(&"mps"));
            prop_assert_eq!(&RequestDocument::parse(&choice.document.to_json()).unwrap(), &choice.document);
        }
    }
}
