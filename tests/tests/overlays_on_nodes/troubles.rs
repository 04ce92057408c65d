//! What befalls a node in a layout, and is survived.

use anyhow::ensure;
use kerf_nvml_mock::Model;
use kerf_tests::nvidia_plugin::StaticNodeSpec;
use kerf_tests::overlays::{Layout, STATIC};

use crate::scene::Scene;

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
        anyhow::Ok(pods.map(|pod| pod.metadata.uid).collect::<std::collections::BTreeSet<_>>())
    };
    let before = uids().await?;

    // NVIDIA's programs end and come again; pods keep what they have.
    for container in ["nvidia-device-plugin", "gpu-feature-discovery", "nvidia-device-plugin-sidecar"] {
        node.kill(container).await?;
    }
    scene.until_offered("a10g", layout).await?;
    scene.until_in_force("a10g", "time-sliced-4").await?;

    // Another overlay waits for them.
    scene.apply("time-sliced-2").await?;
    let message = scene.until("a10g", ("Unknown", "WaitsForPods"), "layout time-sliced-2 waits").await?;
    eprintln!("SEEN {message}");
    ensure!(message.contains("demo/nvidia-plugin-test-"), "{message}");
    scene.until_offered("a10g", layout).await?;
    ensure!(uids().await? == before, "pods are others");
    scene.apply("time-sliced-4").await?;
    scene.until_in_force("a10g", "time-sliced-4").await?;
    ensure!(uids().await? == before, "pods are others");
    scene.rest().await?;

    // An admin names a configuration that is not there. NVIDIA's config-manager ends over it, and then chooses the default.
    node.may_end("nvidia-device-plugin-sidecar");
    node.may_end("gpu-feature-discovery-sidecar");
    node.choose(Some("misspelt")).await?;
    let message = scene.until("a10g", ("False", "LabelByHand"), "\"misspelt\"").await?;
    eprintln!("SEEN {message}");
    ensure!(message.contains("remove the label to have layout time-sliced-4"), "{message}");
    node.until_allocatable(&[("gpu", "1")]).await?;
    node.choose(None).await?;
    scene.until_in_force("a10g", "time-sliced-4").await?;
    scene.until_offered("a10g", layout).await?;
    scene.work("a10g", layout, layout.workload).await?;
    scene.rest().await?;
    scene.end().await
}
