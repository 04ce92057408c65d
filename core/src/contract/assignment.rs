//! The assignment document: the slices that a bound pod was given. People and `kerf explain` read it; no decision
//! depends on it.

use super::Shape;
use crate::kind::Kind;
use crate::names::{GpuUuid, SliceId};
use crate::resource::ResourceName;
use crate::units::SizeGb;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The slices of one pod, as the extender writes them with the Binding.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AssignmentDocument {
    /// The document's format version, always 1.
    pub version: u32,
    /// One entry for each slice; empty on a static node.
    pub slices: Vec<AssignedSlice>,
    /// The devices of NVIDIA's device plugin on a static node. No GPU is named, because the plugin chooses it. Empty on
    /// a managed node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<AssignedDevices>,
    /// The kinds that the pod's policy prefers to the one that it got, best first. Empty for most pods.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub passed: Vec<PassedKind>,
}

/// A preferred kind that no node could give to the pod, with the numbers of nodes by reason when the kind was chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PassedKind {
    /// The kind that was passed over.
    pub kind: Kind,
    /// Nodes that have the kind, with all of it in use.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub full: u32,
    /// Nodes that kube-scheduler offered and that can never serve the request by this kind.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub never: u32,
    /// Nodes with the kind that kube-scheduler did not offer, because of taints, CPU, volumes, affinity or other checks
    /// of its own.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub excluded: u32,
    /// Those of the excluded nodes that have a taint which the pod does not tolerate.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub tainted: u32,
}

/// The text for Events and `kerf explain`: `mps was preferred: no free capacity on 12 nodes, 4 nodes with free capacity
/// are excluded by taints`.
impl fmt::Display for PassedKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, full, never, excluded, tainted } = *self;
        let nodes = |count: u32| if count == 1 { "1 node".to_owned() } else { format!("{count} nodes") };
        let are = |count: u32| if count == 1 { "is" } else { "are" };
        let other = excluded.saturating_sub(tainted);
        let reasons = [
            (full, format!("no free capacity on {}", nodes(full))),
            (tainted, format!("{} with free capacity {} excluded by taints", nodes(tainted), are(tainted))),
            (other, format!("{} with free capacity {} excluded by the scheduler", nodes(other), are(other))),
            (never, format!("{} cannot serve it", nodes(never))),
        ];
        let reasons: Vec<String> =
            reasons.into_iter().filter(|(count, _)| *count > 0).map(|(_, text)| text).collect();
        write!(f, "{kind} was preferred")?;
        match reasons.as_slice() {
            [] => f.write_str(" and no node offers it"),
            _ => write!(f, ": {}", reasons.join(", ")),
        }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes what it asks about by reference")]
fn is_zero(count: &u32) -> bool {
    *count == 0
}

/// Devices of NVIDIA's device plugin that one container holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AssignedDevices {
    /// Name of the container that holds them.
    pub container: String,
    /// The resource name in the container's limits, with the kind if the name does not say it.
    pub resource: ResourceName,
    /// The number of devices that the container holds.
    pub count: u32,
    /// The nominal size of each device.
    pub size_gb: SizeGb,
}

/// The text for Events and `kerf explain`: `1 device of nvidia.com/gpu (mps, 4 GB) from NVIDIA's device plugin`.
impl fmt::Display for AssignedDevices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { resource, count, size_gb, .. } = self;
        let devices = if *count == 1 { "device" } else { "devices" };
        write!(f, "{count} {devices} of {resource} ({}", Kind::label(resource.kind()))?;
        if *size_gb != SizeGb::ANY {
            write!(f, ", {size_gb}")?;
        }
        f.write_str(") from NVIDIA's device plugin")
    }
}

/// One slice of the pod, on a managed node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AssignedSlice {
    /// Name of the container that holds it.
    pub container: String,
    /// The slice's id in the status of the node's GpuNode.
    pub id: SliceId,
    /// UUID of the GPU that has the slice.
    pub gpu: GpuUuid,
    /// The shape of the slice, and for MIG its position.
    pub shape: Shape,
}

impl AssignmentDocument {
    /// The text of the annotation `kerf.dev/assignment`.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::json!(self).to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_passed_kind_is_reported_with_its_numbers_of_nodes() {
        let passed = PassedKind { kind: Kind::Mps, full: 0, never: 0, excluded: 0, tainted: 0 };
        for (passed, text) in [
            (passed, "mps was preferred and no node offers it"),
            (PassedKind { full: 12, ..passed }, "mps was preferred: no free capacity on 12 nodes"),
            (
                PassedKind { full: 1, never: 3, excluded: 5, tainted: 4, ..passed },
                "mps was preferred: no free capacity on 1 node, 4 nodes with free capacity are excluded by taints, 1 node with free capacity is excluded by the scheduler, 3 nodes cannot serve it",
            ),
        ] {
            assert_eq!(passed.to_string(), text);
        }
    }
}
