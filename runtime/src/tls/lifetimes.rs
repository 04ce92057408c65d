//! How long certificates are valid, and when they are renewed. No clock is read here.

use jiff::{SignedDuration, Timestamp};
use std::time::Duration;
use thiserror::Error;

/// A certificate is valid from this long before it was made, because clocks differ.
pub(super) const SKEW: SignedDuration = SignedDuration::from_hours(1);

/// The shortest age of a leaf: certificates count in seconds.
const SHORTEST_LEAF: SignedDuration = SignedDuration::from_secs(3);

/// The lifetimes of leaf and authority certificates. Both are renewed after two thirds of theirs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lifetimes {
    leaf: SignedDuration,
    authority: SignedDuration,
}

/// The lifetimes leave no time for a rotation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum InvalidLifetimes {
    /// The leaf's age is too short.
    #[error("a leaf of {0:#} is too short; it must live at least 3 s")]
    Short(SignedDuration),
    /// The authority's age is too short for that of its leaves.
    #[error(
        "an authority of {authority:#} is too short for leaves of {leaf:#}; it must live at least three times as long"
    )]
    Overlap {
        /// The age of the leaf.
        leaf: SignedDuration,
        /// The age of the authority.
        authority: SignedDuration,
    },
}

impl Lifetimes {
    /// A year for leaves and ten for authorities. This suits clients that read the authority once, as kube-scheduler
    /// does: client-go's transport reloads a certificate and its key by itself, but never the authority.
    pub const YEARS: Self =
        Self { leaf: SignedDuration::from_hours(365 * 24), authority: SignedDuration::from_hours(3650 * 24) };

    /// Checks the lifetimes. An authority is replaced after two thirds of its life; with a third left it outlives each of
    /// its leaves.
    pub fn new(leaf: SignedDuration, authority: SignedDuration) -> Result<Self, InvalidLifetimes> {
        if leaf < SHORTEST_LEAF {
            return Err(InvalidLifetimes::Short(leaf));
        }
        if authority / 3 < leaf {
            return Err(InvalidLifetimes::Overlap { leaf, authority });
        }
        Ok(Self { leaf, authority })
    }

    /// The interval at which the Secret is read: short enough that all replicas present a new leaf long before the old
    /// one ends.
    #[must_use]
    pub fn poll_interval(&self) -> Duration {
        part(self.leaf, 24).clamp(Duration::from_millis(200), Duration::from_secs(30))
    }

    /// How long clients must have had a new authority in their configuration before it signs a leaf. API servers get a
    /// changed configuration by a watch, far faster than the minute that is given if the ages allow it.
    #[must_use]
    pub fn settle(&self) -> Duration {
        part(self.authority, 30).clamp(Duration::from_secs(1), Duration::from_mins(1))
    }

    pub(super) fn leaf_due(&self, life: Life) -> Timestamp {
        life.due(self.leaf)
    }

    pub(super) fn authority_due(&self, life: Life) -> Timestamp {
        life.due(self.authority)
    }

    /// The life of a leaf that is made now by an authority that ends at `latest`, because no leaf may outlive its
    /// authority.
    pub(super) fn leaf_from(&self, now: Timestamp, latest: Timestamp) -> Life {
        let life = Life::from(now, self.leaf);
        Life { end: life.end.min(latest), ..life }
    }

    /// Whether a leaf signed by this authority would be valid long enough to be useful. If not, no renewal has run for
    /// weeks.
    pub(super) fn leaves_room(&self, authority: Life, now: Timestamp) -> bool {
        authority.end.duration_since(now) > self.leaf / 3
    }

    pub(super) fn authority_from(&self, now: Timestamp) -> Life {
        Life::from(now, self.authority)
    }
}

fn part(age: SignedDuration, of: i32) -> Duration {
    Duration::try_from(age / of).unwrap_or_default()
}

/// The time in which a certificate is valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Life {
    /// The first moment, [`SKEW`] before the certificate was made.
    pub begin: Timestamp,
    pub end: Timestamp,
}

impl Life {
    fn from(now: Timestamp, age: SignedDuration) -> Self {
        let begin = now.saturating_sub(SKEW).unwrap_or(Timestamp::MIN);
        Self { begin, end: now.saturating_add(age).unwrap_or(Timestamp::MAX) }
    }

    /// The time of renewal: after two thirds of the life, or of `age` if the life is longer.
    fn due(self, age: SignedDuration) -> Timestamp {
        let made = self.begin.saturating_add(SKEW).unwrap_or(Timestamp::MAX);
        let lives = self.end.duration_since(made).min(age);
        made.saturating_add(lives / 3 * 2).unwrap_or(Timestamp::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: SignedDuration = SignedDuration::from_hours(1);

    #[test]
    fn ages_leave_time_for_a_rotation() {
        assert!(Lifetimes::new(HOUR * 24, HOUR * 24 * 90).is_ok());
        assert!(Lifetimes::new(HOUR, HOUR * 3).is_ok());
        let message = |leaf, authority| Lifetimes::new(leaf, authority).unwrap_err().to_string();
        assert_eq!(
            message(HOUR, HOUR * 2),
            "an authority of 2h is too short for leaves of 1h; it must live at least three times as long"
        );
        assert_eq!(
            message(SignedDuration::from_secs(2), HOUR),
            "a leaf of 2s is too short; it must live at least 3 s"
        );
    }

    #[test]
    fn poll_interval_and_settling_time_fit_the_ages() {
        let long = Lifetimes::new(HOUR * 24, HOUR * 24 * 90).unwrap();
        assert_eq!((long.poll_interval(), long.settle()), (Duration::from_secs(30), Duration::from_mins(1)));
        let short = Lifetimes::new(SignedDuration::from_secs(6), SignedDuration::from_secs(30)).unwrap();
        assert_eq!(
            (short.poll_interval(), short.settle()),
            (Duration::from_millis(250), Duration::from_secs(1))
        );
    }

    #[test]
    fn a_certificate_is_due_after_two_thirds_of_its_life_or_of_the_set_age() {
        let now: Timestamp = "2026-11-21T12:00:00Z".parse().unwrap();
        let life = Life::from(now, HOUR * 24);
        assert_eq!((life.begin, life.end), (now - HOUR, now + HOUR * 24));
        assert_eq!(life.due(HOUR * 24), now + HOUR * 16);
        assert_eq!(life.due(HOUR * 3), now + HOUR * 2);
        assert_eq!(life.due(HOUR * 999), now + HOUR * 16);
    }

    #[test]
    fn no_leaf_outlives_its_authority() {
        let now: Timestamp = "2026-11-21T12:00:00Z".parse().unwrap();
        assert_eq!(Lifetimes::YEARS.leaf_from(now, now + HOUR).end, now + HOUR);
    }
}
