//! Writes the agent's Kubernetes Events about pods, the Node and its GpuNode.
//!
//! An Event is for people; nothing waits for it. The loop puts it into a bounded queue, and an Event that finds no room
//! is counted and dropped. Each is also logged where it arises.

mod event;

pub use event::AgentEvent;

use k8s_openapi::api::core::v1::ObjectReference;
use kerf_core::keys;
use kerf_core::names::{NodeName, PodKey, PodUid};
use kerf_runtime::event_note::shortened;
use kube::Client;
use kube::runtime::events::{Event, EventType, Recorder as Publisher, Reporter};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// How many Events may be queued.
const QUEUE: usize = 256;

/// How long the same Event is not repeated: a fault that every probe finds is written once a minute.
const REPEAT_INTERVAL: Duration = Duration::from_mins(1);

/// How often an Event is tried, the wait after the first try, which doubles, and the timeout of one try.
const TRIES: u32 = 5;
const FIRST_BACKOFF: Duration = Duration::from_secs(1);
const TIMEOUT: Duration = Duration::from_secs(5);

/// The object of an Event.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum About {
    Pod {
        key: PodKey,
        /// Its UID. Without it `kubectl describe pod` does not show the Event.
        uid: Option<PodUid>,
    },
    Node,
    /// The Node's GpuNode, with its UID if known.
    GpuNode(Option<String>),
}

/// Accepts Events for the queue. Clones share it.
#[derive(Debug, Clone)]
pub struct Recorder {
    queue: mpsc::Sender<(About, AgentEvent)>,
    dropped: Arc<AtomicU64>,
}

impl Recorder {
    #[must_use]
    pub fn new(client: Client, node: NodeName) -> (Self, Writer) {
        let (queue, reports) = mpsc::channel(QUEUE);
        let dropped = Arc::<AtomicU64>::default();
        let publisher = publisher(&client, &node);
        let writer = Writer {
            reports,
            client,
            node,
            publisher,
            written: HashMap::new(),
            dropped: Arc::clone(&dropped),
            quiet: REPEAT_INTERVAL,
        };
        (Self { queue, dropped }, writer)
    }

    /// Queues an Event if there is room, and never waits.
    pub fn record(&self, about: About, reported: AgentEvent) {
        if let Err(error) = self.queue.try_send((about, reported)) {
            let (mpsc::error::TrySendError::Full((about, reported))
            | mpsc::error::TrySendError::Closed((about, reported))) = error;
            self.dropped.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(?about, reason = reported.reason(), "no room for an Event; it is dropped");
        }
    }

    /// How many Events were dropped, because the queue was full or the API server refused them.
    #[cfg(test)]
    fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

/// The key by which two Events count as the same.
type Subject = (About, &'static str, Option<String>);

/// Writes the queued Events, one at a time.
pub struct Writer {
    reports: mpsc::Receiver<(About, AgentEvent)>,
    client: Client,
    node: NodeName,
    publisher: Publisher,
    /// When each Event was last written.
    written: HashMap<Subject, Instant>,
    dropped: Arc<AtomicU64>,
    quiet: Duration,
}

impl Writer {
    /// Writes until `stop`, or until every [`Recorder`] is gone.
    pub async fn run(mut self, stop: CancellationToken) {
        while let Some(Some((about, reported))) = stop.run_until_cancelled(self.reports.recv()).await {
            if self.is_new(&about, &reported) {
                stop.run_until_cancelled(self.write(&about, &reported)).await;
            }
        }
    }

    /// Whether the same Event was not written recently.
    fn is_new(&mut self, about: &About, reported: &AgentEvent) -> bool {
        let (now, quiet) = (Instant::now(), self.quiet);
        self.written.retain(|_, written| now.saturating_duration_since(*written) < quiet);
        let subject = (about.clone(), reported.reason(), reported.subject());
        let is_new = !self.written.contains_key(&subject);
        if is_new {
            self.written.insert(subject, now);
        }
        is_new
    }

    async fn write(&mut self, about: &About, reported: &AgentEvent) {
        let (event, regarding) = (event(reported, &self.node), reference(about, &self.node));
        let mut wait = FIRST_BACKOFF;
        for _ in 0..TRIES {
            let error = match tokio::time::timeout(TIMEOUT, self.publisher.publish(&event, &regarding)).await
            {
                Ok(Ok(())) => return,
                Ok(Err(kube::Error::Api(status))) if status.code == 404 => {
                    // The Event that this one repeats is gone, or its namespace is. Write it as a first one.
                    self.publisher = publisher(&self.client, &self.node);
                    continue;
                }
                Ok(Err(kube::Error::Api(status))) if is_final(status.code) => {
                    tracing::warn!(?about, reason = event.reason, error = %status, "an Event is refused");
                    break;
                }
                Ok(Err(error)) => error.to_string(),
                Err(_) => "no answer in time".to_owned(),
            };
            tracing::debug!(?about, reason = event.reason, error, "an Event was not written; trying again");
            tokio::time::sleep(wait).await;
            wait *= 2;
        }
        self.dropped.fetch_add(1, Ordering::Relaxed);
    }
}

/// Whether a retry would get the same answer.
fn is_final(code: u16) -> bool {
    // The code 429 (too many requests) asks for a later retry, so it is not final.
    matches!(code, 400..=499) && code != 429
}

fn publisher(client: &Client, node: &NodeName) -> Publisher {
    let controller = format!("{}/node-agent", keys::GROUP);
    Publisher::new(client.clone(), Reporter { controller, instance: Some(node.to_string()) })
}

/// Builds the Event. Its `related` object is the part of the GpuNode that it is about. Otherwise kube's publisher would
/// count Events of one object and one reason as repetitions of the first.
fn event(reported: &AgentEvent, node: &NodeName) -> Event {
    let related = reported.subject().map(|subject| ObjectReference {
        field_path: Some(subject),
        ..reference(&About::GpuNode(None), node)
    });
    Event {
        type_: if reported.is_good() { EventType::Normal } else { EventType::Warning },
        reason: reported.reason().to_owned(),
        note: Some(shortened(reported.to_string())),
        action: reported.action().to_owned(),
        secondary: related,
    }
}

fn reference(about: &About, node: &NodeName) -> ObjectReference {
    let of = |api_version: String, kind: &str, name: String, uid: Option<String>| ObjectReference {
        api_version: Some(api_version),
        kind: Some(kind.to_owned()),
        name: Some(name),
        uid,
        ..ObjectReference::default()
    };
    match about {
        About::Pod { key, uid } => ObjectReference {
            namespace: Some(key.namespace.clone()),
            ..of("v1".to_owned(), "Pod", key.name.clone(), uid.as_ref().map(ToString::to_string))
        },
        // The kubelet uses its Node's name as the UID, and `kubectl describe node` searches for that.
        About::Node => of("v1".to_owned(), "Node", node.to_string(), Some(node.to_string())),
        About::GpuNode(uid) => of(keys::API_VERSION.to_owned(), "GpuNode", node.to_string(), uid.clone()),
    }
}

#[cfg(test)]
mod tests;
