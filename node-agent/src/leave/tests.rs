use super::*;
use crate::api_stand_in::{self, Asked, Log};
use crate::gpu::{Gpu, GpuInstance};
use crate::node::{Held as HeldBy, Recorded};
use kerf_core::contract::{GpuNodeStatus, Holder, Reservation, Shape, SliceState, SliceStatus, WantedSlice};
use kerf_core::mig::{ComputeInstance, Instance};
use kerf_core::names::PodUid;
use kerf_core::units::{MemoryMib, SizeGb};
use kerf_runtime::gpu_node::GpuNode;
use std::collections::BTreeMap;
use std::future::ready;
use std::path::Path;
use std::sync::{Arc, Mutex};

/// What was undone, in order.
#[derive(Clone, Default)]
struct Undone(Arc<Mutex<Vec<String>>>);

impl Undone {
    fn note(&self, what: String) {
        self.0.lock().unwrap().push(what);
    }

    fn all(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

/// GPUs, one of which refuses every change.
struct Gpus(Undone);

const STUBBORN: &str = "GPU-stubborn";

const DCGM: &str = "nvidia.com/gpu.deploy.dcgm";

impl GpuBackend for Gpus {
    fn count(&mut self) -> Result<u32, GpuError> {
        unreachable!()
    }

    fn for_one(&self, _: u32) -> Box<dyn GpuBackend> {
        unreachable!()
    }

    fn observe(&mut self) -> Result<Vec<Gpu>, GpuError> {
        unreachable!()
    }

    fn create(
        &mut self,
        _: &GpuUuid,
        _: Instance,
        _: Option<ComputeInstance>,
    ) -> Result<GpuInstance, GpuError> {
        unreachable!()
    }

    fn destroy(&mut self, _: &GpuUuid, _: &GpuInstance, _: Option<ComputeInstance>) -> Result<(), GpuError> {
        unreachable!()
    }

    fn set_mig_mode(&mut self, _: &GpuUuid, _: bool, _: bool) -> Result<(), GpuError> {
        unreachable!()
    }

    fn compute_mode(&mut self, _: &GpuUuid) -> Result<ComputeMode, GpuError> {
        unreachable!()
    }

    fn set_compute_mode(&mut self, gpu: &GpuUuid, mode: ComputeMode) -> Result<(), GpuError> {
        match gpu.as_str() {
            STUBBORN => return Err(GpuError::Hangs(30)),
            "GPU-gone" => return Err(GpuError::NoSuchGpu(gpu.clone())),
            _ => {}
        }
        self.0.note(format!("mode {gpu} {}", mode.as_str()));
        Ok(())
    }

    fn limit_memory(
        &mut self,
        gpu: &GpuUuid,
        cgroup: &str,
        limit: Option<MemoryMib>,
    ) -> Result<(), GpuError> {
        self.0.note(format!("limit {gpu} {cgroup} {limit:?}"));
        Ok(())
    }
}

fn leaving(folder: &Path, client: Client, undone: &Undone) -> Leave {
    let (gpus, mps, cdi) = (undone.clone(), undone.clone(), undone.clone());
    let lengths = undone.clone();
    Leave {
        node: NodeName::new("n1"),
        client,
        checkpoint: folder.to_owned(),
        gpus: Box::new(move || Ok(Box::new(Gpus(gpus)))),
        modes: Modes::new(),
        ask_kubelet: ready(Err("it is away".to_owned())).boxed(),
        no_gfd_labels: false,
        reset_lengths: Box::new(move |gpus| {
            lengths.note(format!("lengths of {gpus:?}"));
            ready(Err("nvidia-smi is not there".to_owned())).boxed()
        }),
        stop_mps: Box::new(move |spared| {
            mps.note(format!("mps but {spared:?}"));
            ready(Ok(())).boxed()
        }),
        remove_cdi: Box::new(move |spared| {
            cdi.note(format!("cdi but {spared:?}"));
            ready(Ok(())).boxed()
        }),
        settle: Duration::ZERO,
    }
}

fn modes_of(modes: &[(&str, ComputeMode)]) -> Modes {
    modes.iter().map(|(gpu, mode)| (GpuUuid::new(*gpu), *mode)).collect()
}

fn remember(folder: &Path, exclusive: &[&str]) {
    let node = Restored {
        exclusive: exclusive.iter().map(|gpu| GpuUuid::new(*gpu)).collect(),
        limits: [((GpuUuid::new("GPU-0"), "/kubepods/pod1".to_owned()), MemoryMib(1))].into(),
        paused: [DCGM.to_owned()].into(),
        ..Restored::default()
    };
    record(folder, node);
}

/// Writes the checkpoint of an agent.
fn record(folder: &Path, node: Restored) {
    Checkpoint::open(folder).unwrap().0.save(&Record::new("boot".to_owned(), node)).unwrap();
}

fn has_checkpoint(folder: &Path) -> bool {
    Checkpoint::open(folder).unwrap().1.record().is_some()
}

fn slice(device: &str, name: &str, holder: Option<&str>) -> SliceStatus {
    let holder =
        holder.map(|pod| Holder { namespace: "ml".into(), pod: pod.into(), container: "main".into() });
    SliceStatus {
        id: None,
        gpu: GpuUuid::new("GPU-0"),
        shape: Shape::mps(SizeGb(4)),
        state: if holder.is_some() { SliceState::Held } else { SliceState::Idle },
        memory: MemoryMib(4096),
        device: Some(DeviceId::new(device)),
        resource: name.parse().ok(),
        ready_for: None,
        holder,
        message: None,
        reservation: None,
        leaving: false,
    }
}

/// A node on which a 4 GB share is held and an 8 GB one is idle.
fn api(asked: &Asked) -> (u16, Value) {
    let counts =
        json!({"cpu": "8", "nvidia.com/gpu-4gb": "1", "nvidia.com/gpu-8gb": "1", "example.com/fpga": "1"});
    match (asked.method.as_str(), asked.path.as_str()) {
        ("GET", "/apis/kerf.dev/v1alpha1/gpunodes/n1") => {
            let slices = vec![
                slice("GPU-0::1", "nvidia.com/gpu-4gb", Some("train")),
                slice("GPU-0::2", "nvidia.com/gpu-8gb", None),
            ];
            let status = GpuNodeStatus { slices, ..GpuNodeStatus::default() };
            let node = GpuNode { status: Some(json!(status)), ..GpuNode::new(&NodeName::new("n1")) };
            (200, json!(node))
        }
        ("GET", "/api/v1/nodes/n1") => {
            let labels = json!({
                "kerf.dev/gpu-model": "T4-16GB", "kerf.dev/mps-max-gb": "14", "kerf.dev/managed": "true", "zone": "a",
                "nvidia.com/gpu.product": "Tesla-T4-SHARED", "nvidia.com/mig-1g.5gb.count": "1",
                "nvidia.com/gpu.present": "true", "nvidia.com/gpu.count": "1", DCGM: "paused-for-mig-change",
            });
            let annotations = json!({"nfd.node.kubernetes.io/feature-labels": "nvidia.com/gpu.count"});
            let metadata = json!({"name": "n1", "labels": labels, "annotations": annotations});
            (200, json!({"metadata": metadata, "status": {"capacity": counts, "allocatable": counts}}))
        }
        ("PATCH", _) => (200, json!({"metadata": {"name": "n1"}})),
        _ => api_stand_in::refusal(404),
    }
}

fn patches(log: &Log) -> Vec<Value> {
    log.all().into_iter().filter(|asked| asked.method == "PATCH").map(|asked| asked.body).collect()
}

#[tokio::test]
async fn leaving_restores_all_settings_and_spares_held_slices() {
    let folder = tempfile::tempdir().unwrap();
    remember(folder.path(), &["GPU-0", "GPU-gone"]);
    let (client, log) = api_stand_in::client(api);
    let undone = Undone::default();
    let modes =
        [("GPU-0", ComputeMode::Other), ("GPU-gone", ComputeMode::Default), ("GPU-9", ComputeMode::Default)];
    let leaving = Leave { modes: modes_of(&modes), ..leaving(folder.path(), client, &undone) };
    leave(leaving).await.unwrap();
    let expected = [
        r#"mps but {GpuUuid("GPU-0")}"#,
        "mode GPU-0 other",
        "limit GPU-0 /kubepods/pod1 None",
        r#"cdi but {DeviceId("GPU-0::1")}"#,
    ];
    assert_eq!(undone.all(), expected);
    let labels = json!({
        "kerf.dev/gpu-model": null, "kerf.dev/mps-max-gb": null,
        "nvidia.com/gpu.product": null, "nvidia.com/mig-1g.5gb.count": null,
    });
    let names = json!({"nvidia.com/gpu-8gb": null});
    let expected = [
        json!({"metadata": {"resourceVersion": null, "labels": {DCGM: "true"}}}),
        json!({"metadata": {"labels": labels}}),
        json!({"status": {"capacity": names, "allocatable": names}}),
    ];
    assert_eq!(patches(&log), expected);
    assert!(!has_checkpoint(folder.path()));
}

#[tokio::test]
async fn a_failed_step_keeps_the_checkpoint_and_the_other_steps_run() {
    let folder = tempfile::tempdir().unwrap();
    remember(folder.path(), &["GPU-0", STUBBORN]);
    let (client, log) = api_stand_in::client(api);
    let undone = Undone::default();
    let modes = modes_of(&[("GPU-0", ComputeMode::Default), (STUBBORN, ComputeMode::Default)]);
    let leaving = Leave { modes, ..leaving(folder.path(), client, &undone) };
    let error = leave(leaving).await.unwrap_err();
    assert!(error.to_string().contains("restore the GPUs: NVML has not answered"), "{error}");
    assert_eq!(undone.all().len(), 4);
    assert_eq!(patches(&log).len(), 3);
    assert!(has_checkpoint(folder.path()));
}

/// An agent that ends reports no slice as ready, so a container that has just got one is known by its reservation
/// alone.
#[tokio::test]
async fn reserved_slices_are_spared() {
    let folder = tempfile::tempdir().unwrap();
    let reservation = Reservation {
        uid: "u".into(),
        namespace: "ml".into(),
        pod: "train".into(),
        container: "main".into(),
        resource: "nvidia.com/gpu-8gb".parse().unwrap(),
        alone: false,
        epoch: 1,
    };
    let wanted = |id: &str, reservation| {
        let (gpu, shape) = (GpuUuid::new("GPU-0"), Shape::mps(SizeGb(8)));
        WantedSlice { id: id.into(), gpu, shape, reservation }
    };
    let mut node = Restored::default();
    node.ledger.desired.slices = vec![wanted("s1", None), wanted("s2", Some(reservation))];
    record(folder.path(), node);
    let (client, log) = api_stand_in::client(|asked| match asked.path.as_str() {
        "/apis/kerf.dev/v1alpha1/gpunodes/n1" => {
            let slices = ["1", "2"].map(|n| {
                let status = slice(&format!("GPU-0::{n}"), "nvidia.com/gpu-8gb", None);
                SliceStatus { id: Some(format!("s{n}").as_str().into()), ..status }
            });
            let status = json!(GpuNodeStatus { slices: slices.to_vec(), ..GpuNodeStatus::default() });
            // An admin may have made an error in the policy.
            let spec = Some(json!({"policy": {"vgpu": 1}}));
            let node = GpuNode { spec, status: Some(status), ..GpuNode::new(&NodeName::new("n1")) };
            (200, json!(node))
        }
        _ => api(asked),
    });
    let undone = Undone::default();
    leave(leaving(folder.path(), client, &undone)).await.unwrap();
    assert_eq!(undone.all(), [r#"mps but {GpuUuid("GPU-0")}"#, r#"cdi but {DeviceId("GPU-0::2")}"#]);
    assert_eq!(patches(&log)[1]["status"]["capacity"], json!({"nvidia.com/gpu-4gb": null}));
}

/// A node whose GpuNode was deleted, with these pods.
fn without_gpu_node(asked: &Asked, pods: &Value) -> (u16, Value) {
    match asked.path.as_str() {
        "/apis/kerf.dev/v1alpha1/gpunodes/n1" => api_stand_in::refusal(404),
        "/api/v1/pods" if asked.query.contains("spec.nodeName%3Dn1") => {
            (200, json!({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": pods}))
        }
        _ => api(asked),
    }
}

#[tokio::test]
async fn without_a_gpu_node_the_kubelets_checkpoint_shows_what_init_containers_hold() {
    let folder = tempfile::tempdir().unwrap();
    let shares = [("GPU-0::1", 4), ("GPU-1::2", 8), ("GPU-2::3", 4)];
    let shares = shares.map(|(device, size)| (DeviceId::new(device), Shape::mps(SizeGb(size))));
    record(folder.path(), Restored { shares: Some(shares.into()), ..Restored::default() });
    let limits = json!({"limits": {"nvidia.com/gpu-4gb": "1"}});
    let pods = json!([{
        "metadata": {"name": "a", "namespace": "ml", "uid": "u"},
        "spec": {"initContainers": [{"name": "load", "resources": limits}], "containers": [{"name": "main"}]},
        "status": {"phase": "Running", "startTime": "2026-01-01T00:00:00Z"},
    }]);
    let (client, log) = api_stand_in::client(move |asked| without_gpu_node(asked, &pods));
    let entry = |uid: &str, device: &str| Recorded {
        uid: PodUid::new(uid),
        container: "load".to_owned(),
        name: "nvidia.com/gpu-4gb".parse().unwrap(),
        device: DeviceId::new(device),
    };
    let recorded = Ok(vec![entry("u", "GPU-0::1"), entry("ended", "GPU-2::3")]);
    let (held, foreign) = (BTreeMap::new(), Vec::new());
    let (undone, holders) = (Undone::default(), Holders { asked: Instant::now(), held, foreign, recorded });
    let leaving =
        Leave { ask_kubelet: ready(Ok(holders)).boxed(), ..leaving(folder.path(), client, &undone) };
    leave(leaving).await.unwrap();
    assert_eq!(undone.all()[0], r#"mps but {GpuUuid("GPU-0")}"#);
    assert_eq!(undone.all()[1], r#"cdi but {DeviceId("GPU-0::1")}"#);
    assert_eq!(patches(&log)[1]["status"]["capacity"], json!({"nvidia.com/gpu-8gb": null}));
}

#[tokio::test]
async fn without_a_gpu_node_the_kubelets_list_shows_what_is_held() {
    let no_gpu_node = |asked: &Asked| without_gpu_node(asked, &json!([]));
    for has_record in [true, false] {
        let folder = tempfile::tempdir().unwrap();
        if has_record {
            remember(folder.path(), &[]);
        }
        let modes = || if has_record { Modes::new() } else { modes_of(&[("GPU-0", ComputeMode::Default)]) };
        let undone = Undone::default();
        let (client, _) = api_stand_in::client(no_gpu_node);
        let refused = Leave { modes: modes(), ..leaving(folder.path(), client, &undone) };
        let error = leave(refused).await.unwrap_err();
        assert!(matches!(error, LeaveError::HoldersUnreadable { .. }), "{error}");
        assert_eq!(undone.all(), [] as [String; 0]);
        let holder = Holder { namespace: "ml".into(), pod: "train".into(), container: "main".into() };
        let by = HeldBy { name: "nvidia.com/gpu-4gb".parse().unwrap(), holder };
        let holders = Holders {
            asked: Instant::now(),
            held: BTreeMap::from([(DeviceId::new("GPU-0::1"), by)]),
            foreign: Vec::new(),
            recorded: Ok(Vec::new()),
        };
        let (client, log) = api_stand_in::client(no_gpu_node);
        let ask_kubelet = ready(Ok(holders)).boxed();
        let reported = Leave { modes: modes(), ask_kubelet, ..leaving(folder.path(), client, &undone) };
        leave(reported).await.unwrap();
        assert_eq!(undone.all()[0], r#"mps but {GpuUuid("GPU-0")}"#);
        assert_eq!(undone.all().last().unwrap(), r#"cdi but {DeviceId("GPU-0::1")}"#);
        assert_eq!(patches(&log).last().unwrap()["status"]["capacity"], json!({"nvidia.com/gpu-8gb": null}));
    }
}

#[tokio::test]
async fn nvidias_labels_stay_if_the_agent_did_not_write_them() {
    let folder = tempfile::tempdir().unwrap();
    let (client, log) = api_stand_in::client(api);
    let leaving = Leave { no_gfd_labels: true, ..leaving(folder.path(), client, &Undone::default()) };
    leave(leaving).await.unwrap();
    let labels = json!({"kerf.dev/gpu-model": null, "kerf.dev/mps-max-gb": null});
    assert_eq!(patches(&log)[0]["metadata"]["labels"], labels);
}

#[tokio::test]
async fn a_failed_reset_of_time_slices_does_not_keep_the_agent_from_leaving() {
    let folder = tempfile::tempdir().unwrap();
    record(folder.path(), Restored { lengths: [GpuUuid::new("GPU-0")].into(), ..Restored::default() });
    let (client, undone) = (api_stand_in::client(api).0, Undone::default());
    leave(leaving(folder.path(), client, &undone)).await.unwrap();
    assert_eq!(undone.all()[1], r#"lengths of {GpuUuid("GPU-0")}"#);
    assert!(!has_checkpoint(folder.path()));
}

/// A second run does what the first could not do: here nothing.
#[tokio::test]
async fn a_second_run_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (client, log) = api_stand_in::client(|asked| match asked.path.as_str() {
        "/api/v1/nodes/n1" => {
            (200, json!({"metadata": {"name": "n1"}, "status": {"capacity": {"cpu": "8"}}}))
        }
        _ => api_stand_in::refusal(404),
    });
    let undone = Undone::default();
    leave(leaving(folder.path(), client, &undone)).await.unwrap();
    assert_eq!(undone.all(), ["mps but {}", "cdi but {}"]);
    assert_eq!(patches(&log), [] as [Value; 0]);
}

#[tokio::test]
async fn nothing_is_undone_while_the_held_slices_are_unknown() {
    let folder = tempfile::tempdir().unwrap();
    remember(folder.path(), &["GPU-0"]);
    let undone = Undone::default();
    let (client, _) = api_stand_in::client(|_| api_stand_in::refusal(503));
    let error = leave(leaving(folder.path(), client, &undone)).await.unwrap_err();
    assert!(matches!(error, LeaveError::Held { .. }), "{error}");
    let (client, _) = api_stand_in::client(|_| {
        let node = GpuNode { status: Some(json!({"slices": 3})), ..GpuNode::new(&NodeName::new("n1")) };
        (200, json!(node))
    });
    let error = leave(leaving(folder.path(), client, &undone)).await.unwrap_err();
    assert!(matches!(error, LeaveError::Unreadable { .. }), "{error}");
    assert_eq!(undone.all(), [] as [String; 0]);
    assert!(has_checkpoint(folder.path()));
}

#[tokio::test]
async fn leaving_fails_while_an_agent_runs() {
    let folder = tempfile::tempdir().unwrap();
    let (_running, _) = Checkpoint::open(folder.path()).unwrap();
    let (client, log) = api_stand_in::client(api);
    let error = leave(leaving(folder.path(), client, &Undone::default())).await.unwrap_err();
    assert!(matches!(error, LeaveError::Checkpoint(CheckpointError::InUse(_))), "{error}");
    assert!(log.all().is_empty());
}
