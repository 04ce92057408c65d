//! An agent that leaves a node for good puts back what it set there: compute modes, memory limits, MPS daemons, CDI specs,
//! labels, and its names in the Node's status. Slices stay, held ones above all: pods run on them.
//!
//! It may be run again and does what is left to do. The agent itself must have ended: both take the checkpoint's lock.

mod held;

use crate::checkpoint::{Checkpoint, CheckpointError, Record};
use crate::dcgm_pause::DcgmPause;
use crate::gfd_labels;
use crate::gpu::{ComputeMode, GpuBackend, GpuError};
use crate::node::{Holders, Recalled};
use futures::FutureExt as _;
use futures::future::BoxFuture;
use held::Held;
use k8s_openapi::api::core::v1::Node;
use kerf_core::contract::UnreadableStatus;
use kerf_core::gfd_labels::is_told;
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

/// How long the names are removed again and again for. The kubelet remembers a plugin for five minutes after its socket is
/// gone (`endpointStopGracePeriod`) and writes its names at every tick, and once more, as 0, when it forgets it.
pub const SETTLED: Duration = Duration::from_mins(6);

/// The wait between two looks at the names: two of the kubelet's ticks.
const LOOK: Duration = Duration::from_secs(20);

/// How long one step may take but the last, which waits for the kubelet: some are tried again without an end of their own.
const PATIENCE: Duration = Duration::from_mins(1);

/// Undoes something: of what it is told, or but for what it is told to spare.
pub type Undo<T> = Box<dyn FnOnce(BTreeSet<T>) -> BoxFuture<'static, Result<(), String>> + Send>;

/// Compute modes by GPU.
pub type Modes = BTreeMap<GpuUuid, ComputeMode>;

/// How the GPUs are reached.
pub type OpenGpus = Box<dyn FnOnce() -> Result<Box<dyn GpuBackend>, GpuError> + Send>;

/// What leaving takes.
pub struct Leave {
    /// The node.
    pub node: NodeName,
    /// The API server.
    pub client: Client,
    /// The checkpoint's folder.
    pub checkpoint: PathBuf,
    /// Opens NVML, which is done only if something is to be undone there.
    pub gpus: OpenGpus,
    /// The GPUs of which an agent has run MPS daemons here, some of which may run on, with the compute modes of before.
    pub modes: Modes,
    /// Asks the kubelet who holds what, which is done only where no GpuNode tells.
    pub ask_kubelet: BoxFuture<'static, Result<Holders, String>>,
    /// Whether the agent was told to leave NVIDIA's labels alone: then none of them is its own.
    pub no_gfd_labels: bool,
    /// Gives the time slices of these GPUs the driver's own length.
    pub reset_lengths: Undo<GpuUuid>,
    /// Stops the MPS daemons but those of these GPUs, whose shares are held.
    pub stop_mps: Undo<GpuUuid>,
    /// Removes the CDI specs but those of these devices, which are held: a container that restarts needs its own.
    pub remove_cdi: Undo<DeviceId>,
    /// How long the kubelet is given to forget the names: for most [`SETTLED`].
    pub settle: Duration,
}

/// Why an agent has not left, or not wholly.
#[derive(Debug, Error)]
pub enum LeaveError {
    /// The checkpoint cannot be had; nothing was done.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// Nobody knows what is held; nothing was done.
    #[error("failed to read the GpuNode {node}, which tells what is held")]
    Held {
        /// The node.
        node: NodeName,
        /// Why not.
        source: kube::Error,
    },
    /// Nobody knows what is held; nothing was done.
    #[error("the GpuNode {node} does not tell what is held")]
    Unreadable {
        /// The node.
        node: NodeName,
        /// Why not.
        source: UnreadableStatus,
    },
    /// Nobody knows what is held; nothing was done.
    #[error(
        "there is no GpuNode {node}, and the kubelet does not tell what is held ({why}): mount its folder (--kubelet-dir), or drain \
         the node, end its MPS daemons, and empty --state-dir and --mps-dir"
    )]
    Unlisted {
        /// The node.
        node: NodeName,
        /// Why not.
        why: String,
    },
    /// Nobody knows which pods live; nothing was done.
    #[error("failed to list the pods of {node}, which tell of the kubelet's checkpoint what is held")]
    Pods {
        /// The node.
        node: NodeName,
        /// Why not.
        source: kube::Error,
    },
    /// Some steps failed. The checkpoint is kept, so that it can be tried again.
    #[error("not everything was put back; run it again:\n- {}", .0.join("\n- "))]
    Unfinished(Vec<String>),
}

/// Leaves the node.
pub async fn leave(leave: Leave) -> Result<(), LeaveError> {
    let Leave { node, client, checkpoint, gpus, modes, ask_kubelet, .. } = leave;
    let (checkpoint, found) = Checkpoint::open(&checkpoint)?;
    let record = found.record();
    let ledger = record.as_ref().map(|record| &*record.node.ledger.desired.slices).unwrap_or_default();
    let held = match Held::read(&client, &node, ledger).await? {
        Some(held) => held,
        // Somebody has deleted it, and pods may run on what it told of.
        None if record.is_some() || !modes.is_empty() => {
            let why = |why| LeaveError::Unlisted { node: node.clone(), why };
            Held::listed(&client, &node, ask_kubelet.await.map_err(why)?).await?
        }
        None => Held::default(),
    };
    held.tell();
    let Leave { reset_lengths, stop_mps, remove_cdi, no_gfd_labels, settle, .. } = leave;
    let mut failed = Failures::default();
    failed.note("stop the MPS daemons", in_time(stop_mps(held.mps_gpus)).await);
    if let Some(Record { node: record, .. }) = record {
        if !record.lengths.is_empty() {
            // A GPU that has none now, in MIG mode or taken out, says so as an error; the driver forgets them with the boot.
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
    checkpoint.remove()?;
    tracing::info!(%node, held = held.texts.len(), "the agent has left this node; its GpuNode may be deleted");
    Ok(())
}

async fn in_time(step: impl Future<Output = Result<(), String>>) -> Result<(), String> {
    let late = |_| Err(format!("it took more than {} s", PATIENCE.as_secs()));
    tokio::time::timeout(PATIENCE, step).await.unwrap_or_else(late)
}

/// What went wrong so far.
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

/// Puts compute modes back to what they were and lifts memory limits: all that the agent set, for nobody will do it later. A GPU that
/// has no noted mode has it back already.
async fn restore(open: OpenGpus, record: Recalled, mut modes: Modes) -> Result<(), String> {
    modes.retain(|gpu, _| record.exclusive.contains(gpu));
    if modes.is_empty() && record.limits.is_empty() {
        return Ok(());
    }
    let (done, result) = oneshot::channel();
    // A thread that nobody waits for: one that hangs in the driver must not keep the process.
    let thread = std::thread::Builder::new().name("nvml".to_owned());
    thread.spawn(move || done.send(restore_now(open, &record, &modes))).map_err(|error| error.to_string())?;
    result.await.map_err(|error| error.to_string())?
}

fn restore_now(open: OpenGpus, record: &Recalled, modes: &Modes) -> Result<(), String> {
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
    // A GPU that was taken out needs nothing.
    errors.retain(|error| !matches!(error, GpuError::NoSuchGpu(_)));
    let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
    if texts.is_empty() { Ok(()) } else { Err(texts.join("; ")) }
}

/// Removes the labels that the agent owns; `kerf.dev/managed` is the admin's.
async fn remove_labels(nodes: &Api<Node>, node: &NodeName, no_gfd_labels: bool) -> Result<(), String> {
    let others = [keys::NODE_MODEL, keys::NODE_MAX_GB].map(str::to_owned);
    let owned: BTreeSet<String> = Kind::ALL.into_iter().map(keys::node_kind_label).chain(others).collect();
    let result = async {
        let object = nodes.get_metadata(node.as_str()).await?;
        let others = gfd_labels::of_nfd(object.metadata.annotations.as_ref());
        let is_ours =
            |key: &String| owned.contains(key) || !no_gfd_labels && is_told(key) && !others.contains(key);
        let gone = nulls(object.metadata.labels.unwrap_or_default().into_keys().filter(is_ours));
        if gone.is_empty() {
            return Ok(());
        }
        let patch = Patch::Merge(json!({"metadata": {"labels": gone}}));
        nodes.patch_metadata(node.as_str(), &PatchParams::default(), &patch).await.map(drop)
    };
    unless_gone(result.await)
}

/// Removes the names from the Node's status until the kubelet has forgotten them too, but those of which something is held.
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
        if left.is_zero() {
            return result;
        }
        tokio::time::sleep(left.min(LOOK)).await;
    }
}

/// Names that a plugin of somebody else's serves by now come back with the kubelet's next tick.
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

/// A merge patch that removes these keys.
fn nulls(keys: impl Iterator<Item = String>) -> Map<String, Value> {
    keys.map(|key| (key, Value::Null)).collect()
}

/// A Node that is gone has nothing to remove.
fn unless_gone(result: Result<(), kube::Error>) -> Result<(), String> {
    match result {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        result => result.map_err(|error| error.to_string()),
    }
}

#[cfg(test)]
#[path = "leave_tests.rs"]
mod tests;
