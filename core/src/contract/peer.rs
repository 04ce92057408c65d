//! What lies between two GPUs of a node.

use serde::{Deserialize, Serialize};

/// What lies between a GPU and another of its node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Peer {
    /// The other GPU's NVML index.
    pub index: u32,
    /// Active NVLinks from the one to the other, also through NVSwitches. 0 for none, and where all pairs of the node have the
    /// same number.
    #[serde(default, skip_serializing_if = "is_none")]
    pub nvlinks: u32,
    /// What both are behind on the PCI bus; absent for nothing, and where it is the same for all pairs of the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pcie: Option<PcieAncestor>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_none(nvlinks: &u32) -> bool {
    *nvlinks == 0
}

/// The nearest thing on the PCI bus that two GPUs are behind: `PIX`, `PXB` and `PHB` of `nvidia-smi topo`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub enum PcieAncestor {
    /// One PCIe switch, and no other between them.
    SingleSwitch,
    /// A PCIe switch, with others between it and them.
    MultipleSwitches,
    /// The same host bridge.
    HostBridge,
}
