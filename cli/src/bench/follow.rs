//! Follows a container's log line by line.

use super::lines::Line;
use futures::{AsyncBufReadExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, LogParams};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

const RETRY_INTERVAL: Duration = Duration::from_secs(1);

const TAIL_LINES: i64 = 10;

/// Follows a container's log in a task, which ends when this is dropped.
pub struct Follower {
    lines: mpsc::UnboundedReceiver<Line>,
    task: JoinHandle<()>,
}

impl Follower {
    /// Starts at the log's first line, because it has the client's GPU and software.
    pub fn start(pods: Api<Pod>, pod: String, container: String) -> Self {
        let (sender, lines) = mpsc::unbounded_channel();
        let task = tokio::spawn(async move {
            let mut seen = 0;
            // A stream ends when the API server stops or a proxy's timeout passes. The next stream starts at the first
            // line again, so the lines that were read before are skipped.
            while !sender.is_closed() {
                let _ended = stream(&pods, &pod, &container, &mut seen, &sender).await;
                tokio::time::sleep(RETRY_INTERVAL).await;
            }
        });
        Self { lines, task }
    }

    pub fn new_lines(&mut self) -> impl Iterator<Item = Line> + '_ {
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

/// The last lines of a container's log. A container that was restarted shows those of its previous run, because these
/// have the error.
pub async fn tail(pods: &Api<Pod>, pod: &str, container: &str) -> Result<Vec<String>, kube::Error> {
    let params = LogParams {
        container: Some(container.to_owned()),
        tail_lines: Some(TAIL_LINES),
        ..LogParams::default()
    };
    let before = LogParams { previous: true, ..params.clone() };
    let text = match pods.logs(pod, &before).await {
        Ok(text) if !text.is_empty() => text,
        // Most containers have no previous run, so the error of that read means nothing.
        _ => pods.logs(pod, &params).await?,
    };
    Ok(text.lines().map(str::to_owned).collect())
}
