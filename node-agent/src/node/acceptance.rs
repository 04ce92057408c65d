//! Whether the node accepts reservations.

use super::conflicts::Conflicts;
use super::facts::Facts;
use super::health::{Health, Neighbour};

/// Why no reservation is accepted now; `None` if they are.
pub(super) fn trouble(facts: &Facts, health: &Health, conflicts: &Conflicts) -> Option<String> {
    let knows_all = health.is_well(Neighbour::Nvml)
        && facts.account.is_known()
        && health.is_well(Neighbour::Pods)
        && health.has_answered(Neighbour::Policy)
        && !facts.inventory.expects_gpus();
    let unknown = || {
        let trouble = health.trouble().map(|(_, text)| text);
        trouble.unwrap_or_else(|| "the node is being read".to_owned())
    };
    let trouble = conflicts.upgrade_trouble().map(|(_, text)| text).or_else(|| conflicts.text());
    let trouble = trouble.or_else(|| facts.reservations.takeover_trouble());
    trouble.or_else(|| (!knows_all).then(unknown))
}
