//! The pods of the bench: as a user of kerf writes them, and as a user of an ordinary device plugin writes
//! them.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use kerf_core::keys;
use kerf_tests::cluster::pod;
use serde_json::json;

/// The resource that a pod of the control asks for. [`DEVICES`] of it are on a node.
pub const DEVICE: &str = "nvidia.com/mig-1g.10gb";
/// How many `1g.10gb` instances eight H100 have.
pub const DEVICES: u32 = 56;

const SCHEDULER: &str = "kerf-scheduler";
const PADDING: &str = "example.com/padding";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asks {
    /// A slice of 10 GiB with hardware isolation.
    Slice,
    /// More than any node has.
    TooMany,
    NoGpu,
}

impl Asks {
    /// The pod with kerf's annotations.
    pub fn of_kerf(self, name: &str) -> Pod {
        let (size, count) = match self {
            Self::Slice => ("10Gi", "1"),
            // A node has eight GPUs of this size, and the policy allows more slices than that.
            Self::TooMany => ("80Gi", "9"),
            Self::NoGpu => return plain(name, 0),
        };
        let annotations = [(keys::GPU_MEMORY, size), (keys::ISOLATION, "hardware"), (keys::GPU_COUNT, count)];
        with_resources(pod(name, &annotations), 0)
    }

    fn devices(self) -> u32 {
        match self {
            Self::Slice => 1,
            Self::TooMany => DEVICES + 1,
            Self::NoGpu => 0,
        }
    }

    /// The pod without kerf, `padding` bytes longer: as long as kerf's webhook makes the other.
    pub fn of_control(self, name: &str, padding: usize) -> Pod {
        let mut plain = plain(name, self.devices());
        if padding > 0 && self != Self::NoGpu {
            let padding = BTreeMap::from([(PADDING.to_owned(), "x".repeat(padding))]);
            plain.metadata.annotations = Some(padding);
        }
        plain
    }
}

/// A pod for which the webhook is not called, bound by the same scheduler.
fn plain(name: &str, devices: u32) -> Pod {
    let mut pod = with_resources(pod(name, &[]), devices);
    pod.metadata.annotations = None;
    if let Some(spec) = &mut pod.spec {
        spec.scheduler_name = Some(SCHEDULER.to_owned());
    }
    pod
}

fn with_resources(mut pod: Pod, devices: u32) -> Pod {
    let mut resources = json!({"requests": {"cpu": "100m", "memory": "64Mi"}});
    if devices > 0 {
        resources["limits"] = json!({DEVICE: devices.to_string()});
    }
    if let Some(container) = pod.spec.as_mut().and_then(|spec| spec.containers.first_mut()) {
        container.resources = serde_json::from_value(resources).ok();
    }
    pod
}
