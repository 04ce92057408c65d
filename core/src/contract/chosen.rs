//! How the webhook made its choice. The request document records it, so that `kerf explain` need not guess.

use serde::{Deserialize, Serialize};

/// How the names in a request document were chosen. Fields that a webhook of an earlier version wrote here are ignored.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Chosen {
    /// Name of the policy that matched the pod.
    pub policy: String,
    /// The dialect of the request; absent for kerf's own names.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dialect: Option<String>,
    /// The containers for which the pod itself names the kind, so that no other kind may serve them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub named: Vec<String>,
}
