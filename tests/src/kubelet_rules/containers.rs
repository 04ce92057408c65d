//! Rules of devices over the life of a pod's containers.

use anyhow::ensure;
use serde_json::json;

use crate::cluster::wait;

use super::pods::{WAITS, same};
use super::scene::{Scene, TIMEOUT};
use super::{Case, case};

pub(super) const CASES: &[Case] = &[
    case!("containers reuse the devices of init containers, but not those of sidecars", handed_on),
    case!("what only an init container holds is free after the pod, and listed nowhere", init_only),
    case!("a pod that has ended frees its devices", ended),
    case!("a pod that was deleted frees its devices", deleted),
    case!("a container that starts again has its old devices, and the plugin is not asked", again),
];

async fn handed_on(scene: &Scene<'_>) -> anyhow::Result<()> {
    let plugin = scene.plug_in(&["a", "b"]).await?;
    let mut sidecar = scene.container("beside", 1, WAITS);
    sidecar["restartPolicy"] = json!("Always");
    let load = scene.container("load", 1, &format!("echo $DEVICES; {}", scene.gate("gate")));
    let main = scene.container("main", 1, &format!("echo $DEVICES; {WAITS}"));
    scene.create("one", json!({"initContainers": [sidecar, load], "containers": [main]})).await?;
    let loaded = scene.printed("one", "load").await?;
    let while_loading = scene.listed("one").await?.unwrap_or_default();
    scene.open("gate")?;
    scene.running("one").await?;
    same("main's device", &scene.printed("one", "main").await?, &loaded)?;
    let asked: Vec<usize> = plugin.allocations().iter().map(Vec::len).collect();
    ensure!(asked == [1, 1, 1], "the plugin was asked for {asked:?}");
    let listed = scene.listed("one").await?.unwrap_or_default();
    ensure!(listed == while_loading, "pod-resources listed {while_loading:?} and lists {listed:?}");
    let names: Vec<&String> = listed.keys().collect();
    ensure!(names == ["beside", "main"], "pod-resources lists {names:?}");
    ensure!(listed["beside"].is_disjoint(&listed["main"]), "both hold {listed:?}");
    Ok(())
}

async fn init_only(scene: &Scene<'_>) -> anyhow::Result<()> {
    scene.plug_in(&["a", "b"]).await?;
    let load = scene.container("load", 2, "true");
    let main = scene.container("main", 1, WAITS);
    scene.create("one", json!({"initContainers": [load], "containers": [main]})).await?;
    scene.running("one").await?;
    let listed = scene.listed("one").await?.unwrap_or_default();
    ensure!(listed.len() == 1 && listed["main"].len() == 1, "pod-resources lists {listed:?}");
    let (_, message) = scene.refused("two", 1).await?;
    ensure!(message.contains("Requested: 1, Available: 0"), "it was refused: {message}");
    scene.end("one").await?;
    scene.run("three", 2).await.map(drop)
}

async fn ended(scene: &Scene<'_>) -> anyhow::Result<()> {
    scene.plug_in(&["a"]).await?;
    scene.create("one", json!({"containers": [scene.container("main", 1, "echo done")]})).await?;
    scene.in_phase("one", "Succeeded").await?;
    let listed = scene.listed("one").await?;
    scene.note(format!("pod-resources lists the pod that has ended with {listed:?}"));
    scene.run("two", 1).await?;
    scene.holds("two", &["a"]).await?;
    ensure!(scene.listed("one").await?.is_none(), "pod-resources lists who has ended");
    same("its log", &scene.printed("one", "main").await?, "done\n")
}

async fn deleted(scene: &Scene<'_>) -> anyhow::Result<()> {
    scene.plug_in(&["a"]).await?;
    scene.run("one", 1).await?;
    scene.end("one").await?;
    ensure!(scene.listed("one").await?.is_none(), "pod-resources lists who is gone");
    scene.run("two", 1).await?;
    scene.holds("two", &["a"]).await
}

async fn again(scene: &Scene<'_>) -> anyhow::Result<()> {
    let plugin = scene.plug_in(&["a", "b", "c"]).await?;
    let count = scene.folder.path().join("count");
    let script =
        format!("echo $DEVICES >> {0}; [ $(wc -l < {0}) = 2 ] && {{ {WAITS}; }}; exit 1", count.display());
    let spec = json!({"restartPolicy": "OnFailure", "containers": [scene.container("main", 2, &script)]});
    scene.create("one", spec).await?;
    let lines = || std::fs::read_to_string(&count).unwrap_or_default();
    wait(TIMEOUT, "a second run", async || Ok(lines().lines().count() == 2)).await?;
    let given = lines();
    let runs: Vec<&str> = given.lines().collect();
    ensure!(runs[0] == runs[1], "the runs had {runs:?}");
    ensure!(plugin.allocations().len() == 1, "the plugin was asked {} times", plugin.allocations().len());
    Ok(())
}
