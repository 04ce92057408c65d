//! Raises sizes within one pod so that its containers share a name, and later containers reuse what init containers
//! give back.
//!
//! The kubelet gives an init container's devices to a later container only under the same resource name. An init
//! container with 5 GB and an app container with 4 GB have two names, so the pod would hold 9 GB to its end. With 5 GB
//! each it holds 5 GB.

use super::Warning;
use crate::contract::{ContainerRequest, RequestDocument};
use crate::request::{Claim, ContainerAsk, PodAsk, Role, Want, held};
use crate::units::{ComputePercent, MemoryMib, SizeGb};

/// The most containers by size in a pod whose sizes are levelled. It bounds the work, because every pair of them is
/// tried.
const CONTAINERS_LIMIT: usize = 16;

/// The properties of a container that levelling compares: size, real memory, compute, and whether its slices must be on
/// different GPUs. Containers with the same level get one name.
type Level = (SizeGb, Option<MemoryMib>, Option<ComputePercent>, bool);

fn level(ask: &ContainerAsk) -> Option<Level> {
    match ask.want {
        Want::Size(size) => Some((size, ask.memory, ask.compute, ask.distinct_gpus)),
        _ => None,
    }
}

/// Raises sizes of `ask` to others of the pod so that the pod holds less in all, and returns a warning for each.
///
/// The kinds that will serve the pod do not matter. Each slice that it holds afterwards is no larger than a distinct
/// one that it would hold otherwise. So the pod never holds more, by any kind, if each size has its own name. If
/// several sizes have one name, the caller checks with [`is_less`]. `None` if levelling saves nothing.
pub(super) fn levelled(ask: &PodAsk) -> Option<(PodAsk, Vec<Warning>)> {
    let asked: Vec<Option<Level>> = ask.containers.iter().map(level).collect();
    if asked.iter().flatten().count() > CONTAINERS_LIMIT {
        return None;
    }
    let before = held_at(ask, &asked);
    let (mut levels, mut least) = (asked.clone(), cost(&before));
    while let Some((cost, better)) = best_step(ask, &levels, &before).filter(|(cost, _)| *cost < least) {
        (least, levels) = (cost, better);
    }
    let pairs = ask.containers.iter().zip(asked.iter().zip(&levels));
    let raised_sizes = pairs.filter_map(|(container, (asked, given))| {
        let (asked, given) = ((*asked)?.0, (*given)?.0);
        (given > asked).then(|| Warning::Levelled(container.name.clone(), asked, given))
    });
    let warnings = raised_sizes.collect();
    let containers = ask.containers.iter().zip(levels).map(|(container, level)| raised(container, level));
    let containers: Vec<ContainerAsk> = containers.collect();
    (containers != ask.containers).then(|| (PodAsk { containers, ..ask.clone() }, warnings))
}

/// Whether a pod holds less by the names of `after` than by those of `before`, and no larger slice.
pub(super) fn is_less(after: &RequestDocument, before: &RequestDocument) -> bool {
    let asked = |holding: &ContainerRequest| holding.size_gb;
    let given = |holding: &ContainerRequest| holding.resource.size().unwrap_or(holding.size_gb);
    let held = |document: &RequestDocument, size: fn(&ContainerRequest) -> SizeGb| -> Vec<(Level, u32)> {
        let level =
            |holding: &ContainerRequest| (size(holding), None, holding.compute, holding.distinct_gpus);
        document.holdings().iter().map(|holding| (level(holding), holding.count)).collect()
    };
    cost(&held(after, given)) < cost(&held(before, given))
        && [asked, given].into_iter().all(|size| is_within(&held(after, size), &held(before, size)))
}

fn raised(container: &ContainerAsk, level: Option<Level>) -> ContainerAsk {
    match level {
        Some((size, memory, ..)) => ContainerAsk { want: Want::Size(size), memory, ..container.clone() },
        None => container.clone(),
    }
}

/// The best single step, with what the pod holds after it. A step gives an init container and another container the
/// larger of their two sizes, and also raises every init container that has either size.
fn best_step(
    ask: &PodAsk,
    levels: &[Option<Level>],
    before: &[(Level, u32)],
) -> Option<(u64, Vec<Option<Level>>)> {
    let is_init = |index: usize| ask.containers[index].role == Role::Init;
    let all = || levels.iter().enumerate().filter_map(|(index, level)| Some((index, (*level)?)));
    let step = |init: Level, other: usize, level: Level| {
        let raised = (init.0.max(level.0), init.1.max(level.1), init.2, init.3);
        let is_meant =
            |index: usize, now: Level| index == other || is_init(index) && (now == init || now == level);
        let next = levels.iter().enumerate();
        let next: Vec<_> =
            next.map(|(index, now)| now.map(|now| if is_meant(index, now) { raised } else { now })).collect();
        let held = held_at(ask, &next);
        is_within(&held, before).then(|| (cost(&held), next))
    };
    let inits = all().filter(|(index, _)| is_init(*index));
    let pairs = inits.flat_map(|(_, init)| all().map(move |(other, level)| (init, other, level)));
    // A share of compute is never raised, because that may require another kind.
    let pairs = pairs.filter(|(init, _, level)| init != level && (init.2, init.3) == (level.2, level.3));
    pairs.filter_map(|(init, other, level)| step(init, other, level)).min_by_key(|(cost, _)| *cost)
}

/// The number of slices of each level that the pod holds, if containers with the same level have one name.
fn held_at(ask: &PodAsk, levels: &[Option<Level>]) -> Vec<(Level, u32)> {
    let claim = |(container, level): (&ContainerAsk, &Option<Level>)| {
        let (role, count) = (container.role, container.count);
        level.map(|resource| Claim { role, resource, count })
    };
    let claims: Vec<Claim<Level>> = ask.containers.iter().zip(levels).filter_map(claim).collect();
    claims.iter().map(|claim| claim.resource).zip(held(&claims)).collect()
}

/// The sum of the slices' sizes, in GB.
fn cost(held: &[(Level, u32)]) -> u64 {
    held.iter().map(|(level, count)| u64::from(*count) * u64::from(level.0.0)).sum()
}

/// Whether each slice of `after` can be matched to its own slice of `before` that is at least as large.
fn is_within(after: &[(Level, u32)], before: &[(Level, u32)]) -> bool {
    let (mut after, mut free) = (after.to_vec(), before.to_vec());
    // The largest come first, because a slice that suffices for the largest suffices for the others too.
    after.sort_unstable_by(|a, b| b.cmp(a));
    free.sort_unstable();
    after.into_iter().all(|(level, count)| {
        let has_all =
            |had: &Level| had.0 >= level.0 && had.1 >= level.1 && (had.2, had.3) == (level.2, level.3);
        let missing = free.iter_mut().filter(|(had, _)| has_all(had)).fold(count, |missing, (_, free)| {
            let taken = missing.min(*free);
            *free -= taken;
            missing - taken
        });
        missing == 0
    })
}

#[cfg(test)]
#[path = "level_tests.rs"]
mod tests;
