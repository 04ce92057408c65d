//! NVIDIA's plugin and the kubelet restart; layouts and pods outlive them.

use kerf_nvml_mock::Model;
use kerf_tests::nvidia_plugin::{NvidiaPod, StaticNodeSpec};

use crate::nvidia_plugin::scene::{Scene, until_labels};

#[tokio::test(flavor = "multi_thread")]
async fn a_layout_outlives_the_plugin_discovery_and_the_kubelet() {
    let scene = Scene::start().await;
    let node = scene.node(StaticNodeSpec::new("a", Model::A10G, 1).layout("time-sliced-4")).await;
    node.until_allocatable(&[("gpu", "4")]).await.unwrap();
    until_labels(&node, &[("gpu.replicas", "4")]).await;

    // A killed plugin leaves its socket behind, and no healthy device until it is back.
    node.kill("nvidia-device-plugin").await.unwrap();
    let exit = node.exits("nvidia-device-plugin").pop().unwrap();
    assert_eq!(exit.code, 128 + 9);
    node.until_allocatable(&[("gpu", "4")]).await.unwrap();

    let calls = node.said("nvidia-device-plugin").matches("Registered device plugin").count();
    node.kubelet().restart().await.unwrap();
    node.until("the plugin to register again", async || {
        let said = node.said("nvidia-device-plugin");
        if said.matches("Registered device plugin").count() > calls {
            Ok(())
        } else {
            anyhow::bail!("not yet")
        }
    })
    .await
    .unwrap();
    node.until_allocatable(&[("gpu", "4")]).await.unwrap();
    assert!(node.said("nvidia-device-plugin").contains("kubelet.sock created, restarting."));

    node.kill("gpu-feature-discovery").await.unwrap();
    until_labels(&node, &[("gpu.replicas", "4"), ("gpu.product", "NVIDIA-A10G-SHARED")]).await;

    // Two reloads are expected, because a restarted config-manager applies the default layout before the node's.
    let before = node.reloads();
    node.kill(&NvidiaPod::Plugin.sidecar()).await.unwrap();
    node.until("the plugin to reload twice", async || {
        let reported = node.reloads();
        if reported >= before + 2 {
            Ok(())
        } else {
            anyhow::bail!("{reported} reloads, {before} of them before")
        }
    })
    .await
    .unwrap();
    node.until_allocatable(&[("gpu", "4")]).await.unwrap();
    scene.end(vec![node]).await;
}
