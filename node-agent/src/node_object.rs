//! Writes to the Node: the agent's labels, and the numbers of devices for admins and schedulers that read them.
//!
//! The kubelet writes the same numbers at its next tick, up to ten seconds later. Nothing in kerf waits for either.

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kerf_core::resource::ResourceName;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// How long changes of the counts are gathered, and the least time between two patches: each wakes every watcher of the
/// Node, schedulers among them.
const GATHER_DELAY: Duration = Duration::from_secs(1);
const PATCH_INTERVAL: Duration = Duration::from_secs(2);

/// How often the labels are compared with the Node's, because others may change them.
const POLL_INTERVAL: Duration = Duration::from_mins(1);

const RETRY_INTERVAL: Duration = Duration::from_secs(2);

/// Devices of each name: how many in all, and how many of them healthy.
pub type Counts = BTreeMap<ResourceName, (usize, usize)>;

/// Labels to set; `None` removes the label.
pub type Labels = BTreeMap<String, Option<String>>;

/// Returns the Node as the owner of its GpuNode, so that both are deleted together; `None` if there is no such Node.
pub async fn owner(api: &Api<Node>, name: &str) -> Result<Option<OwnerReference>, kube::Error> {
    let node = api.get_opt(name).await?;
    Ok(node.map(|node| OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Node".to_owned(),
        name: name.to_owned(),
        uid: node.metadata.uid.unwrap_or_default(),
        ..OwnerReference::default()
    }))
}

/// Keeps the Node's labels at the desired values until `stop`.
pub async fn keep_labels(
    api: Api<Node>,
    name: String,
    mut labels: watch::Receiver<Labels>,
    stop: CancellationToken,
) {
    let mut wait = POLL_INTERVAL;
    loop {
        tokio::select! {
            changed = labels.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(wait) => {}
            () = stop.cancelled() => return,
        }
        let wanted = labels.borrow_and_update().clone();
        wait = match set_labels(&api, &name, &wanted).await {
            Ok(()) => POLL_INTERVAL,
            Err(error) => {
                tracing::warn!(node = name, %error, "failed to label the Node; trying again");
                RETRY_INTERVAL
            }
        };
    }
}

async fn set_labels(api: &Api<Node>, name: &str, wanted: &Labels) -> Result<(), kube::Error> {
    if wanted.is_empty() {
        return Ok(());
    }
    let node = api.get_metadata(name).await?;
    let changes = label_changes(&node.metadata.labels.unwrap_or_default(), wanted);
    if changes.is_empty() {
        return Ok(());
    }
    let text = json!(changes).to_string();
    tracing::info!(node = name, labels = text, "labelled the Node");
    let patch = Patch::Merge(json!({"metadata": {"labels": changes}}));
    api.patch_metadata(name, &PatchParams::default(), &patch).await.map(drop)
}

fn label_changes(present: &BTreeMap<String, String>, wanted: &Labels) -> Map<String, Value> {
    let differs = |(key, value): &(&String, &Option<String>)| present.get(*key) != value.as_ref();
    wanted.iter().filter(differs).map(|(key, value)| (key.clone(), json!(value))).collect()
}

/// Patches capacity and allocatable of changed names until `stop`. It is best effort, because the kubelet writes them
/// in any case.
pub async fn show_counts(
    api: Api<Node>,
    name: String,
    mut counts: watch::Receiver<Counts>,
    stop: CancellationToken,
) {
    let mut shown = Counts::new();
    loop {
        tokio::select! {
            changed = counts.changed() => if changed.is_err() { return },
            () = stop.cancelled() => return,
        }
        if stop.run_until_cancelled(tokio::time::sleep(GATHER_DELAY)).await.is_none() {
            return;
        }
        let newest = counts.borrow_and_update().clone();
        let changed: Vec<_> = newest
            .iter()
            .filter(|(name, count)| shown.get(*name).copied().unwrap_or_default() != **count)
            .collect();
        if changed.is_empty() {
            continue;
        }
        let list = |pick: fn(&(usize, usize)) -> usize| -> Map<String, Value> {
            changed.iter().map(|(name, c)| (name.to_string(), json!(pick(c).to_string()))).collect()
        };
        let patch = json!({"status": {"capacity": list(|c| c.0), "allocatable": list(|c| c.1)}});
        match api.patch_status(&name, &PatchParams::default(), &Patch::Merge(patch)).await {
            Ok(_) => shown = newest,
            // `shown` stays, so the next change patches these names again.
            Err(error) => tracing::debug!(node = name, %error, "failed to show device counts on the Node"),
        }
        stop.run_until_cancelled(tokio::time::sleep(PATCH_INTERVAL)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_that_differ_are_set_and_stale_ones_removed() {
        let present = BTreeMap::from(
            [("kerf.dev/gpu-model", "T4-16GB"), ("kerf.dev/mig-max-gb", "80"), ("other", "x")]
                .map(|(key, value)| (key.to_owned(), value.to_owned())),
        );
        let wanted = Labels::from([
            ("kerf.dev/gpu-model".to_owned(), Some("T4-16GB".to_owned())),
            ("kerf.dev/mig-max-gb".to_owned(), None),
            ("kerf.dev/mps-max-gb".to_owned(), Some("14".to_owned())),
            ("kerf.dev/time-slicing-max-gb".to_owned(), None),
        ]);
        let changes = Value::from(label_changes(&present, &wanted));
        assert_eq!(changes, json!({"kerf.dev/mig-max-gb": null, "kerf.dev/mps-max-gb": "14"}));
    }
}
