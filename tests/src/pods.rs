//! Creates, awaits, reads and deletes pods through the API server.

use std::time::Duration;

use anyhow::{Context as _, bail};
use k8s_openapi::api::core::v1::{Event, Pod};
use kerf_core::contract::{AssignmentDocument, RequestDocument};
use kerf_core::keys;
use kerf_core::kind::Kind;
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::cluster::wait;

/// Timeout for a pod if nothing is broken: the scheduler's longest backoff and a margin.
const TIMEOUT: Duration = Duration::from_secs(30);

/// A pod for this scheduler, with what the webhook writes for a slice of `resource`.
#[must_use]
pub fn admitted(name: &str, scheduler: &str, resource: &str, request: &RequestDocument) -> Value {
    json!({
        "metadata": {
            "name": name,
            "labels": {keys::SLICED: "true"},
            "annotations": {keys::REQUEST: request.to_json()},
        },
        "spec": {
            "schedulerName": scheduler,
            "containers": [{"name": "main", "image": "none", "resources": {"limits": {resource: "1"}}}],
        },
    })
}

/// The request document of an admitted pod.
pub fn request_of(pod: &Pod) -> anyhow::Result<RequestDocument> {
    let text = pod.metadata.annotations.as_ref().and_then(|annotations| annotations.get(keys::REQUEST));
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    Ok(RequestDocument::parse(text.with_context(|| format!("{name} has no request document"))?)?)
}

/// The slices that the pod was bound with.
pub fn assignment_of(pod: &Pod) -> anyhow::Result<AssignmentDocument> {
    let text = pod.metadata.annotations.as_ref().and_then(|annotations| annotations.get(keys::ASSIGNMENT));
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    Ok(serde_json::from_str(text.with_context(|| format!("{name} has no assignment"))?)?)
}

/// The kind of the first slice that the pod was bound with.
pub fn kind_of(pod: &Pod) -> anyhow::Result<Kind> {
    Ok(assignment_of(pod)?.slices.first().context("no slice is assigned")?.shape.kind())
}

/// The resource name of the pod's first container with a request.
pub fn resource_of(pod: &Pod) -> anyhow::Result<String> {
    Ok(request_of(pod)?.containers.first().context("no container asks")?.resource.to_string())
}

/// The pod's phase; empty before it has one.
#[must_use]
pub fn phase_of(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

/// The node that the pod is bound to.
#[must_use]
pub fn node_of(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref()
}

/// Whether all containers of the pod have ended for good.
#[must_use]
pub fn is_finished(pod: &Pod) -> bool {
    matches!(phase_of(pod), "Succeeded" | "Failed")
}

/// Whether the pod's condition Ready is true.
#[must_use]
pub fn is_ready(pod: &Pod) -> bool {
    has_condition(pod, "Ready", "True")
}

/// Whether kube-scheduler found no node for the pod.
#[must_use]
pub fn is_unschedulable(pod: &Pod) -> bool {
    has_condition(pod, "PodScheduled", "False")
}

#[must_use]
pub fn has_condition(pod: &Pod, kind: &str, status: &str) -> bool {
    let mut conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.any(|condition| condition.type_ == kind && condition.status == status)
}

/// The pod's phase, with the kubelet's reasons for it and for its ended containers.
#[must_use]
pub fn state_of(pod: &Pod) -> String {
    let status = pod.status.clone().unwrap_or_default();
    let ended = status.container_statuses.unwrap_or_default().into_iter().filter_map(|c| c.state?.terminated);
    let ended = ended.map(|end| {
        let said = [end.reason, end.message].into_iter().flatten().collect::<Vec<_>>();
        format!("exit code {}: {}", end.exit_code, said.join(": "))
    });
    let texts = [status.phase, status.reason, status.message].into_iter().flatten().chain(ended);
    texts.collect::<Vec<_>>().join("; ")
}

/// Binds a pod to a node, as a scheduler does.
pub async fn bind(pods: &Api<Pod>, name: &str, node: &str) -> anyhow::Result<()> {
    let binding = json!({
        "apiVersion": "v1", "kind": "Binding", "metadata": {"name": name},
        "target": {"kind": "Node", "name": node},
    });
    let _: Value = pods.create_subresource("binding", name, &PostParams::default(), &binding).await?;
    Ok(())
}

/// The pods of the namespace `default`.
#[derive(Clone)]
pub struct Pods {
    client: Client,
    api: Api<Pod>,
}

impl Pods {
    /// Pods with the rights of this client.
    #[must_use]
    pub fn new(client: Client) -> Self {
        Self { api: Api::default_namespaced(client.clone()), client }
    }

    /// The API of these pods, for calls without a helper here.
    #[must_use]
    pub fn api(&self) -> &Api<Pod> {
        &self.api
    }

    pub async fn create(&self, pod: &Pod) -> anyhow::Result<Pod> {
        Ok(self.api.create(&PostParams::default(), pod).await?)
    }

    /// The API server's error for a pod that it must reject.
    pub async fn refusal(&self, pod: &Pod) -> anyhow::Result<String> {
        refusal(self.api.create(&PostParams::default(), pod).await)?.context("the pod was accepted")
    }

    /// The API server's error for a pod in a dry run; `None` if it accepts the pod.
    pub async fn dry_run_refusal(&self, pod: &Pod) -> anyhow::Result<Option<String>> {
        let dry_run = PostParams { dry_run: true, ..PostParams::default() };
        refusal(self.api.create(&dry_run, pod).await)
    }

    /// The pod, which must exist.
    pub async fn get(&self, name: &str) -> anyhow::Result<Pod> {
        Ok(self.api.get(name).await?)
    }

    pub async fn phase(&self, name: &str) -> anyhow::Result<String> {
        Ok(phase_of(&self.get(name).await?).to_owned())
    }

    /// Waits until the pod runs. Fails at once if it failed.
    pub async fn running(&self, name: &str) -> anyhow::Result<Pod> {
        let pod = self.in_phase(name, &["Running", "Failed"]).await?;
        if phase_of(&pod) == "Failed" {
            bail!("{name} failed: {}", pod.status.and_then(|status| status.message).unwrap_or_default());
        }
        Ok(pod)
    }

    /// Waits until the pod is in one of these phases.
    pub async fn in_phase(&self, name: &str, phases: &[&str]) -> anyhow::Result<Pod> {
        let what = format!("{name} to be {}", phases.join(" or "));
        let found = async || Ok(phases.contains(&self.phase(name).await?.as_str()));
        if let Err(error) = wait(TIMEOUT, &what, found).await {
            return Err(error.context(self.events(name).await?.join("\n")));
        }
        self.get(name).await
    }

    /// Deletes a pod without grace, and waits until it is gone. It is for pods without containers that need
    /// an orderly end.
    pub async fn delete(&self, name: &str) -> anyhow::Result<()> {
        self.api.delete(name, &DeleteParams::default().grace_period(0)).await?;
        let gone = async || Ok(self.api.get_opt(name).await?.is_none());
        wait(TIMEOUT, &format!("{name} to go"), gone).await
    }

    /// Deletes all pods, and waits until the kubelet has ended them.
    pub async fn end_all(&self) -> anyhow::Result<()> {
        self.api.delete_collection(&DeleteParams::default(), &ListParams::default()).await?;
        let none = async || Ok(self.api.list(&ListParams::default()).await?.items.is_empty());
        wait(TIMEOUT, "all pods to go", none).await
    }

    /// Waits for an Event about the pod whose message contains `text`, and returns the message.
    pub async fn event(&self, name: &str, text: &str) -> anyhow::Result<String> {
        let found = async || Ok(self.events(name).await?.iter().any(|message| message.contains(text)));
        let what = format!("an event on {name} with {text:?}");
        let seen = wait(TIMEOUT, &what, found).await;
        let events = self.events(name).await?;
        seen.with_context(|| events.join("\n"))?;
        events.into_iter().find(|message| message.contains(text)).context("the event is gone")
    }

    /// The messages of all Events about the pod.
    pub async fn events(&self, name: &str) -> anyhow::Result<Vec<String>> {
        let events = Api::<Event>::default_namespaced(self.client.clone());
        let about = ListParams::default().fields(&format!("involvedObject.name={name}"));
        Ok(events.list(&about).await?.items.into_iter().filter_map(|e| e.message).collect())
    }
}

/// The API server's message if it rejected the pod; `None` if it accepted it.
fn refusal(created: kube::Result<Pod>) -> anyhow::Result<Option<String>> {
    match created {
        Ok(_) => Ok(None),
        Err(kube::Error::Api(status)) => Ok(Some(status.message.clone())),
        Err(error) => Err(error.into()),
    }
}
