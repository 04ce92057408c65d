//! Rules of what the kubelet writes into the node's status, and when.

use std::time::Duration;

use anyhow::Context as _;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use crate::cluster::wait;

use super::scene::Scene;
use super::{Case, case};

pub(super) const CASES: &[Case] = &[
    case!("the node's status counts devices at the next tick, unhealthy ones in capacity only", counts),
    case!("counts that somebody else wrote are overwritten at the next tick", overwritten),
    case!("a name that no plugin has stays in the status, and its allocatable follows its capacity", foreign),
    case!("a plugin that has gone leaves its devices in capacity", gone),
];

impl Scene<'_> {
    fn nodes(&self) -> Api<Node> {
        Api::all(self.kubelet.client())
    }

    /// Capacity and allocatable of a name; `None` where the name is missing.
    async fn shown(&self, name: &str) -> anyhow::Result<[Option<String>; 2]> {
        let status = self.nodes().get(self.kubelet.node()).await?.status.unwrap_or_default();
        let shown = [status.capacity, status.allocatable];
        Ok(shown.map(|list| Some(list?.get(name)?.0.clone())))
    }

    /// Waits until the node's status has these counts of the case's name, which must happen at the next tick.
    pub(super) async fn shows(&self, capacity: u32, allocatable: u32) -> anyhow::Result<()> {
        self.shows_of(&self.resource, capacity, allocatable).await
    }

    async fn shows_of(&self, name: &str, capacity: u32, allocatable: u32) -> anyhow::Result<()> {
        let expected = [Some(capacity.to_string()), Some(allocatable.to_string())];
        // A tick may be under way with the old counts, and a busy machine is slow.
        let timeout = 2 * self.kubelet.tick() + Duration::from_secs(5);
        let what = format!("the status to have {capacity} and {allocatable} of {name}");
        let waited = wait(timeout, &what, async || Ok(self.shown(name).await? == expected)).await;
        let seen = self.shown(name).await?;
        waited.with_context(|| format!("it has {seen:?}"))
    }

    /// Overwrites counts as another client of the API server.
    pub(super) async fn write_counts(&self, lists: &[&str], name: &str, count: u32) -> anyhow::Result<()> {
        let lists = lists.iter().map(|list| ((*list).to_owned(), json!({name: count.to_string()})));
        let status: serde_json::Map<_, _> = lists.collect();
        let patch = Patch::Merge(json!({"status": status}));
        self.nodes().patch_status(self.kubelet.node(), &PatchParams::default(), &patch).await?;
        Ok(())
    }
}

async fn counts(scene: &Scene<'_>) -> anyhow::Result<()> {
    let plugin = scene.plug_in(&["a", "b"]).await?;
    scene.shows(2, 2).await?;
    plugin.tell(&["a"], &["b", "c"]);
    scene.shows(3, 1).await?;
    plugin.tell(&[], &[]);
    scene.shows(0, 0).await
}

async fn overwritten(scene: &Scene<'_>) -> anyhow::Result<()> {
    scene.plug_in(&["a", "b"]).await?;
    scene.shows(2, 2).await?;
    scene.write_counts(&["capacity", "allocatable"], &scene.resource, 9).await?;
    scene.shows(2, 2).await
}

async fn foreign(scene: &Scene<'_>) -> anyhow::Result<()> {
    let name = format!("{}-foreign", scene.resource);
    scene.write_counts(&["capacity"], &name, 4).await?;
    scene.shows_of(&name, 4, 4).await?;
    scene.write_counts(&["allocatable"], &name, 7).await?;
    scene.shows_of(&name, 4, 4).await
}

async fn gone(scene: &Scene<'_>) -> anyhow::Result<()> {
    let plugin = scene.plug_in(&["a", "b"]).await?;
    scene.shows(2, 2).await?;
    plugin.closed.cancel();
    scene.nothing_left().await?;
    scene.shows(2, 0).await?;
    scene.plug_in(&["a"]).await?;
    scene.shows(1, 1).await
}
