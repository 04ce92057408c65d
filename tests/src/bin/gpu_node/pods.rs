//! Pods through the API server: made, waited for, removed.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use k8s_openapi::api::core::v1::{Event, Pod};
use kerf_tests::cluster::wait;
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, Client};

/// How a pod stands, with what the kubelet says of it and of its containers that have ended.
pub fn standing(pod: &Pod) -> String {
    let status = pod.status.clone().unwrap_or_default();
    let ended = status.container_statuses.unwrap_or_default().into_iter().filter_map(|c| c.state?.terminated);
    let ended = ended.map(|end| {
        let said = [end.reason, end.message].into_iter().flatten().collect::<Vec<_>>();
        format!("exit code {}: {}", end.exit_code, said.join(": "))
    });
    let texts = [status.phase, status.reason, status.message].into_iter().flatten().chain(ended);
    texts.collect::<Vec<_>>().join("; ")
}

/// The longest that a pod may take to run: the share's daemon has to start first.
const PATIENCE: Duration = Duration::from_mins(1);

/// The pods of the namespace `default`.
pub struct Pods {
    client: Client,
    api: Api<Pod>,
}

impl Pods {
    pub fn new(client: Client) -> Self {
        Self { api: Api::default_namespaced(client.clone()), client }
    }

    pub async fn create(&self, pod: &Pod) -> anyhow::Result<()> {
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        let created = self.api.create(&PostParams::default(), pod).await;
        created.map(drop).with_context(|| format!("failed to create the pod {name}"))
    }

    /// Waits until the kubelet runs the pod, or has tried to; gives it, and how long it took.
    pub async fn running(&self, name: &str, since: Instant) -> anyhow::Result<(Pod, Duration)> {
        let runs = async || {
            let phase = self.get(name).await?.status.unwrap_or_default().phase.unwrap_or_default();
            Ok(matches!(phase.as_str(), "Running" | "Failed" | "Succeeded"))
        };
        if let Err(error) = wait(PATIENCE, &format!("pod {name} to run"), runs).await {
            let events = self.events(name).await?;
            return Err(error.context(events.join("\n")));
        }
        let took = since.elapsed();
        Ok((self.get(name).await?, took))
    }

    pub async fn get(&self, name: &str) -> anyhow::Result<Pod> {
        Ok(self.api.get(name).await?)
    }

    /// Deletes the pods that there are of these, and waits until they are gone.
    pub async fn delete(&self, names: &[String]) -> anyhow::Result<()> {
        for name in names {
            match self.api.delete(name, &DeleteParams::default()).await {
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                result => result.map(drop).with_context(|| format!("failed to delete the pod {name}"))?,
            }
        }
        let gone = async || {
            let left = self.api.list(&ListParams::default()).await?.items;
            Ok(!left.iter().any(|pod| pod.metadata.name.as_ref().is_some_and(|name| names.contains(name))))
        };
        wait(PATIENCE, "the pods to go", gone).await
    }

    async fn events(&self, name: &str) -> anyhow::Result<Vec<String>> {
        let about = ListParams::default().fields(&format!("involvedObject.name={name}"));
        let events = Api::<Event>::default_namespaced(self.client.clone()).list(&about).await?;
        Ok(events.items.into_iter().filter_map(|event| event.message).collect())
    }
}
