//! Reads what a container's limits ask for by kerf's names.
//!
//! A request without a limit counts too. Otherwise the API server would refuse the pod with a message about a name that
//! the user never wrote.

use super::dialects;
use super::errors::Field;
use super::{AskError, ContainerAsk, ContainerView, Dialect, PodView, Reading, Role, Want};
use crate::kind::Kind;
use crate::nvidia_keys;
use crate::quantity::parse_count;
use crate::resource::{ResourceName, asked_size};
use std::collections::BTreeMap;

/// The names and amounts of one container's limits.
pub type AskedLimits = BTreeMap<String, String>;

/// Whether a resource name in a container asks for a slice, by kerf's names or in any dialect.
#[must_use]
pub fn asks_by(name: &str) -> bool {
    asked_size(name).is_some() || name.parse::<ResourceName>().is_ok() || dialects::dialect_of(name).is_some()
}

/// The limits, or requests, by which each container of the pod asks. Containers that do not ask are left out.
#[must_use]
pub fn asked_limits(pod: &PodView) -> BTreeMap<String, AskedLimits> {
    let asked = |container: &ContainerView| -> AskedLimits {
        let asking = |(name, amount): &(&str, &str)| asks_by(name) && parse_count(amount) != Some(0);
        let entries = entries(container).filter(asking);
        entries.map(|(name, amount)| (name.to_owned(), amount.to_owned())).collect()
    };
    let containers = pod.spec.in_order().map(|(container, _)| (container.name.clone(), asked(container)));
    containers.filter(|(_, asked)| !asked.is_empty()).collect()
}

/// The names and amounts of a container: its limits, then its requests.
pub(super) fn entries(container: &ContainerView) -> impl Iterator<Item = (&str, &str)> {
    let resources = &container.resources;
    resources.limits.iter().chain(&resources.requests).map(|(name, amount)| (name.as_str(), amount.as_str()))
}

/// Whether an entry asks for nothing. Charts write 0 under NVIDIA's names for pods without a GPU.
pub(super) fn is_nothing(name: &str, amount: &str) -> bool {
    name.starts_with(nvidia_keys::PREFIX) && parse_count(amount) == Some(0)
}

/// The amount under one name, in limits or requests; `None` if it is absent or 0.
pub(super) fn amount<'c>(container: &'c ContainerView, name: &str) -> Result<Option<&'c str>, AskError> {
    let mut amounts = entries(container).filter(|(entry, _)| *entry == name).map(|(_, amount)| amount);
    let Some(first) = amounts.next() else { return Ok(None) };
    if let Some(second) = amounts.find(|amount| parse_count(amount) != parse_count(first)) {
        let stated = |amount| format!("{name}: {amount}");
        return Err(AskError::Twice {
            container: container.name.clone(),
            first: stated(first),
            second: stated(second),
        });
    }
    Ok(Some(first).filter(|amount| parse_count(amount) != Some(0)))
}

/// A container's request by kerf's names, and by names of MIG devices if the policy accepts the dialect `mig`.
pub(super) fn ask(
    container: &ContainerView,
    role: Role,
    reading: &Reading,
) -> Result<Option<ContainerAsk>, AskError> {
    let mut found: Option<ContainerAsk> = None;
    for (limit, text) in entries(container) {
        if is_nothing(limit, text) {
            continue;
        }
        if dialects::dialect_of(limit) == Some(Dialect::Mig) && !reading.knows(Dialect::Mig) {
            continue;
        }
        let Some(want) = want(&container.name, limit)? else { continue };
        let count = count(field(&container.name, limit), text)?;
        let ask = ContainerAsk::new(&container.name, role, want, count, format!("{limit}: {text}"));
        match &found {
            Some(first) if *first != ask => return Err(first.twice(&ask)),
            Some(_) => {}
            None => found = Some(ask),
        }
    }
    Ok(found)
}

/// The number of slices in a field, at least one.
pub(super) fn count(field: Field, text: &str) -> Result<u32, AskError> {
    let count = parse_count(text).and_then(|count| u32::try_from(count).ok()).filter(|count| *count > 0);
    count.ok_or_else(|| AskError::Count { field, text: text.to_owned() })
}

pub(super) fn field(container: &str, limit: &str) -> Field {
    Field::Limit { container: container.to_owned(), limit: limit.to_owned() }
}

fn want(container: &str, limit: &str) -> Result<Option<Want>, AskError> {
    if let Some(size) = asked_size(limit) {
        let named = |source| AskError::Size { field: field(container, limit), source };
        return size.map(|size| Some(Want::Size(size))).map_err(named);
    }
    Ok(match limit.parse::<ResourceName>() {
        Ok(ResourceName::Mig(profile)) => Some(Want::Profile(profile)),
        Ok(ResourceName::Compute(profile)) => Some(Want::Compute(profile)),
        Ok(ResourceName::MigReplica(profile)) => Some(Want::MigReplica(profile)),
        Ok(ResourceName::Mps(size)) => Some(Want::Share(Kind::Mps, size)),
        Ok(ResourceName::TimeSlicing(size)) => Some(Want::Share(Kind::TimeSlicing, size)),
        Ok(ResourceName::Neutral(size)) => Some(Want::Size(size)),
        // Other programs serve these names too, so only a dialect of the policy makes them kerf's.
        Ok(
            ResourceName::Whole | ResourceName::Replica | ResourceName::MpsReplica | ResourceName::Plugin(..),
        )
        | Err(_) => None,
    })
}
