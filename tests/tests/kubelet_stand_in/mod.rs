//! The stand-in kubelet: its rules, its sockets, and pods on a real API server.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test's helpers fail the test that calls them")]

mod images;
mod judge;
mod logs;
mod phases;
mod pods;
mod probes;
mod rules;
mod services;
mod sockets;

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Pod;
use serde_json::json;

const NAME: &str = "nvidia.com/mig-1g.10gb";

fn ids<const N: usize>(ids: [&str; N]) -> BTreeSet<String> {
    ids.into_iter().map(str::to_owned).collect()
}

/// A pod by its containers' counts of devices. Init containers also have a restart policy, empty for none.
fn pod(name: &str, init: &[(&str, &str, u32)], app: &[(&str, u32)]) -> Pod {
    let container = |name: &str, count: u32| json!({"name": name, "resources": {"limits": {NAME: count.to_string(), "cpu": "1"}}});
    let inits: Vec<_> = init
        .iter()
        .map(|(name, policy, count)| {
            let mut init = container(name, *count);
            init["restartPolicy"] = if policy.is_empty() { json!(null) } else { json!(policy) };
            init
        })
        .collect();
    let apps: Vec<_> = app.iter().map(|(name, count)| container(name, *count)).collect();
    serde_json::from_value(json!({
        "metadata": {"namespace": "team", "name": name, "uid": format!("uid-of-{name}")},
        "spec": {"initContainers": inits, "containers": apps},
    }))
    .unwrap()
}
