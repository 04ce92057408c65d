//! The match condition of the webhook. The webhook fails closed, so the API server must call it only for pods that ask
//! kerf under the policies in force. The API server evaluates a CEL expression. The expression and
//! [`MatchCondition::matches`] come from the same table.

use crate::keys;
use crate::policy::Policies;
use crate::quantity::parse_count;
use crate::request::{ContainerView, Dialect, PodView, Words};
use std::collections::BTreeSet;

/// The match condition of the webhook for pods. It depends on the dialects of the policies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MatchCondition {
    annotations: BTreeSet<&'static str>,
    resources: BTreeSet<&'static str>,
    prefixes: BTreeSet<&'static str>,
}

/// The parts of the expression that do not depend on policies: before the dialects' annotations, before their
/// resources, and after both.
///
/// A dialect's resource with the amount 0 does not match, because charts write 0 for no GPU; the API server writes
/// every amount of nothing as "0". `kerf.dev/movable` does not match either, because a cluster may set it on all pods.
const PARTS: [&str; 3] = [
    "has(object.metadata.labels) && object.metadata.labels.exists(k, k.startsWith('kerf.dev/')) \
     || has(object.metadata.annotations) && object.metadata.annotations.exists(k, \
     k.startsWith('kerf.dev/') && k != 'kerf.dev/movable'",
    ") || [has(object.spec.containers) ? object.spec.containers : null, \
     has(object.spec.initContainers) ? object.spec.initContainers : null].exists(l, l != null && l.exists(c, \
     has(c.resources) && [has(c.resources.limits) ? c.resources.limits : {}, \
     has(c.resources.requests) ? c.resources.requests : {}].exists(m, m.exists(k, \
     k.startsWith('kerf.dev/') || k.startsWith('gpu-') \
     || (k.matches('^nvidia[.]com/gpu-[0-9]+gb([.]shared)?$')",
    ") && string(m[k]) != '0'))))",
];

impl MatchCondition {
    /// Name of the webhook with the condition in the `MutatingWebhookConfiguration`.
    pub const WEBHOOK: &str = "pods.kerf.dev";
    /// Name of the condition in this webhook.
    pub const NAME: &str = "asks-for-gpus";

    /// The condition for pods that ask by kerf's own keys or in one of `dialects`.
    #[must_use]
    pub fn for_dialects(dialects: &BTreeSet<Dialect>) -> Self {
        let words = || dialects.iter().map(|dialect| Words::for_dialect(*dialect));
        Self {
            annotations: words().flat_map(|words| words.annotations).copied().collect(),
            resources: words().flat_map(|words| words.resources).copied().collect(),
            prefixes: words().flat_map(|words| words.prefixes).copied().collect(),
        }
    }

    /// The narrowest condition that matches every pod which may ask under `policies`.
    #[must_use]
    pub fn for_policies(policies: &Policies) -> Self {
        Self::for_dialects(&policies.dialects())
    }

    /// The condition that matches pods of all dialects.
    #[must_use]
    pub fn widest() -> Self {
        Self::for_dialects(&Dialect::ALL.into())
    }

    /// The condition with this expression, whose blanks may differ; `None` if kerf writes no such expression.
    #[must_use]
    pub fn parse(expression: &str) -> Option<Self> {
        let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        let found = words(expression);
        let is_in = |word: &&str| found.contains(&format!("'{word}'"));
        let has_all = |dialect: &Dialect| {
            let Words { resources, prefixes, annotations } = Words::for_dialect(*dialect);
            [resources, prefixes, annotations].into_iter().flatten().all(is_in)
        };
        // kerf writes only one expression for each set of dialects.
        let condition = Self::for_dialects(&Dialect::ALL.into_iter().filter(has_all).collect());
        (condition.expression() == found).then_some(condition)
    }

    /// The dialects whose pods all meet the condition.
    pub fn dialects(&self) -> impl Iterator<Item = Dialect> {
        Dialect::ALL
            .into_iter()
            .filter(|dialect| self.covers(&Self::for_dialects(&BTreeSet::from([*dialect]))))
    }

    /// Whether every pod that meets `other` meets this one too.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        self.annotations.is_superset(&other.annotations)
            && self.resources.is_superset(&other.resources)
            && self.prefixes.is_superset(&other.prefixes)
    }

    /// The condition for pods that meet one of the two.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        Self {
            annotations: &self.annotations | &other.annotations,
            resources: &self.resources | &other.resources,
            prefixes: &self.prefixes | &other.prefixes,
        }
    }

    /// The condition as a CEL expression.
    #[must_use]
    pub fn expression(&self) -> String {
        let [labels, containers, end] = PARTS;
        let one_of = |keys: &BTreeSet<&str>| {
            let quoted: Vec<String> = keys.iter().map(|key| format!("'{key}'")).collect();
            if quoted.is_empty() { String::new() } else { format!(" || k in [{}]", quoted.join(", ")) }
        };
        let (annotations, resources) = (one_of(&self.annotations), one_of(&self.resources));
        let prefixes: Vec<String> =
            self.prefixes.iter().map(|prefix| format!(" || k.startsWith('{prefix}')")).collect();
        let prefixes = prefixes.concat();
        [labels, &annotations, containers, &resources, &prefixes, end].concat()
    }

    /// Whether a pod meets the condition, with the result that the API server would compute.
    #[must_use]
    pub fn matches(&self, pod: &PodView) -> bool {
        let noted =
            |key: &String| is_ours(key) && key != keys::MOVABLE || self.annotations.contains(key.as_str());
        pod.metadata.labels.keys().any(|key| is_ours(key))
            || pod.metadata.annotations.keys().any(noted)
            || pod.spec.in_order().any(|(container, _)| self.is_met_by(container))
    }

    fn is_met_by(&self, container: &ContainerView) -> bool {
        let entries = container.resources.limits.iter().chain(&container.resources.requests);
        entries.into_iter().any(|(name, amount)| {
            let always = is_ours(name) || name.starts_with("gpu-");
            let in_dialect = self.resources.contains(name.as_str())
                || self.prefixes.iter().any(|prefix| name.starts_with(prefix))
                || is_share(name);
            always || in_dialect && parse_count(amount) != Some(0)
        })
    }
}

fn is_ours(key: &str) -> bool {
    key.split_once('/').is_some_and(|(group, _)| group == keys::GROUP)
}

/// Whether a resource name looks like `nvidia.com/gpu-10gb` or `nvidia.com/gpu-10gb.shared`, which only kerf serves.
fn is_share(name: &str) -> bool {
    let size = name.strip_prefix("nvidia.com/gpu-");
    let size = size.and_then(|size| size.strip_suffix(".shared").unwrap_or(size).strip_suffix("gb"));
    size.is_some_and(|digits| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()))
}

#[cfg(test)]
#[path = "match_condition_tests.rs"]
mod tests;
