//! Each overlay shows what its demo's text describes.

use anyhow::ensure;
use kerf_nvml_mock::Model;
use kerf_tests::nvidia_plugin::StaticNodeSpec;
use kerf_tests::overlays::{Layout, STATIC};

use crate::overlays_on_nodes::scene::Scene;

fn layout(overlay: &str) -> &'static Layout {
    STATIC.iter().find(|layout| layout.overlay == overlay).unwrap()
}

/// The workload as the demo has it, and by size. All instances are distinct, and all shares are of the one GPU.
async fn shows(scene: &Scene, name: &str, layout: &Layout) -> anyhow::Result<()> {
    // A policy may not have the name of what the plugin uses without one.
    let policy = if layout.overlay == "default" { "whole" } else { layout.overlay };
    scene.until_in_force(name, policy).await?;
    scene.until_offered(name, layout).await?;
    scene.open(name).await?;
    for workload in [layout.workload.to_owned(), layout.workload.replace("nvidia/", "kerf/")] {
        scene.work(name, layout, &workload).await?;
        let (seen, wanted) = (scene.visible(name).await?, if layout.mig { layout.running } else { 1 });
        ensure!(seen.len() == wanted, "{workload} sees {seen:?}");
        scene.until_offered(name, layout).await?;
        scene.rest().await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn each_overlay_applies_to_a_gpu_without_mig() -> anyhow::Result<()> {
    let scene = Scene::start("75s", vec![StaticNodeSpec::new("a10g", Model::A10G, 1)]).await?;
    scene.choose("a10g").await?;
    for layout in STATIC.iter().filter(|layout| !layout.mig) {
        scene.apply(layout.overlay).await?;
        shows(&scene, "a10g", layout).await?;
    }
    scene.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn each_overlay_applies_to_a_gpu_with_mig_and_no_other_node() -> anyhow::Result<()> {
    // These GPUs are cut as NVIDIA's MIG manager cuts them, which does not run here.
    let equal = StaticNodeSpec::new("equal", Model::A100Gb80, 1).cut(&[(0, "1g.10gb"); 7]);
    let balanced = [(0, "3g.40gb"), (0, "2g.20gb"), (0, "1g.10gb"), (0, "1g.10gb")];
    let balanced = StaticNodeSpec::new("balanced", Model::A100Gb80, 1).cut(&balanced);
    let a10g = StaticNodeSpec::new("a10g", Model::A10G, 1);
    let scene = Scene::start("15s", vec![equal, balanced, a10g]).await?;
    for name in ["equal", "a10g"] {
        scene.choose(name).await?;
    }
    scene.apply("mig-single").await?;
    shows(&scene, "equal", layout("mig-single")).await?;
    ensure!(scene.node("equal").labels().await?["mig.config"] == "all-1g.10gb");
    is_unfit(&scene, "mig-single").await?;

    scene.leave("equal").await?;
    scene.apply("mig-mixed").await?;
    // Once the condition says this, the overlay has reached kerf.
    is_unfit(&scene, "mig-mixed").await?;
    scene.choose("balanced").await?;
    shows(&scene, "balanced", layout("mig-mixed")).await?;
    ensure!(scene.node("balanced").labels().await?["mig.config"] == "all-balanced");

    // No program recuts the GPU, and NVIDIA's plugin refuses instances of several sizes under the strategy `single`.
    let node = scene.node("balanced");
    for container in ["nvidia-device-plugin", "nvidia-device-plugin-sidecar"] {
        node.may_end(container);
    }
    scene.apply("mig-single").await?;
    node.until_says("nvidia-device-plugin", "more than one MIG device type present on node").await?;
    let message = scene.until("balanced", ("False", "RolledBack"), "layout mig-single failed").await?;
    ensure!(message.contains("taken back to configuration mig-mixed"), "{message}");
    ensure!(message.contains("see the log of NVIDIA's device plugin on the node"), "{message}");
    scene.until_offered("balanced", layout("mig-mixed")).await?;
    ensure!(scene.config("balanced").await?.as_deref() == Some("mig-mixed"));
    scene.apply("mig-mixed").await?;
    shows(&scene, "balanced", layout("mig-mixed")).await?;
    scene.end().await
}

/// The node's GPU cannot be cut: the condition says why, and nothing is changed.
async fn is_unfit(scene: &Scene, overlay: &str) -> anyhow::Result<()> {
    let text = format!("no GPU of this node can have layout {overlay}: NVIDIA-A10G cannot be cut by MIG");
    let message = scene.until("a10g", ("False", "UnfitGpus"), &text).await?;
    ensure!(message.contains("choose a layout with migStrategy none"), "{message}");
    ensure!(scene.config("a10g").await?.is_none(), "the label is set");
    scene.until_offered("a10g", layout("default")).await
}
