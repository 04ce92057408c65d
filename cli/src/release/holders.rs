//! The pods that hold slices of a node or have reservations there, by the agent's status and by the pods themselves.
//! Pure.

use super::refused::Refused;
use kerf_core::contract::{SliceState, SliceStatus};
use kerf_runtime::gpu_node::GpuNode;
use kerf_runtime::plugin_pod::PluginPod;
use std::collections::BTreeSet;

pub(super) fn holders(
    node: &str,
    gpu_node: Option<&GpuNode>,
    pods: &[PluginPod],
) -> Result<BTreeSet<String>, Refused> {
    let with_slices = pods.iter().filter(|pod| pod.is_on(node) && pod.has_slices());
    let mut holders: BTreeSet<String> = with_slices.map(|pod| pod.key().to_string()).collect();
    if let Some(gpu_node) = gpu_node {
        let unreadable = |why: String| Refused::Unreadable { node: node.to_owned(), why };
        let slices = gpu_node.read_status().map_err(|error| unreadable(error.to_string()))?;
        let slices = slices.unwrap_or_default().slices;
        let reservations = slices.iter().filter_map(|slice| slice.reservation.as_ref());
        holders.extend(reservations.map(|reservation| reservation.key().to_string()));
        holders.extend(slices.iter().filter_map(holder));
    }
    Ok(holders)
}

/// The holder of a slice. The pod may be unknown for a slice of kerf's. A slice without an id was not cut for kerf, so
/// kerf does not wait for its holder.
fn holder(slice: &SliceStatus) -> Option<String> {
    let unknown = || {
        let id = slice.id.as_ref().filter(|_| slice.state == SliceState::Held)?;
        Some(format!("an unknown pod (slice {id} of GPU {})", slice.gpu))
    };
    slice.holder.as_ref().map(|holder| holder.key().to_string()).or_else(unknown)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kerf_core::contract::{GpuNodeSpec, Holder};
    use kerf_core::ledger;
    use kerf_core::names::NodeName;
    use kerf_core::packing::Fleet;
    use kerf_core::testing::{node_status, owner_in_epoch, request, slice_status};
    use serde_json::{Value, json};

    fn pod(name: &str, node: &str, phase: &str, assignment: &Value) -> PluginPod {
        let annotations = json!({"kerf.dev/assignment": assignment.to_string()});
        let metadata = json!({"namespace": "default", "name": name, "annotations": annotations});
        serde_json::from_value(
            json!({"metadata": metadata, "spec": {"nodeName": node}, "status": {"phase": phase}}),
        )
        .unwrap()
    }

    fn gpu_node(status: Value) -> GpuNode {
        GpuNode { status: Some(status), ..GpuNode::new(&NodeName::new("n1")) }
    }

    #[test]
    fn pods_hold_slices_until_they_have_ended() {
        let slice = json!({"version": 1, "slices": "of a later version"});
        let none = json!({"version": 1, "slices": []});
        let pods = [
            pod("runs", "n1", "Running", &slice),
            pod("ended", "n1", "Succeeded", &slice),
            pod("elsewhere", "n2", "Running", &slice),
            pod("static", "n1", "Running", &none),
        ];
        assert_eq!(holders("n1", None, &pods).unwrap(), ["default/runs".to_owned()].into());
    }

    #[test]
    fn the_owner_of_a_reservation_and_the_holder_in_the_status_hold_slices() {
        let mut status = node_status(&["H100-80GB"]);
        let ask = request("nvidia.com/mig-1g.10gb", 1);
        let spec =
            ledger::reserve(&GpuNodeSpec::default(), &status, &ask, &owner_in_epoch("a"), &Fleet::default());
        let of = |status: &_| holders("n1", Some(&gpu_node(json!(status))), &[]).unwrap();
        status.slices = spec.unwrap().slices.iter().map(|slice| slice_status(slice, false)).collect();
        assert_eq!(of(&status), [owner_in_epoch("a").key.to_string()].into());
        let slice = &mut status.slices[0];
        (slice.state, slice.reservation) = (SliceState::Held, None);
        assert!(of(&status).pop_first().unwrap().starts_with("an unknown pod (slice "));
        status.slices[0].holder = Some(Holder {
            namespace: "ml".to_owned(),
            pod: "train".to_owned(),
            container: "main".to_owned(),
        });
        assert_eq!(of(&status), ["ml/train".to_owned()].into());
        // This slice has no id, because another tool cut it before kerf was installed.
        (status.slices[0].id, status.slices[0].holder) = (None, None);
        assert_eq!(of(&status), BTreeSet::new());
    }

    #[test]
    fn an_unreadable_gpu_node_frees_nothing() {
        let unreadable = gpu_node(json!({"slices": 1}));
        assert!(matches!(holders("n1", Some(&unreadable), &[]), Err(Refused::Unreadable { .. })));
    }
}
