//! Rules of devices that become unhealthy, are dropped from the list, or lose their plugin.

use anyhow::{Context as _, ensure};
use serde_json::json;

use super::pods::{WAITS, container_status, same};
use super::scene::Scene;
use super::{Case, case};

pub(super) const CASES: &[Case] = &[
    case!("an unhealthy device is not allocated, and stays with the container that holds it", unhealthy),
    case!("a container starts again in place with a device that has fallen ill", restart_with_ill_device),
    case!("a device that is dropped from the list stays with the container that holds it", dropped),
    case!("pods go on without their plugin, and others are refused", without_plugin),
];

async fn unhealthy(scene: &Scene<'_>) -> anyhow::Result<()> {
    let plugin = scene.plug_in(&["a"]).await?;
    scene.run("one", 1).await?;
    plugin.tell(&["b"], &["a", "c"]);
    scene.acknowledged(&["b"]).await?;
    scene.shows(3, 1).await?;
    scene.holds("one", &["a"]).await?;
    scene.running("one").await?;
    let (_, message) = scene.refused("two", 2).await?;
    let expected = format!(
        "Pod was rejected: Allocate failed due to requested number of devices unavailable for {}. Requested: 2, Available: 1, which is unexpected",
        scene.resource
    );
    same("the message", &message, &expected)
}

async fn restart_with_ill_device(scene: &Scene<'_>) -> anyhow::Result<()> {
    let plugin = scene.plug_in(&["a"]).await?;
    // The first run ends at the gate, so that the kubelet restarts the container; the second one keeps running.
    let again = scene.folder.path().join("again");
    let script = format!(
        "echo $DEVICES; [ -e {0} ] && {{ {WAITS}; }}; touch {0}; {1}",
        again.display(),
        scene.gate("gate")
    );
    let spec = json!({"restartPolicy": "Always", "containers": [scene.container("main", 1, &script)]});
    scene.create("one", spec).await?;
    scene.running("one").await?;
    plugin.tell(&[], &["a"]);
    scene.nothing_left().await?;
    scene.open("gate")?;
    let restarted = scene.until("one", "a second run", |status| {
        let main = container_status(status, "main");
        Ok(main.restart_count == 1 && main.state.is_some_and(|state| state.running.is_some()))
    });
    restarted.await?;
    same("the output", &scene.printed("one", "main").await?, "a\n")?;
    ensure!(plugin.allocations().len() == 1, "the plugin was asked again");
    scene.holds("one", &["a"]).await
}

async fn dropped(scene: &Scene<'_>) -> anyhow::Result<()> {
    let plugin = scene.plug_in(&["a"]).await?;
    scene.run("one", 1).await?;
    plugin.tell(&["b"], &[]);
    scene.acknowledged(&["b"]).await?;
    scene.shows(1, 1).await?;
    scene.holds("one", &["a"]).await.context("a dropped device")?;
    scene.run("two", 1).await?;
    scene.holds("two", &["b"]).await?;
    plugin.tell(&["a", "b"], &[]);
    scene.acknowledged(&["a", "b"]).await?;
    let (_, message) = scene.refused("three", 1).await.context("a device that came back has its holder")?;
    ensure!(message.contains("Requested: 1, Available: 0"), "it was refused: {message}");
    Ok(())
}

async fn without_plugin(scene: &Scene<'_>) -> anyhow::Result<()> {
    let plugin = scene.plug_in(&["a", "b"]).await?;
    scene.run("one", 1).await?;
    let held = scene.held("one").await?;
    plugin.closed.cancel();
    scene.nothing_left().await?;
    let (_, message) = scene.refused("two", 1).await?;
    ensure!(message.contains("no healthy devices present; cannot allocate unhealthy devices"), "{message}");
    scene.running("one").await?;
    ensure!(scene.held("one").await? == held, "it holds something else");
    scene.plug_in(&["a", "b"]).await?;
    scene.run("three", 1).await.context("the plugin is back")?;
    ensure!(scene.held("three").await?.is_disjoint(&held), "both hold {held:?}");
    Ok(())
}
