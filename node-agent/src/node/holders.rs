//! Who holds which device, by the kubelet's account, and what was allocated so lately that the account may lack it.

use super::foreign::Foreign;
use super::init::InitHeld;
use kerf_core::contract::Holder;
use kerf_core::names::{DeviceId, PodKey, PodUid};
use kerf_core::resource::ResourceName;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// An account that was asked for this long after an allocation and lacks it says that its pod is gone or was refused:
/// the kubelet lists a pod within milliseconds of `Allocate`.
const SHOWN_WITHIN: Duration = Duration::from_secs(1);

/// The first wait for the kubelet to show what changed; doubled with each look up to [`LONGEST_LOOK`].
const FIRST_LOOK: Duration = Duration::from_millis(5);
const LONGEST_LOOK: Duration = Duration::from_secs(1);

/// How long a pod that kerf does not know has what the kubelet lists no more, unless it is known to have ended: a kubelet that
/// was just started lists it again within seconds.
const FORGOTTEN_AFTER: Duration = Duration::from_mins(1);

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
    /// What containers have of others, in their words.
    pub foreign: Vec<(Foreign, Holder)>,
}

/// What a container has of others.
#[derive(Debug)]
struct ForeignHeld {
    device: Foreign,
    holder: Holder,
    /// When the kubelet listed it last.
    listed: Instant,
}

/// What a container was given.
#[derive(Debug)]
pub(super) struct Allocation {
    /// The name under which it asked.
    pub(super) name: ResourceName,
    at: Instant,
    /// The pods whose init containers it may have been given to, so that the kubelet never lists it; `None` if that is not
    /// known any more.
    pub(super) suspects: Option<BTreeSet<PodUid>>,
}

/// All that is known of holders.
#[derive(Debug, Default)]
pub(crate) struct Account {
    holders: Option<Holders>,
    foreign: Vec<ForeignHeld>,
    allocated: BTreeMap<DeviceId, Allocation>,
    /// What init containers hold, which the kubelet does not list.
    init: InitHeld,
    /// Pods that are gone or finished, while the kubelet still lists what they held.
    leaving: BTreeSet<PodKey>,
    look: Option<(Instant, Duration)>,
}

impl Account {
    /// Takes the kubelet's account. One that has just been started may tell of no pod, before it has heard of any: what a
    /// pod held before that the account knows nothing of, it holds on while it `is_here`.
    pub(crate) fn take(&mut self, mut holders: Holders, is_here: impl Fn(&PodKey) -> bool) {
        let all = holders.held.values().map(|held| &held.holder);
        let all = all.chain(holders.foreign.iter().map(|(_, holder)| holder));
        let told: BTreeSet<PodKey> = all.map(Holder::key).collect();
        for (device, held) in self.holders.take().into_iter().flat_map(|before| before.held) {
            let pod = held.holder.key();
            // What is given to a container is nobody else's any more.
            let is_over = self.leaving.contains(&pod) || self.allocated.contains_key(&device);
            if !told.contains(&pod) && !is_over && is_here(&pod) {
                holders.held.entry(device).or_insert(held);
            }
        }
        self.take_foreign(&mut holders, &told, &is_here);
        self.leaving.retain(|pod| told.contains(pod));
        self.holders = Some(holders);
    }

    fn take_foreign(
        &mut self,
        holders: &mut Holders,
        told: &BTreeSet<PodKey>,
        is_here: impl Fn(&PodKey) -> bool,
    ) {
        let asked = holders.asked;
        let goes_on = |held: &ForeignHeld| {
            let pod = held.holder.key();
            let is_over = told.contains(&pod) || self.leaving.contains(&pod);
            !is_over && (is_here(&pod) || asked < held.listed + FORGOTTEN_AFTER)
        };
        self.foreign.retain(goes_on);
        let listed = std::mem::take(&mut holders.foreign).into_iter();
        self.foreign.extend(listed.map(|(device, holder)| ForeignHeld { device, holder, listed: asked }));
    }

    /// Forgets allocations that the kubelet's account shows, or should show by now. It never shows what init containers
    /// hold: `may_be_init_held` tells for which devices that may be so.
    pub(crate) fn forget_allocations(&mut self, may_be_init_held: impl Fn(&DeviceId) -> bool) {
        let Some(Holders { asked, held, .. }) = &self.holders else { return };
        self.allocated.retain(|device, a| {
            let is_early = *asked < a.at + SHOWN_WITHIN;
            let may_lack_it = !held.contains_key(device) && (is_early || may_be_init_held(device));
            *asked <= a.at || may_lack_it
        });
    }

    /// Takes what init containers hold.
    pub(super) fn take_init(&mut self, init: InitHeld) {
        self.init = init;
    }

    /// A container is being given these devices, an init container of one of the `suspects` perhaps.
    pub(crate) fn allocated(
        &mut self,
        name: ResourceName,
        devices: Vec<DeviceId>,
        suspects: &BTreeSet<PodUid>,
        now: Instant,
    ) {
        for device in devices {
            self.allocated.insert(device, Allocation { name, at: now, suspects: Some(suspects.clone()) });
        }
        self.look_soon(now);
    }

    /// A pod of this node is gone or finished.
    pub(crate) fn left(&mut self, pod: PodKey, now: Instant) {
        if self.has_something(&pod) || !self.allocated.is_empty() {
            self.leaving.insert(pod);
            self.look_soon(now);
        }
    }

    fn has_something(&self, pod: &PodKey) -> bool {
        let listed = self.devices().map(|(_, held)| &held.holder);
        let mut all = listed.chain(self.foreign().map(|(_, holder)| holder));
        all.any(|holder| holder.key() == *pod)
    }

    /// A container was given this device before the agent was started, and the kubelet had not listed it then.
    pub(super) fn recall(&mut self, name: ResourceName, device: DeviceId, now: Instant) {
        self.allocated.insert(device, Allocation { name, at: now, suspects: None });
    }

    /// The kubelet listed these before the agent was started.
    pub(super) fn recall_held(&mut self, held: BTreeMap<DeviceId, Held>, asked: Instant) {
        self.holders.get_or_insert(Holders { asked, held, foreign: Vec::new() });
    }

    /// Pods have ended: what they may have had is theirs no more.
    pub(super) fn acquit(&mut self, gone: &BTreeSet<PodUid>) {
        let suspects = self.allocated.values_mut().filter_map(|a| a.suspects.as_mut());
        suspects.for_each(|suspects| suspects.retain(|uid| !gone.contains(uid)));
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

    /// What was allocated and is not listed.
    pub(super) fn allocations(&self) -> impl Iterator<Item = (&DeviceId, &Allocation)> {
        self.allocated.iter()
    }

    /// Whether the kubelet lists a holder of the device.
    pub(crate) fn lists(&self, device: &DeviceId) -> bool {
        self.listed(device).is_some()
    }

    fn listed(&self, device: &DeviceId) -> Option<&Held> {
        self.holders.as_ref()?.held.get(device)
    }

    /// Who holds the device, where that is known.
    pub(crate) fn holder(&self, device: &DeviceId) -> Option<&Held> {
        self.listed(device).or_else(|| self.init.own.get(device))
    }

    /// Who holds the device, or one of those who may.
    pub(crate) fn possible_holder(&self, device: &DeviceId) -> Option<&Held> {
        self.holder(device).or_else(|| self.init.doubted.get(device))
    }

    /// The name under which the device was just given to a container.
    pub(crate) fn allocated_as(&self, device: &DeviceId) -> Option<ResourceName> {
        self.allocated.get(device).map(|a| a.name)
    }

    /// The name under which the device is held, or was just given to a container.
    pub(crate) fn held_as(&self, device: &DeviceId) -> Option<ResourceName> {
        self.allocated_as(device).or_else(|| self.holder(device).map(|h| h.name))
    }

    /// Whether an init container may hold the device though nothing says so: it is no one else's meanwhile.
    pub(crate) fn is_doubted(&self, device: &DeviceId) -> bool {
        self.init.doubted.contains_key(device) && self.held_as(device).is_none()
    }

    /// Whether the device is held, or may be.
    pub(crate) fn is_held(&self, device: &DeviceId) -> bool {
        self.held_as(device).is_some() || self.is_doubted(device)
    }

    /// What containers have of others.
    pub(super) fn foreign(&self) -> impl Iterator<Item = (&Foreign, &Holder)> {
        self.foreign.iter().map(|held| (&held.device, &held.holder))
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
            self.take(holders, |_| false);
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
        Holders { asked: now, held: held.collect(), foreign: Vec::new() }
    }

    #[test]
    fn an_allocation_counts_as_held_until_the_kubelet_shows_it_or_had_time_to() {
        let (mut all, start) = (Account::default(), Instant::now());
        let device = DeviceId::new("MIG-1");
        all.hear(account(start, &[]), false);
        all.allocated(
            held("a").name,
            vec![device.clone()],
            &BTreeSet::new(),
            start + Duration::from_millis(1),
        );
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
        all.allocated(held("a").name, vec![device.clone()], &BTreeSet::new(), start);
        all.hear(account(start + SHOWN_WITHIN * 9, &[]), true);
        assert!(all.is_held(&device) && all.look(start + SHOWN_WITHIN * 9).0);
        all.hear(account(start + SHOWN_WITHIN * 9, &[]), false);
        assert!(!all.is_held(&device));
    }

    #[test]
    fn what_a_pod_held_of_which_the_kubelet_has_not_heard_yet_is_held_on_while_the_pod_is_here() {
        let (device, is_held) =
            (DeviceId::new("MIG-1"), |all: &Account| all.is_held(&DeviceId::new("MIG-1")));
        let hears = |change: fn(&mut Account, Instant), devices: &[(&str, &str)], is_here: bool| {
            let (mut all, start) = (Account::default(), Instant::now());
            all.take(account(start, &[(device.as_str(), "a"), ("MIG-2", "b")]), |_| true);
            change(&mut all, start);
            all.take(account(start + LONGEST_LOOK, devices), |_| is_here);
            is_held(&all)
        };
        let name = held("a").name;
        assert!(hears(|_, _| {}, &[], true), "a kubelet that was just started knows no pod");
        assert!(!hears(|_, _| {}, &[], false));
        assert!(!hears(|_, _| {}, &[("MIG-3", "a")], true), "the pod was given another device");
        assert!(!hears(|all, now| all.left(PodKey::new("ns", "a"), now), &[], true), "it has just ended");
        let (mut all, start) = (Account::default(), Instant::now());
        all.take(account(start, &[("MIG-1", "a")]), |_| true);
        all.allocated(name, vec![device.clone()], &BTreeSet::new(), start);
        all.hear(account(start + SHOWN_WITHIN, &[]), false);
        all.take(account(start + SHOWN_WITHIN * 2, &[]), |_| true);
        assert!(!all.is_held(&device), "the kubelet had given it to another");
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
