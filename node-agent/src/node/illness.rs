//! GPUs that have reported an error: nothing new is offered on them until they have recovered.
//!
//! [`Xids`] decides which XIDs count. An uncorrectable ECC error counts if the GPU cannot replace the bad memory; a GPU
//! that remaps rows contains the error, and its counters show what is left to repair. NVIDIA's device plugin keeps an
//! unhealthy GPU so forever. kerf takes a GPU back once it has been quiet for a while, answers, and has no repair
//! pending. A restart of the agent heals nothing: illnesses are recorded, and the quiet time starts again with the
//! process.

use super::Node;
use super::replica::mig_device;
use crate::gpu::{Gpu, GpuEvent, GpuTrouble, RowRemapping};
use kerf_core::names::{DeviceId, GpuUuid};
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

/// An error of a GPU, or of one GPU instance on it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ill {
    pub gpu: GpuUuid,
    /// The GPU instance; `None` for the whole GPU.
    pub gi: Option<u32>,
    pub text: String,
}

/// An illness, and when it was last reported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Illness {
    ill: Ill,
    last: Instant,
}

impl Node {
    /// Takes an error that a GPU, or one GPU instance of it, has reported.
    pub fn on_trouble(&mut self, event: GpuEvent, now: Instant) {
        let GpuEvent { gpu, what, gi, .. } = event;
        let Some(gpu) = gpu else {
            // The observation after every event shows which GPU is lost, if one is.
            tracing::error!(?what, gi, "a GPU that NVML does not name has reported an error");
            return;
        };
        let contains = self.gpu(&gpu).is_some_and(|gpu| gpu.remapping != RowRemapping::Unsupported);
        let counts = match what {
            GpuTrouble::Xid(xid) => self.settings.xids.count(xid, contains),
            GpuTrouble::DoubleBitEcc => !contains,
        };
        if !counts {
            tracing::info!(%gpu, gi, ?what, "a GPU has reported an error that does not make it unhealthy");
            return;
        }
        let text = match what {
            GpuTrouble::Xid(xid) => format!("XID {xid} was reported (see the node's kernel log)"),
            GpuTrouble::DoubleBitEcc => "an ECC error could not be corrected".to_owned(),
        };
        tracing::error!(%gpu, gi, %text, "a GPU is unhealthy");
        // A repeated error replaces the earlier one, so that the quiet time starts again.
        self.ills.retain(|known| known.ill.gpu != gpu || known.ill.gi != gi);
        self.tell(super::NodeEvent::GpuUnhealthy { gpu: gpu.clone(), text: text.clone() });
        self.ills.push(Illness { ill: Ill { gpu, gi, text }, last: now });
    }

    /// The illnesses, for the checkpoint.
    pub(super) fn ills(&self) -> Vec<Ill> {
        self.ills.iter().map(|known| known.ill.clone()).collect()
    }

    /// Restores recorded illnesses. They count as reported now, because nothing watched the GPUs for a while.
    pub(super) fn recall_ills(&mut self, ills: &[Ill], now: Instant) {
        self.ills = ills.iter().map(|ill| Illness { ill: ill.clone(), last: now }).collect();
    }

    /// Drops illnesses of GPU instances that are gone, because a later instance may get the same id.
    pub(super) fn forget_ills_of_gone(&mut self) {
        let gpus = &self.gpus;
        self.ills.retain(|Illness { ill, .. }| {
            let gpu = gpus.iter().find(|gpu| gpu.uuid == ill.gpu && gpu.fault.is_none());
            let instances = gpu.map(|gpu| &gpu.instances);
            ill.gi.is_none_or(|gi| instances.is_none_or(|all| all.iter().any(|i| i.gi == gi)))
        });
    }

    /// Takes GPUs back that have been quiet for long enough. Returns when the next one may be.
    pub(super) fn recover(&mut self, now: Instant) -> Option<Instant> {
        let after = self.settings.recover_after;
        let gpus = &self.gpus;
        // A pending row remapping alone does not close a GPU. But a GPU with an error too must first get its reset.
        let has_repaired = |gpu: &Gpu| gpu.pending_repair.is_none() && gpu.remapping != RowRemapping::Pending;
        let answers = |known: &Illness| {
            gpus.iter().any(|g| g.uuid == known.ill.gpu && g.fault.is_none() && has_repaired(g))
        };
        let (well, ill): (Vec<_>, Vec<_>) =
            self.ills.drain(..).partition(|ill| now >= ill.last + after && answers(ill));
        self.ills = ill;
        for Illness { ill: Ill { gpu, gi, .. }, .. } in well {
            tracing::info!(%gpu, gi, "a GPU has recovered");
            self.tell(super::NodeEvent::GpuRecovered { gpu });
        }
        self.ills.iter().map(|ill| (ill.last + after).max(now + Duration::from_secs(1))).min()
    }

    /// Why the whole GPU must not be used for anything new.
    pub(super) fn trouble_of(&self, gpu: &Gpu) -> Option<String> {
        let fault = gpu.fault.as_ref().map(|fault| format!("it does not answer: {fault}"));
        let repair = || gpu.pending_repair.clone();
        let ill =
            || self.ills.iter().map(|known| &known.ill).find(|ill| ill.gpu == gpu.uuid && ill.gi.is_none());
        fault.or_else(repair).or_else(|| ill().map(|ill| ill.text.clone()))
    }

    /// Why no new pod may get the device.
    pub(super) fn trouble_of_device(&self, device: &DeviceId) -> Option<String> {
        let gpu = self.gpu_of(device)?;
        let mig = mig_device(device);
        let gi = gpu.instances.iter().find(|i| i.devices().any(|(_, _, d)| *d == mig)).map(|i| i.gi);
        let of_instance = || {
            let ills = self.ills.iter().map(|known| &known.ill);
            let mut ills = ills.filter(|ill| ill.gpu == gpu.uuid && ill.gi.is_some());
            ills.find(|ill| ill.gi == gi).map(|ill| ill.text.clone())
        };
        self.trouble_of(gpu).or_else(of_instance)
    }
}
