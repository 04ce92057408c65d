//! The device ids of shares, of whole GPUs and of replicas of MIG devices.
//!
//! A share's id is `<GPU UUID>::<n>`, where n is the number of the slice in the ledger. So an id means the same slice
//! before and after a restart of the agent, and is never reused for another one. A replica's id is that of NVIDIA's
//! device plugin, `MIG-<UUID>::<n>`, so that tools that join pods with metrics or labels by these ids find the MIG
//! device.

use kerf_core::names::{DeviceId, GpuUuid, SliceId};

/// The separator before the number in a device id.
const SEPARATOR: &str = "::";

/// The prefix of a GPU's UUID (NVML, `nvmlDeviceGetUUID`).
const GPU_PREFIX: &str = "GPU-";

/// The prefix of a MIG device's UUID (NVML, `nvmlDeviceGetUUID`).
const MIG_PREFIX: &str = "MIG-";

pub(crate) fn share_device(gpu: &GpuUuid, id: &SliceId) -> DeviceId {
    let text = id.as_str();
    if text == gpu.as_str() {
        return DeviceId::new(text);
    }
    let number = text.strip_prefix('s').filter(|n| is_number(n)).unwrap_or(text);
    DeviceId::new(format!("{gpu}{SEPARATOR}{number}"))
}

/// The GPU and the slice of a share's device id; `None` for ids of GPU instances and replicas. NVIDIA's device plugin
/// uses the UUID alone for a whole GPU, and kerf's form of a share for replicas of it.
pub(crate) fn share_slice(device: &DeviceId) -> Option<(GpuUuid, SliceId)> {
    if device.as_str().starts_with(GPU_PREFIX) && !device.as_str().contains(SEPARATOR) {
        return Some((GpuUuid::new(device.as_str()), SliceId::new(device.as_str())));
    }
    let shared = Some(device.as_str()).filter(|id| !id.starts_with(MIG_PREFIX));
    let (gpu, number) = shared?.split_once(SEPARATOR)?;
    let id = if is_number(number) { format!("s{number}") } else { number.to_owned() };
    Some((GpuUuid::new(gpu), SliceId::new(id)))
}

pub(crate) fn share_gpu(device: &DeviceId) -> Option<GpuUuid> {
    share_slice(device).map(|(gpu, _)| gpu)
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())
}

pub(super) fn replica_device(of: &DeviceId, number: u8) -> DeviceId {
    DeviceId::new(format!("{of}{SEPARATOR}{number}"))
}

/// The MIG device and the number of a replica; `None` for other ids.
pub(super) fn replica_of(device: &DeviceId) -> Option<(DeviceId, u8)> {
    let (of, number) = device.as_str().strip_prefix(MIG_PREFIX)?.split_once(SEPARATOR)?;
    let number = number.parse().ok()?;
    let of = DeviceId::new(format!("{MIG_PREFIX}{of}"));
    // Reject another spelling of the number, because it would be another device to the kubelet.
    (replica_device(&of, number) == *device).then_some((of, number))
}

/// The MIG device of a device id, which may be a replica's.
pub(super) fn mig_device(device: &DeviceId) -> DeviceId {
    replica_of(device).map_or_else(|| device.clone(), |(of, _)| of)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kerf_core::kind::Kind;

    #[test]
    fn a_device_id_leads_back_to_its_slice() {
        let gpu = GpuUuid::new("GPU-6c1e6a62-6a1f-4f0a-9d3e-0123456789ab");
        for id in ["s17", "s0", "odd", "sx"] {
            let device = share_device(&gpu, &SliceId::new(id));
            assert_eq!(share_slice(&device), Some((gpu.clone(), SliceId::new(id))), "{id}");
            assert!(device.as_str().len() <= crate::kubelet_api::DEVICE_ID_MAX_BYTES);
        }
        assert_eq!(share_device(&gpu, &SliceId::new("s17")).as_str(), format!("{gpu}::17"));
        for of_mig in ["MIG-1", "MIG-1::0"] {
            assert_eq!(share_slice(&DeviceId::new(of_mig)), None, "{of_mig}");
        }
        let whole = DeviceId::new(gpu.as_str());
        assert_eq!(share_slice(&whole), Some((gpu.clone(), SliceId::new(gpu.as_str()))));
        assert_eq!(
            share_device(&gpu, &SliceId::new(gpu.as_str())),
            whole,
            "as NVIDIA's device plugin gives it"
        );
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
        let share = share_device(&gpu, &SliceId::new("s17"));
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
