//! Which pod a process belongs to, by its cgroup, and so who uses how much memory of a GPU.
//!
//! NVML lists processes by id; the kubelet puts each pod's containers below a cgroup that is named after the pod's UID. The
//! agent sees both as the host does: it runs in the host's PID namespace and, being privileged, in the host's cgroup
//! namespace.

use kerf_core::names::{GpuUuid, PodUid};
use kerf_core::units::MemoryMib;
use kerf_nvml::Gpu;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Where processes are on a node.
pub const PROC: &str = "/proc";

/// How many processes a message names.
const NAMED: usize = 5;

/// A pod's cgroup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodCgroup {
    /// The pod's UID. For a static pod it is that of its file, not that of its mirror in the API.
    pub uid: PodUid,
    /// Its path from the root of the unified hierarchy (version 2), `/kubepods/burstable/pod…`; `None` on a host without that
    /// hierarchy, and where the agent's own cgroup namespace hides it.
    pub path: Option<String>,
}

/// The pod that a process belongs to; `None` if it belongs to none, or is gone.
#[must_use]
pub fn pod_of(proc_root: &Path, pid: u32) -> Option<PodUid> {
    pod_cgroup_of(proc_root, pid).map(|cgroup| cgroup.uid)
}

/// The cgroup of the pod that a process belongs to.
#[must_use]
pub fn pod_cgroup_of(proc_root: &Path, pid: u32) -> Option<PodCgroup> {
    pod_cgroup(&fs::read_to_string(proc_root.join(pid.to_string()).join("cgroup")).ok()?)
}

/// The name of a process; `None` if it is gone. What a process calls itself is its own affair: control characters are
/// escaped.
#[must_use]
pub fn name_of(proc_root: &Path, pid: u32) -> Option<String> {
    let name = fs::read(proc_root.join(pid.to_string()).join("comm")).ok()?;
    let name = String::from_utf8_lossy(&name);
    Some(name.trim_end_matches('\n').escape_debug().to_string())
}

/// The pod in the text of `/proc/<pid>/cgroup`: of the unified hierarchy's line (`0::/…`) or else of any other.
#[must_use]
pub fn pod_cgroup(text: &str) -> Option<PodCgroup> {
    let unified = text.lines().filter_map(|line| line.strip_prefix("0::")).find_map(in_path);
    if let Some((uid, path)) = unified {
        let path = (!path.contains("/../")).then(|| path.to_owned());
        return Some(PodCgroup { uid, path });
    }
    let (uid, _) = text.lines().filter_map(|line| line.splitn(3, ':').nth(2)).find_map(in_path)?;
    Some(PodCgroup { uid, path: None })
}

/// The outermost pod of a cgroup path, and the path as far as that: what a container makes below its own cgroup may have any
/// name.
fn in_path(path: &str) -> Option<(PodUid, String)> {
    let segments: Vec<&str> = path.split('/').collect();
    let (index, uid) = segments.iter().enumerate().find_map(|(index, segment)| {
        let parent = index.checked_sub(1).and_then(|parent| segments.get(parent)).copied();
        Some((index, uid_in(segment, parent.unwrap_or_default())?))
    })?;
    Some((uid, segments[..=index].join("/")))
}

/// The UID in a segment of a cgroup path: `pod<uid>` below the kubelet's cgroups (cgroupfs), or
/// `kubepods-burstable-pod<uid>.slice` with underscores in the UID (systemd), each with what is set before it by the
/// kubelet's `--cgroup-root`.
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

/// Whether it is a UUID, or the hash that a static pod has for one.
fn is_uid(text: &str) -> bool {
    let is_hex = |part: &str| part.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    let lengths: Vec<usize> = text.split('-').map(str::len).collect();
    text.split('-').all(is_hex) && matches!(lengths.as_slice(), [32] | [8, 4, 4, 4, 12])
}

/// A GPU, or a GPU instance on it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// The GPU.
    pub gpu: GpuUuid,
    /// NVML's id of the GPU instance.
    pub gi: Option<u32>,
}

/// What one process uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Used {
    /// The process.
    pub pid: u32,
    /// Its pod.
    pub pod: Option<PodUid>,
    /// The memory, where the driver tells.
    pub memory: Option<MemoryMib>,
}

/// What is used of the node's GPUs and by whom.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Usage(BTreeMap<Place, Vec<Used>>);

/// Who uses what of the GPUs. `pod_of` is asked once for each process.
#[must_use]
pub fn account(gpus: &[Gpu], pod_of: impl Fn(u32) -> Option<PodUid>) -> Usage {
    let mut pods: BTreeMap<u32, Option<PodUid>> = BTreeMap::new();
    let mut places: BTreeMap<Place, Vec<Used>> = BTreeMap::new();
    for (gpu, process) in gpus.iter().flat_map(|gpu| gpu.processes.iter().map(move |p| (gpu, p))) {
        let pod = pods.entry(process.pid).or_insert_with(|| pod_of(process.pid)).clone();
        let used = Used { pid: process.pid, pod, memory: process.memory };
        places.entry(Place { gpu: gpu.uuid.clone(), gi: process.gi }).or_default().push(used);
    }
    Usage(places)
}

impl Usage {
    /// The processes of each GPU and GPU instance that has any.
    #[must_use]
    pub fn places(&self) -> &BTreeMap<Place, Vec<Used>> {
        &self.0
    }

    /// The memory that each pod uses of a place, all its processes together.
    #[must_use]
    pub fn by_pod(&self, place: &Place) -> BTreeMap<&PodUid, MemoryMib> {
        let mut pods = BTreeMap::new();
        for used in self.0.get(place).into_iter().flatten() {
            if let Some(pod) = &used.pod {
                let sum: &mut MemoryMib = pods.entry(pod).or_default();
                sum.0 = sum.0.saturating_add(used.memory.unwrap_or_default().0);
            }
        }
        pods
    }

    /// What is used by processes of no pod, and of pods that `holds` does not know to hold anything there.
    ///
    /// The agent's own pod, whose children the MPS daemons are, must count as a holder.
    #[must_use]
    pub fn outside(&self, holds: impl Fn(&Place, &PodUid) -> bool) -> BTreeMap<&Place, Outside> {
        let is_outside = |place: &Place, used: &Used| used.pod.as_ref().is_none_or(|pod| !holds(place, pod));
        let of = |(place, all): (_, &Vec<Used>)| {
            let processes: Vec<Used> = all.iter().filter(|used| is_outside(place, used)).cloned().collect();
            (!processes.is_empty()).then_some((place, Outside { processes }))
        };
        self.0.iter().filter_map(of).collect()
    }
}

/// Processes that kerf knows no slice of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outside {
    /// The processes, in the driver's order.
    pub processes: Vec<Used>,
}

impl Outside {
    /// The memory that they use, as far as the driver tells.
    #[must_use]
    pub fn memory(&self) -> MemoryMib {
        self.processes.iter().filter_map(|used| used.memory).sum()
    }

    /// The first of them in words: `python3 (pid 4711, 512Mi), …`.
    #[must_use]
    pub fn describe(&self, name_of: impl Fn(u32) -> Option<String>) -> String {
        let one = |used: &Used| {
            let name = name_of(used.pid).unwrap_or_else(|| "a process that is gone".to_owned());
            let memory = used.memory.map_or_else(|| "memory unknown".to_owned(), |memory| memory.to_string());
            format!("{name} (pid {}, {memory})", used.pid)
        };
        let first = self.processes.iter().take(NAMED).map(one).collect::<Vec<_>>().join(", ");
        match self.processes.len().saturating_sub(NAMED) {
            0 => first,
            more => format!("{first} and {more} more"),
        }
    }
}

#[cfg(test)]
#[path = "processes_tests.rs"]
mod tests;
