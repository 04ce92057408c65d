//! What is due by time alone: the ends of reservations, of Bindings without an answer, and of the wait after a leader that vanished.
//!
//! A task of its own, for the others await the API server: a PATCH that a webhook of others delays takes 5 s, and there may be hundreds.

use crate::term::Term;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::time::{MissedTickBehavior, interval};

/// How often the index is asked what is due.
pub const INTERVAL: Duration = Duration::from_secs(1);

/// Runs until the term ends.
pub async fn run(term: Arc<Term>) {
    let mut timer = interval(INTERVAL);
    timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = term.stop.cancelled() => return,
            _ = timer.tick() => {}
        }
        term.with(|index| index.tick(Instant::now()));
        // Probable places end by time too, and leave room.
        term.room.notify_one();
    }
}
