//! Environment variables that are not seen: those that a ConfigMap or Secret brings by `envFrom`. They win over the agent's
//! too (only `env` wins over them), and neither is read on the request path. So who has an MPS share is warned of it.
//!
//! It is not refused: most that use `envFrom` bring nothing of the kind, and what a process may do to its own environment
//! anyway is fenced by the daemon, or told as over-use. `NVIDIA_VISIBLE_DEVICES` needs no warning: the CDI specification of a
//! slice, which comes last, sets it.

use super::container::containers;
use super::environment::MPS_PREFIX;
use crate::contract::RequestDocument;
use crate::kind::Kind;
use serde_json::Value;
use std::fmt;

/// Something that a container with an MPS share takes variables from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unseen {
    /// The container's name.
    pub container: String,
    /// The place in its list of sources.
    pub place: usize,
    /// What is not read: a ConfigMap or Secret with its name.
    pub source: String,
}

impl fmt::Display for Unseen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { container, place, source } = self;
        write!(
            f,
            "container {container}, envFrom[{place}]: kerf does not read {source}; {MPS_PREFIX}* in it would lead past the pod's slice; keep them out of it, or set a prefix"
        )
    }
}

/// All that the pod's containers with MPS shares take variables from which could lead past them.
pub(super) fn unseen(pod: &Value, document: &RequestDocument) -> Vec<Unseen> {
    let shared = containers(pod, document)
        .filter(|found| found.request.is_some_and(|request| request.may_be(Kind::Mps)));
    let sources = shared.flat_map(|found| {
        let sources = found.json["envFrom"].as_array().into_iter().flatten().enumerate();
        sources.filter_map(move |(place, source)| {
            let source = may_lead_past(source).then(|| name_of(source)).flatten()?;
            Some(Unseen { container: found.name.to_owned(), place, source })
        })
    });
    sources.collect()
}

/// Whether a variable with the source's prefix can have a name of MPS's.
fn may_lead_past(source: &Value) -> bool {
    let prefix = source["prefix"].as_str().unwrap_or_default();
    MPS_PREFIX.starts_with(prefix) || prefix.starts_with(MPS_PREFIX)
}

fn name_of(source: &Value) -> Option<String> {
    let named = |kind: &str, key: &str| Some(format!("{kind} {}", source[key]["name"].as_str()?));
    named("ConfigMap", "configMapRef").or_else(|| named("Secret", "secretRef"))
}
