//! Pods on a static node get the devices of NVIDIA's plugin.

use k8s_openapi::api::core::v1::Pod;
use kerf_nvml_mock::Model;
use kerf_tests::kubelet::PodKey;
use kerf_tests::nvidia_plugin::{StaticNode, StaticNodeSpec};
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use serde_json::json;

use crate::nvidia_plugin::scene::Scene;

async fn create(pods: &Api<Pod>, node: &StaticNode, name: &str, resource: &str, count: u32) {
    let pod = json!({
        "metadata": {"name": name},
        "spec": {
            "nodeName": node.name(),
            "containers": [{"name": "main", "image": "none", "resources": {"limits": {resource: count.to_string()}}}],
        },
    });
    pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
}

/// Waits for a phase, and returns the status's message.
async fn until(pods: &Api<Pod>, node: &StaticNode, name: &str, phase: &str) -> String {
    node.until(&format!("pod {name} to be {phase}"), async || {
        let status = pods.get(name).await?.status.unwrap_or_default();
        let is = status.phase.clone().unwrap_or_default();
        if is == phase { Ok(status.message.unwrap_or_default()) } else { anyhow::bail!("{status:?}") }
    })
    .await
    .unwrap()
}

fn visible(node: &StaticNode, pod: &str) -> String {
    let grant = node.kubelet().grant(&PodKey::new("default", pod), "main").unwrap();
    grant.environment["NVIDIA_VISIBLE_DEVICES"].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_get_gpus_replicas_and_instances() {
    let scene = Scene::start().await;
    scene.plane.create_namespace("default").await.ok();
    let pods: Api<Pod> = Api::namespaced(scene.plane.client(), "default");
    let node = scene.node(StaticNodeSpec::new("a", Model::A100Gb80, 2).layout("one-each-4")).await;
    node.until_allocatable(&[("gpu", "8")]).await.unwrap();
    for name in ["one", "two"] {
        create(&pods, &node, name, "nvidia.com/gpu", 1).await;
        until(&pods, &node, name, "Running").await;
    }
    // The plugin spreads replicas over the GPUs, and names the GPU without the replica's number.
    let uuids: Vec<String> = node.gpus().unwrap().gpus.into_iter().map(|gpu| gpu.uuid).collect();
    let seen = [visible(&node, "one"), visible(&node, "two")];
    assert!(seen.iter().all(|uuid| uuids.contains(uuid)) && seen[0] != seen[1], "{seen:?}");

    create(&pods, &node, "greedy", "nvidia.com/gpu", 2).await;
    let message = until(&pods, &node, "greedy", "Failed").await;
    let said = "invalid allocation request for \"nvidia.com/gpu\": invalid request: maximum request size for shared resources is 1; found 2";
    assert!(message.contains(said), "{message}");
    for name in ["one", "two", "greedy"] {
        pods.delete(name, &DeleteParams::default()).await.unwrap();
    }
    // Without that rule a pod may have more replicas, which give it nothing more. The new layout has fewer replicas:
    // with as many as before, the node would look ready before the plugin has restarted.
    node.choose(Some("time-sliced-2")).await.unwrap();
    node.until_allocatable(&[("gpu", "4")]).await.unwrap();
    create(&pods, &node, "both", "nvidia.com/gpu", 2).await;
    until(&pods, &node, "both", "Running").await;
    assert_eq!(visible(&node, "both").split(',').count(), 2);

    let cut = StaticNodeSpec::new("m", Model::A100Gb40, 1).cut(&[(0, "3g.20gb"), (0, "1g.5gb")]);
    let instances = scene.node(cut.layout("mig-mixed")).await;
    instances.until_allocatable(&[("mig-1g.5gb", "1"), ("mig-3g.20gb", "1")]).await.unwrap();
    create(&pods, &instances, "slice", "nvidia.com/mig-1g.5gb", 1).await;
    until(&pods, &instances, "slice", "Running").await;
    let slices = instances.gpus().unwrap().slices();
    let slice = slices.iter().find(|slice| slice.profile == "1g.5gb").unwrap();
    assert_eq!(visible(&instances, "slice"), slice.mig_uuids[0]);
    scene.end(vec![node, instances]).await;
}
