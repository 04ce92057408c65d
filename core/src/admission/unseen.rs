//! Finds environment variables that kerf cannot see: those that `envFrom` brings from a ConfigMap or a Secret. They
//! take precedence over the agent's too (only `env` takes precedence over them), and admission reads no such object. So
//! the user of an MPS share gets a warning.
//!
//! The pod is not refused, because most pods with `envFrom` bring no such variable. A process may also change its own
//! environment in any case; the daemon limits the effect, or the agent reports over-use. `NVIDIA_VISIBLE_DEVICES` needs
//! no warning, because the CDI specification of a slice sets it last.

use super::container::containers;
use super::environment::MPS_PREFIX;
use crate::contract::RequestDocument;
use crate::kind::Kind;
use serde_json::Value;
use std::fmt;

/// A source from which a container with an MPS share takes variables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unseen {
    /// Name of the container with the source.
    pub container: String,
    /// Index in the container's `envFrom`.
    pub place: usize,
    /// The ConfigMap or Secret that kerf does not read, with its name.
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

/// The sources of variables that could bypass MPS shares of the pod.
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

/// Whether a variable with the source's prefix can have a name that MPS reads.
fn may_lead_past(source: &Value) -> bool {
    let prefix = source["prefix"].as_str().unwrap_or_default();
    MPS_PREFIX.starts_with(prefix) || prefix.starts_with(MPS_PREFIX)
}

fn name_of(source: &Value) -> Option<String> {
    let named = |kind: &str, key: &str| Some(format!("{kind} {}", source[key]["name"].as_str()?));
    named("ConfigMap", "configMapRef").or_else(|| named("Secret", "secretRef"))
}
