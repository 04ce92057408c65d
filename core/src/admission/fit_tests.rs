//! Tests of the fields of a pod that would bypass its slices.

use super::*;
use crate::kind::Kind;
use crate::policy::PolicyDocument;
use crate::resource::ResourceName;
use crate::testing::{request, request_sized};
use crate::units::SizeGb;
use serde_json::json;

/// A policy with these fields.
fn policy(more: &Value) -> Policy {
    let mut spec = json!({"defaultIsolation": "memory", "isolation": {"memory": ["mig", "mps"]}});
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let document = json!({
        "apiVersion": "kerf.dev/v1alpha1", "kind": "GpuPolicy", "metadata": {"name": "p"}, "spec": spec,
    });
    serde_json::from_value::<PolicyDocument>(document).unwrap().try_into().unwrap()
}

fn fitted(spec: &Value, document: &RequestDocument, more: &Value) -> Result<Fit, Unfit> {
    fit(&json!({"spec": spec}), document, &policy(more))
}

fn mps() -> RequestDocument {
    request("nvidia.com/gpu-4gb", 1)
}

#[test]
fn a_pod_gets_its_policys_scheduler_or_keeps_one_that_calls_kerf() {
    for (wanted, found, expected) in [
        ("kerf-scheduler", json!(null), Ok("kerf-scheduler")),
        ("kerf-scheduler", json!(""), Ok("kerf-scheduler")),
        ("kerf-scheduler", json!("default-scheduler"), Ok("kerf-scheduler")),
        ("kerf-scheduler", json!("kerf-scheduler"), Ok("kerf-scheduler")),
        ("kerf-scheduler", json!("kai-scheduler"), Ok("kerf-scheduler")),
        ("kerf-scheduler", json!("runai-scheduler"), Err("runai-scheduler")),
        ("kerf-scheduler", json!("volcano"), Err("volcano")),
        ("", json!(null), Ok("default-scheduler")),
        ("", json!("volcano"), Ok("volcano")),
        ("", json!("kai-scheduler"), Ok("default-scheduler")),
    ] {
        let more = json!({"schedulerName": wanted, "dialects": ["mig", "kai"]});
        let fit = fitted(&json!({"schedulerName": found}), &mps(), &more);
        let scheduler = fit.map(|fit| fit.scheduler).map_err(|unfit| match unfit {
            Unfit::Scheduler { found, .. } => found,
            other => panic!("{other}"),
        });
        assert_eq!(scheduler.as_deref().map_err(String::as_str), expected, "{found} under {wanted:?}");
    }
}

#[test]
fn a_node_that_the_pod_names_becomes_affinity_if_policy_allows_that() {
    for (rule, named, expected) in [
        ("refuse", json!(null), Ok(None)),
        ("refuse", json!(""), Ok(None)),
        ("refuse", json!("n1"), Err(Unfit::NodeName(AskError::NodeName))),
        ("affinity", json!(null), Ok(None)),
        ("affinity", json!("n1"), Ok(Some("n1".to_owned()))),
    ] {
        let fit = fitted(&json!({"nodeName": named}), &mps(), &json!({"nodeName": rule}));
        assert_eq!(fit.map(|fit| fit.node), expected, "{rule} {named}");
    }
}

#[test]
fn only_the_decision_on_root_gives_a_user_namespace() {
    assert!(!fitted(&json!({}), &mps(), &json!({})).unwrap().user_namespace);
}

#[test]
fn a_variable_leads_past_a_slice_by_its_name_and_the_kinds_of_the_container() {
    const VISIBLE: &str = "NVIDIA_VISIBLE_DEVICES";
    const PIPE: &str = "CUDA_MPS_PIPE_DIRECTORY";
    let whole = request_sized(ResourceName::Whole, SizeGb(80), 1);
    let mut either = request("kerf.dev/gpu-80gb", 1);
    either.containers[0].kinds = vec![Kind::Whole, Kind::Mig];
    for (document, name, value, expected) in [
        (&mps(), VISIBLE, json!({"value": "all"}), &["main", "side"][..]),
        (&mps(), VISIBLE, json!({"value": "none"}), &["main"]),
        (&mps(), VISIBLE, json!({"value": "void"}), &["main"]),
        (&mps(), VISIBLE, json!({"valueFrom": {"configMapKeyRef": {}}}), &["main", "side"]),
        (&mps(), PIPE, json!({"value": "/x"}), &["main"]),
        (&mps(), "PATH", json!({"value": "all"}), &[]),
        (&whole, VISIBLE, json!({"value": "all"}), &["main", "side"]),
        (&whole, PIPE, json!({"value": "/x"}), &[]),
        (&either, PIPE, json!({"value": "/x"}), &["main"]),
    ] {
        let mut variable = value.clone();
        variable["name"] = json!(name);
        let containers = ["main", "side"].map(|container| json!({"name": container, "env": [variable]}));
        let spec = json!({"containers": containers});
        let fit = fitted(&spec, document, &json!({"environment": "remove"})).unwrap();
        let removed: Vec<_> = fit.taken_out.iter().map(|variable| variable.container.as_str()).collect();
        assert_eq!(removed, expected, "{document:?} {variable}");
        let refused = fitted(&spec, document, &json!({})).err();
        let first = expected.first().map(|container| (*container).to_owned());
        let first = first.map(|container| Unfit::Environment { container, name: name.to_owned() });
        assert_eq!(refused, first, "{document:?} {variable}");
    }
}

#[test]
fn variables_of_a_container_are_removed_from_the_last_to_the_first() {
    let env = ["CUDA_MPS_PIPE_DIRECTORY", "PATH", "NVIDIA_VISIBLE_DEVICES"].map(|name| json!({"name": name}));
    let plain = json!({"name": "first"});
    let spec =
        json!({"initContainers": [plain, {"name": "main", "env": env}], "containers": [{"name": "side"}]});
    let fit = fitted(&spec, &mps(), &json!({"environment": "remove"})).unwrap();
    let places: Vec<_> = fit.taken_out.iter().map(|found| (found.list, found.index, found.place)).collect();
    assert_eq!(places, [("initContainers", 1, 2), ("initContainers", 1, 0)]);
}

#[test]
fn an_mps_share_is_warned_of_sources_that_may_bring_variables_of_mps() {
    let config = |prefix: &str| json!({"prefix": prefix, "configMapRef": {"name": "c"}});
    let sources = json!([
        {"configMapRef": {"name": "plain"}},
        config("CUDA_"),
        config("CUDA_MPS_PIPE_"),
        config("APP_"),
        {"secretRef": {"name": "keys"}},
        {"prefix": "CUDA_"},
    ]);
    let containers = ["main", "side"].map(|name| json!({"name": name, "envFrom": sources}));
    let spec = json!({"containers": containers});
    let unseen = fitted(&spec, &mps(), &json!({})).unwrap().unseen;
    let found: Vec<_> =
        unseen.iter().map(|found| (found.container.as_str(), found.place, found.source.as_str())).collect();
    assert_eq!(
        found,
        [
            ("main", 0, "ConfigMap plain"),
            ("main", 1, "ConfigMap c"),
            ("main", 2, "ConfigMap c"),
            ("main", 4, "Secret keys"),
        ]
    );
    let mig = request("nvidia.com/mig-1g.10gb", 1);
    assert_eq!(fitted(&spec, &mig, &json!({})).unwrap().unseen, []);
}
