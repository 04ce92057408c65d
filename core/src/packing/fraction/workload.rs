//! The usual requests, learned from those that came.

use super::request::Request;
use std::collections::BTreeMap;

/// The market is computed again after this many requests, then each time their number has doubled.
const FIRST_LESSON: u32 = 16;

/// From this number on, all counts are halved at each lesson, because the usual requests may change, and rare ones must
/// be forgotten.
const MEMORY: u32 = 32_768;

/// The number of requests of each kind so far.
#[derive(Debug, Clone)]
pub struct Workload {
    seen: BTreeMap<Request, Seen>,
    count: u32,
    next_lesson: Option<u32>,
}

/// The count and memory of requests that are alike.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) count: u32,
    /// The MiB of all of them.
    pub(super) memory: u64,
}

impl Default for Workload {
    fn default() -> Self {
        Self { seen: BTreeMap::new(), count: 0, next_lesson: Some(FIRST_LESSON) }
    }
}

impl Workload {
    /// A workload that is known beforehand and learns nothing more.
    #[must_use]
    pub fn known<'a>(requests: impl IntoIterator<Item = &'a Request>) -> Self {
        let mut workload = Self { next_lesson: None, ..Self::default() };
        requests.into_iter().for_each(|request| workload.count(request));
        workload
    }

    /// Counts one more pod, whether it finds a place or not. `true` if the market should be computed again.
    pub fn learn(&mut self, request: &Request) -> bool {
        let Some(next) = self.next_lesson else { return false };
        self.count(request);
        if self.count < next {
            return false;
        }
        self.next_lesson = Some((2 * self.count).min(MEMORY));
        if self.count >= MEMORY {
            self.forget_half();
        }
        true
    }

    pub(super) fn is_learned(&self) -> bool {
        self.next_lesson.is_some()
    }

    pub(super) fn seen(&self) -> impl Iterator<Item = (&Request, Seen)> {
        self.seen.iter().map(|(request, seen)| (request, *seen))
    }

    fn count(&mut self, request: &Request) {
        let seen = self.seen.entry(request.kind()).or_default();
        seen.count = seen.count.saturating_add(1);
        seen.memory = seen.memory.saturating_add(request.memory.0);
        self.count = self.count.saturating_add(1);
    }

    fn forget_half(&mut self) {
        for seen in self.seen.values_mut() {
            *seen = Seen { count: seen.count / 2, memory: seen.memory / 2 };
        }
        self.seen.retain(|_, seen| seen.count > 0);
        self.count = self.seen.values().map(|seen| seen.count).sum();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packing::fraction::{CpuMilli, GpuDemand, ModelSet};
    use crate::units::MemoryMib;

    fn request(cpu: u32) -> Request {
        Request { cpu: CpuMilli(cpu), memory: MemoryMib(4), gpus: GpuDemand::None, models: ModelSet::ANY }
    }

    #[test]
    fn lessons_come_whenever_the_number_of_requests_has_doubled() {
        let mut workload = Workload::default();
        let lessons: Vec<u32> = (1..=100).filter(|_| workload.learn(&request(1))).collect();
        assert_eq!(lessons, [16, 32, 64]);
    }

    #[test]
    fn old_requests_fade_and_rare_ones_are_forgotten() {
        let mut workload = Workload::default();
        for cpu in [7, 8, 8] {
            workload.learn(&request(cpu));
        }
        (3..MEMORY).for_each(|_| _ = workload.learn(&request(1)));
        let seen: Vec<_> = workload.seen().map(|(request, seen)| (request.cpu.0, seen.count)).collect();
        assert_eq!(seen, [(1, MEMORY / 2 - 2), (8, 1)]);
        assert_eq!(workload.seen().map(|(_, seen)| seen.memory).max(), Some(u64::from(2 * MEMORY - 6)));
        assert_eq!((1..=MEMORY / 2 + 1).filter(|_| workload.learn(&request(1))).count(), 1);
    }

    #[test]
    fn nothing_is_learned_beyond_what_is_known() {
        let mut workload = Workload::known([&request(1), &request(2)]);
        assert!((0..100).all(|_| !workload.learn(&request(3))));
        assert_eq!(workload.seen().count(), 2);
    }
}
