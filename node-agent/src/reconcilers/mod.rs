//! The tasks that bring the node to the loop's desired state: device files, MPS daemons and limits here; time slices,
//! DCGM and rejected pods in their own modules. Each receives the desired state, applies it, and reports the observed
//! state.

pub mod access;
pub mod gpu_events;
pub mod limits;
mod loss;
pub mod mps;

use crate::node::{DesiredSlices, Pause};
use crate::rejected::Eviction;
use gpu_events::Reopen;
use kerf_core::contract::SliceLength;
use kerf_core::names::GpuUuid;
use std::collections::BTreeMap;
use tokio::sync::{mpsc, watch};

/// How many evictions may be queued.
const EVICTIONS: usize = 16;

/// The channels on which the loop publishes the desired state.
pub struct DesiredState {
    /// Desired device files and MPS daemons for the existing slices; `None` until these are known.
    pub slices: watch::Sender<Option<DesiredSlices>>,
    pub lengths: watch::Sender<BTreeMap<GpuUuid, SliceLength>>,
    /// Which of the GPU Operator's DCGM programs are paused.
    pub pause: watch::Sender<Pause>,
    /// Whether rejected pods are removed.
    pub remove_rejected: watch::Sender<bool>,
    pub evict: mpsc::Sender<Eviction>,
    /// Asks the event thread to fetch new handles, because a GPU's handle may have changed.
    pub reopen: Reopen,
}

/// The receiving ends of [`DesiredState`].
pub struct Inputs {
    pub slices: watch::Receiver<Option<DesiredSlices>>,
    pub lengths: watch::Receiver<BTreeMap<GpuUuid, SliceLength>>,
    pub pause: watch::Receiver<Pause>,
    pub remove_rejected: watch::Receiver<bool>,
    pub evict: mpsc::Receiver<Eviction>,
    pub reopen: Reopen,
}

#[must_use]
pub fn channels() -> (DesiredState, Inputs) {
    let (slices, desired_slices) = watch::channel(None);
    let (lengths, to_set) = watch::channel(BTreeMap::new());
    let (pause, to_pause) = watch::channel(Pause::default());
    let (remove_rejected, to_remove) = watch::channel(false);
    let (evict, to_evict) = mpsc::channel(EVICTIONS);
    let reopen = Reopen::default();
    let inputs = Inputs {
        slices: desired_slices,
        lengths: to_set,
        pause: to_pause,
        remove_rejected: to_remove,
        evict: to_evict,
        reopen: reopen.clone(),
    };
    (DesiredState { slices, lengths, pause, remove_rejected, evict, reopen }, inputs)
}
