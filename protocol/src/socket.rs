//! A WebSocket whose binary messages are those of the protocol. Both ends use it.

use crate::limits::RECEIVE_TIMEOUT;
use axum::body::Body;
use futures::stream::{SplitSink, SplitStream};
use futures::{Sink, Stream, StreamExt};
use http::{Request, Response, Uri};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use prost::DecodeError;
use std::future::Future;
use std::iter;
use std::marker::PhantomData;
use std::pin::Pin;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, timeout_at};
use tokio_tungstenite::tungstenite::client::ClientRequestBuilder;
use tokio_tungstenite::tungstenite::error::ProtocolError::ResetWithoutClosingHandshake;
use tokio_tungstenite::tungstenite::handshake::server::create_response_with_body;
use tokio_tungstenite::tungstenite::protocol::frame::Frame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::{CloseCode, Data, OpCode};
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{self, Bytes, Message, Utf8Bytes};
use tokio_tungstenite::{WebSocketStream, client_async_with_config};

/// Where the extender serves the protocol. An incompatible one has another path, so that it can be served beside this
/// one.
pub const PATH: &str = "/kerf.agent.v1";
/// Bytes that are read at once. A connection keeps a buffer of this size, and an extender has thousands of connections,
/// so it is small.
const READ_BUFFER: usize = 2 << 10;
/// The most bytes of a message in one frame. A connection's buffer doubles for a frame for which it has no room behind
/// those before it, and stays so large, and a Hello has tens of thousands of bytes. So messages are fragmented, and a
/// quarter of the buffer always has room.
pub const FRAGMENT_LIMIT: usize = READ_BUFFER / 4;
/// The longest reason in a frame that closes a WebSocket (RFC 6455, section 5.5).
const REASON_LIMIT: usize = 123;

#[derive(Debug, Error)]
pub enum Broken {
    #[error(transparent)]
    Socket(#[from] tungstenite::Error),
    #[error("a message is unreadable: {0}")]
    Undecodable(#[from] DecodeError),
    #[error("a frame has text, but messages are binary")]
    Text,
    #[error("nothing was received for {} s", RECEIVE_TIMEOUT.as_secs())]
    Unresponsive,
    /// The other end has closed the connection, for this reason.
    #[error("{0}")]
    Closed(String),
}

pub type Accepted = WebSocketStream<TokioIo<Upgraded>>;

/// Accepts a request for a WebSocket whose messages may have up to `largest` bytes, and passes the socket to `serve`
/// once the response is sent.
pub fn accept<F>(
    mut request: Request<Body>,
    largest: usize,
    serve: impl FnOnce(Accepted) -> F + Send + 'static,
) -> tungstenite::Result<Response<Body>>
where
    F: Future<Output = ()> + Send,
{
    let upgraded = hyper::upgrade::on(&mut request);
    let response = create_response_with_body(&request, Body::empty)?;
    tokio::spawn(async move {
        match upgraded.await {
            Ok(stream) => {
                let (stream, config) = (TokioIo::new(stream), Some(config(largest)));
                serve(WebSocketStream::from_raw_socket(stream, Role::Server, config).await).await;
            }
            Err(error) => tracing::debug!(%error, "a client left before its WebSocket was open"),
        }
    });
    Ok(response)
}

/// Opens a WebSocket on a connection, with this bearer token if there is one.
pub async fn open<S>(
    stream: S,
    token: Option<&str>,
    largest: usize,
) -> tungstenite::Result<WebSocketStream<S>>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let uri = Uri::builder().scheme("wss").authority("extender").path_and_query(PATH).build()?;
    let mut request = ClientRequestBuilder::new(uri);
    if let Some(token) = token {
        request = request.with_header("authorization", format!("Bearer {token}"));
    }
    Ok(client_async_with_config(request, stream, Some(config(largest))).await?.0)
}

fn config(largest: usize) -> WebSocketConfig {
    // Messages are written at once, so that a connection that takes none holds the next message back.
    WebSocketConfig::default()
        .read_buffer_size(READ_BUFFER)
        .write_buffer_size(0)
        .max_message_size(Some(largest))
        .max_frame_size(Some(largest))
}

pub fn split<S, M>(socket: WebSocketStream<S>) -> (SplitSink<WebSocketStream<S>, Message>, Incoming<S, M>)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let (sink, frames) = socket.split();
    (sink, Incoming { frames, last_frame_at: Instant::now(), messages: PhantomData })
}

#[derive(Debug)]
pub struct Incoming<S, M> {
    frames: SplitStream<WebSocketStream<S>>,
    last_frame_at: Instant,
    messages: PhantomData<fn() -> M>,
}

impl<S, M> Incoming<S, M>
where
    S: AsyncRead + AsyncWrite + Unpin,
    M: prost::Message + Default,
{
    /// The next message; `None` if the other end has gone without a reason. Dropping the future loses no message.
    pub async fn message(&mut self) -> Result<Option<M>, Broken> {
        loop {
            let frame = timeout_at(self.last_frame_at + RECEIVE_TIMEOUT, self.frames.next())
                .await
                .map_err(|_| Broken::Unresponsive)?;
            self.last_frame_at = Instant::now();
            match frame {
                // A process that ends sends no closing frame, so this is a normal end.
                None | Some(Err(tungstenite::Error::Protocol(ResetWithoutClosingHandshake))) => {
                    return Ok(None);
                }
                Some(Ok(Message::Binary(bytes))) => return Ok(Some(M::decode(bytes)?)),
                Some(Ok(Message::Close(Some(CloseFrame { reason, .. })))) => {
                    return Err(Broken::Closed(reason.to_string()));
                }
                Some(Ok(Message::Text(_))) => return Err(Broken::Text),
                // The library answers pings. They count here only because they show that the other end lives.
                Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_) | Message::Close(None))) => {}
                Some(Err(error)) => return Err(error.into()),
            }
        }
    }

    pub async fn ended(&mut self) {
        while matches!(self.message().await, Ok(Some(_)) | Err(Broken::Undecodable(_))) {}
    }
}

pub fn frame(message: &impl prost::Message) -> Message {
    Message::Binary(message.encode_to_vec().into())
}

/// A message as fragments of bounded size, because the receiver's buffer grows to the largest frame.
pub fn fragments<M: prost::Message>(message: &M) -> impl Iterator<Item = Message> + use<M> {
    let mut rest = Bytes::from(message.encode_to_vec());
    let mut next = Some(Data::Binary);
    iter::from_fn(move || {
        let data = next.take()?;
        let fragment = rest.split_to(FRAGMENT_LIMIT.min(rest.len()));
        next = (!rest.is_empty()).then_some(Data::Continue);
        Some(Message::Frame(Frame::message(fragment, OpCode::Data(data), next.is_none())))
    })
}

/// A frame that the other end must answer, so that both ends see that the connection works.
pub fn ping() -> Message {
    Message::Ping(Bytes::new())
}

/// The frame that closes a connection. A long reason is cut.
pub fn close(code: CloseCode, reason: &str) -> Message {
    let reason = Utf8Bytes::from(&reason[..reason.floor_char_boundary(REASON_LIMIT)]);
    Message::Close(Some(CloseFrame { code, reason }))
}

/// Sends all frames, and closes the connection at their end. The next frame is taken once the connection has taken the
/// one before.
pub async fn send_all<K>(frames: impl Stream<Item = Message>, sink: K) -> tungstenite::Result<()>
where
    K: Sink<Message, Error = tungstenite::Error>,
{
    frames.map(Ok).forward(sink).await
}

/// Runs `reading` to its end, and `sending` beside it. A connection that cannot be written to is soon silent, so
/// `reading` ends then too. The caller pins it, because a future that is passed by value takes its space twice.
pub async fn beside<T>(mut reading: Pin<&mut impl Future<Output = T>>, sending: impl Future) -> T {
    tokio::select! {
        end = &mut reading => end,
        _ = sending => reading.await,
    }
}
