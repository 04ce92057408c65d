//! Builds the kubelet's allocation response: what a container gets with its devices.

use crate::access::{AccessGrant, MpsAccess};
use crate::kubelet_api::deviceplugin::{CdiDevice, ContainerAllocateResponse, DeviceSpec, Mount};
use crate::node::{Grant, ListedDevice, ShareGrant};
use kerf_core::kind::Kind;
use kerf_core::names::GpuUuid;
use kerf_core::units::MemoryMib;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// The variable by which NVIDIA's container runtime selects devices.
const VISIBLE_DEVICES: &str = "NVIDIA_VISIBLE_DEVICES";

/// Variables of CUDA's MPS client (CUDA MPS guide, environment variables).
const MPS_MEMORY: &str = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT";
const MPS_THREADS: &str = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE";
const MPS_PIPE: &str = "CUDA_MPS_PIPE_DIRECTORY";

/// The folder of the MPS daemons' pipes, used if the grant has no path.
const MPS_DIR: &str = "/run/kerf/mps";

/// The container's slices, for people who inspect it.
const SLICE: &str = "KERF_SLICE";

/// Access to a device file, in the cgroup's letters: read and write.
const PERMISSIONS: &str = "rw";

/// Why an allocation is refused. The kubelet writes it into the pod's status.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub(super) enum Refusal {
    /// The device does not exist, or is about to become something else.
    #[error("kerf does not offer device {0} to anyone now; delete the pod and let kerf's scheduler place it")]
    NotOffered(String),
}

/// A device's id, and what a container gets with it.
type Granted<'a> = (&'a str, &'a Grant);

/// The response for a container that gets `ids` of a list.
pub(super) fn allocate(list: &[ListedDevice], ids: &[String]) -> Result<ContainerAllocateResponse, Refusal> {
    let mut granted: Vec<Granted<'_>> = Vec::new();
    for id in ids {
        let device = list.iter().find(|d| d.id.as_str() == id);
        let grant = device.and_then(|d| d.grant.as_ref()).ok_or_else(|| Refusal::NotOffered(id.clone()))?;
        granted.push((id, grant));
    }
    let targets = targets(&granted);
    let visible: Vec<&str> = targets.iter().map(|(visible, _)| *visible).collect();
    let slices: Vec<&str> = granted.iter().map(|(_, g)| g.slice.as_str()).collect();
    let mut envs = BTreeMap::from([
        (VISIBLE_DEVICES.to_owned(), visible.join(",")),
        (SLICE.to_owned(), slices.join("; ")),
    ]);
    envs.extend(mps_environment(&granted));
    let extras = targets.iter().flat_map(|(_, access)| &access.environment);
    envs.extend(extras.map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
    let cdi_devices = targets.iter().filter_map(|(_, access)| access.cdi.clone());
    Ok(ContainerAllocateResponse {
        envs,
        mounts: mps_mounts(&granted),
        devices: device_files(&targets),
        cdi_devices: cdi_devices.map(|name| CdiDevice { name }).collect(),
        ..ContainerAllocateResponse::default()
    })
}

/// MIG devices by their own UUIDs, and whole or shared GPUs by theirs. Each appears once, however many of its shares or
/// replicas there are.
fn targets<'a>(granted: &[Granted<'a>]) -> Vec<(&'a str, &'a AccessGrant)> {
    let mut targets: Vec<(&str, &AccessGrant)> = Vec::new();
    for (id, grant) in granted {
        let by_id = id.split_once("::").map_or(*id, |(target, _)| target);
        let visible = grant.access.visible.as_deref().unwrap_or(by_id);
        if !targets.iter().any(|(known, _)| *known == visible) {
            targets.push((visible, &grant.access));
        }
    }
    targets
}

/// The device files of all targets, each once.
fn device_files(targets: &[(&str, &AccessGrant)]) -> Vec<DeviceSpec> {
    let files: BTreeMap<&Path, &Path> = targets
        .iter()
        .flat_map(|(_, access)| &access.files)
        .map(|file| (file.container.as_path(), file.host.as_path()))
        .collect();
    files
        .into_iter()
        .map(|(container, host)| DeviceSpec {
            container_path: text(container),
            host_path: text(host),
            permissions: PERMISSIONS.to_owned(),
        })
        .collect()
}

fn mps_share(grant: &Grant) -> Option<&ShareGrant> {
    grant.share.as_ref().filter(|share| share.kind == Kind::Mps)
}

/// The MPS daemon of the first share, because a process can talk to one daemon only.
fn first_mps<'a>(granted: &[Granted<'a>]) -> Option<&'a Grant> {
    granted.iter().map(|(_, grant)| *grant).find(|grant| mps_share(grant).is_some())
}

/// Mounts the daemon's pipe folder at the same path as on the host. Clients connect to the pipes and write no file
/// there. Their shared memory comes through the pipes, so `/dev/shm` stays the container's own.
fn mps_mounts(granted: &[Granted<'_>]) -> Vec<Mount> {
    let daemon = first_mps(granted).and_then(|grant| grant.access.mps.as_ref());
    let mount =
        |MpsAccess { pipe }: &_| Mount { container_path: text(pipe), host_path: text(pipe), read_only: true };
    daemon.map(mount).into_iter().collect()
}

/// The memory limits in the order of the GPUs in the container, and the pipe of the first GPU's daemon.
fn mps_environment(granted: &[Granted<'_>]) -> Vec<(String, String)> {
    let mut gpus: Vec<(&GpuUuid, MemoryMib, u64)> = Vec::new();
    for (_, grant) in granted {
        let Some(share) = mps_share(grant) else { continue };
        let of = share.of.0.max(1);
        // In hundredths of a percent, so that small parts add up.
        let compute =
            share.compute.map_or(share.memory.0 * 10_000 / of, |asked| u64::from(asked.get()) * 100);
        match gpus.iter_mut().find(|(gpu, ..)| **gpu == grant.gpu) {
            Some((_, memory, sum)) => {
                memory.0 += share.memory.0;
                *sum += compute;
            }
            None => gpus.push((&grant.gpu, share.memory, compute)),
        }
    }
    let Some(first) = first_mps(granted) else { return Vec::new() };
    let limits: Vec<_> =
        gpus.iter().zip(0..).map(|((_, memory, _), n)| format!("{n}={}M", memory.0)).collect();
    // One percentage holds for all GPUs of a process. It is the smallest, so that no GPU is used beyond its share.
    let threads = gpus.iter().map(|(.., compute)| (compute / 100).clamp(1, 100)).min();
    let default_pipe = || PathBuf::from(format!("{MPS_DIR}/{}/pipe", first.gpu));
    let pipe = first.access.mps.as_ref().map_or_else(default_pipe, |mps| mps.pipe.clone());
    vec![
        (MPS_MEMORY.to_owned(), limits.join(",")),
        (MPS_THREADS.to_owned(), threads.unwrap_or(1).to_string()),
        (MPS_PIPE.to_owned(), text(&pipe)),
    ]
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::DeviceFile;
    use kerf_core::closeness::Closeness;
    use kerf_core::names::DeviceId;
    use kerf_core::units::ComputePercent;

    fn device(id: &str, gpu: &str, share: impl Into<Option<ShareGrant>>) -> ListedDevice {
        let grant = Grant {
            gpu: GpuUuid::new(gpu),
            slice: format!("slice {id}"),
            share: share.into(),
            access: AccessGrant::default(),
        };
        ListedDevice {
            id: DeviceId::new(id),
            healthy: true,
            held: false,
            grant: Some(grant),
            reserved_for: None,
            numa: None,
            closeness: Closeness::default(),
        }
    }

    fn mps(gb: u64) -> ShareGrant {
        let (memory, of) = (MemoryMib(gb * 1024), MemoryMib(15_360));
        ShareGrant { kind: Kind::Mps, memory, of, compute: None }
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
    fn a_client_gets_the_requested_compute_and_small_parts_add_up() {
        let threads = |shares: &[ShareGrant]| {
            let ids: Vec<String> = (0..shares.len()).map(|n| format!("GPU-0::{n}")).collect();
            let list: Vec<_> = ids.iter().zip(shares).map(|(id, s)| device(id, "GPU-0", s.clone())).collect();
            allocate(&list, &ids).unwrap().envs.remove(MPS_THREADS).unwrap()
        };
        let part = |percent| ShareGrant { compute: ComputePercent::new(percent), ..mps(4) };
        assert_eq!(threads(&[part(30)]), "30");
        assert_eq!(threads(&[part(30), part(30)]), "60");
        assert_eq!(threads(&[part(60), part(60)]), "100");
        assert_eq!(threads(&[part(30), mps(4)]), "56", "4 of 15 GiB are 26 %");
        let tiny = ShareGrant { of: MemoryMib(200 * 1024), ..mps(1) };
        assert_eq!(threads(std::slice::from_ref(&tiny)), "1");
        assert_eq!(threads(&vec![tiny; 3]), "1");
    }

    /// A device with this access grant.
    fn reached(device: ListedDevice, access: AccessGrant) -> ListedDevice {
        let grant = device.grant.map(|grant| Grant { access, ..grant });
        ListedDevice { grant, ..device }
    }

    fn cdi(id: &str) -> AccessGrant {
        AccessGrant { cdi: Some(format!("kerf.dev/gpu={id}")), ..AccessGrant::default() }
    }

    #[test]
    fn two_mps_shares_of_a_gpu_come_with_one_cdi_device_and_their_daemons_pipe() {
        let mps_access = MpsAccess { pipe: "/run/kerf/mps/GPU-0/pipe".into() };
        let access = |id| AccessGrant { mps: Some(mps_access.clone()), ..cdi(id) };
        let list = ["GPU-0::1", "GPU-0::2"].map(|id| reached(device(id, "GPU-0", mps(4)), access(id)));
        let answer = allocate(&list, &ids(&["GPU-0::2", "GPU-0::1"])).unwrap();
        let names: Vec<_> = answer.cdi_devices.iter().map(|d| d.name.as_str()).collect();
        assert_eq!(names, ["kerf.dev/gpu=GPU-0::2"]);
        let mounts: Vec<_> = answer
            .mounts
            .iter()
            .map(|m| (m.host_path.as_str(), m.container_path.as_str(), m.read_only))
            .collect();
        let pipe = "/run/kerf/mps/GPU-0/pipe";
        assert_eq!(mounts, [(pipe, pipe, true)]);
        assert_eq!((answer.envs[MPS_PIPE].as_str(), answer.envs[MPS_MEMORY].as_str()), (pipe, "0=8192M"));
        assert_eq!(answer.envs[VISIBLE_DEVICES], "GPU-0");
        assert!(answer.devices.is_empty());
    }

    #[test]
    fn every_mig_device_comes_with_its_own_cdi_device_and_no_mounts() {
        let list = ["MIG-1", "MIG-2"].map(|id| reached(device(id, "GPU-0", None), cdi(id)));
        let answer = allocate(&list, &ids(&["MIG-1", "MIG-2"])).unwrap();
        let names: Vec<_> = answer.cdi_devices.iter().map(|d| d.name.as_str()).collect();
        assert_eq!(names, ["kerf.dev/gpu=MIG-1", "kerf.dev/gpu=MIG-2"]);
        assert!(answer.mounts.is_empty() && answer.devices.is_empty());
    }

    #[test]
    fn every_device_file_comes_once_with_cdi_and_without() {
        let file = |name: &str| DeviceFile {
            container: format!("/dev/{name}").into(),
            host: format!("/run/nvidia/driver/dev/{name}").into(),
            major: 195,
            minor: 0,
        };
        for is_cdi in [true, false] {
            let access = |id: &str, cap: &str| AccessGrant {
                files: vec![file("nvidia0"), file(cap)],
                environment: vec![("NVIDIA_GDS", "enabled")],
                cdi: cdi(id).cdi.filter(|_| is_cdi),
                ..AccessGrant::default()
            };
            let list = [("MIG-1", "cap1"), ("MIG-2", "cap2")]
                .map(|(id, cap)| reached(device(id, "GPU-0", None), access(id, cap)));
            let answer = allocate(&list, &ids(&["MIG-1", "MIG-2"])).unwrap();
            let files: Vec<_> =
                answer.devices.iter().map(|d| (d.container_path.as_str(), d.permissions.as_str())).collect();
            assert_eq!(files, [("/dev/cap1", "rw"), ("/dev/cap2", "rw"), ("/dev/nvidia0", "rw")]);
            assert_eq!(answer.devices[0].host_path, "/run/nvidia/driver/dev/cap1");
            assert_eq!(answer.cdi_devices.len(), if is_cdi { 2 } else { 0 });
            assert_eq!(answer.envs["NVIDIA_GDS"], "enabled");
        }
    }

    #[test]
    fn visible_devices_of_the_grant_take_precedence_over_the_id() {
        let access = AccessGrant { visible: Some("MIG-7".to_owned()), ..AccessGrant::default() };
        let list = ["GPU-0::1", "GPU-0::2"].map(|id| reached(device(id, "GPU-0", mps(4)), access.clone()));
        let answer = allocate(&list, &ids(&["GPU-0::1", "GPU-0::2"])).unwrap();
        assert_eq!(answer.envs[VISIBLE_DEVICES], "MIG-7");
    }

    #[test]
    fn an_ungranted_device_is_refused_and_a_just_withdrawn_one_is_not() {
        let mut listed = ListedDevice { healthy: false, ..device("MIG-1", "GPU-0", None) };
        assert!(allocate(std::slice::from_ref(&listed), &ids(&["MIG-1"])).is_ok());
        listed.grant = None;
        for id in ["MIG-1", "MIG-9"] {
            let refusal = allocate(std::slice::from_ref(&listed), &ids(&[id])).unwrap_err();
            assert_eq!(refusal, Refusal::NotOffered(id.to_owned()));
        }
    }
}
