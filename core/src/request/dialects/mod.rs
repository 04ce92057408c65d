//! The dialects: other systems' ways to ask, each read as that system reads it. A policy turns them on one by one.

mod gpushare;
mod hami;
mod kai;
mod nvidia;
mod words;

pub use words::Words;

use super::errors::Field;
use super::{AskError, ContainerAsk, ContainerView, Dialect, PodView, Reading, Role, Want, limits};
use crate::quantity::{parse_count, parse_millionths};
use crate::resource::ResourceName;
use crate::units::{LARGEST_SIZE, MemoryMib, SizeGb};
use std::collections::BTreeSet;

/// A container's request in a dialect, with the memory that it names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Foreign {
    pub dialect: Dialect,
    pub ask: ContainerAsk,
    pub memory: Option<MemoryMib>,
}

impl Foreign {
    /// A count of whole GPUs, without a condition on each.
    fn of_gpus(dialect: Dialect, ask: ContainerAsk) -> Self {
        Self { dialect, ask: ask.of_distinct_gpus(), memory: None }
    }
}

/// A container's request in the dialects that the policy accepts. A request in two dialects is refused.
pub(super) fn ask(
    pod: &PodView,
    container: &ContainerView,
    role: Role,
    reading: &Reading,
) -> Result<Option<Foreign>, AskError> {
    let mut found: Option<Foreign> = None;
    let asks = [
        nvidias(pod, container, role, reading)?,
        gpushare::ask(pod, container, role, reading)?,
        kai::ask(pod, container, role, reading)?,
    ];
    for foreign in asks.into_iter().flatten() {
        if let Some(first) = &found {
            return Err(first.ask.twice(&foreign.ask));
        }
        found = Some(foreign);
    }
    Ok(found)
}

/// Reads `nvidia.com/gpu`, which several dialects have. HAMi's other names show HAMi's dialect, and a fraction shows
/// run:ai's.
fn nvidias(
    pod: &PodView,
    container: &ContainerView,
    role: Role,
    reading: &Reading,
) -> Result<Option<Foreign>, AskError> {
    // NVIDIA's reader comes last, because it reads any count and the others recognise their own forms only.
    if let Some(ask) = kai::limit_ask(pod, container, role, reading)? {
        return Ok(Some(ask));
    }
    if let Some(ask) = hami::ask(container, role, reading)? {
        return Ok(Some(ask));
    }
    nvidia::ask(container, role, reading)
}

/// The dialect that has this resource name. `None` for names that only kerf serves, and for names of no dialect.
#[must_use]
pub fn dialect_of(name: &str) -> Option<Dialect> {
    let of_instances =
        |name| matches!(name, ResourceName::Mig(_) | ResourceName::Compute(_) | ResourceName::MigReplica(_));
    if name.parse().is_ok_and(of_instances) {
        Some(Dialect::Mig)
    } else if nvidia::NAMES.contains(&name) {
        Some(Dialect::Nvidia)
    } else if hami::NAMES.contains(&name) {
        Some(Dialect::Hami)
    } else if gpushare::NAMES.contains(&name) {
        Some(Dialect::Gpushare)
    } else {
        None
    }
}

/// Whether the policy accepts this resource name in some dialect.
fn is_understood(name: &str, dialect: Dialect, reading: &Reading) -> bool {
    // A whole GPU has the same name in the dialects of HAMi and run:ai.
    let shared = name == nvidia::GPU && (reading.knows(Dialect::Hami) || reading.knows(Dialect::Runai));
    reading.knows(dialect) || shared
}

/// Whether this resource name asks kerf itself: a name that only kerf serves, or a MIG device's name if the policy
/// accepts the dialect `mig`. The readers of the dialects handle all other names.
pub(super) fn is_kerfs(name: &str, reading: &Reading) -> bool {
    dialect_of(name).is_none_or(|dialect| dialect == Dialect::Mig && reading.knows(dialect))
}

/// Refuses names of dialects that the policy does not accept, in a pod that asks kerf.
pub(super) fn refuse_others(pod: &PodView, reading: &Reading) -> Result<(), AskError> {
    others(pod, reading).map_or(Ok(()), |(container, limit, dialect)| {
        let (container, limit) = (container.name.clone(), limit.to_owned());
        Err(AskError::Everybodys { container, limit, dialect })
    })
}

/// The first limit of the pod that asks in a dialect which the policy does not accept.
pub(super) fn others<'p>(
    pod: &'p PodView,
    reading: &Reading,
) -> Option<(&'p ContainerView, &'p str, Dialect)> {
    let entries = pod.spec.in_order().flat_map(|(container, _)| {
        limits::entries(container).map(move |(limit, amount)| (container, limit, amount))
    });
    let named = entries.filter(|(_, _, amount)| parse_count(amount) != Some(0));
    let mut named = named.filter_map(|(container, limit, _)| Some((container, limit, dialect_of(limit)?)));
    named.find(|(_, limit, dialect)| !is_understood(limit, *dialect, reading))
}

/// The class that the dialect's annotations imply.
pub(super) fn isolation(pod: &PodView, dialect: Dialect) -> Option<crate::kind::IsolationClass> {
    if dialect == Dialect::Hami { hami::isolation(pod) } else { None }
}

/// The keys of this dialect in the pod for which kerf has no equivalent.
pub(super) fn ignored(pod: &PodView, dialect: Dialect) -> Vec<String> {
    let (annotations, names): (&[&str], &[&str]) = match dialect {
        Dialect::Hami => (&hami::IGNORED, &hami::IGNORED_NAMES),
        Dialect::Kai | Dialect::Runai => (&kai::IGNORED, &[]),
        Dialect::Mig | Dialect::Nvidia | Dialect::Gpushare => (&[], &[]),
    };
    let noted = annotations.iter().filter(|key| pod.metadata.annotations.contains_key(**key));
    let limits = names.iter().filter(|name| {
        pod.spec.in_order().any(|(container, _)| limits::entries(container).any(|(entry, _)| entry == **name))
    });
    noted.chain(limits).map(|key| (*key).to_owned()).collect()
}

/// Whether `name` is the scheduler of one of these dialects. Manifests that are moved to kerf still name it.
#[must_use]
pub fn is_scheduler_of(name: &str, dialects: &BTreeSet<Dialect>) -> bool {
    dialects.iter().any(|dialect| match dialect {
        Dialect::Hami => name == "hami-scheduler",
        Dialect::Kai => name == "kai-scheduler",
        Dialect::Runai => name == "runai-scheduler",
        Dialect::Mig | Dialect::Nvidia | Dialect::Gpushare => false,
    })
}

/// A request by size from a whole number of MiB.
fn mebibytes(field: Field, text: &str) -> Result<(Want, Option<MemoryMib>), AskError> {
    let most = LARGEST_SIZE.share_memory().0;
    let memory = parse_count(text).filter(|mib| (1..=most).contains(mib)).map(MemoryMib);
    let memory =
        memory.ok_or_else(|| AskError::Amount { field, text: text.to_owned(), unit: "MiB", most })?;
    Ok((Want::Size(memory.nominal()), Some(memory)))
}

/// A request by size from a fraction of a GPU; `text` is a decimal number between 0 and 1.
fn fraction(field: Field, text: &str, reading: &Reading) -> Result<(Want, Option<MemoryMib>), AskError> {
    let millionths = parse_millionths(text).filter(|millionths| (1..1_000_000).contains(millionths));
    match millionths {
        Some(millionths) => part(field, millionths, reading),
        None => Err(AskError::Fraction { field, text: text.to_owned() }),
    }
}

/// A request by size from millionths of a GPU. Sizes are rounded up, so that the user gets at least that part of the
/// policy's GPU.
fn part(field: Field, millionths: u128, reading: &Reading) -> Result<(Want, Option<MemoryMib>), AskError> {
    let gpu = reading.fraction_of.ok_or(AskError::FractionOfWhat { field })?;
    let whole =
        |amount: u64| u64::try_from((u128::from(amount) * millionths).div_ceil(1_000_000)).unwrap_or(amount);
    let size = SizeGb(u32::try_from(whole(u64::from(gpu.0))).unwrap_or(gpu.0));
    Ok((Want::Size(size), Some(MemoryMib(whole(gpu.share_memory().0)))))
}

#[cfg(test)]
mod tests;
