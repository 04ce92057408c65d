//! In which order the extender's words and the specs of `GpuNodes` are believed. They come by two watches, and a pod that is
//! promised a slice leaves the one when it stands in the other.
//!
//! A word that comes before its specs waits for them: a promised pod that is in neither would leave its place to another, and
//! one of them would wait. Specs that come before their word are believed at once, and the pod counts twice until the word comes:
//! that sends nobody to a full kind, and who decides then knows of it.

use kerf_core::contract::{Demand, Revisions};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// How long one waits for the other. Both come within milliseconds, the word within a tenth of a second and one write, and on
/// a machine that has too much to do either may come a second or two after the other; what is missing later has been lost
/// with its node.
const PATIENCE: Duration = Duration::from_secs(5);

/// How many words may wait: the extender speaks at most every tenth of a second.
const WORDS: usize = 64;

/// What was seen of the specs, and the word that waits for some.
#[derive(Debug, Default)]
pub(super) struct Order {
    seen: Revisions,
    /// When something new was seen last.
    at: Option<Instant>,
    /// The words that wait, the oldest first, each with when it came.
    coming: VecDeque<(Demand, Instant)>,
}

impl Order {
    /// The specs of these revisions were seen.
    pub fn shown(&mut self, revisions: Revisions, now: Instant) {
        if self.seen != revisions {
            (self.seen, self.at) = (revisions, Some(now));
        }
    }

    /// A word was heard, unless it is a former leader's.
    pub fn comes(&mut self, demand: Demand, now: Instant) {
        if self.coming.back().is_some_and(|(known, _)| known.epoch > demand.epoch) {
            return;
        }
        self.coming.push_back((demand, now));
        if self.coming.len() > WORDS {
            self.coming.pop_front();
        }
    }

    /// No word waits any more.
    pub fn forget(&mut self) {
        self.coming.clear();
    }

    /// The newest word that waits no longer; those before it say nothing more.
    pub fn due(&mut self, now: Instant) -> Option<Demand> {
        let is_due = |(word, since): &(Demand, Instant)| {
            now.saturating_duration_since(*since) > PATIENCE || !lacks(&self.seen, word)
        };
        let newest = self.coming.iter().rposition(is_due)?;
        self.coming.drain(..=newest).next_back().map(|(word, _)| word)
    }

    /// Whether specs were seen, not long ago, that are newer than those that a word goes with.
    pub fn is_ahead_of(&self, word: &Demand, now: Instant) -> bool {
        let Some(of_word) = &word.revisions else { return false };
        let is_newer = |(node, revision): (&_, &u64)| *revision > of_word.get(node).copied().unwrap_or(0);
        let is_fresh = self.at.is_some_and(|at| now.saturating_duration_since(at) <= PATIENCE);
        is_fresh && self.seen.iter().any(is_newer)
    }
}

/// Whether a spec is older than the one that a word goes with. A node that is not known here has no room here either.
fn lacks(seen: &Revisions, word: &Demand) -> bool {
    let is_older = |(node, revision): (&_, &u64)| seen.get(node).is_some_and(|seen| seen < revision);
    word.revisions.iter().flatten().any(is_older)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(revision: u64) -> Revisions {
        [("n".into(), revision)].into()
    }

    fn word(revision: u64) -> Demand {
        Demand { revisions: Some(at(revision)), ..Demand::of(1) }
    }

    #[test]
    fn a_word_waits_for_its_specs_and_not_for_ever() {
        let (mut order, now) = (Order::default(), Instant::now());
        order.shown(at(3), now);
        order.comes(word(4), now);
        assert_eq!(order.due(now), None);
        order.shown(at(4), now);
        assert_eq!(order.due(now), Some(word(4)));
        assert_eq!(order.due(now), None, "it is taken once");
        order.comes(word(5), now);
        order.comes(word(6), now + PATIENCE);
        let late = now + PATIENCE + Duration::from_millis(1);
        assert_eq!(order.due(now + PATIENCE), None);
        assert_eq!(order.due(late), Some(word(5)));
        assert_eq!(order.due(late), None, "the next waits on");
    }

    #[test]
    fn a_word_does_not_wait_for_a_node_that_is_gone_nor_an_older_extenders_for_anything() {
        let (mut order, now) = (Order::default(), Instant::now());
        order.comes(word(4), now);
        assert_eq!(order.due(now), Some(word(4)));
        order.shown(at(1), now);
        order.comes(Demand::of(1), now);
        assert_eq!(order.due(now), Some(Demand::of(1)));
        assert!(!order.is_ahead_of(&Demand::of(1), now));
    }

    /// While pods are bound one after another, the newest word's specs are always on their way.
    #[test]
    fn of_words_that_follow_each_other_the_newest_whose_specs_were_seen_is_believed() {
        let (mut order, now) = (Order::default(), Instant::now());
        order.shown(at(1), now);
        for revision in 2..6 {
            order.comes(word(revision), now);
        }
        order.shown(at(4), now);
        assert_eq!(order.due(now), Some(word(4)));
        assert_eq!(order.due(now), None);
        for revision in 0..=WORDS as u64 {
            order.comes(word(10 + revision), now);
        }
        order.shown(at(10), now);
        assert_eq!(order.due(now), None, "the oldest gave way");
        order.shown(at(11), now);
        assert_eq!(order.due(now), Some(word(11)));
    }

    #[test]
    fn a_former_leaders_word_takes_no_ones_place() {
        let (mut order, now) = (Order::default(), Instant::now());
        order.shown(at(1), now);
        let newer = Demand { epoch: 2, ..word(2) };
        order.comes(newer.clone(), now);
        order.comes(word(3), now);
        order.shown(at(3), now);
        assert_eq!(order.due(now), Some(newer));
    }

    #[test]
    fn specs_are_ahead_until_the_word_comes_or_it_is_too_late_for_it() {
        let (mut order, now) = (Order::default(), Instant::now());
        order.shown(at(4), now);
        assert!(!order.is_ahead_of(&word(4), now));
        assert!(order.is_ahead_of(&word(3), now));
        assert!(order.is_ahead_of(&Demand { revisions: Some(Revisions::new()), ..word(1) }, now));
        order.shown(at(4), now + PATIENCE);
        assert!(!order.is_ahead_of(&word(3), now + PATIENCE + Duration::from_millis(1)), "nothing new came");
    }
}
