//! Tests of pods that would silently run without their GPU, or be pending forever; kerf refuses them or warns.

use super::*;
use crate::contract::GpuNodeStatus;
use crate::keys;
use crate::policy::{Policies, Supply};
use crate::request::Dialect;
use crate::testing::node_status;
use serde_json::{Value, json};

fn pod(metadata: Value, resources: Value) -> PodView {
    let spec = json!({"containers": [{"name": "main", "resources": resources}]});
    serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap()
}

fn refusal(pod: &PodView) -> String {
    read(pod, &Reading::without_policy(&[Dialect::Mig].into())).expect_err("it is taken").to_string()
}

#[test]
fn a_key_that_is_a_label_is_refused() {
    let per_container = keys::PER_CONTAINER.map(|key| format!("{key}.main"));
    for key in keys::ASKED.iter().map(|key| (*key).to_owned()).chain(per_container) {
        for annotations in [json!({}), json!({keys::GPU_MEMORY: "10Gi"})] {
            let labelled =
                pod(json!({"labels": {"app": "a", &key: "10Gi"}, "annotations": annotations}), json!({}));
            let expected = format!(
                "metadata.labels[{key}] is \"10Gi\", and kerf reads requests from annotations, not from labels; move it to metadata.annotations[{key}]"
            );
            assert_eq!(refusal(&labelled), expected);
        }
    }
    let typo = pod(json!({"labels": {"kerf.dev/gpu-memroy": "10Gi"}}), json!({}));
    assert_eq!(
        refusal(&typo),
        "metadata.labels[kerf.dev/gpu-memroy] is \"10Gi\", and kerf has no such label; remove it, the nearest that kerf reads is the annotation kerf.dev/gpu-memory"
    );
    let own = pod(json!({"labels": {"kerf.dev/sliced": "true"}}), json!({}));
    assert_eq!(
        read(&own, &Reading::without_policy(&[Dialect::Mig].into())),
        Ok(None),
        "the admission judges what only kerf writes"
    );
}

#[test]
fn a_limit_that_kerf_does_not_have_is_refused_with_the_one_that_was_meant() {
    let annotation = |key: &str, limit: &str| {
        format!(
            "kerf.dev/{key} is an annotation; move it to metadata.annotations, or as a limit write kerf.dev/{limit}: 1"
        )
    };
    let size = |limit: &str| {
        format!(
            "kerf has no such limit; write kerf.dev/{limit}: 1, with the GPU memory in GB in the name and the number of slices behind it"
        )
    };
    for (limit, amount, remedy) in [
        ("kerf.dev/gpu-memory", "20Gi", annotation("gpu-memory", "gpu-20gb")),
        ("kerf.dev/gpu-memory.main", "5G", annotation("gpu-memory.main", "gpu-5gb")),
        ("kerf.dev/gpu-memory", "1", annotation("gpu-memory", "gpu-10gb")),
        ("gpu-memory", "20Gi", annotation("gpu-memory", "gpu-20gb")),
        (
            "kerf.dev/compute",
            "50",
            "kerf.dev/compute is an annotation; move it to metadata.annotations".to_owned(),
        ),
        ("kerf.dev/gpu", "1", size("gpu-10gb")),
        ("kerf.dev/gpu", "0", size("gpu-10gb")),
        ("kerf.dev/gpu-10", "1", size("gpu-10gb")),
        ("kerf.dev/gpu-20Gi", "1", size("gpu-20gb")),
        ("gpu-8", "1", size("gpu-8gb")),
        (
            "kerf.dev/gpu-8gb.shared",
            "1",
            "kerf has no such limit; write nvidia.com/gpu-8gb.shared: 1".to_owned(),
        ),
        ("kerf.dev/mig-1g.10gb", "1", "kerf has no such limit; write nvidia.com/mig-1g.10gb: 1".to_owned()),
        ("kerf.dev/vram", "1", size("gpu-10gb")),
    ] {
        for map in ["limits", "requests"] {
            let asking = pod(json!({}), json!({map: {limit: amount}}));
            assert_eq!(
                refusal(&asking),
                format!("container main, resources.limits[{limit}] is {amount:?}, and {remedy}")
            );
        }
    }
    for good in ["kerf.dev/gpu-10gb", "gpu-10gb"] {
        assert!(
            read(
                &pod(json!({}), json!({"limits": {good: "1"}})),
                &Reading::without_policy(&[Dialect::Mig].into())
            )
            .unwrap()
            .is_some()
        );
    }
}

/// The warnings about the models in these annotations, or the refusal.
fn models(
    annotations: &[(&str, &str)],
    nodes: &[GpuNodeStatus],
    policies: &Policies,
) -> Result<(GpuSelection, Vec<String>), String> {
    let mut written = json!({keys::GPU_MEMORY: "10Gi"});
    for (key, text) in annotations {
        written[key] = json!(text);
    }
    let pod = pod(json!({"annotations": written}), json!({}));
    let mut gpus = read(&pod, &Reading::without_policy(&[Dialect::Mig].into())).unwrap().unwrap().gpus;
    let supply = Supply::from_statuses(nodes);
    let reported = resolve_models(&pod, &mut gpus, || {
        KnownModels::with_catalog(supply.models().chain(policies.models()))
    });
    reported
        .map(|reported| (gpus, reported.iter().map(ToString::to_string).collect()))
        .map_err(|error| error.to_string())
}

const HAMI: &str = "nvidia.com/use-gputype";

#[test]
fn a_model_that_nothing_can_serve_is_refused_with_the_nearest() {
    let refused = |key: &str, text: &str| models(&[(key, text)], &[], &Policies::default()).unwrap_err();
    for (key, text, nearest) in [
        (keys::GPU_MODEL, "T4", "T4-16GB"),
        (keys::GPU_MODEL, "H100-80", "H100-80GB"),
        (keys::GPU_MODEL, "a100", "A100-40GB or A100-80GB"),
        (keys::GPU_MODEL, "L4-42GB", "L4-24GB"),
        (HAMI, "T5-16GB", "T4-16GB"),
    ] {
        let message = refused(key, text);
        assert!(message.starts_with(&format!("metadata.annotations[{key}]: ")), "{message}");
        assert!(message.contains(&format!("the nearest is {nearest};")), "{text}: {message}");
    }
}

#[test]
fn a_model_of_the_cluster_or_of_a_policy_is_known() {
    let mut node = node_status(&["H100-80GB"]);
    node.gpus[0].model = "GeForce-RTX-9090".into();
    let policy = json!({
        "apiVersion": "kerf.dev/v1alpha1", "kind": "GpuPolicy", "metadata": {"name": "new"},
        "spec": {"match": {"models": ["B900-500GB"]}, "defaultIsolation": "memory", "isolation": {"memory": ["mig"]}},
    });
    let policy: crate::policy::PolicyDocument = serde_json::from_value(policy).unwrap();
    let policies = Policies { pods: vec![policy.try_into().unwrap()], nodes: Vec::new() };
    let resolved = |key: &str, text: &str| {
        let (gpus, reported) = models(&[(key, text)], std::slice::from_ref(&node), &policies).unwrap();
        assert_eq!(reported, [""; 0]);
        gpus.models
    };
    for (key, text, expected) in [
        (keys::GPU_MODEL, "B900-500GB", "B900-500GB"),
        (keys::GPU_MODEL, "geforce-rtx-9090", "GeForce-RTX-9090"),
        (HAMI, "GeForce RTX 9090", "GeForce-RTX-9090"),
        (HAMI, "RTX 9090", "GeForce-RTX-9090"),
        (HAMI, "A30", "A30-24GB"),
    ] {
        assert_eq!(resolved(key, text), [expected], "{key}: {text}");
    }
}

#[test]
fn an_unknown_model_causes_a_warning_if_the_pod_can_be_served_without_it() {
    let reported = |key: &str, text: &str| models(&[(key, text)], &[], &Policies::default()).unwrap().1;
    for (key, text) in [
        (keys::GPU_MODEL, "T4-16GB,T5-16GB"),
        (keys::GPU_MODEL_NOT, "T5-16GB"),
        ("nvidia.com/nouse-gputype", "T5-16GB"),
        (HAMI, "A30,T5-16GB"),
    ] {
        let expected =
            format!("metadata.annotations[{key}]: unknown GPU model \"T5-16GB\"; the nearest is T4-16GB");
        assert_eq!(reported(key, text), [expected]);
    }
    assert_eq!(reported(keys::GPU_MODEL_NOT, "T4-16GB"), [""; 0]);
}
