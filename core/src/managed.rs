//! Whose a node's GPUs are, by its labels: kerf's own, or those of NVIDIA's device plugin.

use crate::{keys, nvidia_keys};
use std::collections::BTreeMap;

/// Whether a node's GPUs are kerf's own, by its labels.
///
/// It is so where the chart puts the agent, as it does by default: [`keys::MANAGED`] decides if it is `true` or `false`; of
/// other nodes those are kerf's from which an admin has taken NVIDIA's device plugin though they have GPUs, and those that nos
/// partitioned. Where the chart's `managedNodes` says otherwise, what a node is for kerf is told by its GpuNode.
#[must_use]
pub fn is_managed(labels: &BTreeMap<String, String>) -> bool {
    let is = |key: &str, value: &str| labels.get(key).is_some_and(|found| found == value);
    let is_freed = || is(nvidia_keys::PRESENT, "true") && is(nvidia_keys::DEPLOY_DEVICE_PLUGIN, "false");
    let is_nos = || ["mig", "mps"].iter().any(|kind| is(keys::NOS_PARTITIONING, kind));
    is(keys::MANAGED, "true") || !is(keys::MANAGED, "false") && (is_freed() || is_nos())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRESENT: (&str, &str) = ("nvidia.com/gpu.present", "true");
    const OFF: (&str, &str) = ("nvidia.com/gpu.deploy.device-plugin", "false");
    const NOS: &str = "nos.nebuly.com/gpu-partitioning";

    #[test]
    fn a_node_is_kerfs_by_its_own_label_by_nvidias_and_by_noss() {
        let (own, not) = (("kerf.dev/managed", "true"), ("kerf.dev/managed", "false"));
        for (labels, managed) in [
            (&[][..], false),
            (&[own], true),
            (&[not], false),
            (&[("kerf.dev/managed", "")], false),
            (&[PRESENT], false),
            (&[OFF], false),
            (&[PRESENT, OFF], true),
            (&[("nvidia.com/gpu.present", "false"), OFF], false),
            (&[PRESENT, ("nvidia.com/gpu.deploy.device-plugin", "true")], false),
            (&[(NOS, "mig")], true),
            (&[(NOS, "mps")], true),
            (&[(NOS, "hybrid")], false),
            (&[not, PRESENT, OFF], false),
            (&[not, (NOS, "mig")], false),
            (&[own, PRESENT, (NOS, "hybrid")], true),
        ] {
            let read = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
            assert_eq!(is_managed(&read), managed, "{labels:?}");
        }
    }
}
