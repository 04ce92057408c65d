//! Keeps NVIDIA's labels on the Node true, for those who select on them, where nobody else does.
//!
//! GPU feature discovery (GFD) writes no label itself: NFD does for it, and lists those that it keeps in an annotation of
//! the Node. What is listed there is NFD's, and would be set back by it: the agent leaves it alone and says so.

use k8s_openapi::api::core::v1::Node;
use kerf_core::gfd_labels::{GfdLabels, is_told};
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// How often the labels are written.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    /// How long changes are gathered, and so the least time between two patches: pods come and go in bursts, and each patch
    /// wakes every onlooker of the Node.
    pub gather: Duration,
    /// How often the labels are compared with the Node's, whoever may have changed them.
    pub look: Duration,
}

impl Pace {
    /// The agent's.
    pub const OF_AN_AGENT: Self = Self { gather: Duration::from_secs(2), look: Duration::from_mins(1) };
}

/// NFD's annotation with the labels that it keeps; an instance with a name has the name and a dot before it (NFD's
/// `AnnotationNs` and `FeatureLabelsAnnotation`).
const OF_NFD: &str = "nfd.node.kubernetes.io/feature-labels";

/// The labels of a Node.
type Present = BTreeMap<String, String>;

/// Keeps the labels until `stop`, at this pace; without one it writes none. Nothing is done while there are none to tell.
pub async fn keep(
    (api, name): (Api<Node>, String),
    mut labels: watch::Receiver<GfdLabels>,
    pace: Option<Pace>,
    stop: CancellationToken,
) {
    let mut yields = false;
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
            Ok(of_nfd) => yields = tell(yields, of_nfd),
            Err(error) => {
                tracing::warn!(node = name, %error, "failed to set NVIDIA's labels on the Node; trying again");
                labels.mark_changed();
            }
        }
    }
    stop.cancelled().await;
}

/// Says once that NFD keeps the labels, and once that it does not any more.
fn tell(before: bool, now: bool) -> bool {
    match (before, now) {
        (false, true) => tracing::warn!(
            "NFD keeps NVIDIA's labels on this node, and they tell what GPU feature discovery sees; to have kerf keep them, \
             label the node nvidia.com/gpu.deploy.gpu-feature-discovery=false"
        ),
        (true, false) => tracing::info!("NFD keeps NVIDIA's labels on this node no longer; kerf does"),
        _ => {}
    }
    now
}

/// Sets what differs. Gives whether NFD keeps some of them.
async fn set(api: &Api<Node>, name: &str, wanted: &GfdLabels) -> Result<bool, kube::Error> {
    let metadata = api.get_metadata(name).await?.metadata;
    let others = of_nfd(metadata.annotations.as_ref());
    let changes = changes(&metadata.labels.unwrap_or_default(), wanted, &others);
    if !changes.is_empty() {
        tracing::info!(node = name, labels = json!(changes).to_string(), "set NVIDIA's labels on the Node");
        let patch = Patch::Merge(json!({"metadata": {"labels": changes}}));
        api.patch_metadata(name, &PatchParams::default(), &patch).await?;
    }
    Ok(others.iter().any(|key| is_told(key)))
}

/// The labels that NFD keeps.
pub(crate) fn of_nfd(annotations: Option<&Present>) -> BTreeSet<String> {
    let lists = annotations.into_iter().flatten().filter(|(key, _)| is_list(key));
    lists.flat_map(|(_, list)| list.split(',')).map(|key| key.trim().to_owned()).collect()
}

fn is_list(annotation: &str) -> bool {
    annotation.strip_suffix(OF_NFD).is_some_and(|instance| instance.is_empty() || instance.ends_with('.'))
}

fn changes(present: &Present, wanted: &GfdLabels, others: &BTreeSet<String>) -> Map<String, Value> {
    let stale = present.keys().filter(|key| is_told(key) && !wanted.contains_key(*key));
    let stale = stale.map(|key| (key, Value::Null));
    let differs = wanted.iter().filter(|(key, value)| present.get(*key) != Some(value));
    let all = stale.chain(differs.map(|(key, value)| (key, json!(value))));
    all.filter(|(key, _)| !others.contains(*key)).map(|(key, value)| (key.clone(), value)).collect()
}

#[cfg(test)]
#[path = "gfd_labels_tests.rs"]
mod tests;
