//! Leaves a node for good: restores what the agent set there, which is compute modes, memory limits, MPS daemons, CDI
//! specs, labels, and its names in the Node's status. Slices stay, because pods may run on them.
//!
//! It may run again and does what remains. The agent itself must have ended, because both take the checkpoint's lock.

mod held;

use crate::checkpoint::{Checkpoint, CheckpointError, Record};
use crate::dcgm_pause::DcgmPause;
use crate::gfd_labels;
use crate::gpu::{ComputeMode, GpuBackend, GpuError};
use crate::node::{Holders, Restored};
use futures::FutureExt as _;
use futures::future::BoxFuture;
use held::Held;
use k8s_openapi::api::core::v1::Node;
use kerf_core::contract::UnreadableStatus;
use kerf_core::gfd_labels::is_published;
use kerf_core::keys;
use kerf_core::kind::Kind;
use kerf_core::names::{DeviceId, GpuUuid, NodeName};
use kerf_core::resource::ResourceName;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use thiserror::Error;
use tokio::sync::oneshot;

/// The interval between two reads of the names: two of the kubelet's ticks.
const POLL_INTERVAL: Duration = Duration::from_secs(20);

/// How long each step but the last may take, because some retry without a limit. The last waits for the kubelet.
const TIMEOUT: Duration = Duration::from_mins(1);

/// Undoes a setting: of the given objects, or of all others, as the field says.
pub type Undo<T> = Box<dyn FnOnce(BTreeSet<T>) -> BoxFuture<'static, Result<(), String>> + Send>;

pub type Modes = BTreeMap<GpuUuid, ComputeMode>;

pub type OpenGpus = Box<dyn FnOnce() -> Result<Box<dyn GpuBackend>, GpuError> + Send>;

pub struct Leave {
    pub node: NodeName,
    pub client: Client,
    pub checkpoint: PathBuf,
    /// Opens NVML; called only if a GPU has a setting to undo.
    pub gpus: OpenGpus,
    /// GPUs on which an agent has run MPS daemons, with their earlier compute modes. Some daemons may still run.
    pub modes: Modes,
    /// Reads the holders from the kubelet; used only if there is no GpuNode.
    pub ask_kubelet: BoxFuture<'static, Result<Holders, String>>,
    /// Whether the agent ran with `--no-gfd-labels`: then none of NVIDIA's labels is its own.
    pub no_gfd_labels: bool,
    /// Resets the time slices of these GPUs to the driver's default length.
    pub reset_lengths: Undo<GpuUuid>,
    /// Stops all MPS daemons but those of these GPUs, whose shares are held.
    pub stop_mps: Undo<GpuUuid>,
    /// Removes all CDI specs but those of these devices, which are held: a container that restarts needs its spec.
    pub remove_cdi: Undo<DeviceId>,
    /// How long the names are removed repeatedly, usually six minutes. The kubelet remembers a plugin for five minutes
    /// after its socket is gone (`endpointStopGracePeriod`), writes its names at every tick, and once more, as 0, when
    /// it forgets it.
    pub settle: Duration,
}

/// Why an agent has not left, or has left in part.
#[derive(Debug, Error)]
pub enum LeaveError {
    /// The checkpoint cannot be opened; nothing was done.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The API server did not return the GpuNode, so the held slices are unknown; nothing was done.
    #[error("failed to read the GpuNode {node}, which lists the held slices")]
    Held { node: NodeName, source: kube::Error },
    /// The GpuNode's status is unreadable, so the held slices are unknown; nothing was done.
    #[error("the status of the GpuNode {node}, which lists the held slices, is unreadable")]
    Unreadable { node: NodeName, source: UnreadableStatus },
    /// There is no GpuNode and the kubelet lists no holders, so the held slices are unknown; nothing was done.
    #[error(
        "there is no GpuNode {node}, and the kubelet does not list what is held ({why}): mount its folder (--kubelet-dir), or drain \
         the node, end its MPS daemons, and empty --state-dir and --mps-dir"
    )]
    HoldersUnreadable { node: NodeName, why: String },
    /// The node's pods cannot be listed, so it is unknown which are alive; nothing was done.
    #[error("failed to list the pods of {node}, so the held slices are unknown")]
    Pods { node: NodeName, source: kube::Error },
    /// Some steps failed. The checkpoint is kept, so that another run can finish.
    #[error("not everything was put back; run it again:\n- {}", .0.join("\n- "))]
    Unfinished(Vec<String>),
}

pub async fn leave(leave: Leave) -> Result<(), LeaveError> {
    let Leave { node, client, checkpoint, gpus, modes, ask_kubelet, .. } = leave;
    let (checkpoint, found) = Checkpoint::open(&checkpoint)?;
    let record = found.record();
    let ledger = record.as_ref().map(|record| &*record.node.ledger.desired.slices).unwrap_or_default();
    // Read this before anything is undone, because otherwise held slices could lose their daemons and specs.
    let held = match Held::read(&client, &node, ledger).await? {
        Some(held) => held,
        // The GpuNode was deleted, and pods may run on slices that it listed. So the kubelet is asked.
        None if record.is_some() || !modes.is_empty() => {
            let why = |why| LeaveError::HoldersUnreadable { node: node.clone(), why };
            Held::listed(&client, &node, ask_kubelet.await.map_err(why)?).await?
        }
        None => Held::default(),
    };
    held.log();
    let Leave { reset_lengths, stop_mps, remove_cdi, no_gfd_labels, settle, .. } = leave;
    let mut failed = Failures::default();
    // First, because the end of the daemons also restores the compute modes of their GPUs.
    failed.note("stop the MPS daemons", in_time(stop_mps(held.mps_gpus)).await);
    if let Some(Record { node: record, .. }) = record {
        if !record.lengths.is_empty() {
            // A GPU without time slices now, in MIG mode or taken out, returns an error. That is harmless: the driver
            // forgets lengths with the boot.
            note("reset the length of time slices", &in_time(reset_lengths(record.lengths.clone())).await);
        }
        let (pause, mut paused) = (DcgmPause::new(client.clone(), node.clone()), record.paused.clone());
        let put_back = pause.put_back(&mut paused).map(Ok);
        failed.note("put back the labels that pause DCGM", in_time(put_back).await);
        failed.note("restore the GPUs", in_time(restore(gpus, record, modes)).await);
    }
    failed.note("remove the CDI specs", in_time(remove_cdi(held.devices)).await);
    let nodes = Api::<Node>::all(client);
    failed.note("remove the node's labels", in_time(remove_labels(&nodes, &node, no_gfd_labels)).await);
    let forgotten = forget_names(&nodes, &node, &held.names, settle).await;
    failed.note("remove the names in the node's status", forgotten);
    if !failed.0.is_empty() {
        return Err(LeaveError::Unfinished(failed.0));
    }
    // The checkpoint goes last: until every step has succeeded, another run needs it.
    checkpoint.remove()?;
    tracing::info!(%node, held = held.texts.len(), "the agent has left this node; its GpuNode may be deleted");
    Ok(())
}

async fn in_time(step: impl Future<Output = Result<(), String>>) -> Result<(), String> {
    let late = |_| Err(format!("it took more than {} s", TIMEOUT.as_secs()));
    tokio::time::timeout(TIMEOUT, step).await.unwrap_or_else(late)
}

#[derive(Default)]
struct Failures(Vec<String>);

impl Failures {
    fn note(&mut self, step: &str, result: Result<(), String>) {
        note(step, &result);
        self.0.extend(result.err().map(|error| format!("failed to {step}: {error}")));
    }
}

fn note(step: &str, result: &Result<(), String>) {
    match result {
        Ok(()) => tracing::info!(step, "done"),
        Err(error) => tracing::warn!(step, error, "failed"),
    }
}

/// Restores compute modes and lifts memory limits: everything that the agent set, because no later process will do it.
/// A GPU without a noted mode has its mode back already.
async fn restore(open: OpenGpus, record: Restored, mut modes: Modes) -> Result<(), String> {
    modes.retain(|gpu, _| record.exclusive.contains(gpu));
    if modes.is_empty() && record.limits.is_empty() {
        return Ok(());
    }
    let (done, result) = oneshot::channel();
    // A detached thread: one that hangs in the driver must not keep the process from ending.
    let thread = std::thread::Builder::new().name("nvml".to_owned());
    thread.spawn(move || done.send(restore_now(open, &record, &modes))).map_err(|error| error.to_string())?;
    result.await.map_err(|error| error.to_string())?
}

fn restore_now(open: OpenGpus, record: &Restored, modes: &Modes) -> Result<(), String> {
    let mut gpus = open().map_err(|error| error.to_string())?;
    let mut errors = Vec::new();
    for (gpu, mode) in modes {
        match gpus.set_compute_mode(gpu, *mode) {
            Ok(()) => tracing::info!(%gpu, mode = mode.as_str(), "the compute mode is what it was"),
            Err(error) => errors.push(error),
        }
    }
    for (gpu, cgroup) in record.limits.keys() {
        errors.extend(gpus.limit_memory(gpu, cgroup, None).err());
    }
    // A GPU that was removed from the node needs no reset.
    errors.retain(|error| !matches!(error, GpuError::NoSuchGpu(_)));
    let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
    if texts.is_empty() { Ok(()) } else { Err(texts.join("; ")) }
}

/// Removes the labels that the agent owns; `kerf.dev/managed` belongs to the admin.
async fn remove_labels(nodes: &Api<Node>, node: &NodeName, no_gfd_labels: bool) -> Result<(), String> {
    let others = [keys::NODE_MODEL, keys::NODE_MAX_GB].map(str::to_owned);
    let owned: BTreeSet<String> = Kind::ALL.into_iter().map(keys::node_kind_label).chain(others).collect();
    let result = async {
        let object = nodes.get_metadata(node.as_str()).await?;
        let others = gfd_labels::names_from_nfd(object.metadata.annotations.as_ref());
        let is_ours = |key: &String| {
            owned.contains(key) || !no_gfd_labels && is_published(key) && !others.contains(key)
        };
        let gone = nulls(object.metadata.labels.unwrap_or_default().into_keys().filter(is_ours));
        if gone.is_empty() {
            return Ok(());
        }
        let patch = Patch::Merge(json!({"metadata": {"labels": gone}}));
        nodes.patch_metadata(node.as_str(), &PatchParams::default(), &patch).await.map(drop)
    };
    unless_gone(result.await)
}

/// Removes the names from the Node's status until the kubelet has forgotten them too. Names with held devices stay.
async fn forget_names(
    nodes: &Api<Node>,
    node: &NodeName,
    held: &BTreeSet<ResourceName>,
    settle: Duration,
) -> Result<(), String> {
    let begun = Instant::now();
    tracing::info!(seconds = settle.as_secs(), "removing the names until the kubelet has forgotten them");
    loop {
        let result = unless_gone(remove_names(nodes, node, held).await);
        let left = settle.saturating_sub(begun.elapsed());
        // Only the last result counts: an earlier failure was followed by another try.
        if left.is_zero() {
            return result;
        }
        tokio::time::sleep(left.min(POLL_INTERVAL)).await;
    }
}

/// Removes the names once. A name that another device plugin serves by now comes back at the kubelet's next tick.
async fn remove_names(
    nodes: &Api<Node>,
    node: &NodeName,
    held: &BTreeSet<ResourceName>,
) -> Result<(), kube::Error> {
    let status = nodes.get(node.as_str()).await?.status.unwrap_or_default();
    let is_gone = |key: &String| key.parse::<ResourceName>().is_ok_and(|name| !held.contains(&name));
    let gone =
        |list: Option<BTreeMap<String, _>>| nulls(list.unwrap_or_default().into_keys().filter(is_gone));
    let (capacity, allocatable) = (gone(status.capacity), gone(status.allocatable));
    if capacity.is_empty() && allocatable.is_empty() {
        return Ok(());
    }
    tracing::info!(names = capacity.len(), "removing names from the node's status");
    let patch = Patch::Merge(json!({"status": {"capacity": capacity, "allocatable": allocatable}}));
    nodes.patch_status(node.as_str(), &PatchParams::default(), &patch).await.map(drop)
}

fn nulls(keys: impl Iterator<Item = String>) -> Map<String, Value> {
    keys.map(|key| (key, Value::Null)).collect()
}

/// Treats a missing Node as success, because it has nothing to remove.
fn unless_gone(result: Result<(), kube::Error>) -> Result<(), String> {
    match result {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        result => result.map_err(|error| error.to_string()),
    }
}

#[cfg(test)]
mod tests;
