//! How long it takes lately until the extender tells of a pod that was admitted here. Other replicas' pods take as long: while
//! the cluster is slow, nobody can know of them sooner. Pure.

use std::time::{Duration, Instant};

/// What it takes at most where nothing is slow: the extender's beat, two writes and two watches.
const USUAL: Duration = Duration::from_millis(250);

/// How long the longest is remembered: a burst is over by then.
const MEMORY: Duration = Duration::from_secs(10);

/// The longest of late.
#[derive(Debug, Default)]
pub(super) struct Delay(Option<(Duration, Instant)>);

impl Delay {
    /// A pod was told of so long after it was admitted.
    pub fn took(&mut self, delay: Duration, now: Instant) {
        if delay >= self.lately(now) {
            self.0 = Some((delay, now));
        }
    }

    /// The longest of late, and the usual at least.
    pub fn lately(&self, now: Instant) -> Duration {
        let is_late = |(_, at): &(Duration, Instant)| now.saturating_duration_since(*at) <= MEMORY;
        self.0.filter(is_late).map_or(USUAL, |(delay, _)| delay)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_counts_until_it_is_long_ago() {
        let (mut delay, now) = (Delay::default(), Instant::now());
        let second = Duration::from_secs(1);
        delay.took(USUAL / 2, now);
        assert_eq!(delay.lately(now), USUAL);
        delay.took(second * 2, now);
        delay.took(second, now + second);
        assert_eq!(delay.lately(now + MEMORY), second * 2);
        let later = now + MEMORY + Duration::from_millis(1);
        assert_eq!(delay.lately(later), USUAL);
        delay.took(second, later);
        assert_eq!(delay.lately(later), second);
    }
}
