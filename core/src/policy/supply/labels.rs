//! The labels of nodes, by which pods choose nodes. Those that many nodes have are kept once.

use crate::keys;
use crate::kind::Kind;
use crate::names::NodeName;
use crate::nvidia_keys;
use crate::request::{NodeLabel, NodeSelection};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A label, and its value.
type Label = Arc<(Box<str>, Box<str>)>;

/// The label that is every node's name.
const HOSTNAME: &str = "kubernetes.io/hostname";

/// How many labels are kept before those that no node has any more are dropped for the first time.
const KEPT: usize = 512;

/// The labels of one node, by ascending key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Labels {
    /// Whether its host is called as the node is: that is not kept.
    is_host: bool,
    kept: Arc<[Label]>,
}

impl Labels {
    /// Whether a pod that says so may be on this node.
    pub fn are_selected(&self, name: &NodeName, nodes: &NodeSelection) -> bool {
        nodes.selects(name.as_str(), |key| self.label(name, key))
    }

    fn label<'l>(&'l self, name: &'l NodeName, key: &str) -> NodeLabel<'l> {
        if self.is_host && key == HOSTNAME {
            return NodeLabel::Is(name.as_str());
        }
        if !is_kept(key) {
            return NodeLabel::Unknown;
        }
        let found = self.kept.binary_search_by_key(&key, |label| &label.0);
        found
            .ok()
            .and_then(|at| self.kept.get(at))
            .map_or(NodeLabel::Missing, |label| NodeLabel::Is(&label.1))
    }
}

/// What agents and feature discovery write anew whenever a node's GPUs are cut is not kept.
fn is_kept(key: &str) -> bool {
    let is_size = || Kind::ALL.into_iter().any(|kind| keys::node_kind_label(kind) == key);
    let ours = key.starts_with(keys::GROUP) && is_size();
    !ours && !key.starts_with(nvidia_keys::MIG_PREFIX) && key != nvidia_keys::TIMESTAMP
}

/// The labels of all nodes.
#[derive(Debug, Default)]
pub(super) struct LabelIndex {
    nodes: Arc<BTreeMap<NodeName, Labels>>,
    all: BTreeSet<Label>,
    most: usize,
}

impl LabelIndex {
    /// Says what labels a node has, `None` for one that is of no matter, and whether they are others than before.
    pub fn show(&mut self, name: &NodeName, labels: Option<&BTreeMap<String, String>>) -> bool {
        let Some(labels) = labels else {
            return self.nodes.contains_key(name) && Arc::make_mut(&mut self.nodes).remove(name).is_some();
        };
        let is_host = labels.get(HOSTNAME).is_some_and(|host| host == name.as_str());
        let kept = || labels.iter().filter(|(key, _)| is_kept(key) && !(is_host && *key == HOSTNAME));
        let same =
            |(known, (key, value)): (&Label, (&String, &String))| *known.0 == **key && *known.1 == **value;
        let is_known = |before: &Labels| {
            before.is_host == is_host
                && before.kept.len() == kept().count()
                && before.kept.iter().zip(kept()).all(same)
        };
        if self.nodes.get(name).is_some_and(is_known) {
            return false;
        }
        let kept = kept().map(|(key, value)| self.once(key, value)).collect();
        Arc::make_mut(&mut self.nodes).insert(name.clone(), Labels { is_host, kept });
        if self.all.len() > self.most.max(KEPT) {
            self.all.retain(|label| Arc::strong_count(label) > 1);
            self.most = self.all.len().saturating_mul(2);
        }
        true
    }

    /// Forgets the nodes that are not there any more.
    pub fn retain(&mut self, is_there: impl Fn(&NodeName) -> bool) {
        if !self.nodes.keys().all(&is_there) {
            Arc::make_mut(&mut self.nodes).retain(|name, _| is_there(name));
        }
    }

    /// The labels of each node that is known.
    pub fn nodes(&self) -> Arc<BTreeMap<NodeName, Labels>> {
        self.nodes.clone()
    }

    fn once(&mut self, key: &str, value: &str) -> Label {
        let label = Arc::new((Box::from(key), Box::from(value)));
        if let Some(known) = self.all.get(&label) {
            return known.clone();
        }
        self.all.insert(label.clone());
        label
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_is_kept_once_and_no_longer_than_a_node_has_it() {
        let mut index = LabelIndex::default();
        for number in 0..4 * KEPT {
            let labels = [("pool".to_owned(), "a".to_owned()), ("id".to_owned(), number.to_string())].into();
            index.show(&NodeName::new((number % 2).to_string()), Some(&labels));
        }
        let nodes = index.nodes();
        let mut pools = nodes.values().map(|labels| &labels.kept[1]);
        assert!(Arc::ptr_eq(pools.next().unwrap(), pools.next().unwrap()));
        assert!(index.all.len() <= KEPT + 1, "{}", index.all.len());
    }
}
