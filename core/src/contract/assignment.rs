//! The assignment: which slices a bound pod was given. For people and for `explain`; no decision reads it.

use super::Shape;
use crate::names::{GpuUuid, SliceId};
use serde::{Deserialize, Serialize};

/// The slices of one pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AssignmentDocument {
    /// The document's version, 1.
    pub version: u32,
    /// One entry a slice.
    pub slices: Vec<AssignedSlice>,
}

/// One slice of an assignment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AssignedSlice {
    /// The container that holds it.
    pub container: String,
    /// The slice in the node's GpuNode.
    pub id: SliceId,
    /// The GPU.
    pub gpu: GpuUuid,
    /// What was cut.
    pub shape: Shape,
}

impl AssignmentDocument {
    /// The annotation's text.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::json!(self).to_string()
    }
}
