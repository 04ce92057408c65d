//! The checker: it runs a plan on its own bitmap and rejects everything that must never happen.
//!
//! It shares no rule with the planner: it counts memory slices one by one, whereas the planner uses
//! [`Geometry`](crate::mig::Geometry). Otherwise one mistake could pass both.

use super::model::{Cut, Observed, ObservedGpu, ObservedInstance, Plan, Step};
use crate::contract::{MigPart, Shape, WantedSlice};
use crate::kind::Kind;
use crate::mig::{ComputeInstance, Instance, Profile};
use crate::names::{GpuUuid, SliceId};
use std::collections::{BTreeMap, BTreeSet};
use std::mem::discriminant;
use thiserror::Error;

/// A GPU can hold only one of a profile with one of these suffixes (MIG user guide, media extensions).
const MEDIA: [&str; 2] = ["+me", "+me.all"];

/// Why the checker rejects a plan.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Violation {
    /// A step names a GPU that is not on the node.
    #[error("{0} is not on this node")]
    NoSuchGpu(GpuUuid),
    /// A step destroys a slice that a container holds.
    #[error("{1} on {0} is held")]
    Held(GpuUuid, String),
    /// A step destroys a slice that is desired.
    #[error("{1} on {0} is desired")]
    Wanted(GpuUuid, String),
    /// A step destroys something that does not exist.
    #[error("{1} on {0} does not exist")]
    Missing(GpuUuid, String),
    /// Memory slices would be used twice, or are outside the table.
    #[error("{1} on {0} does not fit")]
    DoesNotFit(GpuUuid, String),
    /// A step makes something that no desired slice asks for.
    #[error("{1} on {0} is not desired")]
    NotWanted(GpuUuid, String),
    /// A step destroys an instance although no desired slice is missing.
    #[error("{1} on {0} is destroyed for nothing")]
    Needless(GpuUuid, String),
    /// A step destroys a GPU instance whose replicas are still served.
    #[error("{1} on {0} still has replicas")]
    Shared(GpuUuid, String),
    /// A step switches the MIG mode of a GPU that is not empty, or that the policy does not switch.
    #[error("the MIG mode of {0} may not be switched: {1}")]
    Switch(GpuUuid, &'static str),
    /// A step makes something that the node's policy does not allow.
    #[error("{1} on {0} is not allowed by the node's policy")]
    NotAllowed(GpuUuid, String),
}

/// Accepts `plan`, or returns its first violation.
pub fn check(observed: &Observed, wanted: &[WantedSlice], plan: &Plan) -> Result<(), Violation> {
    let mut gpus: BTreeMap<&GpuUuid, State<'_>> =
        observed.gpus.iter().map(|g| (&g.uuid, State::new(g, wanted))).collect();
    for step in &plan.steps {
        let state = gpus.get_mut(step.gpu()).ok_or_else(|| Violation::NoSuchGpu(step.gpu().clone()))?;
        state.run(step)?;
    }
    Ok(())
}

/// The state of a GPU while the plan runs on it. After a switch of its mode its table is unknown.
struct State<'o> {
    gpu: &'o ObservedGpu,
    wanted: Vec<&'o WantedSlice>,
    switched: bool,
    /// GPU instances, each with the compute instances that share it; `None` for one of full size.
    instances: Vec<(Instance, Option<Vec<ComputeInstance>>)>,
    /// Shares, and replicas of GPU instances.
    shares: BTreeMap<SliceId, Shape>,
}

impl<'o> State<'o> {
    fn new(gpu: &'o ObservedGpu, wanted: &'o [WantedSlice]) -> Self {
        Self {
            gpu,
            wanted: wanted.iter().filter(|w| w.gpu == gpu.uuid).collect(),
            switched: false,
            instances: gpu
                .instances
                .iter()
                .map(|o| (o.instance, o.parts.iter().map(|p| p.part).collect::<Vec<_>>()))
                .map(|(instance, parts)| (instance, (!parts.is_empty()).then_some(parts)))
                .collect(),
            shares: gpu.shares.iter().map(|s| (s.id.clone(), s.shape)).chain(replicas(gpu)).collect(),
        }
    }

    fn run(&mut self, step: &Step) -> Result<(), Violation> {
        match step {
            Step::Switch { mig, .. } => self.switch(*mig),
            Step::Destroy { instance, part, .. } => self.destroy(*instance, *part),
            Step::Create { instance, part, id, .. } => self.create(*instance, *part, id),
            Step::End { id, .. } => self.end(id),
            Step::Start { id, shape, .. } => self.start(id, *shape),
        }
    }

    fn uuid(&self) -> GpuUuid {
        self.gpu.uuid.clone()
    }

    /// The desired slices without those that use a GPU instance in another way than an earlier slice does. The planner
    /// removes the existing ones of these for the earlier slice. If the checker counted them as desired, it would
    /// reject the plan, and the whole node would stay uncut.
    fn first_come(&self) -> impl Iterator<Item = &'o WantedSlice> {
        let instance = |w: &WantedSlice| w.shape.instance().map(|instance| (instance, w.shape.mig_part()));
        let is_alike = move |w: &&WantedSlice| {
            let Some((wanted, part)) = instance(w) else { return true };
            let mut parts = self.wanted.iter().filter_map(|w| instance(w)).filter(|(i, _)| *i == wanted);
            parts.next().is_none_or(|(_, first)| discriminant(&first) == discriminant(&part))
        };
        self.wanted.iter().copied().filter(is_alike)
    }

    /// Whether a switch of the mode is due. Then no slice of the GPU is reserved, and idle slices may go.
    fn may_clear(&self) -> bool {
        self.gpu.allowed.switch_to.is_some() && self.wanted.iter().all(|w| w.reservation.is_none())
    }

    fn switch(&mut self, mig: bool) -> Result<(), Violation> {
        let refuse = |why| Err(Violation::Switch(self.uuid(), why));
        if self.gpu.allowed.switch_to != Some(mig) {
            return refuse("policy does not ask for it");
        }
        if !self.instances.is_empty() || !self.shares.is_empty() {
            return refuse("slices are left on it");
        }
        if self.wanted.iter().any(|w| w.reservation.is_some()) {
            return refuse("a pod has reserved a slice of it");
        }
        self.switched = true;
        Ok(())
    }

    fn destroy(&mut self, instance: Instance, part: Option<ComputeInstance>) -> Result<(), Violation> {
        let (uuid, text) = (self.uuid(), Cut(instance, part).to_string());
        let observed = self.gpu.instances.iter().filter(|o| o.instance == instance);
        let mut parts = observed.clone().flat_map(|o| &o.parts);
        let is_held = match part {
            None => observed.clone().any(ObservedInstance::is_held),
            Some(part) => parts.any(|p| p.part == part && p.held),
        };
        if is_held {
            return Err(Violation::Held(uuid, text));
        }
        if self.replicas_of(instance).next().is_some() {
            return Err(Violation::Shared(uuid, text));
        }
        let Some(place) = self.instances.iter().position(|(i, _)| *i == instance) else {
            return Err(Violation::Missing(uuid, text));
        };
        // It is desired if a slice asks for exactly this: the whole of an unshared instance, or one of its parts.
        let there = &self.instances[place].1;
        let meant = |w: &WantedSlice| {
            w.shape.instance() == Some(instance)
                && match (part, w.shape.part()) {
                    (Some(part), wanted) => wanted == Some(part),
                    (None, None) => there.is_none(),
                    (None, Some(wanted)) => there.iter().flatten().any(|p| *p == wanted),
                }
        };
        if !self.may_clear() && self.first_come().any(meant) {
            return Err(Violation::Wanted(uuid, text));
        }
        if !self.may_clear() && !self.misses_something() {
            return Err(Violation::Needless(uuid, text));
        }
        match part {
            None => drop(self.instances.remove(place)),
            Some(part) => {
                let parts = self.instances[place].1.as_mut();
                let parts = parts.filter(|parts| parts.contains(&part));
                parts.ok_or(Violation::Missing(uuid, text))?.retain(|p| *p != part);
            }
        }
        Ok(())
    }

    /// Whether a desired MIG slice does not exist.
    fn misses_something(&self) -> bool {
        let there = |w: &WantedSlice| {
            self.instances.iter().any(|(i, parts)| {
                w.shape.instance() == Some(*i)
                    && match (w.shape.part(), parts) {
                        (None, parts) => parts.is_none(),
                        (Some(part), parts) => parts.iter().flatten().any(|p| *p == part),
                    }
            })
        };
        self.wanted.iter().any(|w| w.shape.kind() == Kind::Mig && !there(w))
    }

    fn create(
        &mut self,
        instance: Instance,
        part: Option<ComputeInstance>,
        id: &SliceId,
    ) -> Result<(), Violation> {
        let (uuid, text) = (self.uuid(), Cut(instance, part).to_string());
        let is_meant =
            |w: &&&WantedSlice| w.id == *id && w.shape.instance() == Some(instance) && w.shape.part() == part;
        if self.wanted.iter().find(is_meant).is_none() {
            return Err(Violation::NotWanted(uuid, text));
        }
        let there =
            self.instances.iter_mut().find(|(i, _)| *i == instance).and_then(|(_, parts)| parts.as_mut());
        match (there, part) {
            (Some(parts), Some(part)) => parts.push(part),
            (_, part) => {
                if !self.gpu.allowed.kinds.contains(&Kind::Mig) {
                    return Err(Violation::NotAllowed(uuid, text));
                }
                self.instances.push((instance, part.map(|part| vec![part])));
            }
        }
        if self.cells_are_sound() && self.parts_are_sound() {
            Ok(())
        } else {
            Err(Violation::DoesNotFit(uuid, text))
        }
    }

    fn end(&mut self, id: &SliceId) -> Result<(), Violation> {
        let (uuid, text) = (self.uuid(), id.to_string());
        let mut replicas = self.gpu.instances.iter().flat_map(|o| &o.replicas);
        if self.gpu.shares.iter().any(|s| s.id == *id && s.held) || replicas.any(|r| r.id == *id && r.held) {
            return Err(Violation::Held(uuid, text));
        }
        if !self.may_clear() && self.first_come().any(|w| w.id == *id) {
            return Err(Violation::Wanted(uuid, text));
        }
        self.shares.remove(id).map(drop).ok_or(Violation::Missing(uuid, text))
    }

    fn start(&mut self, id: &SliceId, shape: Shape) -> Result<(), Violation> {
        let (uuid, text) = (self.uuid(), id.to_string());
        if !self.wanted.iter().any(|w| w.id == *id && w.shape == shape) {
            return Err(Violation::NotWanted(uuid, text));
        }
        if !self.gpu.allowed.kinds.contains(&shape.kind()) {
            return Err(Violation::NotAllowed(uuid, text));
        }
        if let Some(instance) = shape.instance() {
            self.start_replica(instance, shape.mig_part(), text)?;
            self.shares.insert(id.clone(), shape);
            return Ok(());
        }
        self.shares.insert(id.clone(), shape);
        let memory = |s: &Shape| match s {
            Shape::Whole { .. } => self.gpu.memory.0,
            other => other.size().share_memory().0,
        };
        let sizes: BTreeSet<u64> = self.shares.values().map(memory).collect();
        let kinds: BTreeSet<Kind> = self.shares.values().map(|s| s.kind()).collect();
        let mixed =
            kinds.len() > 1 || self.gpu.allowed.one_size && kinds.contains(&Kind::Mps) && sizes.len() > 1;
        let used: u64 = self.shares.values().map(memory).sum();
        // The policy's limit holds for MPS shares only, because the clients of an MPS server are limited in no other
        // way.
        let most = if kinds.contains(&Kind::Mps) { self.gpu.allowed.mps_memory.percent() } else { 100 };
        let is_full = used * 100 > self.gpu.memory.0 * most
            || memory(&shape) > self.gpu.memory.0
            || self.compute_in_use() > u128::from(self.gpu.memory.0) * u128::from(most);
        let mps = self.shares.values().filter(|s| s.kind() == Kind::Mps).count();
        let crowded = kinds.contains(&Kind::Whole) && self.shares.len() > 1
            || self.gpu.allowed.mps_shares.is_some_and(|most| mps > most as usize);
        if self.gpu.table.is_some() || self.switched || mixed || is_full || crowded {
            return Err(Violation::DoesNotFit(uuid, text));
        }
        Ok(())
    }

    /// Whether one more replica of this number may be served of a GPU instance. The instance must exist, no pod may
    /// hold it whole, it must be desired for replicas, and the policy must allow one more.
    fn start_replica(&self, instance: Instance, part: MigPart, text: String) -> Result<(), Violation> {
        let uuid = self.uuid();
        let Some(most) = self.gpu.allowed.mig_replicas else {
            return Err(Violation::NotAllowed(uuid, text));
        };
        if self.gpu.instances.iter().any(|o| o.instance == instance && o.held) {
            return Err(Violation::Held(uuid, text));
        }
        let is_undivided = self.instances.iter().any(|(i, parts)| *i == instance && parts.is_none());
        let first = self.wanted.iter().find(|w| w.shape.instance() == Some(instance));
        let numbers: BTreeSet<u8> = self.replicas_of(instance).chain(part.replica()).collect();
        let is_one_more = numbers.len() == self.replicas_of(instance).count() + 1;
        let is_by_turns = is_undivided && first.and_then(|w| w.shape.replica()).is_some();
        if is_by_turns && is_one_more && numbers.len() <= usize::from(most) {
            Ok(())
        } else {
            Err(Violation::DoesNotFit(uuid, text))
        }
    }

    /// The numbers of the replicas that are served of a GPU instance.
    fn replicas_of(&self, instance: Instance) -> impl Iterator<Item = u8> {
        self.shares.values().filter(move |s| s.instance() == Some(instance)).filter_map(|s| s.replica())
    }

    /// The compute that the clients of all MPS shares may use together, in percent times the GPU's memory. A share
    /// without a limit counts with the same fraction of compute as of memory.
    fn compute_in_use(&self) -> u128 {
        let in_use = |shape: &Shape| match shape {
            Shape::Mps { compute: Some(percent), .. } => {
                u128::from(self.gpu.memory.0) * u128::from(percent.get())
            }
            Shape::Mps { size_gb, compute: None } => u128::from(size_gb.share_memory().0) * 100,
            _ => 0,
        };
        self.shares.values().map(in_use).sum()
    }

    /// Whether each compute slice of a shared GPU instance is used at most once, and is within the instance.
    fn parts_are_sound(&self) -> bool {
        self.instances.iter().all(|(instance, parts)| {
            let mut cells = [false; 8];
            parts.iter().flatten().all(|part| {
                let last = part.start.saturating_add(part.compute);
                (part.start..last).all(|cell| {
                    let taken = cells.get_mut(usize::from(cell)).map(|cell| std::mem::replace(cell, true));
                    cell < instance.profile.compute() && taken == Some(false)
                }) && part.compute > 0
            })
        })
    }

    /// Whether each memory slice is used at most once, each instance is at a place of the table, the compute is within
    /// the GPU's, no profile exceeds the table's maximum, and at most one instance has the media engines.
    fn cells_are_sound(&self) -> bool {
        let Some(table) = self.gpu.table.as_ref().filter(|_| !self.switched) else { return false };
        let mut cells = [false; 32];
        let mut compute = 0_u32;
        let mut with_media = 0_u32;
        let mut counts: BTreeMap<Profile, u8> = BTreeMap::new();
        for (instance, _) in &self.instances {
            let Some(entry) = table.entries().iter().find(|e| e.profile == instance.profile) else {
                return false;
            };
            if !entry.starts.contains(&instance.placement.start) || entry.size != instance.placement.size {
                return false;
            }
            for cell in instance.placement.start..instance.placement.start + instance.placement.size {
                match cells.get_mut(usize::from(cell)) {
                    Some(used @ false) => *used = true,
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

/// The replicas that are served of the GPU's instances, by name.
fn replicas(gpu: &ObservedGpu) -> impl Iterator<Item = (SliceId, Shape)> {
    gpu.instances.iter().flat_map(|o| {
        let shape = |number| Shape::from_instance(o.instance, MigPart::Replica { replica: number });
        o.replicas.iter().map(move |r| (r.id.clone(), shape(r.number)))
    })
}

#[cfg(test)]
#[path = "check_tests.rs"]
mod tests;
