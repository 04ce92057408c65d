//! Finds places for new slices by the simulated NVML's own rules: any legal place, so that all kinds of cuts
//! occur.

use kerf_core::contract::{GpuNodeStatus, MigPart, Shape, WantedSlice};
use kerf_core::kind::Kind;
use kerf_core::mig::{ComputeInstance, ComputeProfile, Instance, Profile};
use kerf_core::names::SliceId;
use kerf_core::resource::ResourceName;
use kerf_core::units::SizeGb;
use kerf_nvml_mock::{GpuInstance, GpuState, Placement};

use super::dice::Dice;

/// The shapes that must stay on a GPU: `reserved` ones and held ones.
pub(super) fn taken(gpu: &GpuState, reserved: Vec<Shape>, status: &GpuNodeStatus) -> Vec<Shape> {
    let held = status.slices.iter().filter(|s| s.gpu.as_str() == gpu.uuid && s.holder.is_some());
    reserved.into_iter().chain(held.map(|s| s.shape)).collect()
}

/// A random legal GPU instance beside `taken`, with its resource name. Places over idle instances are
/// likelier.
pub(super) fn instance(gpu: &GpuState, taken: &[Shape], dice: &mut Dice) -> Option<(Shape, String)> {
    let cut: Vec<(u32, Placement)> = gpu.instances.iter().map(|i| (i.profile_id, i.placement)).collect();
    let gpu = with_shapes(gpu, taken.iter().copied());
    let profiles = gpu.model.profiles().iter();
    let places = profiles.flat_map(|p| gpu.free_places(p.id).into_iter().map(move |place| (p, place)));
    let places: Vec<_> = places
        .flat_map(|(profile, place)| {
            let replaces =
                cut.iter().any(|(id, other)| place.overlaps(*other) && (*id, *other) != (profile.id, place));
            // Small instances are likelier, because large ones would fill a GPU at once.
            let weight = if place.size > 2 { 1 } else { 3 } * if replaces { 4 } else { 1 };
            vec![(profile.name.clone(), place); weight]
        })
        .collect();
    let (name, Placement { start, size }) = dice.pick(&places)?.clone();
    let profile: Profile = name.parse().ok()?;
    let shape = Shape::Mig {
        profile,
        start: u8::try_from(start).ok()?,
        size: u8::try_from(size).ok()?,
        part: MigPart::Whole,
    };
    Some((shape, ResourceName::Mig(profile).to_string()))
}

/// A random compute instance in a GPU instance with other parts, or in a new one.
pub(super) fn part(gpu: &GpuState, taken: &[Shape], dice: &mut Dice) -> Option<(Shape, String)> {
    let shared: Vec<Instance> =
        taken.iter().filter(|s| s.part().is_some()).filter_map(|s| s.instance()).collect();
    let of = match dice.pick(&shared) {
        Some(instance) if dice.below(3) > 0 => *instance,
        _ => instance(gpu, taken, dice)?.0.instance()?,
    };
    let parts: Vec<ComputeInstance> =
        taken.iter().filter(|s| s.instance() == Some(of)).filter_map(|s| s.part()).collect();
    let whole = of.profile.compute();
    let profiles = ComputeProfile::all(of.profile).filter(|p| p.compute() < whole);
    let all = profiles.flat_map(|p| p.starts().iter().map(move |start| (p, *start)));
    let free: Vec<_> = all
        .map(|(p, start)| (p, ComputeInstance { start, compute: p.compute() }))
        .filter(|(_, place)| !parts.iter().any(|p| p.overlaps(*place)))
        .collect();
    let (profile, place) = *dice.pick(&free)?;
    let shape = Shape::from_instance(of, MigPart::Compute(place));
    Some((shape, ResourceName::Compute(profile).to_string()))
}

/// A random share of this kind beside `taken`.
pub(super) fn share(gpu: &GpuState, taken: &[Shape], kind: Kind, dice: &mut Dice) -> Option<(Shape, String)> {
    const SIZES: [u32; 4] = [1, 2, 4, 6];
    // A share that is larger than the others makes the agent raise a daemon's limit, so half of the draws try
    // one.
    let most = taken.iter().map(|other| other.size().0).max().unwrap_or_default();
    let larger: Vec<u32> = SIZES.into_iter().filter(|size| *size > most).collect();
    let size = if dice.below(2) == 0 { dice.pick(&larger) } else { None };
    let size = SizeGb(*size.or_else(|| dice.pick(&SIZES))?);
    let whole = SizeGb(u32::try_from(gpu.model.total_mib() / 1024).ok()?);
    let shape = Shape::share(kind, size).unwrap_or(Shape::Whole { size_gb: whole });
    let alone = taken.is_empty() || kind != Kind::Whole && taken.iter().all(|other| other.kind() == kind);
    let used: u64 = taken.iter().map(|s| u64::from(s.size().0) * 1024).sum();
    let fits = used + u64::from(shape.size().0) * 1024 <= gpu.model.total_mib();
    if alone && fits { Some((shape, resource(shape)?)) } else { None }
}

fn resource(shape: Shape) -> Option<String> {
    let name = match shape {
        Shape::Mps { size_gb, .. } => ResourceName::Mps(size_gb),
        Shape::TimeSlicing { size_gb } => ResourceName::TimeSlicing(size_gb),
        Shape::Whole { .. } => ResourceName::Whole,
        Shape::Mig { .. } => return None,
    };
    Some(name.to_string())
}

/// The `idle` slices that cannot exist beside the new slice and the `reserved` ones; they must be destroyed.
pub(super) fn in_the_way(
    gpu: &GpuState,
    idle: &[WantedSlice],
    reserved: &[Shape],
    new: Shape,
) -> Vec<SliceId> {
    let mut kept: Vec<Shape> = reserved.iter().copied().chain([new]).collect();
    let mut gone = Vec::new();
    for WantedSlice { id, shape, .. } in idle.iter().filter(|s| s.gpu.as_str() == gpu.uuid) {
        let together = kept.iter().copied().chain([*shape]);
        if is_legal(gpu, together) {
            kept.push(*shape);
        } else {
            gone.push(id.clone());
        }
    }
    gone
}

fn is_legal(gpu: &GpuState, shapes: impl Iterator<Item = Shape>) -> bool {
    let shapes: Vec<Shape> = shapes.collect();
    let Some(last) = shapes.last().copied() else { return true };
    if last.instance().is_none() {
        let kind = last.kind();
        let used: u64 = shapes.iter().map(|s| u64::from(s.size().0) * 1024).sum();
        return shapes.iter().all(|s| s.kind() == kind) && used <= gpu.model.total_mib();
    }
    let same = |s: &&Shape| s.instance() == last.instance();
    let fits_in =
        shapes[..shapes.len() - 1].iter().filter(same).all(|other| match (other.part(), last.part()) {
            (Some(one), Some(two)) => !one.overlaps(two),
            _ => false,
        });
    fits_in && with_shapes(gpu, shapes.into_iter()).violations().is_empty()
}

/// The GPU with only these instances, each once.
fn with_shapes(gpu: &GpuState, shapes: impl Iterator<Item = Shape>) -> GpuState {
    let mut instances: Vec<Instance> = shapes.filter_map(Shape::instance).collect();
    instances.sort_unstable();
    instances.dedup();
    let instances = instances.into_iter().zip(0..).filter_map(|(instance, id)| {
        let profile = gpu.model.profile_named(&instance.profile.to_string())?;
        let placement =
            Placement { start: instance.placement.start.into(), size: instance.placement.size.into() };
        let (compute, serial, sram_uncorrected) = (Vec::new(), 0, 0);
        Some(GpuInstance { id, profile_id: profile.id, placement, serial, compute, sram_uncorrected })
    });
    GpuState { instances: instances.collect(), ..gpu.clone() }
}
