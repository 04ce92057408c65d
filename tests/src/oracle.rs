//! The oracle: invariants of a cluster, recomputed from the simulated NVML's placements and the kubelets'
//! allocations.
//!
//! It shares no code with kerf-core's packing or planning. Places are counted by the simulated NVML's own
//! rules, memory by the numbers in resource names. A neutral name states no kind; there the kind is that of
//! the held device: a MIG device, or the share with its number in the agent's checkpoint. Only the format of
//! documents is core's.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, ensure};
use k8s_openapi::api::core::v1::Pod;
use kerf_core::contract::{ContainerRequest, Reservation, Shape, WantedSlice};
use kerf_nvml_mock::{GpuState, MockState};
use kube::Client;
use kube::api::{Api, ListParams};

use crate::cluster::{Cluster, GpuServer, StandInNode};
use crate::kubelet::{FailedAdmission, PodKey};
use crate::pods::request_of;

/// The state of a node from its GPUs and its kubelet, with the reservations of its agent.
struct NodeTruth {
    name: String,
    gpus: MockState,
    /// Device id to resource name and pod.
    held: BTreeMap<String, (String, PodKey)>,
    /// The slices in its agent's checkpoint.
    slices: Vec<WantedSlice>,
    double: Vec<String>,
}

/// The state of the whole cluster at one moment.
pub struct Truth {
    nodes: Vec<NodeTruth>,
    pods: Vec<Pod>,
    rejected: Vec<String>,
    bare: Vec<String>,
}

impl Truth {
    pub async fn observe(cluster: &Cluster) -> anyhow::Result<Self> {
        Self::of_nodes(cluster.plane().client(), cluster.nodes().iter().map(GpuServer::node)).await
    }

    /// Reads these nodes, and the pods of the namespace `default`.
    pub async fn of_nodes<'a>(
        client: Client,
        looked_at: impl IntoIterator<Item = &'a StandInNode>,
    ) -> anyhow::Result<Self> {
        let pods = Api::<Pod>::default_namespaced(client).list(&ListParams::default()).await?.items;
        let (mut nodes, mut rejected, mut bare) = (Vec::new(), Vec::new(), Vec::new());
        for node in looked_at {
            let seen = node.kubelet().observed();
            let text = |f: &FailedAdmission| format!("{}: {:?} failed: {}", node.name(), f.pod, f.message);
            rejected.extend(seen.failed_admissions.iter().map(text));
            let text = |p: &PodKey| format!("{}: {p:?} runs without its device", node.name());
            bare.extend(seen.started_without_device.iter().map(text));
            nodes.push(NodeTruth::from_node(node)?);
        }
        Ok(Self { nodes, pods, rejected, bare })
    }

    /// Fails if the cluster violates an invariant now.
    pub async fn ensure_sound(cluster: &Cluster) -> anyhow::Result<()> {
        Self::observe(cluster).await?.ensure_no_violations()
    }

    pub fn ensure_no_violations(&self) -> anyhow::Result<()> {
        let violations = self.violations();
        ensure!(violations.is_empty(), "{}", violations.join("\n"));
        Ok(())
    }

    /// All violated invariants. It is empty for a sound cluster at any moment.
    #[must_use]
    pub fn violations(&self) -> Vec<String> {
        [self.rejected.clone(), self.harm()].concat()
    }

    /// The pods that a kubelet has rejected so far. Without faults there are none.
    #[must_use]
    pub fn rejected(&self) -> &[String] {
        &self.rejected
    }

    /// Slices that are held twice, gone, or not what is reserved. There are none, whatever fails.
    #[must_use]
    pub fn harm(&self) -> Vec<String> {
        let mut found = self.bare.clone();
        for node in &self.nodes {
            found.extend(node.double.iter().cloned());
            found.extend(node.gpus.gpus.iter().flat_map(GpuState::violations));
            let real: BTreeSet<&str> = node.gpus.gpus.iter().flat_map(mig_uuids).collect();
            for (device, (resource, pod)) in &node.held {
                // A time slice of a MIG device is a replica with a number behind the device, so only the part before it
                // names a device.
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
            found.extend(node.held_otherwise());
        }
        found
    }

    /// Pods that are pending without a reason: the simulated NVML has a free place for them.
    #[must_use]
    pub fn unexplained(&self) -> Vec<String> {
        self.pods
            .iter()
            .filter(|p| phase(p) == "Pending" && p.metadata.deletion_timestamp.is_none())
            .filter_map(|p| self.could_run(p))
            .collect()
    }

    /// Whether every pod runs, is pending or is deleted, with no step under way.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        let leaving = self.pods.iter().any(|p| p.metadata.deletion_timestamp.is_some());
        let bound_and_waiting = self.pods.iter().any(|p| phase(p) == "Pending" && is_bound(p));
        let reserved: BTreeSet<(&str, &str)> = self.nodes.iter().flat_map(NodeTruth::reserved_pods).collect();
        let existing: BTreeSet<(&str, &str)> = self.pods.iter().filter(|p| is_bound(p)).map(key).collect();
        !leaving && !bound_and_waiting && reserved.is_subset(&existing)
    }

    /// The pods of the namespace `default`.
    #[must_use]
    pub fn pods(&self) -> &[Pod] {
        &self.pods
    }

    #[must_use]
    pub fn count(&self, wanted: &str) -> usize {
        self.pods.iter().filter(|p| phase(p) == wanted).count()
    }

    fn could_run(&self, pod: &Pod) -> Option<String> {
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        let (resource, count) = asked(pod)?;
        let place = self.nodes.iter().find_map(|node| {
            ways(pod, &resource).iter().find_map(|(kind, gb)| node.place_for(kind, *gb, count))
        })?;
        Some(format!("{name} is pending with {count}x {resource}, though {place}"))
    }
}

/// The violations of `found` that a second reading has, too.
///
/// The kubelets, NVML and the API server are read one after the other, so a change between two reads may look like a
/// violation.
pub async fn confirmed(
    found: Vec<String>,
    read_again: impl AsyncFnOnce() -> anyhow::Result<Vec<String>>,
) -> anyhow::Result<Vec<String>> {
    if found.is_empty() {
        return Ok(found);
    }
    let again = read_again().await?;
    Ok(found.into_iter().filter(|text| again.contains(text)).collect())
}

/// The kinds and sizes that can serve a pod's request: the one in its name, or those that its request
/// document lists.
fn ways(pod: &Pod, resource: &str) -> Vec<(String, u64)> {
    if let Some(kind) = kind_of(resource) {
        return gigabytes(resource).map(|gb| (kind.to_owned(), gb)).into_iter().collect();
    }
    // A pod without a readable document fits nowhere.
    let containers = request_of(pod).map(|document| document.containers).unwrap_or_default();
    let of_name = containers.iter().find(|container| container.resource.to_string() == resource);
    let listed = |c: &ContainerRequest| {
        c.kinds.iter().map(|kind| (kind.to_string(), u64::from(c.size_gb.0))).collect()
    };
    of_name.map(listed).unwrap_or_default()
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

fn asked(pod: &Pod) -> Option<(String, usize)> {
    let containers = &pod.spec.as_ref()?.containers;
    let limits = containers.iter().filter_map(|c| c.resources.as_ref()?.limits.as_ref()).flatten();
    let mut gpu = limits.filter(|(name, _)| name.starts_with("nvidia.com/") || name.starts_with(NEUTRAL));
    gpu.next().and_then(|(name, count)| Some((name.clone(), count.0.parse().ok()?)))
}

fn mig_uuids(gpu: &GpuState) -> impl Iterator<Item = &str> {
    gpu.instances.iter().flat_map(|i| &i.compute).map(|c| c.uuid.as_str())
}

const MIG: &str = "mig";
const WHOLE: &str = "whole";
const MPS: &str = "mps";
const TIME_SLICING: &str = "time-slicing";
/// Prefix of names without a kind.
const NEUTRAL: &str = "kerf.dev/gpu-";

/// The kind of a resource name; `None` for a neutral one.
fn kind_of(resource: &str) -> Option<&'static str> {
    match resource {
        name if name.starts_with(NEUTRAL) => None,
        "nvidia.com/gpu" => Some(WHOLE),
        name if name.contains("/mig-") => Some(MIG),
        name if name.ends_with(".shared") => Some(TIME_SLICING),
        _ => Some(MPS),
    }
}

/// The kind and the size in GB of a slice.
fn worth(shape: Shape) -> (&'static str, u64) {
    let gb = |size: kerf_core::units::SizeGb| u64::from(size.0);
    match shape {
        Shape::Mig { profile, .. } => (MIG, gb(profile.size())),
        Shape::Whole { size_gb } => (WHOLE, gb(size_gb)),
        Shape::Mps { size_gb, .. } => (MPS, gb(size_gb)),
        Shape::TimeSlicing { size_gb } => (TIME_SLICING, gb(size_gb)),
    }
}

/// The GPU and the number in a share's device id, `<GPU>::<n>`.
fn share_of(device: &str) -> Option<(&str, &str)> {
    device.split_once("::").filter(|(gpu, _)| gpu.starts_with("GPU-"))
}

/// The N of `…Ngb…`.
fn gigabytes(resource: &str) -> Option<u64> {
    let digits = resource.split("gb").next()?;
    digits[digits.rfind(|c: char| !c.is_ascii_digit())? + 1..].parse().ok()
}

impl NodeTruth {
    fn from_node(node: &StandInNode) -> anyhow::Result<Self> {
        let before = node.wanted_slices()?;
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
        let mut slices = node.wanted_slices()?;
        // A slice that was removed while the kubelet was read may have been held then, so it counts without
        // its reservation.
        let left = before.into_iter().filter(|slice| slices.iter().all(|now| now.id != slice.id));
        let left: Vec<_> = left.map(|slice| WantedSlice { reservation: None, ..slice }).collect();
        slices.extend(left);
        Ok(Self { name: node.name().to_owned(), gpus, held, slices, double })
    }

    fn reserved_pods(&self) -> impl Iterator<Item = (&str, &str)> {
        self.reservations().map(|(_, r)| (r.namespace.as_str(), r.pod.as_str()))
    }

    fn reservations(&self) -> impl Iterator<Item = (&WantedSlice, &Reservation)> {
        self.slices.iter().filter_map(|slice| Some((slice, slice.reservation.as_ref()?)))
    }

    /// GPUs whose shares exceed the GPU's memory, or have two kinds.
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

    /// Pods that hold slices under neutral names that differ from their reservations, as far as those still
    /// exist.
    fn held_otherwise(&self) -> Vec<String> {
        let mut held: BTreeMap<&PodKey, Vec<_>> = BTreeMap::new();
        for (device, (resource, pod)) in &self.held {
            if kind_of(resource).is_none() {
                held.entry(pod).or_default().push(self.held_worth(device, resource));
            }
        }
        let otherwise = held.into_iter().filter_map(|(pod, held)| {
            let mut reserved = self.reserved_for(pod);
            let all = format!("{reserved:?}");
            // A pod that ends has no reservation any more.
            let wrong = held.iter().filter(|worth| match reserved.iter().position(|p| p == *worth) {
                Some(at) => {
                    reserved.swap_remove(at);
                    false
                }
                None => all != "[]",
            });
            let wrong: Vec<_> = wrong.collect();
            let text = || format!("{pod:?} holds {wrong:?} on {}, but has reserved {all}", self.name);
            (!wrong.is_empty()).then(text)
        });
        otherwise.collect()
    }

    /// Kinds and sizes that are reserved for a pod under neutral names.
    fn reserved_for(&self, pod: &PodKey) -> Vec<Option<(&'static str, u64)>> {
        let theirs = self.reservations().filter(|(_, r)| {
            r.namespace == pod.namespace && r.pod == pod.name && kind_of(&r.resource.to_string()).is_none()
        });
        theirs.map(|(slice, _)| Some(worth(slice.shape))).collect()
    }

    /// The kind and size of a held device, by its name or by what it is; `None` if no source has it any more.
    fn held_worth(&self, device: &str, resource: &str) -> Option<(&'static str, u64)> {
        if let Some(kind) = kind_of(resource) {
            return Some((kind, gigabytes(resource).unwrap_or_default()));
        }
        if let Some((gpu, number)) = share_of(device) {
            let id = format!("s{number}");
            let is_it = |slice: &&WantedSlice| slice.gpu.as_str() == gpu && slice.id.as_str() == id;
            return self.slices.iter().find(is_it).map(|slice| worth(slice.shape));
        }
        let gpu = self.gpus.gpus.iter().find(|gpu| gpu.uuid == device);
        if let Some(gpu) = gpu {
            return Some((WHOLE, gpu.model.total_mib().div_ceil(1024)));
        }
        let instance = self.gpus.gpus.iter().find_map(|gpu| {
            let instance = gpu.instances.iter().find(|i| i.compute.iter().any(|c| c.uuid == device))?;
            gpu.model.profile(instance.profile_id)
        });
        instance.and_then(|profile| Some((MIG, gigabytes(&profile.name)?)))
    }

    /// MiB and kinds of the shares held on a GPU. A whole GPU counts with all memory, and so does an unknown
    /// device.
    fn shares_on(&self, gpu: &GpuState) -> (u64, BTreeSet<&'static str>) {
        let here = self.held.iter().filter(|(id, _)| id.starts_with(gpu.uuid.as_str()));
        let here: Vec<_> =
            here.map(|(id, (resource, _))| self.held_worth(id, resource).unwrap_or((WHOLE, 0))).collect();
        let memory = |(kind, gb): &(&str, u64)| match *kind {
            WHOLE => gpu.model.total_mib(),
            _ => gb * 1024,
        };
        (here.iter().map(memory).sum(), here.iter().map(|(kind, _)| *kind).collect())
    }

    /// Where `count` slices of this kind and size fit now, counting idle slices as free.
    fn place_for(&self, kind: &str, gb: u64, count: usize) -> Option<String> {
        let mut left = count;
        for gpu in &self.gpus.gpus {
            let here = match kind {
                MIG => self.instances_free(gpu, gb),
                WHOLE => usize::from(self.is_free_whole(gpu, gb)),
                kind => self.shares_free(gpu, kind, gb),
            };
            left = left.saturating_sub(here);
            if left == 0 {
                return Some(format!("{} of {} has room for {gb} GB by {kind}", gpu.uuid, self.name));
            }
        }
        None
    }

    /// Whether the GPU can serve this size as a whole: it must be free, and the size more than half of its
    /// memory.
    fn is_free_whole(&self, gpu: &GpuState, gb: u64) -> bool {
        let total = gpu.model.total_mib().div_ceil(1024);
        !gpu.mig.current && self.shares_on(gpu).0 == 0 && gb <= total && 2 * gb > total
    }

    fn shares_free(&self, gpu: &GpuState, kind: &str, gb: u64) -> usize {
        if gpu.mig.current {
            return 0;
        }
        let (used, kinds) = self.shares_on(gpu);
        let free = gpu.model.total_mib().saturating_sub(used) / (gb * 1024);
        if kinds.iter().all(|here| *here == kind) { usize::try_from(free).unwrap_or(0) } else { 0 }
    }

    /// How many instances of the smallest fitting profiles could be created beside those in use.
    fn instances_free(&self, gpu: &GpuState, gb: u64) -> usize {
        if !gpu.mig.current {
            return 0;
        }
        let mut busy = gpu.clone();
        busy.instances.retain(|i| {
            i.compute.iter().any(|c| self.held.contains_key(&c.uuid))
                || self.is_reserved(gpu, i.placement.start, i.placement.size)
        });
        let plain = gpu.model.profiles().iter().filter(|p| !p.media_extension);
        plain
            .filter(|p| gigabytes(&p.name).is_some_and(|size| size >= gb))
            .map(|p| busy.free_places(p.id).len())
            .max()
            .unwrap_or(0)
    }

    fn is_reserved(&self, gpu: &GpuState, at: u32, len: u32) -> bool {
        let mut reserved = self.reservations().filter(|(slice, _)| slice.gpu.as_str() == gpu.uuid);
        reserved.any(|(slice, _)| match slice.shape {
            Shape::Mig { start, size, .. } => (u32::from(start), u32::from(size)) == (at, len),
            Shape::Whole { .. } | Shape::Mps { .. } | Shape::TimeSlicing { .. } => false,
        })
    }
}

#[cfg(test)]
#[path = "oracle_tests.rs"]
mod tests;
