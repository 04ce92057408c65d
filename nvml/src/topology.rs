//! Finds a GPU's place in the machine. It uses only calls about one GPU, because a call that names two GPUs hangs if
//! either does.

use crate::pci;
use kerf_core::names::PciBusId;
use nvml_wrapper::Device;
use nvml_wrapper_sys::bindings::NVML_NVLINK_MAX_LINKS;
use std::collections::BTreeMap;
use std::path::Path;

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Topology {
    /// The nearest NUMA node; `None` on machines with one node.
    pub numa: Option<u32>,
    /// The host bridge above it, and the bridges from there to the GPU.
    pub bridges: Vec<String>,
    /// Active NVLinks by the address of their other end: a GPU or an NVSwitch, which in a virtual machine is
    /// `ffffffff:ff:ff.0`.
    pub nvlinks: BTreeMap<PciBusId, u32>,
}

pub(crate) fn read(device: &Device<'_>, sys: &Path) -> Topology {
    let bus_id = device.pci_info().map(|pci| pci.bus_id).unwrap_or_default();
    let mut nvlinks = BTreeMap::new();
    for link in 0..NVML_NVLINK_MAX_LINKS {
        let link = device.link_wrapper_for(link);
        let Ok(true) = link.is_active() else { continue };
        let end = link.remote_pci_info().ok().and_then(|pci| pci.bus_id.parse().ok());
        if let Some(end) = end {
            *nvlinks.entry(end).or_default() += 1;
        }
    }
    Topology { numa: pci::numa_node(sys, &bus_id), bridges: pci::bridges(sys, &bus_id), nvlinks }
}
