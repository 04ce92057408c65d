//! The device ids of shares and of whole GPUs: `<GPU UUID>::<n>`, where n is the number of the slice in the ledger.
//! `replica` has those of replicas of MIG devices.
//!
//! So an id means the same slice before and after a restart of the agent, and is never reused for another one.

use super::names::is_kept_by;
use super::replica::{MIG_PREFIX, replica_of};
use super::{Held, Node};
use kerf_core::contract::{GpuRule, Shape, WantedSlice};
use kerf_core::kind::Kind;
use kerf_core::names::{DeviceId, GpuUuid, SliceId};
use kerf_core::resource::ResourceName;
use kerf_core::units::{MemoryMib, SizeGb};
use std::collections::BTreeMap;

/// The separator before the number in a device id.
pub(super) const SEPARATOR: &str = "::";

/// The prefix of a GPU's UUID (NVML, `nvmlDeviceGetUUID`).
const GPU_PREFIX: &str = "GPU-";

/// A share that is served. It is identified by its device id, because the numbers of slices start again after the loss
/// of a ledger.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Share {
    pub(crate) gpu: GpuUuid,
    /// Its name in the ledger that desired it.
    pub(crate) id: SliceId,
    pub(crate) shape: Shape,
}

pub(crate) fn device_id(gpu: &GpuUuid, id: &SliceId) -> DeviceId {
    let text = id.as_str();
    if text == gpu.as_str() {
        return DeviceId::new(text);
    }
    let number = text.strip_prefix('s').filter(|n| is_number(n)).unwrap_or(text);
    DeviceId::new(format!("{gpu}{SEPARATOR}{number}"))
}

/// The GPU and the slice of a share's device id; `None` for ids of GPU instances and replicas. NVIDIA's device plugin
/// uses the UUID alone for a whole GPU, and kerf's form of a share for replicas of it.
pub(crate) fn slice_of(device: &DeviceId) -> Option<(GpuUuid, SliceId)> {
    if device.as_str().starts_with(GPU_PREFIX) && !device.as_str().contains(SEPARATOR) {
        return Some((GpuUuid::new(device.as_str()), SliceId::new(device.as_str())));
    }
    let shared = Some(device.as_str()).filter(|id| !id.starts_with(MIG_PREFIX));
    let (gpu, number) = shared?.split_once(SEPARATOR)?;
    let id = if is_number(number) { format!("s{number}") } else { number.to_owned() };
    Some((GpuUuid::new(gpu), SliceId::new(id)))
}

pub(crate) fn gpu_of(device: &DeviceId) -> Option<GpuUuid> {
    slice_of(device).map(|(gpu, _)| gpu)
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())
}

/// The shape of a share that a container holds under this name, on a GPU with this total and usable memory. A share
/// counts as the whole GPU if its name does not determine the kind, or if the policy no longer says how many equal
/// shares there are.
pub(crate) fn shape_of(
    name: ResourceName,
    memory: MemoryMib,
    usable: MemoryMib,
    rule: &GpuRule,
) -> Option<Shape> {
    match name {
        ResourceName::Mig(_)
        | ResourceName::Compute(_)
        | ResourceName::MigReplica(_)
        | ResourceName::Plugin(..) => None,
        ResourceName::Whole | ResourceName::Neutral(_) => Some(Shape::Whole { size_gb: memory.nominal() }),
        ResourceName::Replica | ResourceName::MpsReplica => {
            let kind = name.kind()?;
            let all = || Shape::share(kind, SizeGb(u32::try_from(memory.0 / 1024).unwrap_or(1).max(1)));
            rule.replica(kind, usable).or_else(all)
        }
        ResourceName::Mps(size) | ResourceName::TimeSlicing(size) => Shape::share(name.kind()?, size),
    }
}

/// The shares that exist, by their devices.
pub(crate) type Shares = BTreeMap<DeviceId, Shape>;

/// Whether a held device with the name of a wanted slice is that slice. The numbers of slices start again after the
/// loss of a ledger, and a neutral name cannot distinguish the two slices, but the pod can.
fn may_be(wanted: &WantedSlice, held: &Held) -> bool {
    let is_its = || wanted.reservation.as_ref().is_none_or(|promised| promised.key() == held.holder.key());
    is_kept_by(held.name, wanted.shape) && (!held.name.is_neutral() || is_its())
}

impl Node {
    /// Makes the shares of an earlier process exist again once their GPUs are seen. No GPU reports a share, and if only
    /// an init container holds it, the kubelet does not list it either.
    pub(super) fn recall_shares(&mut self) {
        for (device, shape) in self.restored.shares.take().unwrap_or_default() {
            // A replica goes with its MIG device, which may be another after a reload of the driver.
            if replica_of(&device).is_some() && !self.gpus.is_empty() {
                if let Some(replica) = self.replica(&device) {
                    self.shares.entry(device).or_insert(replica);
                }
                continue;
            }
            match slice_of(&device).filter(|(gpu, _)| self.gpu(gpu).is_some()) {
                Some((gpu, id)) => drop(self.shares.entry(device).or_insert(Share { gpu, id, shape })),
                None => drop(self.restored.shares.get_or_insert_default().insert(device, shape)),
            }
        }
    }

    /// Drops shares that had ended and that an older checkpoint has brought back. A GPU never serves two kinds at once,
    /// and a MIG device that is held as a whole has no replicas. So held shares stay, and wanted ones that fit beside
    /// them.
    pub(super) fn forget_ended_shares(&mut self) {
        let mut served: BTreeMap<&GpuUuid, Kind> = BTreeMap::new();
        let is_held = |device: &DeviceId| self.account.held_as(device).is_some();
        let is_in_use = |device: &DeviceId| is_held(device) || self.is_lingered(device);
        let of_gpus = self.shares.iter().filter(|(_, share)| share.shape.instance().is_none());
        let (in_use, others): (Vec<_>, Vec<_>) = of_gpus.partition(|(device, _)| is_in_use(device));
        let wanted = others.into_iter().filter(|(device, share)| self.is_wanted_share(device, share));
        for (_, share) in in_use.into_iter().chain(wanted) {
            served.entry(&share.gpu).or_insert(share.shape.kind());
        }
        let is_of_other_kind =
            |share: &Share| served.get(&share.gpu).is_some_and(|kind| *kind != share.shape.kind());
        let has_ended = |(device, share): &(&DeviceId, &Share)| {
            let of = replica_of(device).map(|(of, _)| of);
            // Processes on a replica's MIG device belong to the holder of the whole device.
            of.map_or_else(
                || is_of_other_kind(share) && !is_in_use(device),
                |of| is_held(&of) && !is_held(device),
            )
        };
        let ended = self.shares.iter().filter(has_ended);
        let ended: Vec<DeviceId> = ended.map(|(device, _)| device.clone()).collect();
        for device in ended {
            tracing::info!(%device, "a share that ended before the agent was started is forgotten");
            self.shares.remove(&device);
        }
    }

    /// All shares that exist, with those of GPUs that were not seen yet.
    pub(super) fn shares_to_record(&self) -> Shares {
        let existing = self.shares.iter().map(|(device, share)| (device.clone(), share.shape));
        self.restored.shares.clone().unwrap_or_default().into_iter().chain(existing).collect()
    }

    /// The GPUs on which a container holds a share that only a neutral name describes. The container may be a client of
    /// an MPS daemon, or be under a limit, of an earlier process.
    pub(super) fn with_unknown_shares(&self) -> impl Iterator<Item = &GpuUuid> {
        let by_name = |held: &Held, shape| held.name.is_neutral() && matches!(shape, Shape::Whole { .. });
        let unknown = self.shares.iter().filter(move |(device, share)| {
            let held = self.account.holder(device);
            held.is_some_and(|held| by_name(held, share.shape)) && !self.is_wanted_share(device, share)
        });
        unknown.map(|(_, share)| &share.gpu)
    }

    /// Makes shares exist that containers hold, whatever is desired and whether or not the agent was restarted.
    pub(super) fn adopt_shares(&mut self) {
        for (device, held) in self.account.devices() {
            let Some((gpu, id)) = slice_of(device) else { continue };
            let (known, by_name) = (self.shares.get(device).map(|s| s.shape), self.shape_of(&gpu, held.name));
            // The name does not determine everything, so the ledger's shape takes precedence.
            if known.is_some() && known != by_name {
                continue;
            }
            let wanted = self.desired().iter().find(|w| w.id == id && w.gpu == gpu);
            let wanted = wanted.filter(|wanted| may_be(wanted, held)).map(|wanted| wanted.shape);
            let Some(shape) = wanted.or(known).or(by_name) else { continue };
            self.shares.insert(device.clone(), Share { gpu, id, shape });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_id_leads_back_to_its_slice() {
        let gpu = GpuUuid::new("GPU-6c1e6a62-6a1f-4f0a-9d3e-0123456789ab");
        for id in ["s17", "s0", "odd", "sx"] {
            let device = device_id(&gpu, &SliceId::new(id));
            assert_eq!(slice_of(&device), Some((gpu.clone(), SliceId::new(id))), "{id}");
            assert!(device.as_str().len() <= crate::kubelet_api::DEVICE_ID_MAX_BYTES);
        }
        assert_eq!(device_id(&gpu, &SliceId::new("s17")).as_str(), format!("{gpu}::17"));
        for of_mig in ["MIG-1", "MIG-1::0"] {
            assert_eq!(slice_of(&DeviceId::new(of_mig)), None, "{of_mig}");
        }
        let whole = DeviceId::new(gpu.as_str());
        assert_eq!(slice_of(&whole), Some((gpu.clone(), SliceId::new(gpu.as_str()))));
        assert_eq!(device_id(&gpu, &SliceId::new(gpu.as_str())), whole, "as NVIDIA's device plugin gives it");
    }

    /// dcgm-exporter's `internal/pkg/transformation/kubernetes.go`: the part before `::` is the GPU by which a pod's
    /// metrics are found, the part after it is the label `vgpu`; names are NVIDIA's, or listed in
    /// `NVIDIA_RESOURCE_NAMES`.
    #[test]
    fn names_and_ids_are_those_that_dcgm_exporter_joins_pods_by() {
        let mut node = crate::node::tests::Scene::new(&["H100-80GB"]);
        node.want(vec![crate::node::tests::wanted("s1", crate::node::tests::mig("1g.10gb", 0, 1), None)]);
        let status = node.settle();
        let mig = status.slices[0].device.as_ref().unwrap().as_str();
        assert!(mig.starts_with("MIG-") && !mig.contains("::"), "{mig}");
        let gpu = GpuUuid::new("GPU-6c1e6a62-6a1f-4f0a-9d3e-0123456789ab");
        let share = device_id(&gpu, &SliceId::new("s17"));
        let (before, behind) = share.as_str().split_once("::").unwrap();
        assert!(before == gpu.as_str() && is_number(behind), "{share}");
        for name in kerf_core::resource::all_names() {
            let text = name.to_string();
            // A neutral name needs an entry in `NVIDIA_RESOURCE_NAMES`.
            let Some(kind) = name.kind() else { continue };
            let at_once = text == "nvidia.com/gpu" || text.starts_with("nvidia.com/mig-");
            let is_share = matches!(kind, Kind::Mps | Kind::TimeSlicing);
            assert!(
                at_once != is_share && text.starts_with("nvidia.com/gpu") == (kind != Kind::Mig),
                "{text}"
            );
        }
    }
}
