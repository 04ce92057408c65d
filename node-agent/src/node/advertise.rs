//! The device lists for the kubelet, and what the kubelet has acknowledged of them.
//!
//! These rules keep the kubelet from allocating what it must not:
//! - A device is healthy under one name at a time. It is healthy under a new name only after the kubelet has
//!   acknowledged that it is not under the old one.
//! - A device that is no longer offered is first listed as unhealthy. Its id is dropped only after the kubelet has
//!   acknowledged that, shows no holder, and some time has passed: kubelets read a device's topology once more after
//!   `Allocate`, without a check that the device still exists.
//!
//! A kubelet that has not received the newest list yet may pick a withdrawn device for a pod. The pod gets the device,
//! because when the kubelet picked it, it was as good as the reserved one. So a grant outlives the offer until the
//! device is needed for something else; then it is revoked, one decision before that happens. It is not revoked while a
//! bound pod lacks a device of its name: the kubelet may have picked this one, and its `Allocate` be on its way.

use super::holders::Account;
use kerf_core::names::DeviceId;
use kerf_core::resource::ResourceName;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// How long an unhealthy device is listed at least, and how long a kubelet may take to process a list.
const DROP_TIMEOUT: Duration = Duration::from_secs(2);

pub type DevicesByName = BTreeMap<ResourceName, BTreeSet<DeviceId>>;

/// The answer to `GetAllocatableResources` of the pod-resources API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Allocatable {
    /// When the request was sent.
    pub asked: Instant,
    /// Devices of kerf's names that the kubelet may allocate.
    pub healthy: DevicesByName,
}

#[derive(Debug, Clone)]
struct Listed {
    healthy: bool,
    /// When `healthy` was set to this value.
    since: Instant,
    /// Whether the kubelet has shown it since it was listed as healthy.
    shown: bool,
    /// From when on the kubelet surely does not allocate the unhealthy device: the time of a request whose answer no
    /// longer had it. If the kubelet never showed the device, it may not have processed that list yet, so this time is
    /// later.
    quiet: Option<Instant>,
    /// When it was decided that no container gets the unhealthy device any more.
    revoked: Option<Instant>,
}

impl Listed {
    fn healthy(since: Instant) -> Self {
        Self { healthy: true, since, shown: false, quiet: None, revoked: None }
    }

    fn withdrawn(&self, since: Instant) -> Self {
        Self { healthy: false, shown: self.shown, ..Self::healthy(since) }
    }

    /// Records whether the kubelet's answer listed the device.
    fn saw(&mut self, shown: bool, asked: Instant) {
        if shown {
            self.shown |= !self.healthy || asked >= self.since;
        } else if !self.healthy && asked >= self.since && self.quiet.is_none_or(|quiet| quiet > asked) {
            let latest = self.since + DROP_TIMEOUT;
            self.quiet = Some(if self.shown { asked } else { asked.max(latest) });
        }
    }

    /// Since when the kubelet surely does not allocate it, as known at `now`.
    fn quiet_by(&self, now: Instant) -> Option<Instant> {
        self.quiet.filter(|quiet| *quiet <= now)
    }

    fn listing(&self) -> Listing {
        match (self.healthy, self.revoked) {
            (true, _) => Listing::Healthy,
            (false, None) => Listing::Withdrawn,
            (false, Some(_)) => Listing::Revoked,
        }
    }

    /// Grants it to no container from now on, unless it may be picked for a pod that lacks one. Returns whether that
    /// was decided before `now`.
    fn revoke(&mut self, is_lacking: bool, now: Instant) -> bool {
        let may_be_picked = is_lacking && self.revoked.is_none() && now < self.since + DROP_TIMEOUT;
        !self.healthy && !may_be_picked && *self.revoked.get_or_insert(now) < now
    }
}

/// The state of a device in a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Listing {
    /// The kubelet may allocate it.
    Healthy,
    /// Listed as unhealthy. A container still gets it if the kubelet picked it before it received that list.
    Withdrawn,
    /// Listed as unhealthy, and granted to no container.
    Revoked,
}

#[derive(Debug, Default)]
pub(crate) struct Advertised {
    names: BTreeMap<ResourceName, BTreeMap<DeviceId, Listed>>,
    seen: Option<Allocatable>,
    first_seen: Option<Instant>,
    /// The names that the kubelet has accepted since its last start.
    registered: BTreeSet<ResourceName>,
    /// Whether names were ever registered.
    is_named: bool,
    /// Whether everything that an offer needs was ever known. Before that, listed devices go to their holders only.
    has_offered: bool,
    /// The names of which a pod that may be bound lacks a device.
    lacking: BTreeSet<ResourceName>,
}

impl Advertised {
    /// Serves these names too. Names are never removed, because the kubelet keeps using its last list of a name.
    pub(crate) fn serve(&mut self, names: &BTreeSet<ResourceName>) {
        for name in names {
            self.names.entry(*name).or_default();
        }
    }

    pub(crate) fn serves(&self, name: ResourceName) -> bool {
        self.names.contains_key(&name)
    }

    /// Takes the names that the kubelet has accepted. A kubelet that registers names has restarted and forgotten
    /// everything, so all acknowledgements are dropped.
    pub(super) fn register(&mut self, names: BTreeSet<ResourceName>) {
        self.registered = names;
        self.seen = None;
        for listed in self.names.values_mut().flat_map(BTreeMap::values_mut) {
            (listed.shown, listed.quiet) = (false, None);
        }
    }

    pub(super) fn registered(&self) -> &BTreeSet<ResourceName> {
        &self.registered
    }

    /// Whether names may be registered. Once they are, they stay, whatever `may_begin` is then.
    pub(super) fn may_name(&mut self, may_begin: bool, is_observed: bool) -> bool {
        let may = self.is_named || may_begin;
        self.is_named |= may && is_observed;
        may
    }

    /// Takes the names of which a pod that may be bound lacks a device.
    pub(super) fn take_lacking(&mut self, names: BTreeSet<ResourceName>) {
        self.lacking = names;
    }

    /// Whether a container may get a listed device.
    pub(super) fn has_offered(&self) -> bool {
        self.has_offered
    }

    /// Takes the kubelet's list of allocatable devices.
    pub(crate) fn saw(&mut self, seen: Allocatable) {
        for (device, listed) in self.names.values_mut().flatten() {
            let shown = seen.healthy.values().any(|devices| devices.contains(device));
            listed.saw(shown, seen.asked);
        }
        self.first_seen.get_or_insert(seen.asked);
        self.seen = Some(seen);
    }

    /// Makes the lists offer exactly `offer`, as far as the kubelet's acknowledgements allow.
    pub(crate) fn offer(&mut self, offer: &DevicesByName, now: Instant) {
        self.has_offered = true;
        for (name, devices) in &mut self.names {
            let offered = offer.get(name);
            for (device, listed) in devices.iter_mut().filter(|(_, listed)| listed.healthy) {
                if !offered.is_some_and(|o| o.contains(device)) {
                    *listed = listed.withdrawn(now);
                }
            }
        }
        self.add(offer, now);
    }

    /// Makes the lists offer `offer` as well, as far as the kubelet's acknowledgements allow.
    pub(crate) fn add(&mut self, offer: &DevicesByName, now: Instant) {
        for (name, device) in offer.iter().flat_map(|(name, devices)| devices.iter().map(move |d| (*name, d)))
        {
            if self.is_withheld(name, device, now) || !self.revoke_elsewhere(name, device, now) {
                continue;
            }
            let Some(devices) = self.names.get_mut(&name) else { continue };
            match devices.get_mut(device) {
                Some(listed) if listed.healthy => {}
                Some(listed) => *listed = Listed::healthy(now),
                None => drop(devices.insert(device.clone(), Listed::healthy(now))),
            }
        }
    }

    /// Whether the kubelet might still allocate the device under another name.
    fn is_withheld(&self, name: ResourceName, device: &DeviceId, now: Instant) -> bool {
        let others = self.names.iter().filter(|(other, _)| **other != name);
        let listed = others.filter_map(|(_, devices)| devices.get(device));
        let listed = listed.into_iter().any(|l| l.healthy || l.quiet_by(now).is_none());
        let seen = self.seen.iter().flat_map(|s| &s.healthy);
        listed || seen.filter(|(other, _)| **other != name).any(|(_, devices)| devices.contains(device))
    }

    /// Revokes the device under all other names. Returns whether that was decided before `now`.
    fn revoke_elsewhere(&mut self, name: ResourceName, device: &DeviceId, now: Instant) -> bool {
        self.revoke_if(device, |other| other != name, now)
    }

    /// Revokes the device under all names. Returns whether that was decided before `now`.
    pub(crate) fn revoke(&mut self, device: &DeviceId, now: Instant) -> bool {
        self.revoke_if(device, |_| true, now)
    }

    fn revoke_if(&mut self, device: &DeviceId, of: impl Fn(ResourceName) -> bool, now: Instant) -> bool {
        let Self { names, lacking, .. } = self;
        let names = names.iter_mut().filter(|(name, _)| of(**name));
        let mut listed = names.filter_map(|(name, devices)| Some((name, devices.get_mut(device)?)));
        listed.all(|(name, listed)| listed.revoke(lacking.contains(name), now))
    }

    /// Whether a list has the device, or the kubelet shows it.
    pub(crate) fn is_listed(&self, device: &DeviceId) -> bool {
        let mut seen = self.seen.iter().flat_map(|seen| seen.healthy.values());
        self.names.values().any(|devices| devices.contains_key(device)) || seen.any(|d| d.contains(device))
    }

    /// Whether something was revoked at `now`, so that the next decision can continue.
    pub(crate) fn revoked_at(&self, now: Instant) -> bool {
        self.names.values().flat_map(BTreeMap::values).any(|listed| listed.revoked == Some(now))
    }

    /// Whether the kubelet has acknowledged the device under this name.
    pub(crate) fn is_acknowledged(&self, name: ResourceName, device: &DeviceId) -> bool {
        let listed = self.names.get(&name).and_then(|devices| devices.get(device)).filter(|l| l.healthy);
        let (Some(listed), Some(seen)) = (listed, &self.seen) else { return false };
        // An answer that was requested before the device was listed does not acknowledge it.
        seen.asked >= listed.since && seen.healthy.get(&name).is_some_and(|devices| devices.contains(device))
    }

    /// Since when the kubelet surely does not allocate the device, as known at `now`; `None` if it might.
    pub(crate) fn quiet_since(&self, device: &DeviceId, now: Instant) -> Option<Instant> {
        let seen = self.seen.as_ref()?;
        if seen.healthy.values().any(|devices| devices.contains(device)) {
            return None;
        }
        let listed = self.names.values().filter_map(|devices| devices.get(device));
        listed.map(|l| l.quiet_by(now)).try_fold(self.first_seen?, |latest, quiet| Some(latest.max(quiet?)))
    }

    /// Drops ids that the kubelet no longer allocates. Returns when the next one may be dropped.
    pub(crate) fn drop_ids(&mut self, account: &Account, now: Instant) -> Option<Instant> {
        let asked = account.asked();
        let mut next = None;
        for devices in self.names.values_mut() {
            devices.retain(|device, listed| {
                let Some(quiet) = listed.quiet.filter(|_| !listed.healthy) else { return true };
                if quiet > now {
                    next = Some(next.map_or(quiet, |n: Instant| n.min(quiet)));
                    return true;
                }
                if account.is_held(device) {
                    return true;
                }
                let due = listed.since + DROP_TIMEOUT;
                if due <= now && asked.is_some_and(|asked| asked > quiet) {
                    return false;
                }
                let due = if due > now { due } else { now + DROP_TIMEOUT };
                next = Some(next.map_or(due, |n: Instant| n.min(due)));
                true
            });
        }
        next
    }

    /// The list of each name: its devices and their states.
    pub(crate) fn lists(
        &self,
    ) -> impl Iterator<Item = (ResourceName, impl Iterator<Item = (&DeviceId, Listing)>)> {
        self.names.iter().map(|(name, devices)| (*name, devices.iter().map(|(d, l)| (d, l.listing()))))
    }

    /// The devices that the kubelet should show as allocatable.
    pub(crate) fn healthy(&self) -> DevicesByName {
        let healthy = self.lists().map(|(name, devices)| {
            (
                name,
                devices.filter(|(_, l)| *l == Listing::Healthy).map(|(device, _)| device.clone()).collect(),
            )
        });
        healthy.filter(|(_, devices): &(_, BTreeSet<_>)| !devices.is_empty()).collect()
    }

    /// Whether an id cannot be dropped before a newer list of holders.
    pub(crate) fn wants_holders(&self, account: &Account, now: Instant) -> bool {
        let asked = account.asked();
        let unhealthy = self.names.values().flat_map(BTreeMap::values).filter_map(|l| l.quiet_by(now));
        unhealthy.max().is_some_and(|quiet| asked.is_none_or(|asked| asked <= quiet))
    }
}

#[cfg(test)]
#[path = "advertise_tests.rs"]
mod tests;
