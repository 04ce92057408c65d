//! Answers to a leader's orders that wait for the disk.
//!
//! A reservation is on the disk before its order is answered. Orders that arrive together, or while an earlier record is being
//! written, are answered after one write. Everything else of the ledger is written a little later: what is forgotten of it in a
//! restart is looked up.

use crate::node::{Node, Recalled, Reply};
use crate::recording::Recording;
use crate::standing::Standing;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use kerf_core::ledger::{Answer, Rejection, Saved};
use kerf_core::names::PodUid;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// How long a change of the ledger may be missing on the disk where no answer waits for it.
const WRITE_WITHIN: Duration = Duration::from_secs(5);
/// How long a write may take before the node says that its disk does not answer.
const LATE: Duration = Duration::from_secs(2);

/// The orders whose answers wait.
#[derive(Default)]
pub struct Unanswered {
    waiting: Vec<Waiting>,
    /// Answers that wait for nothing but the report of what they have changed, which goes before them.
    ready: Vec<(Answer, oneshot::Sender<Answer>)>,
    writing: Option<(Instant, BoxFuture<'static, Written>)>,
    /// Why the last write failed, if it did.
    failed: Option<String>,
    /// What this process has written of the ledger.
    on_disk: Saved,
    /// When the disk must have what has changed.
    write_at: Option<Instant>,
}

/// An order of which the reservation must be on the disk.
struct Waiting {
    uid: PodUid,
    answer: Answer,
    to: oneshot::Sender<Answer>,
}

/// A write that has ended.
pub struct Written {
    record: Recalled,
    waiting: Vec<Waiting>,
    result: Result<(), String>,
}

impl Unanswered {
    /// Takes what the node replies to an order.
    pub fn take(&mut self, Reply { answer, reserved }: Reply, to: oneshot::Sender<Answer>, node: &Node) {
        match reserved {
            Some(uid) if !node.is_reservation_in(&self.on_disk, &uid) => {
                self.waiting.push(Waiting { uid, answer, to });
            }
            _ => self.ready.push((answer, to)),
        }
    }

    /// Gives the answers that are ready, now that what they have changed is reported. Some may not be waited for any more.
    pub fn give(&mut self) {
        for (answer, to) in self.ready.drain(..) {
            drop(to.send(answer));
        }
    }

    /// Starts to write the record if that is due and no write is under way. Returns when it is due otherwise.
    pub fn write(&mut self, record: &Recalled, recording: &Recording, now: Instant) -> Option<Instant> {
        if let Some((since, _)) = &self.writing {
            return Some(*since + LATE).filter(|late| *late > now);
        }
        let is_behind = self.failed.is_some() || record.ledger != self.on_disk;
        let write_at = is_behind.then(|| *self.write_at.get_or_insert(now + WRITE_WITHIN));
        self.write_at = write_at;
        if self.waiting.is_empty() && write_at.is_none_or(|at| at > now) {
            return write_at;
        }
        let (waiting, record) = (std::mem::take(&mut self.waiting), record.clone());
        let saved = recording.save(record.clone());
        self.writing = Some((now, saved.map(|result| Written { record, waiting, result }).boxed()));
        Some(now + LATE)
    }

    /// Why the disk takes no reservation at present.
    #[must_use]
    pub fn trouble(&self, now: Instant) -> Option<String> {
        let late = self.writing.as_ref().filter(|(since, _)| now.saturating_duration_since(*since) >= LATE);
        let late = late.map(|_| format!("the disk of --state-dir has not answered for {} s", LATE.as_secs()));
        late.or_else(|| self.failed.clone())
    }

    /// Waits for the write that is under way; forever if there is none.
    pub async fn written(&mut self) -> Written {
        let Some((_, writing)) = &mut self.writing else { return std::future::pending().await };
        let written = writing.await;
        self.writing = None;
        written
    }

    /// Gives the answers that a write was for. After a failed one no pod has a reservation that the disk has not.
    pub fn answer(&mut self, written: Written, node: &mut Node, standing: &mut Standing, now: Instant) {
        let Written { record, mut waiting, result } = written;
        self.failed = result.clone().err();
        match result {
            Ok(()) => {
                standing.note_recorded(&record);
                self.on_disk = record.ledger;
                self.write_at = None;
                self.ready.extend(waiting.into_iter().map(|waiting| (waiting.answer, waiting.to)));
            }
            Err(error) => {
                waiting.append(&mut self.waiting);
                node.on_unrecorded_reservations(waiting.iter().map(|waiting| &waiting.uid), &error, now);
                self.write_at = Some(now + WRITE_WITHIN);
                let refused = waiting.into_iter().map(|w| (Err(Rejection::Disk(error.clone())), w.to));
                self.ready.extend(refused);
            }
        }
    }
}
