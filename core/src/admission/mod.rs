//! The decision on a pod that is created. The webhook answers by it, and `kerf policy` gives the same answer without a
//! cluster.

mod container;
mod environment;
mod fit;
mod match_condition;
mod restored;
mod root;
mod unseen;

pub use container::CONTAINERS;
pub use environment::Variable;
pub use fit::{Fit, Unfit, fit};
pub use match_condition::MatchCondition;
pub use restored::{Restored, restored};
pub use root::Exposed;
pub use unseen::Unseen;

use crate::contract::RequestDocument;
use crate::kind::Kind;
use crate::policy::{self, Choice, Denied, Policies, Policy, Supply, Undecided};
use crate::request::{self, AskError, KnownModels, Namespace, PodAsk, PodView, Reading};
use root::Root;
use serde::Deserialize;
use serde_json::Value;
use thiserror::Error;

/// A pod that is admitted with slices.
#[derive(Debug)]
pub struct Admitted<'p> {
    /// The policy that matches the pod.
    pub policy: &'p Policy,
    /// The request document for the pod's annotation.
    pub document: RequestDocument,
    /// Whether the pod carried this decision already, because another webhook changed it after kerf.
    pub again: bool,
    /// The changes to fields that would bypass the slices.
    pub fit: Fit,
    /// The warnings that the user gets.
    pub warnings: Vec<String>,
}

/// Why a pod is refused; the user reads its text.
#[derive(Debug, Error)]
pub enum Refusal {
    /// The pod's request cannot be read.
    #[error(transparent)]
    Ask(#[from] AskError),
    /// The policy forbids what the pod asks for.
    #[error(transparent)]
    Policy(#[from] Denied),
    /// A field of the pod would bypass kerf.
    #[error(transparent)]
    Unfit(#[from] Unfit),
    /// The pod's policy cannot be decided yet.
    #[error(transparent)]
    Undecided(#[from] Undecided),
    /// No policy matches the pod, which asks for a slice.
    #[error(
        "no policy of kerf's matches a pod of namespace {0}, so it may not ask for a slice; ask an admin for a GpuPolicy that does"
    )]
    NoPolicy(String),
    /// The object is not a readable pod.
    #[error("failed to read the pod: {0}")]
    Pod(#[from] serde_json::Error),
}

impl Refusal {
    /// All values that [`reason`](Self::reason) can return.
    pub const REASONS: [&str; 6] =
        ["request", "policy", "bypass", "no-policy", "unreadable", "unknown-namespace"];

    /// The kind of refusal in one word, for metrics.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        let [request, policy, bypass, no_policy, unreadable, unknown_namespace] = Self::REASONS;
        match self {
            Self::Ask(_) => request,
            Self::Policy(_) => policy,
            Self::Unfit(_) => bypass,
            Self::NoPolicy(_) => no_policy,
            Self::Pod(_) => unreadable,
            Self::Undecided(_) => unknown_namespace,
        }
    }
}

/// Decides on `pod`, a Pod's JSON that is created in `namespace`; `None` if it asks for no slice.
///
/// A pod that carries fields which only kerf writes is decided on without them; see [`restored`]. If a policy selects
/// by labels of the namespace and these are not known, the pod is refused.
pub fn decide<'p, 'n>(
    pod: &Value,
    namespace: impl Into<Namespace<'n>>,
    policies: &'p Policies,
    supply: &Supply,
) -> Result<Option<Admitted<'p>>, Refusal> {
    let restored = restored(pod);
    let view = PodView::deserialize(&*restored.pod)?;
    let namespace = namespace.into();
    let policy = policies.decided(&view.facts(namespace, &request::models_named(&view)))?;
    // This comes before the request is read, because a pod with a mistake in its request must be refused by the policy
    // too.
    if let Some((policy, reason)) = policy.and_then(|policy| Some((policy, policy.deny()?))) {
        return denied(&view, policies, policy, reason);
    }
    let reading = policy.map_or_else(
        || Reading::without_policy(&policies.dialects()),
        |policy| policy.spec().reading(supply.largest_gpu()),
    );
    let Some(mut ask) = read(&restored, &view, &reading)? else { return Ok(None) };
    let policy = policy.ok_or_else(|| Refusal::NoPolicy(namespace.name.to_owned()))?;
    let known = || KnownModels::with_catalog(supply.models().chain(policies.models()));
    let unknown = request::resolve_models(&view, &mut ask.gpus, known)?;
    check_nodes(&view, policy)?;
    let choose = |policy: &Policy| -> Result<Choice, Denied> {
        let mut choice = policy::choose(policy, supply, &ask)?;
        // Recorded so that `restored` can put the limits back if kerf is called for this pod again.
        choice.document.asked = Some(request::asked_limits(&view));
        choice.document.nodes.clone_from(&policy.spec().node_selector);
        choice.document.user_namespace = restored.pod["spec"]["hostUsers"] == false;
        Ok(choice)
    };
    let root = Root::from_pod(&restored.pod, policy.spec().mps.root_containers);
    let without_mps = || choose(&policy.without(Kind::Mps));
    let (root, choice) = root.settle(choose(policy)?, supply, without_mps).map_err(Unfit::Root)?;
    let Choice { document, warnings } = choice;
    let fit = fit(&restored.pod, &document, policy)?.with_root(&root, &document);
    let again = restored.former.as_ref().is_some_and(|former| *former == document);
    // The decision is the same as before, so its warnings are not repeated.
    if again {
        let warnings = restored.warning(true).into_iter().chain(fit.warnings()).collect();
        return Ok(Some(Admitted { policy, document, again, fit, warnings }));
    }
    let unknown = unknown.iter().map(ToString::to_string);
    let warnings = unknown.chain(warnings.iter().map(ToString::to_string));
    let warnings = restored.warning(false).into_iter().chain(warnings);
    let warnings = warnings.chain(fit.warnings()).collect();
    Ok(Some(Admitted { policy, document, again, fit, warnings }))
}

/// Reads the pod's request. A container that was injected after the pod's admission does not change the meaning of
/// annotations without a container's name, unless it asks for slices too.
fn read(restored: &Restored, view: &PodView, reading: &Reading) -> Result<Option<PodAsk>, AskError> {
    let is_one =
        |ask: &PodAsk| ask.containers.iter().filter(|container| container.role.is_app()).count() == 1;
    let named = restored.with_names(view).and_then(|named| request::read(&named, reading).ok()?);
    named.filter(is_one).map_or_else(|| request::read(view, reading), |ask| Ok(Some(ask)))
}

/// Decides on a pod whose policy has `deny`. The pod is refused if it asks in any way that some policy accepts, even
/// with mistakes.
fn denied<'p>(
    view: &PodView,
    policies: &Policies,
    policy: &Policy,
    reason: &str,
) -> Result<Option<Admitted<'p>>, Refusal> {
    let dialects = policies.dialects();
    let reading = Reading { dialects: &dialects, ..Reading::without_policy(&dialects) };
    if let Ok(None) = request::read(view, &reading) {
        return Ok(None);
    }
    let (policy, reason) = (policy.name().to_owned(), reason.to_owned());
    Err(Denied::Nothing { policy, reason }.into())
}

/// Refuses a pod whose `nodeSelector` contradicts its policy's.
fn check_nodes(view: &PodView, policy: &Policy) -> Result<(), Denied> {
    let required = &policy.spec().node_selector;
    let other = required.iter().find_map(|(key, wanted)| {
        let found = view.spec.node_selector.get(key).filter(|found| *found != wanted)?;
        Some(Denied::Nodes {
            key: key.clone(),
            found: found.clone(),
            wanted: wanted.clone(),
            policy: policy.name().to_owned(),
        })
    });
    other.map_or(Ok(()), Err)
}

#[cfg(test)]
mod bounds_tests;
