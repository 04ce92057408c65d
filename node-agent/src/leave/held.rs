//! What pods hold on a node that is being left, or have reserved and may hold by now.

use super::LeaveError;
use crate::node::{Holders, share_device, share_gpu};
use crate::pod_view::PodView;
use kerf_core::contract::{GpuNodeStatus, SliceState, SliceStatus, WantedSlice};
use kerf_core::kind::Kind;
use kerf_core::names::{DeviceId, GpuUuid, NodeName};
use kerf_core::resource::ResourceName;
use kerf_runtime::gpu_node::GpuNode;
use kube::api::ListParams;
use kube::{Api, Client};
use std::collections::{BTreeMap, BTreeSet};

#[derive(Debug, Default)]
pub(super) struct Held {
    /// One text for each held slice or device.
    pub(super) texts: BTreeSet<String>,
    pub(super) mps_gpus: BTreeSet<GpuUuid>,
    pub(super) devices: BTreeSet<DeviceId>,
    pub(super) names: BTreeSet<ResourceName>,
}

impl Held {
    /// Reads the GpuNode's last status and the ledger; `None` if there is no GpuNode.
    pub(super) async fn read(
        client: &Client,
        node: &NodeName,
        ledger: &[WantedSlice],
    ) -> Result<Option<Self>, LeaveError> {
        let object = Api::<GpuNode>::all(client.clone()).get_opt(node.as_str()).await;
        let object = object.map_err(|source| LeaveError::Held { node: node.clone(), source })?;
        let Some(object) = object else { return Ok(None) };
        let unreadable = |source| LeaveError::Unreadable { node: node.clone(), source };
        let status = object.read_status().map_err(unreadable)?.unwrap_or_default();
        Ok(Some(Self::from_status(status, ledger)))
    }

    /// An agent that ends reports no slice as ready. So a slice that was granted and not yet listed is known by its
    /// reservation alone.
    fn from_status(status: GpuNodeStatus, wanted: &[WantedSlice]) -> Self {
        let mut held = Self::default();
        let reserved = || wanted.iter().filter(|wanted| wanted.reservation.is_some());
        let is_held = |s: &SliceStatus| {
            let is_reserved = || reserved().any(|wanted| Some(&wanted.id) == s.id.as_ref());
            let is_in_use = s.holder.is_some() || s.ready_for.is_some() || s.state == SliceState::Held;
            is_in_use || s.reservation.is_some() || is_reserved()
        };
        for slice in status.slices.into_iter().filter(is_held) {
            let SliceStatus { gpu, shape, device, resource, holder, .. } = slice;
            let pod = holder.map_or_else(|| "a pod".to_owned(), |holder| holder.key().to_string());
            held.texts.insert(format!("{shape} of {gpu}, held by or reserved for {pod}"));
            held.mps_gpus.extend(Some(gpu).filter(|_| shape.kind() == Kind::Mps));
            held.devices.extend(device);
            held.names.extend(resource);
        }
        for WantedSlice { id, gpu, shape, reservation } in reserved() {
            held.mps_gpus.extend(Some(gpu.clone()).filter(|_| shape.kind() == Kind::Mps));
            held.devices.extend(shape.instance().is_none().then(|| share_device(gpu, id)));
            held.names.extend(reservation.as_ref().map(|r| r.resource));
        }
        held
    }

    /// Reads the kubelet instead, if there is no GpuNode: its List, and from its checkpoint the devices of live pods.
    pub(super) async fn listed(
        client: &Client,
        node: &NodeName,
        holders: Holders,
    ) -> Result<Self, LeaveError> {
        let unreadable = |why| LeaveError::HoldersUnreadable { node: node.clone(), why };
        let recorded = holders.recorded.map_err(unreadable)?;
        let of_node = ListParams::default().fields(&format!("spec.nodeName={node}"));
        let pods = Api::<PodView>::all(client.clone()).list(&of_node).await;
        let pods = pods.map_err(|source| LeaveError::Pods { node: node.clone(), source })?;
        let pods: BTreeMap<_, _> =
            pods.items.iter().filter_map(|pod| Some((pod.uid(), pod.known()?.key))).collect();
        let listed = holders.held.into_iter().map(|(device, by)| (device, by.name, by.holder.key()));
        let recorded = recorded
            .into_iter()
            .filter_map(|entry| Some((entry.device, entry.name, pods.get(&entry.uid)?.clone())));
        let mut held = Self::default();
        for (device, name, pod) in listed.chain(recorded) {
            held.texts.insert(format!("{device}, which {pod} has"));
            held.mps_gpus
                .extend(share_gpu(&device).filter(|_| name.kind().is_none_or(|kind| kind == Kind::Mps)));
            held.names.insert(name);
            held.devices.insert(device);
        }
        Ok(held)
    }

    pub(super) fn log(&self) {
        for slice in &self.texts {
            tracing::warn!(slice, "the slice stays, because it is in use or reserved");
        }
    }
}
