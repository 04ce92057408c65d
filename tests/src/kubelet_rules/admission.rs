//! Rules of admission: which pods get a device, and the texts of rejections.

use std::time::Duration;

use anyhow::ensure;
use serde_json::json;
use tonic::Status;

use super::plugin::FakePlugin;
use super::pods::{WAITS, same};
use super::scene::Scene;
use super::{Case, case};

pub(super) const CASES: &[Case] = &[
    case!("a pod gets a device that the node's status does not show yet", stale_status),
    case!("more devices than there are is refused, in the kubelet's words and in an Event", too_many),
    case!(
        "what a plugin says when it refuses is in the pod's status, and its device is free again",
        plugin_refuses
    ),
    case!("the devices that a plugin prefers are given", preferred),
    case!("a plugin that fails to say what it prefers refuses the pod", preference_fails),
    case!("pods are admitted one at a time", one_at_a_time),
    case!("what Allocate answers is in the container's environment, below the pod's own", environment),
];

/// A rejection by the device manager, as the pod's status has it.
fn refusal(why: &str) -> String {
    format!("Pod was rejected: Allocate failed due to {why}, which is unexpected")
}

async fn stale_status(scene: &Scene<'_>) -> anyhow::Result<()> {
    let plugin = scene.plug_in(&["a"]).await?;
    scene.shows(1, 1).await?;
    plugin.tell(&["a", "b"], &[]);
    scene.acknowledged(&["a", "b"]).await?;
    scene.run("both", 2).await?;
    scene.holds("both", &["a", "b"]).await?;
    scene.shows(2, 2).await
}

async fn too_many(scene: &Scene<'_>) -> anyhow::Result<()> {
    scene.plug_in(&["a", "b"]).await?;
    scene.run("one", 1).await?;
    let (reason, message) = scene.refused("two", 2).await?;
    same("the reason", &reason, "UnexpectedAdmissionError")?;
    let name = &scene.resource;
    let why = format!("requested number of devices unavailable for {name}. Requested: 2, Available: 1");
    same("the message", &message, &refusal(&why))?;
    scene.reported("two", "UnexpectedAdmissionError", &why).await
}

async fn plugin_refuses(scene: &Scene<'_>) -> anyhow::Result<()> {
    let plugin = scene.plug_in(&["a"]).await?;
    plugin.refuse(Some(Status::internal("the slice is not there")));
    let (reason, message) = scene.refused("one", 1).await?;
    same("the reason", &reason, "UnexpectedAdmissionError")?;
    same("the message", &message, &refusal("rpc error: code = Internal desc = the slice is not there"))?;
    plugin.refuse(None);
    scene.run("two", 1).await?;
    scene.holds("two", &["a"]).await
}

async fn preferred(scene: &Scene<'_>) -> anyhow::Result<()> {
    let preferred = ["gone", "c", "b"].map(str::to_owned).to_vec();
    scene.plug(FakePlugin { preferred, ..FakePlugin::new(&["a", "b", "c", "d"]) }).await?;
    scene.run("two", 2).await?;
    scene.holds("two", &["b", "c"]).await?;
    scene.run("others", 2).await?;
    scene.holds("others", &["a", "d"]).await
}

async fn preference_fails(scene: &Scene<'_>) -> anyhow::Result<()> {
    let plugin = FakePlugin { preferred: vec!["a".to_owned()], ..FakePlugin::new(&["a", "b"]) };
    let plugin = scene.plug(plugin).await?;
    plugin.refuse_preference(Status::internal("no idea"));
    let (_, message) = scene.refused("one", 1).await?;
    let why =
        "device plugin GetPreferredAllocation rpc failed with err: rpc error: code = Internal desc = no idea";
    same("the message", &message, &refusal(why))
}

async fn one_at_a_time(scene: &Scene<'_>) -> anyhow::Result<()> {
    let thinking = Duration::from_millis(200);
    let plugin = scene.plug(FakePlugin { thinking, ..FakePlugin::new(&["a", "b", "c"]) }).await?;
    let asked = tokio::join!(scene.ask("one", 1), scene.ask("two", 1), scene.ask("three", 1));
    asked.0.and(asked.1).and(asked.2)?;
    for pod in ["one", "two", "three"] {
        scene.running(pod).await?;
    }
    let most = plugin.most_at_once();
    ensure!(most == 1, "{most} were admitted at once");
    Ok(())
}

async fn environment(scene: &Scene<'_>) -> anyhow::Result<()> {
    scene.plug_in(&["a", "b"]).await?;
    let mut main = scene.container("main", 2, &format!("echo $DEVICES $SHARED; {WAITS}"));
    main["env"] = json!([{"name": "SHARED", "value": "of the pod"}]);
    scene.create("one", json!({"containers": [main]})).await?;
    scene.running("one").await?;
    let printed = scene.printed("one", "main").await?;
    let devices = printed.split(' ').next().unwrap_or_default();
    ensure!(matches!(devices, "a,b" | "b,a"), "it was given {devices:?}");
    same("the output", &printed, &format!("{devices} of the pod\n"))
}
