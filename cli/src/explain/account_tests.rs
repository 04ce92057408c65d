use super::*;
use crate::output::render;
use std::path::Path;

fn explained(fixture: &str) -> String {
    text_of(&records(fixture))
}

fn text_of(records: &Records) -> String {
    Accounts::new(records).text(Format::Text)
}

fn records(fixture: &str) -> Records {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/explain/testdata").join(fixture);
    Records::read(&path).unwrap()
}

#[test]
fn a_running_pod_is_explained_from_request_to_slice() {
    insta::assert_snapshot!(explained("runs.yaml"));
}

#[test]
fn programs_read_the_documents_and_the_entries_with_their_times() {
    let text = render(&Accounts::new(&records("runs.yaml")), Format::Json).unwrap();
    let mut json: serde_json::Value = serde_json::from_str(&text).unwrap();
    let pod = json["pods"][0].take();
    assert_eq!((&pod["phase"], &pod["request"]["version"]), (&"Running".into(), &1.into()));
    assert!(pod["assignment"]["slices"][0]["id"].is_string());
    let topics: Vec<&str> =
        pod["entries"].as_array().unwrap().iter().map(|entry| entry["topic"].as_str().unwrap()).collect();
    assert_eq!((topics.first(), topics.last()), (Some(&"admission"), Some(&"phase")));
    assert!(pod["entries"][0]["time"].as_str().unwrap().ends_with('Z'));
}

#[test]
fn a_pod_on_a_static_node_is_explained_with_its_devices() {
    insta::assert_snapshot!(explained("static.yaml"));
}

#[test]
fn a_pending_pod_is_explained_with_the_reasons() {
    insta::assert_snapshot!(explained("waits.yaml"));
}

#[test]
fn a_pod_of_several_kinds_is_explained_with_kinds_and_rejected_nodes() {
    insta::assert_snapshot!(explained("neutral.yaml"));
}

#[test]
fn missing_records_are_reported_and_not_guessed() {
    insta::assert_snapshot!(explained("stranger.yaml"));
}

#[test]
fn an_unreadable_node_hides_no_other_node() {
    let mut records = records("waits.yaml");
    let slice = serde_json::json!({"id": "s9", "gpu": "GPU-9", "shape": {"kind": "future"}});
    let node = serde_json::json!({"metadata": {"name": "newer"}, "status": {"slices": [slice]}});
    records.nodes.as_mut().unwrap().push(serde_json::from_value(node).unwrap());
    let text = text_of(&records);
    assert!(text.contains("Not readable: GpuNode newer: failed to read GpuNode.status"), "{text}");
    assert!(text.contains("h100, h101: GPU slices in use"), "{text}");
}

#[test]
fn without_access_to_gpu_nodes_or_events_the_rest_is_explained() {
    let mut records = records("waits.yaml");
    let forbidden = |what: &str| format!("{what} is forbidden: User \"jane\" cannot list resource {what:?}");
    (records.pods[0].events, records.nodes) = (Err(forbidden("events")), Err(forbidden("gpunodes.kerf.dev")));
    records.static_nodes = Err("only GpuNodes show which they are".to_owned());
    records.renames_unknown = Some(forbidden("clusterpolicies.nvidia.com"));
    insta::assert_snapshot!(text_of(&records));
}
