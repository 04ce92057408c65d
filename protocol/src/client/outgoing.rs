//! The messages that are sent on a connection. There is no queue: the next message is built when the connection can
//! take it, so that a slow connection gets fewer and larger changes.

use super::session::End;
use crate::convert::{self, Hello};
use crate::wire::{FromAgent, from_agent::Message};
use futures::{FutureExt, Stream, stream};
use kerf_core::ledger::{Answer, NodeState, Rejection, difference};
use std::collections::VecDeque;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot, watch};

pub(super) struct Unanswered {
    pub number: u64,
    pub answer: oneshot::Receiver<Answer>,
    /// The order's place in the window; dropping it frees the place.
    pub permit: OwnedSemaphorePermit,
}

struct Answered {
    number: u64,
    answer: Answer,
    _permit: OwnedSemaphorePermit,
}

pub(super) struct Outgoing {
    /// `None` once it is sent.
    hello: Option<Hello>,
    state: watch::Receiver<Arc<NodeState>>,
    /// The state that the extender has, by the messages so far.
    sent: Arc<NodeState>,
    number: u64,
    unanswered: mpsc::UnboundedReceiver<Unanswered>,
    next: Option<Unanswered>,
    /// Answers whose changes are sent, so that they can be sent now.
    answers: VecDeque<Answered>,
    /// `None` once the agent has hung up.
    hang_up: Option<oneshot::Sender<End>>,
}

impl Outgoing {
    pub fn new(
        hello: Hello,
        state: watch::Receiver<Arc<NodeState>>,
        unanswered: mpsc::UnboundedReceiver<Unanswered>,
    ) -> (Self, oneshot::Receiver<End>) {
        let (hang_up, end) = oneshot::channel();
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
        (outgoing, end)
    }

    /// The messages, each built when it is polled, so that it includes all changes until then.
    pub fn stream(self) -> impl Stream<Item = FromAgent> + Send + 'static {
        stream::unfold(self, |mut outgoing| async {
            let message = outgoing.message().await?;
            Some((FromAgent { message: Some(message) }, outgoing))
        })
    }

    async fn message(&mut self) -> Option<Message> {
        if let Some(hello) = self.hello.take() {
            let state = self.state.borrow_and_update().clone();
            // `sent` is still empty, so the difference is the whole state.
            let whole = difference(&self.sent, &state);
            self.sent = state;
            return Some(Message::Hello(convert::write_hello(hello, &whole)));
        }
        // After the answer that hangs up nothing else may be sent.
        self.hang_up.as_ref()?;
        loop {
            if let Some(answered) = self.answers.pop_front() {
                return Some(self.written(&answered));
            }
            tokio::select! {
                changed = self.state.changed() => changed.ok()?,
                answer = answer(&mut self.next, &mut self.unanswered) => self.answers.push_back(answer?),
            }
            // All answers that are ready share one change, so that a burst of orders needs one message for the state.
            while let Some(more) = answer(&mut self.next, &mut self.unanswered).now_or_never() {
                self.answers.push_back(more?);
            }
            // The state is read after the answers, so that it includes every change that they report.
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
            // Without a receiver the connection has ended already.
            let _ = self.hang_up.take().map(|hang_up| hang_up.send(End::OldEpoch));
        }
        Message::Answer(convert::write_answer(answered.number, &answered.answer))
    }
}

/// The next answer; `None` if there will be none, because the connection or the agent has ended. The order stays in
/// `next` while its answer is pending, because `select!` may drop this future.
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
