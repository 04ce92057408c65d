//! Tests the output of `kerf version`.

use super::Home;
use super::stand_in::{StandIn, list};
use serde_json::{Value, json};

fn pod(program: &str, image: &str) -> Value {
    json!({
        "metadata": {"name": program, "labels": {"app.kubernetes.io/name": program}},
        "spec": {"containers": [{"name": "main", "image": image}]},
    })
}

const PODS: &str = "/api/v1/namespaces/kerf-system/pods";

#[test]
fn programs_are_listed_by_version_and_mismatches_have_a_remedy() {
    let own = env!("CARGO_PKG_VERSION");
    let pods = [
        pod("kerf-webhook", &format!("r:5000/kerf-webhook:{own}")),
        pod("kerf-extender", &format!("kerf-extender:{own}")),
        pod("kerf-node-agent", &format!("kerf-node-agent:{own}")),
        pod("kerf-node-agent", "kerf-node-agent:0.0.9"),
        pod("kerf-node-agent", "kerf-node-agent:0.0.9"),
        pod("kerf-scheduler", "registry.k8s.io/kube-scheduler:v1.34.0"),
    ];
    let api = StandIn::api(&[(PODS, list(&pods))]);
    let home = Home::for_server(&format!("http://{}", api.address));
    let ran = home.run(&["version"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.stdout.contains("\nKubernetes: v1.36.1\n"), "{ran:?}");
    let rows: Vec<Vec<&str>> =
        ran.stdout.lines().skip(4).map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(
        rows,
        [
            ["kerf-webhook", own, "1"],
            ["kerf-extender", own, "1"],
            ["kerf-node-agent", "0.0.9", "2"],
            ["kerf-node-agent", own, "1"],
            ["kerf-scheduler", "v1.34.0", "1"],
        ]
    );
    assert!(ran.stderr.contains("kerf-node-agent is 0.0.9 (2 pods)"), "{ran:?}");
    assert!(ran.stderr.contains("helm upgrade") && ran.stderr.contains("kube-scheduler of v1.36"), "{ran:?}");
    let json: Value = serde_json::from_str(&home.run(&["version", "-o", "json"]).stdout).unwrap();
    assert_eq!(json["kubernetes"]["version"], "v1.36.1");
    assert_eq!(
        json["server"]["programs"][2],
        json!({"program": "kerf-node-agent", "version": "0.0.9", "pods": 2})
    );
    assert_eq!(json["server"]["skew"].as_array().map(Vec::len), Some(2));
}

#[test]
fn the_client_version_is_printed_without_a_cluster() {
    let home = Home::for_server("https://127.0.0.1:1");
    let ran = home.run(&["version", "--client", "-o", "json"]);
    let json: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!((ran.code, json.as_object().map(serde_json::Map::len)), (Some(0), Some(1)), "{ran:?}");
    let ran = home.run(&["version"]);
    assert_eq!(ran.code, Some(3), "{ran:?}");
    assert!(ran.stdout.starts_with("Client: ") && ran.stderr.contains("does not answer"), "{ran:?}");
}

#[test]
fn a_cluster_without_kerf_is_reported() {
    let api = StandIn::api(&[(PODS, list(&[]))]);
    let ran = Home::for_server(&format!("http://{}", api.address)).run(&["version"]);
    assert!(ran.stdout.contains("kerf is not installed in kerf-system"), "{ran:?}");
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""));
}
