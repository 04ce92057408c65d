//! A Node as the extender sees it: its labels and what it has for pods. Nothing else of a Node is read or kept.

use crate::compute::Compute;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kerf_core::names::NodeName;
use serde::Deserialize;
use std::borrow::Cow;
use std::collections::BTreeMap;

/// The parts of a Node that a watch reads.
#[derive(Debug, Clone, Default, Deserialize)]
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

impl kube::Resource for Machine {
    type DynamicType = ();
    type Scope = k8s_openapi::ClusterResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        Cow::Borrowed("Node")
    }

    fn group((): &()) -> Cow<'_, str> {
        Cow::Borrowed("")
    }

    fn version((): &()) -> Cow<'_, str> {
        Cow::Borrowed("v1")
    }

    fn plural((): &()) -> Cow<'_, str> {
        Cow::Borrowed("nodes")
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}
