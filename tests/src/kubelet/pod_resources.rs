//! The pod-resources server: which containers hold which devices, and which devices can be allocated.
//!
//! It answers from the device manager's state. Like the kubelet it frees the devices of inactive pods before
//! it lists, and sends every device in its own entry.

use std::sync::Arc;

use kerf_node_agent::kubelet_api::podresources::pod_resources_lister_server::PodResourcesLister;
use kerf_node_agent::kubelet_api::podresources::{
    AllocatableResourcesRequest, AllocatableResourcesResponse, ContainerDevices, ContainerResources,
    GetPodResourcesRequest, GetPodResourcesResponse, ListPodResourcesRequest, ListPodResourcesResponse,
    PodResources,
};
use tonic::{Request, Response, Status};

use super::active::ActivePod;
use super::demand::PodKey;
use super::devices::DeviceManager;
use super::ledger::DevicesByResource;

pub(super) struct PodResourcesService(pub(super) Arc<DeviceManager>);

#[tonic::async_trait]
impl PodResourcesLister for PodResourcesService {
    async fn list(
        &self,
        _: Request<ListPodResourcesRequest>,
    ) -> Result<Response<ListPodResourcesResponse>, Status> {
        let pod_resources = self.0.list().iter().map(|pod| self.describe(pod)).collect();
        Ok(Response::new(ListPodResourcesResponse { pod_resources }))
    }

    async fn get_allocatable_resources(
        &self,
        _: Request<AllocatableResourcesRequest>,
    ) -> Result<Response<AllocatableResourcesResponse>, Status> {
        let devices = one_by_one(self.0.healthy());
        Ok(Response::new(AllocatableResourcesResponse { devices, ..AllocatableResourcesResponse::default() }))
    }

    async fn get(
        &self,
        request: Request<GetPodResourcesRequest>,
    ) -> Result<Response<GetPodResourcesResponse>, Status> {
        let request = request.into_inner();
        let key = PodKey::new(request.pod_namespace, request.pod_name);
        let pod = self.0.active_pods().into_iter().find(|pod| pod.key == key);
        let missing =
            || Status::unknown(format!("pod {} in namespace {} not found", key.name, key.namespace));
        let pod_resources = Some(self.describe(&pod.ok_or_else(missing)?));
        Ok(Response::new(GetPodResourcesResponse { pod_resources }))
    }
}

impl PodResourcesService {
    fn describe(&self, pod: &ActivePod) -> PodResources {
        let containers = pod.containers.iter().map(|name| ContainerResources {
            name: name.clone(),
            devices: one_by_one(self.0.held(&pod.uid, name)),
            ..ContainerResources::default()
        });
        PodResources {
            name: pod.key.name.clone(),
            namespace: pod.key.namespace.clone(),
            containers: containers.collect(),
        }
    }
}

fn one_by_one(devices: DevicesByResource) -> Vec<ContainerDevices> {
    let entry = |resource: &String, id| ContainerDevices {
        resource_name: resource.clone(),
        device_ids: vec![id],
        topology: None,
    };
    devices
        .into_iter()
        .flat_map(|(resource, ids)| ids.into_iter().map(move |id| entry(&resource, id)))
        .collect()
}
