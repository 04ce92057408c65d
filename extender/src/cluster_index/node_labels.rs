//! The labels of Nodes, as little memory as they can have. Policies and pods that come later may select by any of them,
//! so all are stored.

use crate::shared::Shared;
use kerf_core::selector::Labels;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The key and the value of a label.
type Label = (String, String);

/// The labels of one Node, sorted by key. Most labels are those of many Nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NodeLabels(Box<[Arc<Label>]>);

impl NodeLabels {
    /// These labels, as far as possible by the ones that other Nodes have.
    pub fn new(labels: BTreeMap<String, String>, known: &mut Shared<Label>) -> Self {
        Self(labels.into_iter().map(|label| known.share(label)).collect())
    }
}

impl Labels for NodeLabels {
    fn value(&self, key: &str) -> Option<&str> {
        let found = self.0.binary_search_by(|label| label.0.as_str().cmp(key)).ok()?;
        Some(&self.0[found].1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_label_is_found_and_shared() {
        let mut known = Shared::default();
        let map = |host: &str| {
            let labels = [("zone", "a"), ("host", host), ("arch", "amd64")];
            labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into()
        };
        let [first, second] = ["one", "two"].map(|host| NodeLabels::new(map(host), &mut known));
        for (key, value) in [("zone", Some("a")), ("host", Some("one")), ("arch", Some("amd64")), ("b", None)]
        {
            assert_eq!(first.value(key), value, "{key}");
        }
        let shared = first.0.iter().zip(&second.0).filter(|(one, two)| Arc::ptr_eq(one, two));
        assert_eq!(shared.count(), 2);
    }
}
