//! NVIDIA's device plugin by what was seen before this process began: its sockets may be away just now, because the kubelet
//! restarts or the plugin's pod is replaced.

use super::{PATIENCE, Who};
use k8s_openapi::api::core::v1::Node;
use kerf_core::contract::{Condition, ConditionStatus, GpuNodeStatus};
use kerf_core::names::NodeName;
use kerf_core::quantity::parse_count;
use kerf_core::static_node::PluginName;
use kube::Api;

/// The evidence, by the last word of the agent before. Where no agent was here, by what the Node has for pods: an agent that was has
/// the same names.
pub(crate) async fn evidence(
    (nodes, name): (&Api<Node>, &NodeName),
    has_record: bool,
    before: Option<&GpuNodeStatus>,
) -> Option<String> {
    match before {
        Some(status) => was_told(status).then(|| "the agent before this one saw it".to_owned()),
        None if has_record => None,
        None => {
            let asked = tokio::time::timeout(PATIENCE, nodes.get_opt(name.as_str())).await;
            of_node(asked.map_err(|late| late.to_string()).and_then(|node| node.map_err(|e| e.to_string())))
        }
    }
}

fn was_told(status: &GpuNodeStatus) -> bool {
    let contested = |c: &&Condition| c.kind == Condition::UNCONTESTED && c.status == ConditionStatus::False;
    let plugin = Who::DevicePlugin.to_string();
    status.conditions.iter().find(contested).is_some_and(|c| c.message.contains(&plugin))
}

fn of_node(node: Result<Option<Node>, String>) -> Option<String> {
    let capacity = match node {
        Ok(node) => node?.status?.capacity?,
        Err(error) => return Some(format!("the Node does not tell whether it has devices of it: {error}")),
    };
    let counts = |amount: &str| parse_count(amount).is_none_or(|count| count > 0);
    let (name, amount) =
        capacity.iter().find(|(name, amount)| name.parse::<PluginName>().is_ok() && counts(&amount.0))?;
    Some(format!("no agent has told of this node, and it has {name}: {}", amount.0))
}

#[cfg(test)]
mod tests {
    use super::super::Other;
    use super::*;
    use crate::api_stand_in;
    use serde_json::json;

    fn status(other: Option<Who>) -> GpuNodeStatus {
        let message = other.map_or_else(String::new, |who| Other::new(who, "seen".to_owned()).to_string());
        let status = if other.is_some() { ConditionStatus::False } else { ConditionStatus::True };
        let (kind, reason) = (Condition::UNCONTESTED.to_owned(), String::new());
        let condition = Condition { kind, status, reason, message, last_transition_time: String::new() };
        GpuNodeStatus { conditions: vec![condition], ..GpuNodeStatus::default() }
    }

    async fn is_presumed(capacity: (&str, &str), has_record: bool, before: Option<&GpuNodeStatus>) -> bool {
        let node = json!({"metadata": {"name": "n1"}, "status": {"capacity": {capacity.0: capacity.1}}});
        let (client, _) = api_stand_in::client(move |_| (200, node.clone()));
        evidence((&Api::all(client), &NodeName::new("n1")), has_record, before).await.is_some()
    }

    #[tokio::test]
    async fn a_plugin_that_was_here_before_is_presumed_to_be_here() {
        let gpus = ("nvidia.com/gpu", "8");
        for (who, expected) in [(Some(Who::DevicePlugin), true), (Some(Who::DraDriver), false), (None, false)]
        {
            assert_eq!(is_presumed(gpus, true, Some(&status(who))).await, expected, "{who:?}");
        }
        for (capacity, has_record, expected) in [
            (gpus, false, true),
            (("nvidia.com/mig-1g.10gb.shared", "2"), false, true),
            (gpus, true, false),
            (("nvidia.com/gpu", "0"), false, false),
            (("cpu", "8"), false, false),
        ] {
            assert_eq!(is_presumed(capacity, has_record, None).await, expected, "{capacity:?} {has_record}");
        }
    }

    #[tokio::test]
    async fn a_node_that_does_not_tell_may_have_it() {
        let (client, _) = api_stand_in::client(|_| api_stand_in::refusal(503));
        assert!(evidence((&Api::all(client), &NodeName::new("n1")), false, None).await.is_some());
    }
}
