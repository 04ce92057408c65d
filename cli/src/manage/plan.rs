//! What is to be done with a node, or why nothing is. Pure.

use super::conflicting::Conflicting;
use super::holders::holders;
use super::refused::Refused;
use super::selects::{Labels, selects};
use crate::uninstall::job::is_ready;
use k8s_openapi::api::core::v1::{Node, PodSpec};
use kerf_core::managed::is_managed;
use kerf_core::names::PodKey;
use kerf_core::{keys, nvidia_keys};
use kerf_runtime::plugin_pod::PluginPod;
use std::collections::BTreeSet;

/// What is the same for all nodes.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Cluster {
    /// The namespace that kerf is installed in.
    pub namespace: String,
    /// The pods of kerf's agents.
    pub agents: PodSpec,
    /// Whether there is a `ClusterPolicy` of GPU Operator.
    pub has_cluster_policy: bool,
    /// The `DaemonSets` that manage GPUs beside kerf.
    pub conflicting: Vec<Conflicting>,
}

/// A node as it is.
#[derive(Debug, Clone)]
pub(super) struct Observed {
    /// The Node.
    pub node: Node,
    /// Its pods.
    pub pods: Vec<PluginPod>,
    /// The pods of the cluster that `ResourceClaims` have given GPUs.
    pub claimed: BTreeSet<PodKey>,
    /// The Job by which `kerf release` gives it back, while that is at work.
    pub leaving: Option<String>,
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Plan {
    /// The labels that the node has to get; empty where it has them.
    pub labels: Labels,
    /// The pods that hold GPUs of it, as `namespace/name`.
    pub holders: BTreeSet<String>,
    /// The programs that manage its GPUs now, and leave it by these labels.
    pub leaving: Vec<String>,
}

impl Plan {
    /// The plan for a node.
    pub fn new(cluster: &Cluster, observed: &Observed) -> Result<Self, Refused> {
        let Observed { node, pods, claimed, leaving } = observed;
        let name = node.metadata.name.clone().unwrap_or_default();
        let now = node.metadata.labels.clone().unwrap_or_default();
        if !is_ready(node) {
            return Err(Refused::NotReady(name));
        }
        if let Some(job) = leaving.clone() {
            return Err(Refused::BeingReleased { node: name, namespace: cluster.namespace.clone(), job });
        }
        mig_manager_rests(&name, &now)?;
        let wanted = cluster.wanted(&now);
        let labels: Labels =
            wanted.clone().into_iter().filter(|(key, value)| now.get(key) != Some(value)).collect();
        let mut then = now;
        then.extend(wanted);
        if !selects(&cluster.agents, &name, &then) {
            return Err(Refused::NotSelected { node: name, namespace: cluster.namespace.clone() });
        }
        let leaving = cluster.leaving(&name, &then, pods)?;
        Ok(Self { labels, holders: holders(&name, pods, claimed), leaving })
    }

    /// The pods that must have ended before the node gets its labels. One that has them is kerf's: its agent gives nobody what others
    /// hold.
    pub fn in_the_way(&self) -> &BTreeSet<String> {
        static NONE: BTreeSet<String> = BTreeSet::new();
        if self.labels.is_empty() { &NONE } else { &self.holders }
    }

    /// The labels as `kubectl label` takes them.
    pub fn labels_text(&self) -> String {
        self.labels.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(" ")
    }
}

impl Cluster {
    /// The labels that a node of kerf's has.
    fn wanted(&self, now: &Labels) -> Labels {
        let of_sets = self.conflicting.iter().filter_map(Conflicting::deploy_label);
        let mut off: BTreeSet<&str> = of_sets.collect();
        let is_labelled = now.keys().any(|key| key.starts_with(nvidia_keys::DEPLOY_PREFIX));
        if self.has_cluster_policy || is_labelled || !off.is_empty() {
            off.extend([nvidia_keys::DEPLOY_DEVICE_PLUGIN, nvidia_keys::DEPLOY_MIG_MANAGER]);
        }
        let off = off.into_iter().map(|key| (key.to_owned(), "false".to_owned()));
        off.chain([(keys::MANAGED.to_owned(), "true".to_owned())]).collect()
    }

    /// The programs that run on the node and leave it with these labels. The error names those that do not.
    fn leaving(&self, node: &str, labels: &Labels, pods: &[PluginPod]) -> Result<Vec<String>, Refused> {
        let is_there = |set: &&Conflicting| pods.iter().any(|pod| set.runs_as(pod, node));
        let (staying, leaving): (Vec<&Conflicting>, Vec<&Conflicting>) =
            self.conflicting.iter().filter(is_there).partition(|set| set.selects(node, labels));
        if !staying.is_empty() {
            let list = |text: fn(&Conflicting) -> String, between: &str| {
                staying.iter().map(|set| text(set)).collect::<Vec<_>>().join(between)
            };
            return Err(Refused::Conflicting {
                node: node.to_owned(),
                programs: list(Conflicting::to_string, " and "),
                commands: list(Conflicting::patch_command, "; "),
            });
        }
        Ok(leaving.into_iter().map(Conflicting::to_string).collect())
    }
}

/// Whether the labels show no MIG manager at work: it must not be ended in the middle of a cut. On a managed node kerf's agent
/// pauses DCGM and its like by the same labels.
fn mig_manager_rests(node: &str, labels: &Labels) -> Result<(), Refused> {
    let is_of_agent = |key: &str| is_managed(labels) && nvidia_keys::DEPLOY_CLIENTS.contains(&key);
    let is_busy = |(key, value): &(&String, &String)| {
        key.as_str() == nvidia_keys::MIG_STATE && matches!(value.as_str(), "pending" | "rebooting")
            || key.starts_with(nvidia_keys::DEPLOY_PREFIX)
                && value.as_str() == nvidia_keys::DEPLOY_PAUSED
                && !is_of_agent(key)
    };
    match labels.iter().find(is_busy) {
        None => Ok(()),
        Some((label, value)) => {
            Err(Refused::MigManagerBusy { node: node.to_owned(), label: label.clone(), value: value.clone() })
        }
    }
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
