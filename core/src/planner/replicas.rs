//! Plans for replicas of GPU instances: several pods take turns on one instance.

use super::instances::Wanted;
use super::model::{ObservedGpu, ObservedInstance, ObservedReplica, Obstacle, Plan, Step};
use crate::contract::Shape;
use crate::mig::Instance;

/// Ends the replicas of all GPU instances that are neither desired nor held.
pub(super) fn ends(gpu: &ObservedGpu, wanted: &[Wanted<'_>]) -> Vec<Step> {
    let is_wanted = |instance: Instance, number: u8| {
        let mut slices = wanted.iter().filter(|w| w.instance == instance).flat_map(|w| &w.slices);
        slices.any(|(_, part)| part.replica() == Some(number))
    };
    let is_ended = |instance: &ObservedInstance, replica: &ObservedReplica| {
        !replica.held && !is_wanted(instance.instance, replica.number)
    };
    let gone = |instance: &ObservedInstance| {
        let gone = instance.replicas.iter().filter(|replica| is_ended(instance, replica));
        gone.map(|replica| Step::End { gpu: gpu.uuid.clone(), id: replica.id.clone() }).collect::<Vec<_>>()
    };
    gpu.instances.iter().flat_map(gone).collect()
}

/// Starts the missing replicas of a GPU instance, up to the policy's limit beside those that stay.
pub(super) fn start(
    gpu: &ObservedGpu,
    wanted: &Wanted<'_>,
    observed: Option<&ObservedInstance>,
    plan: &mut Plan,
) {
    let there = |number: u8| observed.iter().flat_map(|o| &o.replicas).any(|r| r.number == number);
    let is_wanted = |number: u8| wanted.slices.iter().any(|(_, part)| part.replica() == Some(number));
    let stays = observed.iter().flat_map(|o| &o.replicas).filter(|r| r.held || is_wanted(r.number));
    let mut count = stays.count();
    let most = usize::from(gpu.allowed.mig_replicas.unwrap_or_default());
    for (id, part) in &wanted.slices {
        if part.replica().is_none_or(there) {
            continue;
        }
        // The policy is checked here too, because the instance may be older than the policy.
        let obstacle = wanted.forbidden(gpu).or_else(|| (count >= most).then_some(Obstacle::TooManyReplicas));
        if let Some(obstacle) = obstacle {
            plan.refused.push(((*id).clone(), obstacle));
            continue;
        }
        count += 1;
        let shape = Shape::from_instance(wanted.instance, *part);
        plan.steps.push(Step::Start { gpu: gpu.uuid.clone(), id: (*id).clone(), shape });
    }
}

#[cfg(test)]
#[path = "replicas_tests.rs"]
mod tests;
