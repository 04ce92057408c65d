//! Reads from the kubelet which containers hold which devices.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use anyhow::Context as _;
use kerf_node_agent::kubelet_api::podresources::ListPodResourcesRequest;
use kerf_node_agent::kubelet_api::podresources::pod_resources_lister_client::PodResourcesListerClient;

use crate::kubelet_rules::plugin::channel;

/// Devices by pod and container, in the namespace `default`.
#[derive(Debug, Default)]
pub struct Devices(BTreeMap<(String, String), BTreeSet<String>>);

impl Devices {
    /// Reads the devices from pod-resources.
    pub async fn held(socket: PathBuf) -> anyhow::Result<Self> {
        let channel = channel(socket).await.context("pod-resources is not there")?;
        let answer = PodResourcesListerClient::new(channel).list(ListPodResourcesRequest {}).await;
        let pods = answer.context("pod-resources does not answer")?.into_inner().pod_resources;
        let mut held: BTreeMap<_, BTreeSet<String>> = BTreeMap::new();
        for pod in pods.into_iter().filter(|pod| pod.namespace == "default") {
            for container in pod.containers {
                let devices = container.devices.into_iter().flat_map(|device| device.device_ids);
                held.entry((pod.name.clone(), container.name)).or_default().extend(devices);
            }
        }
        Ok(Self(held))
    }

    pub fn of_container(&self, pod: &str, container: &str) -> BTreeSet<String> {
        self.0.get(&(pod.to_owned(), container.to_owned())).cloned().unwrap_or_default()
    }

    /// Devices that two containers hold.
    pub fn held_twice(&self) -> Vec<String> {
        let mut holders = BTreeMap::new();
        let all = self.0.iter().flat_map(|(holder, devices)| devices.iter().map(move |d| (d, holder)));
        let twice = all.filter_map(|(device, holder)| {
            let other = holders.insert(device, holder)?;
            Some(format!("{device} is held by {other:?} and {holder:?}"))
        });
        twice.collect()
    }
}
