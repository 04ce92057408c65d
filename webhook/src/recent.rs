//! What was admitted here a moment ago, as long as the extender's word on demand does not contain it: until then a burst would
//! be sent to a kind that is full. Pure: the time comes as an argument.
//!
//! What other replicas admit is known once the extender has seen it. Until then each is taken to admit as many pods as this one
//! does, so that no replica takes more than its part of what was left, however pods are spread over them: not at once, and not
//! by one word of the extender's after another, as each may tell of this replica's pods and not yet of the others'.
//!
//! That they do so is a guess, and wrong where one replica is asked for most pods. What it speaks against is therefore put off
//! until the extender has told of all, see [`crate::patience`].
//!
//! Who was promised a slice must not be counted twice, nor not at all: see [`order`].

mod delay;
mod guess;
mod mine;
mod order;
mod others;

pub(crate) use guess::Guess;
use kerf_core::contract::{Demand, Held, RequestDocument, Revisions, Slices};
use kerf_core::resource::ResourceName;
use mine::{Mine, sum};
use order::Order;
use others::{Others, arrived_since};
use std::sync::Arc;
use std::time::{Duration, Instant};

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
    /// What pods hold of static nodes, by what was published.
    held: Arc<Held>,
    mine: Mine,
    others: Others,
    /// Rises with every admission.
    version: u64,
}

impl Recent {
    /// What the replica of this name knows at its start.
    pub fn of(replica: &str) -> Self {
        Self { replica: replica.to_owned(), ..Self::default() }
    }

    /// A pod with this document was admitted.
    pub fn admitted(&mut self, document: &RequestDocument, now: Instant) {
        self.version += 1;
        self.mine.admit(document.slices(), now);
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
        self.pass(now);
    }

    /// The specs of these revisions were seen.
    pub fn shown(&mut self, revisions: Revisions, now: Instant) {
        self.order.shown(revisions, now);
        self.pass(now);
    }

    /// Time has passed: puts a word in force that had to wait for its specs, and forgets what is long ago.
    pub fn pass(&mut self, now: Instant) {
        if let Some(demand) = self.order.due(now) {
            self.put_in_force(Some(demand), now);
        }
        self.mine.forget(now);
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
        self.mine.delay(now)
    }

    fn put_in_force(&mut self, demand: Option<Demand>, now: Instant) {
        let told = demand.as_ref().map(|demand| &demand.arrived);
        if self.published.as_ref().map(|known| &known.arrived) != told {
            self.arrived = Some(now);
        }
        if let (Some(known), Some(demand)) = (&self.published, &demand)
            && known.epoch == demand.epoch
        {
            for (name, count) in arrived_since(known, demand, &self.replica) {
                self.mine.told(name, count, now);
            }
            self.others.told(known, demand, &self.replica, now);
        }
        self.held = Arc::new(demand.as_ref().map(|demand| demand.held.clone()).unwrap_or_default());
        self.published = demand;
    }

    /// What pods hold of static nodes.
    pub fn held(&self) -> Arc<Held> {
        self.held.clone()
    }

    /// The slices that pods wait for, by what was published and by what was admitted here since.
    pub fn pending(&self) -> Slices<u32> {
        sum(self.waiting().chain(self.mine.untold()))
    }

    /// What other replicas may have admitted since; `None` where there are no others.
    pub fn guess(&self, now: Instant) -> Option<Guess> {
        let demand = self.published.as_ref()?;
        let names = || demand.arrived.keys().filter(|name| **name != self.replica);
        let mut others = self.others.lately(names(), self.mine.lately(now), now);
        if others.is_empty() {
            if demand.knows_replicas() {
                return None;
            }
            // As many replicas as `deploy/` has are there, and of the other nothing is told yet.
            others.push(Slices::new());
        }
        let before = names().filter(|name| **name < self.replica).count();
        Some(Guess {
            published: self.waiting().collect(),
            untold: self.mine.untold(),
            mine: self.mine.all(),
            others,
            before: u32::try_from(before).unwrap_or(u32::MAX),
        })
    }

    fn waiting(&self) -> impl Iterator<Item = (ResourceName, u32)> {
        self.published.iter().flat_map(|demand| &demand.pending).map(|(name, count)| (*name, *count))
    }
}

#[cfg(test)]
mod tests;
