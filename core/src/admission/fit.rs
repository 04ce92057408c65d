//! Checks whether a pod would get its slices: its scheduler, its node, and its fields that would bypass the slices.

use super::environment::{self, Variable};
use super::root::{Exposed, Root};
use super::unseen::{self, Unseen};
use crate::contract::RequestDocument;
use crate::policy::{NodeNameRule, Policy};
use crate::request::{AskError, is_scheduler_of};
use serde_json::Value;
use thiserror::Error;

/// The scheduler that the API server sets on pods that name none.
const DEFAULT_SCHEDULER: &str = "default-scheduler";

/// A field of the pod that would bypass kerf, and that the policy does not allow kerf to change.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Unfit {
    /// The pod names a scheduler that does not call kerf.
    #[error(
        "spec.schedulerName: {found} does not cut GPUs; remove it, pods with slices are scheduled by {wanted}"
    )]
    Scheduler {
        /// The scheduler that the pod names.
        found: String,
        /// The scheduler of the pod's policy.
        wanted: String,
    },
    /// The pod names its node, so it would bypass the scheduler.
    #[error(transparent)]
    NodeName(AskError),
    /// The pod's processes could command an MPS daemon that other pods use, and no other kind serves the pod.
    #[error("{0}; {remedy}", remedy = .0.remedy())]
    Root(Exposed),
    /// A container sets a variable that would show it other GPUs, or lift its limits.
    #[error(
        "container {container}, env[{name}]: it would lead past the pod's slice; remove it, kerf sets what the container needs"
    )]
    Environment {
        /// Name of the container that sets the variable.
        container: String,
        /// Name of the environment variable.
        name: String,
    },
}

/// The changes to a pod's fields that would bypass its slices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fit {
    /// The scheduler that the webhook sets on the pod.
    pub scheduler: String,
    /// The node that the pod names, which becomes a required node affinity; `None` if it names none.
    pub node: Option<String>,
    /// The environment variables that the webhook removes.
    pub taken_out: Vec<Variable>,
    /// Sources of environment variables that kerf does not read.
    pub unseen: Vec<Unseen>,
    /// Whether the pod gets a user namespace, so that an MPS daemon does not obey its root.
    pub user_namespace: bool,
    /// The warning about the pod's root processes; `None` if they are harmless.
    root: Option<String>,
}

impl Fit {
    /// Adds the decision on the pod's root processes, which needs the kinds that admission has chosen.
    pub(super) fn with_root(self, root: &Root, document: &RequestDocument) -> Self {
        Self { user_namespace: root.separates(document), root: root.warning(document), ..self }
    }

    pub(super) fn warnings(&self) -> impl Iterator<Item = String> {
        let unseen = self.unseen.iter().map(ToString::to_string);
        self.taken_out.iter().map(ToString::to_string).chain(unseen).chain(self.root.clone())
    }
}

/// Decides on the fields of `pod` that would bypass the slices of `document`, by the rules of `policy`.
pub fn fit(pod: &Value, document: &RequestDocument, policy: &Policy) -> Result<Fit, Unfit> {
    Ok(Fit {
        user_namespace: false,
        root: None,
        scheduler: scheduler(pod, policy)?,
        node: node(pod, policy.spec().node_name)?,
        taken_out: environment::leading_past(pod, document, policy.spec().environment)?,
        unseen: unseen::unseen(pod, document),
    })
}

fn text<'p>(pod: &'p Value, key: &str) -> Option<&'p str> {
    pod["spec"][key].as_str().filter(|text| !text.is_empty())
}

/// The scheduler for the pod: the policy's. If the policy names none, the pod keeps its own, because then every
/// scheduler of the cluster calls the extender. A dialect's scheduler, which moved manifests still name, is always
/// replaced.
fn scheduler(pod: &Value, policy: &Policy) -> Result<String, Unfit> {
    let wanted = policy.scheduler_name();
    let found = text(pod, "schedulerName").unwrap_or(DEFAULT_SCHEDULER);
    // Manifests of a dialect move over unchanged, so its scheduler is replaced and not refused, like the API server's
    // default.
    if is_scheduler_of(found, &policy.spec().dialects) || found == DEFAULT_SCHEDULER {
        let given = if wanted.is_empty() { DEFAULT_SCHEDULER } else { wanted };
        return Ok(given.to_owned());
    }
    if wanted.is_empty() || found == wanted {
        return Ok(found.to_owned());
    }
    Err(Unfit::Scheduler { found: found.to_owned(), wanted: wanted.to_owned() })
}

/// The node that the pod names. With it set, the pod would bypass the scheduler.
fn node(pod: &Value, rule: NodeNameRule) -> Result<Option<String>, Unfit> {
    match (text(pod, "nodeName"), rule) {
        (None, _) => Ok(None),
        (Some(_), NodeNameRule::Refuse) => Err(Unfit::NodeName(AskError::NodeName)),
        (Some(node), NodeNameRule::Affinity) => Ok(Some(node.to_owned())),
    }
}

#[cfg(test)]
#[path = "fit_tests.rs"]
mod tests;
