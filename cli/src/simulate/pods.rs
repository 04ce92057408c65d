//! Places pods one after the other on the nodes of a snapshot, by the functions with which the webhook and the extender
//! decide, so that all agree.

use crate::columns::{Columns, or_dash};
use crate::input;
use crate::placement::{Choice, Nodes, Placement, Taken, TakenSlice};
use crate::policy::decide::{Verdict, decide};
use crate::policy::manifest::{Found, Namespaces, no_pod, pods};
use crate::snapshot::{self, SnapshotError};
use kerf_core::contract::{RequestDocument, UnreadableRequest};
use kerf_core::keys;
use kerf_core::ledger::OwnerInEpoch;
use kerf_core::names::{PodKey, PodUid};
use kerf_core::packing::{Refusal, Terms};
use kerf_core::policy::{Policies, Supply};
use kerf_runtime::destinations::Destinations;
use serde::Serialize;
use serde_json::Value;
use std::path::Path;
use thiserror::Error;

const NAMESPACE: &str = "default";

#[derive(Debug, Error)]
pub enum PodsError {
    #[error(transparent)]
    Read(#[from] input::InputError),
    #[error("--snapshot")]
    Snapshot(#[from] SnapshotError),
    #[error("--pods: {place}: {why}; a request document has the fields version, isolation and containers")]
    NoPod { place: String, why: String },
    #[error("--pods: {pod}: {source}")]
    Request { pod: String, source: UnreadableRequest },
    #[error("--pods: {pod}: spec: {source}")]
    Pod { pod: String, source: serde_json::Error },
    #[error(
        "--pods: {0}: metadata.annotations[{key}] is missing: the webhook has not admitted the pod; give its policies by --policy PATH",
        key = keys::REQUEST
    )]
    NotAdmitted(String),
    #[error("--pods: {pod}: {refusal}")]
    Lost { pod: String, refusal: Refusal },
}

#[derive(Debug, Serialize)]
pub struct Placed {
    pods: Vec<PlacedPod>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct PlacedPod {
    pod: String,
    #[serde(flatten)]
    outcome: Outcome,
}

#[derive(Debug, Serialize)]
#[serde(tag = "outcome", rename_all = "lowercase")]
enum Outcome {
    Placed {
        request: Box<RequestDocument>,
        #[serde(flatten)]
        placement: Placement,
    },
    Pending {
        request: Box<RequestDocument>,
        why: String,
        #[serde(flatten)]
        placement: Placement,
    },
    Refused {
        why: String,
    },
    Untouched,
    /// The pod is bound, and the snapshot includes what it holds.
    Bound {
        node: String,
    },
}

struct Asked {
    name: String,
    request: Result<Box<Wish>, Outcome>,
}

struct Wish {
    request: RequestDocument,
    destinations: Destinations,
}

pub fn run(snapshot: &Path, file: &Path, policies: Option<&Policies>) -> Result<Placed, PodsError> {
    let text = input::read(snapshot)?;
    let weights = policies.map(Policies::weights).unwrap_or_default();
    let mut nodes = snapshot::nodes(&text, Terms { weights, ..Terms::default() })?;
    let supply = snapshot::supply(&text)?;
    let documents = input::documents(file)?;
    let asked = asked(&documents, policies, &supply)?;
    if asked.is_empty() {
        let (place, why) = (input::place(file), no_pod(&documents, NAMESPACE));
        return Err(PodsError::NoPod { place, why });
    }
    let placed = asked.into_iter().enumerate().map(|(number, asked)| place(&mut nodes, number, asked));
    Ok(Placed { pods: placed.collect::<Result<_, _>>()? })
}

fn asked(documents: &[Value], policies: Option<&Policies>, supply: &Supply) -> Result<Vec<Asked>, PodsError> {
    let namespaces = Namespaces::from_documents(documents);
    let mut all = Vec::new();
    for (number, document) in documents.iter().enumerate() {
        if is_request(document) {
            let name = format!("request {}", number + 1);
            let request = read(&name, &document.to_string())?;
            let wish = Wish { request, destinations: Destinations::default() };
            all.push(Asked { name, request: Ok(Box::new(wish)) });
            continue;
        }
        for found in pods(document, NAMESPACE) {
            all.push(pods_from_manifest(&found, &namespaces, policies, supply)?);
        }
    }
    Ok(all)
}

/// Whether the document is a request document, as in the webhook's annotation. It has no kind, because it is no
/// Kubernetes object.
fn is_request(document: &Value) -> bool {
    document["kind"].is_null() && document["version"].is_u64() && document["containers"].is_array()
}

fn read(pod: &str, text: &str) -> Result<RequestDocument, PodsError> {
    RequestDocument::parse(text).map_err(|source| PodsError::Request { pod: pod.to_owned(), source })
}

fn pods_from_manifest(
    found: &Found,
    namespaces: &Namespaces,
    policies: Option<&Policies>,
    supply: &Supply,
) -> Result<Asked, PodsError> {
    let name = found.to_string();
    let name = name.strip_prefix("Pod ").unwrap_or(&name).to_owned();
    let unreadable = |source| PodsError::Pod { pod: name.clone(), source };
    if let Some(node) = found.pod["spec"]["nodeName"].as_str().filter(|node| !node.is_empty()) {
        let node = node.to_owned();
        return Ok(Asked { name, request: Err(Outcome::Bound { node }) });
    }
    if let Some(text) = found.pod["metadata"]["annotations"][keys::REQUEST].as_str() {
        let request = read(&name, text)?;
        let destinations = Destinations::of_pod(&found.pod).map_err(unreadable)?;
        return Ok(Asked { name, request: Ok(Box::new(Wish { request, destinations })) });
    }
    let policies = policies.ok_or_else(|| PodsError::NotAdmitted(name.clone()))?;
    let decision = decide(&found.pod, namespaces.get(&found.namespace), policies, supply);
    let request = match decision.map_err(unreadable)?.verdict {
        Verdict::Untouched => Err(Outcome::Untouched),
        Verdict::Refused(why) => Err(Outcome::Refused { why }),
        Verdict::Served { document, destinations, .. } => {
            Ok(Box::new(Wish { request: *document, destinations: *destinations }))
        }
    };
    Ok(Asked { name, request })
}

/// Places one pod, and takes its capacity from the nodes, so that the next pod does not get it.
fn place(nodes: &mut Nodes, number: usize, Asked { name, request }: Asked) -> Result<PlacedPod, PodsError> {
    let wish = match request {
        Ok(wish) => wish,
        Err(outcome) => return Ok(PlacedPod { pod: name, outcome }),
    };
    let Wish { request, destinations } = *wish;
    let choice = Choice::new(nodes, &destinations, &request);
    let (placement, request) = (choice.placement(), Box::new(request));
    let Some(node) = &choice.best else {
        let outcome = Outcome::Pending { request, why: choice.refusals(), placement };
        return Ok(PlacedPod { pod: name, outcome });
    };
    // The number makes the UID unique, because two objects of a file may have the same name.
    let uid = PodUid::new(format!("pod-{number}"));
    let pod = OwnerInEpoch { uid, key: PodKey::new("", &name), epoch: 0 };
    let taken = nodes.take(node, &request, &choice.plan, &pod);
    taken.map_err(|refusal| PodsError::Lost { pod: name.clone(), refusal })?;
    Ok(PlacedPod { pod: name, outcome: Outcome::Placed { request, placement } })
}

impl Placed {
    /// A table with one row for each slice. `wide` adds the containers, the names by which they ask, and the UUIDs of
    /// the GPUs.
    #[must_use]
    pub fn table(&self, wide: bool) -> String {
        if wide {
            let head =
                ["POD", "NODE", "KIND", "GPU", "SLICE", "CONTAINER", "RESOURCE", "MODEL", "GPU UUID", "WHY"];
            let mut columns = Columns::new(head);
            self.rows().for_each(|row| columns.row(row.wide()));
            return columns.write("");
        }
        let mut columns = Columns::new(["POD", "NODE", "KIND", "GPU", "SLICE", "WHY"]);
        self.rows().for_each(|row| columns.row(row.narrow()));
        columns.write("")
    }

    fn rows(&self) -> impl Iterator<Item = Row<'_>> {
        self.pods.iter().flat_map(PlacedPod::rows)
    }
}

struct Row<'p> {
    pod: &'p str,
    node: Option<String>,
    slice: Option<&'p TakenSlice>,
    /// The devices of NVIDIA's device plugin, on a static node.
    device: Option<String>,
    why: Option<String>,
}

impl PlacedPod {
    fn rows(&self) -> Vec<Row<'_>> {
        let pod = self.pod.as_str();
        let without = |why: String| vec![Row { pod, node: None, slice: None, device: None, why: Some(why) }];
        let placement = match &self.outcome {
            Outcome::Placed { placement, .. } => placement,
            Outcome::Pending { why, .. } => return without(format!("pending: {why}")),
            Outcome::Refused { why } => return without(format!("refused: {why}")),
            Outcome::Untouched => return without("asks for no slice".to_owned()),
            Outcome::Bound { node } => {
                let why = Some("bound already; the snapshot has what it holds".to_owned());
                return vec![Row { pod, node: Some(node.clone()), slice: None, device: None, why }];
            }
        };
        let passed: Vec<String> = placement.passed.iter().map(ToString::to_string).collect();
        let why = (!passed.is_empty()).then(|| passed.join("; "));
        let node = placement.node.as_ref().map(ToString::to_string);
        let row = |slice, device| Row { pod, node: node.clone(), slice, device, why: why.clone() };
        match &placement.taken {
            Some(Taken::Slices(slices)) => slices.iter().map(|slice| row(Some(slice), None)).collect(),
            taken => vec![row(None, taken.as_ref().map(ToString::to_string))],
        }
    }
}

impl Row<'_> {
    fn narrow(self) -> [String; 6] {
        let shape = self.slice.map(|slice| slice.shape.to_string());
        [
            self.pod.to_owned(),
            or_dash(self.node),
            or_dash(self.slice.map(|slice| slice.kind)),
            or_dash(self.slice.map(|slice| slice.gpu_index)),
            or_dash(shape.or(self.device)),
            or_dash(self.why),
        ]
    }

    fn wide(self) -> [String; 10] {
        let beside = [
            or_dash(self.slice.map(|slice| slice.container.clone())),
            or_dash(self.slice.map(|slice| slice.resource.to_string())),
            or_dash(self.slice.map(|slice| slice.model.clone())),
            or_dash(self.slice.map(|slice| slice.gpu.to_string())),
        ];
        let [container, resource, model, uuid] = beside;
        let [pod, node, kind, gpu, slice, why] = self.narrow();
        [pod, node, kind, gpu, slice, container, resource, model, uuid, why]
    }
}

#[cfg(test)]
#[path = "pods_tests.rs"]
mod tests;
