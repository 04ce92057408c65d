//! Rules of names without a registered plugin: the traps.

use anyhow::{Context as _, ensure};
use serde_json::json;

use super::pods::{WAITS, container_status, same};
use super::scene::Scene;
use super::{Case, case};

pub(super) const CASES: &[Case] = &[
    case!("a pod starts without a device if no plugin has registered the name", blind),
    case!("an unregistered name that the status lists is counted, and nothing is given for it", counted),
    case!("a registered name without a device is refused", empty),
    case!("a container without its device gets one when it starts again after the registration", later),
    case!("a pod without its device counts as a holder once the name is registered", occupies),
];

async fn blind(scene: &Scene<'_>) -> anyhow::Result<()> {
    scene.run("one", 1).await?;
    ensure!(scene.held("one").await?.is_empty(), "it holds something");
    Ok(())
}

/// A rejection by the fit check.
fn short(scene: &Scene<'_>, requested: u32, used: u32, capacity: u32) -> [String; 2] {
    let name = &scene.resource;
    let message = format!(
        "Pod was rejected: Node didn't have enough resource: {name}, requested: {requested}, used: {used}, capacity: {capacity}"
    );
    [format!("OutOf{name}"), message]
}

async fn counted(scene: &Scene<'_>) -> anyhow::Result<()> {
    scene.write_counts(&["capacity", "allocatable"], &scene.resource, 1).await?;
    scene.shows(1, 1).await?;
    // The kubelet reads the node through a watch, so the change takes a moment.
    tokio::time::sleep(std::time::Duration::from_millis(500)).await;
    let (reason, message) = scene.refused("two", 2).await?;
    let expected = short(scene, 2, 0, 1);
    same("the reason", &reason, &expected[0])?;
    same("the message", &message, &expected[1])?;
    scene.run("one", 1).await?;
    ensure!(scene.held("one").await?.is_empty(), "it holds something");
    let (_, message) = scene.refused("more", 1).await?;
    same("the message", &message, &short(scene, 1, 1, 1)[1])
}

async fn empty(scene: &Scene<'_>) -> anyhow::Result<()> {
    let plugin = scene.plug_in(&[]).await?;
    plugin.tell(&["a"], &[]);
    scene.acknowledged(&["a"]).await?;
    plugin.tell(&[], &[]);
    scene.nothing_left().await?;
    let (reason, message) = scene.refused("one", 1).await?;
    same("the reason", &reason, "UnexpectedAdmissionError")?;
    let expected = format!(
        "Pod was rejected: Allocate failed due to no healthy devices present; cannot allocate unhealthy devices {}, which is unexpected",
        scene.resource
    );
    same("the message", &message, &expected)
}

async fn occupies(scene: &Scene<'_>) -> anyhow::Result<()> {
    scene.run("blind", 1).await?;
    scene.plug_in(&["a"]).await?;
    scene.shows(1, 1).await?;
    tokio::time::sleep(std::time::Duration::from_millis(500)).await;
    let (reason, message) = scene.refused("one", 1).await?;
    let expected = short(scene, 1, 1, 1);
    same("the reason", &reason, &expected[0])?;
    same("the message", &message, &expected[1])?;
    scene.end("blind").await?;
    scene.run("again", 1).await.context("it is free when the one without is gone")?;
    scene.holds("again", &["a"]).await
}

async fn later(scene: &Scene<'_>) -> anyhow::Result<()> {
    let again = scene.folder.path().join("again");
    let second = format!("echo \"has $DEVICES\"; [ -e {0} ] && {{ {WAITS}; }}; touch {0}", again.display());
    let main = scene.container("main", 1, &format!("{second}; {}", scene.gate("gate")));
    scene.create("one", json!({"restartPolicy": "Always", "containers": [main]})).await?;
    scene.running("one").await?;
    same("the first output", &scene.printed("one", "main").await?, "has \n")?;
    scene.plug_in(&["a"]).await?;
    scene.open("gate")?;
    let restarted = scene.until("one", "a second run", |status| {
        let main = container_status(status, "main");
        Ok(main.restart_count == 1 && main.state.is_some_and(|state| state.running.is_some()))
    });
    restarted.await?;
    same("the second output", &scene.printed("one", "main").await?, "has a\n")?;
    scene.holds("one", &["a"]).await
}
