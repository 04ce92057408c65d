//! Rules of a kubelet that is killed and restarted while pods run.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use k8s_openapi::api::core::v1::Pod;
use serde_json::json;

use super::pods::{WAITS, container_status};
use super::scene::Scene;
use super::{Case, case};

pub(super) const CASES: &[Case] = &[
    case!("a restart removes plugins' sockets and leaves pods and what they hold alone", left_alone),
    case!("a name has no device after a restart until its plugin registers", unregistered),
    case!(
        "a restart leaves a pod alone whose init container without a device has ended",
        plain_init_container
    ),
    case!("a restart ends a pod of which an init container that had a device has ended", init_container),
    case!("a plugin that is back before the kubelet asks for pods saves such a pod", plugin_first),
    case!("a restart ends such a pod too whose containers start again", always_again),
    case!("a restart ends a pod whose container that has a device has not started yet", not_started),
    case!("a restart ends a pod of which one container that has a device has ended", one_ended),
    case!("a container starts again in place after a restart, before its plugin is back", in_place),
];

/// Identity of the run of a pod's container `main`: its container id and restart count.
fn process(pod: &Pod) -> (Option<String>, i32) {
    let status = pod.status.clone().unwrap_or_default();
    let main = container_status(&status, "main");
    (main.container_id, main.restart_count)
}

/// Fails unless the pod still runs in the same container.
async fn runs_on(scene: &Scene<'_>, pod: &str, before: &Pod) -> anyhow::Result<()> {
    let now = scene.running(pod).await?;
    ensure!(process(&now) == process(before), "{pod} was {:?} and is {:?}", process(before), process(&now));
    Ok(())
}

/// Waits until the kubelet lists a pod again, because it starts without knowing any.
async fn lists_again(scene: &Scene<'_>, pod: &str) -> anyhow::Result<()> {
    let known = async || Ok(scene.listed(pod).await.is_ok_and(|listed| listed.is_some()));
    crate::cluster::wait(super::scene::TIMEOUT, &format!("{pod} to be listed again"), known).await
}

async fn left_alone(scene: &Scene<'_>) -> anyhow::Result<()> {
    scene.plug_in(&["a", "b"]).await?;
    let before = scene.run("one", 1).await?;
    let held = scene.held("one").await?;
    let foreign = scene.path(&format!("{}.txt", scene.prefix));
    std::fs::write(&foreign, "")?;
    scene.kubelet.restart().await?;
    let folder = scene.kubelet.device_plugins();
    let left = std::fs::read_dir(&folder)?.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let left: Vec<String> = left.filter(|name| name.starts_with(&scene.prefix)).collect();
    std::fs::remove_file(foreign)?;
    ensure!(left == [format!("{}.txt", scene.prefix)], "in the folder are {left:?}");
    lists_again(scene, "one").await?;
    runs_on(scene, "one", &before).await?;
    ensure!(scene.held("one").await? == held, "it holds something else");
    scene.plug_in(&["a", "b"]).await?;
    scene.run("two", 1).await?;
    ensure!(scene.held("two").await?.is_disjoint(&held), "both hold {held:?}");
    let (_, message) = scene.refused("three", 1).await?;
    ensure!(message.contains("Requested: 1, Available: 0"), "it was refused: {message}");
    runs_on(scene, "one", &before).await
}

async fn unregistered(scene: &Scene<'_>) -> anyhow::Result<()> {
    scene.plug_in(&["a"]).await?;
    scene.shows(1, 1).await?;
    scene.kubelet.restart().await?;
    scene.shows(0, 0).await?;
    let (reason, message) = scene.refused("one", 1).await?;
    ensure!(reason == "UnexpectedAdmissionError", "the reason is {reason}");
    ensure!(message.contains("no healthy devices present; cannot allocate unhealthy devices"), "{message}");
    scene.plug_in(&["a"]).await?;
    scene.shows(1, 1).await?;
    scene.run("two", 1).await.map(drop)
}

async fn plain_init_container(scene: &Scene<'_>) -> anyhow::Result<()> {
    scene.plug_in(&["a"]).await?;
    let (load, main) = (scene.container("load", 0, "true"), scene.container("main", 1, WAITS));
    scene.create("one", json!({"initContainers": [load], "containers": [main]})).await?;
    let before = scene.running("one").await?;
    scene.kubelet.restart().await?;
    lists_again(scene, "one").await?;
    scene.plug_in(&["a"]).await?;
    runs_on(scene, "one", &before).await?;
    scene.holds("one", &["a"]).await
}

/// Restarts the kubelet. Fails unless that ends the pod for lack of devices, writes an Event about it, and
/// frees its devices. Returns the pod's last phase.
async fn ends(scene: &Scene<'_>) -> anyhow::Result<String> {
    scene.kubelet.restart().await?;
    let ended = scene.until("one", "the pod to end", |status| {
        Ok(matches!(status.phase.as_deref(), Some("Failed" | "Succeeded")))
    });
    let status = ended.await?.status.unwrap_or_default();
    scene.note(format!(
        "it ends as {:?}, reason {:?}, message {:?}",
        status.phase, status.reason, status.message
    ));
    let name = &scene.resource;
    let why = format!("no healthy devices present; cannot allocate unhealthy devices {name}");
    scene.reported("one", "UnexpectedAdmissionError", &why).await?;
    scene.plug_in(&["a", "b"]).await?;
    scene.run("two", 2).await.context("its devices are not free")?;
    Ok(status.phase.unwrap_or_default())
}

async fn init_container(scene: &Scene<'_>) -> anyhow::Result<()> {
    scene.plug_in(&["a", "b"]).await?;
    let (load, main) = (scene.container("load", 1, "true"), scene.container("main", 1, WAITS));
    scene.create("one", json!({"initContainers": [load], "containers": [main]})).await?;
    scene.running("one").await?;
    let phase = ends(scene).await?;
    ensure!(phase == "Succeeded", "it ends as {phase}, though its container ended with 0");
    Ok(())
}

async fn plugin_first(scene: &Scene<'_>) -> anyhow::Result<()> {
    scene.plug_in(&["a"]).await?;
    let (load, main) = (scene.container("load", 1, "true"), scene.container("main", 1, WAITS));
    scene.create("one", json!({"initContainers": [load], "containers": [main]})).await?;
    let before = scene.running("one").await?;
    scene.kubelet.restart().await?;
    // The kubelet waits for a second before it lists pods.
    scene.plug_in(&["a"]).await?;
    lists_again(scene, "one").await?;
    tokio::time::sleep(Duration::from_secs(1)).await;
    runs_on(scene, "one", &before).await?;
    scene.holds("one", &["a"]).await
}

async fn always_again(scene: &Scene<'_>) -> anyhow::Result<()> {
    scene.plug_in(&["a", "b"]).await?;
    let (load, main) = (scene.container("load", 1, "true"), scene.container("main", 1, WAITS));
    let spec = json!({"restartPolicy": "Always", "initContainers": [load], "containers": [main]});
    scene.create("one", spec).await?;
    scene.running("one").await?;
    let phase = ends(scene).await?;
    ensure!(phase == "Succeeded", "it ends as {phase}");
    Ok(())
}

async fn not_started(scene: &Scene<'_>) -> anyhow::Result<()> {
    scene.plug_in(&["a", "b"]).await?;
    let (load, main) = (scene.container("load", 0, WAITS), scene.container("main", 1, WAITS));
    scene.create("one", json!({"initContainers": [load], "containers": [main]})).await?;
    let loads = scene.until("one", "its init container to run", |status| {
        Ok(container_status(status, "load").state.is_some_and(|state| state.running.is_some()))
    });
    loads.await?;
    ends(scene).await.map(drop)
}

async fn one_ended(scene: &Scene<'_>) -> anyhow::Result<()> {
    scene.plug_in(&["a", "b"]).await?;
    let (short, main) = (scene.container("short", 1, "true"), scene.container("main", 1, WAITS));
    scene.create("one", json!({"containers": [short, main]})).await?;
    let ended = scene.until("one", "one container to end", |status| {
        Ok(container_status(status, "short").state.is_some_and(|state| state.terminated.is_some()))
    });
    ended.await?;
    ends(scene).await.map(drop)
}

async fn in_place(scene: &Scene<'_>) -> anyhow::Result<()> {
    scene.plug_in(&["a"]).await?;
    let again = scene.folder.path().join("again");
    let script = format!("[ -e {0} ] && {{ {WAITS}; }}; touch {0}; {1}", again.display(), scene.gate("gate"));
    let spec = json!({"restartPolicy": "Always", "containers": [scene.container("main", 1, &script)]});
    scene.create("one", spec).await?;
    scene.running("one").await?;
    scene.kubelet.restart().await?;
    lists_again(scene, "one").await?;
    scene.open("gate")?;
    let second = scene.until("one", "a second run", |status| {
        let main = container_status(status, "main");
        Ok(main.restart_count == 1 && main.state.is_some_and(|state| state.running.is_some()))
    });
    second.await?;
    scene.holds("one", &["a"]).await
}
