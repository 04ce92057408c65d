//! The checker: runs a plan on a bitmap of its own and refuses what must never happen.
//!
//! It shares no rule with the planner: it counts memory slices one by one, where the planner asks
//! [`Geometry`](crate::mig::Geometry).

use super::model::{Observed, ObservedGpu, Plan, Step};
use crate::contract::WantedSlice;
use crate::mig::{Instance, Profile};
use crate::names::{GpuUuid, SliceId};
use std::collections::BTreeMap;
use thiserror::Error;

/// The names of the profiles of which a GPU holds one in all (MIG user guide, media extensions).
const MEDIA: [&str; 2] = ["+me", "+me.all"];

/// What is wrong with a plan.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Violation {
    /// A step names a GPU that is not there.
    #[error("{0} is not on this node")]
    NoSuchGpu(GpuUuid),
    /// A held slice would be destroyed.
    #[error("{1} on {0} is held")]
    Held(GpuUuid, String),
    /// A wanted slice would be destroyed.
    #[error("{1} on {0} is wanted")]
    Wanted(GpuUuid, String),
    /// What would be destroyed is not there.
    #[error("{1} on {0} does not exist")]
    Missing(GpuUuid, String),
    /// Memory slices would be used twice, or lie outside the table.
    #[error("{1} on {0} does not fit")]
    DoesNotFit(GpuUuid, String),
    /// Nobody wants what would be made.
    #[error("{1} on {0} is not wanted")]
    NotWanted(GpuUuid, String),
    /// An instance would be destroyed for nothing.
    #[error("{1} on {0} is destroyed for nothing")]
    Needless(GpuUuid, String),
}

/// Accepts or refuses `plan`.
pub fn check(observed: &Observed, wanted: &[WantedSlice], plan: &Plan) -> Result<(), Violation> {
    let mut gpus: BTreeMap<&GpuUuid, State<'_>> =
        observed.gpus.iter().map(|g| (&g.uuid, State::new(g))).collect();
    for step in &plan.steps {
        let (Step::Destroy { gpu, .. }
        | Step::Create { gpu, .. }
        | Step::End { gpu, .. }
        | Step::Start { gpu, .. }) = step;
        let state = gpus.get_mut(gpu).ok_or_else(|| Violation::NoSuchGpu(gpu.clone()))?;
        state.run(step, wanted)?;
    }
    Ok(())
}

struct State<'o> {
    gpu: &'o ObservedGpu,
    instances: Vec<Instance>,
    shares: BTreeMap<SliceId, u64>,
}

impl<'o> State<'o> {
    fn new(gpu: &'o ObservedGpu) -> Self {
        Self {
            gpu,
            instances: gpu.instances.iter().map(|o| o.instance).collect(),
            shares: gpu.shares.iter().map(|s| (s.id.clone(), s.shape.size().share_memory().0)).collect(),
        }
    }

    fn run(&mut self, step: &Step, wanted: &[WantedSlice]) -> Result<(), Violation> {
        let uuid = self.gpu.uuid.clone();
        let here = |w: &&WantedSlice| w.gpu == uuid;
        match step {
            Step::Destroy { instance, .. } => {
                let text = format!("{} at {}", instance.profile, instance.placement);
                if self.gpu.instances.iter().any(|o| o.instance == *instance && o.held) {
                    return Err(Violation::Held(uuid, text));
                }
                if wanted.iter().filter(here).any(|w| w.shape.instance() == Some(*instance)) {
                    return Err(Violation::Wanted(uuid, text));
                }
                let mig_wanted = wanted.iter().filter(here).filter_map(|w| w.shape.instance());
                if mig_wanted.filter(|i| !self.instances.contains(i)).count() == 0 {
                    return Err(Violation::Needless(uuid, text));
                }
                let place = self.instances.iter().position(|i| i == instance);
                self.instances.remove(place.ok_or(Violation::Missing(uuid, text))?);
            }
            Step::Create { instance, id, .. } => {
                let text = format!("{} at {}", instance.profile, instance.placement);
                if !wanted.iter().filter(here).any(|w| w.id == *id && w.shape.instance() == Some(*instance)) {
                    return Err(Violation::NotWanted(uuid, text));
                }
                self.instances.push(*instance);
                if !self.cells_are_sound() {
                    return Err(Violation::DoesNotFit(uuid, text));
                }
            }
            Step::End { id, .. } => {
                if self.gpu.shares.iter().any(|s| s.id == *id && s.held) {
                    return Err(Violation::Held(uuid, id.to_string()));
                }
                if wanted.iter().filter(here).any(|w| w.id == *id) {
                    return Err(Violation::Wanted(uuid, id.to_string()));
                }
                self.shares.remove(id).ok_or_else(|| Violation::Missing(uuid, id.to_string()))?;
            }
            Step::Start { id, shape, .. } => {
                if !wanted.iter().filter(here).any(|w| w.id == *id && w.shape == *shape) {
                    return Err(Violation::NotWanted(uuid, id.to_string()));
                }
                self.shares.insert(id.clone(), shape.size().share_memory().0);
                if self.gpu.table.is_some() || self.shares.values().sum::<u64>() > self.gpu.memory.0 {
                    return Err(Violation::DoesNotFit(uuid, id.to_string()));
                }
            }
        }
        Ok(())
    }

    /// Every memory slice used once, every instance at a place that the table lists, compute within the GPU's, no more of
    /// a profile than the table allows, the media engines in one instance.
    fn cells_are_sound(&self) -> bool {
        let Some(table) = &self.gpu.table else { return false };
        let mut cells = [0_u8; 32];
        let mut compute = 0_u32;
        let mut with_media = 0_u32;
        let mut counts: BTreeMap<Profile, u8> = BTreeMap::new();
        for instance in &self.instances {
            let Some(entry) = table.entries().iter().find(|e| e.profile == instance.profile) else {
                return false;
            };
            if !entry.starts.contains(&instance.placement.start) || entry.size != instance.placement.size {
                return false;
            }
            for cell in instance.placement.start..instance.placement.start + instance.placement.size {
                match cells.get_mut(usize::from(cell)) {
                    Some(used @ 0) => *used = 1,
                    _ => return false,
                }
            }
            compute += u32::from(instance.profile.compute());
            with_media +=
                u32::from(MEDIA.iter().any(|suffix| instance.profile.to_string().ends_with(suffix)));
            let count = counts.entry(instance.profile).or_default();
            *count += 1;
            if *count > entry.max {
                return false;
            }
        }
        compute <= u32::from(table.compute()) && with_media <= 1
    }
}
