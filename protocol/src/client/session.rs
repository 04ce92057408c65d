//! One connection to a replica of the extender: sends the Hello, reports changes and receives orders until it ends.

use super::outgoing::{Outgoing, Unanswered};
use super::{Agent, Network};
use crate::convert::{self, Role, Unreadable};
use crate::limits::{PING_INTERVAL, ROLE_TIMEOUT, TO_AGENT};
use crate::socket::{self, Broken, Incoming};
use crate::wire::to_agent::Message;
use crate::wire::{self, ToAgent};
use futures::{StreamExt, stream};
use http::Response;
use kerf_core::ledger::{Answer, Order, Rejection};
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::time::{Instant, interval, timeout, timeout_at};
use tokio_stream::wrappers::IntervalStream;
use tokio_tungstenite::tungstenite;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The time that the extender has to close a connection after the agent has hung up.
const HANG_UP_TIMEOUT: Duration = Duration::from_secs(1);

/// Why a connection ended, from the agent's view.
#[derive(Debug, Error)]
pub enum End {
    #[error("failed to connect: {0}")]
    Unreachable(io::Error),
    #[error("failed to read the token: {0}")]
    NoToken(io::Error),
    #[error("extender answered {}: {}", .0.status(), text(.0))]
    NotAccepted(Box<Response<Option<Vec<u8>>>>),
    #[error("failed to open the connection: {0}")]
    NotOpened(tungstenite::Error),
    #[error(transparent)]
    Failed(#[from] Broken),
    #[error("extender closed the connection")]
    Closed,
    #[error("extender sent no role within {} s", ROLE_TIMEOUT.as_secs())]
    NoRole,
    #[error("extender broke the protocol: {0}")]
    Refused(#[from] Unreadable),
    /// The agent hung up on a leader of an older epoch.
    #[error("extender sent an order of an epoch that is over")]
    OldEpoch,
}

impl From<tungstenite::Error> for End {
    fn from(error: tungstenite::Error) -> Self {
        match error {
            tungstenite::Error::Http(response) => Self::NotAccepted(response),
            error => Self::NotOpened(error),
        }
    }
}

fn text(response: &Response<Option<Vec<u8>>>) -> String {
    String::from_utf8_lossy(response.body().as_deref().unwrap_or_default()).into_owned()
}

pub(super) async fn run<A: Agent, N: Network>(agent: &A, network: &N, extender: SocketAddr) -> End {
    match connected(agent, network, extender).await {
        Ok(end) | Err(end) => end,
    }
}

async fn connected<A: Agent, N: Network>(agent: &A, network: &N, extender: SocketAddr) -> Result<End, End> {
    let token = network.token().await.map_err(End::NoToken)?;
    let late = |_| End::Unreachable(io::ErrorKind::TimedOut.into());
    let stream = timeout(CONNECT_TIMEOUT, network.connect(extender)).await.map_err(late)?;
    // One deadline covers the response and the Role, because the replica reviews the token between them.
    let no_role = Instant::now() + ROLE_TIMEOUT;
    let opening = socket::open(stream.map_err(End::Unreachable)?, token.as_deref(), TO_AGENT);
    let socket = timeout_at(no_role, opening).await.map_err(|_| End::NoRole)??;
    let (sink, mut incoming) = socket::split::<_, ToAgent>(socket);

    let hello = agent.hello();
    let window = Arc::new(Semaphore::new(usize::try_from(hello.window).unwrap_or(usize::MAX)));
    // The channel needs no limit, because the window limits the orders in it.
    let (unanswered, answers) = mpsc::unbounded_channel();
    let (outgoing, hung_up) = Outgoing::new(hello, agent.state(), answers);
    let reading = async {
        let first = timeout_at(no_role, incoming.message()).await.map_err(|_| End::NoRole)??;
        let Some(Message::Role(role)) = first.ok_or(End::Closed)?.message else {
            return Err(Unreadable::broken("order", "came before role").into());
        };
        let role = convert::read_role(role)?;
        agent.role(extender, Some(&role));
        let mut reader = Reader { agent, extender, role, number: 0, window, unanswered };
        Ok(reader.read(&mut incoming, hung_up).await)
    };
    let fragments = outgoing.stream().flat_map(|message| stream::iter(socket::fragments(&message)));
    let messages = fragments.map(Some).chain(stream::iter([None]));
    let pings = IntervalStream::new(interval(PING_INTERVAL)).map(|_| Some(socket::ping()));
    // The end of the messages closes the connection.
    let frames = tokio_stream::StreamExt::map_while(stream::select(messages, pings), |frame| frame);
    socket::beside(pin!(reading), socket::send_all(frames, sink)).await
}

struct Reader<'a, A> {
    agent: &'a A,
    extender: SocketAddr,
    role: Role,
    number: u64,
    /// One permit for each order that may be unanswered.
    window: Arc<Semaphore>,
    unanswered: mpsc::UnboundedSender<Unanswered>,
}

impl<A: Agent> Reader<'_, A> {
    async fn read<S>(&mut self, incoming: &mut Incoming<S, ToAgent>, hung_up: oneshot::Receiver<End>) -> End
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        tokio::select! {
            biased;
            end = self.read_all(incoming) => end,
            end = hung_up => {
                // The extender gets a moment to read the last answer.
                let _ = timeout(HANG_UP_TIMEOUT, incoming.ended()).await;
                end.unwrap_or(End::Closed)
            }
        }
    }

    async fn read_all<S>(&mut self, incoming: &mut Incoming<S, ToAgent>) -> End
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        loop {
            let taken = match incoming.message().await {
                Ok(Some(message)) => self.take(message),
                Ok(None) => return End::Closed,
                Err(broken) => return broken.into(),
            };
            if let Err(refusal) = taken {
                return End::Refused(refusal);
            }
        }
    }

    fn take(&mut self, message: ToAgent) -> Result<(), Unreadable> {
        match message.message {
            Some(Message::Role(role)) => {
                self.role = convert::read_role(role)?;
                self.agent.role(self.extender, Some(&self.role));
                Ok(())
            }
            Some(Message::Order(order)) => self.take_order(order),
            // A message of a newer version, which needs no answer.
            None => Ok(()),
        }
    }

    fn take_order(&mut self, order: wire::Order) -> Result<(), Unreadable> {
        self.number += 1;
        if order.number != self.number {
            let gap = format!("is {}; {} was expected", order.number, self.number);
            return Err(Unreadable::broken("order.number", gap));
        }
        let over = |_| Unreadable::broken("order", "came while as many as hello.window were unanswered");
        let permit = Arc::clone(&self.window).try_acquire_owned().map_err(over)?;
        let answer = match convert::read_order(order).map_err(|refusal| refusal.within("order")) {
            // An order over a limit ends the connection. An order of another version is only refused, so that other
            // orders go on.
            Err(refusal) if refusal.is_over_limit() => return Err(refusal),
            Err(refusal) => answered(Rejection::Unreadable(refusal.to_string())),
            // Other orders do not reach the agent, because the replica's own role must agree with the order's epoch.
            Ok(order) if self.is_of_leader(&order) => self.agent.order(order),
            Ok(_) => answered(Rejection::OldEpoch),
        };
        // Without a receiver the connection has ended already.
        let _ = self.unanswered.send(Unanswered { number: self.number, answer, permit });
        Ok(())
    }

    /// Whether the replica has reported that it leads in the order's epoch.
    fn is_of_leader(&self, order: &Order) -> bool {
        self.role.leads && self.role.epoch == order.epoch
    }
}

fn answered(rejection: Rejection) -> oneshot::Receiver<Answer> {
    let (answer, receiver) = oneshot::channel();
    // The receiver exists, so the send cannot fail.
    let _ = answer.send(Err(rejection));
    receiver
}
