//! The MPS daemon of the shared GPU: its orders, and its expected state when the node has settled.

use std::collections::BTreeSet;

use anyhow::Context as _;
use kerf_core::contract::{Shape, SliceState};
use kerf_core::names::GpuUuid;
use kerf_nvml_mock::MockState;

use super::guard;
use super::node::SHARED;
use super::scene::Scene;
use crate::kubelet::PodKey;
use crate::mps::{Event, Fault, MpsStandIn, Orders, ServerFault};

/// The compute modes `NVML_COMPUTEMODE_DEFAULT` and `NVML_COMPUTEMODE_EXCLUSIVE_PROCESS`.
const DEFAULT: u32 = 0;
const EXCLUSIVE: u32 = 3;

/// The command that sets the memory limit of new clients.
const LIMIT: &str = "set_default_device_pinned_mem_limit 0 ";

pub(super) struct Daemon {
    pub(super) target: GpuUuid,
    stand_in: MpsStandIn,
    orders: Orders,
}

impl Daemon {
    pub(super) fn new(stand_in: MpsStandIn, target: GpuUuid) -> Self {
        Self { target, stand_in, orders: Orders::default() }
    }

    fn events(&self) -> anyhow::Result<Vec<Event>> {
        self.stand_in.events(self.target.as_str()).context("the MPS daemon's log cannot be read")
    }

    /// The daemon that was started last, and its last memory limit in MiB.
    fn newest(&self) -> anyhow::Result<Option<(u32, Option<u64>)>> {
        let mut newest = None;
        for event in self.events()? {
            match (event, &mut newest) {
                (Event::Started { daemon, .. }, newest) => *newest = Some((daemon, None)),
                (Event::Word { word, fault, .. }, Some((_, limit))) if took_effect(fault.as_ref()) => {
                    let megabytes = word.strip_prefix(LIMIT).and_then(|m| m.strip_suffix('M')?.parse().ok());
                    *limit = megabytes.or(*limit);
                }
                _ => {}
            }
        }
        Ok(newest)
    }
}

/// Whether a command took effect, perhaps after it had hung.
fn took_effect(fault: Option<&Fault>) -> bool {
    matches!(fault, None | Some(Fault::HangBefore | Fault::HangAfter | Fault::DieAfter))
}

impl Scene {
    pub(super) fn order(&mut self, change: impl FnOnce(&mut Orders)) -> anyhow::Result<()> {
        let daemon = &mut self.daemon;
        change(&mut daemon.orders);
        let orders = daemon.orders.clone();
        daemon.stand_in.order(daemon.target.as_str(), orders).context("the MPS daemon cannot be given orders")
    }

    /// Puts the servers into fault, once.
    pub(super) fn break_servers(&mut self) -> anyhow::Result<()> {
        self.order(|orders| orders.server_fault = Some(ServerFault::UntilShutDown))?;
        // A later order must not repeat the fault.
        self.daemon.orders.server_fault = None;
        Ok(())
    }

    pub(super) fn word_counts(&self) -> anyhow::Result<std::collections::BTreeMap<String, usize>> {
        self.daemon
            .stand_in
            .counts(self.daemon.target.as_str())
            .context("the MPS daemon's log cannot be read")
    }

    /// The commands that had a fault.
    pub(super) fn words_struck(&self) -> anyhow::Result<Vec<(String, Fault)>> {
        self.daemon
            .stand_in
            .struck(self.daemon.target.as_str())
            .context("the MPS daemon's log cannot be read")
    }

    pub(super) fn daemons_started(&self) -> anyhow::Result<usize> {
        Ok(self.daemon.events()?.iter().filter(|event| matches!(event, Event::Started { .. })).count())
    }

    pub(super) fn mps_holders(&self) -> BTreeSet<PodKey> {
        let shares = |name: &str| name.starts_with("nvidia.com/gpu-") && !name.ends_with(".shared");
        let held = guard::held(&self.node.kubelet);
        held.into_values().flatten().filter(|(name, _)| shares(name)).map(|(_, pod)| pod).collect()
    }

    /// Wrong states of the daemon. It must run exactly if there are shares. Its limit is the largest share
    /// that is not idle, or the largest of all if all are idle.
    pub(super) fn daemon_complaints(&self, state: &MockState) -> anyhow::Result<Vec<String>> {
        let status = self.status();
        let shares = status.slices.iter().filter(|s| s.gpu == self.daemon.target);
        let sizes = shares.filter_map(|slice| match slice.shape {
            Shape::Mps { size_gb, .. } => {
                Some((slice.state != SliceState::Idle, u64::from(size_gb.0) * 1024))
            }
            _ => None,
        });
        // `true` sorts after `false`, so any share that is not idle comes after all idle ones.
        let largest = sizes.max().map(|(_, size)| size);
        let newest = self.daemon.newest()?.filter(|(pid, _)| runs(*pid));
        let mode = state.gpus.iter().find(|gpu| gpu.index == SHARED).context("no such GPU")?.compute_mode;
        let due = if largest.is_some() { EXCLUSIVE } else { DEFAULT };
        let mut found = Vec::new();
        if mode != due {
            found.push(format!("the compute mode is {mode} and not {due}"));
        }
        match (largest, newest) {
            (None, Some((pid, _))) => found.push(format!("leaked: an MPS daemon ({pid}) without shares")),
            (Some(_), None) => found.push("no MPS daemon runs for the shares".to_owned()),
            (Some(largest), Some((_, limit))) if limit != Some(largest) => {
                found.push(format!("the MPS daemon's limit is {limit:?} and not {largest} MiB"));
            }
            _ => {}
        }
        Ok(found)
    }
}

/// Whether the process runs. A zombie has no executable any more.
fn runs(pid: u32) -> bool {
    std::fs::read_link(format!("/proc/{pid}/exe")).is_ok()
}
