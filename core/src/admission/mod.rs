//! What becomes of a pod that is created: the webhook's answer, which `kerf policy` gives too before there is a cluster.

mod container;
mod environment;
mod fit;
mod match_condition;
mod unseen;

pub use container::CONTAINERS;
pub use environment::Variable;
pub use fit::{Fit, Unfit, fit};
pub use match_condition::MatchCondition;
pub use unseen::Unseen;

use crate::contract::{RequestDocument, UnreadableRequest};
use crate::keys;
use crate::policy::{self, Denied, Policies, Policy, Supply};
use crate::request::{self, Agreement, AskError, Field, NodeSelection, PodView, Reading};
use serde::Deserialize;
use serde_json::Value;
use std::borrow::Cow;
use thiserror::Error;

/// A pod that goes in with slices.
#[derive(Debug)]
pub struct Admitted<'p> {
    /// The policy that is for it.
    pub policy: &'p Policy,
    /// What it asks for.
    pub document: RequestDocument,
    /// Whether it carries the document already: it was admitted, and another webhook changed it since.
    pub again: bool,
    /// What becomes of its parts that would lead past its slices.
    pub fit: Fit,
    /// What the user should know.
    pub warnings: Vec<String>,
}

/// Why a pod is refused.
#[derive(Debug, Error)]
pub enum Refusal {
    /// It asks wrongly.
    #[error(transparent)]
    Ask(#[from] AskError),
    /// The policy forbids what it asks.
    #[error(transparent)]
    Policy(#[from] Denied),
    /// Its request document cannot be read.
    #[error(transparent)]
    Document(#[from] UnreadableRequest),
    /// It would go past kerf.
    #[error(transparent)]
    Unfit(#[from] Unfit),
    /// No policy is for it.
    #[error(
        "no policy of kerf's matches a pod of namespace {0}, so it may not ask for a slice; ask an admin for a GpuPolicy that does"
    )]
    NoPolicy(String),
    /// It is no pod.
    #[error("failed to read the pod: {0}")]
    Pod(#[from] serde_json::Error),
}

impl Refusal {
    /// What [`reason`](Self::reason) may be.
    pub const REASONS: [&str; 6] = ["request", "policy", "document", "bypass", "no-policy", "unreadable"];

    /// One word for what kind of refusal it is.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        let [request, policy, document, bypass, no_policy, unreadable] = Self::REASONS;
        match self {
            Self::Ask(_) => request,
            Self::Policy(_) => policy,
            Self::Document(_) => document,
            Self::Unfit(_) => bypass,
            Self::NoPolicy(_) => no_policy,
            Self::Pod(_) => unreadable,
        }
    }
}

/// Decides on `pod`, a Pod's JSON, which is created in `namespace`; `None` if it asks for no slice and goes in as it is.
pub fn decide<'p>(
    pod: &Value,
    namespace: &str,
    policies: &'p Policies,
    supply: &Supply,
) -> Result<Option<Admitted<'p>>, Refusal> {
    let view = PodView::deserialize(pod)?;
    let annotations = &view.metadata.annotations;
    if let Some(key) = [keys::ASSIGNMENT, keys::ROOM].into_iter().find(|key| annotations.contains_key(*key)) {
        return Err(AskError::Reserved(Field::Annotation(key.to_owned())).into());
    }
    let policy = policies.of_pod(&view.facts(namespace, &request::models_named(&view)));
    let no_policy = || Refusal::NoPolicy(namespace.to_owned());
    if let Some(text) = annotations.get(keys::REQUEST) {
        let document = RequestDocument::parse(text)?;
        return readmit(pod, &view, document, policy.ok_or_else(no_policy)?, policies).map(Some);
    }
    let reading = policy.map_or_else(
        || Reading::without_policy(&policies.dialects()),
        |policy| Reading::of(policy.spec(), supply.largest_gpu()),
    );
    let Some(ask) = request::read(&view, &reading)? else { return unasked(&view).map(|()| None) };
    let policy = policy.ok_or_else(no_policy)?;
    let selected = supply.selected(&NodeSelection::of(&view.spec));
    let policy::Choice { mut document, warnings } = policy::choose(policy, &selected, &ask)?;
    if let Some(chosen) = &mut document.chosen {
        chosen.selects_nodes = matches!(selected, Cow::Owned(_));
    }
    let fit = fit(pod, &document, policy)?;
    let warnings = warnings.iter().map(ToString::to_string).chain(fit.warnings()).collect();
    Ok(Some(Admitted { policy, document, again: false, fit, warnings }))
}

/// A pod that asks for nothing goes in as it is. With kerf's label it would pass for one that was admitted.
fn unasked(view: &PodView) -> Result<(), Refusal> {
    if view.metadata.labels.contains_key(keys::SLICED) {
        return Err(AskError::Reserved(Field::Label(keys::SLICED.to_owned())).into());
    }
    Ok(())
}

/// A pod that carries a request document comes a second time because another webhook changed it, or somebody copied it. The
/// document is checked by the rules that would have made it, and is not believed where it does not match its pod.
///
/// What asks must be as the document says: only the user could have written it otherwise. What follows from that, another
/// webhook may have changed that knows nothing of kerf, and it is put right without a new choice.
fn readmit<'p>(
    pod: &Value,
    view: &PodView,
    document: RequestDocument,
    policy: &'p Policy,
    policies: &Policies,
) -> Result<Admitted<'p>, Refusal> {
    match request::agreement(view, &document, policy.spec().node_name)? {
        Agreement::Full => {}
        Agreement::AllBut(key) => {
            let made = made_by(policies, &document).is_some();
            return Err(if made { Denied::Changed { key } } else { Denied::Forged }.into());
        }
        Agreement::None => return Err(Denied::Forged.into()),
    }
    if let Some(chosen) = made_by(policies, &document).filter(|chosen| chosen.name() != policy.name()) {
        let (chosen, now) = (chosen.name().to_owned(), policy.name().to_owned());
        return Err(Denied::OtherPolicy { chosen, now }.into());
    }
    policy::verify(policy, &document)?;
    let fit = fit(pod, &document, policy)?;
    let warnings = fit.warnings().collect();
    Ok(Admitted { policy, document, again: true, fit, warnings })
}

/// The policy in force that is named in the document and could have made it.
fn made_by<'p>(policies: &'p Policies, document: &RequestDocument) -> Option<&'p Policy> {
    let named = document.chosen.as_ref().map(|chosen| chosen.policy.as_str());
    let found = policies.pods.iter().find(|policy| Some(policy.name()) == named);
    found.filter(|policy| policy::verify(policy, document).is_ok())
}
