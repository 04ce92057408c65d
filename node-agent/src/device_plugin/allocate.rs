//! What a container gets with its devices, and which of several equal devices are best taken together.

use crate::kubelet_api::deviceplugin::ContainerAllocateResponse;
use crate::node::{Grant, ListedDevice};
use kerf_core::kind::Kind;
use kerf_core::names::GpuUuid;
use kerf_core::units::MemoryMib;
use std::collections::BTreeMap;
use thiserror::Error;

/// What NVIDIA's container runtime reads: which devices to bring into the container.
const VISIBLE_DEVICES: &str = "NVIDIA_VISIBLE_DEVICES";

/// What CUDA's MPS client reads (CUDA MPS guide, environment variables).
const MPS_MEMORY: &str = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT";
const MPS_THREADS: &str = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE";
const MPS_PIPE: &str = "CUDA_MPS_PIPE_DIRECTORY";

/// Folder of the MPS daemons' pipes, by GPU.
const MPS_DIR: &str = "/run/kerf/mps";

/// For people who look into a container: the slices that it has.
const SLICE: &str = "KERF_SLICE";

/// Why a container gets nothing. The kubelet writes it into the pod's status.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub(super) enum Refusal {
    /// The device is not there, or something else is becoming of it.
    #[error("kerf does not offer device {0} to anyone now; delete the pod and let kerf's scheduler place it")]
    NotOffered(String),
}

/// The answer for a container that gets `ids` of a list.
pub(super) fn allocate(list: &[ListedDevice], ids: &[String]) -> Result<ContainerAllocateResponse, Refusal> {
    let mut granted: Vec<(&str, &Grant)> = Vec::new();
    for id in ids {
        let device = list.iter().find(|d| d.id.as_str() == id);
        let grant = device.and_then(|d| d.grant.as_ref()).ok_or_else(|| Refusal::NotOffered(id.clone()))?;
        granted.push((id, grant));
    }
    let mut envs = BTreeMap::from([
        (VISIBLE_DEVICES.to_owned(), visible(&granted)),
        (SLICE.to_owned(), granted.iter().map(|(_, g)| g.slice.as_str()).collect::<Vec<_>>().join("; ")),
    ]);
    envs.extend(mps_environment(&granted));
    Ok(ContainerAllocateResponse { envs, ..ContainerAllocateResponse::default() })
}

/// MIG devices by their own UUIDs, shares by their GPU's, each once.
fn visible(granted: &[(&str, &Grant)]) -> String {
    let mut visible: Vec<&str> = Vec::new();
    for (id, grant) in granted {
        let device = if grant.share.is_some() { grant.gpu.as_str() } else { *id };
        if !visible.contains(&device) {
            visible.push(device);
        }
    }
    visible.join(",")
}

/// The limits by the GPUs' order in the container, and the pipe of the first GPU's daemon: a process talks to one.
fn mps_environment(granted: &[(&str, &Grant)]) -> Vec<(String, String)> {
    let mut gpus: Vec<(&GpuUuid, MemoryMib, MemoryMib)> = Vec::new();
    for (_, grant) in granted {
        let Some(share) = grant.share.as_ref().filter(|share| share.kind == Kind::Mps) else { continue };
        match gpus.iter_mut().find(|(gpu, ..)| **gpu == grant.gpu) {
            Some((_, memory, _)) => memory.0 += share.memory.0,
            None => gpus.push((&grant.gpu, share.memory, share.of)),
        }
    }
    let Some((first, ..)) = gpus.first() else { return Vec::new() };
    let limits: Vec<_> =
        gpus.iter().zip(0..).map(|((_, memory, _), n)| format!("{n}={}M", memory.0)).collect();
    // One percentage holds for all GPUs of a process: the smallest, so that none is used beyond the share.
    let threads = gpus.iter().map(|(_, memory, of)| (memory.0 * 100 / of.0.max(1)).clamp(1, 100)).min();
    vec![
        (MPS_MEMORY.to_owned(), limits.join(",")),
        (MPS_THREADS.to_owned(), threads.unwrap_or(1).to_string()),
        (MPS_PIPE.to_owned(), format!("{MPS_DIR}/{first}/pipe")),
    ]
}

/// `size` of the `available` devices, `required` ones among them: such as are still offered where these suffice, of one
/// GPU where one has enough, and there of the one on which the fewest are left over.
pub(super) fn prefer(
    list: &[ListedDevice],
    available: &[String],
    required: &[String],
    size: usize,
) -> Vec<String> {
    let device = |id: &String| list.iter().find(|d| d.id.as_str() == id);
    let gpu = |id: &String| device(id).and_then(|d| d.grant.as_ref()).map(|g| g.gpu.clone());
    let wanted = size.saturating_sub(required.len());
    let (offered, withdrawn): (Vec<&String>, Vec<&String>) = available
        .iter()
        .filter(|id| !required.contains(id))
        .partition(|id| device(id).is_some_and(|d| d.healthy));
    let enough = offered.len() >= wanted;
    let mut by_gpu: BTreeMap<Option<GpuUuid>, Vec<&String>> = BTreeMap::new();
    for id in offered.into_iter().chain(withdrawn.into_iter().filter(|_| !enough)) {
        by_gpu.entry(gpu(id)).or_default().push(id);
    }
    let known = required.first().and_then(gpu);
    let mut groups: Vec<_> = by_gpu.into_iter().collect();
    // The GPU of what must be taken, then those that suffice, the tightest first; else the largest first.
    groups.sort_by_key(|(gpu, ids)| {
        let suffices = ids.len() >= wanted;
        let order = if suffices { ids.len() } else { usize::MAX - ids.len() };
        (known.is_none() || *gpu != known, !suffices, order)
    });
    let rest = groups.into_iter().flat_map(|(_, ids)| ids).take(wanted);
    required.iter().chain(rest).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::ShareGrant;
    use kerf_core::names::DeviceId;

    fn device(id: &str, gpu: &str, share: impl Into<Option<ShareGrant>>) -> ListedDevice {
        let grant = Grant { gpu: GpuUuid::new(gpu), slice: format!("slice {id}"), share: share.into() };
        ListedDevice { id: DeviceId::new(id), healthy: true, grant: Some(grant) }
    }

    fn mps(gb: u64) -> ShareGrant {
        ShareGrant { kind: Kind::Mps, memory: MemoryMib(gb * 1024), of: MemoryMib(15_360) }
    }

    fn ids(ids: &[&str]) -> Vec<String> {
        ids.iter().map(|id| (*id).to_owned()).collect()
    }

    #[test]
    fn a_container_sees_its_mig_devices_and_nothing_else() {
        let list = [device("MIG-1", "GPU-0", None), device("MIG-2", "GPU-0", None)];
        let envs = allocate(&list, &ids(&["MIG-1", "MIG-2"])).unwrap().envs;
        assert_eq!(envs[VISIBLE_DEVICES], "MIG-1,MIG-2");
        assert_eq!(envs[SLICE], "slice MIG-1; slice MIG-2");
        assert_eq!(envs.len(), 2);
    }

    #[test]
    fn an_mps_client_gets_its_limits_and_its_daemons_pipe() {
        let list = [device("GPU-0::1", "GPU-0", mps(4)), device("GPU-0::2", "GPU-0", mps(4))];
        let envs = allocate(&list, &ids(&["GPU-0::1", "GPU-0::2"])).unwrap().envs;
        assert_eq!(envs[VISIBLE_DEVICES], "GPU-0");
        assert_eq!(envs[MPS_MEMORY], "0=8192M");
        assert_eq!(envs[MPS_THREADS], "53");
        assert_eq!(envs[MPS_PIPE], "/run/kerf/mps/GPU-0/pipe");
        let list = [device("GPU-0::1", "GPU-0", mps(4)), device("GPU-1::2", "GPU-1", mps(1))];
        let envs = allocate(&list, &ids(&["GPU-0::1", "GPU-1::2"])).unwrap().envs;
        assert_eq!(envs[VISIBLE_DEVICES], "GPU-0,GPU-1");
        assert_eq!((envs[MPS_MEMORY].as_str(), envs[MPS_THREADS].as_str()), ("0=4096M,1=1024M", "6"));
    }

    #[test]
    fn what_nobody_gets_is_refused_and_what_was_just_withdrawn_is_not() {
        let mut listed = ListedDevice { healthy: false, ..device("MIG-1", "GPU-0", None) };
        assert!(allocate(std::slice::from_ref(&listed), &ids(&["MIG-1"])).is_ok());
        listed.grant = None;
        for id in ["MIG-1", "MIG-9"] {
            let refusal = allocate(std::slice::from_ref(&listed), &ids(&[id])).unwrap_err();
            assert_eq!(refusal, Refusal::NotOffered(id.to_owned()));
        }
    }

    #[test]
    fn a_withdrawn_device_is_preferred_last() {
        let mut list = [device("a", "GPU-0", None), device("b", "GPU-1", None)];
        list[0].healthy = false;
        assert_eq!(prefer(&list, &ids(&["a", "b"]), &[], 1), ["b"]);
        assert_eq!(prefer(&list, &ids(&["a", "b"]), &[], 2).len(), 2);
    }

    #[test]
    fn devices_of_one_gpu_are_preferred_and_the_tightest_one_first() {
        let list: Vec<_> = [("a", 0), ("b", 1), ("c", 1), ("d", 2), ("e", 2), ("f", 2)]
            .map(|(id, gpu)| device(id, &format!("GPU-{gpu}"), None))
            .to_vec();
        let all = ids(&["a", "b", "c", "d", "e", "f"]);
        assert_eq!(prefer(&list, &all, &[], 1), ["a"]);
        assert_eq!(prefer(&list, &all, &[], 2), ["b", "c"]);
        assert_eq!(prefer(&list, &all, &ids(&["d"]), 2), ["d", "e"]);
        assert_eq!(prefer(&list, &all, &[], 4), ["d", "e", "f", "b"], "no GPU has four: the largest first");
        assert_eq!(prefer(&list, &ids(&["x"]), &[], 1), ["x"], "an unknown id is no reason to refuse");
    }
}
