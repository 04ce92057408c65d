//! Whether kerf's agent serves a node, by its pod and by the GpuNode that it writes. Pure.

use crate::check::observed::{is_ready, trouble_of};
use crate::uninstall::job::AGENT;
use k8s_openapi::api::core::v1::Pod;
use kerf_core::contract::{Condition, ConditionStatus, GpuNodeStatus};
use kerf_runtime::gpu_node::GpuNode;

pub(super) fn served(
    namespace: &str,
    agent: Option<&Pod>,
    gpu_node: Option<&GpuNode>,
) -> Result<String, String> {
    let Some(agent) = agent else {
        return Err(format!(
            "there is no pod of the agent on it; most often a taint of the node keeps it away: kubectl -n {namespace} describe daemonset \
             {AGENT}"
        ));
    };
    if !is_ready(agent) {
        return Err(format!("the agent's pod is not ready: {}", trouble_of(agent)));
    }
    let status = gpu_node.map(GpuNode::read_status).transpose().map_err(|error| error.to_string())?.flatten();
    let status = status.ok_or("the agent has written no status into the GpuNode")?;
    for kind in [Condition::UNCONTESTED, Condition::READY] {
        is_true(&status, kind)?;
    }
    let models = if status.gpus.is_empty() { String::new() } else { format!(" ({})", status.summary.gpus) };
    Ok(format!("{}{models}, {}", counted(status.gpus.len(), "GPU"), counted(status.slices.len(), "slice")))
}

fn is_true(status: &GpuNodeStatus, kind: &str) -> Result<(), String> {
    let condition = status.conditions.iter().find(|condition| condition.kind == kind);
    match condition {
        Some(condition) if condition.status == ConditionStatus::True => Ok(()),
        Some(condition) => Err(format!("condition {kind} of its GpuNode: {}", condition.message)),
        None => Err(format!("its GpuNode has no condition {kind} yet")),
    }
}

fn counted(number: usize, what: &str) -> String {
    if number == 1 { format!("1 {what}") } else { format!("{number} {what}s") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn agent(ready: &str) -> Pod {
        let conditions = json!([{"type": "Ready", "status": ready}]);
        serde_json::from_value(json!({"status": {"phase": "Running", "conditions": conditions}})).unwrap()
    }

    fn gpu_node(conditions: &[(&str, &str)]) -> GpuNode {
        let condition = |(kind, status): &(&str, &str)| json!({"type": kind, "status": status, "reason": "R", "message": "m", "lastTransitionTime": ""});
        let conditions: Vec<Value> = conditions.iter().map(condition).collect();
        let gpu =
            json!({"uuid": "GPU-1", "index": 0, "model": "H100-80GB", "memoryMib": 81559, "kinds": ["mps"]});
        let summary = json!({"gpus": "1x H100-80GB"});
        let status = json!({"gpus": [gpu], "slices": [], "conditions": conditions, "summary": summary});
        serde_json::from_value(json!({"metadata": {"name": "n1"}, "status": status})).unwrap()
    }

    #[test]
    fn a_node_is_served_if_its_agent_is_ready_and_no_other_manager_runs() {
        let good = gpu_node(&[("Ready", "True"), ("Uncontested", "True")]);
        let said = served("kerf-system", Some(&agent("True")), Some(&good));
        assert_eq!(said.unwrap(), "1 GPU (1x H100-80GB), 0 slices");
        // A status without a running agent does not count, because it may be stale.
        for (pod, why) in [(None, "no pod of the agent"), (Some(agent("False")), "is not ready")] {
            assert!(served("kerf-system", pod.as_ref(), Some(&good)).unwrap_err().contains(why), "{why}");
        }
        for (conditions, why) in [
            (&[("Ready", "True"), ("Uncontested", "False")][..], "condition Uncontested of its GpuNode: m"),
            (&[("Ready", "False"), ("Uncontested", "True")], "condition Ready of its GpuNode: m"),
            (&[("Uncontested", "True")], "no condition Ready"),
        ] {
            let refused = served("kerf-system", Some(&agent("True")), Some(&gpu_node(conditions)));
            assert!(refused.unwrap_err().contains(why), "{why}");
        }
        let refused = served("kerf-system", Some(&agent("True")), None);
        assert_eq!(refused.unwrap_err(), "the agent has written no status into the GpuNode");
    }
}
