//! Pods as an API server has them, with what controllers and the kubelet write into them.

use std::collections::BTreeMap;

use kerf_core::contract::{AssignedSlice, AssignmentDocument, Chosen};
use kerf_core::keys;
use kerf_core::kind::IsolationClass;
use kerf_core::testing::{h100_shape, request};
use kerf_tests::pods::admitted;
use serde_json::{Value, json};

use super::fields::{CREATED, conditions, owned};
use super::population::{CONTAINER, PodNumber, RESOURCE, node_name};
use crate::scheduler::side;

/// A bound and running pod with its slice.
pub fn with_slice(pod: PodNumber) -> Value {
    let mut document = request(RESOURCE, 1);
    document.isolation = IsolationClass::Hardware;
    document.chosen = Some(Chosen { policy: "default".to_owned(), ..Chosen::default() });
    document.asked = Some(BTreeMap::new());
    document.static_nodes = true;
    let slice = AssignedSlice {
        container: CONTAINER.to_owned(),
        id: pod.slice(),
        gpu: side::gpu_uuid(&node_name(pod.node), pod.gpu()),
        shape: h100_shape("1g.10gb", pod.start()),
    };
    let assignment = AssignmentDocument { version: 1, slices: vec![slice], devices: vec![], passed: vec![] };
    let mut object = admitted(&pod.name(), "kerf-scheduler", RESOURCE, &document);
    let annotations = &mut object["metadata"]["annotations"];
    annotations[keys::ASSIGNMENT] = json!(assignment.to_json());
    annotations[keys::GPU_MEMORY] = json!("10Gi");
    annotations[keys::ISOLATION] = json!("hardware");
    annotations[keys::EPOCH] = json!("6b1d8a52-3c4f-4b7e-8f0a-1d2c3b4a5968/1");
    complete(&mut object, pod);
    let resources = json!({"cpu": "2", "memory": "16Gi", RESOURCE: "1"});
    object["spec"]["containers"][0]["resources"] = json!({"limits": resources, "requests": resources});
    owned(object, "kubelet")
}

/// A bound pod that asks nothing of kerf.
pub fn other(number: PodNumber) -> Value {
    let metadata = json!({"name": format!("agent-{}", number.name())});
    let container = json!({"name": CONTAINER, "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}}});
    let mut object = json!({"metadata": metadata, "spec": {"containers": [container]}});
    complete(&mut object, number);
    object["metadata"]["uid"] = json!(format!("a{}", number.uid()));
    owned(object, "kubelet")
}

/// Adds what controllers, the API server and the kubelet write into every pod.
fn complete(object: &mut Value, pod: PodNumber) {
    let token = "kube-api-access-x7k2m";
    let mount = json!({"name": token, "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount", "readOnly": true});
    json_patch::merge(
        object,
        &json!({
            "kind": "Pod", "apiVersion": "v1",
            "metadata": {
                "namespace": pod.namespace(), "uid": pod.uid(), "resourceVersion": "1", "creationTimestamp": CREATED,
                "labels": {
                    "app.kubernetes.io/name": "inference-server", "app.kubernetes.io/instance": "production",
                    "pod-template-hash": "7d9f8b6c5d",
                },
                "ownerReferences": [{
                    "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "inference-server-7d9f8b6c5d",
                    "uid": "0f5e7c11-2b9d-4d3f-9a64-5e8c7b6a4d21", "controller": true, "blockOwnerDeletion": true,
                }],
            },
            "spec": {
                "nodeName": node_name(pod.node), "serviceAccountName": "default", "restartPolicy": "Always",
                "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
                "volumes": [{"name": token, "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}],
            },
            "status": {
                "phase": "Running", "hostIP": "10.0.17.4", "podIP": "10.128.3.9", "startTime": CREATED,
                "conditions": conditions(&["Initialized", "Ready", "ContainersReady", "PodScheduled"]),
                "containerStatuses": [{
                    "name": CONTAINER, "ready": true, "restartCount": 0, "image": "registry.example/serve:1.4",
                    "imageID": "registry.example/serve@sha256:0f5e7c112b9d4d3f9a645e8c7b6a4d210f5e7c112b9d4d3f9a645e8c7b6a4d21",
                    "state": {"running": {"startedAt": CREATED}},
                }],
            },
        }),
    );
    let container = &mut object["spec"]["containers"][0];
    container["image"] = json!("registry.example/serve:1.4");
    container["env"] = json!([{"name": "MODEL", "value": "large"}, {"name": "PORT", "value": "8080"}]);
    container["volumeMounts"] = json!([mount]);
}
