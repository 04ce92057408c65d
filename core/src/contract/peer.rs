//! The connection between two GPUs of a node.

use serde::{Deserialize, Serialize};

/// The connection from a GPU to another GPU of its node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Peer {
    /// The other GPU's NVML index.
    pub index: u32,
    /// Active NVLinks between the two, also through NVSwitches. 0 if there are none, or if all pairs of the node have
    /// the same number.
    #[serde(default, skip_serializing_if = "is_none")]
    pub nvlinks: u32,
    /// The nearest common ancestor of both on the PCI bus. Absent if there is none, or if it is the same for all pairs
    /// of the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pcie: Option<PcieAncestor>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_none(nvlinks: &u32) -> bool {
    *nvlinks == 0
}

/// The nearest common ancestor of two GPUs on the PCI bus: `PIX`, `PXB` and `PHB` of `nvidia-smi topo`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub enum PcieAncestor {
    /// One PCIe switch, with no other between it and the GPUs.
    SingleSwitch,
    /// A PCIe switch, with other switches between it and the GPUs.
    MultipleSwitches,
    /// The same host bridge, without a common switch.
    HostBridge,
}
