//! What the kubelet is told of devices, and what it has acknowledged.
//!
//! The rules that keep it from handing out what it must not: a device is healthy under one name at a time, and under
//! a new one only after the kubelet has acknowledged that it is not under the old; a device that is no longer offered
//! is listed as unhealthy first, and its id dropped only after the kubelet has acknowledged that, shows no holder, and
//! some time has passed (kubelets read a device's topology once more after `Allocate`, without looking whether it is
//! still there).
//!
//! A kubelet that has not taken the newest list yet may pick a withdrawn device for a pod. It gets the device: when the
//! kubelet looked, the device was as good as what the pod was promised. So a grant outlives the offer, until something
//! else is to become of the device; then it is revoked, one decision before that happens.

use super::holders::Account;
use kerf_core::names::DeviceId;
use kerf_core::resource::ResourceName;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// How long an unhealthy device is listed at least, and how long a kubelet may take for a list.
const DROP_AFTER: Duration = Duration::from_secs(2);

/// Devices by name.
pub type DevicesByName = BTreeMap<ResourceName, BTreeSet<DeviceId>>;

/// The answer of pod-resources' `GetAllocatableResources`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Allocatable {
    /// When it was asked for.
    pub asked: Instant,
    /// Devices of kerf's names that the kubelet may hand out.
    pub healthy: DevicesByName,
}

#[derive(Debug, Clone)]
struct Listed {
    healthy: bool,
    /// When that was decided.
    since: Instant,
    /// Whether the kubelet has shown it since it was listed as healthy.
    shown: bool,
    /// From when on the kubelet is known to have let go of the unhealthy device: when it was asked whose answer no longer
    /// had it. One that never showed it may not have taken the list with it yet, and has had time to only later.
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

    /// Takes an answer of the kubelet's that has the device, or has it not.
    fn saw(&mut self, shown: bool, asked: Instant) {
        if shown {
            self.shown |= !self.healthy || asked >= self.since;
        } else if !self.healthy && asked >= self.since && self.quiet.is_none_or(|quiet| quiet > asked) {
            let latest = self.since + DROP_AFTER;
            self.quiet = Some(if self.shown { asked } else { asked.max(latest) });
        }
    }

    /// Since when the kubelet is known to have let go of it, by `now`.
    fn quiet_by(&self, now: Instant) -> Option<Instant> {
        self.quiet.filter(|quiet| *quiet <= now)
    }

    /// What the list says of it.
    fn listing(&self) -> Listing {
        match (self.healthy, self.revoked) {
            (true, _) => Listing::Healthy,
            (false, None) => Listing::Withdrawn,
            (false, Some(_)) => Listing::Revoked,
        }
    }

    /// Grants it to nobody from now on. Whether that was decided before `now`.
    fn revoke(&mut self, now: Instant) -> bool {
        !self.healthy && *self.revoked.get_or_insert(now) < now
    }
}

/// How a device stands in a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Listing {
    /// The kubelet may hand it out.
    Healthy,
    /// Listed as unhealthy, and granted to a container for which the kubelet picked it before it knew.
    Withdrawn,
    /// Listed as unhealthy, and granted to nobody.
    Revoked,
}

/// The lists of all names.
#[derive(Debug, Default)]
pub(crate) struct Advertised {
    names: BTreeMap<ResourceName, BTreeMap<DeviceId, Listed>>,
    seen: Option<Allocatable>,
    first_seen: Option<Instant>,
}

impl Advertised {
    /// Serves these names too. None is ever taken back: the kubelet goes on with what it was told of it last.
    pub(crate) fn serve(&mut self, names: &BTreeSet<ResourceName>) {
        for name in names {
            self.names.entry(*name).or_default();
        }
    }

    /// Whether the name is served.
    pub(crate) fn serves(&self, name: ResourceName) -> bool {
        self.names.contains_key(&name)
    }

    /// The kubelet has forgotten everything: nothing is acknowledged.
    pub(crate) fn forget_acknowledgements(&mut self) {
        self.seen = None;
        for listed in self.names.values_mut().flat_map(BTreeMap::values_mut) {
            (listed.shown, listed.quiet) = (false, None);
        }
    }

    /// Takes what the kubelet says that it may hand out.
    pub(crate) fn saw(&mut self, seen: Allocatable) {
        for (device, listed) in self.names.values_mut().flatten() {
            let shown = seen.healthy.values().any(|devices| devices.contains(device));
            listed.saw(shown, seen.asked);
        }
        self.first_seen.get_or_insert(seen.asked);
        self.seen = Some(seen);
    }

    /// Makes the lists offer `offer` and nothing else, as far as the kubelet's acknowledgements allow.
    pub(crate) fn offer(&mut self, offer: &DevicesByName, now: Instant) {
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

    /// Makes the lists offer `offer` too, as far as the kubelet's acknowledgements allow.
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

    /// Whether the kubelet might still hand the device out under another name.
    fn is_withheld(&self, name: ResourceName, device: &DeviceId, now: Instant) -> bool {
        let others = self.names.iter().filter(|(other, _)| **other != name);
        let listed = others.filter_map(|(_, devices)| devices.get(device));
        let listed = listed.into_iter().any(|l| l.healthy || l.quiet_by(now).is_none());
        let seen = self.seen.iter().flat_map(|s| &s.healthy);
        listed || seen.filter(|(other, _)| **other != name).any(|(_, devices)| devices.contains(device))
    }

    /// Grants the device to nobody under another name. Whether that was decided before `now`.
    fn revoke_elsewhere(&mut self, name: ResourceName, device: &DeviceId, now: Instant) -> bool {
        let others = self.names.iter_mut().filter(|(other, _)| **other != name);
        let mut listed = others.filter_map(|(_, devices)| devices.get_mut(device));
        listed.all(|listed| listed.revoke(now))
    }

    /// Grants the device to nobody under any name. Whether that was decided before `now`.
    pub(crate) fn revoke(&mut self, device: &DeviceId, now: Instant) -> bool {
        let mut listed = self.names.values_mut().filter_map(|devices| devices.get_mut(device));
        listed.all(|listed| listed.revoke(now))
    }

    /// Whether a list has the device, or the kubelet shows it.
    pub(crate) fn is_listed(&self, device: &DeviceId) -> bool {
        let mut seen = self.seen.iter().flat_map(|seen| seen.healthy.values());
        self.names.values().any(|devices| devices.contains_key(device)) || seen.any(|d| d.contains(device))
    }

    /// Whether something was revoked at `now`, so that another decision can go further.
    pub(crate) fn revoked_at(&self, now: Instant) -> bool {
        self.names.values().flat_map(BTreeMap::values).any(|listed| listed.revoked == Some(now))
    }

    /// Whether the kubelet has acknowledged the device under this name.
    pub(crate) fn is_acknowledged(&self, name: ResourceName, device: &DeviceId) -> bool {
        let listed = self.names.get(&name).and_then(|devices| devices.get(device)).filter(|l| l.healthy);
        let (Some(listed), Some(seen)) = (listed, &self.seen) else { return false };
        seen.asked >= listed.since && seen.healthy.get(&name).is_some_and(|devices| devices.contains(device))
    }

    /// Since when the kubelet is known not to hand the device out, by `now`; `None` if it might.
    pub(crate) fn quiet_since(&self, device: &DeviceId, now: Instant) -> Option<Instant> {
        let seen = self.seen.as_ref()?;
        if seen.healthy.values().any(|devices| devices.contains(device)) {
            return None;
        }
        let listed = self.names.values().filter_map(|devices| devices.get(device));
        listed.map(|l| l.quiet_by(now)).try_fold(self.first_seen?, |latest, quiet| Some(latest.max(quiet?)))
    }

    /// Drops ids that the kubelet has let go of. Gives the time at which the next one may be dropped, or is let go of.
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
                let due = listed.since + DROP_AFTER;
                if due <= now && asked.is_some_and(|asked| asked > quiet) {
                    return false;
                }
                let due = due.max(now + DROP_AFTER);
                next = Some(next.map_or(due, |n: Instant| n.min(due)));
                true
            });
        }
        next
    }

    /// The list of each name: devices and how they stand.
    pub(crate) fn lists(
        &self,
    ) -> impl Iterator<Item = (ResourceName, impl Iterator<Item = (&DeviceId, Listing)>)> {
        self.names.iter().map(|(name, devices)| (*name, devices.iter().map(|(d, l)| (d, l.listing()))))
    }

    /// What the kubelet should say that it may hand out.
    pub(crate) fn healthy(&self) -> DevicesByName {
        let healthy = self.lists().map(|(name, devices)| {
            (
                name,
                devices.filter(|(_, l)| *l == Listing::Healthy).map(|(device, _)| device.clone()).collect(),
            )
        });
        healthy.filter(|(_, devices): &(_, BTreeSet<_>)| !devices.is_empty()).collect()
    }

    /// Whether some id waits to be dropped for want of a newer account of holders.
    pub(crate) fn wants_account(&self, account: &Account, now: Instant) -> bool {
        let asked = account.asked();
        let unhealthy = self.names.values().flat_map(BTreeMap::values).filter_map(|l| l.quiet_by(now));
        unhealthy.max().is_some_and(|quiet| asked.is_none_or(|asked| asked <= quiet))
    }
}

#[cfg(test)]
#[path = "advertise_tests.rs"]
mod tests;
