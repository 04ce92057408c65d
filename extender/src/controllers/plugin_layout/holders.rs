//! Finds the pods that hold a node's GPUs, by NVIDIA's plugin or by kerf. It asks the API server, not a watch, because
//! a change of the node rests on it.

use super::TIMEOUT;
use crate::api_timeout::{ApiFailure, with_timeout};
use kerf_core::names::{NodeName, PodKey};
use kerf_runtime::plugin_pod::PluginPod;
use kube::api::{Api, ListParams};
use std::collections::BTreeSet;

/// How many nodes are asked about in one pass, because many nodes may be pending for long.
const ASKED: usize = 20;

/// The next nodes to ask about, starting behind `after`. Every node gets its turn, even if others are pending for long.
pub(super) fn turn(waiting: &BTreeSet<NodeName>, after: Option<&NodeName>) -> Vec<NodeName> {
    let has_waited = |name: &&NodeName| after.is_none_or(|after| *name > after);
    let (next, later): (Vec<_>, Vec<_>) = waiting.iter().partition(has_waited);
    next.into_iter().chain(later).take(ASKED).cloned().collect()
}

/// Pods that are bound to the node, have not ended, and ask for a device of the plugin's, whichever scheduler bound
/// them. Also pods that have slices from when the node was managed by kerf.
pub(super) async fn list(client: &kube::Client, node: &NodeName) -> Result<Vec<PodKey>, ApiFailure> {
    let here = format!("spec.nodeName={node},status.phase!=Succeeded,status.phase!=Failed");
    let pods = Api::<PluginPod>::all(client.clone());
    let found = with_timeout(TIMEOUT, pods.list(&ListParams::default().fields(&here))).await?;
    Ok(found.items.iter().filter(|pod| pod.holds_gpus()).map(PluginPod::key).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_node_gets_its_turn_however_many_are_pending() {
        let waiting: BTreeSet<NodeName> = (0..45).map(|n| NodeName::new(format!("n{n:02}"))).collect();
        let mut asked = Vec::new();
        for _ in 0..9 {
            let turn = turn(&waiting, asked.last());
            assert_eq!(turn.len(), ASKED);
            asked.extend(turn);
        }
        for name in &waiting {
            assert_eq!(asked.iter().filter(|asked| *asked == name).count(), 4, "{name}");
        }
        let few = [NodeName::new("a"), NodeName::new("b")].into();
        assert_eq!(turn(&few, asked.last()), ["a", "b"].map(NodeName::new));
    }
}
