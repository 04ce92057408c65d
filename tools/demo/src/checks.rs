//! Checks the demo's claims against the simulated NVML and the kubelets, without trusting kerf's own reports.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, bail, ensure};
use k8s_openapi::api::core::v1::Pod;
use kerf_nvml_mock::Slice;
use kerf_tests::cluster::{Cluster, GpuServer, request_of};
use kerf_tests::kubelet::PodKey;
use kerf_tests::pods::assignment_of;

/// The device ids that pods hold according to their kubelets, by pod name. Fails if two pods hold one device.
pub fn held(cluster: &Cluster) -> anyhow::Result<BTreeMap<String, BTreeSet<String>>> {
    let mut held: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut taken = BTreeMap::new();
    for node in cluster.nodes() {
        for (pod, devices) in node.kubelet().allocations() {
            for id in devices.into_values().flatten() {
                if let Some(other) = taken.insert(id.clone(), pod.name.clone()) {
                    bail!("{id} is held by {other} and by {}", pod.name);
                }
                held.entry(pod.name.clone()).or_default().insert(id);
            }
        }
        let refused = node.kubelet().failed_admissions();
        ensure!(refused.is_empty(), "the kubelet of {} refused pods: {refused:?}", node.name());
        let bare = node.kubelet().started_without_device();
        ensure!(bare.is_empty(), "pods on {} started without their device: {bare:?}", node.name());
    }
    Ok(held)
}

/// Checks that a running pod holds as many slices as it asked for, and that each exists and is large enough.
/// Returns a text for each.
pub fn runs_on_what_it_asked_for(cluster: &Cluster, pod: &Pod) -> anyhow::Result<Vec<String>> {
    let name = pod.metadata.name.clone().unwrap_or_default();
    let request = request_of(pod)?;
    let assignment = assignment_of(pod)?;
    let node = pod.spec.as_ref().and_then(|s| s.node_name.as_deref()).unwrap_or_default();
    let node =
        cluster.nodes().iter().find(|n| n.name() == node).with_context(|| format!("no node {node}"))?;
    let mut texts = Vec::new();
    for container in &request.containers {
        let key = PodKey::new("default", &name);
        let grant =
            node.kubelet().grant(&key, &container.name).with_context(|| format!("{name} got no device"))?;
        let visible = grant.environment.get("NVIDIA_VISIBLE_DEVICES").cloned().unwrap_or_default();
        let devices: Vec<&str> = visible.split(',').collect();
        ensure!(
            devices.len() == container.count as usize,
            "{name} asked for {} slices and sees {visible}",
            container.count
        );
        for device in devices {
            texts.push(big_enough(node, device, container.size_gb.0).with_context(|| name.clone())?);
        }
    }
    let reserved = assignment.slices.len();
    ensure!(reserved == texts.len(), "{name} has reserved {reserved} slices and holds {}", texts.len());
    Ok(texts)
}

/// Checks that `device` exists on the node and has at least `gb` nominal gigabytes.
fn big_enough(node: &GpuServer, device: &str, gb: u32) -> anyhow::Result<String> {
    let gpus = node.gpus()?;
    if let Some(gpu) = gpus.gpu(device) {
        return Ok(format!("{gb} GB share of GPU {} ({})", gpu.index, node.name()));
    }
    let holds = |s: &&Slice| s.mig_uuids.iter().any(|u| u == device);
    let slices = gpus.slices();
    let slice = slices.iter().find(holds).with_context(|| format!("{device} does not exist"))?;
    let size = slice.profile.split('.').nth(1).and_then(|s| s.split("gb").next()?.parse::<u32>().ok());
    ensure!(size.is_some_and(|size| size >= gb), "{} is smaller than {gb} GB", slice.profile);
    let place = &slice.placement;
    Ok(format!(
        "{} at {}:{} of GPU {} ({})",
        slice.profile,
        place.start,
        place.size,
        slice.gpu_index,
        node.name()
    ))
}
