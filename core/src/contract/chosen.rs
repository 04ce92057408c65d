//! How the webhook came to its choice: recorded in the request document, so that `kerf explain` need not guess.

use crate::kind::Kind;
use crate::resource::ResourceName;
use serde::{Deserialize, Serialize};
use std::fmt;

/// How the names in a request document were chosen.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Chosen {
    /// The policy that matched the pod.
    pub policy: String,
    /// The replica of the webhook that admitted the pod, by the name that it has from its start to its end; see
    /// [`Demand::arrived`](super::Demand::arrived).
    #[serde(skip_serializing_if = "String::is_empty")]
    pub by: String,
    /// The dialect that the request was written in; absent for kerf's own names.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dialect: Option<String>,
    /// The kinds that the policy prefers to what was chosen, and why each was passed over.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub passed: Vec<PassedOver>,
    /// The containers for which the pod itself names the kind of slice, so that no other may serve them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub named: Vec<String>,
    /// Whether the pod itself left out some nodes with GPUs, so that what those have is nothing for it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub selects_nodes: bool,
    /// The kinds that were chosen although they are full, because all are: the pod waits for them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub waits: Vec<PassedOver>,
}

impl Chosen {
    /// The same without what depends on the moment of the choice: who made it, and what had no room.
    #[must_use]
    pub fn without_circumstances(&self) -> Self {
        Self { by: String::new(), passed: Vec::new(), waits: Vec::new(), ..self.clone() }
    }
}

/// A kind that a container was not given at once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PassedOver {
    /// The container.
    pub container: String,
    /// The kind.
    pub kind: Kind,
    /// Why.
    pub reason: Reason,
}

/// Why not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "reason", rename_all = "kebab-case", rename_all_fields = "camelCase")]
pub enum Reason {
    /// No GPU of the cluster that the pod may have serves the size by this kind.
    NotServed,
    /// Some do, and all of them are full, or wanted by pods that wait already.
    Full {
        /// The name that it would have been.
        resource: ResourceName,
        /// How many slices of it have room now, on GPUs that the pod may have.
        room: u32,
        /// How many of those pods that wait already will take.
        pending: u32,
        /// How many of them one pod can have, for they are of one node, where that is less than it wants and the room is not.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        together: Option<u32>,
    },
}

impl fmt::Display for PassedOver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { container, kind, reason } = self;
        match reason {
            Reason::NotServed => {
                write!(f, "container {container}: no GPU that the pod may have serves it by {kind}")
            }
            Reason::Full { resource, room, pending, together } => {
                let together = together.map(|count| format!(", of which one pod can have {count}"));
                let together = together.unwrap_or_default();
                write!(
                    f,
                    "container {container}: {resource} ({kind}) has room for {room} more{together}, and {pending} are waited for already"
                )
            }
        }
    }
}
