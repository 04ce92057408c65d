//! One connection to a replica of the extender: sends the Hello, reports changes and receives orders until it ends.

use super::outgoing::{Outgoing, Unanswered};
use super::{Agent, Network};
use crate::convert::{self, Role, Unreadable};
use crate::limits::{PING_INTERVAL, ROLE_TIMEOUT, TO_AGENT};
use crate::wire::ledger_client::LedgerClient;
use crate::wire::to_agent::Message;
use crate::wire::{self, FromAgent, ToAgent};
use hyper::Uri;
use hyper::client::conn::http2::{self, SendRequest};
use hyper::rt::Executor;
use hyper_util::rt::{TokioIo, TokioTimer};
use kerf_core::ledger::{Answer, Order, Rejection};
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tonic::body::Body;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::{IntoStreamingRequest, Request, Status, Streaming};

/// The timeout for opening a connection, including TLS.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The time that the extender has to close a connection after the agent has hung up.
const HANG_UP_TIMEOUT: Duration = Duration::from_secs(1);

/// Why a connection ended, from the agent's view.
#[derive(Debug, Error)]
pub enum End {
    #[error("failed to connect: {0}")]
    Unreachable(io::Error),
    #[error("failed to open the connection: {0}")]
    NoHttp2(#[from] hyper::Error),
    /// The token cannot be read, or is no valid header.
    #[error("failed to read the token: {0}")]
    NoToken(io::Error),
    /// The extender refused the call, or the connection broke.
    #[error("{}: {}", .0.code(), .0.message())]
    Failed(Status),
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

/// Runs the connection to its end.
pub(super) async fn run<A: Agent, N: Network>(agent: &A, network: &N, extender: SocketAddr) -> End {
    match connected(agent, network, extender).await {
        Ok(end) | Err(end) => end,
    }
}

async fn connected<A: Agent, N: Network>(agent: &A, network: &N, extender: SocketAddr) -> Result<End, End> {
    let bearer = bearer(network).await?;
    // The guard ends the connection's tasks with this function, even if it returns early.
    let ended = CancellationToken::new();
    let _end = ended.clone().drop_guard();
    let dialled = async {
        let stream = network.connect(extender).await.map_err(End::Unreachable)?;
        Ok::<_, End>(open(stream, ended).await?)
    };
    let late = |_| End::Unreachable(io::ErrorKind::TimedOut.into());
    let requests = timeout(CONNECT_TIMEOUT, dialled).await.map_err(late)??;
    greet(agent, requests, bearer, extender).await
}

/// The token as metadata of the call.
async fn bearer(network: &impl Network) -> Result<Option<MetadataValue<Ascii>>, End> {
    let Some(token) = network.token().await.map_err(End::NoToken)? else { return Ok(None) };
    let bearer: Result<MetadataValue<Ascii>, _> = format!("Bearer {token}").parse();
    bearer.map(Some).map_err(|_| End::NoToken(io::ErrorKind::InvalidData.into()))
}

/// Speaks HTTP/2 on a stream until `ended`.
pub(crate) async fn open<S>(stream: S, ended: CancellationToken) -> hyper::Result<SendRequest<Body>>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let tasks = Tasks(ended);
    let (requests, connection) = http2::Builder::new(tasks.clone())
        .timer(TokioTimer::new())
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_INTERVAL)
        .keep_alive_while_idle(true)
        .handshake(TokioIo::new(stream))
        .await?;
    // The end of the connection shows in its call, so the task is not awaited.
    tasks.execute(connection);
    Ok(requests)
}

/// The tasks of a connection. By itself a connection lives until its calls end, which is never if the extender does not
/// read. So they are cancelled by a token.
#[derive(Clone)]
struct Tasks(CancellationToken);

impl<F> Executor<F> for Tasks
where
    F: Future<Output: Send + 'static> + Send + 'static,
{
    fn execute(&self, task: F) {
        tokio::spawn(self.0.clone().run_until_cancelled_owned(task));
    }
}

/// Opens the call that carries the messages in both directions.
pub(crate) async fn call(
    mut requests: SendRequest<Body>,
    request: impl IntoStreamingRequest<Message = FromAgent>,
) -> Result<Streaming<ToAgent>, Status> {
    let service = tower::service_fn(move |request| requests.send_request(request));
    let mut client = LedgerClient::with_origin(service, Uri::from_static("http://extender"))
        .max_decoding_message_size(TO_AGENT);
    Ok(client.connect(request).await?.into_inner())
}

async fn greet<A: Agent>(
    agent: &A,
    requests: SendRequest<Body>,
    bearer: Option<MetadataValue<Ascii>>,
    extender: SocketAddr,
) -> Result<End, End> {
    let hello = agent.hello();
    let window = Arc::new(Semaphore::new(usize::try_from(hello.window).unwrap_or(usize::MAX)));
    // The channel needs no limit, because the window limits the orders in it.
    let (unanswered, answers) = mpsc::unbounded_channel();
    let (outgoing, hung_up) = Outgoing::new(hello, agent.state(), answers);
    let mut request = Request::new(outgoing.stream());
    if let Some(bearer) = bearer {
        request.metadata_mut().insert("authorization", bearer);
    }
    let greeted = async {
        let mut incoming = call(requests, request).await.map_err(End::Failed)?;
        let first = incoming.message().await.map_err(End::Failed)?.ok_or(End::Closed)?;
        Ok::<_, End>((incoming, first))
    };
    let (incoming, first) = timeout(ROLE_TIMEOUT, greeted).await.map_err(|_| End::NoRole)??;
    let Some(Message::Role(role)) = first.message else {
        return Err(Unreadable::broken("order", "came before role").into());
    };
    let role = convert::read_role(role)?;
    agent.role(extender, Some(&role));
    let mut reader = Reader { agent, extender, role, number: 0, window, unanswered };
    Ok(reader.read(incoming, hung_up).await)
}

/// The state of a connection's receiving side.
struct Reader<'a, A> {
    agent: &'a A,
    extender: SocketAddr,
    role: Role,
    /// The number of the last order.
    number: u64,
    /// One permit for each order that may be unanswered.
    window: Arc<Semaphore>,
    unanswered: mpsc::UnboundedSender<Unanswered>,
}

impl<A: Agent> Reader<'_, A> {
    async fn read(&mut self, mut incoming: Streaming<ToAgent>, hung_up: oneshot::Receiver<End>) -> End {
        tokio::select! {
            biased;
            end = self.read_all(&mut incoming) => end,
            end = hung_up => {
                // The extender gets a moment to read the last answer.
                let closed = timeout(HANG_UP_TIMEOUT, ignore_all(&mut incoming)).await;
                end.unwrap_or_else(|_| closed.unwrap_or(End::Closed))
            }
        }
    }

    async fn read_all(&mut self, incoming: &mut Streaming<ToAgent>) -> End {
        loop {
            let taken = match incoming.message().await {
                Ok(Some(message)) => self.take(message),
                Ok(None) => return End::Closed,
                Err(status) => return End::Failed(status),
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
            // Only orders that agree with the replica's own role reach the agent.
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

async fn ignore_all(incoming: &mut Streaming<ToAgent>) -> End {
    loop {
        match incoming.message().await {
            Ok(Some(_)) => {}
            Ok(None) => return End::Closed,
            Err(status) => return End::Failed(status),
        }
    }
}

fn answered(rejection: Rejection) -> oneshot::Receiver<Answer> {
    let (answer, receiver) = oneshot::channel();
    // The receiver exists, so the send cannot fail.
    let _ = answer.send(Err(rejection));
    receiver
}
