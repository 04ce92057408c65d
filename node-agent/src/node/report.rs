//! What the agent reports of the node besides the status.

use super::conflicts::Conflicts;
use super::facts::Facts;
use super::gfd::gfd_labels;
use super::health::{Health, Neighbour};
use super::{acceptance, names, rules};
use kerf_core::contract::{GpuNodeStatus, Summary};
use kerf_core::gfd_labels::GfdLabels;
use kerf_core::ledger::NodeState;
use std::collections::BTreeMap;

#[derive(Debug)]
pub struct Report {
    /// What `/readyz` shows: NVML, the kubelet, the GpuNode.
    pub readiness: [(&'static str, bool); 3],
    /// The node labels that the agent owns; `None` removes a label. Empty until NVML has been read, because pending
    /// pods need the labels of an earlier process, and an earlier status does not show the current mode.
    pub labels: BTreeMap<String, Option<String>>,
    /// The values of NVIDIA's labels. Empty until it is known that no other manager serves the GPUs, because that one
    /// labels the node.
    pub gfd_labels: GfdLabels,
    /// The node's state, which the streams copy to the extender. `None` until the GPUs and their managers were
    /// observed: otherwise readers would see a node without GPUs.
    pub state: Option<NodeState>,
}

impl Report {
    pub(super) fn new(facts: &Facts, health: &Health, conflicts: &Conflicts, status: &GpuNodeStatus) -> Self {
        let is_checked = health.has_answered(Neighbour::Nvml) && conflicts.is_checked();
        let state = || NodeState {
            status: GpuNodeStatus { summary: Summary::default(), ..status.clone() },
            policy: facts.reservations.policy().clone(),
            closed: acceptance::trouble(facts, health, conflicts),
        };
        let is_contested = conflicts.is_contested();
        Self {
            readiness: health.readiness(),
            labels: labels(facts),
            gfd_labels: if is_contested {
                GfdLabels::new()
            } else {
                gfd_labels(facts.rules(), &facts.slices)
            },
            state: is_checked.then(state),
        }
    }
}

fn labels(facts: &Facts) -> BTreeMap<String, Option<String>> {
    if facts.inventory.gpus().is_empty() {
        return BTreeMap::new();
    }
    names::labels(facts.rules().all().map(|(gpu, rule)| (gpu, rules::kinds(gpu, &rule))))
}
