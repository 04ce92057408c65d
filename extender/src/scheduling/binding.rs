//! Sends the Binding, the write that starts a pod on its node, and classifies its errors.

use crate::objects::pod::{KnownPod, SlicedPod};
use crate::scheduling::wire::BindArgs;
use http::header::CONTENT_TYPE;
use kerf_core::contract::AssignmentDocument;
use kerf_core::keys;
use kerf_core::names::{NodeName, PodKey, PodUid};
use kube::Client;
use kube::api::Api;
use serde_json::json;
use std::collections::BTreeMap;
use thiserror::Error;

/// A bind request of kube-scheduler.
#[derive(Debug, Clone)]
pub struct Bind {
    pub uid: PodUid,
    pub key: PodKey,
    pub node: NodeName,
}

impl From<BindArgs> for Bind {
    fn from(args: BindArgs) -> Self {
        Self {
            uid: PodUid::new(args.pod_uid),
            key: PodKey::new(args.pod_namespace, args.pod_name),
            node: NodeName::new(args.node),
        }
    }
}

/// Why a Binding was not made, or may not have been made.
#[derive(Debug, Error)]
pub enum BindingError {
    #[error("the API server refused the Binding: {0}")]
    Refused(String),
    /// The API server is overloaded: it answered 429, or the Binding was not sent.
    #[error("the API server has too many requests at present")]
    Busy,
    /// No answer came in time: the Binding may have been made.
    #[error("the API server did not answer in time")]
    TimedOut,
    /// The connection failed: the Binding may have been made.
    #[error("failed to reach the API server: {0}")]
    Client(#[from] kube::Error),
    #[error("failed to make the request: {0}")]
    Request(#[from] http::Error),
}

impl BindingError {
    /// Whether this request certainly made no Binding. The API server answers 4xx before it writes: 429 before it
    /// admits the request, 409 where an earlier Binding was made. The answer says nothing about an earlier request
    /// without an answer.
    #[must_use]
    pub fn is_definite(&self) -> bool {
        matches!(self, Self::Refused(_) | Self::Busy | Self::Request(_))
    }

    /// Whether the error is a sign of an overloaded API server.
    #[must_use]
    pub fn is_overload(&self) -> bool {
        match self {
            Self::Busy | Self::TimedOut => true,
            Self::Client(kube::Error::Api(status)) => matches!(status.code, 503 | 504),
            Self::Refused(_) | Self::Client(_) | Self::Request(_) => false,
        }
    }
}

/// Sends a pod's Binding, for exactly the pod of this UID, with its assignment. The API server writes the annotations
/// into the pod in the same step. `lead` is [`Term::lead`](crate::term::Term::lead): by it the guard's policy for
/// Bindings lets the API server refuse a Binding of a former leader.
pub async fn post(
    client: &Client,
    bind: &Bind,
    assignment: Option<&AssignmentDocument>,
    lead: String,
) -> Result<(), BindingError> {
    let PodKey { namespace, name } = &bind.key;
    let assignment = assignment.map(|assignment| (keys::ASSIGNMENT, assignment.to_json()));
    let annotations: BTreeMap<_, _> = assignment.into_iter().chain([(keys::EPOCH, lead)]).collect();
    let body = json!({
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": bind.uid,
            "annotations": annotations,
        },
        "target": {"apiVersion": "v1", "kind": "Node", "name": bind.node},
    });
    let request = http::Request::post(format!("/api/v1/namespaces/{namespace}/pods/{name}/binding"))
        .header(CONTENT_TYPE, "application/json")
        .body(body.to_string().into_bytes())?;
    match client.request_text(request).await {
        Ok(_status) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 409 && is_bound(client, bind).await? => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 429 => Err(BindingError::Busy),
        Err(kube::Error::Api(status)) if (400..500).contains(&status.code) => {
            Err(BindingError::Refused(status.message))
        }
        Err(error) => Err(error.into()),
    }
}

/// Reads a pod from the API server. `None` if no pod has this UID any longer, even if another pod has its name.
pub async fn pod(client: &Client, key: &PodKey, uid: &PodUid) -> Result<Option<KnownPod>, BindingError> {
    let api: Api<SlicedPod> = Api::namespaced(client.clone(), &key.namespace);
    let found = api.get_opt(&key.name).await?.map(KnownPod::from);
    Ok(found.filter(|pod| pod.uid == *uid))
}

/// Whether the pod is already on the node: an earlier Binding was made, and its answer was lost.
async fn is_bound(client: &Client, bind: &Bind) -> Result<bool, BindingError> {
    let found = pod(client, &bind.key, &bind.uid).await?;
    Ok(found.is_some_and(|pod| pod.node.as_ref() == Some(&bind.node)))
}
