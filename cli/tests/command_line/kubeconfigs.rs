//! Tests how `kerf` finds the API server: by the files that `KUBECONFIG` lists, as kubectl does.

use serde_json::{Value, json};
use std::path::Path;
use std::process::Command;

fn files(folder: &Path, plugin: Option<&str>) -> String {
    let cluster = json!({"clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}]});
    let exec = json!({"apiVersion": "client.authentication.k8s.io/v1", "command": plugin, "interactiveMode": "Never"});
    let user = if plugin.is_some() { json!({"exec": exec}) } else { json!({}) };
    let context = json!({
        "current-context": "x",
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "users": [{"name": "u", "user": user}],
    });
    let path = |name: &str, document: &Value| {
        let path = folder.join(name);
        std::fs::write(&path, document.to_string()).unwrap();
        path.display().to_string()
    };
    format!("{}::{}", path("cluster", &cluster), path("context", &context))
}

fn check(kubeconfig: &str, home: &Path) -> (Option<i32>, String) {
    let mut kerf = Command::new(env!("CARGO_BIN_EXE_kerf"));
    kerf.args(["check", "--output=short"]).env_remove("KUBERNETES_SERVICE_HOST");
    let output = kerf.env("HOME", home).env("KUBECONFIG", kubeconfig).output().unwrap();
    (output.status.code(), String::from_utf8(output.stdout).unwrap())
}

#[test]
fn the_files_that_kubeconfig_lists_are_read_as_one() {
    let folder = tempfile::tempdir().unwrap();
    let (code, text) = check(&files(folder.path(), None), folder.path());
    assert!(text.contains("https://127.0.0.1:1/ does not answer"), "{text}");
    assert_eq!(code, Some(3));
}

#[test]
fn an_empty_kubeconfig_variable_is_ignored() {
    let home = tempfile::tempdir().unwrap();
    let (_, text) = check("", home.path());
    assert!(text.contains(".kube/config"), "{text}");
}

#[test]
fn a_missing_plugin_is_not_reported_as_an_unreachable_server() {
    let folder = tempfile::tempdir().unwrap();
    let (code, text) = check(&files(folder.path(), Some("/nonexistent/plugin")), folder.path());
    assert!(text.contains("/nonexistent/plugin, which the kubeconfig names, gives no credentials"), "{text}");
    assert_eq!(code, Some(3));
}
