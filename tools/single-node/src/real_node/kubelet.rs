//! Starts the real kubelet as a node of the local control plane.

use std::fs;
use std::process::Command;

use anyhow::Context as _;
use kerf_core::keys;
use serde_json::{Value, json};

use super::{Places, containerd};
use kerf_tests::binaries;
use kerf_tests::control_plane::ControlPlane;
use kerf_tests::process::{Child, Program};

/// Starts it with the rights that the API server's Node authorizer grants.
pub fn start(plane: &ControlPlane, name: &str, places: &Places) -> anyhow::Result<Child> {
    let user = format!("system:node:{name}");
    let kubeconfig = plane.kubeconfig_for(&user, Some("system:nodes"))?;
    let path = places.state().join("kubelet.json");
    let configuration = configuration(plane, places);
    fs::write(&path, format!("{configuration:#}\n"))
        .context("failed to write the kubelet's configuration")?;
    let program = Program::new("kubelet", binaries::node_tool("kubelet")?, places.state())
        .args(["--config".into(), path])
        .args(["--kubeconfig".into(), kubeconfig])
        .args(["--hostname-override", name])
        .arg(format!("--node-labels={}/managed=true", keys::GROUP))
        .args(address()?.map(|address| format!("--node-ip={address}")));
    Ok(program.spawn()?)
}

fn configuration(plane: &ControlPlane, places: &Places) -> Value {
    json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": false},
            "webhook": {"enabled": false},
            "x509": {"clientCAFile": plane.dir().join("pki/ca.crt")},
        },
        "authorization": {"mode": "AlwaysAllow"},
        "cgroupDriver": "cgroupfs",
        // A machine with cgroups of version 1 suffices for a test without a GPU.
        "failCgroupV1": false,
        "containerRuntimeEndpoint": format!("unix://{}", containerd::socket(places)),
        "podLogsDir": places.pod_logs(),
        "failSwapOn": false,
        "makeIPTablesUtilChains": false,
        "localStorageCapacityIsolation": false,
        "enforceNodeAllocatable": [],
        // The machine is shared, so its memory and disk usage must not evict pods.
        "evictionHard": {"memory.available": "10Mi"},
        "imageGCHighThresholdPercent": 100,
        "resolvConf": "",
    })
}

/// The machine's first address. The kubelet rejects loopback addresses, and needs a default route if it gets
/// none.
fn address() -> anyhow::Result<Option<String>> {
    let output = Command::new("hostname").arg("-I").output().context("failed to run hostname")?;
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.split_whitespace().next().map(str::to_owned))
}
