//! Whether NVIDIA's programs have followed a node's labels. Until then the node still advertises devices that the
//! labels have already removed, and the plugin would reload under a pod that gets one.

use super::SeenNode;
use super::expected_allocatable::ExpectedAllocatable;
use super::node::mig_state;
use super::record::PluginLabels;
use crate::nvidia_keys::is_plugin_resource;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// GPU feature discovery runs once a minute, so after this many seconds the programs count as started even if no device
/// changed.
const TIMEOUT: u64 = 60;

/// A change of labels that NVIDIA's programs may not have followed yet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Propagation {
    /// When the labels were written, in seconds since 1970 by the clock of the leader that wrote them.
    pub since: u64,
    /// The plugin's devices in the node's allocatable at that time.
    pub shown: BTreeMap<String, u64>,
    /// Whether the MIG manager still has to start cutting for these labels: until it was seen at work, its state label
    /// is of an older cut.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cuts: bool,
}

impl Propagation {
    pub(super) fn begin(node: &SeenNode, set: &PluginLabels, now: u64) -> Self {
        let cuts = set.mig != PluginLabels::from_labels(&node.labels).mig;
        Self { since: now, shown: devices(&node.allocatable), cuts }
    }

    /// Whether the node advertises the devices of its labels, as far as kerf can see. `age` is the time since the
    /// labels were written.
    pub(super) fn is_over(&self, node: &SeenNode, age: u64, timeout: u64) -> bool {
        !is_cutting(node) && (is_long(age, timeout) || !self.cuts && self.shown != devices(&node.allocatable))
    }

    /// The same after a rollback: the plugin may start once more with the former labels before it reads the new ones.
    pub(super) fn has_left(
        &self,
        expected: &ExpectedAllocatable,
        node: &SeenNode,
        age: u64,
        timeout: u64,
    ) -> bool {
        let is_left = is_long(age, timeout) || !expected.is_met_by(&node.allocatable);
        is_left && self.is_over(node, age, timeout)
    }

    /// The record to write once the MIG manager was seen at work, because every state that it reports after that is
    /// about these labels.
    pub(super) fn noticing(&self, node: &SeenNode) -> Option<Self> {
        let seen = || Self { since: self.since, shown: BTreeMap::new(), cuts: false };
        (self.cuts && is_cutting(node)).then(seen)
    }
}

/// The MIG manager's state label, if it has been at work for longer than the plugin's timeout.
pub(super) fn stuck(node: &SeenNode, age: u64, timeout: u64) -> Option<&str> {
    mig_state(node).filter(|_| is_cutting(node) && age >= timeout)
}

fn is_long(age: u64, timeout: u64) -> bool {
    age >= TIMEOUT.min(timeout)
}

fn is_cutting(node: &SeenNode) -> bool {
    matches!(mig_state(node), Some("pending" | "rebooting"))
}

fn devices(allocatable: &BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    let shown = allocatable.iter().filter(|(name, count)| is_plugin_resource(name) && **count > 0);
    shown.map(|(name, count)| (name.clone(), *count)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nvidia_keys::MIG_STATE;
    use crate::plugin_layout::testing::{labels, numbers};

    fn node(state: &str, devices: u64) -> SeenNode {
        let (labels, allocatable) = (labels(&[(MIG_STATE, state)]), numbers(&[("nvidia.com/gpu", devices)]));
        SeenNode { labels, allocatable, ..SeenNode::default() }
    }

    #[test]
    fn labels_are_followed_after_a_change_of_devices_or_a_minute() {
        let before = node("success", 4);
        let set = |mig: Option<&str>| PluginLabels { config: None, mig: mig.map(str::to_owned) };
        let plain = Propagation::begin(&before, &set(None), 1000);
        let cut = Propagation::begin(&before, &set(Some("all-disabled")), 1000);
        let seen = cut.noticing(&node("pending", 0)).unwrap();
        assert_eq!((plain.noticing(&node("pending", 0)), seen.noticing(&node("pending", 0))), (None, None));
        for (propagation, state, devices, after, is_over) in [
            (&plain, "success", 4, 59, false),
            (&plain, "success", 1, 1, true),
            (&plain, "success", 4, 60, true),
            (&plain, "pending", 1, 60, false),
            (&cut, "success", 1, 59, false),
            (&cut, "success", 1, 60, true),
            (&cut, "rebooting", 0, 60, false),
            (&seen, "success", 4, 5, true),
            (&seen, "success", 0, 5, false),
            (&seen, "failed", 1, 5, true),
        ] {
            let found = propagation.is_over(&node(state, devices), after, 180);
            assert_eq!(found, is_over, "{propagation:?}: {state}, {devices} devices after {after} s");
        }
        assert!(plain.is_over(&node("success", 4), 4, 4), "the plugin has no longer than its time-out");
    }

    #[test]
    fn a_plugin_that_starts_with_the_former_labels_has_not_followed() {
        let propagation = Propagation::begin(&node("success", 0), &PluginLabels::default(), 1000);
        let expected = ExpectedAllocatable::Counts([("nvidia.com/gpu".to_owned(), 4)].into());
        for (devices, after, has_left) in [(4, 59, false), (1, 1, true), (4, 60, true)] {
            let found = propagation.has_left(&expected, &node("success", devices), after, 180);
            assert_eq!(found, has_left, "{devices} devices after {after} s");
        }
    }
}
