//! Troubles of a node in a layout, which it survives.

use std::collections::BTreeSet;

use anyhow::ensure;
use kerf_nvml_mock::Model;
use kerf_tests::cluster::wait;
use kerf_tests::nvidia_plugin::StaticNodeSpec;
use kerf_tests::overlays::{Layout, STATIC};

use crate::overlays_on_nodes::scene::{Scene, TIMEOUT};

fn time_sliced() -> &'static Layout {
    STATIC.iter().find(|layout| layout.overlay == "time-sliced-4").unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_layout_outlives_the_plugin_and_waits_for_pods_and_for_admins() -> anyhow::Result<()> {
    let scene = Scene::start("75s", vec![StaticNodeSpec::new("a10g", Model::A10G, 1)]).await?;
    let (node, layout) = (scene.node("a10g"), time_sliced());
    scene.choose("a10g").await?;
    scene.apply("time-sliced-4").await?;
    scene.until_in_force("a10g", "time-sliced-4").await?;
    scene.open("a10g").await?;
    scene.work("a10g", layout, layout.workload).await?;
    let uids = async || {
        let pods = scene.pods().await?.into_iter();
        anyhow::Ok(pods.map(|pod| pod.metadata.uid).collect::<BTreeSet<_>>())
    };
    let before = uids().await?;

    for container in ["nvidia-device-plugin", "gpu-feature-discovery", "nvidia-device-plugin-sidecar"] {
        node.kill(container).await?;
    }
    scene.until_offered("a10g", layout).await?;
    scene.until_in_force("a10g", "time-sliced-4").await?;

    scene.apply("time-sliced-2").await?;
    let message = scene.until("a10g", ("Unknown", "WaitsForPods"), "layout time-sliced-2 waits").await?;
    ensure!(message.contains("demo/nvidia-plugin-test-"), "{message}");
    scene.until_offered("a10g", layout).await?;
    ensure!(uids().await? == before, "pods are others");
    scene.apply("time-sliced-4").await?;
    scene.until_in_force("a10g", "time-sliced-4").await?;
    ensure!(uids().await? == before, "pods are others");

    let config_map = ["-n", "gpu-operator", "configmap", "kerf-device-plugin"];
    scene.kubectl(&[&["delete"], &config_map[..]].concat()).await?;
    let again = async || {
        let text = scene.kubectl(&[&["get", "-o", "yaml"], &config_map[..]].concat()).await?;
        Ok(text.contains("time-sliced-4: |"))
    };
    wait(TIMEOUT, "the ConfigMap to be there again", again).await?;
    scene.until_in_force("a10g", "time-sliced-4").await?;

    // An admin removes the label: NVIDIA's plugin goes to its default at once, and kerf sets the label when pods have
    // ended.
    node.choose(None).await?;
    node.until_allocatable(&[("gpu", "1")]).await?;
    scene.until("a10g", ("Unknown", "WaitsForPods"), "layout time-sliced-4 waits").await?;
    ensure!(uids().await? == before, "pods are others");
    scene.rest().await?;
    scene.until_in_force("a10g", "time-sliced-4").await?;
    scene.until_offered("a10g", layout).await?;

    // An admin names a configuration that does not exist. NVIDIA's config-manager exits, and then chooses the default.
    node.may_end("nvidia-device-plugin-sidecar");
    node.may_end("gpu-feature-discovery-sidecar");
    node.choose(Some("misspelt")).await?;
    let message = scene.until("a10g", ("False", "LabelByHand"), "\"misspelt\"").await?;
    ensure!(message.contains("remove the label to have layout time-sliced-4"), "{message}");
    node.until_allocatable(&[("gpu", "1")]).await?;
    node.choose(None).await?;
    scene.until_in_force("a10g", "time-sliced-4").await?;
    scene.until_offered("a10g", layout).await?;
    scene.work("a10g", layout, layout.workload).await?;
    scene.rest().await?;
    scene.end().await
}
