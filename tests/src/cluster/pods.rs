//! What tests ask of pods.

use std::time::Duration;

use anyhow::{Context as _, bail};
use k8s_openapi::api::core::v1::{Event, Pod};
use kerf_core::contract::RequestDocument;
use kerf_core::keys;
use kube::Api;
use kube::api::{DeleteParams, ListParams, PostParams};

use super::{Cluster, wait};

/// The longest that a pod may need when nothing is broken: the scheduler's longest back-off and some.
const PATIENCE: Duration = Duration::from_secs(30);

/// The request document that the pod was admitted with.
pub fn request_of(pod: &Pod) -> anyhow::Result<RequestDocument> {
    let text = pod.metadata.annotations.as_ref().and_then(|annotations| annotations.get(keys::REQUEST));
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    Ok(RequestDocument::parse(text.with_context(|| format!("{name} has no request document"))?)?)
}

/// What the pod's first container that asks was given.
pub fn resource_of(pod: &Pod) -> anyhow::Result<String> {
    Ok(request_of(pod)?.containers.first().context("no container asks")?.resource.to_string())
}

impl Cluster {
    /// Creates a pod in the namespace `default`.
    pub async fn create(&self, pod: &Pod) -> anyhow::Result<Pod> {
        Ok(self.pods().create(&PostParams::default(), pod).await?)
    }

    /// Why the API server refuses a pod.
    pub async fn refusal(&self, pod: &Pod) -> anyhow::Result<String> {
        match self.pods().create(&PostParams::default(), pod).await {
            Ok(_) => bail!("the pod was accepted"),
            Err(kube::Error::Api(status)) => Ok(status.message.clone()),
            Err(error) => Err(error.into()),
        }
    }

    /// Why the API server would refuse a pod; `None` if it would take it.
    pub async fn dry_run_refusal(&self, pod: &Pod) -> anyhow::Result<Option<String>> {
        let dry_run = PostParams { dry_run: true, ..PostParams::default() };
        match self.pods().create(&dry_run, pod).await {
            Ok(_) => Ok(None),
            Err(kube::Error::Api(status)) => Ok(Some(status.message.clone())),
            Err(error) => Err(error.into()),
        }
    }

    /// Waits until the pod runs; fails at once if it failed.
    pub async fn running(&self, name: &str) -> anyhow::Result<Pod> {
        let what = format!("{name} to run");
        let found = wait(PATIENCE, &what, async || {
            Ok(matches!(self.phase(name).await?.as_str(), "Running" | "Failed"))
        });
        if let Err(error) = found.await {
            let events = self.events(name).await?;
            return Err(error.context(events.join("\n")));
        }
        let pod = self.pods().get(name).await?;
        let status = pod.status.clone().unwrap_or_default();
        if status.phase.as_deref() == Some("Failed") {
            bail!("{name} failed: {}", status.message.unwrap_or_default());
        }
        Ok(pod)
    }

    /// The pod's phase.
    pub async fn phase(&self, name: &str) -> anyhow::Result<String> {
        let pod = self.pods().get(name).await?;
        Ok(pod.status.and_then(|s| s.phase).unwrap_or_default())
    }

    /// Deletes a pod and waits until it is gone.
    pub async fn delete(&self, name: &str) -> anyhow::Result<()> {
        self.pods().delete(name, &DeleteParams::default().grace_period(0)).await?;
        let gone = async || Ok(self.pods().get_opt(name).await?.is_none());
        wait(PATIENCE, &format!("{name} to go"), gone).await
    }

    /// Waits for an event on the pod whose message contains `text`; gives the message.
    pub async fn event(&self, name: &str, text: &str) -> anyhow::Result<String> {
        let found = async || Ok(self.events(name).await?.iter().any(|message| message.contains(text)));
        let what = format!("an event on {name} with {text:?}");
        let seen = wait(PATIENCE, &what, found).await;
        let events = self.events(name).await?;
        seen.with_context(|| events.join("\n"))?;
        events.into_iter().find(|message| message.contains(text)).context("the event is gone")
    }

    async fn events(&self, name: &str) -> anyhow::Result<Vec<String>> {
        let events = Api::<Event>::default_namespaced(self.plane().client());
        let about = ListParams::default().fields(&format!("involvedObject.name={name}"));
        Ok(events.list(&about).await?.items.into_iter().filter_map(|e| e.message).collect())
    }
}
