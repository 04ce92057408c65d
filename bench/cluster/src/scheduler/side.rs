//! The clusters that are compared: one with kerf, and the control.

use std::path::Path;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::Pod;
use kerf_core::contract::GpuNodeStatus;
use kerf_core::keys;
use kerf_core::kind::Kind as SliceKind;
use kerf_core::names::GpuUuid;
use kerf_core::testing::{node_status, with_neutral_names};
use kerf_tests::cluster::{Cluster, ClusterOptions, resource_of, wait};
use kerf_tests::control_plane::{ControlPlane, ControlPlaneOptions};
use kerf_tests::gpu_nodes::{Census, CutLanes, Manner, NodeObject, SimulatedAgents};
use kube::api::{DeleteParams, PostParams};
use kube::{Api, Client};
use serde_json::Value;

use super::kubelets::{self, Known, Pods};
use super::workload::{Asks, DEVICE, DEVICES};
use crate::bound::Bound;

const MODEL: &str = "H100-80GB";
const SIZE_GB: u32 = 80;
/// Concurrent requests when objects are created or deleted.
pub const AT_ONCE: usize = 16;
/// Timeout for a cluster to settle.
const TIMEOUT: Duration = Duration::from_mins(3);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// With webhook, extender, guard and agents.
    Kerf,
    /// Without any of them; a device plugin's counts are on the nodes.
    Control,
}

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Self::Kerf => "kerf",
            Self::Control => "control",
        }
    }
}

enum Plane {
    Kerf(Box<Cluster>, Arc<SimulatedAgents>),
    Control(Box<ControlPlane>, usize),
}

pub struct Side {
    pub kind: Kind,
    plane: Plane,
    pub nodes: usize,
    pub bound: Bound,
    known: Known,
}

/// The clusters. The control is the last.
pub struct Sides(Vec<Side>);

impl Sides {
    /// Starts both clusters with this many nodes each.
    pub async fn start(nodes: usize, lanes: CutLanes) -> anyhow::Result<Self> {
        let kerf = Side::kerf(nodes, lanes).await.context("the cluster with kerf")?;
        let configuration = kerf.plane().dir().join("kerf-scheduler-config.yaml");
        let mut control = Side::control(nodes, &configuration).await.context("the control")?;
        // Equal pod sizes make the API server's work for both equal.
        let padding = padding(&kerf, &control).await?;
        if let Plane::Control(_, of_control) = &mut control.plane {
            *of_control = padding;
        }
        Ok(Self(vec![kerf, control]))
    }

    pub fn all(&self) -> impl Iterator<Item = &Side> {
        self.0.iter()
    }

    /// The cluster of this kind.
    pub fn side(&mut self, kind: Kind) -> anyhow::Result<&mut Side> {
        let found = self.0.iter_mut().find(|side| side.kind == kind);
        found.with_context(|| format!("there is no cluster {}", kind.name()))
    }

    pub async fn stop(self) -> anyhow::Result<()> {
        for side in self.0 {
            side.stop().await?;
        }
        Ok(())
    }
}

/// By how many bytes an admitted pod is longer with kerf.
async fn padding(kerf: &Side, control: &Side) -> anyhow::Result<usize> {
    let length = async |side: &Side| {
        let dry_run = PostParams { dry_run: true, ..PostParams::default() };
        let admitted = side.pods().create(&dry_run, &side.pod("padding", Asks::Slice)).await?;
        anyhow::Ok(serde_json::to_vec(&admitted)?.len())
    };
    Ok(length(kerf).await?.saturating_sub(length(control).await?))
}

impl Side {
    async fn kerf(nodes: usize, lanes: CutLanes) -> anyhow::Result<Self> {
        let options =
            ClusterOptions { control_plane: control_plane(), ..ClusterOptions::of_simulated_nodes() };
        let cluster = Cluster::start(options, |_| ()).await?;
        let client = cluster.plane().client();
        make_nodes(nodes, async |name| node(&name).create(&client, status(&name)).await).await?;
        let manner = Manner { lanes, are_shown_pods: true, ..Manner::default() };
        let agents = Arc::new(cluster.simulate_agents(manner));
        let (bound, known) = kubelets::start(&pods(&client), Some(Arc::clone(&agents)));
        let kind = Kind::Kerf;
        let mut side = Self { kind, plane: Plane::Kerf(Box::new(cluster), agents), nodes, bound, known };
        let (pods, probe) = (side.pods(), side.pod("probe", Asks::Slice));
        let dry_run = PostParams { dry_run: true, ..PostParams::default() };
        let knows_the_model = async || Ok(resource_of(&pods.create(&dry_run, &probe).await?)? == DEVICE);
        wait(TIMEOUT, "the webhook to read the nodes' model", knows_the_model).await?;
        side.is_up().await?;
        Ok(side)
    }

    /// Starts the control. Its scheduler has kerf's configuration without the extender.
    async fn control(nodes: usize, configuration: &Path) -> anyhow::Result<Self> {
        let mut plane = ControlPlane::start(control_plane()).await?;
        let text = std::fs::read_to_string(configuration).context("kerf's scheduler has no configuration")?;
        let mut document: Value = serde_saphyr::from_str(&text)?;
        let fields = document.as_object_mut().context("the scheduler's configuration is no mapping")?;
        fields.remove("extenders").context("kerf's scheduler has no extender")?;
        let path = plane.dir().join("scheduler-config.yaml");
        std::fs::write(&path, document.to_string())?;
        plane.start_scheduler("kerf-scheduler", &path).await?;
        let client = plane.client();
        make_nodes(nodes, async |name| {
            let mut node = node(&name);
            node.devices.insert(DEVICE.to_owned(), DEVICES);
            node.create_node(&client).await
        })
        .await?;
        let (bound, known) = kubelets::start(&pods(&client), None);
        let mut side =
            Self { kind: Kind::Control, plane: Plane::Control(Box::new(plane), 0), nodes, bound, known };
        side.is_up().await?;
        Ok(side)
    }

    /// Waits until a pod that asks for a slice is bound.
    async fn is_up(&mut self) -> anyhow::Result<()> {
        self.pods().create(&PostParams::default(), &self.pod("first", Asks::Slice)).await?;
        if self.bound.bound_before("first", Instant::now() + TIMEOUT).await?.is_none() {
            let events = kerf_tests::pods::Pods::new(self.plane().client()).events("first").await?;
            bail!("the first pod is not bound: {}", events.join("\n"));
        }
        self.settle(1).await
    }

    pub fn plane(&self) -> &ControlPlane {
        match &self.plane {
            Plane::Kerf(cluster, _) => cluster.plane(),
            Plane::Control(plane, _) => plane,
        }
    }

    pub fn plane_mut(&mut self) -> &mut ControlPlane {
        match &mut self.plane {
            Plane::Kerf(cluster, _) => cluster.plane_mut(),
            Plane::Control(plane, _) => plane,
        }
    }

    /// Names and process ids of its programs.
    pub fn processes(&mut self) -> anyhow::Result<Vec<(&'static str, u32)>> {
        let plane = self.plane_mut();
        let mut all = vec![
            ("apiserver", plane.child("kube-apiserver")?.id()),
            ("etcd", plane.child("etcd")?.id()),
            ("scheduler", plane.child("kerf-scheduler")?.id()),
        ];
        if let Plane::Kerf(cluster, _) = &mut self.plane {
            all.extend([("extender", cluster.extender().id()), ("webhook", cluster.webhook().id())]);
        }
        Ok(all)
    }

    /// The pods of the namespace `default`.
    pub fn pods(&self) -> Api<Pod> {
        pods(&self.plane().client())
    }

    /// A pod as a user of this cluster writes it.
    pub fn pod(&self, name: &str, asks: Asks) -> Pod {
        match &self.plane {
            Plane::Kerf(..) => asks.of_kerf(name),
            Plane::Control(_, padding) => asks.of_control(name, *padding),
        }
    }

    /// Sets the duration of every further cut.
    pub fn set_cut(&self, time: Duration) {
        if let Plane::Kerf(_, agents) = &self.plane {
            agents.set_cut(time);
        }
    }

    /// The slices as the agents count them; `None` in the control.
    pub fn census(&self) -> Option<Census> {
        match &self.plane {
            Plane::Kerf(_, agents) => Some(agents.census()),
            Plane::Control(..) => None,
        }
    }

    pub fn known(&self) -> MutexGuard<'_, Pods> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until this many pods run, and the agents have reported all reserved slices as ready.
    pub async fn settle(&self, running: usize) -> anyhow::Result<()> {
        let at_rest = async || {
            let unreported = self.census().is_some_and(|census| census.reserved > 0);
            Ok(self.known().running.len() >= running && !unreported)
        };
        wait(TIMEOUT, &format!("{running} pods to run"), at_rest).await
    }

    /// Deletes all pods, and waits until all slices are idle. It deletes them one by one, because a busy API
    /// server does not delete a thousand within the minute that one request may take.
    pub async fn clear(&self) -> anyhow::Result<()> {
        let pods = self.pods();
        let empty = async || {
            let names = self.known().all.clone();
            let deleted = stream::iter(names).map(async |name: String| {
                let deleted = pods.delete(&name, &DeleteParams::default().grace_period(0)).await;
                match deleted {
                    Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
                    other => other.map(drop),
                }
            });
            deleted.buffer_unordered(AT_ONCE).try_collect::<()>().await?;
            let occupied = self.census().is_some_and(|census| census.occupied() > 0);
            Ok(self.known().all.is_empty() && !occupied)
        };
        wait(TIMEOUT, "all pods to go and their slices to be idle", empty).await
    }

    async fn stop(self) -> anyhow::Result<()> {
        match self.plane {
            Plane::Kerf(cluster, agents) => {
                // The agents end first, because they connect to the cluster's extender.
                drop(agents);
                cluster.stop().await
            }
            Plane::Control(plane, _) => plane.stop().await,
        }
    }
}

fn control_plane() -> ControlPlaneOptions {
    ControlPlaneOptions { scheduler: false, ..ControlPlaneOptions::without_controller_manager() }
}

fn pods(client: &Client) -> Api<Pod> {
    Api::default_namespaced(client.clone())
}

async fn make_nodes(count: usize, make: impl AsyncFn(String) -> anyhow::Result<()>) -> anyhow::Result<()> {
    ensure!(count > 0, "a cluster needs nodes");
    let names = (0..count).map(|number| format!("n{number}"));
    stream::iter(names).map(|name| make(name)).buffer_unordered(AT_ONCE).try_collect().await
}

/// A node with the labels that kerf's agent sets.
pub fn node(name: &str) -> NodeObject {
    let largest = || SIZE_GB.to_string();
    let labels = [
        (keys::MANAGED.to_owned(), "true".to_owned()),
        (keys::NODE_MODEL.to_owned(), MODEL.to_owned()),
        (keys::NODE_MAX_GB.to_owned(), largest()),
        (keys::node_kind_label(SliceKind::Mig), largest()),
    ];
    NodeObject { labels: labels.into(), ..NodeObject::new(name) }
}

/// The status of a node with eight uncut H100 in MIG mode.
pub fn status(node: &str) -> GpuNodeStatus {
    let mut status = with_neutral_names(node_status(&[MODEL; 8]));
    for gpu in &mut status.gpus {
        gpu.uuid = gpu_uuid(node, gpu.index);
    }
    status
}

/// The UUID of a node's GPU.
pub fn gpu_uuid(node: &str, index: u32) -> GpuUuid {
    GpuUuid::new(format!("GPU-{node}-7f3c-4a1e-9d52-{index:012x}"))
}
