//! Decides what to do with a node, or why nothing can be done. Pure.

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

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Cluster {
    pub namespace: String,
    pub agents: PodSpec,
    pub has_cluster_policy: bool,
    pub conflicting: Vec<Conflicting>,
}

#[derive(Debug, Clone)]
pub(super) struct Observed {
    pub node: Node,
    pub pods: Vec<PluginPod>,
    /// All pods in the cluster to which `ResourceClaims` give GPUs.
    pub claimed: BTreeSet<PodKey>,
    /// The Job of an unfinished `kerf release` for the node.
    pub leaving: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Plan {
    /// The labels that the node lacks; empty if it has all.
    pub labels: Labels,
    /// The pods that hold GPUs of the node, as `namespace/name`.
    pub holders: BTreeSet<String>,
    /// The programs that manage the node's GPUs now, and leave it once it has the labels.
    pub leaving: Vec<String>,
}

impl Plan {
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

    /// The pods that must have ended before the node gets its labels. A node with the labels has none, because its
    /// agent gives away no GPU that other pods hold.
    pub fn in_the_way(&self) -> &BTreeSet<String> {
        static NONE: BTreeSet<String> = BTreeSet::new();
        if self.labels.is_empty() { &NONE } else { &self.holders }
    }

    pub fn labels_text(&self) -> String {
        self.labels.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(" ")
    }
}

impl Cluster {
    /// The labels of a managed node. GPU Operator's labels are included if anything shows that it is installed, because
    /// it deploys its programs by them.
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

/// Fails if the labels show a busy MIG manager, because it must not be stopped in the middle of a cut. On a managed
/// node kerf's agent pauses DCGM and similar programs by the same labels, so these do not count there.
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
