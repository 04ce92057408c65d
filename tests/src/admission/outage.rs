//! Webhooks that are away or hang, and pods with every form of request, to see which pods the API server
//! sends to the webhook.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::Context as _;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::core::v1::Pod;
use kerf_core::admission::MatchCondition;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::AbortHandle;

const CONFIGURATION: &str = "kerf";

/// A webhook that hangs: it accepts connections and never answers. Dropping it stops it.
#[derive(Debug)]
pub struct HungWebhook {
    address: SocketAddr,
    connections: Arc<AtomicUsize>,
    accepting: AbortHandle,
}

impl HungWebhook {
    pub async fn start() -> std::io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let (address, connections) = (listener.local_addr()?, Arc::new(AtomicUsize::new(0)));
        let counted = connections.clone();
        let accepting = tokio::spawn(async move {
            // The connections stay open: a closed one would be an error at once instead of a timeout.
            let mut open = Vec::new();
            while let Ok((connection, _)) = listener.accept().await {
                counted.fetch_add(1, Ordering::Relaxed);
                open.push(connection);
            }
        });
        Ok(Self { address, connections, accepting: accepting.abort_handle() })
    }

    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// How many connections it has accepted.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }
}

impl Drop for HungWebhook {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

#[must_use]
pub fn limited(name: &str, amount: &str) -> Value {
    let main = json!({"name": "main", "image": "none", "resources": {"limits": {name: amount}}});
    json!({"metadata": {"name": "p"}, "spec": {"containers": [main]}})
}

#[must_use]
pub fn annotated(key: &str, text: &str) -> Value {
    let main = json!({"name": "main", "image": "none"});
    json!({"metadata": {"name": "p", "annotations": {key: text}}, "spec": {"containers": [main]}})
}

/// Pods that request nothing from kerf while no policy has a dialect: plain pods, and pods of other systems.
#[must_use]
pub fn of_others() -> Vec<Value> {
    vec![
        limited("cpu", "1"),
        limited("example.com/gpu", "1"),
        limited("nvidia.com/gpu", "1"),
        limited("nvidia.com/gpu", "0"),
        limited("nvidia.com/gpu.shared", "1"),
        limited("nvidia.com/gpu-fast", "1"),
        limited("nvidia.com/mig-1g.10gb", "1"),
        limited("nvidia.com/gpumem", "3000"),
        limited("nvidia.com/gpucores", "30"),
        limited("aliyun.com/gpu-mem", "3"),
        annotated("gpu-fraction", "0.5"),
        annotated("gpu-memory", "2000"),
        annotated("runai/queue", "team"),
        annotated("example.com/kerf.dev", "1"),
        annotated("kerf.dev/movable", "true"),
        json!({
            "metadata": {"name": "p", "labels": {"app": "gpu-10gb"}},
            "spec": {"containers": [{"name": "gpu-10gb", "image": "none"}], "initContainers": [{"name": "a", "image": "none"}]},
        }),
    ]
}

/// Pods that address kerf under every policy.
#[must_use]
pub fn of_kerf() -> Vec<Value> {
    let resources =
        |key: &str, name: &str| json!({"name": "a", "image": "none", "resources": {key: {name: "1"}}});
    let main = json!({"name": "main", "image": "none"});
    vec![
        annotated("kerf.dev/gpu-memory", "10Gi"),
        annotated("kerf.dev/gpu-memroy", "10Gi"),
        annotated("kerf.dev/isolation", "none"),
        annotated("kerf.dev/request", "{}"),
        limited("gpu-10gb", "1"),
        limited("kerf.dev/gpu-10gb", "1"),
        limited("kerf.dev/gpu", "1"),
        limited("nvidia.com/gpu-10gb", "1"),
        limited("nvidia.com/gpu-10gb.shared", "1"),
        json!({"metadata": {"name": "p", "labels": {"kerf.dev/sliced": "true"}}, "spec": {"containers": [main]}}),
        json!({"metadata": {"name": "p"}, "spec": {"containers": [main], "initContainers": [resources("limits", "gpu-1gb")]}}),
        json!({"metadata": {"name": "p"}, "spec": {"containers": [resources("requests", "gpu-10gb")]}}),
    ]
}

pub fn pod_of(json: &Value) -> anyhow::Result<Pod> {
    serde_json::from_value(json.clone()).with_context(|| format!("{json} is no pod"))
}

/// The match condition of the pods' webhook, as the API server has it.
pub async fn match_condition(client: &Client) -> anyhow::Result<String> {
    let api: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
    let webhooks = api.get(CONFIGURATION).await?.webhooks.unwrap_or_default();
    let pods = webhooks.into_iter().find(|webhook| webhook.name == MatchCondition::WEBHOOK);
    let conditions = pods.and_then(|webhook| webhook.match_conditions).unwrap_or_default();
    let found = conditions.into_iter().find(|condition| condition.name == MatchCondition::NAME);
    Ok(found.context("there is no match condition")?.expression)
}

pub async fn set_match_condition(client: &Client, expression: &str) -> anyhow::Result<()> {
    let conditions = json!([{"name": MatchCondition::NAME, "expression": expression}]);
    // A strategic merge matches webhooks by name, so that the other entries stay.
    let patch = json!({"webhooks": [{"name": MatchCondition::WEBHOOK, "matchConditions": conditions}]});
    let api: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
    api.patch(CONFIGURATION, &PatchParams::default(), &Patch::Strategic(patch)).await?;
    Ok(())
}
