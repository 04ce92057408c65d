//! GPUs that have reported an error: nothing new of them is offered until they are seen to be well again.
//!
//! The errors that count are those that NVIDIA's device plugin counts: every XID but those that an application causes
//! (k8s-device-plugin, `internal/rm/health.go`), and uncorrected ECC errors. There the state is for ever; here a GPU that
//! has been quiet for a while, answers, and has no repair pending, is taken back.

use super::Node;
use crate::gpu::{Gpu, GpuEvent, GpuTrouble};
use kerf_core::names::{DeviceId, GpuUuid};
use std::time::{Duration, Instant};

/// XIDs that tell of an application's mistake and not of the GPU.
const APPLICATION_XIDS: [u64; 6] = [13, 31, 43, 45, 68, 109];

/// An illness, of the whole GPU or of one GPU instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Illness {
    gpu: GpuUuid,
    gi: Option<u32>,
    text: String,
    last: Instant,
}

impl Node {
    /// Takes an error that a GPU, or one GPU instance of it, has reported.
    pub fn on_trouble(&mut self, event: GpuEvent, now: Instant) {
        let GpuEvent { gpu, what, gi, .. } = event;
        let text = match what {
            GpuTrouble::Xid(xid) if APPLICATION_XIDS.contains(&xid) => return,
            GpuTrouble::Xid(xid) => format!("XID {xid} was reported (see the node's kernel log)"),
            GpuTrouble::DoubleBitEcc => "an ECC error could not be corrected".to_owned(),
        };
        tracing::error!(%gpu, gi, %text, "a GPU is unhealthy");
        self.ills.retain(|ill| ill.gpu != gpu || ill.gi != gi);
        self.tell(super::Note::GpuUnhealthy { gpu: gpu.clone(), text: text.clone() });
        self.ills.push(Illness { gpu, gi, text, last: now });
    }

    /// Takes GPUs back that have been quiet for long enough. Gives the time at which the next one may be.
    pub(super) fn recover(&mut self, now: Instant) -> Option<Instant> {
        let after = self.settings.recover_after;
        let gpus = &self.gpus;
        let answers = |ill: &Illness| {
            gpus.iter().any(|g| g.uuid == ill.gpu && g.fault.is_none() && g.pending_repair.is_none())
        };
        let (well, ill): (Vec<_>, Vec<_>) =
            self.ills.drain(..).partition(|ill| now >= ill.last + after && answers(ill));
        self.ills = ill;
        for Illness { gpu, gi, .. } in well {
            tracing::info!(%gpu, gi, "a GPU has recovered");
            self.tell(super::Note::GpuRecovered { gpu });
        }
        self.ills.iter().map(|ill| (ill.last + after).max(now + Duration::from_secs(1))).min()
    }

    /// What keeps the whole GPU from being used for anything new.
    pub(super) fn trouble_of(&self, gpu: &Gpu) -> Option<String> {
        let fault = gpu.fault.as_ref().map(|fault| format!("it does not answer: {fault}"));
        let repair = || gpu.pending_repair.clone();
        let ill = || self.ills.iter().find(|ill| ill.gpu == gpu.uuid && ill.gi.is_none());
        fault.or_else(repair).or_else(|| ill().map(|ill| ill.text.clone()))
    }

    /// What keeps a device from being used by anybody new.
    pub(super) fn trouble_of_device(&self, device: &DeviceId) -> Option<String> {
        let gpu = self.gpu_of(device)?;
        let gi = gpu.instances.iter().find(|i| i.devices().any(|(_, _, d)| d == device)).map(|i| i.gi);
        let of_instance = || {
            let mut ills = self.ills.iter().filter(|ill| ill.gpu == gpu.uuid && ill.gi.is_some());
            ills.find(|ill| ill.gi == gi).map(|ill| ill.text.clone())
        };
        self.trouble_of(gpu).or_else(of_instance)
    }
}
