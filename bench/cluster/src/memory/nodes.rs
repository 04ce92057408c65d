//! Nodes and `GpuNodes` as an API server has them.

use kerf_core::names::NodeName;
use kerf_runtime::gpu_node::GpuNode;
use serde_json::{Value, json};

use super::fields::{CREATED, conditions, owned};
use super::population::{node_name, node_state};
use crate::scheduler::side;

/// A Node with labels as cloud, Node Feature Discovery and kerf set them.
pub fn node(number: usize) -> Value {
    let name = node_name(number);
    let mut labels = side::node(&name).labels;
    labels.insert("kubernetes.io/hostname".to_owned(), name.clone());
    for key in ["kubernetes.io/arch", "kubernetes.io/os", "node.kubernetes.io/instance-type"]
        .into_iter()
        .chain(["topology.kubernetes.io/region", "topology.kubernetes.io/zone"])
    {
        labels.insert(key.to_owned(), "of-the-cloud-1a".to_owned());
    }
    for feature in 0..30 {
        labels.insert(format!("feature.node.kubernetes.io/cpu-cpuid.FEATURE{feature:02}"), "true".to_owned());
    }
    let room = json!({"cpu": "192", "memory": "2048Gi", "pods": "250", "ephemeral-storage": "800Gi"});
    owned(
        json!({
            "kind": "Node", "apiVersion": "v1",
            "metadata": {
                "name": name, "uid": format!("0c6e4b1d-0000-4000-8000-{number:012x}"), "labels": labels,
                "resourceVersion": "1", "creationTimestamp": CREATED,
            },
            "spec": {"taints": [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}]},
            "status": {
                "capacity": room, "allocatable": room,
                "conditions": conditions(&["MemoryPressure", "DiskPressure", "PIDPressure", "Ready"]),
                "nodeInfo": {"bootID": "d1a3", "kernelVersion": "6.8.0", "kubeletVersion": "v1.33.1"},
                "images": (0..40).map(|n| json!({"names": [format!("registry.example/image-{n}:1")], "sizeBytes": n}))
                    .collect::<Vec<_>>(),
            },
        }),
        "kubelet",
    )
}

/// A node's GpuNode with the status that its agent has written.
pub fn gpu_node(number: usize, pods: usize) -> anyhow::Result<Value> {
    let name = node_name(number);
    let mut object = json!(GpuNode::new(&NodeName::new(&name)));
    object["metadata"] = json!({
        "name": name, "uid": format!("9b2f7d40-0000-4000-8000-{number:012x}"), "resourceVersion": "1",
        "creationTimestamp": CREATED, "generation": 1,
    });
    object["status"] = json!(node_state(number, pods)?.status);
    Ok(owned(object, "kerf-node-agent"))
}
