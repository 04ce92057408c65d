//! The pods of the test: the machine's Python, in the machine's /usr and /opt, with a script of ours.

use std::fs;
use std::path::PathBuf;

use anyhow::Context as _;
use k8s_openapi::api::core::v1::Pod;
use kerf_core::keys;
use kerf_tests::real_node::IMAGE;
use serde_json::json;

use crate::args::Args;

/// The only container's name.
pub const CONTAINER: &str = "main";

const SCRIPT: &str = include_str!("sees.py");

/// Puts the script where pods mount it from.
pub fn write_script(args: &Args) -> anyhow::Result<()> {
    fs::create_dir_all(folder(args)).context("failed to create the script's folder")?;
    fs::write(folder(args).join("sees.py"), SCRIPT).context("failed to write the script")
}

fn folder(args: &Args) -> PathBuf {
    args.state.join("job")
}

/// A pod that asks for so much memory behind a fence of memory, and tells what it sees.
pub fn pod(args: &Args, name: &str, memory: &str) -> anyhow::Result<Pod> {
    let mut command = vec![args.python.display().to_string(), "/job/sees.py".to_owned()];
    command.extend(args.simulated.then(|| "--without-cuda".to_owned()));
    let mounts = [("usr", "/usr"), ("opt", "/opt"), ("job", "/job"), ("libraries", "/etc/ld.so.cache")];
    let mounts = mounts.map(|(name, path)| json!({"name": name, "mountPath": path, "readOnly": true}));
    let volume = |name: &str, path: &str| json!({"name": name, "hostPath": {"path": path}});
    let pod = json!({
        "metadata": {
            "name": name,
            "annotations": {keys::GPU_MEMORY: memory, keys::ISOLATION: "memory"},
        },
        "spec": {
            "hostNetwork": true,
            "restartPolicy": "Never",
            "automountServiceAccountToken": false,
            "enableServiceLinks": false,
            "terminationGracePeriodSeconds": 1,
            "containers": [{
                "name": CONTAINER,
                "image": IMAGE,
                "imagePullPolicy": "Never",
                "command": command,
                "env": [{"name": "LD_LIBRARY_PATH", "value": args.libraries}],
                "volumeMounts": mounts,
            }],
            "volumes": [
                volume("usr", "/usr"),
                volume("opt", "/opt"),
                volume("job", &folder(args).display().to_string()),
                volume("libraries", "/etc/ld.so.cache"),
            ],
        },
    });
    serde_json::from_value(pod).context("the pod is malformed")
}
