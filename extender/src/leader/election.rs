//! When a Lease may be taken. Pure: what was read and the time come as arguments.
//!
//! Other replicas' clocks are not trusted: a Lease has expired when it has not changed for its duration while we looked.

use std::time::Duration;
use tokio::time::Instant;

/// A Lease as it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Who holds it; empty if it was released.
    pub holder: String,
    /// How often it has changed hands.
    pub transitions: u64,
    /// How long it stays valid after its last change.
    pub duration: Duration,
    /// The object's version, which changes with every renewal.
    pub version: String,
}

/// What to do about the Lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// Take it, and write this number of transitions.
    Take {
        /// One more than ever seen, so that each leader has an epoch of its own, above all before it.
        transitions: u64,
        /// How the leader before ended.
        former: Former,
    },
    /// It is another's.
    Wait,
}

/// How the leader before ended, as far as the Lease tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Former {
    /// There is no Lease: nobody has led, or the Lease was deleted.
    Unknown,
    /// It gave the Lease back. A leader does so only when no Binding of its own, or of a leader before it, may still be made.
    GaveBack,
    /// It vanished: requests that it sent may still be under way.
    Vanished,
}

/// A candidate's memory of the Lease.
#[derive(Debug)]
pub struct Election {
    identity: String,
    seen: Option<(String, Instant)>,
    /// The most transitions that were seen. A Lease that was deleted, or set back with all that the API server has, tells of
    /// fewer, and who knows a higher epoch does not listen to a lower one.
    most: Option<u64>,
}

impl Election {
    /// The candidate of this identity.
    #[must_use]
    pub fn new(identity: String) -> Self {
        Self { identity, seen: None, most: None }
    }

    /// A leader held the Lease with so many transitions, by its own account.
    pub fn held(&mut self, transitions: u64) {
        self.most = self.most.max(Some(transitions));
    }

    /// Decides by what was read now. A Lease in our own name is one of an earlier life, and taken as any other.
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
    fn a_lease_that_nobody_made_is_taken_as_the_first() {
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
    fn an_earlier_life_of_the_same_identity_is_another_leader() {
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
