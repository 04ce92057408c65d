//! GPUs with a fixed layout: which of its slices exist, and the choice of one of them for a pod.

use super::Cost;
use super::exacting::suffices;
use super::fit::{Candidate, Source};
use super::mig::serving;
use super::plan::own_name;
use super::share::{is_worth_whole, mib};
use crate::capacity::are_within;
use crate::contract::{ContainerRequest, MigPart, Shape};
use crate::inventory::GpuInventory;
use crate::mig::{Geometry, Instance};
use crate::names::SliceId;
use crate::resource::ResourceName;
use std::collections::BTreeSet;

/// A slice of a fixed layout cannot become another slice, so it costs less than any place that kerf could cut
/// differently.
const FIXED: i64 = -300_000;

/// The cost of each compute slice, because other pods cannot use a slice that a request does not need.
const COMPUTE_SLICE: i64 = 1_000;

/// The cost of a cut, which an existing slice saves.
const CUT: i64 = 100;

/// The slices of a GPU compared with its layout.
pub(crate) struct LayoutDifference<'g> {
    /// Slices of the layout that do not exist, in the layout's order.
    pub(crate) missing: Vec<Shape>,
    /// Slices of the layout that are idle.
    pub(crate) idle: Vec<(&'g SliceId, Shape)>,
    /// Idle slices that are not in the layout.
    pub(crate) strange: Vec<&'g SliceId>,
    /// All slices that stay on the GPU.
    stays: Vec<Shape>,
}

impl<'g> LayoutDifference<'g> {
    /// Compares a GPU's slices with its layout.
    pub(crate) fn between(gpu: &'g GpuInventory, layout: &[Shape]) -> Self {
        let mut difference = Self {
            missing: layout.to_vec(),
            idle: Vec::new(),
            strange: Vec::new(),
            stays: gpu.taken().collect(),
        };
        for shape in gpu.taken() {
            difference.take_missing(shape);
        }
        for (id, shape) in gpu.idle() {
            if difference.take_missing(shape) {
                difference.idle.push((id, shape));
                difference.stays.push(shape);
            } else {
                difference.strange.push(id);
            }
        }
        difference
    }

    /// Removes a slice from the missing ones. Returns false if it is not among them.
    fn take_missing(&mut self, shape: Shape) -> bool {
        let found = self.missing.iter().position(|missing| *missing == shape);
        found.map(|index| self.missing.remove(index)).is_some()
    }

    /// Whether a missing slice can be cut beside all slices that stay.
    pub(crate) fn has_room(&self, gpu: &GpuInventory, shape: Shape) -> bool {
        let beside = self.stays.iter().copied().chain([shape]);
        match shape {
            Shape::Mig { .. } => {
                // An instance that is shared in parts counts once.
                let instances: BTreeSet<Instance> = beside.filter_map(Shape::instance).collect();
                Geometry::from_instances(&gpu.table, instances).is_ok()
            }
            Shape::Whole { .. } => self.stays.is_empty() && gpu.undivided,
            Shape::Mps { .. } | Shape::TimeSlicing { .. } => {
                let kind = shape.kind();
                let shapes: Vec<Shape> = beside.collect();
                shapes.iter().all(|other| other.kind() == kind)
                    && are_within(&gpu.rule, kind, gpu.memory, gpu.beside, gpu.mps_shares, &shapes)
            }
        }
    }
}

/// The missing slices of the GPU's layout for which there is room once all other idle slices are destroyed.
pub(crate) fn missing(gpu: &GpuInventory) -> Vec<Shape> {
    let Some(layout) = &gpu.layout else { return Vec::new() };
    let mut difference = LayoutDifference::between(gpu, layout);
    let mut new = Vec::new();
    for shape in std::mem::take(&mut difference.missing) {
        if gpu.kinds.contains(&shape.kind()) && difference.has_room(gpu, shape) {
            difference.stays.push(shape);
            new.push(shape);
        }
    }
    new
}

/// The cheapest slice of the GPU's layout for a request: an idle one, otherwise one that is still to be cut.
pub(super) fn candidate(
    gpu: &GpuInventory,
    layout: &[Shape],
    request: &ContainerRequest,
) -> Option<Candidate> {
    let difference = LayoutDifference::between(gpu, layout);
    let serves = |shape: &Shape| serves(gpu, *shape, request);
    let idle = difference.idle.iter().filter(|(_, shape)| serves(shape));
    let idle = idle.map(|(id, shape)| (cost(gpu, *shape), *shape, Source::Idle((*id).clone())));
    let cut = difference.missing.iter().filter(|shape| serves(shape) && difference.has_room(gpu, **shape));
    let gone = || Source::Cut(difference.strange.iter().map(|id| (*id).clone()).collect());
    let cut = cut.map(|shape| (cost(gpu, *shape) + Cost(CUT), *shape, gone()));
    let (cost, shape, source) = idle.chain(cut).min_by_key(|(cost, shape, _)| (*cost, *shape))?;
    Some(Candidate { shape, source, cost })
}

fn serves(gpu: &GpuInventory, shape: Shape, request: &ContainerRequest) -> bool {
    let replicas = gpu.rule.replicas(shape.kind());
    let Some(name) = own_name(request) else { return false };
    let is_meant = match (name, shape) {
        (
            ResourceName::Mig(_) | ResourceName::Neutral(_),
            Shape::Mig { profile, part: MigPart::Whole, .. },
        ) => serving(&gpu.table, request).any(|serving| serving == profile),
        (ResourceName::Whole, Shape::Whole { size_gb }) => {
            is_worth_whole(request.size_gb, size_gb, request.distinct_gpus)
        }
        (ResourceName::Replica, Shape::TimeSlicing { .. })
        | (ResourceName::MpsReplica, Shape::Mps { .. }) => replicas.is_some(),
        (ResourceName::TimeSlicing(size), Shape::TimeSlicing { size_gb })
        | (ResourceName::Mps(size), Shape::Mps { size_gb, .. }) => replicas.is_none() && size == size_gb,
        _ => false,
    };
    is_meant && suffices(gpu, shape, request)
}

/// Time slices with the fewest neighbours come first. Among MIG slices, those with the least sufficient compute do.
fn cost(gpu: &GpuInventory, shape: Shape) -> Cost {
    match shape {
        Shape::Mig { profile, .. } => Cost(FIXED + COMPUTE_SLICE * i64::from(profile.compute())),
        Shape::TimeSlicing { .. } => mib(gpu.taken().map(|taken| taken.size().share_memory()).sum()),
        Shape::Whole { .. } | Shape::Mps { .. } => Cost(FIXED),
    }
}

#[cfg(test)]
#[path = "layout_tests.rs"]
mod tests;
