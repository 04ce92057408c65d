//! Runs what is due by time alone: it ends reservations, Bindings without an answer and the wait after a leader that
//! vanished, and finds agents that are late with an answer.
//!
//! It is a task of its own, because the others await the API server: a PATCH that another's webhook delays takes 5 s,
//! and there may be hundreds.

use crate::term::Term;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::time::{MissedTickBehavior, interval};

/// How often the index checks what is due.
pub const INTERVAL: Duration = Duration::from_secs(1);

/// An agent answers within this time, unless its disk or its node is overloaded.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

pub async fn run(term: Arc<Term>) {
    let mut timer = interval(INTERVAL);
    timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = term.stop.cancelled() => return,
            _ = timer.tick() => {}
        }
        close_unresponsive(&term, ANSWER_TIMEOUT);
        term.with(|index| index.tick(Instant::now()));
        // Assumed places expire by time too, and leave room.
        term.room.notify_one();
    }
}

/// Closes nodes whose agents are late with an answer, until they have answered.
pub(crate) fn close_unresponsive(term: &Term, within: Duration) {
    let unresponsive = term.cluster.agents.unresponsive(within);
    for (node, is_unresponsive) in term.with(|index| index.nodes().agents().set_unresponsive(&unresponsive)) {
        if is_unresponsive {
            tracing::warn!(%node, ?within, "agent is late with an answer, the node counts as full until it answers");
        } else {
            tracing::info!(%node, "agent has answered, the node takes pods again");
        }
    }
}
