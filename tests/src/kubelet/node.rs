//! The Node object: it is created at start if requested. Each status tick writes its device counts, and the
//! kubelet's address if it serves logs.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Instant;

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use kube::api::{Api, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use super::node_resources::{ResourceList, node_patch};
use super::options::NodeTemplate;
use super::parts::Core;
use super::status::rfc3339;

/// Creates the node, or updates the status of an existing one.
pub(super) async fn register(
    client: &Client,
    name: &str,
    template: &NodeTemplate,
) -> Result<(), kube::Error> {
    let api: Api<Node> = Api::all(client.clone());
    let status = status(template);
    let node = json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels(name, template)},
        "spec": {"taints": template.taints},
        "status": status,
    });
    let node: Node = serde_json::from_value(node).map_err(kube::Error::SerdeError)?;
    let created = match api.create(&PostParams::default(), &node).await {
        Err(kube::Error::Api(answer)) if answer.code == 409 => {
            let patch = Patch::Strategic(json!({"status": status}));
            return api.patch_status(name, &PatchParams::default(), &patch).await.map(drop);
        }
        other => other?,
    };
    // Admission taints every new node as not ready. The taint is removed here, because the node lifecycle
    // controller does not run in every test.
    let taints = created.spec.and_then(|spec| spec.taints).unwrap_or_default();
    if taints.iter().any(|taint| taint.key == "node.kubernetes.io/not-ready") {
        let patch = Patch::Merge(json!({"spec": {"taints": template.taints}}));
        api.patch(name, &PatchParams::default(), &patch).await?;
    }
    Ok(())
}

/// Ticks until the kubelet stops.
pub(super) async fn tick(core: &Core) {
    let mut ticks = tokio::time::interval(core.options.status_period);
    // A late tick is not followed by a burst of ticks.
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        if let Err(error) = write_status(core).await {
            tracing::debug!(node = core.options.node_name, %error, "a status tick of the stand-in kubelet failed");
        }
    }
}

/// The node's address and the port of its log server, as the kubelet reports them.
fn reached_at(port: u16) -> Value {
    json!({"status": {
        "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
    }})
}

async fn write_status(core: &Core) -> Result<(), kube::Error> {
    let api: Api<Node> = Api::all(core.options.client.clone());
    let name = &core.options.node_name;
    let Some(node) = api.get_opt(name).await? else { return Ok(()) };
    let status = node.status.unwrap_or_default();
    let (capacity, allocatable) =
        (status.capacity.unwrap_or_default(), status.allocatable.unwrap_or_default());
    let endpoint = status.daemon_endpoints.and_then(|endpoints| endpoints.kubelet_endpoint);
    let served = core.log_port.load(Ordering::Relaxed);
    if served != 0 && endpoint.is_none_or(|endpoint| endpoint.port != i32::from(served)) {
        api.patch_status(name, &PatchParams::default(), &Patch::Merge(reached_at(served))).await?;
    }
    if let Some(patch) = node_patch(&capacity, &allocatable, &core.devices.node_counts(Instant::now())) {
        api.patch_status(name, &PatchParams::default(), &Patch::Merge(patch)).await?;
    }
    Ok(())
}

/// The node's allocatable resources in the API server.
pub(super) async fn allocatable(core: &Core) -> Option<ResourceList> {
    let api: Api<Node> = Api::all(core.options.client.clone());
    let node = api.get_opt(&core.options.node_name).await.ok()??;
    Some(node.status?.allocatable.unwrap_or_default())
}

fn labels(name: &str, template: &NodeTemplate) -> BTreeMap<String, String> {
    let fixed =
        [("kubernetes.io/hostname", name), ("kubernetes.io/os", "linux"), ("kubernetes.io/arch", "amd64")];
    let fixed = fixed.map(|(label, value)| (label.to_owned(), value.to_owned()));
    fixed.into_iter().chain(template.labels.clone()).collect()
}

fn status(template: &NodeTemplate) -> Value {
    let now = rfc3339(Timestamp::now());
    let resources = json!({
        "cpu": template.cpu,
        "memory": template.memory,
        "pods": template.pods.to_string(),
    });
    json!({
        "capacity": resources,
        "allocatable": resources,
        "runtimeHandlers": [{"name": "", "features": {"userNamespaces": true}}],
        "conditions": [{
            "type": "Ready",
            "status": "True",
            "reason": "KubeletReady",
            "message": "the stand-in kubelet serves this node",
            "lastHeartbeatTime": now,
            "lastTransitionTime": now,
        }],
        "nodeInfo": {
            "architecture": "amd64",
            "bootID": "",
            "containerRuntimeVersion": "stand-in://1",
            "kernelVersion": "6.8.0",
            "kubeProxyVersion": "",
            "kubeletVersion": "v1.36.4",
            "machineID": "",
            "operatingSystem": "linux",
            "osImage": "stand-in kubelet",
            "systemUUID": "",
        },
    })
}
