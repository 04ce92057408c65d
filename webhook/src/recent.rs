//! What was admitted here a moment ago, as long as the extender's word on demand does not contain it: until then a burst would
//! be sent to a kind that is full. Pure: the time comes as an argument.
//!
//! What other replicas admit is known once the extender has seen it. Until then each is taken to admit as many pods as this one,
//! so that no replica takes more than its part of what was left, however pods are spread over them. Beyond it they go only
//! where one has heard the extender's last word and another has not, or where less is left than there are replicas.
//!
//! That they do so is a guess, and wrong where one replica is asked for most pods. What it speaks against is therefore put off
//! until the extender has told of all, see [`crate::patience`].
//!
//! Who was promised a slice must not be counted twice, nor not at all: see [`order`].

mod delay;
mod order;

use delay::Delay;
use kerf_core::contract::{Demand, Held, RequestDocument, Revisions, Slices};
use kerf_core::resource::ResourceName;
use order::Order;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long an admission counts of which nobody has heard: what comes after this webhook may have refused the pod.
const LIFETIME: Duration = Duration::from_secs(5);

/// How many replicas there are while none is known to have admitted a pod: as many as `deploy/` has.
const UNKNOWN: u32 = 2;

/// What is wanted already, as this webhook sees it.
#[derive(Debug, Default)]
pub(crate) struct Recent {
    /// The name of this replica.
    replica: String,
    /// The extender's word that is in force.
    published: Option<Demand>,
    order: Order,
    /// When the extender told of a new pod last.
    arrived: Option<Instant>,
    delay: Delay,
    /// What pods hold of static nodes, by what was published.
    held: Arc<Held>,
    /// The oldest first.
    admitted: VecDeque<Admitted>,
    /// Rises with every admission.
    version: u64,
}

#[derive(Debug)]
struct Admitted {
    at: Instant,
    name: ResourceName,
    count: u64,
}

/// What is wanted already if each replica admits as much as this one.
#[derive(Debug, Clone)]
pub(crate) struct Guess {
    replicas: u32,
    before: u32,
    since: Slices<u32>,
    published: Slices<u32>,
}

impl Guess {
    /// The slices that pods wait for, as far as it matters to one that wants slices of these names: of the last that cannot be
    /// shared evenly, each replica leaves one to each that comes before it.
    pub fn pending(&self, wanted: &Slices<u32>) -> Slices<u32> {
        let mut pending = self.published.clone();
        let of_wanted = wanted.keys().map(|name| (*name, 0));
        let since: Slices<u32> =
            of_wanted.chain(self.since.iter().map(|(name, count)| (*name, *count))).collect();
        for (name, count) in since {
            let all = pending.entry(name).or_default();
            let guess = count.saturating_mul(self.replicas).saturating_add(self.before);
            *all = all.saturating_add(guess);
        }
        pending
    }

    /// Whether this replica has admitted some of these of which the extender has said nothing yet.
    pub fn awaits(&self, wanted: &Slices<u32>) -> bool {
        wanted.keys().any(|name| self.since.contains_key(name))
    }
}

impl Recent {
    /// What the replica of this name knows at its start.
    pub fn of(replica: &str) -> Self {
        Self { replica: replica.to_owned(), ..Self::default() }
    }

    /// A pod with this document was admitted.
    pub fn admitted(&mut self, document: &RequestDocument, now: Instant) {
        self.version += 1;
        let slices = document.slices();
        self.admitted.extend(slices.into_iter().map(|(name, count)| Admitted {
            at: now,
            name,
            count: count.into(),
        }));
    }

    /// How many admissions there were. Who has decided by an older state decides again.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// The extender has published this; `None` for a document that is gone or cannot be read. It is in force once the specs
    /// that it goes with were seen.
    pub fn published(&mut self, demand: Option<Demand>, now: Instant) {
        let is_former = |known: &Demand| demand.as_ref().is_some_and(|demand| demand.epoch < known.epoch);
        if self.published.as_ref().is_some_and(is_former) {
            return;
        }
        if let Some(demand) = demand {
            self.order.comes(demand, now);
        } else {
            self.order.forget();
            self.put_in_force(None, now);
        }
        self.take_due(now);
    }

    /// The specs of these revisions were seen.
    pub fn shown(&mut self, revisions: Revisions, now: Instant) {
        self.order.shown(revisions, now);
        self.take_due(now);
    }

    /// Puts a word in force that had to wait for its specs.
    pub fn take_due(&mut self, now: Instant) {
        if let Some(demand) = self.order.due(now) {
            self.put_in_force(Some(demand), now);
        }
    }

    /// Whether specs were seen that are newer than the extender's word: whom they promise something is counted twice, until its
    /// next word.
    pub fn is_behind(&self, now: Instant) -> bool {
        self.published.as_ref().is_some_and(|word| self.order.is_ahead_of(word, now))
    }

    /// How long the extender has told of no new pod.
    pub fn calm(&self, now: Instant) -> Duration {
        self.arrived.map_or(Duration::MAX, |at| now.saturating_duration_since(at))
    }

    /// How long it took lately until the extender told of a pod that was admitted here.
    pub fn delay(&self, now: Instant) -> Duration {
        self.delay.lately(now)
    }

    fn put_in_force(&mut self, demand: Option<Demand>, now: Instant) {
        let arrived = |demand: &Option<Demand>| demand.as_ref().map(|demand| demand.arrived.clone());
        if arrived(&self.published) != arrived(&demand) {
            self.arrived = Some(now);
        }
        if let (Some(known), Some(demand)) = (&self.published, &demand)
            && known.epoch == demand.epoch
        {
            let arrived = |demand: &Demand| demand.arrived.get(&self.replica).cloned().unwrap_or_default();
            let before = arrived(known);
            for (name, count) in arrived(demand) {
                let seen = count.saturating_sub(before.get(&name).copied().unwrap_or(0));
                if let Some(admitted) = forget(&mut self.admitted, name, seen) {
                    self.delay.took(now.saturating_duration_since(admitted), now);
                }
            }
        }
        self.held = Arc::new(demand.as_ref().map(|demand| demand.held.clone()).unwrap_or_default());
        self.published = demand;
    }

    /// What pods hold of static nodes.
    pub fn held(&self) -> Arc<Held> {
        self.held.clone()
    }

    /// The slices that pods wait for, by what was published and by what was admitted here since.
    pub fn pending(&mut self, now: Instant) -> Slices<u32> {
        let since = self.since(now);
        self.published_and(since)
    }

    /// What other replicas may have admitted since; `None` where there are no others.
    pub fn guess(&mut self, now: Instant) -> Option<Guess> {
        let (replicas, before) = self.replicas();
        if replicas < 2 {
            return None;
        }
        let since = self.since(now);
        Some(Guess { replicas, before, since, published: self.published_and(Slices::new()) })
    }

    /// How many replicas admit pods, this one included: those whose pods the extender has seen lately. And how many of them
    /// come before this one where what is left cannot be shared evenly.
    fn replicas(&self) -> (u32, u32) {
        let Some(demand) = &self.published else { return (1, 0) };
        if demand.arrived.is_empty() {
            return (UNKNOWN, 0);
        }
        let count = |others: usize| u32::try_from(others).unwrap_or(u32::MAX);
        let others = || demand.arrived.keys().filter(|name| **name != self.replica);
        let before = others().filter(|name| **name < self.replica).count();
        (count(others().count()).saturating_add(1), count(before))
    }

    fn since(&mut self, now: Instant) -> Slices<u32> {
        while self.admitted.front().is_some_and(|oldest| now.duration_since(oldest.at) > LIFETIME) {
            self.admitted.pop_front();
        }
        let mut since = Slices::new();
        for Admitted { name, count, .. } in &self.admitted {
            let all: &mut u32 = since.entry(*name).or_default();
            *all = all.saturating_add(u32::try_from(*count).unwrap_or(u32::MAX));
        }
        since
    }

    fn published_and(&self, mut since: Slices<u32>) -> Slices<u32> {
        for (name, count) in self.published.iter().flat_map(|demand| &demand.pending) {
            let all = since.entry(*name).or_default();
            *all = all.saturating_add(*count);
        }
        since
    }
}

/// Forgets the oldest `seen` slices of a name. When the oldest of them was admitted, if there is one.
fn forget(admitted: &mut VecDeque<Admitted>, name: ResourceName, mut seen: u64) -> Option<Instant> {
    let mut oldest = None;
    for entry in admitted.iter_mut().filter(|entry| entry.name == name) {
        let known = entry.count.min(seen);
        if known > 0 {
            oldest.get_or_insert(entry.at);
        }
        entry.count -= known;
        seen -= known;
    }
    admitted.retain(|entry| entry.count > 0);
    oldest
}

#[cfg(test)]
mod tests {
    use super::*;
    use kerf_core::testing::request;
    use std::collections::BTreeMap;

    const MIG: &str = "nvidia.com/mig-1g.10gb";
    const ME: &str = "me";

    fn name(text: &str) -> ResourceName {
        text.parse().unwrap()
    }

    fn demand(epoch: u64, pending: u32, arrived: u64) -> Demand {
        let arrived = [(ME.to_owned(), [(name(MIG), arrived)].into())].into();
        Demand { pending: [(name(MIG), pending)].into(), arrived, ..Demand::of(epoch) }
    }

    /// The same after another replica has admitted as many as this.
    fn beside_another(demand: Demand, arrived: u64) -> Demand {
        let mut all = demand.arrived;
        all.insert("other".to_owned(), [(name(MIG), arrived)].into());
        Demand { arrived: all, ..demand }
    }

    /// What a pod wants.
    fn one() -> Slices<u32> {
        [(name(MIG), 1)].into()
    }

    fn pending(recent: &mut Recent, now: Instant) -> u32 {
        recent.pending(now).get(&name(MIG)).copied().unwrap_or(0)
    }

    #[test]
    fn an_admission_counts_until_the_extender_has_seen_the_pod() {
        let (mut recent, now) = (Recent::of(ME), Instant::now());
        recent.published(Some(demand(1, 2, 10)), now);
        recent.admitted(&request(MIG, 2), now);
        recent.admitted(&request(MIG, 1), now);
        assert_eq!(pending(&mut recent, now), 5);
        // Two slices have come, and one of those that waited has got its.
        recent.published(Some(demand(1, 3, 12)), now);
        assert_eq!(pending(&mut recent, now), 4);
        recent.published(Some(demand(1, 0, 13)), now);
        assert_eq!(pending(&mut recent, now), 0);
    }

    #[test]
    fn how_late_the_extender_tells_of_a_pod_is_known() {
        let (mut recent, now) = (Recent::of(ME), Instant::now());
        let second = Duration::from_secs(1);
        recent.published(Some(demand(1, 0, 10)), now);
        assert_eq!(recent.delay(now), Duration::ZERO);
        recent.admitted(&request(MIG, 1), now);
        recent.admitted(&request(MIG, 1), now + second);
        recent.published(Some(demand(1, 2, 12)), now + 2 * second);
        assert_eq!(recent.delay(now + 2 * second), 2 * second);
    }

    #[test]
    fn an_admission_of_which_nobody_hears_is_forgotten() {
        let (mut recent, now) = (Recent::of(ME), Instant::now());
        recent.admitted(&request(MIG, 1), now);
        recent.admitted(&request(MIG, 1), now + LIFETIME);
        assert_eq!(pending(&mut recent, now + LIFETIME), 2);
        assert_eq!(pending(&mut recent, now + LIFETIME + Duration::from_millis(1)), 1);
        assert_eq!(pending(&mut recent, now), 1, "what is forgotten stays so");
    }

    #[test]
    fn a_new_leader_counts_anew_and_a_former_one_is_not_heard() {
        let (mut recent, now) = (Recent::of(ME), Instant::now());
        recent.published(Some(demand(1, 0, 100)), now);
        recent.admitted(&request(MIG, 1), now);
        recent.published(Some(demand(2, 4, 300)), now);
        assert_eq!(pending(&mut recent, now), 5, "which pods it has seen is not known");
        recent.published(Some(demand(1, 0, 101)), now);
        assert_eq!(pending(&mut recent, now), 5);
        recent.published(Some(demand(2, 5, 301)), now);
        assert_eq!(pending(&mut recent, now), 5);
        recent.published(None, now);
        assert_eq!(pending(&mut recent, now), 0);
    }

    #[test]
    fn names_do_not_answer_for_each_other() {
        let (mut recent, now) = (Recent::of(ME), Instant::now());
        recent.published(Some(demand(1, 0, 0)), now);
        recent.admitted(&request("nvidia.com/gpu-4gb", 1), now);
        recent.published(Some(demand(1, 1, 1)), now);
        assert_eq!(recent.pending(now), [(name(MIG), 1), (name("nvidia.com/gpu-4gb"), 1)].into());
        assert_eq!(recent.version(), 1);
    }

    #[test]
    fn what_another_replica_admitted_is_not_taken_for_its_own() {
        let (mut recent, now) = (Recent::of(ME), Instant::now());
        recent.published(Some(beside_another(demand(1, 0, 0), 0)), now);
        recent.admitted(&request(MIG, 2), now);
        recent.published(Some(beside_another(demand(1, 5, 0), 5)), now);
        assert_eq!(pending(&mut recent, now), 7, "the extender has seen none of the two");
        recent.published(Some(beside_another(demand(1, 6, 1), 5)), now);
        assert_eq!(pending(&mut recent, now), 7);
    }

    #[test]
    fn each_replica_counts_what_others_may_have_admitted_as_it_did() {
        let (mut recent, now) = (Recent::of(ME), Instant::now());
        let guess = |recent: &mut Recent| recent.guess(now).map(|guess| guess.pending(&one())[&name(MIG)]);
        recent.admitted(&request(MIG, 2), now);
        assert_eq!(guess(&mut recent), None, "there is no extender");
        recent.published(Some(Demand::of(1)), now);
        assert_eq!(guess(&mut recent), Some(2 * UNKNOWN));
        recent.published(Some(demand(2, 0, 4)), now);
        assert_eq!(guess(&mut recent), None, "the API server asks this one alone");
        recent.published(Some(beside_another(demand(2, 3, 4), 3)), now);
        assert_eq!(guess(&mut recent), Some(7));
    }

    /// The last slice is the first replica's while all are asked, also where none of them has admitted a pod lately.
    #[test]
    fn of_what_cannot_be_shared_each_leaves_one_to_those_before_it() {
        let now = Instant::now();
        let guess = |replica: &str, wanted: &Slices<u32>| {
            let mut recent = Recent::of(replica);
            recent.published(Some(beside_another(demand(1, 6, 3), 3)), now);
            let guess = recent.guess(now).unwrap();
            assert!(!guess.awaits(wanted), "nothing of it is on its way");
            guess.pending(wanted)[&name(MIG)]
        };
        assert_eq!((guess(ME, &one()), guess("other", &one())), (6, 7));
        assert_eq!(guess("other", &[(name("nvidia.com/gpu-4gb"), 1)].into()), 6);
    }

    /// However a burst is spread over the replicas.
    #[test]
    fn replicas_share_what_is_left_and_no_more() {
        const ROOM: u32 = 15;
        for (replicas, of) in [(2, 1), (2, 5), (3, 2), (3, 3)] {
            let names: Vec<String> = (0..replicas).map(|number| format!("r{number}")).collect();
            let mut all: Vec<Recent> = names.iter().map(|name| Recent::of(name)).collect();
            let now = Instant::now();
            let mut arrived: BTreeMap<String, Slices<u64>> =
                names.iter().map(|replica| (replica.clone(), Slices::new())).collect();
            let mut given = 0;
            for pod in 0..100_usize {
                let document = || {
                    let pending = [(name(MIG), given)].into();
                    Demand { pending, arrived: arrived.clone(), ..Demand::of(1) }
                };
                // Every 31 pods the extender speaks; all replicas but the first get `of` pods for one of the first.
                if pod % 31 == 0 {
                    for recent in &mut all {
                        recent.published(Some(document()), now);
                    }
                }
                let who = if pod % (of + 1) == 0 { 0 } else { 1 + pod % (replicas - 1) };
                let wanted = all[who].guess(now).unwrap().pending(&one())[&name(MIG)];
                if wanted < ROOM {
                    all[who].admitted(&request(MIG, 1), now);
                    *arrived.get_mut(&names[who]).unwrap().entry(name(MIG)).or_default() += 1;
                    given += 1;
                }
            }
            assert_eq!(given, ROOM, "{replicas} replicas");
        }
    }
}
