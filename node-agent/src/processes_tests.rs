use super::*;
use kerf_core::names::GpuUuid;
use kerf_core::units::MemoryMib;
use kerf_nvml::Process;
use std::collections::BTreeMap;

const UID: &str = "2f5e6a10-0b7c-4c55-9d11-7a3f0c9d8e21";
const STATIC: &str = "3c2ff1aa90b14c1e8f2d5f6e7a8b9c0d";

/// A UID, and the pod's cgroup from the hierarchy's root.
type Found = Option<(&'static str, Option<String>)>;

/// Contents of the cgroup file of a process, and the expected result.
fn cases() -> Vec<(String, Found)> {
    let underscored = UID.replace('-', "_");
    let systemd = |qos: &str, prefix: &str| {
        format!(
            "/{prefix}kubepods.slice/{prefix}kubepods{qos}.slice/{prefix}kubepods{qos}-pod{underscored}.slice"
        )
    };
    let cgroupfs = format!("/kubepods/burstable/pod{UID}");
    let kind = format!("/kubelet.slice{}", systemd("-besteffort", "kubelet-"));
    let guaranteed = format!("/kubepods.slice/kubepods-pod{underscored}.slice");
    let found = |path: &str| Some((UID, Some(path.to_owned())));
    vec![
        (format!("0::{cgroupfs}/9f8e\n"), found(&cgroupfs)),
        (format!("0::/kubepods/pod{UID}/9f8e"), found(&format!("/kubepods/pod{UID}"))),
        (format!("0::/kubelet{cgroupfs}/9f8e"), found(&format!("/kubelet{cgroupfs}"))),
        (
            format!("0::{}/cri-containerd-9f8e.scope", systemd("-burstable", "")),
            found(&systemd("-burstable", "")),
        ),
        (format!("0::{guaranteed}/crio-9f8e.scope/container"), found(&guaranteed)),
        (format!("0::{guaranteed}/docker-9f8e.scope"), found(&guaranteed)),
        (format!("0::{kind}/cri-containerd-9f8e.scope"), found(&kind)),
        // Version 1, and both versions at once with the unified hierarchy unused.
        (format!("12:memory:{cgroupfs}/9f8e\n4:cpu,cpuacct:{cgroupfs}/9f8e\n"), Some((UID, None))),
        (format!("9:memory:{cgroupfs}/a\n0::/system.slice/containerd.service"), Some((UID, None))),
        (format!("0::/kubepods/pod{STATIC}/9f8e"), Some((STATIC, Some(format!("/kubepods/pod{STATIC}"))))),
        // In the agent's own cgroup namespace the pod is visible and the path is not.
        (
            format!("0::/../../kubepods-burstable-pod{underscored}.slice/cri-containerd-9f8e.scope"),
            Some((UID, None)),
        ),
        (format!("0::/../../pod{UID}/9f8e"), Some((UID, None))),
        // Cgroups that a container creates below its own do not change its pod.
        (format!("0::{cgroupfs}/9f8e/kubepods/pod{STATIC}/x"), found(&cgroupfs)),
        ("0::/system.slice/nvidia-persistenced.service\n".to_owned(), None),
        ("0::/user.slice/user-0.slice/session-1.scope".to_owned(), None),
        (format!("0::/machine.slice/pod{UID}/x"), None),
        ("0::/kubepods/podinfo/x".to_owned(), None),
        ("0::/kubepods.slice/kubepods-podinfo.slice/x".to_owned(), None),
        (format!("0::/foo.slice/foo-pod{underscored}.slice"), None),
        ("0::/\n".to_owned(), None),
        (String::new(), None),
        ("nonsense".to_owned(), None),
    ]
}

#[test]
fn the_pod_is_found_in_every_cgroup_layout() {
    for (text, expected) in cases() {
        let expected = expected.map(|(uid, path)| PodCgroup { uid: PodUid::new(uid), path });
        assert_eq!(pod_cgroup(&text), expected, "{text}");
    }
}

#[test]
fn the_pod_and_name_of_a_process_are_read_from_proc() {
    let root = tempfile::tempdir().unwrap();
    let process = root.path().join("42");
    fs::create_dir(&process).unwrap();
    fs::write(process.join("cgroup"), format!("0::/kubepods/pod{UID}/c\n")).unwrap();
    fs::write(process.join("comm"), b"py\x1b[31m\xff\n").unwrap();
    assert_eq!(pod_cgroup_of(root.path(), 42).map(|pod| pod.uid), Some(PodUid::new(UID)));
    assert_eq!(name_of(root.path(), 42).unwrap(), "py\\u{1b}[31m\u{fffd}");
    assert_eq!((pod_cgroup_of(root.path(), 43), name_of(root.path(), 43)), (None, None));
}

fn gpu(index: u32, processes: &[(u32, Option<u64>, Option<u32>)]) -> Gpu {
    let process = |(pid, memory, gi): &(u32, Option<u64>, Option<u32>)| Process {
        pid: *pid,
        memory: memory.map(MemoryMib),
        gi: *gi,
        ci: None,
    };
    Gpu {
        index,
        processes: processes.iter().map(process).collect(),
        ..Gpu::empty(GpuUuid::new(format!("GPU-{index}")))
    }
}

#[test]
fn a_pods_processes_count_together_and_each_compute_instance_by_itself() {
    let root = tempfile::tempdir().unwrap();
    for (pid, of_pod) in [(10, true), (11, true), (1, false)] {
        let folder = root.path().join(pid.to_string());
        fs::create_dir(&folder).unwrap();
        let cgroup = if of_pod { format!("0::/kubepods/pod{UID}/c\n") } else { "0::/x.service\n".to_owned() };
        fs::write(folder.join("cgroup"), cgroup).unwrap();
        fs::write(folder.join("comm"), "stray\n").unwrap();
    }
    let host = Host { proc: root.path().to_owned(), cgroups: "/cgroups".into() };
    let gpus = [
        gpu(0, &[(10, Some(100), None), (11, Some(50), None), (1, Some(7), None), (2, None, None)]),
        gpu(1, &[(10, Some(1), Some(3)), (11, Some(2), Some(3)), (10, Some(4), Some(5))]),
    ];
    let measured = Utilization {
        gpu: Some(70),
        processes: Some([(10, 40), (11, 25), (1, 9)].into()),
        instances: BTreeMap::new(),
    };
    let by_instance = Utilization { instances: [(3, 60)].into(), ..Utilization::default() };
    let busy = [(gpus[0].uuid.clone(), measured), (gpus[1].uuid.clone(), by_instance)].into();
    let usage = usage(&host, &gpus, &busy);
    let uid = PodUid::new(UID);
    let shared = &usage[&gpus[0].uuid];
    assert_eq!((shared.pods[&uid], shared.processes[&uid]), (MemoryMib(150), 2));
    assert_eq!(shared.cgroups[&uid], format!("/cgroups/kubepods/pod{UID}"));
    let stray = |name: &str, pid, mib| (name.to_owned(), pid, MemoryMib(mib));
    assert_eq!(shared.others, [stray("stray", 1, 7), stray("a process", 2, 0)]);
    let cut = &usage[&gpus[1].uuid].instances;
    assert_eq!((cut[&(3, 0)], cut[&(5, 0)]), (MemoryMib(3), MemoryMib(4)));
    let pods = Some(BTreeMap::from([(uid, 65)]));
    assert_eq!(shared.busy, Busy { gpu: Some(70), pods, instances: BTreeMap::new() });
    assert_eq!(usage[&gpus[1].uuid].busy, Busy { instances: [(3, 60)].into(), ..Busy::default() });
}
