//! What must always hold in a cluster, recomputed from the simulated NVML's placements and the kubelets' accounts.
//!
//! Shares no code with kerf-core's packing or planning: places are counted by the simulated NVML's own rules, memory by
//! the numbers in resource names. Only the spelling of documents is core's.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Context as _;
use k8s_openapi::api::core::v1::Pod;
use kerf_core::contract::{GpuNodeSpec, Shape};
use kerf_nvml_mock::{GpuState, MockState};
use kerf_runtime::gpu_node::GpuNode;
use kube::Client;
use kube::api::{Api, ListParams};

use crate::cluster::{Cluster, GpuServer, StandInNode};
use crate::kubelet::PodKey;

/// A node as its GPUs and its kubelet tell it, with the promises that are on their way.
struct NodeTruth {
    name: String,
    gpus: MockState,
    /// Device id to resource name and pod.
    held: BTreeMap<String, (String, PodKey)>,
    spec: GpuNodeSpec,
    double: Vec<String>,
}

/// The whole cluster at one moment.
pub struct Truth {
    nodes: Vec<NodeTruth>,
    pods: Vec<Pod>,
    complaints: Vec<String>,
}

impl Truth {
    /// Looks at everything.
    pub async fn observe(cluster: &Cluster) -> anyhow::Result<Self> {
        Self::of_nodes(cluster.plane().client(), cluster.nodes().iter().map(GpuServer::node)).await
    }

    /// Looks at these nodes, and at the pods of the namespace `default`.
    pub async fn of_nodes<'a>(
        client: Client,
        looked_at: impl IntoIterator<Item = &'a StandInNode>,
    ) -> anyhow::Result<Self> {
        let pods = Api::<Pod>::default_namespaced(client.clone()).list(&ListParams::default()).await?.items;
        let gpu_nodes = Api::<GpuNode>::all(client);
        let mut nodes = Vec::new();
        let mut complaints = Vec::new();
        for node in looked_at {
            let found = gpu_nodes.get_opt(node.name()).await?;
            let spec = found.map(|node| node.read_spec()).transpose()?.unwrap_or_default();
            complaints.extend(kubelet_complaints(node));
            nodes.push(NodeTruth::of(node, spec)?);
        }
        Ok(Self { nodes, pods, complaints })
    }

    /// Everything that must never be so. Empty in a sound cluster, at any moment.
    #[must_use]
    pub fn violations(&self) -> Vec<String> {
        let mut found = self.complaints.clone();
        for node in &self.nodes {
            found.extend(node.double.iter().cloned());
            found.extend(node.gpus.gpus.iter().flat_map(GpuState::violations));
            let real: BTreeSet<&str> = node.gpus.gpus.iter().flat_map(mig_uuids).collect();
            for (device, (resource, pod)) in &node.held {
                // Who takes turns on a MIG device holds a replica of it.
                let (of, turn) = device.split_once("::").map_or((&**device, None), |(of, n)| (of, Some(n)));
                if of.starts_with("MIG-") && !real.contains(of) {
                    found
                        .push(format!("{pod:?} holds {device} ({resource}) on {}, which is gone", node.name));
                }
                if let Some((_, (_, other))) = node.held.get_key_value(of).filter(|_| turn.is_some()) {
                    found.push(format!("{pod:?} has a turn on {of}, which {other:?} holds as a whole"));
                }
            }
            found.extend(node.overcommitted());
        }
        found
    }

    /// Pods that neither run nor wait for a reason: a place for them is free by the simulated NVML's own account.
    #[must_use]
    pub fn unexplained(&self) -> Vec<String> {
        self.pods
            .iter()
            .filter(|p| phase(p) == "Pending" && p.metadata.deletion_timestamp.is_none())
            .filter_map(|p| self.could_run(p))
            .collect()
    }

    /// Whether every pod runs, or waits, or is gone: nothing is half-way.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        let leaving = self.pods.iter().any(|p| p.metadata.deletion_timestamp.is_some());
        let bound_and_waiting = self.pods.iter().any(|p| phase(p) == "Pending" && is_bound(p));
        let promised: BTreeSet<(&str, &str)> = self.nodes.iter().flat_map(NodeTruth::promised).collect();
        let existing: BTreeSet<(&str, &str)> = self.pods.iter().filter(|p| is_bound(p)).map(key).collect();
        !leaving && !bound_and_waiting && promised.is_subset(&existing)
    }

    /// Pods by phase.
    #[must_use]
    pub fn count(&self, wanted: &str) -> usize {
        self.pods.iter().filter(|p| phase(p) == wanted).count()
    }

    fn could_run(&self, pod: &Pod) -> Option<String> {
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        let (resource, count) = asked(pod)?;
        let place = self.nodes.iter().find_map(|node| node.place_for(&resource, count))?;
        Some(format!("{name} is pending with {count}x {resource}, though {place}"))
    }
}

fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|s| s.phase.as_deref()).unwrap_or("Pending")
}

fn is_bound(pod: &Pod) -> bool {
    pod.spec.as_ref().is_some_and(|s| s.node_name.is_some())
}

fn key(pod: &Pod) -> (&str, &str) {
    (pod.metadata.namespace.as_deref().unwrap_or_default(), pod.metadata.name.as_deref().unwrap_or_default())
}

/// The pod's one GPU resource and its count.
fn asked(pod: &Pod) -> Option<(String, usize)> {
    let containers = &pod.spec.as_ref()?.containers;
    let limits = containers.iter().filter_map(|c| c.resources.as_ref()?.limits.as_ref()).flatten();
    let mut gpu = limits.filter(|(name, _)| name.starts_with("nvidia.com/"));
    gpu.next().and_then(|(name, count)| Some((name.clone(), count.0.parse().ok()?)))
}

fn kubelet_complaints(node: &StandInNode) -> Vec<String> {
    let seen = node.kubelet().observed();
    let refused =
        seen.failed_admissions.iter().map(|f| format!("{}: {:?} failed: {}", node.name(), f.pod, f.message));
    let bare =
        seen.started_without_device.iter().map(|p| format!("{}: {p:?} runs without its device", node.name()));
    refused.chain(bare).collect()
}

fn mig_uuids(gpu: &GpuState) -> impl Iterator<Item = &str> {
    gpu.instances.iter().flat_map(|i| &i.compute).map(|c| c.uuid.as_str())
}

const WHOLE: &str = "whole";

/// The kind of share that a resource name stands for.
fn share_kind(resource: &str) -> &'static str {
    match resource {
        "nvidia.com/gpu" => WHOLE,
        name if name.ends_with(".shared") => "time-slicing",
        _ => "mps",
    }
}

/// The N of `…Ngb…`.
fn gigabytes(resource: &str) -> Option<u64> {
    let digits = resource.split("gb").next()?;
    digits[digits.rfind(|c: char| !c.is_ascii_digit())? + 1..].parse().ok()
}

impl NodeTruth {
    fn of(node: &StandInNode, spec: GpuNodeSpec) -> anyhow::Result<Self> {
        let gpus = node.gpus().with_context(|| node.name().to_owned())?;
        let mut held = BTreeMap::new();
        let mut double = Vec::new();
        for (pod, devices) in node.kubelet().allocations() {
            for (resource, ids) in devices {
                for id in ids {
                    if let Some((_, other)) = held.insert(id.clone(), (resource.clone(), pod.clone())) {
                        double.push(format!("{id} on {} is held by {pod:?} and {other:?}", node.name()));
                    }
                }
            }
        }
        Ok(Self { name: node.name().to_owned(), gpus, held, spec, double })
    }

    fn promised(&self) -> impl Iterator<Item = (&str, &str)> {
        self.spec
            .slices
            .iter()
            .filter_map(|s| s.reservation.as_ref())
            .map(|r| (r.namespace.as_str(), r.pod.as_str()))
    }

    /// GPUs whose shares together have more memory than the GPU, or are of two kinds.
    fn overcommitted(&self) -> Vec<String> {
        let mut found = Vec::new();
        for gpu in &self.gpus.gpus {
            let (used, kinds) = self.shares_on(gpu);
            if used > gpu.model.total_mib() || kinds.len() > 1 {
                found.push(format!("shares of {used} MiB and kinds {kinds:?} on {}", gpu.uuid));
            }
        }
        found
    }

    /// MiB of the shares held on a GPU, and of what kinds they are. A whole GPU is all of it.
    fn shares_on(&self, gpu: &GpuState) -> (u64, BTreeSet<&'static str>) {
        let here = self.held.iter().filter(|(id, _)| id.starts_with(gpu.uuid.as_str()));
        let names: Vec<&String> = here.map(|(_, (resource, _))| resource).collect();
        let memory = |name: &&String| match share_kind(name) {
            WHOLE => Some(gpu.model.total_mib()),
            _ => gigabytes(name).map(|gb| gb * 1024),
        };
        (names.iter().filter_map(memory).sum(), names.iter().map(|name| share_kind(name)).collect())
    }

    /// Where `count` slices of this name could go now, counting idle slices as free.
    fn place_for(&self, resource: &str, count: usize) -> Option<String> {
        let gb = gigabytes(resource)?;
        let mut left = count;
        for gpu in &self.gpus.gpus {
            let here = if resource.contains("/mig-") {
                self.instances_free(gpu, gb)
            } else {
                self.shares_free(gpu, resource, gb)
            };
            left = left.saturating_sub(here);
            if left == 0 {
                return Some(format!("{} of {} has room", gpu.uuid, self.name));
            }
        }
        None
    }

    fn shares_free(&self, gpu: &GpuState, resource: &str, gb: u64) -> usize {
        if gpu.mig.current {
            return 0;
        }
        let (used, kinds) = self.shares_on(gpu);
        let same_kind = kinds.iter().all(|kind| *kind == share_kind(resource));
        let free = gpu.model.total_mib().saturating_sub(used) / (gb * 1024);
        if same_kind { usize::try_from(free).unwrap_or(0) } else { 0 }
    }

    /// How many instances of the smallest fitting profiles could be created, one after the other, beside those in use.
    fn instances_free(&self, gpu: &GpuState, gb: u64) -> usize {
        if !gpu.mig.current {
            return 0;
        }
        let mut busy = gpu.clone();
        busy.instances.retain(|i| {
            i.compute.iter().any(|c| self.held.contains_key(&c.uuid))
                || self.is_promised(gpu, i.placement.start, i.placement.size)
        });
        let plain = gpu.model.profiles().iter().filter(|p| !p.media_extension);
        plain
            .filter(|p| gigabytes(&p.name).is_some_and(|size| size >= gb))
            .map(|p| busy.free_places(p.id).len())
            .max()
            .unwrap_or(0)
    }

    fn is_promised(&self, gpu: &GpuState, at: u32, len: u32) -> bool {
        let promised =
            self.spec.slices.iter().filter(|s| s.reservation.is_some() && s.gpu.as_str() == gpu.uuid);
        promised.into_iter().any(|s| match s.shape {
            Shape::Mig { start, size, .. } => (u32::from(start), u32::from(size)) == (at, len),
            Shape::Whole { .. } | Shape::Mps { .. } | Shape::TimeSlicing { .. } => false,
        })
    }
}

#[cfg(test)]
#[path = "oracle_tests.rs"]
mod tests;
