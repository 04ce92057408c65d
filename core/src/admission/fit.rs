//! Whether a pod would come to its slices: who schedules it, where it may go, and what of its own would lead past them.

use super::environment::{self, Variable};
use super::root::{Exposed, Root};
use super::unseen::{self, Unseen};
use crate::contract::RequestDocument;
use crate::policy::{NodeNameRule, Policy};
use crate::request::{AskError, is_scheduler_of};
use serde_json::Value;
use thiserror::Error;

/// The name that the API server gives pods that name no scheduler.
const DEFAULT_SCHEDULER: &str = "default-scheduler";

/// Something in the pod would lead past kerf, and the policy does not say to take it out.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Unfit {
    /// It names a scheduler that cannot cut.
    #[error(
        "spec.schedulerName: {found} does not cut GPUs; remove it, pods with slices are scheduled by {wanted}"
    )]
    Scheduler {
        /// The scheduler that it names.
        found: String,
        /// The policy's.
        wanted: String,
    },
    /// It names its node.
    #[error(transparent)]
    NodeName(AskError),
    /// Its processes could command the MPS daemon that it shares with others, and no other kind serves it.
    #[error("{0}; {remedy}", remedy = .0.remedy())]
    Root(Exposed),
    /// A container sets a variable by which it would see other GPUs than its own, or leave its limits.
    #[error(
        "container {container}, env[{name}]: it would lead past the pod's slice; remove it, kerf sets what the container needs"
    )]
    Environment {
        /// The container.
        container: String,
        /// The variable.
        name: String,
    },
}

/// What becomes of the parts of a pod that would lead past its slices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fit {
    /// The scheduler that the pod is given to.
    pub scheduler: String,
    /// The node that the pod is preset to, which becomes a node affinity.
    pub node: Option<String>,
    /// The variables that are taken out.
    pub taken_out: Vec<Variable>,
    /// What variables come from that are not seen.
    pub unseen: Vec<Unseen>,
    /// Whether it gets a user namespace, so that its root is nobody to an MPS daemon.
    pub user_namespace: bool,
    /// What its root processes lead to.
    root: Option<String>,
}

impl Fit {
    /// The same with what becomes of the pod's root processes.
    pub(super) fn with_root(self, root: &Root, document: &RequestDocument) -> Self {
        Self { user_namespace: root.separates(document), root: root.warning(document), ..self }
    }

    /// What the user should know of it.
    pub(super) fn warnings(&self) -> impl Iterator<Item = String> {
        let unseen = self.unseen.iter().map(ToString::to_string);
        self.taken_out.iter().map(ToString::to_string).chain(unseen).chain(self.root.clone())
    }
}

/// What `policy` makes of the parts of `pod` that would lead past the slices of `document`.
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

/// The policy's scheduler. A policy that names none leaves the pod's: the cluster's own asks the extender. A dialect's
/// scheduler, which manifests that come over from there name, is left in no case.
fn scheduler(pod: &Value, policy: &Policy) -> Result<String, Unfit> {
    let wanted = policy.scheduler_name();
    let found = text(pod, "schedulerName").unwrap_or(DEFAULT_SCHEDULER);
    if is_scheduler_of(found, &policy.spec().dialects) || found == DEFAULT_SCHEDULER {
        let given = if wanted.is_empty() { DEFAULT_SCHEDULER } else { wanted };
        return Ok(given.to_owned());
    }
    if wanted.is_empty() || found == wanted {
        return Ok(found.to_owned());
    }
    Err(Unfit::Scheduler { found: found.to_owned(), wanted: wanted.to_owned() })
}

/// The node that the pod names, with which it would go past the scheduler.
fn node(pod: &Value, rule: NodeNameRule) -> Result<Option<String>, Unfit> {
    match (text(pod, "nodeName"), rule) {
        (None, _) => Ok(None),
        (Some(_), NodeNameRule::Refuse) => Err(Unfit::NodeName(AskError::NodeName)),
        (Some(node), NodeNameRule::Affinity) => Ok(Some(node.to_owned())),
    }
}
