//! A simulated cluster and its fixtures, for the tests of layouts.

use super::{
    ConfigMapWrite, Decision, FirstSeen, Holders, LayoutState, NodeRecord, OperatorSettings, PluginLabels,
    Seen, SeenClusterPolicy, SeenConfigMap, SeenNode, decide,
};
use crate::keys;
use crate::names::{NodeName, PodKey};
use crate::policy::{NodePolicyDocument, Policies};
use serde_json::{Value, json};
use std::collections::BTreeMap;

pub(super) fn labels(labels: &[(&str, &str)]) -> BTreeMap<String, String> {
    labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

pub(super) fn numbers(numbers: &[(&str, u64)]) -> BTreeMap<String, u64> {
    numbers.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect()
}

/// Node policies with these names, each for the nodes whose label `pool` is its name.
pub(super) fn policies(layouts: &[(&str, Value)]) -> Policies {
    let of_layout = |(name, plugin): &(&str, Value)| {
        let document: NodePolicyDocument = serde_json::from_value(json!({
            "apiVersion": keys::API_VERSION, "kind": "GpuNodePolicy", "metadata": {"name": name},
            "spec": {"match": {"labels": {"pool": name}}, "plugin": plugin},
        }))
        .unwrap();
        document.try_into().unwrap()
    };
    Policies { nodes: layouts.iter().map(of_layout).collect(), ..Policies::default() }
}

pub(super) fn sliced(replicas: u32) -> Value {
    json!({"timeSlicing": {"replicas": replicas}})
}

/// A cluster in which every decision is carried out at once.
#[derive(Clone)]
pub(super) struct World {
    pub(super) policies: Policies,
    pub(super) nodes: BTreeMap<NodeName, SeenNode>,
    pub(super) config_map: SeenConfigMap,
    pub(super) cluster_policy: Option<SeenClusterPolicy>,
    /// The monotonic clock of the leader, in seconds.
    pub(super) now: u64,
    /// Seconds by which its wall clock is ahead of that.
    pub(super) ahead: i64,
    pub(super) ages: FirstSeen,
    pub(super) has_bad_files: bool,
    pub(super) config_delay: u64,
    /// Reasons of the Events that were published.
    pub(super) reported: Vec<String>,
}

pub(super) const TIMEOUT: u64 = 180;

impl World {
    pub(super) fn new(layouts: &[(&str, Value)]) -> Self {
        Self {
            policies: policies(layouts),
            nodes: BTreeMap::new(),
            config_map: SeenConfigMap::default(),
            cluster_policy: None,
            now: 1000,
            ahead: 0,
            ages: FirstSeen::default(),
            has_bad_files: false,
            config_delay: 0,
            reported: Vec::new(),
        }
    }

    /// Adds a node of the pool with one GPU that no pod holds.
    pub(super) fn node(mut self, name: &str, pool: &str, product: &str) -> Self {
        let labels =
            labels(&[("pool", pool), ("nvidia.com/gpu.product", product), ("nvidia.com/gpu.count", "1")]);
        let allocatable = numbers(&[("nvidia.com/gpu", 1)]);
        let holders = Holders::Known(Vec::new());
        let boot = "first".to_owned();
        self.nodes
            .insert(name.into(), SeenNode { labels, allocatable, boot, holders, ..SeenNode::default() });
        self
    }

    pub(super) fn with_operator(mut self, settings: OperatorSettings) -> Self {
        let name = "cluster-policy".to_owned();
        self.cluster_policy = Some(SeenClusterPolicy { name, settings, is_ready: true, record: None });
        self
    }

    pub(super) fn node_mut(&mut self, name: &str) -> &mut SeenNode {
        self.nodes.get_mut(name).unwrap()
    }

    pub(super) fn label(&mut self, node: &str, key: &str, value: Option<&str>) {
        match value {
            Some(value) => drop(self.node_mut(node).labels.insert(key.to_owned(), value.to_owned())),
            None => drop(self.node_mut(node).labels.remove(key)),
        }
    }

    pub(super) fn hold(&mut self, node: &str, pods: &[&str]) {
        self.node_mut(node).holders =
            Holders::Known(pods.iter().map(|pod| PodKey::new("ns", *pod)).collect());
    }

    pub(super) fn shows(&mut self, node: &str, allocatable: &[(&str, u64)]) {
        self.node_mut(node).allocatable = numbers(allocatable);
    }

    fn ages(&self) -> FirstSeen {
        let mut ages = self.ages.clone();
        ages.look(self.now, &self.nodes, &self.config_map, self.cluster_policy.as_ref());
        ages
    }

    pub(super) fn decide(&self) -> Decision {
        decide(Seen {
            policies: &self.policies.layouts().collect::<Vec<_>>(),
            has_bad_files: self.has_bad_files,
            nodes: &self.nodes,
            config_map: &self.config_map,
            config_map_name: "kerf-device-plugin",
            cluster_policy: self.cluster_policy.as_ref(),
            timeout_seconds: TIMEOUT,
            config_delay_seconds: self.config_delay,
            now: self.now.saturating_add_signed(self.ahead),
            ages: &self.ages(),
        })
    }

    /// Carries out decisions until nothing is due.
    pub(super) fn settle(&mut self) -> Decision {
        for _ in 0..10 {
            self.ages = self.ages();
            let decision = self.decide();
            if !self.write(&decision) {
                return decision;
            }
        }
        panic!("it does not come to rest: {:?}", self.decide());
    }

    fn write(&mut self, decision: &Decision) -> bool {
        let mut wrote = false;
        if let Some(data) = &decision.config_map {
            let ConfigMapWrite { data, written } = data.clone();
            self.config_map = SeenConfigMap { data: Some(data), written, error: None };
            wrote = true;
        }
        if let (Some(write), Some(policy)) = (&decision.cluster_policy, &mut self.cluster_policy) {
            policy.settings = write.settings.clone();
            policy.record.clone_from(&write.record);
            wrote = true;
        }
        for (name, decision) in &decision.nodes {
            let node = self.nodes.get_mut(name).unwrap();
            if let Some(write) = &decision.write {
                let is_held = !matches!(&node.holders, Holders::Known(pods) if pods.is_empty());
                let changes = write.changes(node);
                assert!(!(is_held && changes), "{name} is changed under its pods: {decision:?}");
                let is_closed = write.record.as_ref().is_some_and(NodeRecord::is_changing);
                assert!(is_closed || !changes, "{name} is open before the plugin has followed: {decision:?}");
                for (key, value) in write.labels.entries() {
                    match value {
                        Some(value) => drop(node.labels.insert(key.to_owned(), value.to_owned())),
                        None => drop(node.labels.remove(key)),
                    }
                }
                node.record = write.record.as_ref().map(NodeRecord::to_json);
                wrote = true;
            }
            self.reported.extend(decision.event_after(node).map(|reported| reported.reason));
            if let Some(condition) = decision.condition(node) {
                node.condition = condition;
                wrote = true;
            }
        }
        wrote
    }

    /// The state of the node after every write that was due.
    pub(super) fn state(&mut self, node: &str) -> Option<LayoutState> {
        self.settle().nodes.remove(node)?.state
    }

    pub(super) fn reason(&mut self, node: &str) -> &'static str {
        self.state(node).map_or("", |state| state.reason())
    }

    /// Whether the node's record keeps pods away.
    pub(super) fn is_changing(&self, node: &str) -> bool {
        let record = self.nodes[node].record.as_deref();
        record.is_some_and(|record| NodeRecord::from_json(record).unwrap().is_changing())
    }

    pub(super) fn plugin_labels(&self, node: &str) -> PluginLabels {
        PluginLabels::from_labels(&self.nodes[node].labels)
    }

    pub(super) fn config(&self, node: &str) -> Option<String> {
        self.plugin_labels(node).config
    }
}
