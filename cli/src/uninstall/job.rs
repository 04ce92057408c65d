//! The Job that leaves a node: a copy of the agent's pod with another command. Pure.

use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::batch::v1::{Job, JobSpec};
use k8s_openapi::api::core::v1::{Node, PodSpec, PodTemplateSpec, Toleration};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use std::collections::BTreeMap;
use std::time::Duration;
use thiserror::Error;

pub(crate) const NAME_LABEL: &str = "app.kubernetes.io/name";
pub(crate) const AGENT: &str = "kerf-node-agent";
pub(crate) const LEAVE: &str = "kerf-node-agent-leave";

#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub(crate) enum NoJob {
    /// The `DaemonSet` has no container, so it is not kerf's.
    #[error(
        "DaemonSet {AGENT}: spec.template has no container; delete it, and run kerf-node-agent leave on each node"
    )]
    NoContainer,
}

/// The Job for a node. It is created suspended, because it must not run beside the agent. It retries practically for
/// ever, because nothing else would undo what the agent has set.
pub(crate) fn leave(agents: &DaemonSet, node: &Node, settle: Duration) -> Result<Job, NoJob> {
    let template = agents.spec.as_ref().and_then(|spec| spec.template.spec.clone());
    let mut pod: PodSpec = template.filter(|pod| !pod.containers.is_empty()).ok_or(NoJob::NoContainer)?;
    for container in &mut pod.containers {
        let mut arguments = vec!["leave".to_owned(), format!("--settle={}ms", settle.as_millis())];
        arguments.append(container.args.get_or_insert_default());
        container.args = Some(arguments);
        // Probes and ports are removed, because leaving serves none and the kubelet would restart the container.
        (container.liveness_probe, container.readiness_probe, container.startup_probe) = (None, None, None);
        container.ports = None;
    }
    // The Job must run wherever the agent ran, so no selector, affinity or taint may keep it away.
    pod.node_name.clone_from(&node.metadata.name);
    (pod.affinity, pod.node_selector) = (None, None);
    let everything = Toleration { operator: Some("Exists".to_owned()), ..Toleration::default() };
    pod.tolerations = Some(vec![everything]);
    pod.restart_policy = Some("OnFailure".to_owned());
    let labels = BTreeMap::from([(NAME_LABEL.to_owned(), LEAVE.to_owned())]);
    let metadata = ObjectMeta { labels: Some(labels.clone()), ..ObjectMeta::default() };
    let spec = JobSpec {
        suspend: Some(true),
        backoff_limit: Some(1_000_000),
        template: PodTemplateSpec { metadata: Some(metadata), spec: Some(pod) },
        ..JobSpec::default()
    };
    let metadata = ObjectMeta {
        name: Some(name(node)),
        namespace: agents.metadata.namespace.clone(),
        labels: Some(labels),
        ..ObjectMeta::default()
    };
    Ok(Job { metadata, spec: Some(spec), ..Job::default() })
}

/// The name of a node's Job. It has the node's UID, because the node's name may be too long for a Job.
pub(crate) fn name(node: &Node) -> String {
    format!("kerf-leave-{}", node.metadata.uid.as_deref().unwrap_or_default())
}

pub(crate) fn node_of(job: &Job) -> &str {
    let pod = job.spec.as_ref().and_then(|spec| spec.template.spec.as_ref());
    pod.and_then(|pod| pod.node_name.as_deref()).unwrap_or_default()
}

pub(crate) fn is_complete(job: &Job) -> bool {
    let conditions = job.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    conditions.iter().any(|condition| condition.type_ == "Complete" && condition.status == "True")
}

pub(crate) fn is_ready(node: &Node) -> bool {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agents() -> DaemonSet {
        serde_json::from_value(serde_json::json!({
            "metadata": {"name": AGENT, "namespace": "kerf-system"},
            "spec": {"selector": {}, "template": {"spec": {
                "serviceAccountName": AGENT, "hostPID": true,
                "affinity": {"nodeAffinity": {}}, "tolerations": [{"key": "a", "operator": "Exists"}],
                "containers": [{
                    "name": "node-agent", "image": "kerf-node-agent:1", "args": ["--driver-root=/driver-root"],
                    "ports": [{"containerPort": 9090}], "livenessProbe": {"httpGet": {"port": 9090}},
                    "securityContext": {"privileged": true},
                }],
            }}},
        }))
        .unwrap()
    }

    fn node() -> Node {
        serde_json::from_value(serde_json::json!({"metadata": {"name": "n1", "uid": "u-1"}})).unwrap()
    }

    #[test]
    fn the_leave_job_runs_the_agents_own_container() {
        let job = leave(&agents(), &node(), Duration::from_secs(1)).unwrap();
        assert_eq!(node_of(&job), "n1");
        insta::assert_yaml_snapshot!(job);
    }

    #[test]
    fn a_daemon_set_without_containers_is_not_kerfs() {
        assert_eq!(leave(&DaemonSet::default(), &node(), Duration::from_secs(1)), Err(NoJob::NoContainer));
    }
}
