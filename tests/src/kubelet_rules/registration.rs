//! Rules of registration: which plugins the kubelet accepts.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use kerf_node_agent::kubelet_api::API_VERSION;
use tonic::Status;

use super::plugin::FakePlugin;
use super::pods::same;
use super::scene::Scene;
use super::{Case, case};

pub(super) const CASES: &[Case] = &[
    case!("a registered plugin's devices appear in GetAllocatableResources", acknowledgement),
    case!("a plugin of another API version is refused", version),
    case!("a name that is no extended resource is refused", name),
    case!("a plugin may register up to ten seconds before it serves", late_socket),
    case!("a plugin without a socket is refused after ten seconds", missing_socket),
    case!("a plugin that fails to give its options is refused", options),
    case!("the newest registration of a name is used, and the end of an older stream cuts it off", cut_off),
    case!("after a failed registration the kubelet does not notice that a plugin is gone", unnoticed),
];

async fn acknowledgement(scene: &Scene<'_>) -> anyhow::Result<()> {
    let plugin = scene.plug_in(&["a"]).await?;
    for devices in [&["a", "b"][..], &[], &["c"]] {
        plugin.tell(devices, &[]);
        let took = scene.acknowledged(devices).await?;
        scene.note(format!(
            "{} devices acknowledged after {:.1} ms",
            devices.len(),
            took.as_secs_f64() * 1e3
        ));
    }
    Ok(())
}

/// The message of a rejected registration.
fn message(registered: Result<(), Status>) -> anyhow::Result<String> {
    let refused = registered.err().context("it was registered")?;
    ensure!(refused.code() == tonic::Code::Unknown, "the code is {:?}", refused.code());
    Ok(refused.message().to_owned())
}

async fn version(scene: &Scene<'_>) -> anyhow::Result<()> {
    let said = message(scene.register_as("none.sock", &scene.resource, "v1alpha").await)?;
    let expected =
        r#"requested API version "v1alpha" is not supported by kubelet. Supported version is ["v1beta1"]"#;
    same("the refusal", &said, expected)
}

async fn name(scene: &Scene<'_>) -> anyhow::Result<()> {
    for name in ["gpu", "kubernetes.io/gpu", "requests.kerf.dev/gpu"] {
        let said = message(scene.register_as("none.sock", name, API_VERSION).await)?;
        same("the refusal", &said, &format!("the ResourceName {name:?} is invalid"))?;
    }
    Ok(())
}

async fn late_socket(scene: &Scene<'_>) -> anyhow::Result<()> {
    let socket = scene.socket();
    let serving = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        scene.serve(FakePlugin::new(&["a"]), &socket)
    };
    let (registered, served) = tokio::join!(scene.register(&socket), serving);
    served?;
    registered.context("it was not waited for")?;
    scene.acknowledged(&["a"]).await.map(drop)
}

async fn missing_socket(scene: &Scene<'_>) -> anyhow::Result<()> {
    let said = message(scene.register("none.sock").await)?;
    same("the refusal", &said, "failed to dial device plugin: context deadline exceeded")?;
    scene.run("blind", 1).await.context("the name is not known").map(drop)
}

async fn options(scene: &Scene<'_>) -> anyhow::Result<()> {
    let socket = scene.socket();
    let plugin = scene.serve(FakePlugin::new(&["a"]), &socket)?;
    plugin.refuse_options(Status::internal("not yet"));
    let said = message(scene.register(&socket).await)?;
    same(
        "the refusal",
        &said,
        "failed to get device plugin options: rpc error: code = Internal desc = not yet",
    )?;
    scene.register(&socket).await.context("it is taken in once it gives them")?;
    scene.acknowledged(&["a"]).await.map(drop)
}

async fn cut_off(scene: &Scene<'_>) -> anyhow::Result<()> {
    let old = scene.plug_in(&["a"]).await?;
    let new = scene.plug_in(&["b"]).await?;
    scene.run("one", 1).await?;
    ensure!(new.allocations() == [["b"]] && old.allocations().is_empty(), "the older one was asked");
    old.closed.cancel();
    scene.nothing_left().await.context("the end of the older stream")?;
    new.tell(&["b", "c"], &[]);
    tokio::time::sleep(Duration::from_millis(300)).await;
    ensure!(scene.allocatable().await?.is_empty(), "the kubelet still reads the newer stream");
    scene.plug_in(&["b", "c"]).await.context("it may register again").map(drop)
}

async fn unnoticed(scene: &Scene<'_>) -> anyhow::Result<()> {
    let plugin = scene.plug_in(&["a"]).await?;
    message(scene.register("none.sock").await)?;
    plugin.closed.cancel();
    tokio::time::sleep(Duration::from_millis(500)).await;
    let left = scene.allocatable().await?;
    ensure!(left.iter().eq(["a"]), "{left:?} can be allocated");
    let (reason, message) = scene.refused("one", 1).await?;
    scene.note(format!("a pod then is refused: {reason}: {message}"));
    Ok(())
}
