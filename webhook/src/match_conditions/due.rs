//! Decides when the match condition is written, and with what. It has no clock, so that tests can play minutes.

use kerf_core::admission::MatchCondition;
use std::time::{Duration, Instant};

/// Widens the condition at once, because pods would bypass kerf, and narrows it late, because other replicas may still
/// need the wider one.
pub(super) struct Due {
    delay: Duration,
    /// The present condition and the narrower one that is needed, and since when both are the same.
    wider: Option<(MatchCondition, MatchCondition, Instant)>,
}

impl Due {
    pub fn with_delay(delay: Duration) -> Self {
        Self { delay, wider: None }
    }

    /// The condition to write now, for a configuration that has `seen` and policies that need `needed`. `None` for
    /// `seen` is an expression that kerf did not write. It may be too narrow for another replica too, so it first
    /// becomes the widest one.
    pub fn next(
        &mut self,
        seen: Option<&MatchCondition>,
        needed: &MatchCondition,
        now: Instant,
    ) -> Option<MatchCondition> {
        let before = self.wider.take();
        let Some(seen) = seen else { return Some(MatchCondition::widest()) };
        if seen == needed {
            return None;
        }
        if !seen.covers(needed) {
            // The union is written, because it keeps what other replicas may still need.
            return Some(seen.union(needed));
        }
        // Any change in between restarts the delay, because another replica may have made it.
        let same = before.filter(|(was, of, _)| was == seen && of == needed);
        let since = same.map_or(now, |(.., since)| since);
        if now.duration_since(since) >= self.delay {
            return Some(needed.clone());
        }
        self.wider = Some((seen.clone(), needed.clone(), since));
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kerf_core::request::Dialect;

    fn condition(dialects: &[Dialect]) -> MatchCondition {
        MatchCondition::for_dialects(&dialects.iter().copied().collect())
    }

    #[test]
    fn the_condition_widens_at_once_and_narrows_after_two_minutes() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut due = Due::with_delay(Duration::from_mins(2));
        let (mig, both, all) = (
            condition(&[Dialect::Mig]),
            condition(&[Dialect::Mig, Dialect::Nvidia]),
            MatchCondition::widest(),
        );
        assert_eq!(due.next(Some(&mig), &both, at(0)), Some(both.clone()));
        assert_eq!(due.next(Some(&both), &both, at(1)), None);
        let gpushare = condition(&[Dialect::Gpushare]);
        assert_eq!(
            due.next(Some(&both), &gpushare, at(2)),
            Some(both.union(&gpushare)),
            "it takes nothing away"
        );
        assert_eq!(due.next(Some(&both), &mig, at(3)), None);
        assert_eq!(due.next(Some(&both), &mig, at(122)), None);
        assert_eq!(due.next(Some(&all), &mig, at(123)), None, "another replica needs more");
        assert_eq!(due.next(Some(&all), &mig, at(242)), None);
        assert_eq!(due.next(Some(&all), &mig, at(243)), Some(mig.clone()));
        assert_eq!(due.next(Some(&mig), &mig, at(244)), None);
        assert_eq!(due.next(Some(&both), &mig, at(245)), None, "the time starts anew");
    }

    #[test]
    fn an_unknown_condition_becomes_the_widest_first() {
        let start = Instant::now();
        let mut due = Due::with_delay(Duration::from_mins(2));
        assert_eq!(due.next(None, &condition(&[Dialect::Mig]), start), Some(MatchCondition::widest()));
    }

    #[test]
    fn replicas_with_different_policies_agree_in_the_end() {
        let start = Instant::now();
        let (mig, nvidia) = (condition(&[Dialect::Mig]), condition(&[Dialect::Mig, Dialect::Nvidia]));
        let mut replicas = [Due::with_delay(Duration::from_mins(2)), Due::with_delay(Duration::from_mins(2))];
        let (mut there, mut writes) = (nvidia.clone(), 0);
        for seconds in 0..600 {
            let now = start + Duration::from_secs(seconds);
            // The policy without the dialect reaches the first replica at 10 s and the second at 100 s.
            for (replica, from) in replicas.iter_mut().zip([10, 100]) {
                let needed = if seconds < from { &nvidia } else { &mig };
                if let Some(next) = replica.next(Some(&there), needed, now) {
                    assert!(seconds >= 130, "narrowed at {seconds} s");
                    (there, writes) = (next, writes + 1);
                }
            }
        }
        assert_eq!((there, writes), (mig, 1));
    }
}
