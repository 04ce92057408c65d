use super::*;
use std::path::Path;

fn explained(fixture: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/explain/testdata").join(fixture);
    account(&Records::read(&path).unwrap())
}

#[test]
fn a_pod_that_runs_is_told_from_its_request_to_its_slice() {
    insta::assert_snapshot!(explained("runs.yaml"));
}

#[test]
fn a_pod_on_a_static_node_is_told_with_the_devices_that_it_was_given() {
    insta::assert_snapshot!(explained("static.yaml"));
}

#[test]
fn a_pod_that_waits_is_told_why() {
    insta::assert_snapshot!(explained("waits.yaml"));
}

#[test]
fn what_is_not_recorded_is_said_and_not_guessed() {
    insta::assert_snapshot!(explained("stranger.yaml"));
}
