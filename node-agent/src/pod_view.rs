//! The parts of a pod that the agent needs. Everything else is skipped during parsing, because the code for it would
//! take memory.

use crate::node::NodePod;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kerf_core::contract::{
    AssignedSlice, AssignmentDocument, ContainerRequest, RequestDocument, Reservation, WantedSlice,
};
use kerf_core::keys;
use kerf_core::names::{PodKey, PodUid};
use kerf_core::request::{Role, SpecView, devices, has_ended};
use kerf_core::units::MemoryMib;
use kube::Resource;
use serde::Deserialize;
use serde::de::IgnoredAny;
use std::collections::BTreeMap;

#[derive(Debug, Clone, Deserialize, Resource)]
#[resource(inherit = Pod)]
pub(crate) struct PodView {
    pub(crate) metadata: ObjectMeta,
    #[serde(default)]
    pub(crate) spec: SpecView,
    #[serde(default)]
    pub(crate) status: PodStatusView,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PodStatusView {
    #[serde(default)]
    pub(crate) phase: String,
    /// When the kubelet accepted the pod: by then it has allocated devices for all its containers.
    #[serde(default)]
    pub(crate) start_time: Option<String>,
    #[serde(default)]
    init_container_statuses: Vec<ContainerStatusView>,
    #[serde(default)]
    container_statuses: Vec<ContainerStatusView>,
    #[serde(default)]
    pub(crate) reason: String,
    #[serde(default)]
    pub(crate) message: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
struct ContainerStatusView {
    #[serde(default)]
    state: ContainerStateView,
}

#[derive(Debug, Clone, Default, Deserialize)]
struct ContainerStateView {
    #[serde(default)]
    running: Option<IgnoredAny>,
    #[serde(default)]
    terminated: Option<IgnoredAny>,
}

/// The kubelet's reason for a pod that it rejected for lack of devices.
pub(crate) const REJECTED: &str = "UnexpectedAdmissionError";

impl PodView {
    pub(crate) fn key(&self) -> PodKey {
        let text = |field: &Option<String>| field.clone().unwrap_or_default();
        PodKey::new(text(&self.metadata.namespace), text(&self.metadata.name))
    }

    pub(crate) fn is_finished(&self) -> bool {
        has_ended(&self.status.phase)
    }

    /// Whether the kubelet rejected the pod for lack of devices.
    pub(crate) fn is_rejected(&self) -> bool {
        self.status.phase == "Failed" && self.status.reason == REJECTED
    }

    /// Whether processes of the pod may run, by the kubelet's last status. It lags: a container shows as running a
    /// second or two after its start, and a forced deletion may mark the pod failed before.
    pub(crate) fn may_run(&self) -> bool {
        let PodStatusView { init_container_statuses, container_statuses, .. } = &self.status;
        let mut states = init_container_statuses.iter().chain(container_statuses).map(|one| &one.state);
        let has_ended = !container_statuses.is_empty() && states.clone().all(|s| s.terminated.is_some());
        states.any(|state| state.running.is_some()) || !self.is_finished() && !has_ended
    }

    /// Whether the pod requests names of kerf.
    pub(crate) fn asks(&self) -> bool {
        !devices(&self.spec).is_empty()
    }

    pub(crate) fn uid(&self) -> PodUid {
        PodUid::new(self.metadata.uid.clone().unwrap_or_default())
    }

    /// The pod as the agent stores it; `None` if it is finished or requests none of kerf's names.
    pub(crate) fn known(&self) -> Option<NodePod> {
        let names = devices(&self.spec);
        let inits = self.spec.in_order().filter(|(_, role)| *role == Role::Init);
        let counts = !names.is_empty() && !self.is_finished();
        counts.then(|| NodePod {
            key: self.key(),
            admitted: self.status.start_time.is_some(),
            names,
            inits: inits.map(|(container, _)| container.name.clone()).collect(),
            requested: self.requested(),
            assigned: self.assigned(),
        })
    }

    /// The memory that each container requested per slice, from the pod's request document.
    fn requested(&self) -> BTreeMap<String, MemoryMib> {
        let asked =
            |container: &ContainerRequest| container.memory.unwrap_or(container.size_gb.share_memory());
        self.containers().map(|container| (container.name.clone(), asked(&container))).collect()
    }

    fn annotation(&self, key: &str) -> Option<&str> {
        self.metadata.annotations.as_ref()?.get(key).map(String::as_str)
    }

    fn containers(&self) -> impl Iterator<Item = ContainerRequest> {
        let document = self.annotation(keys::REQUEST).and_then(|text| RequestDocument::parse(text).ok());
        document.into_iter().flat_map(|document| document.containers)
    }

    /// The slices that its Binding assigned. An admission policy allows only the extender to write that annotation.
    fn assigned(&self) -> Vec<WantedSlice> {
        let document = self.annotation(keys::ASSIGNMENT).and_then(|text| serde_json::from_str(text).ok());
        let Some(AssignmentDocument { slices, .. }) = document else { return Vec::new() };
        let names: BTreeMap<_, _> = self.containers().map(|c| (c.name.clone(), c.resource)).collect();
        let PodKey { namespace, name } = self.key();
        let wanted = |AssignedSlice { container, id, gpu, shape }| {
            let resource = *names.get(&container)?;
            let (namespace, pod) = (namespace.clone(), name.clone());
            // An assignment does not say whether other devices may be offered beside it, so assume that none may.
            let alone = true;
            let reservation =
                Reservation { uid: self.uid(), namespace, pod, container, resource, alone, epoch: 0 };
            Some(WantedSlice { id, gpu, shape, reservation: Some(reservation) })
        };
        slices.into_iter().filter_map(wanted).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kerf_core::contract::{MigPart, Shape};
    use serde_json::json;

    #[test]
    fn the_assigned_slices_are_read_from_a_bound_pod() {
        let request = kerf_core::testing::request("nvidia.com/mig-1g.10gb", 1);
        let shape =
            Shape::Mig { profile: "1g.10gb".parse().unwrap(), start: 2, size: 1, part: MigPart::Whole };
        let slice = |container: &str| AssignedSlice {
            container: container.to_owned(),
            id: "s7".into(),
            gpu: "GPU-0".into(),
            shape,
        };
        let slices = vec![slice(&request.containers[0].name), slice("unknown")];
        let assignment = AssignmentDocument { version: 1, slices, devices: Vec::new(), passed: Vec::new() };
        let annotations =
            json!({keys::REQUEST: request.to_json(), keys::ASSIGNMENT: json!(assignment).to_string()});
        let pod: PodView = serde_json::from_value(json!({
            "metadata": {"name": "a", "namespace": "ns", "uid": "u", "annotations": annotations},
        }))
        .unwrap();
        let assigned = pod.assigned();
        assert_eq!(assigned.len(), 1, "{assigned:?}");
        let reservation = assigned[0].reservation.as_ref().unwrap();
        assert_eq!((assigned[0].id.as_str(), reservation.uid.as_str()), ("s7", "u"));
        assert_eq!(reservation.resource.to_string(), "nvidia.com/mig-1g.10gb");
    }
}
