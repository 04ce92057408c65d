//! The GpuNode resource as the API server holds it.
//!
//! Both halves are kept as raw JSON: one object that this version cannot read must not stop a watch. The CRD in
//! `deploy/` is its schema.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kerf_core::contract::{GpuNodeSpec, GpuNodeStatus, UnreadableStatus};
use kerf_core::keys;
use kerf_core::names::NodeName;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::borrow::Cow;

/// A GpuNode: cluster-scoped, named as its Node.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GpuNode {
    /// `kerf.dev/v1alpha1`.
    #[serde(default = "api_version")]
    pub api_version: String,
    /// `GpuNode`.
    #[serde(default = "kind")]
    pub kind: String,
    /// Its metadata.
    pub metadata: ObjectMeta,
    /// What the extender wants.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spec: Option<Value>,
    /// What the agent observes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<Value>,
}

fn api_version() -> String {
    format!("{}/{}", keys::GROUP, keys::VERSION)
}

fn kind() -> String {
    "GpuNode".to_owned()
}

impl GpuNode {
    /// A GpuNode for the node of this name, with an empty spec.
    #[must_use]
    pub fn new(name: &NodeName) -> Self {
        Self {
            api_version: api_version(),
            kind: kind(),
            metadata: ObjectMeta { name: Some(name.to_string()), ..ObjectMeta::default() },
            spec: Some(serde_json::json!(GpuNodeSpec::default())),
            status: None,
        }
    }

    /// Its node's name.
    #[must_use]
    pub fn name(&self) -> NodeName {
        NodeName::new(self.metadata.name.clone().unwrap_or_default())
    }

    /// The spec; that of an uncut node while there is none.
    pub fn read_spec(&self) -> Result<GpuNodeSpec, serde_json::Error> {
        self.spec.clone().map_or_else(|| Ok(GpuNodeSpec::default()), serde_json::from_value)
    }

    /// The status; `None` while the agent has not written one.
    pub fn read_status(&self) -> Result<Option<GpuNodeStatus>, UnreadableStatus> {
        self.status.clone().map(GpuNodeStatus::parse).transpose()
    }
}

impl kube::Resource for GpuNode {
    type DynamicType = ();
    type Scope = k8s_openapi::ClusterResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        Cow::Borrowed("GpuNode")
    }

    fn group((): &()) -> Cow<'_, str> {
        Cow::Borrowed(keys::GROUP)
    }

    fn version((): &()) -> Cow<'_, str> {
        Cow::Borrowed(keys::VERSION)
    }

    fn plural((): &()) -> Cow<'_, str> {
        Cow::Borrowed("gpunodes")
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}
