//! Limits how many Bindings are under way at once, to as many as the API server answers in time.
//!
//! An API server that is overloaded by many requests answers none of them in time, and the work for a request that
//! times out is lost. So the limit falls when an answer is late or says that there are too many requests, and rises
//! with each answer that is in time. A Binding that finds no room waits within its bind's time; after that the
//! scheduler tries the pod again.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;
use tokio::time::Instant;

/// The limit at the start, which is also the highest.
pub const LIMIT: u32 = 256;
/// The lowest limit: enough to notice that the API server answers again.
const LEAST: u32 = 8;

#[derive(Debug, Default)]
pub struct InFlight {
    state: Mutex<State>,
    room: Notify,
}

#[derive(Debug)]
struct State {
    limit: u32,
    open: u32,
    /// When the limit last fell.
    fell: Option<Instant>,
}

impl Default for State {
    fn default() -> Self {
        Self { limit: LIMIT, open: 0, fell: None }
    }
}

/// A permit for one Binding, which is given back when it is dropped.
#[derive(Debug)]
pub struct Leave {
    of: Arc<InFlight>,
    since: Instant,
}

impl InFlight {
    /// Waits until fewer Bindings are under way than the limit, and takes a permit.
    pub async fn enter(self: &Arc<Self>) -> Leave {
        loop {
            let room = self.room.notified();
            {
                let mut state = self.lock();
                if state.open < state.limit {
                    state.open += 1;
                    return Leave { of: Arc::clone(self), since: Instant::now() };
                }
            }
            room.await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No code panics while it holds this lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Leave {
    /// Adjusts the limit after a Binding's answer, which came in time or did not.
    pub fn answered(self, in_time: bool) {
        let mut state = self.of.lock();
        if in_time {
            state.limit = (state.limit + 1).min(LIMIT);
            // This wakes a second Binding, for the room that the limit gained. Dropping the permit wakes one for its
            // own place.
            self.of.room.notify_one();
        } else if state.fell.is_none_or(|fell| fell < self.since) {
            // The limit falls once per overload: answers to Bindings that were sent before the last fall are signs of
            // the same one.
            state.limit = (state.limit * 7 / 10).max(LEAST);
            state.fell = Some(Instant::now());
        }
    }
}

impl Drop for Leave {
    fn drop(&mut self) {
        self.of.lock().open -= 1;
        self.of.room.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt as _;
    use std::time::Duration;

    fn limit(of: &InFlight) -> u32 {
        of.lock().limit
    }

    async fn enter(of: &Arc<InFlight>, count: u32) -> Vec<Leave> {
        let mut leaves = Vec::new();
        for _ in 0..count {
            leaves.push(of.enter().await);
            tokio::time::advance(Duration::from_millis(1)).await;
        }
        leaves
    }

    #[tokio::test(start_paused = true)]
    async fn the_limit_falls_once_for_an_overload_and_rises_with_each_answer_in_time() {
        let of = Arc::new(InFlight::default());
        for expected in [179, 125, 87, 60, 42, 29, 20, 14, 9, 8, 8] {
            for leave in enter(&of, 8).await {
                leave.answered(false);
            }
            assert_eq!(limit(&of), expected);
            tokio::time::advance(Duration::from_millis(1)).await;
        }
        for leave in enter(&of, 8).await {
            leave.answered(true);
        }
        assert_eq!((limit(&of), of.lock().open), (16, 0));
        for _ in 0..LIMIT {
            of.enter().await.answered(true);
        }
        assert_eq!(limit(&of), LIMIT);
    }

    #[tokio::test(start_paused = true)]
    async fn bindings_enter_in_order_and_a_dropped_one_takes_no_place() {
        let of = Arc::new(InFlight::default());
        let mut leaves = enter(&of, LIMIT).await;
        let [mut first, mut second, mut third] = [(); 3].map(|()| Box::pin(async { of.enter().await }));
        assert!(
            [&mut first, &mut second, &mut third].into_iter().all(|waits| waits.now_or_never().is_none())
        );
        drop(first);
        drop(leaves.pop());
        let sent = second.as_mut().now_or_never();
        assert!(sent.is_some());
        assert!(third.as_mut().now_or_never().is_none());
        drop(sent);
        assert!(third.now_or_never().is_some());
    }
}
