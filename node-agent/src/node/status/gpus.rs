//! The GPUs in the status.

use crate::gpu::Gpu;
use crate::node::daemons::MpsDaemons;
use crate::node::device_access::DeviceAccess;
use crate::node::facts::Facts;
use crate::node::rules::{self, mps_shares};
use crate::node::steps::Steps;
use crate::node::topology;
use kerf_core::contract::{GpuStatus, Peer};
use kerf_core::kind::Kind;

pub(super) struct GpuStatuses<'a> {
    pub(super) facts: &'a Facts,
    pub(super) steps: &'a Steps,
    pub(super) mps: &'a MpsDaemons,
    pub(super) access: &'a DeviceAccess,
    /// Whether nothing new is cut or offered on the node.
    pub(super) is_closed: bool,
}

impl GpuStatuses<'_> {
    pub(super) fn all(&self) -> Vec<GpuStatus> {
        let gpus = self.facts.inventory.gpus();
        gpus.iter().zip(topology::peers(gpus)).map(|(gpu, peers)| self.gpu(gpu, peers)).collect()
    }

    fn gpu(&self, gpu: &Gpu, peers: Vec<Peer>) -> GpuStatus {
        GpuStatus {
            uuid: gpu.uuid.clone(),
            index: gpu.index,
            model: gpu.model.clone(),
            pci_bus_id: gpu.pci_bus_id.clone(),
            numa_node: gpu.topology.numa,
            peers,
            memory: gpu.memory,
            reserved: Some(gpu.reserved),
            kinds: self.kinds(gpu),
            outside: self.facts.gpu_use().outside(gpu),
            mps_shares: mps_shares(gpu),
            message: self.message(gpu),
            profiles: gpu.table.clone().unwrap_or_default(),
        }
    }

    /// The kinds that can be cut from the GPU now, by its mode, its health and the policy.
    fn kinds(&self, gpu: &Gpu) -> Vec<Kind> {
        let Facts { inventory, reservations, .. } = self.facts;
        let is_in_trouble =
            inventory.trouble(gpu).is_some() || self.access.gpu_trouble(&gpu.uuid, inventory).is_some();
        if self.is_closed || is_in_trouble || self.facts.rules().layout_trouble(gpu).is_some() {
            return Vec::new();
        }
        let mut kinds = rules::kinds(gpu, &reservations.rule(gpu));
        if self.mps.trouble(&gpu.uuid).is_some() {
            kinds.retain(|kind| *kind != Kind::Mps);
        }
        kinds
    }

    /// What is wrong with a GPU, for an operator.
    fn message(&self, gpu: &Gpu) -> Option<String> {
        let (inventory, rules) = (&self.facts.inventory, self.facts.rules());
        let of_daemon = || {
            let text = self.mps.trouble(&gpu.uuid);
            text.map(|text| format!("its MPS daemon does not serve: {text}"))
        };
        let trouble = inventory.trouble(gpu).or_else(|| rules.mode_trouble(gpu));
        let trouble = trouble.or_else(|| rules.layout_trouble(gpu)).or_else(of_daemon);
        let of_switch = || self.steps.switch_trouble(&gpu.uuid, rules.is_switching(&gpu.uuid));
        trouble.or_else(of_switch).or_else(|| self.access.gpu_trouble(&gpu.uuid, inventory))
    }
}
