//! Plans for one GPU in MIG mode: GPU instances, and the compute instances or replicas that share one.

use super::model::{ObservedGpu, ObservedInstance, Obstacle, Plan, Step};
use super::replicas;
use crate::contract::{MigPart, WantedSlice};
use crate::kind::Kind;
use crate::mig::{ComputeGeometry, ComputeInstance, Geometry, Illegal, Instance, MigTable};
use crate::names::SliceId;

/// A desired GPU instance, with the slices that use it: one for all of it, or several of one sort.
pub(super) struct Wanted<'w> {
    pub(super) instance: Instance,
    /// The part of the instance that the first slice uses; the others are of the same sort.
    pub(super) sort: MigPart,
    pub(super) slices: Vec<(&'w SliceId, MigPart)>,
}

impl Wanted<'_> {
    /// The obstacle if the policy allows nothing of this sort on the GPU.
    pub(super) fn forbidden(&self, gpu: &ObservedGpu) -> Option<Obstacle> {
        if !gpu.allowed.kinds.contains(&Kind::Mig) {
            return Some(Obstacle::NotAllowed(Kind::Mig));
        }
        let is_replica = self.sort.replica().is_some();
        (is_replica && gpu.allowed.mig_replicas.is_none()).then_some(Obstacle::NoReplicas)
    }

    /// Whether the observed instance is this one, and is shared in the same way or not held in another way.
    fn matches(&self, observed: &ObservedInstance) -> bool {
        observed.instance == self.instance
            && match self.sort {
                MigPart::Whole => observed.parts.is_empty() && !observed.replicas.iter().any(|r| r.held),
                MigPart::Compute(_) => !observed.parts.is_empty(),
                MigPart::Replica { .. } => observed.parts.is_empty() && !observed.held,
            }
    }
}

/// Destroys what is in the way of missing instances, and creates these.
pub(super) fn plan(gpu: &ObservedGpu, wanted: &[&WantedSlice], plan: &mut Plan) {
    let wanted = by_instance(wanted, plan);
    let Some(table) = &gpu.table else {
        let slices = wanted.iter().flat_map(|w| &w.slices);
        plan.refused.extend(slices.map(|(id, _)| ((*id).clone(), Obstacle::WrongMode)));
        return;
    };
    // Replicas end first, because an instance must not be destroyed while one is served.
    plan.steps.extend(replicas::ends(gpu, &wanted));
    // Only idle instances that no slice asks for may be destroyed, because no plan touches a held slice.
    let is_wanted = |o: &ObservedInstance| wanted.iter().any(|w| w.matches(o));
    let (spare, kept): (Vec<_>, Vec<_>) = gpu.instances.iter().partition(|o| !o.is_held() && !is_wanted(o));
    let mut kept: Vec<Instance> = kept.into_iter().map(|o| o.instance).collect();
    let mut made = Vec::new();
    let there = |w: &Wanted<'_>| gpu.instances.iter().find(|o| w.matches(o));
    for missing in wanted.iter().filter(|w| there(w).is_none()) {
        if let Some(obstacle) = obstacle(gpu, table, &kept, missing) {
            plan.refused.extend(missing.slices.iter().map(|(id, _)| ((*id).clone(), obstacle.clone())));
        } else {
            kept.push(missing.instance);
            made.push(missing);
        }
    }
    let created: Vec<Instance> = made.iter().map(|w| w.instance).collect();
    let spare: Vec<Instance> = spare.into_iter().map(|o| o.instance).collect();
    let destroys = in_the_way(table, &kept, &created, spare);
    let uuid = || gpu.uuid.clone();
    plan.steps.extend(destroys.into_iter().map(|i| Step::Destroy { gpu: uuid(), instance: i, part: None }));
    let made = made.into_iter().map(|new| (new, None));
    let found = wanted.iter().filter_map(|w| Some((w, Some(there(w)?))));
    for (wanted, observed) in made.chain(found) {
        plan_parts(gpu, wanted, observed, plan);
        replicas::start(gpu, wanted, observed, plan);
    }
}

/// The desired slices by their GPU instance. A slice is refused if it uses an instance in another way than an earlier
/// one, or the same replica.
fn by_instance<'w>(wanted: &[&'w WantedSlice], plan: &mut Plan) -> Vec<Wanted<'w>> {
    let mut all: Vec<Wanted<'w>> = Vec::new();
    for slice in wanted {
        let Some(instance) = slice.shape.instance() else { continue };
        let (id, part) = (&slice.id, slice.shape.mig_part());
        match all.iter_mut().find(|w| w.instance == instance) {
            // Two compute instances at one place are not refused here, because the compute geometry refuses the second
            // one.
            Some(known)
                if known.sort.shares_with(part)
                    && (part.replica().is_none()
                        || !known.slices.iter().any(|(_, other)| *other == part)) =>
            {
                known.slices.push((id, part));
            }
            Some(_) => {
                plan.refused.push((id.clone(), Obstacle::Illegal(Illegal::Taken(instance.placement))));
            }
            None => all.push(Wanted { instance, sort: part, slices: vec![(id, part)] }),
        }
    }
    all
}

/// Why a GPU instance cannot be created beside those that stay.
fn obstacle(gpu: &ObservedGpu, table: &MigTable, kept: &[Instance], wanted: &Wanted<'_>) -> Option<Obstacle> {
    if let Some(forbidden) = wanted.forbidden(gpu) {
        return Some(forbidden);
    }
    let wanted = wanted.instance;
    let alone = Geometry::from_instances(table, kept.iter().copied());
    let illegal = alone.and_then(|g| g.place(wanted.profile, wanted.placement.start)).err()?;
    let mut held = gpu.instances.iter().filter(|o| o.is_held());
    let is_held = held.any(|o| o.instance.placement.overlaps(wanted.placement));
    Some(if is_held { Obstacle::Held } else { Obstacle::Illegal(illegal) })
}

/// Creates the missing compute instances of a GPU instance; the first one also creates the GPU instance if it does not
/// exist. All replicas share one compute instance.
fn plan_parts(gpu: &ObservedGpu, wanted: &Wanted<'_>, observed: Option<&ObservedInstance>, plan: &mut Plan) {
    let there = |part: ComputeInstance| observed.iter().flat_map(|o| &o.parts).any(|p| p.part == part);
    let is_wanted = |part: ComputeInstance| wanted.slices.iter().any(|(_, w)| w.compute() == Some(part));
    let (instance, uuid) = (wanted.instance, || gpu.uuid.clone());
    // Held parts stay, because no plan may touch them. So do desired parts that exist.
    let stays = observed.iter().flat_map(|o| &o.parts).filter(|p| p.held || is_wanted(p.part));
    let stays = ComputeGeometry::from_instances(instance.profile, stays.map(|p| p.part));
    let mut creates = Vec::new();
    let mut geometry = stays;
    for (id, part) in &wanted.slices {
        let Some(part) = part.compute() else {
            if observed.is_none() && creates.is_empty() {
                creates.push(((*id).clone(), None));
            }
            continue;
        };
        if there(part) {
            continue;
        }
        match geometry.clone().and_then(|g| g.place(part.compute, part.start)) {
            Ok(next) => {
                geometry = Ok(next);
                creates.push(((*id).clone(), Some(part)));
            }
            Err(illegal) => plan.refused.push(((*id).clone(), Obstacle::IllegalPart(illegal))),
        }
    }
    let new =
        |part: ComputeInstance| creates.iter().filter_map(|(_, new)| *new).any(|new| new.overlaps(part));
    // Whatever stays is in the geometry, so that nothing new overlaps it.
    let gone = observed.iter().flat_map(|o| &o.parts).filter(|p| new(p.part));
    let gone = gone.map(|p| Step::Destroy { gpu: uuid(), instance, part: Some(p.part) });
    plan.steps.extend(gone);
    plan.steps.extend(creates.iter().cloned().map(|(id, part)| Step::Create {
        gpu: uuid(),
        instance,
        part,
        id,
    }));
}

/// The fewest spare instances that must go so that `kept`, including the created ones, can exist together: those on the
/// same memory slices, and others while they use up something limited.
fn in_the_way(
    table: &MigTable,
    kept: &[Instance],
    created: &[Instance],
    mut spare: Vec<Instance>,
) -> Vec<Instance> {
    let overlaps = |o: &Instance| created.iter().any(|i| o.placement.overlaps(i.placement));
    let mut destroys: Vec<Instance> = spare.extract_if(.., |o| overlaps(o)).collect();
    while let Some(illegal) = first_illegal(table, kept.iter().chain(&spare)) {
        let claims = |o: &&Instance| match illegal {
            Illegal::TooMany(profile) => o.profile == profile,
            Illegal::MediaTaken(_) => o.profile.claims_media(),
            Illegal::NoSuchProfile(_)
            | Illegal::NoSuchStart(..)
            | Illegal::Taken(_)
            | Illegal::NoCompute(_) => true,
        };
        // The largest instance frees the most compute slices.
        let Some(next) = spare.iter().filter(claims).max_by_key(|o| o.profile.compute()).copied() else {
            break;
        };
        spare.retain(|o| *o != next);
        destroys.push(next);
    }
    destroys
}

/// Why the instances cannot exist together. Compute slices come last, because freeing anything else frees compute too.
fn first_illegal<'i>(table: &MigTable, all: impl Iterator<Item = &'i Instance>) -> Option<Illegal> {
    let (mut geometry, mut no_compute) = (Geometry::empty(table), None);
    for instance in all {
        match geometry.clone().place(instance.profile, instance.placement.start) {
            Ok(next) => geometry = next,
            Err(illegal @ Illegal::NoCompute(_)) => no_compute = Some(illegal),
            Err(illegal) => return Some(illegal),
        }
    }
    no_compute
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mig::Placement;
    use crate::testing::mig_table;

    #[test]
    fn the_largest_spare_instance_goes_while_compute_slices_are_missing() {
        // No GPU of the catalog has more memory slices than compute slices can use. A `3g` of two memory slices makes
        // one that has.
        let mut entries = mig_table("H100-80GB").entries().to_vec();
        let small = entries.iter_mut().find(|entry| entry.profile.to_string() == "3g.40gb").unwrap();
        (small.size, small.starts, small.max) = (2, vec![0, 2, 4], 3);
        let table = MigTable::new(entries);
        let instance = |profile: &str, start, size| Instance {
            profile: profile.parse().unwrap(),
            placement: Placement { start, size },
        };
        let kept = [instance("3g.40gb", 0, 2), instance("3g.40gb", 2, 2)];
        let spare = vec![instance("1g.10gb", 6, 1), instance("3g.40gb", 4, 2)];
        assert_eq!(in_the_way(&table, &kept, &[], spare), [instance("3g.40gb", 4, 2)]);
        assert_eq!(in_the_way(&table, &kept, &[], vec![instance("1g.10gb", 6, 1)]), []);
    }
}
