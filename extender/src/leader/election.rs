//! Decides when a Lease may be taken. It is pure: the Lease that was read and the time are arguments.
//!
//! Other replicas' clocks are not trusted. A Lease has expired if it has not changed for its whole duration while this
//! replica watched it.

use std::time::Duration;
use tokio::time::Instant;

/// The fields of a Lease that decide.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// The holder's identity; empty if the Lease was released.
    pub holder: String,
    /// How many times the Lease has changed hands.
    pub transitions: u64,
    /// How long it stays valid after its last change.
    pub duration: Duration,
    /// The object's resource version, which changes with every renewal.
    pub version: String,
}

/// What to do about the Lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// Take it, and write this number of transitions.
    Take {
        /// One more than was ever seen, so that each leader's epoch is its own and above all earlier ones.
        transitions: u64,
        /// How the former leader ended.
        former: Former,
    },
    /// Another replica holds it.
    Wait,
}

/// How the former leader ended, as far as the Lease shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Former {
    /// There is no Lease: either there was never a leader, or the Lease was deleted.
    Unknown,
    /// The former leader released the Lease. It does so only when no Binding of its own, or of an earlier leader, may
    /// still be made.
    GaveBack,
    /// The former leader vanished: requests that it sent may still be under way.
    Vanished,
}

/// What a candidate remembers of the Lease.
#[derive(Debug)]
pub struct Election {
    identity: String,
    /// The last version of the Lease, and when this replica first saw it.
    seen: Option<(String, Instant)>,
    /// The highest number of transitions that was seen. A Lease that was deleted, or restored from a backup, shows a
    /// lower one. Agents ignore an epoch below the highest that they have received.
    most: Option<u64>,
}

impl Election {
    #[must_use]
    pub fn new(identity: String) -> Self {
        Self { identity, seen: None, most: None }
    }

    /// Records that a leader, by its own account, held the Lease with this many transitions.
    pub fn held(&mut self, transitions: u64) {
        self.most = self.most.max(Some(transitions));
    }

    /// Decides by the Lease as it was read now. A Lease in this replica's own name belongs to an earlier process with
    /// that name, and gets a new epoch like any other.
    pub fn decide(&mut self, record: Option<&Record>, now: Instant) -> Decision {
        self.most = self.most.max(record.map(|record| record.transitions));
        let transitions = self.most.map_or(0, |most| most.saturating_add(1));
        let take = |former| Decision::Take { transitions, former };
        let Some(record) = record else { return take(Former::Unknown) };
        if record.holder.is_empty() {
            return take(Former::GaveBack);
        }
        let since = match &self.seen {
            Some((version, since)) if *version == record.version => *since,
            _ => {
                self.seen = Some((record.version.clone(), now));
                now
            }
        };
        let is_over = record.holder == self.identity || now.duration_since(since) >= record.duration;
        if is_over { take(Former::Vanished) } else { Decision::Wait }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(holder: &str, transitions: u64, version: &str) -> Record {
        Record {
            holder: holder.into(),
            transitions,
            duration: Duration::from_secs(10),
            version: version.into(),
        }
    }

    fn take(transitions: u64, former: Former) -> Decision {
        Decision::Take { transitions, former }
    }

    fn election() -> (Election, Instant) {
        (Election::new("me".into()), Instant::now())
    }

    #[test]
    fn a_missing_lease_is_taken_as_the_first() {
        let (mut election, now) = election();
        assert_eq!(election.decide(None, now), take(0, Former::Unknown));
    }

    #[test]
    fn a_lease_that_was_lost_or_set_back_gives_no_epoch_twice() {
        let (mut election, now) = election();
        assert_eq!(election.decide(Some(&record("other", 4, "1")), now), Decision::Wait);
        assert_eq!(election.decide(None, now), take(5, Former::Unknown));
        election.held(8);
        assert_eq!(election.decide(Some(&record("", 2, "1")), now), take(9, Former::GaveBack));
    }

    #[test]
    fn a_released_lease_is_taken_at_once() {
        let (mut election, now) = election();
        assert_eq!(election.decide(Some(&record("", 4, "1")), now), take(5, Former::GaveBack));
    }

    #[test]
    fn an_earlier_process_of_the_same_identity_is_another_leader() {
        let (mut election, now) = election();
        assert_eq!(election.decide(Some(&record("me", 4, "1")), now), take(5, Former::Vanished));
    }

    #[test]
    fn a_lease_is_taken_when_it_was_not_renewed_for_its_duration() {
        let (mut election, now) = election();
        let at = |seconds| now + Duration::from_secs(seconds);
        assert_eq!(election.decide(Some(&record("other", 4, "1")), at(0)), Decision::Wait);
        assert_eq!(election.decide(Some(&record("other", 4, "1")), at(9)), Decision::Wait);
        assert_eq!(election.decide(Some(&record("other", 4, "2")), at(11)), Decision::Wait, "it was renewed");
        assert_eq!(election.decide(Some(&record("other", 4, "2")), at(20)), Decision::Wait);
        let taken = election.decide(Some(&record("other", 4, "2")), at(21));
        assert_eq!(taken, take(5, Former::Vanished));
    }
}
