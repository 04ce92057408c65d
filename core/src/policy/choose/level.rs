//! Sizes of one pod that become the same, so that what init containers give back serves the containers after them.
//!
//! The kubelet gives an init container's devices to a later container only under the same name. An init container with 5 GB
//! and an app container with 4 GB have two names, and the pod would hold 9 GB to its end; with 5 GB each it holds 5 GB.

use super::{Denied, Outlook, Warning};
use crate::contract::{ContainerRequest, RequestDocument};
use crate::policy::Policy;
use crate::request::{Claim, ContainerAsk, PodAsk, Role, Want, held};
use crate::units::{ComputePercent, MemoryMib, SizeGb};

/// The most containers that ask by size in a pod whose sizes are levelled: every pair of them is tried.
const CONTAINERS_LIMIT: usize = 16;

/// What the slices of a container must be, as far as it is levelled, and whether they must be of different GPUs. Containers with
/// the same get one name.
type Level = (SizeGb, Option<MemoryMib>, Option<ComputePercent>, bool);

fn level(ask: &ContainerAsk) -> Option<Level> {
    match ask.want {
        Want::Size(size) => Some((size, ask.memory, ask.compute, ask.distinct_gpus)),
        _ => None,
    }
}

/// `ask` with sizes that were raised to others of the pod, so that the pod holds less in all; `None` if nothing is to be won.
pub(super) fn levelled(ask: &PodAsk) -> Option<PodAsk> {
    let has_init = ask.containers.iter().any(|container| container.role == Role::Init);
    let mut levels: Vec<Option<Level>> = ask.containers.iter().map(level).collect();
    if !has_init || levels.iter().flatten().count() > CONTAINERS_LIMIT {
        return None;
    }
    let before = cost(ask, &levels);
    let mut least = before;
    while let Some((cost, better)) = best_step(ask, &levels).filter(|(cost, _)| *cost < least) {
        (least, levels) = (cost, better);
    }
    (least < before).then(|| {
        let containers = ask.containers.iter().zip(levels).map(|(container, level)| raised(container, level));
        PodAsk { containers: containers.collect(), ..ask.clone() }
    })
}

fn raised(container: &ContainerAsk, level: Option<Level>) -> ContainerAsk {
    match level {
        Some((size, memory, ..)) => ContainerAsk { want: Want::Size(size), memory, ..container.clone() },
        None => container.clone(),
    }
}

/// The levels after the best single step, and what the pod holds then: an init container and another container get the larger
/// size of the two, and with them the init containers that have the size of either.
fn best_step(ask: &PodAsk, levels: &[Option<Level>]) -> Option<(u64, Vec<Option<Level>>)> {
    let is_init =
        |index: usize| ask.containers.get(index).is_some_and(|container| container.role == Role::Init);
    let all = || levels.iter().enumerate().filter_map(|(index, level)| Some((index, (*level)?)));
    let step = |init: Level, other: usize, level: Level| {
        let raised = (init.0.max(level.0), init.1.max(level.1), init.2, init.3);
        let is_meant =
            |index: usize, now: Level| index == other || is_init(index) && (now == init || now == level);
        let next = levels.iter().enumerate();
        let next: Vec<_> =
            next.map(|(index, now)| now.map(|now| if is_meant(index, now) { raised } else { now })).collect();
        (cost(ask, &next), next)
    };
    let inits = all().filter(|(index, _)| is_init(*index));
    let pairs = inits.flat_map(|(_, init)| all().map(move |(other, level)| (init, other, level)));
    // A share of compute is never raised: it may make another kind necessary.
    let pairs = pairs.filter(|(init, _, level)| init != level && (init.2, init.3) == (level.2, level.3));
    pairs.map(|(init, other, level)| step(init, other, level)).min_by_key(|(cost, _)| *cost)
}

/// What the pod holds of what it asks by size, in GB, if containers with the same level have one name.
fn cost(ask: &PodAsk, levels: &[Option<Level>]) -> u64 {
    let claim = |(container, level): (&ContainerAsk, &Option<Level>)| {
        let (role, count) = (container.role, container.count);
        level.map(|resource| Claim { role, resource, count })
    };
    let claims: Vec<Claim<Level>> = ask.containers.iter().zip(levels).filter_map(claim).collect();
    held(&claims)
        .into_iter()
        .zip(&claims)
        .map(|(count, claim)| u64::from(count) * u64::from(claim.resource.0.0))
        .sum()
}

/// The choice for levelled sizes where it is no worse in any way and holds less, else the one for the sizes as they were asked.
pub(super) fn better(
    policy: &Policy,
    ask: &PodAsk,
    plain: Result<Outlook, Denied>,
    levelled: Result<Outlook, Denied>,
) -> Result<Outlook, Denied> {
    match (plain, levelled) {
        (Ok(plain), Ok(levelled)) if !is_better(policy, &plain, &levelled) => Ok(plain),
        (_, Ok(levelled)) => Ok(told(ask, levelled)),
        (plain, Err(_)) => plain,
    }
}

fn is_better(policy: &Policy, plain: &Outlook, levelled: &Outlook) -> bool {
    let (before, after) = (&plain.choice.document, &levelled.choice.document);
    let kinds = policy.kinds(before.isolation).unwrap_or_default();
    let rank =
        |container: &ContainerRequest| kinds.iter().position(|kind| container.only_kind() == Some(*kind));
    let mut both = before.containers.iter().zip(&after.containers);
    let given = |container: &ContainerRequest| container.resource.size().unwrap_or(container.size_gb);
    let asked = |container: &ContainerRequest| container.size_gb;
    before.isolation == after.isolation
        && levelled.has_room >= plain.has_room
        && both.all(|(before, after)| rank(after) <= rank(before))
        && sum(after, given) < sum(before, given)
        && sum(after, asked) <= sum(before, asked)
}

/// What the pod holds in GB, by one way to see the size of a slice.
fn sum(document: &RequestDocument, size: impl Fn(&ContainerRequest) -> SizeGb) -> u64 {
    document.holdings().iter().map(|holding| u64::from(holding.count) * u64::from(size(holding).0)).sum()
}

/// The same with a warning for each container that gets more than it asked.
fn told(ask: &PodAsk, mut outlook: Outlook) -> Outlook {
    let pairs = ask.containers.iter().zip(&outlook.choice.document.containers);
    let raised = pairs.filter_map(|(asked, given)| match asked.want {
        Want::Size(size) if given.size_gb > size => {
            Some(Warning::Levelled(asked.name.clone(), size, given.size_gb))
        }
        _ => None,
    });
    let raised: Vec<Warning> = raised.collect();
    outlook.choice.warnings.extend(raised);
    outlook
}

#[cfg(test)]
#[path = "level_tests.rs"]
mod tests;
