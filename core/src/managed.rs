//! Whose a node's GPUs are, by its labels: kerf's own, or those of NVIDIA's device plugin.

use crate::keys;
use std::collections::BTreeMap;

/// Whether a node's GPUs are kerf's own, by its labels.
#[must_use]
pub fn is_managed(labels: &BTreeMap<String, String>) -> bool {
    let value = |key: &str| labels.get(key).map(String::as_str);
    value(keys::MANAGED) == Some("true") || matches!(value(keys::NOS_PARTITIONING), Some("mig" | "mps"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_admin_says_by_either_label_that_a_node_is_kerfs() {
        for (label, managed) in [
            (("kerf.dev/managed", "true"), true),
            (("kerf.dev/managed", "false"), false),
            (("nos.nebuly.com/gpu-partitioning", "mig"), true),
            (("nos.nebuly.com/gpu-partitioning", "mps"), true),
            (("nos.nebuly.com/gpu-partitioning", "hybrid"), false),
        ] {
            let labels = [(label.0.to_owned(), label.1.to_owned())].into();
            assert_eq!(is_managed(&labels), managed, "{label:?}");
        }
    }
}
