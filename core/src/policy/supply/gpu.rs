//! The slices that one GPU can serve while it is not in use. Equal GPUs share one result.

use crate::contract::{ContainerRequest, GpuSelector, GpuStatus, RequestDocument, Shape};
use crate::inventory::{GpuInventory, NodeInventory};
use crate::kind::{IsolationClass, Kind};
use crate::mig::{ComputeProfile, Profile, catalog};
use crate::names::GpuUuid;
use crate::packing::{Fleet, fit};
use crate::resource::{ResourceName, SHARE_SIZES};
use crate::units::{ComputePercent, MemoryMib, SizeGb};
use std::collections::BTreeSet;

#[derive(Debug)]
pub(super) struct GpuSupply {
    /// Its short model name, as in `H100-80GB`.
    pub model: String,
    /// The nominal size of the GPU.
    pub size: SizeGb,
    /// The concrete names that it serves.
    pub names: BTreeSet<ResourceName>,
    /// The profiles that it offers, with the memory of each.
    pub profiles: Vec<(Profile, MemoryMib)>,
    /// One of its equal time slices and one of its equal MPS shares, if it has such.
    replicas: [Option<Shape>; 2],
    /// Whether its MPS shares limit compute, so that a share can be guaranteed.
    pub limits_compute: bool,
}

impl GpuSupply {
    /// One of its equal parts of this kind, if it has such.
    pub fn replica(&self, kind: Kind) -> Option<Shape> {
        self.replicas.iter().flatten().copied().find(|shape| shape.kind() == kind)
    }

    /// Whether one of its equal MPS shares has at least this share of compute.
    pub fn has_compute(&self, least: ComputePercent) -> bool {
        let share = self.replica(Kind::Mps).and_then(Shape::compute);
        self.limits_compute && share >= Some(least)
    }

    pub fn serves(&self, name: ResourceName) -> bool {
        self.names.contains(&name)
    }
}

/// A GPU without its slices and its identity, to compare GPUs by sort.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Chip(GpuInventory);

impl Chip {
    /// Keeps what is common to all GPUs of this sort.
    pub fn from_gpu(status: &GpuStatus, gpu: &GpuInventory) -> Self {
        let mut gpu = GpuInventory {
            slices: Vec::new(),
            uuid: GpuUuid::new(""),
            memory: status.memory,
            undivided: true,
            ..gpu.clone()
        };
        // The selector names single GPUs; without it, GPUs with equal rules compare as one sort.
        gpu.rule.select = GpuSelector::default();
        Self(gpu)
    }

    /// The slices that a GPU of this sort serves. The result is tested with `packing::fit`, so that it agrees with the
    /// extender. `fleet` caches the results of packing for the model.
    pub fn supply(&self, fleet: &mut Fleet) -> GpuSupply {
        let Self(gpu) = self;
        if let Some(known) = fleet.add(&gpu.table, [], []) {
            fleet.remove(known);
        }
        let node = NodeInventory { gpus: vec![gpu.clone()], ..NodeInventory::default() };
        let size = gpu.memory.nominal();
        let serves = |name: &ResourceName| {
            let one = ContainerRequest::for_slice(*name, name.size().unwrap_or(size));
            fit(&node, &RequestDocument::for_containers(IsolationClass::None, vec![one]), fleet).is_ok()
        };
        let names: BTreeSet<ResourceName> = self.names().into_iter().filter(serves).collect();
        let entries = gpu.table.entries().iter();
        let present = entries.filter(|entry| names.contains(&ResourceName::Mig(entry.profile)));
        GpuSupply {
            model: gpu.model.clone(),
            size,
            profiles: present.map(|entry| (entry.profile, entry.memory)).collect(),
            names,
            replicas: [Kind::TimeSlicing, Kind::Mps].map(|kind| gpu.replica(kind)),
            limits_compute: gpu.rule.mps.limits_compute(),
        }
    }

    /// The names that a GPU with these kinds could serve.
    fn names(&self) -> Vec<ResourceName> {
        let Self(gpu) = self;
        let own = || gpu.table.entries().iter().map(|entry| entry.profile);
        let (parts, turns) = (gpu.rule.compute_instances, gpu.rule.mig.time_slicing.is_some());
        let by_kind = |kind: &Kind| -> Vec<ResourceName> {
            match kind {
                Kind::Mig => {
                    let parts = own().filter(|_| parts).flat_map(ComputeProfile::all);
                    let replicas = own().filter(|_| turns).map(ResourceName::MigReplica);
                    let profiles = catalog::profiles().into_iter().chain(own());
                    let parts = parts.map(ResourceName::Compute);
                    profiles.map(ResourceName::Mig).chain(parts).chain(replicas).collect()
                }
                Kind::Whole => vec![ResourceName::Whole],
                Kind::Mps | Kind::TimeSlicing => {
                    let sizes = SHARE_SIZES.iter().filter_map(|size| ResourceName::share(*kind, *size));
                    sizes.chain(ResourceName::replica(*kind)).collect()
                }
            }
        };
        gpu.kinds.iter().flat_map(by_kind).collect()
    }
}
