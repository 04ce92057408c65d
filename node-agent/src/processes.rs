//! Finds the pod of a process by its cgroup, and from that who uses how much memory of a GPU.
//!
//! NVML lists processes by id; the kubelet puts each pod's containers below a cgroup that is named after the pod's UID.
//! The agent sees both as the host does: it runs in the host's PID namespace and, being privileged, in the host's
//! cgroup namespace.

use kerf_core::names::{GpuUuid, PodUid};
use kerf_core::units::MemoryMib;
use kerf_nvml::{Gpu, Utilization};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodCgroup {
    /// The pod's UID. For a static pod it is that of its file, not that of its mirror pod in the API.
    pub uid: PodUid,
    /// Its path from the root of the unified hierarchy (version 2), `/kubepods/burstable/pod…`. `None` on a host
    /// without that hierarchy, and where the agent's own cgroup namespace hides it.
    pub path: Option<String>,
}

#[must_use]
pub fn pod_cgroup_of(proc_root: &Path, pid: u32) -> Option<PodCgroup> {
    pod_cgroup(&fs::read_to_string(proc_root.join(pid.to_string()).join("cgroup")).ok()?)
}

/// The name of a process; `None` if it is gone. Control characters are escaped, because a process may set any name.
#[must_use]
pub fn name_of(proc_root: &Path, pid: u32) -> Option<String> {
    let name = fs::read(proc_root.join(pid.to_string()).join("comm")).ok()?;
    let name = String::from_utf8_lossy(&name);
    Some(name.trim_end_matches('\n').escape_debug().to_string())
}

/// Finds the pod in the text of `/proc/<pid>/cgroup`: first in the unified hierarchy's line (`0::/…`), else in any
/// other.
#[must_use]
pub fn pod_cgroup(text: &str) -> Option<PodCgroup> {
    let unified = text.lines().filter_map(|line| line.strip_prefix("0::")).find_map(in_path);
    if let Some((uid, path)) = unified {
        // Such a path is relative to the agent's own cgroup namespace, which shows the pod and hides the path.
        let path = (!path.contains("/../")).then(|| path.clone());
        return Some(PodCgroup { uid, path });
    }
    let (uid, _) = text.lines().filter_map(|line| line.splitn(3, ':').nth(2)).find_map(in_path)?;
    Some(PodCgroup { uid, path: None })
}

/// Returns the outermost pod of a cgroup path, and the path up to it. Inner segments do not count, because a container
/// may create cgroups of any name below its own.
fn in_path(path: &str) -> Option<(PodUid, String)> {
    let segments: Vec<&str> = path.split('/').collect();
    let (index, uid) = segments.iter().enumerate().find_map(|(index, segment)| {
        let parent = index.checked_sub(1).and_then(|parent| segments.get(parent)).copied();
        Some((index, uid_in(segment, parent.unwrap_or_default())?))
    })?;
    Some((uid, segments[..=index].join("/")))
}

/// Returns the UID in a segment of a cgroup path: `pod<uid>` below the kubelet's cgroups (cgroupfs), or
/// `kubepods-burstable-pod<uid>.slice` with underscores in the UID (systemd). The kubelet's `--cgroup-root` may add a
/// prefix to either.
fn uid_in(segment: &str, parent: &str) -> Option<PodUid> {
    if let Some(slice) = segment.strip_suffix(".slice") {
        let (prefix, uid) = slice.rsplit_once("-pod")?;
        let prefix = prefix
            .strip_suffix("-burstable")
            .or_else(|| prefix.strip_suffix("-besteffort"))
            .unwrap_or(prefix);
        let is_kubelets = prefix == "kubepods" || prefix.ends_with("-kubepods");
        return is_kubelets.then(|| uid.replace('_', "-")).filter(|uid| is_uid(uid)).map(PodUid::new);
    }
    let is_kubelets = matches!(parent, "kubepods" | "burstable" | "besteffort" | "..");
    segment.strip_prefix("pod").filter(|uid| is_kubelets && is_uid(uid)).map(PodUid::new)
}

/// Whether the text is a UUID, or the hash that a static pod has instead.
fn is_uid(text: &str) -> bool {
    let is_hex = |part: &str| part.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    let lengths: Vec<usize> = text.split('-').map(str::len).collect();
    text.split('-').all(is_hex) && matches!(lengths.as_slice(), [32] | [8, 4, 4, 4, 12])
}

/// How busy a GPU was at the last observation, in percent of the time in which something ran.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Busy {
    /// The GPU's value; `None` if the driver does not report it.
    pub gpu: Option<u32>,
    /// By pod, of its processes; `None` if the driver does not report processes.
    pub pods: Option<BTreeMap<PodUid, u32>>,
    /// By GPU instance id, for those that the driver reports.
    pub instances: BTreeMap<u32, u32>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct GpuUsage {
    pub pods: BTreeMap<PodUid, MemoryMib>,
    /// How many processes of each of these pods the driver lists. Each process has a context.
    pub processes: BTreeMap<PodUid, u32>,
    /// Those pods' cgroups, as paths from the hierarchy's root.
    pub cgroups: BTreeMap<PodUid, String>,
    /// By the ids of the GPU instance and the compute instance.
    pub instances: BTreeMap<(u32, u32), MemoryMib>,
    /// Processes of no pod, by name and pid.
    pub others: Vec<(String, u32, MemoryMib)>,
    pub busy: Busy,
}

pub type Usage = BTreeMap<GpuUuid, GpuUsage>;

/// Paths to the host's process information.
#[derive(Debug, Clone)]
pub struct Host {
    /// The host's `/proc`.
    pub proc: PathBuf,
    /// The root of the unified cgroup hierarchy.
    pub cgroups: PathBuf,
}

/// Computes each pod's use of the GPUs, from the host's `/proc` and the utilization that NVML reports.
#[must_use]
pub fn usage(host: &Host, gpus: &[Gpu], busy: &BTreeMap<GpuUuid, Utilization>) -> Usage {
    let unmeasured = Utilization::default();
    let busy_of = |gpu: &Gpu| busy.get(&gpu.uuid).unwrap_or(&unmeasured);
    let of_gpu = |gpu: &Gpu| {
        let Utilization { gpu: all, instances, processes } = busy_of(gpu);
        let busy =
            Busy { gpu: *all, instances: instances.clone(), pods: processes.is_some().then(BTreeMap::new) };
        (gpu.uuid.clone(), GpuUsage { busy, ..GpuUsage::default() })
    };
    let mut usage: Usage = gpus.iter().map(of_gpu).collect();
    for (gpu, process) in gpus.iter().flat_map(|gpu| gpu.processes.iter().map(move |p| (gpu, p))) {
        let Some(of_gpu) = usage.get_mut(&gpu.uuid) else { continue };
        let memory = process.memory.unwrap_or_default();
        if let Some(gi) = process.gi {
            let sum = of_gpu.instances.entry((gi, process.ci.unwrap_or(0))).or_default();
            sum.0 = sum.0.saturating_add(memory.0);
        }
        if let Some(pod) = pod_cgroup_of(&host.proc, process.pid) {
            let sum = of_gpu.pods.entry(pod.uid.clone()).or_default();
            sum.0 = sum.0.saturating_add(memory.0);
            *of_gpu.processes.entry(pod.uid.clone()).or_default() += 1;
            if let (Some(pods), Some(processes)) = (&mut of_gpu.busy.pods, &busy_of(gpu).processes) {
                let percent = processes.get(&process.pid).copied().unwrap_or(0);
                let sum = pods.entry(pod.uid.clone()).or_default();
                *sum = (*sum + percent).min(100);
            }
            let folder = pod.path.map(|path| format!("{}{path}", host.cgroups.display()));
            of_gpu.cgroups.extend(folder.map(|folder| (pod.uid, folder)));
        } else {
            let name = name_of(&host.proc, process.pid).unwrap_or_else(|| "a process".to_owned());
            of_gpu.others.push((name, process.pid, memory));
        }
    }
    usage
}

#[cfg(test)]
#[path = "processes_tests.rs"]
mod tests;
