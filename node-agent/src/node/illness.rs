//! GPUs that have reported an error: nothing new is offered on them until they have recovered.
//!
//! [`Xids`] decides which XIDs count. An uncorrectable ECC error counts if the GPU cannot replace the bad memory; a GPU
//! that remaps rows contains the error, and its counters show what is left to repair. NVIDIA's device plugin keeps an
//! unhealthy GPU so forever. kerf takes a GPU back once it has been quiet for a while, answers, and has no repair
//! pending. A restart of the agent heals nothing: illnesses are recorded, and the quiet time starts again with the
//! process.

use super::Xids;
use crate::gpu::{Gpu, GpuEvent, GpuTrouble, RowRemapping};
use kerf_core::names::GpuUuid;
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
struct Illness {
    ill: Ill,
    last: Instant,
}

/// The errors from which GPUs have not recovered yet.
#[derive(Debug, Default)]
pub(super) struct Illnesses(Vec<Illness>);

impl Illnesses {
    /// Takes an error that a GPU with this row remapping has reported. Returns it if it makes the GPU unhealthy.
    pub(super) fn take(
        &mut self,
        event: GpuEvent,
        remapping: Option<RowRemapping>,
        xids: &Xids,
        now: Instant,
    ) -> Option<Ill> {
        let GpuEvent { gpu, what, gi, .. } = event;
        let Some(gpu) = gpu else {
            // The observation after every event shows which GPU is lost, if one is.
            tracing::error!(?what, gi, "a GPU that NVML does not name has reported an error");
            return None;
        };
        let contains = remapping.is_some_and(|remapping| remapping != RowRemapping::Unsupported);
        let counts = match what {
            GpuTrouble::Xid(xid) => xids.count(xid, contains),
            GpuTrouble::DoubleBitEcc => !contains,
        };
        if !counts {
            tracing::info!(%gpu, gi, ?what, "a GPU has reported an error that does not make it unhealthy");
            return None;
        }
        let text = match what {
            GpuTrouble::Xid(xid) => format!("XID {xid} was reported (see the node's kernel log)"),
            GpuTrouble::DoubleBitEcc => "an ECC error could not be corrected".to_owned(),
        };
        tracing::error!(%gpu, gi, %text, "a GPU is unhealthy");
        // A repeated error replaces the earlier one, so that the quiet time starts again.
        self.0.retain(|known| known.ill.gpu != gpu || known.ill.gi != gi);
        let ill = Ill { gpu, gi, text };
        self.0.push(Illness { ill: ill.clone(), last: now });
        Some(ill)
    }

    /// The illnesses, for the checkpoint.
    pub(super) fn to_record(&self) -> Vec<Ill> {
        self.0.iter().map(|known| known.ill.clone()).collect()
    }

    /// Restores recorded illnesses. They count as reported now, because nothing watched the GPUs for a while.
    pub(super) fn restore(&mut self, ills: &[Ill], now: Instant) {
        self.0 = ills.iter().map(|ill| Illness { ill: ill.clone(), last: now }).collect();
    }

    /// Drops illnesses of GPU instances that are gone, because a later instance may get the same id.
    pub(super) fn forget_gone(&mut self, gpus: &[Gpu]) {
        self.0.retain(|Illness { ill, .. }| {
            let gpu = gpus.iter().find(|gpu| gpu.uuid == ill.gpu && gpu.fault.is_none());
            let instances = gpu.map(|gpu| &gpu.instances);
            ill.gi.is_none_or(|gi| instances.is_none_or(|all| all.iter().any(|i| i.gi == gi)))
        });
    }

    /// Takes GPUs back that have been quiet for long enough. Returns them, and when the next one may be.
    pub(super) fn recover(
        &mut self,
        gpus: &[Gpu],
        after: Duration,
        now: Instant,
    ) -> (Vec<GpuUuid>, Option<Instant>) {
        // A pending row remapping alone does not close a GPU. But a GPU with an error too must first get its reset.
        let has_repaired = |gpu: &Gpu| gpu.pending_repair.is_none() && gpu.remapping != RowRemapping::Pending;
        let answers = |known: &Illness| {
            gpus.iter().any(|g| g.uuid == known.ill.gpu && g.fault.is_none() && has_repaired(g))
        };
        let (well, ill): (Vec<_>, Vec<_>) =
            self.0.drain(..).partition(|ill| now >= ill.last + after && answers(ill));
        self.0 = ill;
        for Illness { ill: Ill { gpu, gi, .. }, .. } in &well {
            tracing::info!(%gpu, gi, "a GPU has recovered");
        }
        // An overdue GPU is checked again after a second; otherwise the next decision would be due at once, without a
        // pause.
        let next = self.0.iter().map(|ill| (ill.last + after).max(now + Duration::from_secs(1))).min();
        (well.into_iter().map(|known| known.ill.gpu).collect(), next)
    }

    /// What is wrong with the whole GPU.
    pub(super) fn gpu_illness(&self, gpu: &GpuUuid) -> Option<String> {
        self.find(gpu, None)
    }

    /// What is wrong with the GPU instance.
    pub(super) fn instance_illness(&self, gpu: &GpuUuid, gi: u32) -> Option<String> {
        self.find(gpu, Some(gi))
    }

    fn find(&self, gpu: &GpuUuid, gi: Option<u32>) -> Option<String> {
        let mut ills = self.0.iter().map(|known| &known.ill);
        ills.find(|ill| ill.gpu == *gpu && ill.gi == gi).map(|ill| ill.text.clone())
    }
}
