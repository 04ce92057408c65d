//! The only writer of GpuNode specs: one task a node, which puts everything that gathered into one write.
//!
//! A write names the revision that it follows, so that of two writers one is refused; who is refused reads again and
//! writes on top. It does not name the resourceVersion, which every status of the agent moves. It leaves the node's
//! policy alone, which an admin may change at any time.

use crate::cluster_index::Reread;
use crate::metrics::Write;
use crate::term::Term;
use http::header::{ACCEPT, CONTENT_TYPE};
use kerf_core::contract::GpuNodeSpec;
use kerf_core::names::NodeName;
use kerf_runtime::gpu_node::GpuNode;
use kube::Resource;
use kube::api::Api;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

/// How long the API server may take for one write, before it counts as lost. A write takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(3);
/// The first pause after a failure. It doubles up to [`LONGEST_PAUSE`].
const PAUSE: Duration = Duration::from_millis(50);
/// The longest pause between two attempts while the API server is away.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// How often in a row the API server may refuse a write before it is given up. A few may be other writers; a leader has
/// none, so this many are a spec that it never takes.
const REFUSALS: u32 = 5;
/// Only the metadata is wanted back: the object itself comes by the watch.
const METADATA_ONLY: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";

/// Writes a node's spec whenever `bell` rings, until the node is gone or the term ends.
pub async fn run(term: Arc<Term>, node: NodeName, bell: Arc<Notify>) {
    let mut writer = NodeWriter {
        api: Api::all(term.client.clone()),
        term,
        node,
        unversioned: None,
        refusals: 0,
        pause: PAUSE,
    };
    let stop = writer.term.stop.clone();
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = bell.notified() => {}
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = writer.write_all() => {}
        }
        if writer.term.forget(&writer.node) {
            return;
        }
    }
}

struct NodeWriter {
    term: Arc<Term>,
    node: NodeName,
    api: Api<GpuNode>,
    /// A GpuNode whose spec has no revision, as one that was made by hand.
    unversioned: Option<Unversioned>,
    refusals: u32,
    pause: Duration,
}

/// A GpuNode without a revision.
struct Unversioned {
    resource_version: String,
    has_spec: bool,
}

/// What became of a write.
enum Written {
    Yes,
    /// Refused: somebody else wrote, or the API server does not take it.
    Refused(String),
    /// Nobody knows.
    Unknown(String),
}

impl NodeWriter {
    async fn write_all(&mut self) {
        while let Some((before, next)) = self.term.with(|index| index.begin_write(&self.node)) {
            match self.write(before, &next).await {
                Written::Yes => {
                    (self.refusals, self.pause, self.unversioned) = (0, PAUSE, None);
                    self.term.metrics.wrote(Write::Written);
                    tracing::debug!(node = %self.node, revision = next.revision, "spec written");
                    self.term.with(|index| {
                        index.wrote(&self.node, next.revision);
                        index.note_stages(&self.node, Instant::now());
                    });
                }
                Written::Refused(reason) => {
                    self.refusals += 1;
                    self.term.metrics.wrote(Write::Conflict);
                    tracing::info!(node = %self.node, revision = next.revision, reason, "spec refused");
                    if self.refusals > 1 {
                        self.rest().await;
                    }
                    self.reread(Some(&reason)).await;
                }
                Written::Unknown(reason) => {
                    self.term.metrics.wrote(Write::Failed);
                    tracing::warn!(node = %self.node, revision = next.revision, reason, "spec perhaps not written");
                    self.rest().await;
                    self.reread(None).await;
                }
            }
        }
    }

    async fn write(&self, before: u64, next: &GpuNodeSpec) -> Written {
        let request = match patch(&self.node, operations(before, self.unversioned.as_ref(), next)) {
            Ok(request) => request,
            Err(error) => return Written::Refused(error.to_string()),
        };
        match timeout(PATIENCE, self.term.client.request_text(request)).await {
            Ok(Ok(_metadata)) => Written::Yes,
            Ok(Err(kube::Error::Api(status))) if (400..500).contains(&status.code) && status.code != 429 => {
                Written::Refused(status.message)
            }
            Ok(Err(error)) => Written::Unknown(error.to_string()),
            Err(_) => Written::Unknown("the API server did not answer in time".to_owned()),
        }
    }

    /// Reads the node until it is read, and takes in what it says.
    async fn reread(&mut self, refused: Option<&str>) {
        let found = loop {
            match timeout(PATIENCE, self.api.get_opt(self.node.as_str())).await {
                Ok(Ok(found)) => break found,
                Ok(Err(error)) => tracing::warn!(node = %self.node, %error, "failed to read the GpuNode"),
                Err(_) => {
                    tracing::warn!(node = %self.node, "the API server does not show the GpuNode in time");
                }
            }
            self.rest().await;
        };
        let Some(found) = found else {
            return self.term.with(|index| index.remove_node(&self.node));
        };
        let has_revision = found.spec.as_ref().is_some_and(|spec| spec.get("revision").is_some());
        let version = found.metadata.resource_version.clone().filter(|_| !has_revision);
        let has_spec = found.spec.as_ref().is_some_and(Value::is_object);
        self.unversioned = version.map(|resource_version| Unversioned { resource_version, has_spec });
        let outcome = self.term.with(|index| index.reread(&found));
        match (outcome, refused) {
            // `write_all` goes on until nothing is left.
            (Reread::Done, _) => self.refusals = 0,
            (Reread::Again, Some(reason)) if self.refusals >= REFUSALS => {
                tracing::error!(node = %self.node, reason, "the API server does not take the spec: changes given up");
                self.refusals = 0;
                self.term.with(|index| index.abandon(&self.node, reason));
            }
            (Reread::Again | Reread::Deposed, _) => {}
        }
    }

    async fn rest(&mut self) {
        sleep(self.pause).await;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
    }
}

/// Puts the fields of `next` into a spec of this revision; what else is there stays. (`add` replaces what is there.)
fn operations(before: u64, unversioned: Option<&Unversioned>, next: &GpuNodeSpec) -> Vec<Value> {
    let mut operations = match unversioned {
        None => vec![json!({"op": "test", "path": "/spec/revision", "value": before})],
        Some(Unversioned { resource_version, .. }) => {
            vec![json!({"op": "test", "path": "/metadata/resourceVersion", "value": resource_version})]
        }
    };
    if unversioned.is_some_and(|node| !node.has_spec) {
        operations.push(json!({"op": "add", "path": "/spec", "value": {}}));
    }
    let GpuNodeSpec { revision, epoch, next_slice, slices, policy: _ } = next;
    for (path, value) in [
        ("/spec/revision", json!(revision)),
        ("/spec/epoch", json!(epoch)),
        ("/spec/nextSlice", json!(next_slice)),
        ("/spec/slices", json!(slices)),
    ] {
        operations.push(json!({"op": "add", "path": path, "value": value}));
    }
    operations
}

/// The request that does this to a GpuNode.
fn patch(node: &NodeName, operations: Vec<Value>) -> Result<http::Request<Vec<u8>>, PatchError> {
    let url = format!("{}/{node}?fieldManager=kerf-extender", GpuNode::url_path(&(), None));
    let request = http::Request::patch(url)
        .header(CONTENT_TYPE, "application/json-patch+json")
        .header(ACCEPT, METADATA_ONLY)
        .body(serde_json::to_vec(&Value::Array(operations))?)?;
    Ok(request)
}

#[derive(Debug, thiserror::Error)]
enum PatchError {
    #[error("failed to write the spec as JSON: {0}")]
    Json(#[from] serde_json::Error),
    #[error("failed to make the request: {0}")]
    Http(#[from] http::Error),
}

#[cfg(test)]
#[path = "node_writer_tests.rs"]
mod tests;
