//! A container's log, line by line while it is written.

use super::lines::Line;
use futures::{AsyncBufReadExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, LogParams};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// How long after its end a stream is asked for again.
const AGAIN: Duration = Duration::from_secs(1);

/// How many lines of a log explain an error.
const TAIL: i64 = 10;

/// Follows a container's log until it is dropped.
pub struct Follower {
    lines: mpsc::UnboundedReceiver<Line>,
    task: JoinHandle<()>,
}

impl Follower {
    /// Begins with the log's first line.
    pub fn start(pods: Api<Pod>, pod: String, container: String) -> Self {
        let (sender, lines) = mpsc::unbounded_channel();
        let task = tokio::spawn(async move {
            let mut seen = 0;
            // A stream ends with the API server, or with a proxy's patience: the lines that were seen are passed over then.
            while !sender.is_closed() {
                let _ended = stream(&pods, &pod, &container, &mut seen, &sender).await;
                tokio::time::sleep(AGAIN).await;
            }
        });
        Self { lines, task }
    }

    /// The client's lines since the last time.
    pub fn heard(&mut self) -> impl Iterator<Item = Line> + '_ {
        std::iter::from_fn(|| self.lines.try_recv().ok())
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn stream(
    pods: &Api<Pod>,
    pod: &str,
    container: &str,
    seen: &mut usize,
    sender: &mpsc::UnboundedSender<Line>,
) -> anyhow::Result<()> {
    let all = LogParams { container: Some(container.to_owned()), follow: true, ..LogParams::default() };
    let mut lines = pods.log_stream(pod, &all).await?.lines();
    let mut number = 0;
    while let Some(line) = lines.try_next().await? {
        number += 1;
        if number <= *seen {
            continue;
        }
        *seen = number;
        if let Some(line) = Line::read(&line) {
            sender.send(line)?;
        }
    }
    Ok(())
}

/// The last lines of a container's log: of the run before, where the container was started anew.
pub async fn tail(pods: &Api<Pod>, pod: &str, container: &str) -> Result<Vec<String>, kube::Error> {
    let params =
        LogParams { container: Some(container.to_owned()), tail_lines: Some(TAIL), ..LogParams::default() };
    let before = LogParams { previous: true, ..params.clone() };
    let text = match pods.logs(pod, &before).await {
        Ok(text) if !text.is_empty() => text,
        // Most have no run before.
        _ => pods.logs(pod, &params).await?,
    };
    Ok(text.lines().map(str::to_owned).collect())
}
