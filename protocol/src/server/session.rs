//! The task of one connection: reads the Hello, then changes and answers, until the connection ends.

use super::connection::{Connection, Frames};
use super::registry::Claim;
use super::{Agents, Caller, End, Server};
use crate::convert::{self, Hello, Unreadable};
use crate::limits::HELLO_TIMEOUT;
use crate::random;
use crate::socket::{self, Incoming};
use crate::wire::{self, FromAgent, from_agent::Message};
use futures::FutureExt;
use futures::channel::mpsc;
use kerf_core::ledger::Change;
use std::pin::pin;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_tungstenite::WebSocketStream;

/// The least age at which a connection ends, so that it does not outlive its agent's token for long.
const LEAST_AGE: Duration = Duration::from_mins(50);
/// Up to this long is added at random, so that agents that connected together do not return together.
const AGE_JITTER: Duration = Duration::from_mins(20);
/// The interval at which a connection that is too old checks for unanswered orders.
const AGE_INTERVAL: Duration = Duration::from_secs(1);

/// The time in which an agent can read why its connection ends.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Runs a connection to its end. `place` is one of the places for connections without a Hello.
pub(super) async fn run<A: Agents, S>(
    server: Server<A>,
    caller: Caller,
    socket: WebSocketStream<S>,
    place: OwnedSemaphorePermit,
) where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let (sink, incoming) = socket::split(socket);
    let (frames, outgoing) = mpsc::unbounded();
    let mut session = Session { server, caller, incoming, frames };
    let mut sending = pin!(socket::send_all(outgoing, sink).fuse());
    let end = socket::beside(pin!(session.run(place)), &mut sending).await;
    let Session { mut incoming, frames, .. } = session;
    // The result is ignored, because the agent may be gone already.
    let _ = frames.unbounded_send(end.frame());
    drop(frames);
    // What is still unread at the end of a connection would destroy the last frame on its way.
    let closed = async { tokio::join!(sending, incoming.ended()) };
    let _ = timeout(CLOSE_TIMEOUT, closed).await;
}

struct Session<A, S> {
    server: Server<A>,
    caller: Caller,
    incoming: Incoming<S, FromAgent>,
    frames: Frames,
}

impl<A: Agents, S: AsyncRead + AsyncWrite + Unpin> Session<A, S> {
    async fn run(&mut self, place: OwnedSemaphorePermit) -> End {
        let greeted = self.greeted().await;
        // A connection that has said hello must not keep others from it.
        drop(place);
        match greeted {
            Ok((hello, state)) => self.serve(&hello, state).await,
            Err(end) => {
                tracing::warn!(caller = ?self.caller, %end, "refused an agent");
                end
            }
        }
    }

    /// Reads the first message, which must be the Hello of the authenticated node.
    async fn greeted(&mut self) -> Result<(Hello, Result<Change, Unreadable>), End> {
        let first = tokio::select! {
            () = self.server.stop.cancelled() => return Err(End::Stopping),
            first = timeout(HELLO_TIMEOUT, self.incoming.message()) => first.map_err(|_| End::NoHello)?,
        };
        let message = first?.ok_or(End::Closed)?.message;
        let Some(Message::Hello(hello)) = message else {
            return Err(Unreadable::broken("hello", "is not the first message").into());
        };
        let (hello, state) = convert::read_hello(hello)?;
        match &self.caller {
            Caller::Node(node) if *node != hello.node => {
                Err(End::OtherNode { hello: hello.node, caller: node.clone() })
            }
            Caller::Node(_) | Caller::Anyone => Ok((hello, limited(state)?)),
        }
    }

    async fn serve(&mut self, hello: &Hello, state: Result<Change, Unreadable>) -> End {
        let claim = self.server.registry.claim(&hello.node);
        let end = tokio::select! {
            biased;
            // This is checked first, so that a replaced connection does not get its turn any more.
            () = claim.replaced.cancelled() => End::Replaced,
            _turn = claim.turn.lock() => self.serve_in_turn(hello, state, &claim).await,
        };
        self.server.registry.forget(&hello.node, claim.id);
        end
    }

    async fn serve_in_turn(
        &mut self,
        hello: &Hello,
        state: Result<Change, Unreadable>,
        claim: &Claim,
    ) -> End {
        let connection = Connection::new(claim.id, hello.node.clone(), hello.window, self.frames.clone());
        self.server.registry.open(&connection);
        let mut reader = Reader { connection, number: 0, is_unreadable: state.is_err() };
        self.server.agents.connected(&reader.connection, hello, state);
        let end = self.read(&mut reader, claim).await;
        reader.connection.close();
        self.server.agents.disconnected(&reader.connection, &end);
        end
    }

    async fn read(&mut self, reader: &mut Reader, claim: &Claim) -> End {
        let mut too_old = Instant::now() + LEAST_AGE + random::up_to(AGE_JITTER);
        loop {
            let message = tokio::select! {
                biased;
                () = claim.replaced.cancelled() => return End::Replaced,
                () = self.server.stop.cancelled() => return End::Stopping,
                () = sleep_until(too_old) => {
                    if reader.connection.close_if_answered() {
                        return End::Aged;
                    }
                    too_old += AGE_INTERVAL;
                    continue;
                }
                message = self.incoming.message() => message,
            };
            match message {
                Ok(Some(message)) => {
                    if let Err(refusal) = reader.take(message, &*self.server.agents) {
                        return End::Refused(refusal);
                    }
                }
                Ok(None) => return End::Closed,
                Err(broken) => return broken.into(),
            }
        }
    }
}

struct Reader {
    connection: Connection,
    number: u64,
    is_unreadable: bool,
}

impl Reader {
    fn take(&mut self, message: FromAgent, agents: &impl Agents) -> Result<(), Unreadable> {
        match message.message {
            Some(Message::Hello(_)) => Err(Unreadable::broken("hello", "came a second time")),
            Some(Message::Change(change)) => self.take_change(change, agents),
            Some(Message::Answer(answer)) => {
                let (number, answer) = convert::read_answer(answer)?;
                let unknown =
                    || Unreadable::broken("answer.number", format!("is {number}, of no unanswered order"));
                self.connection.answered(number, answer).then_some(()).ok_or_else(unknown)
            }
            // A message of a newer version, which needs no answer.
            None => Ok(()),
        }
    }

    fn take_change(&mut self, change: wire::Change, agents: &impl Agents) -> Result<(), Unreadable> {
        self.number += 1;
        if change.number != self.number {
            let gap = format!("is {}; {} was expected", change.number, self.number);
            return Err(Unreadable::broken("change.number", gap));
        }
        let change = limited(convert::read_change(change).map_err(|refusal| refusal.within("change")))?;
        // A copy that lacks a part cannot be updated, so later changes are dropped.
        if !self.is_unreadable {
            self.is_unreadable = change.is_err();
            return agents.changed(&self.connection, change);
        }
        Ok(())
    }
}

/// A state that exceeds a limit ends the connection. A state with values of another version does not, because its agent
/// may only be newer.
fn limited(change: Result<Change, Unreadable>) -> Result<Result<Change, Unreadable>, Unreadable> {
    match change {
        Err(refusal) if refusal.is_over_limit() => Err(refusal),
        change => Ok(change),
    }
}
