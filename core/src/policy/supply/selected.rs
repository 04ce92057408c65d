//! The supply of the nodes that a pod may be on.

use super::index::NamedGpus;
use super::labels::Labels;
use super::{Alike, Gpus, Supply};
use crate::names::NodeName;
use crate::request::NodeSelection;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

impl Supply {
    /// The supply of the nodes that a pod may be on, owned where that is not all of it. Where none is known that it may be on, it is
    /// all: such a node may come, and nothing is known of what it will have.
    ///
    /// A node whose labels are not known is taken for one that it may be on.
    #[must_use]
    pub fn selected(&self, nodes: &NodeSelection) -> Cow<'_, Self> {
        if nodes.is_all() {
            return Cow::Borrowed(self);
        }
        let is_selected = |name: &NodeName| {
            self.labels.get(name).is_none_or(|labels: &Labels| labels.are_selected(name, nodes))
        };
        let managed = self.gpus.nodes.iter().filter(|(name, _)| is_selected(name)).cloned();
        let statics = self.statics.iter().filter(|(name, _)| is_selected(name));
        let managed: Vec<NamedGpus> = managed.collect();
        let statics: BTreeMap<_, _> = statics.map(|(name, node)| (name.clone(), node.clone())).collect();
        let found = managed.len() + statics.len();
        if found == 0 || found == self.gpus.nodes.len() + self.statics.len() {
            return Cow::Borrowed(self);
        }
        let gpus = Gpus::of(managed);
        Cow::Owned(Self { gpus: Arc::new(gpus), statics: Arc::new(statics), ..self.clone() })
    }
}

impl Gpus {
    /// The GPUs of these nodes.
    fn of(nodes: Vec<NamedGpus>) -> Self {
        let mut alike: BTreeMap<usize, Alike> = BTreeMap::new();
        for (_, gpu) in nodes.iter().flat_map(|(_, gpus)| gpus.iter()) {
            alike.entry(Arc::as_ptr(gpu).addr()).or_insert_with(|| (gpu.clone(), 0)).1 += 1;
        }
        Self { alike: alike.into_values().collect(), nodes }
    }
}

#[cfg(test)]
mod tests {
    use super::super::SupplyIndex;
    use super::*;
    use crate::contract::GpuNodeSpec;
    use crate::kind::Kind;
    use crate::testing::{node_status, static_node};
    use serde_json::{Value, json};

    fn labels(pool: &str, host: &str) -> BTreeMap<String, String> {
        let labels = [("pool", pool), ("kubernetes.io/hostname", host), ("nvidia.com/gpu.product", "GPU")];
        let written = [("kerf.dev/mig-max-gb", "80"), ("kerf.dev/managed", "true")];
        labels.into_iter().chain(written).map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
    }

    /// A pool of two H100, one of a T4, a static node whose labels are known, and a node whose labels are not.
    fn index() -> SupplyIndex {
        let mut index = SupplyIndex::default();
        for (name, model, pool) in
            [("a", "H100-80GB", "h100"), ("b", "H100-80GB", "h100"), ("t4", "T4-16GB", "t4")]
        {
            index.show(name.into(), &GpuNodeSpec::default(), &node_status(&[model]), true);
            assert!(index.show_labels(&name.into(), Some(&labels(pool, name))));
            assert!(!index.show_labels(&name.into(), Some(&labels(pool, name))), "nothing changed");
        }
        index.show_static("static".into(), Some(static_node(&[], &[("gpu", 2)])));
        index.show_labels(&"static".into(), Some(&[("pool".to_owned(), "static".to_owned())].into()));
        index
    }

    /// How many GPUs a pod with this spec may have: managed ones, and nodes with others.
    fn found(supply: &Supply, spec: Value) -> (u32, usize) {
        let nodes = NodeSelection::of(&serde_json::from_value(spec).unwrap());
        let selected = supply.selected(&nodes);
        (selected.gpus.alike.iter().map(|(_, count)| count).sum(), selected.statics.len())
    }

    #[test]
    fn a_pods_supply_is_that_of_the_nodes_that_it_may_be_on() {
        let supply = index().supply();
        let required = |key: &str, operator: &str, values: Value| {
            let terms = json!([{"matchExpressions": [{"key": key, "operator": operator, "values": values}]}]);
            let required =
                json!({"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}});
            json!({"affinity": {"nodeAffinity": required}})
        };
        for (spec, expected) in [
            (json!({}), (3, 1)),
            (json!({"nodeSelector": {"pool": "t4"}}), (1, 0)),
            (json!({"nodeSelector": {"pool": "static"}}), (0, 1)),
            (required("pool", "NotIn", json!(["t4"])), (2, 1)),
            (json!({"nodeSelector": {"kubernetes.io/hostname": "a"}}), (1, 0)),
            (json!({"nodeName": "b"}), (1, 0)),
            (json!({"nodeSelector": {"kerf.dev/mig-max-gb": "20"}}), (3, 1)),
            (json!({"nodeSelector": {"kerf.dev/managed": "true"}}), (3, 0)),
            (json!({"nodeSelector": {"pool": "to come"}}), (3, 1)),
        ] {
            assert_eq!(found(&supply, spec.clone()), expected, "{spec}");
        }
        let t4 = NodeSelection::of(&serde_json::from_value(json!({"nodeSelector": {"pool": "t4"}})).unwrap());
        assert_eq!(supply.selected(&t4).largest(Kind::Mig), None);
    }

    #[test]
    fn a_node_of_unknown_labels_may_be_meant_and_one_that_is_gone_is_not() {
        let mut index = index();
        let is_t4 = || json!({"nodeSelector": {"pool": "t4"}});
        index.show("new".into(), &GpuNodeSpec::default(), &node_status(&["T4-16GB"]), true);
        assert_eq!(found(&index.supply(), is_t4()), (2, 0));
        assert!(index.show_labels(&"new".into(), Some(&labels("h100", "other"))));
        assert_eq!(found(&index.supply(), is_t4()), (1, 0));
        assert_eq!(
            found(&index.supply(), json!({"nodeSelector": {"kubernetes.io/hostname": "other"}})),
            (1, 0)
        );
        assert!(index.show_labels(&"t4".into(), None), "its labels are not known any more");
        assert_eq!(found(&index.supply(), is_t4()), (1, 0));
        assert!(!index.show_labels(&"cpu".into(), Some(&[("pool".to_owned(), "t4".to_owned())].into())));
        index.retain_static(|name| name.as_str() == "new");
        assert_eq!(found(&index.supply(), is_t4()), (3, 0), "of three nothing is known");
    }
}
