//! Holds answers to a leader's orders until the disk has the reservations that they confirm.
//!
//! A reservation is on the disk before its order is answered. Orders that arrive together, or during an earlier write,
//! are answered after one write. Every other change of the ledger is written a little later, because a restart can look
//! up what it has lost.

use crate::applied_settings::AppliedSettings;
use crate::checkpoint_writer::CheckpointWriter;
use crate::node::{Node, Reply, Restored};
use futures::FutureExt as _;
use futures::future::BoxFuture;
use kerf_core::ledger::{Answer, Rejection, Saved};
use kerf_core::names::PodUid;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// How long the disk may lack a change of the ledger for which no answer waits.
const WRITE_DELAY: Duration = Duration::from_secs(5);
/// How long a write may take before the node reports its disk as unresponsive.
const SLOW_WRITE_LIMIT: Duration = Duration::from_secs(2);

#[derive(Default)]
pub struct Unanswered {
    waiting: Vec<Waiting>,
    /// Answers that are due as soon as the change they made is reported, which goes out first.
    ready: Vec<(Answer, oneshot::Sender<Answer>)>,
    writing: Option<(Instant, BoxFuture<'static, Written>)>,
    /// Why the last write failed; `None` after a success.
    failed: Option<String>,
    /// What this process has written of the ledger.
    on_disk: Saved,
    /// When the disk must have the last change.
    write_at: Option<Instant>,
}

/// An order whose reservation must first be on the disk.
struct Waiting {
    uid: PodUid,
    answer: Answer,
    to: oneshot::Sender<Answer>,
}

pub struct Written {
    record: Restored,
    waiting: Vec<Waiting>,
    result: Result<(), String>,
}

impl Unanswered {
    /// Takes the node's reply to an order.
    pub fn take(&mut self, Reply { answer, reserved }: Reply, to: oneshot::Sender<Answer>, node: &Node) {
        match reserved {
            Some(uid) if !node.is_reservation_in(&self.on_disk, &uid) => {
                self.waiting.push(Waiting { uid, answer, to });
            }
            _ => self.ready.push((answer, to)),
        }
    }

    /// Sends the answers that are ready, now that their changes are reported. A receiver may be gone by now.
    pub fn give(&mut self) {
        for (answer, to) in self.ready.drain(..) {
            drop(to.send(answer));
        }
    }

    /// Starts to write the checkpoint if that is due and no write is under way. Otherwise returns when it is due.
    pub fn write(
        &mut self,
        record: &Restored,
        recording: &CheckpointWriter,
        now: Instant,
    ) -> Option<Instant> {
        if let Some((since, _)) = &self.writing {
            return Some(*since + SLOW_WRITE_LIMIT).filter(|late| *late > now);
        }
        // After a failed write the disk's content is unknown, so write again even without a change.
        let is_behind = self.failed.is_some() || record.ledger != self.on_disk;
        let write_at = is_behind.then(|| *self.write_at.get_or_insert(now + WRITE_DELAY));
        self.write_at = write_at;
        // Without an order that waits, changes are gathered into one write.
        if self.waiting.is_empty() && write_at.is_none_or(|at| at > now) {
            return write_at;
        }
        let (waiting, record) = (std::mem::take(&mut self.waiting), record.clone());
        let saved = recording.save(record.clone());
        self.writing = Some((now, saved.map(|result| Written { record, waiting, result }).boxed()));
        Some(now + SLOW_WRITE_LIMIT)
    }

    /// Why the disk accepts no reservation now; `None` if it does.
    #[must_use]
    pub fn trouble(&self, now: Instant) -> Option<String> {
        let late = self
            .writing
            .as_ref()
            .filter(|(since, _)| now.saturating_duration_since(*since) >= SLOW_WRITE_LIMIT);
        let late = late.map(|_| {
            format!("the disk of --state-dir has not answered for {} s", SLOW_WRITE_LIMIT.as_secs())
        });
        late.or_else(|| self.failed.clone())
    }

    /// Waits for the write that is under way; forever if there is none.
    pub async fn written(&mut self) -> Written {
        let Some((_, writing)) = &mut self.writing else { return std::future::pending().await };
        let written = writing.await;
        self.writing = None;
        written
    }

    /// Sends the answers that a write was for. After a failed write, pods lose reservations that the disk does not
    /// have.
    pub fn answer(&mut self, written: Written, node: &mut Node, applied: &mut AppliedSettings, now: Instant) {
        let Written { record, mut waiting, result } = written;
        self.failed = result.clone().err();
        match result {
            Ok(()) => {
                applied.set_recorded(&record);
                self.on_disk = record.ledger;
                self.write_at = None;
                self.ready.extend(waiting.into_iter().map(|waiting| (waiting.answer, waiting.to)));
            }
            Err(error) => {
                waiting.append(&mut self.waiting);
                node.on_unrecorded_reservations(waiting.iter().map(|waiting| &waiting.uid), &error, now);
                self.write_at = Some(now + WRITE_DELAY);
                let refused = waiting.into_iter().map(|w| (Err(Rejection::Disk(error.clone())), w.to));
                self.ready.extend(refused);
            }
        }
    }
}
