use super::*;
use serde_json::json;

const DEPLOYMENT: &[&str] = &["spec", "template"];

fn deployment(limits: &Value) -> Value {
    let main = json!({"name": "main", "image": "i", "resources": {"limits": limits}});
    json!({"kind": "Deployment", "metadata": {"name": "d"}, "spec": {"replicas": 2, "template": {"spec": {"containers": [main]}}}})
}

fn qualified(object: &Value, template: &[&str]) -> Value {
    let mut after = object.clone();
    json_patch::patch(&mut after, &qualify(object, template)).unwrap();
    assert_eq!(qualify(&after, template), [], "once is enough");
    after
}

#[test]
fn a_bare_name_in_a_template_is_qualified() {
    let cases = [
        ("bare", json!({"cpu": "1", "gpu-10gb": "2"}), json!({"cpu": "1", "kerf.dev/gpu-10gb": "2"})),
        ("qualified", json!({"kerf.dev/gpu-10gb": "2"}), json!({"kerf.dev/gpu-10gb": "2"})),
        (
            "applied again",
            json!({"gpu-10gb": "2", "kerf.dev/gpu-10gb": "2"}),
            json!({"kerf.dev/gpu-10gb": "2"}),
        ),
        (
            "another count",
            json!({"gpu-10gb": "3", "kerf.dev/gpu-10gb": "2"}),
            json!({"kerf.dev/gpu-10gb": "3"}),
        ),
        (
            "another size",
            json!({"gpu-20gb": "1", "kerf.dev/gpu-10gb": "2"}),
            json!({"kerf.dev/gpu-20gb": "1"}),
        ),
        (
            "two",
            json!({"gpu-20gb": "1", "gpu-10gb": "1"}),
            json!({"kerf.dev/gpu-20gb": "1", "kerf.dev/gpu-10gb": "1"}),
        ),
        ("no size", json!({"gpu-0gb": "1", "gpu-x": "1"}), json!({"gpu-0gb": "1", "gpu-x": "1"})),
        ("others'", json!({"nvidia.com/gpu": "1"}), json!({"nvidia.com/gpu": "1"})),
        ("null", json!(null), json!(null)),
    ];
    for (case, before, after) in cases {
        assert_eq!(qualified(&deployment(&before), DEPLOYMENT), deployment(&after), "{case}");
    }
}

#[test]
fn a_template_without_bare_names_gets_no_patch() {
    let objects = [
        deployment(&json!({"cpu": "1"})),
        deployment(&json!({"kerf.dev/gpu-10gb": "1"})),
        json!({"spec": {"replicas": 1}}),
        json!({"spec": {"template": {"spec": {"containers": null}}}}),
        json!(null),
    ];
    for object in objects {
        assert_eq!(qualify(&object, DEPLOYMENT), [], "{object}");
    }
}

#[test]
fn requests_and_init_containers_are_qualified_too() {
    let resources = |name: &str| json!({"limits": {name: "1"}, "requests": {name: "1", "memory": "1Gi"}});
    let job = |name: &str| {
        let init = json!([{"name": "fetch"}, {"name": "load", "resources": resources(name)}]);
        let pod =
            json!({"initContainers": init, "containers": [{"name": "main", "resources": resources(name)}]});
        json!({"spec": {"schedule": "@daily", "jobTemplate": {"spec": {"template": {"spec": pod}}}}})
    };
    let cron = template_of("batch", "cronjobs").unwrap();
    assert_eq!(qualified(&job("gpu-10gb"), cron), job("kerf.dev/gpu-10gb"));
}

#[test]
fn six_resources_have_templates() {
    let named = |group: &str, resource: &str| template_of(group, resource).is_some();
    for resource in ["deployments", "statefulsets", "daemonsets", "replicasets"] {
        assert!(named("apps", resource), "{resource}");
    }
    assert!(named("batch", "jobs") && named("batch", "cronjobs"));
    assert!(!named("", "pods") && !named("batch", "deployments"));
}
