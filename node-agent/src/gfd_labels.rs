//! Keeps NVIDIA's labels on the Node correct for workloads that select on them, where no other program does.
//!
//! GPU feature discovery (GFD) sets no label itself: NFD does that for it, and lists its labels in an annotation of the
//! Node. NFD would revert changes to a listed label, so the agent skips these and logs it.
//!
//! The GPU Operator recognises GPUs with MIG by two of the labels, and makes its MIG manager clear them. So the agent
//! does not write these two where the operator could react.

use crate::conflicting::may_order_mig;
use k8s_openapi::api::core::v1::Node;
use kerf_core::gfd_labels::{GfdLabels, is_published};
use kerf_core::nvidia_keys::{MIG_CAPABLE, PRODUCT};
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

#[derive(Debug, Clone, Copy)]
pub struct Pace {
    /// How long changes are gathered, which is also the least time between two patches. Pods come and go in bursts, and
    /// each patch wakes every watcher of the Node.
    pub gather: Duration,
    /// How often the labels are compared with the Node's, because others may change them.
    pub look: Duration,
}

impl Pace {
    /// The agent's intervals in production.
    pub const OF_AN_AGENT: Self = Self { gather: Duration::from_secs(2), look: Duration::from_mins(1) };
}

/// NFD's annotation with the labels that it keeps. A named NFD instance prefixes it with its name and a dot (NFD's
/// `AnnotationNs` and `FeatureLabelsAnnotation`).
const OF_NFD: &str = "nfd.node.kubernetes.io/feature-labels";

type Present = BTreeMap<String, String>;

/// Keeps the labels until `stop`, at this pace; without a pace, or while `labels` is empty, it writes none.
pub async fn keep(
    (api, name): (Api<Node>, String),
    mut labels: watch::Receiver<GfdLabels>,
    pace: Option<Pace>,
    stop: CancellationToken,
) {
    let mut before = Yields::default();
    while let Some(Pace { gather, look }) = pace {
        tokio::select! {
            changed = labels.changed() => if changed.is_err() { break },
            () = tokio::time::sleep(look) => {}
            () = stop.cancelled() => return,
        }
        if stop.run_until_cancelled(tokio::time::sleep(gather)).await.is_none() {
            return;
        }
        let wanted = labels.borrow_and_update().clone();
        if wanted.is_empty() {
            continue;
        }
        match set(&api, &name, &wanted).await {
            Ok(now) => {
                log(before, now);
                before = now;
            }
            Err(error) => {
                tracing::warn!(node = name, %error, "failed to set NVIDIA's labels on the Node; trying again");
                labels.mark_changed();
            }
        }
    }
    // A task that ends early counts as a fault, so wait even if no labels are kept.
    stop.cancelled().await;
}

/// Which labels the agent does not write.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Yields {
    /// NFD keeps some of them.
    to_nfd: bool,
    /// Two labels would make the GPU Operator switch MIG mode off.
    to_operator: bool,
}

/// Logs once when labels are skipped, and once when they no longer are.
fn log(before: Yields, now: Yields) {
    match (before.to_nfd, now.to_nfd) {
        (false, true) => tracing::warn!(
            "NFD sets NVIDIA's labels on this node, to what GPU feature discovery reports; to have kerf set them, \
             label the node nvidia.com/gpu.deploy.gpu-feature-discovery=false"
        ),
        (true, false) => tracing::info!("NFD no longer sets NVIDIA's labels on this node; kerf does"),
        _ => {}
    }
    match (before.to_operator, now.to_operator) {
        (false, true) => tracing::warn!(
            "{MIG_CAPABLE} and {PRODUCT} are not set on this node: by them GPU Operator would order its MIG manager to clear the \
             GPUs; label the node nvidia.com/gpu.deploy.mig-manager=false"
        ),
        (true, false) => tracing::info!("{MIG_CAPABLE} and {PRODUCT} are set: no MIG manager acts on them"),
        _ => {}
    }
}

/// Sets the labels that differ, and returns which ones it skips.
async fn set(api: &Api<Node>, name: &str, wanted: &GfdLabels) -> Result<Yields, kube::Error> {
    let metadata = api.get_metadata(name).await?.metadata;
    let others = names_from_nfd(metadata.annotations.as_ref());
    let present = metadata.labels.unwrap_or_default();
    let harmless = harmless(&present, wanted);
    let changes = changes(&present, &harmless, &others);
    if !changes.is_empty() {
        tracing::info!(node = name, labels = json!(changes).to_string(), "set NVIDIA's labels on the Node");
        let patch = Patch::Merge(json!({"metadata": {"labels": changes}}));
        api.patch_metadata(name, &PatchParams::default(), &patch).await?;
    }
    let to_nfd = others.iter().any(|key| is_published(key));
    Ok(Yields { to_nfd, to_operator: harmless.len() < wanted.len() })
}

/// Drops the labels by which the GPU Operator would clear the GPUs.
fn harmless(present: &Present, wanted: &GfdLabels) -> GfdLabels {
    let mut harmless = wanted.clone();
    let has_mig = wanted.get(MIG_CAPABLE).is_some_and(|value| value == "true");
    if has_mig && may_order_mig(present) {
        harmless.retain(|key, _| key != MIG_CAPABLE && key != PRODUCT);
    }
    harmless
}

/// The labels that NFD keeps on the Node.
pub(crate) fn names_from_nfd(annotations: Option<&Present>) -> BTreeSet<String> {
    let lists = annotations.into_iter().flatten().filter(|(key, _)| is_list(key));
    lists.flat_map(|(_, list)| list.split(',')).map(|key| key.trim().to_owned()).collect()
}

fn is_list(annotation: &str) -> bool {
    annotation.strip_suffix(OF_NFD).is_some_and(|instance| instance.is_empty() || instance.ends_with('.'))
}

fn changes(present: &Present, wanted: &GfdLabels, others: &BTreeSet<String>) -> Map<String, Value> {
    // Labels that kerf may set and that no longer apply are removed.
    let stale = present.keys().filter(|key| is_published(key) && !wanted.contains_key(*key));
    let stale = stale.map(|key| (key, Value::Null));
    let differs = wanted.iter().filter(|(key, value)| present.get(*key) != Some(value));
    let all = stale.chain(differs.map(|(key, value)| (key, json!(value))));
    all.filter(|(key, _)| !others.contains(*key)).map(|(key, value)| (key.clone(), value)).collect()
}

#[cfg(test)]
#[path = "gfd_labels_tests.rs"]
mod tests;
