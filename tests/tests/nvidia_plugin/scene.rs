//! A control plane with static nodes.

use std::collections::BTreeMap;

use kerf_tests::control_plane::{ControlPlane, ControlPlaneOptions};
use kerf_tests::nvidia_plugin::{StaticNode, StaticNodeSpec};

/// Every layout of the reference demos, and more, by its key.
pub const LAYOUTS: [(&str, &str); 10] = [
    ("default", "version: v1\n"),
    (
        "time-sliced-2",
        "version: v1\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 2}]}}\n",
    ),
    (
        "time-sliced-4",
        "version: v1\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}\n",
    ),
    (
        "renamed-4",
        "version: v1\nsharing: {timeSlicing: {renameByDefault: true, resources: [{name: nvidia.com/gpu, replicas: 4}]}}\n",
    ),
    (
        "one-each-4",
        "version: v1\nsharing: {timeSlicing: {failRequestsGreaterThanOne: true, resources: [{name: nvidia.com/gpu, replicas: 4}]}}\n",
    ),
    ("mig-single", "version: v1\nflags: {migStrategy: single}\n"),
    ("mig-mixed", "version: v1\nflags: {migStrategy: mixed}\n"),
    (
        "mig-mixed-sliced",
        "version: v1\nflags: {migStrategy: mixed}\nsharing: {timeSlicing: {resources: [{name: nvidia.com/mig-1g.10gb, replicas: 2}]}}\n",
    ),
    ("mps-2", "version: v1\nsharing: {mps: {resources: [{name: nvidia.com/gpu, replicas: 2}]}}\n"),
    ("mps-4", "version: v1\nsharing: {mps: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}\n"),
];

pub struct Scene {
    pub plane: ControlPlane,
}

impl Scene {
    pub async fn start() -> Self {
        let plane = ControlPlane::start(ControlPlaneOptions::without_controller_manager()).await.unwrap();
        Self { plane }
    }

    /// A node with all layouts to choose from.
    pub async fn node(&self, spec: StaticNodeSpec) -> StaticNode {
        let node = StaticNode::start(&self.plane, spec).await.unwrap();
        node.write_layouts(&LAYOUTS).await.unwrap();
        node
    }

    pub async fn end(self, nodes: Vec<StaticNode>) {
        for node in nodes {
            node.check().unwrap();
            node.stop().await.unwrap();
        }
        self.plane.stop().await.unwrap();
    }
}

/// Waits until the node has these labels of NVIDIA's. The value `-` means that the label must be absent.
pub async fn until_labels(node: &StaticNode, wanted: &[(&str, &str)]) {
    node.until(&format!("labels {wanted:?}"), async || {
        let labels = node.labels().await?;
        let seen: Vec<(&str, &str)> =
            wanted.iter().map(|(name, _)| (*name, labels.get(*name).map_or("-", String::as_str))).collect();
        if seen == wanted { Ok(()) } else { anyhow::bail!("they are {seen:?}") }
    })
    .await
    .unwrap();
}

/// How many devices of a resource the kubelet has on each GPU or MIG device. It also checks that their ids are numbered
/// as NVIDIA's plugin numbers replicas.
pub fn replicas(node: &StaticNode, resource: &str) -> BTreeMap<String, usize> {
    let mut by_device: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for id in &node.kubelet().healthy_devices()[resource] {
        let (device, number) = id.split_once("::").unwrap();
        by_device.entry(device.to_owned()).or_default().push(number.to_owned());
    }
    for numbers in by_device.values() {
        assert_eq!(*numbers, (0..numbers.len()).map(|number| number.to_string()).collect::<Vec<_>>());
    }
    by_device.into_iter().map(|(device, numbers)| (device, numbers.len())).collect()
}
