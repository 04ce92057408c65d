//! Pauses the GPU Operator's programs that hold GPU instances by the Node's labels, as NVIDIA's MIG manager does
//! (mig-parted `reconfigure`), and restores the labels afterwards. Only a label that is `true` is paused: where it is
//! missing or `false`, GPU Operator is not installed, or an admin keeps the program off the node.

use crate::event::{Event, Events};
use crate::node::Pause;
use k8s_openapi::api::core::v1::{Node, Pod};
use kerf_core::names::NodeName;
use kerf_core::nvidia_keys::{DEPLOY_PAUSED, DEPLOYED};
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// The programs' pods by their label `app`. NVIDIA's MIG manager waits for the same ones, and not for NVSM.
const APPS: &str = "app in (nvidia-dcgm, nvidia-dcgm-exporter, gpu-feature-discovery)";

/// How long the programs may take to end; then the step is tried in any case. The wait is limited, because anybody who
/// may create pods on the node can create one with these labels.
const TIMEOUT: Duration = Duration::from_mins(1);

/// Poll interval for the pods, the same as the MIG manager's, and the wait after a failed write.
const INTERVAL: Duration = Duration::from_secs(1);

/// How long an agent that ends may take to restore labels.
const RESTORE_TIMEOUT: Duration = Duration::from_secs(3);

pub(crate) struct DcgmPause {
    nodes: Api<Node>,
    pods: Api<Pod>,
    node: NodeName,
}

/// Pauses programs and restores labels as ordered until `stop`. It reports which labels may still have to be restored,
/// beginning with `paused`, which an earlier process has recorded.
pub(crate) async fn keep(
    pause: DcgmPause,
    mut paused: BTreeSet<String>,
    mut orders: watch::Receiver<Pause>,
    events: Events,
    stop: CancellationToken,
) {
    loop {
        let order = orders.borrow_and_update().clone();
        tokio::select! {
            () = pause.carry_out(&order, &mut paused) => {
                events.send(Event::Paused(paused.clone(), order.number));
                tokio::select! {
                    Ok(()) = orders.changed() => {}
                    () = stop.cancelled() => break,
                }
            }
            Ok(()) = orders.changed() => {}
            () = stop.cancelled() => break,
        }
    }
    drop(tokio::time::timeout(RESTORE_TIMEOUT, pause.put_back(&mut paused)).await);
}

impl DcgmPause {
    pub(crate) fn new(client: Client, node: NodeName) -> Self {
        Self { nodes: Api::all(client.clone()), pods: Api::all(client), node }
    }

    async fn carry_out(&self, order: &Pause, paused: &mut BTreeSet<String>) {
        if order.labels.is_empty() {
            return self.put_back(paused).await;
        }
        let pausing = async {
            while let Err(error) = self.write(&order.labels, paused).await {
                tracing::warn!(%error, "failed to pause DCGM; trying again");
                tokio::time::sleep(INTERVAL).await;
            }
            while self.remain().await {
                tokio::time::sleep(INTERVAL).await;
            }
        };
        match tokio::time::timeout(TIMEOUT, pausing).await {
            Ok(()) => tracing::info!("the paused programs have gone"),
            Err(_) => {
                tracing::warn!(seconds = TIMEOUT.as_secs(), "the paused programs have not gone in time");
            }
        }
    }

    /// Restores the labels of paused programs and retries without a limit: while GPU Operator upgrades the driver, it
    /// changes these labels itself.
    pub(crate) async fn put_back(&self, paused: &mut BTreeSet<String>) {
        while !paused.is_empty() {
            if let Err(error) = self.write(&BTreeSet::new(), paused).await {
                tracing::warn!(%error, "failed to put DCGM's labels back; trying again");
            }
            if !paused.is_empty() {
                tokio::time::sleep(INTERVAL).await;
            }
        }
    }

    /// Pauses `wanted` and restores the other labels of `paused`. The write fails if somebody changed the Node since it
    /// was read.
    async fn write(
        &self,
        wanted: &BTreeSet<String>,
        paused: &mut BTreeSet<String>,
    ) -> Result<(), kube::Error> {
        let Some(node) = self.nodes.get_metadata_opt(self.node.as_str()).await? else {
            paused.clear();
            return Ok(());
        };
        let labels = node.metadata.labels.unwrap_or_default();
        let is = |key: &&String, value: &str| labels.get(*key).is_some_and(|now| now == value);
        let pause = wanted.iter().filter(|key| is(key, DEPLOYED)).map(|key| (key, DEPLOY_PAUSED));
        let back = paused.difference(wanted).filter(|key| is(key, DEPLOY_PAUSED)).map(|key| (key, DEPLOYED));
        let changes: Map<String, Value> =
            pause.chain(back).map(|(key, value)| (key.clone(), json!(value))).collect();
        paused.extend(wanted.iter().cloned());
        if !changes.is_empty() {
            let text = json!(changes).to_string();
            let metadata = json!({"resourceVersion": node.metadata.resource_version, "labels": changes});
            let patch = Patch::Merge(json!({"metadata": metadata}));
            self.nodes.patch_metadata(self.node.as_str(), &PatchParams::default(), &patch).await?;
            tracing::info!(labels = text, "labelled the Node for a MIG change");
        }
        // The driver manager appends a suffix of its own to the value and removes it later, so such a label is still
        // paused.
        let is_covered = |key: &String| {
            labels.get(key).is_some_and(|now| now != DEPLOY_PAUSED && now.starts_with(DEPLOY_PAUSED))
        };
        paused.retain(|key| wanted.contains(key) || is_covered(key));
        Ok(())
    }

    async fn remain(&self) -> bool {
        let here = ListParams::default().fields(&format!("spec.nodeName={}", self.node)).labels(APPS);
        match self.pods.list_metadata(&here).await {
            Ok(pods) => !pods.items.is_empty(),
            Err(error) => {
                // Without an answer the pods may still run.
                tracing::debug!(%error, "failed to list the pods of DCGM");
                true
            }
        }
    }
}

#[cfg(test)]
#[path = "dcgm_pause_tests.rs"]
mod tests;
