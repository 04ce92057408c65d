//! A Node as the extender sees it: its labels and what it has for pods. Nothing else of a Node is read or kept.

use crate::compute::Compute;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kerf_core::names::NodeName;
use kube::Resource;
use serde::Deserialize;
use std::collections::BTreeMap;

/// The parts of a Node that a watch reads.
#[derive(Debug, Clone, Default, Deserialize, Resource)]
#[resource(inherit = Node)]
pub struct Machine {
    /// Its metadata.
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// What it has.
    #[serde(default)]
    pub status: Option<MachineStatus>,
}

/// The part of a Node's status that matters here.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct MachineStatus {
    /// What pods may ask of it.
    #[serde(default)]
    pub allocatable: Option<BTreeMap<String, Quantity>>,
}

impl Machine {
    /// Its name.
    #[must_use]
    pub fn name(&self) -> NodeName {
        NodeName::new(self.metadata.name.clone().unwrap_or_default())
    }

    /// What it has for pods.
    #[must_use]
    pub fn allocatable(&self) -> Compute {
        let allocatable = self.status.as_ref().and_then(|status| status.allocatable.as_ref());
        allocatable.map(Compute::of).unwrap_or_default()
    }
}
