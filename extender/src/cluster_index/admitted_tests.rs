//! Tests which pods no node could ever serve.

use super::super::tests::{index, known};
use crate::cluster_index::ClusterIndex;
use crate::metric_labels::PendingReason;
use crate::objects::pod::KnownPod;
use kerf_core::contract::{ConditionStatus, GpuNodeStatus};
use kerf_core::kind::Kind;
use kerf_core::testing::node_status;

fn hopeless(index: &mut ClusterIndex) -> Vec<String> {
    let never = index.scheduling().pending().into_iter().filter(|pod| pod.reason == PendingReason::Never);
    let mut names: Vec<_> = never.map(|pod| pod.uid.as_str().trim_start_matches("uid-").to_owned()).collect();
    names.sort();
    names
}

/// An H100 that is not in MIG mode.
fn without_mig() -> GpuNodeStatus {
    let mut status = node_status(&["H100-80GB"]);
    status.gpus[0].kinds = Kind::ALL[1..].to_vec();
    status
}

fn not_ready(mut status: GpuNodeStatus) -> GpuNodeStatus {
    status.conditions[0].status = ConditionStatus::False;
    status
}

#[test]
fn a_node_without_a_ready_agent_may_serve_a_pod_later_and_a_cordoned_one_may_not() {
    let mut index = index();
    index.nodes().remove_gpu_node(&"n".into());
    for pod in [
        known("a", None),
        known("b", None),
        KnownPod { gated: true, ..known("gated", None) },
        KnownPod { deleting: true, ..known("leaves", None) },
        known("runs", Some("elsewhere")),
    ] {
        index.show_pod(pod);
    }
    assert_eq!(hopeless(&mut index), ["a", "b"], "there is no node at all");
    index.add("t4", node_status(&["T4-16GB"]));
    index.add("h100", without_mig());
    index.add("dead", not_ready(without_mig()));
    assert_eq!(hopeless(&mut index), ["a", "b"]);
    index.add("starts", not_ready(node_status(&["H100-80GB"])));
    assert!(hopeless(&mut index).is_empty(), "it could, once its agent is there");
    index.add("starts", node_status(&["H100-80GB"]));
    assert!(hopeless(&mut index).is_empty());
    index.nodes().objects().set_closed("starts".into(), true);
    assert_eq!(hopeless(&mut index), ["a", "b"], "a cordoned node is offered to no pod");
    index.nodes().objects().set_closed("starts".into(), false);
    assert!(hopeless(&mut index).is_empty());
    index.disconnect("starts");
    assert!(hopeless(&mut index).is_empty(), "its GPUs are not known");
}

#[test]
fn a_new_leader_does_not_requeue_gated_pods() {
    let mut index = index();
    index.add("n", node_status(&["H100-80GB"]));
    index.show_pod(KnownPod { gated: true, ..known("gated", None) });
    index.show_pod(known("a", None));
    let woken: Vec<_> =
        index.requeue(std::time::Instant::now()).into_iter().map(|(_, pod)| pod.name).collect();
    assert_eq!(woken, ["a"]);
}
