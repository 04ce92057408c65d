//! Tests that every command has the same exit code for the same cause, because scripts decide by it.

use super::Home;
use super::stand_in::{StandIn, list, nodes};
use serde_json::json;

const OF_A_CLUSTER: [&[&str]; 11] = [
    &["check"],
    &["check", "--pre"],
    &["explain", "web"],
    &["manage", "gpu-1"],
    &["nodes"],
    &["release", "gpu-1"],
    &["uninstall", "nodes"],
    &["uninstall", "leftovers"],
    &["version"],
    &["bench", "sharing", "--image", "i"],
    &["bench", "profile", "web"],
];

#[test]
fn every_command_has_one_code_and_remedy_for_an_unreachable_server() {
    let home = Home::for_server("https://127.0.0.1:1");
    for words in OF_A_CLUSTER {
        let ran = home.run(words);
        let said = format!("{}{}", ran.stdout, ran.stderr);
        assert_eq!(ran.code, Some(3), "{words:?}: {said}");
        assert!(said.contains("https://127.0.0.1:1/ does not answer"), "{words:?}: {said}");
        assert!(said.contains("fetch a new kubeconfig"), "{words:?}: {said}");
    }
    for words in OF_A_CLUSTER {
        let ran = home.run(&[words, &["--context", "prod"]].concat());
        let said = format!("{}{}", ran.stdout, ran.stderr);
        assert_eq!(ran.code, Some(3), "{words:?}: {said}");
        assert!(
            said.contains("no context \"prod\"") && said.contains("kubectl config get-contexts"),
            "{said}"
        );
    }
}

#[test]
fn every_command_has_one_code_for_a_wrong_flag() {
    let home = Home::for_server("https://127.0.0.1:1");
    let local = [&["gpu", "list"][..], &["policy", "check", "-f", "x"], &["simulate"], &["scheduler-config"]];
    for words in OF_A_CLUSTER.iter().copied().chain(local) {
        let ran = home.run(&[words, &["--no-such-flag"]].concat());
        assert_eq!(ran.code, Some(2), "{words:?}: {ran:?}");
        assert_eq!(ran.stdout, "", "{words:?}");
    }
    for (words, known) in [
        (&["nodes", "-o", "x"][..], "[possible values: json, yaml, wide]"),
        (&["check", "-o", "wide"], "[possible values: json, yaml, short]"),
        (&["explain", "web", "-o", "wide"], "[possible values: json, yaml]"),
        (&["version", "-o", "wide"], "[possible values: json, yaml]"),
    ] {
        let ran = home.run(words);
        assert_eq!(ran.code, Some(2), "{ran:?}");
        assert!(ran.stderr.contains(known), "{ran:?}");
    }
}

#[test]
fn a_wrong_file_has_the_code_of_a_wrong_flag() {
    let home = Home::for_server("https://127.0.0.1:1");
    std::fs::write(home.path().join("bad.yaml"), "a: [").unwrap();
    for words in [
        &["explain", "-f", "none.yaml"][..],
        &["explain", "-f", "bad.yaml"],
        &["policy", "convert", "-f", "none.yaml"],
        &["policy", "convert", "-f", "bad.yaml"],
        &["policy", "explain", "-f", "bad.yaml", "--policy", "none"],
        &["policy", "test", "-f", ".", "--policy", "none"],
        &["simulate", "-f", "none.txt"],
        &["simulate", "--snapshot", "bad.yaml"],
        &["bench", "report", "-f", "none.json"],
        &["scheduler-config", "--scheduler-name", "a", "--scheduler-name", "a"],
        &["gpu", "list", "--nvml", "/no/such/library"],
    ] {
        let ran = home.run(words);
        assert_eq!(ran.code, Some(2), "{words:?}: {ran:?}");
        assert!(ran.stderr.starts_with("Error: "), "{words:?}: {ran:?}");
    }
    // A bad policy has another code, because it is an answer of this command and not a wrong input.
    assert_eq!(home.run(&["policy", "check", "-f", "bad.yaml"]).code, Some(1));
}

#[test]
fn every_command_has_one_code_for_a_missing_object() {
    let mut objects = nodes(&["gpu-1"]);
    objects.push(("/api/v1/namespaces/team/pods", list(&[])));
    let api = StandIn::api(&objects);
    let home = Home::for_server(&format!("http://{}", api.address));
    for (words, what) in [
        (&["nodes", "gpu-9"][..], "node gpu-9 has no GPUs"),
        (&["explain", "web"], "there is no pod web in namespace team"),
        (&["explain", "-l", "app=web"], "no pod of namespace team has these labels"),
        (&["explain", "-n", "other", "pod/web"], "there is no pod web in namespace other"),
        (&["release", "gpu-9"], "there is no node gpu-9"),
        (&["bench", "profile", "web"], "there is no pod web in namespace team"),
    ] {
        let ran = home.run(words);
        assert_eq!(ran.code, Some(4), "{words:?}: {ran:?}");
        assert!(ran.stderr.contains(what), "{words:?}: {ran:?}");
        assert_eq!(ran.stdout, "", "{words:?}");
    }
}

#[test]
fn the_exit_code_of_check_is_1_if_something_fails() {
    let api = StandIn::api(&[("/api/v1/namespaces/gpu/pods", list(&[]))]);
    let home = Home::for_server(&format!("http://{}", api.address));
    let ran = home.run(&["check", "--kerf-namespace", "gpu", "-o", "json"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    let json: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(json["good"], json!(false));
    let yaml = home.run(&["check", "--kerf-namespace", "gpu", "-o", "yaml"]);
    assert_eq!(json, serde_saphyr::from_str::<serde_json::Value>(&yaml.stdout).unwrap());
}
