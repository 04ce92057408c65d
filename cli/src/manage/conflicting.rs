//! The `DaemonSets` that manage GPUs beside kerf, and how each is kept off a node. Pure.

use super::selects::{Labels, required_terms, selects};
use crate::check::gpu_managers::{GpuManager, manager_of_daemon_set};
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{NodeSelectorRequirement, NodeSelectorTerm, PodSpec};
use kerf_core::{keys, nvidia_keys};
use kerf_runtime::plugin_pod::PluginPod;
use serde_json::json;
use std::fmt;

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Conflicting {
    pub who: GpuManager,
    namespace: String,
    name: String,
    spec: PodSpec,
}

pub(super) fn conflicting(sets: Vec<DaemonSet>) -> Vec<Conflicting> {
    let conflicting = |set: DaemonSet| {
        let who = manager_of_daemon_set(&set)?;
        let (namespace, name) = (set.metadata.namespace?, set.metadata.name?);
        Some(Conflicting { who, namespace, name, spec: set.spec?.template.spec? })
    };
    sets.into_iter().filter_map(conflicting).collect()
}

impl Conflicting {
    pub fn runs_as(&self, pod: &PluginPod, node: &str) -> bool {
        let owners = pod.metadata.owner_references.iter().flatten();
        let is_owned = owners.into_iter().any(|owner| owner.kind == "DaemonSet" && owner.name == self.name);
        is_owned && pod.metadata.namespace.as_ref() == Some(&self.namespace) && pod.is_on(node)
    }

    /// The label by which GPU Operator keeps the `DaemonSet` off a node if its value is `false`. A `DaemonSet` that
    /// another tool installed has none.
    pub fn deploy_label(&self) -> Option<&str> {
        let mut wanted = self.spec.node_selector.iter().flatten();
        let (label, _) = wanted.find(|(key, _)| key.starts_with(nvidia_keys::DEPLOY_PREFIX))?;
        Some(label)
    }

    pub fn selects(&self, node: &str, labels: &Labels) -> bool {
        selects(&self.spec, node, labels)
    }

    /// The command that excludes managed nodes: it adds a requirement to each term of the node affinity.
    pub fn patch_command(&self) -> String {
        let not_managed = NodeSelectorRequirement {
            key: keys::MANAGED.to_owned(),
            operator: "NotIn".to_owned(),
            values: Some(vec!["true".to_owned()]),
        };
        let mut terms = required_terms(&self.spec).unwrap_or_default().to_vec();
        if terms.is_empty() {
            terms.push(NodeSelectorTerm::default());
        }
        // Terms are alternatives, so each of them needs the requirement.
        for term in &mut terms {
            term.match_expressions.get_or_insert_default().push(not_managed.clone());
        }
        let required =
            json!({"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}});
        let patch = json!({"spec": {"template": {"spec": {"affinity": {"nodeAffinity": required}}}}});
        let Self { namespace, name, .. } = self;
        format!("kubectl -n {namespace} patch daemonset {name} --type=merge -p '{patch}'")
    }
}

impl fmt::Display for Conflicting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { who, namespace, name, .. } = self;
        write!(f, "{} (DaemonSet {namespace}/{name})", who.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    fn set(spec: &Value) -> DaemonSet {
        let mut spec = spec.clone();
        let image = "nvcr.io/nvidia/k8s-device-plugin:v0.19.3";
        spec["containers"] = json!([{"name": "nvidia-device-plugin-ctr", "image": image}]);
        let metadata = json!({"name": "plugin", "namespace": "kube-system"});
        serde_json::from_value(json!({
            "metadata": metadata, "spec": {"selector": {}, "template": {"spec": spec}},
        }))
        .unwrap()
    }

    fn from_spec(spec: &Value) -> Conflicting {
        conflicting(vec![set(spec)]).pop().unwrap()
    }

    #[test]
    fn only_daemon_sets_that_manage_gpus_conflict() {
        let mut other = set(&json!({}));
        other.spec.as_mut().unwrap().template.spec.as_mut().unwrap().containers[0].image =
            Some("registry.example/log-collector:1".to_owned());
        let found = conflicting(vec![other, set(&json!({}))]);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].to_string(), "NVIDIA's device plugin (DaemonSet kube-system/plugin)");
    }

    #[test]
    fn the_pods_of_a_daemon_set_are_recognized_by_their_owner() {
        let pod = |namespace: &str, owner: &str, node: &str| -> PluginPod {
            let owner = json!({"apiVersion": "apps/v1", "kind": "DaemonSet", "name": owner, "uid": "u"});
            let metadata = json!({"name": "p", "namespace": namespace, "ownerReferences": [owner]});
            serde_json::from_value(json!({"metadata": metadata, "spec": {"nodeName": node}})).unwrap()
        };
        let plugin = from_spec(&json!({}));
        assert!(plugin.runs_as(&pod("kube-system", "plugin", "n1"), "n1"));
        for other in
            [pod("web", "plugin", "n1"), pod("kube-system", "x", "n1"), pod("kube-system", "plugin", "n2")]
        {
            assert!(!plugin.runs_as(&other, "n1"), "{other:?}");
        }
    }

    #[test]
    fn gpu_operators_label_is_read_from_the_node_selector() {
        let key = "nvidia.com/gpu.deploy.dra-driver";
        assert_eq!(from_spec(&json!({"nodeSelector": {"a": "b", key: "true"}})).deploy_label(), Some(key));
        assert_eq!(from_spec(&json!({"nodeSelector": {"a": "b"}})).deploy_label(), None);
    }

    #[test]
    fn the_patch_leaves_out_managed_nodes_alone() {
        let pool = json!([{"key": "pool", "operator": "In", "values": ["gpu"]}]);
        let pools = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{"matchExpressions": pool}, {"matchFields": [
                {"key": "metadata.name", "operator": "In", "values": ["n1"]}]}],
        }}});
        for affinity in [json!({}), pools] {
            let before = set(&json!({"affinity": affinity}));
            let command = conflicting(vec![before.clone()])[0].patch_command();
            let (head, patch) = command.split_once(" -p '").unwrap();
            assert_eq!(head, "kubectl -n kube-system patch daemonset plugin --type=merge");
            let mut after = json!(before);
            json_patch::merge(&mut after, &serde_json::from_str(patch.trim_end_matches('\'')).unwrap());
            let after = conflicting(vec![serde_json::from_value(after).unwrap()]).pop().unwrap();
            let labels = |managed: &str| {
                [("pool", "gpu"), (keys::MANAGED, managed)]
                    .map(|(key, value)| (key.to_owned(), value.to_owned()))
            };
            for (name, managed, expected) in
                [("n1", "true", false), ("n1", "false", true), ("n2", "true", false), ("n2", "", true)]
            {
                assert_eq!(
                    after.selects(name, &labels(managed).into()),
                    expected,
                    "{name} {managed}: {command}"
                );
            }
        }
    }
}
