//! What is sent on a connection. Nothing is kept in a queue: the next message is made when the connection takes one.

use super::session::End;
use crate::convert::{self, Hello};
use crate::wire::{FromAgent, from_agent::Message};
use futures::{FutureExt, Stream, stream};
use kerf_core::ledger::{Answer, NodeState, Rejection, difference};
use std::collections::VecDeque;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot, watch};

/// An order that is unanswered.
pub(super) struct Unanswered {
    pub number: u64,
    pub answer: oneshot::Receiver<Answer>,
    /// Of the window.
    pub permit: OwnedSemaphorePermit,
}

/// An answer that was not sent yet.
struct Answered {
    number: u64,
    answer: Answer,
    /// Of the window.
    _permit: OwnedSemaphorePermit,
}

/// The messages of a connection.
pub(super) struct Outgoing {
    /// Until it is sent.
    hello: Option<Hello>,
    state: watch::Receiver<Arc<NodeState>>,
    /// What the extender has, by what was sent.
    sent: Arc<NodeState>,
    /// The number of the last change.
    number: u64,
    unanswered: mpsc::UnboundedReceiver<Unanswered>,
    /// The order whose answer is next.
    next: Option<Unanswered>,
    /// Answers whose changes were sent, and which are to be sent now.
    answers: VecDeque<Answered>,
    /// Absent once the agent has hung up.
    hang_up: Option<oneshot::Sender<End>>,
}

impl Outgoing {
    /// What is sent after `hello`, and why the agent hangs up if it does.
    pub fn new(
        hello: Hello,
        state: watch::Receiver<Arc<NodeState>>,
        unanswered: mpsc::UnboundedReceiver<Unanswered>,
    ) -> (Self, oneshot::Receiver<End>) {
        let (hang_up, hung_up) = oneshot::channel();
        let outgoing = Self {
            hello: Some(hello),
            state,
            sent: Arc::default(),
            number: 0,
            unanswered,
            next: None,
            answers: VecDeque::new(),
            hang_up: Some(hang_up),
        };
        (outgoing, hung_up)
    }

    /// The messages, each made when it is asked for.
    pub fn stream(self) -> impl Stream<Item = FromAgent> + Send + 'static {
        stream::unfold(self, |mut outgoing| async {
            let message = outgoing.message().await?;
            Some((FromAgent { message: Some(message) }, outgoing))
        })
    }

    async fn message(&mut self) -> Option<Message> {
        if let Some(hello) = self.hello.take() {
            let state = self.state.borrow_and_update().clone();
            let whole = difference(&self.sent, &state);
            self.sent = state;
            return Some(Message::Hello(convert::write_hello(hello, &whole)));
        }
        self.hang_up.as_ref()?;
        loop {
            if let Some(answered) = self.answers.pop_front() {
                return Some(self.written(&answered));
            }
            tokio::select! {
                changed = self.state.changed() => changed.ok()?,
                answer = answer(&mut self.next, &mut self.unanswered) => self.answers.push_back(answer?),
            }
            while let Some(more) = answer(&mut self.next, &mut self.unanswered).now_or_never() {
                self.answers.push_back(more?);
            }
            // Read after the answers: it has all that they have changed.
            let state = self.state.borrow_and_update().clone();
            let change = difference(&self.sent, &state);
            self.sent = state;
            if !change.is_empty() {
                self.number += 1;
                return Some(Message::Change(convert::write_change(self.number, &change)));
            }
        }
    }

    fn written(&mut self, answered: &Answered) -> Message {
        if matches!(answered.answer, Err(Rejection::OldEpoch)) {
            // If nobody reads it, the connection has ended already.
            let _ = self.hang_up.take().map(|hang_up| hang_up.send(End::OldEpoch));
        }
        Message::Answer(convert::write_answer(answered.number, &answered.answer))
    }
}

/// The next answer. `None` if none will come: the connection has ended, or the agent ends.
async fn answer(
    next: &mut Option<Unanswered>,
    unanswered: &mut mpsc::UnboundedReceiver<Unanswered>,
) -> Option<Answered> {
    let order = match next {
        Some(order) => order,
        None => next.insert(unanswered.recv().await?),
    };
    let answer = (&mut order.answer).await.ok()?;
    let Unanswered { number, permit, .. } = next.take()?;
    Some(Answered { number, answer, _permit: permit })
}
