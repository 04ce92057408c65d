//! Whether a node is managed by kerf's agent or belongs to NVIDIA's device plugin, by its labels.

use crate::selector::Labels;
use crate::{keys, nvidia_keys};

/// Whether a node is managed, by its labels.
///
/// This is the rule by which the chart's `DaemonSet` selects nodes by default. [`keys::MANAGED`] decides if it is
/// `true` or `false`. Without it, a node is managed if it has GPUs and an admin has switched NVIDIA's device plugin off
/// there, or if nos partitioned it. If the chart's `managedNodes` has another rule, the presence of a GpuNode decides.
#[must_use]
pub fn is_managed(labels: &impl Labels) -> bool {
    let is = |key: &str, value: &str| labels.value(key) == Some(value);
    let is_freed = || is(nvidia_keys::PRESENT, "true") && is(nvidia_keys::DEPLOY_DEVICE_PLUGIN, "false");
    let is_nos = || ["mig", "mps"].iter().any(|kind| is(keys::NOS_PARTITIONING, kind));
    is(keys::MANAGED, "true") || !is(keys::MANAGED, "false") && (is_freed() || is_nos())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    const PRESENT: (&str, &str) = ("nvidia.com/gpu.present", "true");
    const OFF: (&str, &str) = ("nvidia.com/gpu.deploy.device-plugin", "false");
    const NOS: &str = "nos.nebuly.com/gpu-partitioning";

    #[test]
    fn a_node_is_managed_by_the_labels_of_kerf_nvidia_or_nos() {
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
            let read = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
            let read: BTreeMap<_, _> = read.collect();
            assert_eq!(is_managed(&read), managed, "{labels:?}");
        }
    }
}
