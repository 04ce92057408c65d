//! Evidence for NVIDIA's device plugin from before this process started. Its sockets may be missing just now, because
//! the kubelet restarts or the plugin's pod is replaced.

use super::TIMEOUT;
use k8s_openapi::api::core::v1::Node;
use kerf_core::names::NodeName;
use kerf_core::quantity::parse_count;
use kerf_core::resource::PluginName;
use kube::Api;

/// Returns the evidence, by `recorded`: whether an earlier agent saw the plugin. Without a readable record the Node's
/// capacity counts. After an earlier agent the capacity proves nothing, because kerf uses the same names. A Node that
/// cannot be read counts as evidence too.
pub(crate) async fn evidence(
    (nodes, name): (&Api<Node>, &NodeName),
    recorded: Option<bool>,
) -> Option<String> {
    if let Some(was_here) = recorded {
        return was_here.then(|| "the agent before this one saw it".to_owned());
    }
    let asked = tokio::time::timeout(TIMEOUT, nodes.get_opt(name.as_str())).await;
    plugin_in_node(asked.map_err(|late| late.to_string()).and_then(|node| node.map_err(|e| e.to_string())))
}

fn plugin_in_node(node: Result<Option<Node>, String>) -> Option<String> {
    let capacity = match node {
        Ok(node) => node?.status?.capacity?,
        Err(error) => return Some(format!("the Node cannot be read and may have devices of it: {error}")),
    };
    let counts = |amount: &str| parse_count(amount).is_none_or(|count| count > 0);
    let (name, amount) =
        capacity.iter().find(|(name, amount)| name.parse::<PluginName>().is_ok() && counts(&amount.0))?;
    Some(format!("no earlier agent left a readable record, and the node has {name}: {}", amount.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api_stand_in;
    use serde_json::json;

    async fn is_presumed(capacity: (&str, &str), recorded: Option<bool>) -> bool {
        let node = json!({"metadata": {"name": "n1"}, "status": {"capacity": {capacity.0: capacity.1}}});
        let (client, _) = api_stand_in::client(move |_| (200, node.clone()));
        evidence((&Api::all(client), &NodeName::new("n1")), recorded).await.is_some()
    }

    #[tokio::test]
    async fn a_plugin_counts_as_present_by_the_record_or_else_by_the_nodes_capacity() {
        let gpus = ("nvidia.com/gpu", "8");
        for plugin in [true, false] {
            assert_eq!(is_presumed(gpus, Some(plugin)).await, plugin);
        }
        for (capacity, expected) in [
            (gpus, true),
            (("nvidia.com/mig-1g.10gb.shared", "2"), true),
            (("nvidia.com/gpu", "0"), false),
            (("cpu", "8"), false),
        ] {
            assert_eq!(is_presumed(capacity, None).await, expected, "{capacity:?}");
        }
    }

    #[tokio::test]
    async fn a_node_that_cannot_be_read_counts_as_having_the_plugin() {
        let (client, _) = api_stand_in::client(|_| api_stand_in::refusal(503));
        assert!(evidence((&Api::all(client), &NodeName::new("n1")), None).await.is_some());
    }
}
