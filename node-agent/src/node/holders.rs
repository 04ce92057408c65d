//! Who holds which device, by the kubelet's account, and what was allocated so lately that the account may lack it.

use super::init::InitHeld;
use kerf_core::contract::Holder;
use kerf_core::names::{DeviceId, PodKey};
use kerf_core::resource::ResourceName;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// An account that was asked for this long after an allocation and lacks it says that its pod is gone or was refused:
/// the kubelet lists a pod within milliseconds of `Allocate`.
const SHOWN_WITHIN: Duration = Duration::from_secs(1);

/// The first wait for the kubelet to show what changed; doubled with each look up to [`LONGEST_LOOK`].
const FIRST_LOOK: Duration = Duration::from_millis(5);
const LONGEST_LOOK: Duration = Duration::from_secs(1);

/// One device's holder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    /// The name under which the container asked.
    pub name: ResourceName,
    /// The container.
    pub holder: Holder,
}

/// The answer of pod-resources' List.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holders {
    /// When it was asked for: it says nothing of what happened later.
    pub asked: Instant,
    /// Devices of kerf's names that are held.
    pub held: BTreeMap<DeviceId, Held>,
}

#[derive(Debug)]
struct Allocation {
    name: ResourceName,
    at: Instant,
}

/// All that is known of holders.
#[derive(Debug, Default)]
pub(crate) struct Account {
    holders: Option<Holders>,
    allocated: BTreeMap<DeviceId, Allocation>,
    /// What init containers hold, which the kubelet does not list.
    init: InitHeld,
    /// Pods that are gone or finished, while the kubelet still lists what they held.
    leaving: BTreeSet<PodKey>,
    look: Option<(Instant, Duration)>,
}

impl Account {
    /// Takes the kubelet's account.
    pub(crate) fn take(&mut self, holders: Holders) {
        let holds = |pod: &PodKey| holders.held.values().any(|h| h.holder.key() == *pod);
        self.leaving.retain(holds);
        self.holders = Some(holders);
    }

    /// Forgets allocations that the kubelet's account shows, or should show by now. It never shows what init containers
    /// hold: `may_be_init_held` tells for which names that may be so.
    pub(crate) fn forget_allocations(&mut self, may_be_init_held: impl Fn(ResourceName) -> bool) {
        let Some(Holders { asked, held }) = &self.holders else { return };
        self.allocated.retain(|device, a| {
            let is_early = *asked < a.at + SHOWN_WITHIN;
            let may_lack_it = !held.contains_key(device) && (is_early || may_be_init_held(a.name));
            *asked <= a.at || may_lack_it
        });
    }

    /// Takes what init containers hold.
    pub(super) fn take_init(&mut self, init: InitHeld) {
        self.init = init;
    }

    /// A container is being given these devices.
    pub(crate) fn allocated(&mut self, name: ResourceName, devices: Vec<DeviceId>, now: Instant) {
        for device in devices {
            self.allocated.insert(device, Allocation { name, at: now });
        }
        self.look_soon(now);
    }

    /// A pod of this node is gone or finished.
    pub(crate) fn left(&mut self, pod: PodKey, now: Instant) {
        let holds = self.holders.iter().flat_map(|h| h.held.values()).any(|h| h.holder.key() == pod);
        if holds || !self.allocated.is_empty() {
            self.leaving.insert(pod);
            self.look_soon(now);
        }
    }

    fn look_soon(&mut self, now: Instant) {
        self.look = Some((now + FIRST_LOOK, FIRST_LOOK));
    }

    /// Whether the kubelet should be asked now; and when, if later.
    pub(crate) fn look(&mut self, now: Instant) -> (bool, Option<Instant>) {
        if self.allocated.is_empty() && self.leaving.is_empty() {
            self.look = None;
            return (false, None);
        }
        let (due, wait) = *self.look.get_or_insert((now, FIRST_LOOK));
        if due > now {
            return (false, Some(due));
        }
        let wait = (wait * 2).min(LONGEST_LOOK);
        self.look = Some((now + wait, wait));
        (true, Some(now + wait))
    }

    /// Whether the kubelet was ever heard.
    pub(crate) fn is_known(&self) -> bool {
        self.holders.is_some()
    }

    /// When the newest account was asked for.
    pub(crate) fn asked(&self) -> Option<Instant> {
        self.holders.as_ref().map(|h| h.asked)
    }

    /// The names of what was allocated lately.
    pub(crate) fn allocated_names(&self) -> BTreeSet<ResourceName> {
        self.allocated.values().map(|a| a.name).collect()
    }

    /// Whether the kubelet lists a holder of the device.
    pub(crate) fn lists(&self, device: &DeviceId) -> bool {
        self.listed(device).is_some()
    }

    fn listed(&self, device: &DeviceId) -> Option<&Held> {
        self.holders.as_ref()?.held.get(device)
    }

    /// Who holds the device, or may hold it.
    pub(crate) fn holder(&self, device: &DeviceId) -> Option<&Held> {
        let init = || self.init.own.get(device).or_else(|| self.init.doubted.get(device));
        self.listed(device).or_else(init)
    }

    /// The name under which the device was just given to a container.
    pub(crate) fn allocated_as(&self, device: &DeviceId) -> Option<ResourceName> {
        self.allocated.get(device).map(|a| a.name)
    }

    /// The name under which the device is held, or was just given to a container.
    pub(crate) fn held_as(&self, device: &DeviceId) -> Option<ResourceName> {
        let known = || self.listed(device).or_else(|| self.init.own.get(device));
        self.allocated_as(device).or_else(|| known().map(|h| h.name))
    }

    /// Whether an init container may hold the device though nothing says so: it is no one else's meanwhile.
    pub(crate) fn is_doubted(&self, device: &DeviceId) -> bool {
        self.init.doubted.contains_key(device) && self.held_as(device).is_none()
    }

    /// Whether the device is held, or may be.
    pub(crate) fn is_held(&self, device: &DeviceId) -> bool {
        self.held_as(device).is_some() || self.is_doubted(device)
    }

    /// All devices that the kubelet lists as held.
    pub(crate) fn devices(&self) -> impl Iterator<Item = (&DeviceId, &Held)> {
        self.holders.iter().flat_map(|h| &h.held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Account {
        fn hear(&mut self, holders: Holders, may_be_init_held: bool) {
            self.take(holders);
            self.forget_allocations(|_| may_be_init_held);
        }
    }

    fn held(pod: &str) -> Held {
        Held {
            name: "nvidia.com/mig-1g.10gb".parse().unwrap(),
            holder: Holder { namespace: "ns".into(), pod: pod.into(), container: "main".into() },
        }
    }

    fn account(now: Instant, devices: &[(&str, &str)]) -> Holders {
        let held = devices.iter().map(|(device, pod)| (DeviceId::new(*device), held(pod)));
        Holders { asked: now, held: held.collect() }
    }

    #[test]
    fn an_allocation_counts_as_held_until_the_kubelet_shows_it_or_had_time_to() {
        let (mut all, start) = (Account::default(), Instant::now());
        let device = DeviceId::new("MIG-1");
        all.hear(account(start, &[]), false);
        all.allocated(held("a").name, vec![device.clone()], start + Duration::from_millis(1));
        assert!(all.held_as(&device).is_some() && all.holder(&device).is_none());
        all.hear(account(start + Duration::from_millis(2), &[]), false);
        assert!(all.held_as(&device).is_some(), "the kubelet has not listed the pod yet");
        assert!(all.look(start + SHOWN_WITHIN * 2).0, "the kubelet is asked again");
        assert!(all.held_as(&device).is_some(), "silence is no answer");
        all.hear(account(start + SHOWN_WITHIN * 2, &[]), false);
        assert_eq!(all.look(start + SHOWN_WITHIN * 2), (false, None));
        assert!(all.held_as(&device).is_none(), "the pod was refused after Allocate");
    }

    #[test]
    fn an_allocation_that_may_be_an_init_containers_counts_however_long_the_kubelet_is_silent() {
        let (mut all, start) = (Account::default(), Instant::now());
        let device = DeviceId::new("MIG-1");
        all.allocated(held("a").name, vec![device.clone()], start);
        all.hear(account(start + SHOWN_WITHIN * 9, &[]), true);
        assert!(all.is_held(&device) && all.look(start + SHOWN_WITHIN * 9).0);
        all.hear(account(start + SHOWN_WITHIN * 9, &[]), false);
        assert!(!all.is_held(&device));
    }

    #[test]
    fn the_kubelet_is_asked_ever_less_often_until_a_gone_pods_devices_are_free() {
        let (mut all, start) = (Account::default(), Instant::now());
        all.hear(account(start, &[("MIG-1", "a")]), false);
        assert_eq!(all.look(start), (false, None));
        all.left(PodKey::new("ns", "a"), start);
        let (now, first) = all.look(start);
        assert!(!now && first == Some(start + FIRST_LOOK));
        let (now, second) = all.look(start + FIRST_LOOK);
        assert!(now && second == Some(start + FIRST_LOOK * 3));
        all.hear(account(start + FIRST_LOOK, &[]), false);
        assert_eq!(all.look(start + LONGEST_LOOK), (false, None));
    }
}
