//! The answer to a request before it is written as JSON: the one type that the pod and template decisions return, and
//! from which the response, the metrics and the log line are made.

use crate::metrics::{ANY_KIND, Outcome};
use json_patch::PatchOperation;
use kerf_core::contract::RequestDocument;
use kerf_core::kind::Kind;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Admission {
    /// The object is stored unchanged. A pod of this kind asks for no slice, or already carries everything.
    Untouched,
    Patched {
        ops: Vec<PatchOperation>,
        warnings: Vec<String>,
        document: Box<RequestDocument>,
    },
    /// The pod carries its request already, and the patch restores what another webhook has changed since. For a pod
    /// that asks for nothing, the patch removes annotations that only kerf may write.
    Mended {
        ops: Vec<PatchOperation>,
        warnings: Vec<String>,
    },
    /// The object has a pod template, and the patch qualifies the bare names in it.
    Qualified {
        ops: Vec<PatchOperation>,
    },
    Denied {
        /// The reason, with the field and the remedy.
        message: String,
        /// The reason as one word for metrics ([`Refusal::reason`](kerf_core::admission::Refusal::reason)).
        reason: &'static str,
    },
}

impl Admission {
    pub fn outcome(&self) -> Outcome {
        match self {
            Self::Untouched => Outcome::Untouched,
            Self::Patched { .. } | Self::Mended { .. } | Self::Qualified { .. } => Outcome::Patched,
            Self::Denied { .. } => Outcome::Denied,
        }
    }

    /// The kind of slice for metrics: `any` if the extender chooses it, `none` if the pod gets no slice by this
    /// admission.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Patched { document, .. } => document.kind().map_or(ANY_KIND, Kind::as_str),
            _ => Kind::label(None),
        }
    }
}
