//! Serves containers' logs over HTTPS, as the API server fetches them for `kubectl logs` (kubernetes v1.36,
//! `getContainerLogs` in `pkg/kubelet/server/server.go`).
//!
//! The output is stored without times here, so requests that need times are rejected.

use std::io;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use futures::stream;
use kerf_runtime::serve;
use kerf_runtime::tls::{Clients, TlsError, server_config};
use serde::Deserialize;
use tokio::fs::File;
use tokio::io::{AsyncReadExt as _, AsyncSeekExt as _, SeekFrom};
use tokio::net::TcpListener;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::demand::PodKey;
use super::log_book::RunLog;
use super::parts::Core;

/// How often a followed log is read for more.
const FOLLOW_INTERVAL: Duration = Duration::from_millis(50);

/// Largest part of a log that is sent at once, in bytes.
const CHUNK: u64 = 64 * 1024;

/// Why containers' logs cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum LogServerError {
    /// The certificates cannot be used.
    #[error("failed to use the certificates for the containers' logs")]
    Certificates(#[from] TlsError),
    #[error("failed to listen for the API server on the loopback interface")]
    Listen(#[from] io::Error),
}

/// A server of containers' logs. Dropping it stops it.
pub(super) struct LogServer {
    _stop: DropGuard,
}

impl LogServer {
    /// Serves on a free port, if the kubelet has certificates for it.
    pub(super) async fn start(core: &Arc<Core>) -> Result<Option<Self>, LogServerError> {
        let Some(material) = core.options.serving.as_ref() else { return Ok(None) };
        let tls = server_config(material, Clients::Verified)?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        core.log_port.store(listener.local_addr()?.port(), Ordering::Relaxed);
        let stop = CancellationToken::new();
        let state = Served { core: Arc::clone(core), stop: stop.clone() };
        let router = Router::new()
            .route("/containerLogs/{namespace}/{pod}/{container}", get(container_logs))
            .with_state(state);
        let stopped = stop.clone();
        tokio::spawn(async move {
            if let Err(error) = serve::serve(listener, tls, router, stopped).await {
                tracing::warn!(%error, "the stand-in kubelet's logs are not served any more");
            }
        });
        Ok(Some(Self { _stop: stop.drop_guard() }))
    }
}

#[derive(Clone)]
struct Served {
    core: Arc<Core>,
    stop: CancellationToken,
}

/// The supported part of `PodLogOptions`.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct LogOptions {
    follow: bool,
    previous: bool,
    tail_lines: Option<usize>,
    limit_bytes: Option<u64>,
    timestamps: bool,
    since_seconds: Option<i64>,
    since_time: Option<String>,
}

async fn container_logs(
    State(Served { core, stop }): State<Served>,
    Path((namespace, pod, container)): Path<(String, String, String)>,
    Query(options): Query<LogOptions>,
) -> Response {
    if options.timestamps || options.since_seconds.is_some() || options.since_time.is_some() {
        let text = "the stand-in kubelet keeps no times of lines: leave timestamps and since out";
        return (StatusCode::BAD_REQUEST, text).into_response();
    }
    let run = match find(&core, &PodKey::new(namespace, pod), &container, options.previous) {
        Ok(run) => run,
        Err(refusal) => return refusal.into_response(),
    };
    match LogReader::open(run, &options, stop).await {
        Ok(reader) => Body::from_stream(stream::try_unfold(reader, LogReader::next)).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

/// The requested run, or the kubelet's error.
fn find(
    core: &Core,
    key: &PodKey,
    container: &str,
    previous: bool,
) -> Result<Arc<RunLog>, (StatusCode, String)> {
    let name = &key.name;
    let missing = || (StatusCode::NOT_FOUND, format!("pod {name:?} does not exist"));
    let pod = core.pods.find(key).ok_or_else(missing)?;
    if !core.pods.has_container(&pod, container) {
        let text = format!("container {container:?} not found in pod {name:?}");
        return Err((StatusCode::NOT_FOUND, text));
    }
    core.logs.find(&pod, container, previous).ok_or_else(|| {
        let text = if previous {
            format!("previous terminated container {container:?} in pod {name:?} not found")
        } else {
            format!("container {container:?} in pod {name:?} is waiting to start: PodInitializing")
        };
        (StatusCode::BAD_REQUEST, text)
    })
}

/// The position in a log that is being sent.
struct LogReader {
    run: Arc<RunLog>,
    position: u64,
    /// Bytes that may still be sent.
    left: u64,
    follow: bool,
    stop: CancellationToken,
}

impl LogReader {
    async fn open(run: Arc<RunLog>, options: &LogOptions, stop: CancellationToken) -> io::Result<Self> {
        let mut reader = Self { position: run.begin, run, left: u64::MAX, follow: options.follow, stop };
        if let Some(lines) = options.tail_lines {
            let text = reader.read(u64::MAX).await?;
            reader.position += tail(&text, lines) as u64;
        }
        reader.left = options.limit_bytes.unwrap_or(u64::MAX);
        Ok(reader)
    }

    /// The next part. `None` at the end of the output; with `follow`, at the end of the run.
    async fn next(mut self) -> io::Result<Option<(Vec<u8>, Self)>> {
        loop {
            // The end is read before the file: once a run has ended, the file is complete.
            let last = self.run.end().is_some() || !self.follow;
            let piece = self.read(CHUNK.min(self.left)).await?;
            let length = piece.len() as u64;
            self.position += length;
            self.left -= length;
            if length > 0 {
                return Ok(Some((piece, self)));
            }
            if last || self.left == 0 {
                return Ok(None);
            }
            tokio::select! {
                () = tokio::time::sleep(FOLLOW_INTERVAL) => {}
                () = self.stop.cancelled() => return Ok(None),
            }
        }
    }

    /// Up to `most` bytes of the run from the position on.
    async fn read(&self, most: u64) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let mut file = match File::open(&self.run.file).await {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(bytes),
            file => file?,
        };
        file.seek(SeekFrom::Start(self.position)).await?;
        let end = self.run.end().unwrap_or(u64::MAX);
        file.take(most.min(end - self.position)).read_to_end(&mut bytes).await?;
        Ok(bytes)
    }
}

/// Where the last `lines` lines begin. An unfinished line counts.
fn tail(text: &[u8], lines: usize) -> usize {
    let finished = text.strip_suffix(b"\n").unwrap_or(text);
    let breaks = finished.iter().enumerate().rev().filter(|(_, byte)| **byte == b'\n');
    match lines {
        0 => text.len(),
        _ => breaks.map(|(at, _)| at + 1).nth(lines - 1).unwrap_or(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tail_is_the_last_lines_or_all_there_are() {
        let tail = |text: &'static str, lines| &text[tail(text.as_bytes(), lines)..];
        assert_eq!(tail("a\nb\nc\n", 2), "b\nc\n");
        assert_eq!(tail("a\nb\nc", 2), "b\nc", "an unfinished line is one");
        assert_eq!(tail("a\nb\n", 5), "a\nb\n");
        assert_eq!(tail("a\n", 0), "");
        assert_eq!(tail("", 1), "");
    }
}
