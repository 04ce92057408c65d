//! The pods of a case. Their node is set in the spec, so no scheduler handles them.

use std::collections::BTreeMap;

use anyhow::{Context as _, bail, ensure};
use k8s_openapi::api::core::v1::{ContainerStatus, Event, Pod, PodStatus};
use kube::Api;
use kube::api::{DeleteParams, ListParams, LogParams, PostParams};
use serde_json::{Value, json};

use crate::cluster::wait;

use super::IMAGE;
use super::scene::{Scene, TIMEOUT};

/// A script that waits, and ends at once on TERM.
pub(super) const WAITS: &str = "trap 'exit 0' TERM; sleep 1000 & wait";

impl Scene<'_> {
    pub(super) fn pods(&self) -> Api<Pod> {
        Api::default_namespaced(self.kubelet.client())
    }

    /// The full name of one of the case's pods.
    pub(super) fn name(&self, pod: &str) -> String {
        format!("{}-{pod}", self.prefix)
    }

    /// A container that runs a script and requests `count` devices of the case's name; 0 for none.
    pub(super) fn container(&self, name: &str, count: u32, script: &str) -> Value {
        let folder = self.folder.path();
        let limits = if count == 0 { json!({}) } else { json!({&self.resource: count.to_string()}) };
        json!({
            "name": name,
            "image": IMAGE,
            "imagePullPolicy": "Never",
            "command": ["/bin/sh", "-c", script],
            "resources": {"limits": limits},
            "volumeMounts": [
                {"name": "usr", "mountPath": "/usr", "readOnly": true},
                {"name": "folder", "mountPath": folder},
            ],
        })
    }

    /// Creates a pod with `spec` merged over the defaults of all cases.
    pub(super) async fn create(&self, pod: &str, spec: Value) -> anyhow::Result<()> {
        let mut whole = json!({
            "nodeName": self.kubelet.node(),
            "hostNetwork": true,
            "restartPolicy": "Never",
            "automountServiceAccountToken": false,
            "enableServiceLinks": false,
            "terminationGracePeriodSeconds": 3,
            "volumes": [
                {"name": "usr", "hostPath": {"path": "/usr"}},
                {"name": "folder", "hostPath": {"path": self.folder.path()}},
            ],
        });
        if let (Some(whole), Value::Object(spec)) = (whole.as_object_mut(), spec) {
            whole.extend(spec);
        }
        let labels = json!({"kerf.dev/case": self.prefix});
        let pod = json!({"metadata": {"name": self.name(pod), "labels": labels}, "spec": whole});
        let pod: Pod = serde_json::from_value(pod).context("the pod is malformed")?;
        self.pods().create(&PostParams::default(), &pod).await.context("the pod was not created")?;
        Ok(())
    }

    /// Creates a pod with one container `main`, which waits and requests `count` devices.
    pub(super) async fn ask(&self, pod: &str, count: u32) -> anyhow::Result<()> {
        self.create(pod, json!({"containers": [self.container("main", count, WAITS)]})).await
    }

    /// Creates such a pod and waits until it runs.
    pub(super) async fn run(&self, pod: &str, count: u32) -> anyhow::Result<Pod> {
        self.ask(pod, count).await?;
        self.running(pod).await
    }

    /// Creates such a pod and waits until the kubelet rejects it. Returns reason and message.
    pub(super) async fn refused(&self, pod: &str, count: u32) -> anyhow::Result<(String, String)> {
        self.ask(pod, count).await?;
        let status = self.in_phase(pod, "Failed").await?.status.unwrap_or_default();
        Ok((status.reason.unwrap_or_default(), status.message.unwrap_or_default()))
    }

    pub(super) async fn running(&self, pod: &str) -> anyhow::Result<Pod> {
        self.in_phase(pod, "Running").await
    }

    /// Waits until a pod is in a phase. Fails at once if it has ended in another one.
    pub(super) async fn in_phase(&self, pod: &str, phase: &str) -> anyhow::Result<Pod> {
        self.until(pod, &format!("{pod} to be {phase}"), |status| {
            let now = status.phase.as_deref().unwrap_or_default();
            if now != phase && matches!(now, "Failed" | "Succeeded") {
                bail!("{pod} is {now}: {}", status.message.clone().unwrap_or_default());
            }
            Ok(now == phase)
        })
        .await
    }

    /// Waits until a condition of a pod's status holds.
    pub(super) async fn until(
        &self,
        pod: &str,
        what: &str,
        holds: impl Fn(&PodStatus) -> anyhow::Result<bool>,
    ) -> anyhow::Result<Pod> {
        let mut failure = None;
        let waited = wait(TIMEOUT, what, async || {
            let status = self.get(pod).await?.status.unwrap_or_default();
            match holds(&status) {
                Ok(holds) => Ok(holds),
                Err(error) => {
                    failure = Some(error);
                    Ok(true)
                }
            }
        });
        let waited = waited.await;
        if let Some(failure) = failure {
            return Err(failure);
        }
        let found = self.get(pod).await?;
        if let Err(error) = waited {
            let events = self.events(pod).await?;
            let status = serde_json::to_string(&found.status).unwrap_or_default();
            return Err(error.context(format!("{pod} has {status} and the events {events:?}")));
        }
        Ok(found)
    }

    pub(super) async fn get(&self, pod: &str) -> anyhow::Result<Pod> {
        self.pods().get(&self.name(pod)).await.with_context(|| format!("{pod} is not there"))
    }

    /// Reason and message of each Event about a pod.
    pub(super) async fn events(&self, pod: &str) -> anyhow::Result<Vec<(String, String)>> {
        let about = ListParams::default().fields(&format!("involvedObject.name={}", self.name(pod)));
        let events = Api::<Event>::default_namespaced(self.kubelet.client()).list(&about).await?;
        let reported = events.items.into_iter();
        Ok(reported.map(|e| (e.reason.unwrap_or_default(), e.message.unwrap_or_default())).collect())
    }

    /// Waits for the Event that the device manager rejected the pod because of `why`.
    pub(super) async fn reported(&self, pod: &str, reason: &str, why: &str) -> anyhow::Result<()> {
        let expected = (reason.to_owned(), format!("Allocate failed due to {why}, which is unexpected"));
        let mut events = Vec::new();
        let waited = wait(TIMEOUT, "an Event", async || {
            events = self.events(pod).await?;
            Ok(events.contains(&expected))
        })
        .await;
        waited.with_context(|| format!("there are {events:?}"))
    }

    /// The output of a container, once it has a complete line.
    pub(super) async fn printed(&self, pod: &str, container: &str) -> anyhow::Result<String> {
        let of = LogParams { container: Some(container.to_owned()), ..LogParams::default() };
        let mut text = String::new();
        wait(TIMEOUT, &format!("{pod} to print"), async || {
            text = self.pods().logs(&self.name(pod), &of).await?;
            Ok(text.ends_with('\n'))
        })
        .await?;
        Ok(text)
    }

    /// Creates the file that a script waits for.
    pub(super) fn open(&self, gate: &str) -> anyhow::Result<()> {
        std::fs::write(self.folder.path().join(gate), "").context("failed to open a gate")
    }

    /// A part of a script that waits for [`Scene::open`].
    pub(super) fn gate(&self, name: &str) -> String {
        let gate = self.folder.path().join(name);
        format!("while [ ! -e {} ]; do sleep 0.05; done", gate.display())
    }

    /// Deletes a pod and waits until it is gone.
    pub(super) async fn end(&self, pod: &str) -> anyhow::Result<()> {
        let name = self.name(pod);
        self.pods().delete(&name, &DeleteParams::default()).await?;
        let gone = async || Ok(self.pods().get_opt(&name).await?.is_none());
        wait(TIMEOUT, &format!("{pod} to go"), gone).await
    }

    /// Deletes the case's pods and waits until they are gone.
    pub(super) async fn end_all(&self) -> anyhow::Result<()> {
        let all = ListParams::default().labels(&format!("kerf.dev/case={}", self.prefix));
        for pod in self.pods().list(&all).await? {
            let name = pod.metadata.name.unwrap_or_default();
            self.pods().delete(&name, &DeleteParams::default()).await?;
        }
        let none = async || Ok(self.pods().list(&all).await?.items.is_empty());
        wait(TIMEOUT, "the case's pods to go", none).await
    }
}

/// The status of a container, by name.
pub(super) fn container_status(pod: &PodStatus, name: &str) -> ContainerStatus {
    let all = pod.container_statuses.iter().chain(&pod.init_container_statuses).flatten();
    let by_name: BTreeMap<&str, &ContainerStatus> = all.map(|status| (&*status.name, status)).collect();
    by_name.get(name).map(|status| (*status).clone()).unwrap_or_default()
}

/// Fails with both texts if they differ.
pub(super) fn same(what: &str, said: &str, expected: &str) -> anyhow::Result<()> {
    ensure!(said == expected, "{what} is\n  {said}\nnot\n  {expected}");
    Ok(())
}
