//! A GpuNode as watches read it. Its status is most of it, and comes from the node's agent over its stream instead.

use crate::objects::metadata;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kerf_runtime::gpu_node::GpuNode;
use kube::Resource;
use serde::Deserialize;
use serde_json::Value;

/// The parts of a GpuNode that its agent does not write.
#[derive(Debug, Clone, Default, Deserialize, Resource)]
#[resource(inherit = GpuNode)]
pub struct GpuNodeView {
    #[serde(deserialize_with = "metadata::read")]
    metadata: ObjectMeta,
    #[serde(default)]
    spec: Option<Value>,
}

impl From<GpuNodeView> for GpuNode {
    fn from(GpuNodeView { metadata, spec }: GpuNodeView) -> Self {
        Self { metadata, spec, ..Self::default() }
    }
}
