use super::*;
use crate::admission::decide;
use crate::policy::{PolicyDocument, Supply};
use proptest::prelude::*;
use serde_json::{Value, json};

fn view(pod: &Value) -> PodView {
    serde_json::from_value(pod.clone()).unwrap()
}

fn with_limit(name: &str, amount: &str) -> Value {
    json!({"spec": {"containers": [{"name": "main", "resources": {"limits": {name: amount}}}]}})
}

fn with_note(key: &str) -> Value {
    json!({"metadata": {"annotations": {key: "0.5"}}, "spec": {"containers": [{"name": "main"}]}})
}

/// Policies with these dialects, each for one namespace; `None` leaves the field out.
fn policies(dialects: &[Option<Vec<Dialect>>]) -> Policies {
    let policy = |(index, dialects): (usize, &Option<Vec<Dialect>>)| {
        let mut spec = json!({
            "match": {"namespaces": [format!("n{index}")]},
            "defaultIsolation": "memory", "isolation": {"memory": ["mig"]},
        });
        if let Some(dialects) = dialects {
            spec["dialects"] = json!(dialects);
        }
        let document: PolicyDocument = serde_json::from_value(json!({
            "apiVersion": "kerf.dev/v1alpha1", "kind": "GpuPolicy",
            "metadata": {"name": format!("p{index}")}, "spec": spec,
        }))
        .unwrap();
        document.try_into().unwrap()
    };
    Policies { pods: dialects.iter().enumerate().map(policy).collect(), nodes: Vec::new() }
}

#[test]
fn pods_in_a_dialect_meet_the_condition_only_if_a_policy_accepts_it() {
    let only = |dialect| MatchCondition::for_dialects(&BTreeSet::from([dialect]));
    for (pod, dialects) in [
        (with_limit("nvidia.com/mig-1g.10gb", "1"), vec![Dialect::Mig]),
        (with_limit("nvidia.com/gpu", "1"), vec![Dialect::Nvidia, Dialect::Hami, Dialect::Runai]),
        (with_limit("nvidia.com/gpu.shared", "1"), vec![Dialect::Nvidia]),
        (with_limit("nvidia.com/gpumem", "1"), vec![Dialect::Hami]),
        (with_limit("aliyun.com/gpu-mem", "1"), vec![Dialect::Gpushare]),
        (with_note("gpu-fraction"), vec![Dialect::Kai, Dialect::Runai]),
        (with_note("gpu-memory"), vec![Dialect::Kai, Dialect::Runai]),
        (with_limit("nvidia.com/gpu", "0"), vec![]),
        (with_limit("nvidia.com/gpu-fast", "1"), vec![]),
        (with_limit("nvidia.com/gpu-1xgb", "1"), vec![]),
        (with_note("kerf.dev/movable"), vec![]),
        (with_limit("cpu", "1"), vec![]),
    ] {
        for dialect in Dialect::ALL {
            assert_eq!(only(dialect).matches(&view(&pod)), dialects.contains(&dialect), "{dialect}: {pod}");
        }
        assert!(!MatchCondition::for_dialects(&BTreeSet::new()).matches(&view(&pod)), "{pod}");
    }
}

#[test]
fn pods_with_kerfs_own_keys_always_meet_the_condition() {
    let label = json!({"metadata": {"labels": {"kerf.dev/sliced": "true"}}});
    let init =
        json!({"spec": {"initContainers": [{"resources": {"requests": {"nvidia.com/gpu-8gb.shared": 1}}}]}});
    for pod in [
        label,
        init,
        with_note("kerf.dev/gpu-memroy"),
        with_limit("kerf.dev/gpu-10gb", "0"),
        with_limit("gpu-10gb", "1"),
        with_limit("nvidia.com/gpu-10gb", "1"),
    ] {
        assert!(MatchCondition::for_dialects(&BTreeSet::new()).matches(&view(&pod)), "{pod}");
    }
}

#[test]
fn an_expression_says_which_dialects_it_is_for() {
    let default = MatchCondition::for_policies(&policies(&[None]));
    assert_eq!(default.dialects().collect::<Vec<_>>(), [Dialect::Mig]);
    insta::assert_snapshot!(default.expression());
    insta::assert_snapshot!(MatchCondition::widest().expression());
    let folded = default.expression().replace(" || ", "\n  || ");
    assert_eq!(MatchCondition::parse(&folded), Some(default));
    assert_eq!(MatchCondition::parse("true"), None);
}

fn resource() -> impl Strategy<Value = String> {
    prop::sample::select(vec![
        "gpu-10gb",
        "kerf.dev/gpu-20gb",
        "kerf.dev/gpu",
        "nvidia.com/gpu",
        "nvidia.com/gpu.shared",
        "nvidia.com/gpumem",
        "nvidia.com/gpumem-percentage",
        "nvidia.com/gpucores",
        "nvidia.com/priority",
        "aliyun.com/gpu-mem",
        "aliyun.com/gpu-count",
        "nvidia.com/mig-1g.10gb",
        "nvidia.com/mig-1c.3g.40gb",
        "nvidia.com/gpu-8gb",
        "nvidia.com/gpu-8gb.shared",
        "nvidia.com/gpu-xgb",
        "cpu",
    ])
    .prop_map(str::to_owned)
}

fn key() -> impl Strategy<Value = String> {
    prop::sample::select(vec![
        "kerf.dev/gpu-memory",
        "kerf.dev/gpu-memory.main",
        "kerf.dev/gpu-profile",
        "kerf.dev/isolation",
        "kerf.dev/movable",
        "kerf.dev/request",
        "kerf.dev/assignment",
        "kerf.dev/sliced",
        "gpu-fraction",
        "gpu-memory",
        "gpu-fraction-num-devices",
        "gpu-fraction-container-name",
        "nvidia.com/use-gputype",
        "nvidia.com/vgpu-mode",
        "app",
    ])
    .prop_map(str::to_owned)
}

fn pod() -> impl Strategy<Value = Value> {
    let text = || prop::sample::select(vec!["1", "0", "10Gi", "0.5", "true", "1g.10gb", "main"]);
    let amount = || prop::sample::select(vec!["0", "1", "2", "500m"]);
    let keys = || prop::collection::btree_map(key(), text(), 0..3);
    let resources = || prop::collection::btree_map(resource(), amount(), 0..3);
    (keys(), keys(), resources(), resources(), resources()).prop_map(
        |(annotations, labels, limits, requests, init)| {
            json!({
                "metadata": {"annotations": annotations, "labels": labels},
                "spec": {
                    "containers": [{"name": "main", "resources": {"limits": limits, "requests": requests}}],
                    "initContainers": [{"name": "init", "resources": {"limits": init}}],
                },
            })
        },
    )
}

fn sets() -> impl Strategy<Value = Vec<Option<Vec<Dialect>>>> {
    let list = prop::sample::subsequence(Dialect::ALL.to_vec(), 0..=Dialect::ALL.len());
    prop::collection::vec(prop::option::of(list), 0..3)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn every_pod_that_the_webhook_would_change_or_refuse_meets_the_condition(pod in pod(), sets in sets(), namespace in 0..3_usize) {
        let policies = policies(&sets);
        let decision = decide(&pod, format!("n{namespace}").as_str(), &policies, &Supply::default());
        let condition = MatchCondition::for_policies(&policies);
        if !matches!(decision, Ok(None)) {
            prop_assert!(condition.matches(&view(&pod)), "{:?} of {:?}", decision.map(|_| ()), policies.dialects());
        }
        prop_assert!(MatchCondition::widest().matches(&view(&pod)) || !condition.matches(&view(&pod)));
    }

    #[test]
    fn every_condition_is_parsed_from_its_expression(dialects in prop::sample::subsequence(Dialect::ALL.to_vec(), 0..=Dialect::ALL.len())) {
        let condition = MatchCondition::for_dialects(&dialects.into_iter().collect());
        prop_assert_eq!(MatchCondition::parse(&condition.expression()), Some(condition));
    }
}
