//! Tests the agent's decisions on fake GPUs, with a kubelet that the test plays.

use super::*;
use crate::gpu::GpuError;
use crate::gpu::fake::{FakeGpus, uuid};
use crate::gpu::{GpuBackend as _, NvmlCode};
use kerf_core::contract::{
    GpuNodeStatus, Holder, MigPart, NodePolicy, Reservation, Shape, SliceState, SliceStatus, WantedSlice,
};
use kerf_core::names::DeviceId;
use kerf_core::names::PodKey;
use kerf_core::names::PodUid;
use kerf_core::planner::Step;
use kerf_core::resource::ResourceName;
use kerf_core::units::SizeGb;
use std::collections::BTreeMap;
use std::time::Duration;

pub(super) fn mig(profile: &str, start: u8, size: u8) -> Shape {
    Shape::Mig { profile: profile.parse().unwrap(), start, size, part: MigPart::Whole }
}

pub(super) fn reservation(pod: &str, resource: &str) -> Reservation {
    Reservation {
        uid: PodUid::new(format!("{pod}-uid")),
        namespace: "ns".into(),
        pod: pod.into(),
        container: "main".into(),
        resource: resource.parse().unwrap(),
        alone: false,
        epoch: 1,
    }
}

/// Only this pod, admitted by the kubelet, with one slice for an app container.
pub(super) fn admitted(pod: &str) -> NodePods {
    let is_admitted = NodePod {
        key: PodKey::new("ns", pod),
        admitted: true,
        names: BTreeMap::from([(ONE.parse().unwrap(), 1)]),
        inits: BTreeSet::new(),
        requested: BTreeMap::new(),
        assigned: Vec::new(),
    };
    NodePods::from([(PodUid::new(format!("{pod}-uid")), is_admitted)])
}

pub(super) fn wanted(id: &str, shape: Shape, pod: Option<(&str, &str)>) -> WantedSlice {
    wanted_of(0, id, shape, pod)
}

pub(super) fn wanted_of(gpu: u32, id: &str, shape: Shape, pod: Option<(&str, &str)>) -> WantedSlice {
    let reservation = pod.map(|(pod, resource)| reservation(pod, resource));
    WantedSlice { id: SliceId::new(id), gpu: uuid(gpu), shape, reservation }
}

pub(super) const ONE: &str = "nvidia.com/mig-1g.10gb";

/// A node, its GPUs and its kubelet.
pub(super) struct Scene {
    pub(super) node: Node,
    pub(super) gpus: FakeGpus,
    pub(super) now: Instant,
    /// What the kubelet may allocate. It processes the lists only on request.
    pub(super) kubelet: DevicesByName,
    pub(super) held: BTreeMap<DeviceId, Held>,
    /// The rest of the kubelet's checkpoint, or why it cannot be used.
    pub(super) recorded: Result<Vec<Recorded>, String>,
    /// What other managers allocated, by their ids.
    pub(super) foreign: Vec<(Foreign, Holder)>,
    pub(super) policy: NodePolicy,
    pub(super) settings: Settings,
    pub(super) record: Restored,
    pub(super) reported: Vec<NodeEvent>,
}

impl Scene {
    pub(super) fn new(models: &[&str]) -> Self {
        Self::with_settings(FakeGpus::new(models), Settings::default())
    }

    pub(super) fn with_settings(gpus: FakeGpus, settings: Settings) -> Self {
        let mut scene = Self {
            node: Node::new(Settings::default()),
            gpus,
            now: Instant::now(),
            kubelet: BTreeMap::new(),
            held: BTreeMap::new(),
            recorded: Ok(Vec::new()),
            foreign: Vec::new(),
            policy: NodePolicy::default(),
            settings,
            record: Restored::default(),
            reported: Vec::new(),
        };
        scene.restart_agent();
        scene
    }

    pub(super) fn restart_agent(&mut self) {
        self.start_agent();
        self.node.on_registration(Ok(self.node.resource_names()));
        self.node.on_pods(NodePods::new());
        self.acknowledge();
        self.list_holders();
    }

    /// Starts a new process of the agent, which has seen only the GPUs.
    pub(super) fn start_agent(&mut self) {
        self.node = Node::new(self.settings.clone());
        self.node.restore(&self.record, self.now);
        self.node.on_leader(Some(1), self.now);
        self.kubelet.clear();
        self.observe();
    }

    pub(super) fn observe(&mut self) {
        self.node.on_gpus(Ok(self.gpus.gpus()));
    }

    pub(super) fn tick(&mut self) -> Instant {
        self.now += Duration::from_millis(1);
        self.now
    }

    /// Reads the GpuNode, and gives the ledger these slices, as if they had been ordered one by one.
    pub(super) fn want(&mut self, slices: Vec<WantedSlice>) {
        self.read_gpu_node();
        self.node.set_desired(slices, self.now);
    }

    /// Reads the GpuNode, which has only the policy.
    pub(super) fn read_gpu_node(&mut self) {
        self.node.on_predecessor(Predecessor::default(), self.now);
        self.node.on_policy(Ok(self.policy.clone()));
    }

    pub(super) fn decide(&mut self) -> Decision {
        let now = self.tick();
        let decision = self.node.decide(now);
        self.record.clone_from(&decision.record);
        self.reported.extend(decision.events.iter().cloned());
        decision
    }

    /// Runs the step of a decision on the fake GPUs.
    pub(super) fn run(&mut self, step: Step) {
        let now = self.tick();
        match step {
            Step::Create { gpu, instance, part, id } => {
                let result = self.gpus.create(&gpu, instance, part);
                self.node.on_created(&gpu, &id, result, now);
            }
            Step::Destroy { gpu, instance, part } => {
                let found = self.node.facts.inventory.find(&gpu, instance).unwrap().clone();
                let result = self.gpus.destroy(&gpu, &found, part);
                self.node.on_destroyed(&gpu, (instance, part), result, now);
            }
            Step::Switch { gpu, mig } => {
                let result = self.gpus.set_mig_mode(&gpu, mig, self.node.facts.rules().may_reset(&gpu));
                self.node.on_switched(&gpu, mig, result, now);
                self.observe();
            }
            other => panic!("{other} is no step on a GPU"),
        }
    }

    /// The kubelet processes the lists and acknowledges them.
    pub(super) fn acknowledge(&mut self) {
        self.kubelet = self.decide().healthy;
        let asked = self.tick();
        self.node.on_allocatable(Allocatable { asked, healthy: self.kubelet.clone() });
    }

    pub(super) fn list_holders(&mut self) {
        let asked = self.tick();
        let (held, foreign, recorded) = (self.held.clone(), self.foreign.clone(), self.recorded.clone());
        self.node.on_holders(Ok(Holders { asked, held, foreign, recorded }));
    }

    /// The kubelet allocates a device to a pod.
    pub(super) fn allocate(&mut self, pod: &str, name: &str, device: &str) {
        let (name, device) = (name.parse::<ResourceName>().unwrap(), DeviceId::new(device));
        assert!(self.kubelet[&name].contains(&device), "the kubelet may not hand out {device}");
        let now = self.tick();
        self.node.on_allocated(name, vec![device.clone()], now);
        let holder = Holder { namespace: "ns".into(), pod: pod.into(), container: "main".into() };
        self.held.insert(device.clone(), Held { name, holder });
        if let Ok(recorded) = &mut self.recorded {
            recorded.retain(|entry| entry.device != device);
            let (uid, container) = (PodUid::new(format!("{pod}-uid")), "main".to_owned());
            recorded.push(Recorded { uid, container, name, device });
        }
        self.list_holders();
    }

    /// Ends the pod that holds the device normally.
    pub(super) fn free(&mut self, device: &str) {
        let now = self.tick();
        if let Some(held) = self.held.remove(&DeviceId::new(device)) {
            self.node.on_pod_left(held.holder.key(), PodUid::new(format!("{}-uid", held.holder.pod)), now);
        }
        self.list_holders();
    }

    /// Ends all pods normally.
    pub(super) fn end_pods(&mut self) {
        let now = self.tick();
        for (uid, pod) in self.node.facts.pods.listed().cloned().into_iter().flatten() {
            self.node.on_pod_left(pod.key, uid, now);
        }
        self.node.on_pods(NodePods::new());
        self.held.clear();
        self.list_holders();
    }

    /// The kubelet no longer lists the device, for an unknown reason.
    pub(super) fn vanish(&mut self, device: &str) {
        self.held.remove(&DeviceId::new(device));
        self.list_holders();
    }

    /// Runs everything until nothing is left to do, and returns the status.
    pub(super) fn settle(&mut self) -> GpuNodeStatus {
        for _ in 0..100 {
            let decision = self.decide();
            if let Some(step) = decision.step {
                self.run(step);
            } else if decision.healthy != self.kubelet {
                self.acknowledge();
            } else {
                self.list_holders();
                self.decide();
                let again = self.decide();
                let is_due = again.next.due_at.is_some_and(|due_at| due_at <= self.now);
                if again.step.is_none() && again.healthy == self.kubelet && !is_due {
                    return again.status;
                }
            }
        }
        panic!("it does not settle: {:?}", self.decide());
    }

    pub(super) fn places(&self) -> Vec<String> {
        let instances = self.gpus.gpus().into_iter().flat_map(|g| g.instances);
        instances.map(|i| format!("{} at {}", i.instance.profile, i.instance.placement)).collect()
    }
}

/// No pod gets the slice `s1`, because processes run there, and an observation is due. The kubelet has acknowledged
/// that.
pub(super) fn still_runs(scene: &mut Scene) {
    let decision = scene.decide();
    let found = slice(&decision.status, "s1");
    assert!(found.message.as_ref().unwrap().contains("still run"), "{found:?}");
    assert_ne!(found.state, SliceState::Idle);
    assert_eq!((found.ready_for.clone(), decision.next.wants_observation), (None, true));
    assert_eq!(devices(&decision.healthy), Vec::<&str>::new());
    scene.acknowledge();
}

pub(super) fn slice<'s>(status: &'s GpuNodeStatus, id: &str) -> &'s SliceStatus {
    status.slice(&SliceId::new(id)).unwrap()
}

/// Whether a container that requests the device now gets it.
pub(super) fn grants(decision: &Decision, device: &str) -> bool {
    let mut listed = decision.lists.values().flatten();
    listed.any(|d| d.id.as_str() == device && d.grant.is_some())
}

/// The text of a condition that does not hold.
pub(super) fn failing(status: &GpuNodeStatus, kind: &str) -> Option<String> {
    let condition = status.conditions.iter().find(|c| c.kind == kind).unwrap();
    (condition.status == kerf_core::contract::ConditionStatus::False).then(|| condition.message.clone())
}

pub(super) fn devices(healthy: &DevicesByName) -> Vec<&str> {
    healthy.values().flatten().map(DeviceId::as_str).collect()
}

#[test]
fn a_reserved_slice_is_cut_offered_and_ready_once_the_kubelet_acknowledges() {
    let mut scene = Scene::new(&["H100-80GB"]);
    scene.want(vec![wanted("s1", mig("1g.10gb", 3, 1), Some(("a", ONE)))]);
    let decision = scene.decide();
    assert_eq!(slice(&decision.status, "s1").state, SliceState::Preparing);
    scene.run(decision.step.unwrap());
    assert_eq!(scene.places(), ["1g.10gb at 3:1"]);
    let decision = scene.decide();
    assert_eq!(devices(&decision.healthy), ["MIG-1"]);
    assert_eq!(slice(&decision.status, "s1").ready_for, None, "not before the kubelet has it");
    scene.acknowledge();
    let status = scene.decide().status;
    let ready = slice(&status, "s1");
    assert_eq!((ready.state, ready.ready_for.as_ref().unwrap().as_str()), (SliceState::Ready, "a-uid"));
    assert_eq!(ready.memory.0, 9_984);
    scene.allocate("a", ONE, "MIG-1");
    let status = scene.settle();
    let held = slice(&status, "s1");
    assert_eq!((held.state, held.holder.as_ref().unwrap().pod.as_str()), (SliceState::Held, "a"));
    assert!(held.ready_for.is_some());
    assert_eq!((status.summary.held, status.summary.free.as_str()), (1, "69Gi"));
}

#[test]
fn an_idle_slice_is_offered_to_no_pod_and_its_id_is_dropped() {
    let mut scene = Scene::new(&["H100-80GB"]);
    scene.want(vec![wanted("s1", mig("1g.10gb", 0, 1), Some(("a", ONE)))]);
    scene.settle();
    scene.want(vec![wanted("s1", mig("1g.10gb", 0, 1), None)]);
    let status = scene.settle();
    assert_eq!(slice(&status, "s1").state, SliceState::Idle);
    assert_eq!(scene.places(), ["1g.10gb at 0:1"], "it stays as idle capacity");
    let listed = |decision: &Decision| decision.lists.values().flatten().count();
    assert_eq!(listed(&scene.decide()), 1, "unhealthy for a while");
    scene.now += Duration::from_secs(5);
    assert_eq!(listed(&scene.decide()), 0);
}

#[test]
fn an_idle_slice_in_the_way_is_destroyed_only_after_the_kubelet_stopped_offering_it() {
    let mut scene = Scene::new(&["H100-80GB"]);
    scene.want(vec![wanted("s1", mig("1g.10gb", 0, 1), Some(("a", ONE)))]);
    scene.settle();
    // The pod is gone before its admission, and one write reassigns its place.
    let big = wanted("s2", mig("7g.80gb", 0, 8), Some(("b", "nvidia.com/mig-7g.80gb")));
    scene.want(vec![big]);
    let decision = scene.decide();
    assert_eq!(
        (devices(&decision.healthy), decision.step),
        (vec![], None),
        "the kubelet may still hand it out"
    );
    assert_eq!(slice(&decision.status, "s1").state, SliceState::Idle, "on its way out under its old name");
    scene.acknowledge();
    let decision = scene.decide();
    assert!(decision.step.is_none() && decision.next.wants_holders, "it may have been handed out before");
    assert!(grants(&decision, "MIG-1"), "a pod may get it if the kubelet picked it before");
    scene.list_holders();
    let decision = scene.decide();
    assert!(!grants(&decision, "MIG-1") && decision.step.is_none(), "first no pod gets it any more");
    assert!(matches!(scene.decide().step, Some(Step::Destroy { .. })), "then it goes");
    let status = scene.settle();
    assert_eq!(scene.places(), ["7g.80gb at 0:8"]);
    assert_eq!(slice(&status, "s2").state, SliceState::Ready);
}

#[test]
fn a_pod_gets_a_withdrawn_slice_that_the_kubelet_picked_before_it_knew() {
    let mut scene = Scene::new(&["H100-80GB"]);
    let idle = wanted("s1", mig("1g.10gb", 0, 1), None);
    let reserved = wanted("s2", mig("1g.10gb", 1, 1), Some(("b", ONE)));
    scene.want(vec![wanted("s1", mig("1g.10gb", 0, 1), Some(("a", ONE))), reserved.clone()]);
    scene.settle();
    scene.want(vec![idle, reserved]);
    assert!(grants(&scene.decide(), "MIG-1"), "the kubelet may still pick it");
    scene.allocate("b", ONE, "MIG-1");
    let status = scene.settle();
    let held = slice(&status, "s1");
    assert_eq!((held.state, held.holder.as_ref().unwrap().pod.as_str()), (SliceState::Held, "b"));
}

#[test]
fn a_slice_that_was_allocated_at_the_last_moment_is_not_destroyed() {
    let mut scene = Scene::new(&["H100-80GB"]);
    scene.want(vec![wanted("s1", mig("1g.10gb", 0, 1), Some(("a", ONE)))]);
    scene.settle();
    scene.want(vec![wanted("s2", mig("7g.80gb", 0, 8), Some(("b", "nvidia.com/mig-7g.80gb")))]);
    scene.allocate("a", ONE, "MIG-1");
    let status = scene.settle();
    assert_eq!(scene.places(), ["1g.10gb at 0:1"]);
    let held = slice(&status, "s1");
    assert_eq!((held.state, held.holder.as_ref().unwrap().pod.as_str()), (SliceState::Held, "a"));
    scene.now += Duration::from_secs(2);
    let status = scene.decide().status;
    let failed = slice(&status, "s2");
    assert_eq!(failed.state, SliceState::Failed);
    assert_eq!(failed.message.as_deref(), Some("slices in use are in its way"));
    scene.free("MIG-1");
    let status = scene.settle();
    assert_eq!(slice(&status, "s2").state, SliceState::Ready, "the way has cleared");
}

#[test]
fn a_slice_on_which_a_process_runs_is_not_destroyed() {
    let mut scene = Scene::new(&["H100-80GB"]);
    scene.want(vec![wanted("s1", mig("1g.10gb", 0, 1), None)]);
    scene.settle();
    scene.gpus.set_processes(&DeviceId::new("MIG-1"), true);
    scene.want(vec![wanted("s2", mig("7g.80gb", 0, 8), None)]);
    let step = scene.decide().step.unwrap();
    scene.run(step);
    assert_eq!(scene.places(), ["1g.10gb at 0:1"]);
    let decision = scene.decide();
    assert!(decision.step.is_none() && decision.next.due_at.is_some(), "tried again later");
    scene.gpus.set_processes(&DeviceId::new("MIG-1"), false);
    scene.now += Duration::from_millis(200);
    scene.settle();
    assert_eq!(scene.places(), ["7g.80gb at 0:8"]);
}

#[test]
fn a_slice_that_nvml_refuses_fails_after_three_tries_with_nvmls_error() {
    let mut scene = Scene::new(&["H100-80GB"]);
    scene.want(vec![wanted("s1", mig("1g.10gb", 0, 1), Some(("a", ONE)))]);
    let refused = GpuError::Call { call: "nvmlX", code: NvmlCode::InsufficientResources };
    for _ in 0..3 {
        scene.gpus.fail_next(refused.clone());
        let step = scene.decide().step.unwrap();
        scene.run(step);
        assert!(scene.decide().step.is_none());
        scene.now += Duration::from_secs(1);
    }
    let status = scene.decide().status;
    let failed = slice(&status, "s1");
    assert_eq!(failed.state, SliceState::Failed);
    assert_eq!(failed.message.as_deref(), Some("nvmlX answered INSUFFICIENT_RESOURCES"));
    scene.want(vec![wanted("s2", mig("1g.10gb", 1, 1), Some(("a", ONE)))]);
    assert_eq!(slice(&scene.settle(), "s2").state, SliceState::Ready);
}

#[test]
fn a_failing_step_does_not_block_unrelated_steps() {
    let mut scene = Scene::new(&["H100-80GB"]);
    scene.want(vec![
        wanted("s1", mig("1g.10gb", 0, 1), Some(("a", ONE))),
        wanted("s2", mig("1g.10gb", 1, 1), Some(("b", ONE))),
    ]);
    scene.gpus.fail_next(GpuError::Busy(kerf_nvml::Holders::default()));
    let step = scene.decide().step.unwrap();
    scene.run(step);
    let status = scene.settle();
    assert_eq!(
        (slice(&status, "s1").state, slice(&status, "s2").state),
        (SliceState::Preparing, SliceState::Ready)
    );
    assert!(slice(&status, "s1").message.as_ref().unwrap().contains("tried again"));
}

#[test]
fn unequal_slices_of_one_name_wait_for_each_other() {
    let mut scene = Scene::new(&["H100-80GB"]);
    scene.want(vec![
        wanted("s1", mig("1g.10gb", 0, 1), Some(("a", ONE))),
        wanted("s2", mig("1g.20gb", 2, 2), Some(("b", ONE))),
    ]);
    let status = scene.settle();
    assert_eq!(
        (slice(&status, "s1").state, slice(&status, "s2").state),
        (SliceState::Ready, SliceState::Waiting)
    );
    scene.allocate("a", ONE, "MIG-1");
    let status = scene.settle();
    assert_eq!(
        (slice(&status, "s1").state, slice(&status, "s2").state),
        (SliceState::Held, SliceState::Ready)
    );
}

#[test]
fn a_slice_reserved_for_one_pod_and_held_by_another_is_not_ready() {
    let mut scene = Scene::new(&["H100-80GB"]);
    let slices = |first: &str, second: &str| {
        vec![
            wanted("s1", mig("1g.10gb", 0, 1), Some((first, ONE))),
            wanted("s2", mig("1g.10gb", 1, 1), Some((second, ONE))),
        ]
    };
    scene.want(slices("a", "b"));
    scene.settle();
    scene.allocate("a", ONE, "MIG-2");
    let status = scene.settle();
    assert_eq!(slice(&status, "s2").state, SliceState::Held);
    assert_eq!(slice(&status, "s2").ready_for, None, "it is not b's any more");
    assert_eq!(slice(&status, "s1").state, SliceState::Ready);
    // The kubelet may give a pod an equal slice that is reserved for another; the two pods then swap reservations.
    scene.want(slices("b", "a"));
    let status = scene.settle();
    assert_eq!(slice(&status, "s1").ready_for.as_ref().unwrap().as_str(), "b-uid");
}

#[test]
fn a_pod_is_placed_elsewhere_if_a_pod_without_a_reservation_holds_its_slice() {
    let mut scene = Scene::new(&["H100-80GB"]);
    scene.want(vec![wanted("s1", mig("1g.10gb", 0, 1), Some(("a", ONE)))]);
    scene.settle();
    scene.allocate("x", ONE, "MIG-1");
    assert_eq!(slice(&scene.settle(), "s1").state, SliceState::Held);
    scene.now += Duration::from_secs(30);
    let status = scene.decide().status;
    let failed = slice(&status, "s1");
    assert_eq!((failed.state, failed.holder.as_ref().unwrap().pod.as_str()), (SliceState::Failed, "x"));
    assert!(failed.message.as_ref().unwrap().contains("ns/x"), "{failed:?}");
    assert_eq!(scene.places(), ["1g.10gb at 0:1"]);
}

#[test]
fn shares_are_accounted_and_served_under_stable_ids() {
    let mut scene = Scene::new(&["T4-16GB"]);
    let share = Shape::mps(SizeGb(4));
    let name = "nvidia.com/gpu-4gb";
    scene.want(vec![wanted("s17", share, Some(("a", name)))]);
    let status = scene.settle();
    let ready = slice(&status, "s17");
    assert_eq!((ready.state, ready.device.as_ref().unwrap().as_str()), (SliceState::Ready, "GPU-0::17"));
    scene.allocate("a", name, "GPU-0::17");
    // The agent restarts and the spec has lost the slice: what a pod holds stays, and counts.
    scene.restart_agent();
    scene.want(vec![wanted("s18", Shape::TimeSlicing { size_gb: SizeGb(4) }, None)]);
    let status = scene.settle();
    let held = slice(&status, "s17");
    assert_eq!((held.state, held.shape), (SliceState::Held, share));
    assert_eq!(devices(&scene.kubelet), ["GPU-0::17"], "its holder may restart its container");
    assert!(slice(&status, "s18").message.as_ref().unwrap().contains("another kind"));
    scene.free("GPU-0::17");
    let status = scene.settle();
    assert!(status.slice(&SliceId::new("s17")).is_none());
    assert_eq!(slice(&status, "s18").state, SliceState::Idle);
}

#[test]
fn an_unknown_slice_is_not_touched_and_is_reported_without_an_id() {
    let mut scene = Scene::new(&["H100-80GB"]);
    let foreign = mig("1g.10gb", 0, 1).instance().unwrap();
    scene.gpus.create(&uuid(0), foreign, None).unwrap();
    scene.restart_agent();
    scene.want(vec![wanted("s1", mig("1g.10gb", 1, 1), None)]);
    let status = scene.settle();
    let unknown = status.slices.iter().find(|s| s.id.is_none()).unwrap();
    assert_eq!((unknown.shape, unknown.state), (mig("1g.10gb", 0, 1), SliceState::Held));
    assert!(unknown.message.as_ref().unwrap().contains("did not make it"));
    // After a restart the agent still distinguishes its own slice, which was being removed, from the unknown one.
    scene.restart_agent();
    scene.want(vec![]);
    let status = scene.settle();
    let ids: Vec<_> = status.slices.iter().map(|s| s.id.as_ref().map(SliceId::as_str)).collect();
    assert_eq!(ids, [None, Some("s1")]);
}

#[test]
fn nothing_is_cut_while_holders_or_gpus_are_unknown() {
    let mut scene = Scene::new(&["H100-80GB"]);
    scene.node = Node::new(Settings::default());
    scene.node.on_gpus(Ok(scene.gpus.gpus()));
    scene.want(vec![wanted("s1", mig("1g.10gb", 0, 1), None)]);
    assert!(scene.decide().step.is_none(), "the kubelet has not answered");
    scene.list_holders();
    assert!(scene.decide().step.is_none(), "the node's pods are not known");
    scene.node.on_pods(NodePods::new());
    assert!(scene.decide().step.is_some());
    scene.node.on_gpus(Err(GpuError::Stopped));
    let decision = scene.decide();
    assert!(decision.step.is_none());
    assert!(!decision.status.is_ready());
}

#[test]
fn held_devices_are_listed_before_the_api_server_answers_and_granted_to_no_other_pod() {
    let mut scene = Scene::new(&["H100-80GB"]);
    let both = vec![
        wanted("s1", mig("1g.10gb", 0, 1), Some(("a", ONE))),
        wanted("s2", mig("1g.10gb", 1, 1), Some(("b", ONE))),
    ];
    scene.want(both.clone());
    scene.settle();
    scene.allocate("a", ONE, "MIG-1");
    scene.settle();
    scene.start_agent();
    scene.node.on_registration(Ok(scene.node.resource_names()));
    assert_eq!(devices(&scene.decide().healthy), Vec::<&str>::new(), "the kubelet has not answered");
    scene.list_holders();
    let decision = scene.decide();
    assert_eq!(devices(&decision.healthy), ["MIG-1"], "its container may be started again");
    assert!(!grants(&decision, "MIG-1"), "a pod that comes after its holder's end has reserved another");
    assert!(decision.step.is_none() && !decision.status.is_ready());
    scene.want(both);
    scene.node.on_pods(NodePods::new());
    let decision = scene.decide();
    assert_eq!(devices(&decision.healthy), ["MIG-1", "MIG-2"]);
    assert!(grants(&decision, "MIG-1"));
}

#[test]
fn an_unhealthy_device_is_not_listed_as_healthy_for_its_holder_either() {
    let mut scene = Scene::new(&["H100-80GB"]);
    scene.want(vec![wanted("s1", mig("1g.10gb", 0, 1), Some(("a", ONE)))]);
    scene.settle();
    scene.allocate("a", ONE, "MIG-1");
    scene.start_agent();
    scene.node.on_registration(Ok(scene.node.resource_names()));
    let what = crate::gpu::GpuTrouble::Xid(79);
    scene.node.on_trouble(crate::gpu::GpuEvent { gpu: Some(uuid(0)), what, gi: None, ci: None }, scene.now);
    scene.list_holders();
    assert_eq!(devices(&scene.decide().healthy), Vec::<&str>::new());
}

#[test]
fn a_reused_name_hides_no_slice() {
    let mut scene = Scene::new(&["H100-80GB"]);
    scene.want(vec![wanted("s1", mig("1g.10gb", 0, 1), Some(("a", ONE)))]);
    scene.settle();
    scene.allocate("a", ONE, "MIG-1");
    scene.settle();
    for restarts in [false, true] {
        // The GpuNode is deleted, and the leader starts again with the first name.
        let again = vec![wanted("s1", mig("1g.10gb", 4, 1), Some(("b", ONE)))];
        if restarts {
            scene.settle();
            scene.restart_agent();
        }
        scene.want(again);
        let status = scene.settle();
        assert_eq!(slice(&status, "s1").state, SliceState::Ready);
        let old = slice(&status, "MIG-1");
        assert_eq!((old.state, old.holder.as_ref().unwrap().pod.as_str()), (SliceState::Held, "a"));
        let inventory =
            kerf_core::inventory::NodeInventory::from_spec(scene.node.ledger().desired(), &status);
        assert_eq!(inventory.gpus[0].taken().count(), 2, "the extender sees both");
    }
}

#[test]
fn a_failed_create_is_tried_again_for_another_slice() {
    let mut scene = Scene::new(&["H100-80GB"]);
    scene.want(vec![wanted("s1", mig("1g.10gb", 0, 1), Some(("a", ONE)))]);
    for _ in 0..3 {
        scene.gpus.fail_next(GpuError::Call { call: "nvmlX", code: NvmlCode::InsufficientResources });
        let step = scene.decide().step.unwrap();
        scene.run(step);
        scene.now += Duration::from_secs(1);
    }
    assert_eq!(slice(&scene.settle(), "s1").state, SliceState::Failed);
    scene.want(vec![wanted("s2", mig("1g.10gb", 0, 1), Some(("a", ONE)))]);
    assert_eq!(slice(&scene.settle(), "s2").state, SliceState::Ready);
}

#[test]
fn after_a_restart_of_the_kubelet_nothing_is_ready_until_it_acknowledges_again() {
    let mut scene = Scene::new(&["H100-80GB"]);
    scene.want(vec![wanted("s1", mig("1g.10gb", 0, 1), Some(("a", ONE)))]);
    assert!(scene.settle().is_ready());
    scene.node.on_registration(Err("the kubelet has restarted".into()));
    let status = scene.decide().status;
    assert!(!status.is_ready());
    assert_eq!(slice(&status, "s1").ready_for, None);
    scene.node.on_registration(Ok(scene.node.resource_names()));
    scene.acknowledge();
    assert_eq!(slice(&scene.decide().status, "s1").state, SliceState::Ready);
}

#[test]
fn a_name_is_reported_once_it_is_registered() {
    let reported = |scene: &mut Scene| scene.decide().status.neutral_up_to.map(|size| size.0);
    let mut scene = Scene::new(&["H100-80GB"]);
    scene.want(vec![]);
    let status = scene.settle();
    assert_eq!(status.neutral_up_to, Some(SizeGb(80)));
    scene.start_agent();
    assert_eq!(reported(&mut scene), None, "an earlier process has registered them");
    scene.want(vec![]);
    scene.node.on_pods(NodePods::new());
    scene.list_holders();
    assert_eq!(reported(&mut scene), None);
    let mut names = scene.node.resource_names();
    names.remove(&ResourceName::Neutral(SizeGb(16)));
    scene.node.on_registration(Ok(names));
    assert_eq!(reported(&mut scene), Some(14), "16 GB is still to come");
    scene.node.on_registration(Err("the kubelet has restarted".into()));
    assert_eq!(reported(&mut scene), None);
    scene.node.on_registration(Ok(scene.node.resource_names()));
    assert_eq!(reported(&mut scene), Some(80));
}

#[test]
fn a_gpu_without_mig_mode_refuses_instances_at_once() {
    let mut scene = Scene::new(&["T4-16GB"]);
    scene.want(vec![wanted("s1", mig("1g.10gb", 0, 1), Some(("a", ONE)))]);
    let status = scene.settle();
    assert_eq!(slice(&status, "s1").state, SliceState::Failed);
    assert!(slice(&status, "s1").message.as_ref().unwrap().contains("MIG mode"));
    assert_eq!(status.summary.mode, "whole,mps,time-slicing");
    assert_eq!(status.summary.gpus, "1x T4-16GB");
}

#[test]
fn a_slice_released_during_its_creation_keeps_its_name_and_can_be_replaced() {
    let mut scene = Scene::new(&["H100-80GB"]);
    scene.want(vec![wanted("s1", mig("1g.10gb", 0, 1), None)]);
    let step = scene.decide().step.unwrap();
    // While NVML makes it, the extender releases it.
    scene.want(Vec::new());
    scene.run(step);
    let status = scene.settle();
    assert_eq!(slice(&status, "s1").state, SliceState::Idle);
    scene.want(vec![wanted("s2", mig("7g.80gb", 0, 8), None)]);
    scene.settle();
    assert_eq!(scene.places(), ["7g.80gb at 0:8"]);
}

#[test]
fn a_just_started_kubelet_that_lists_no_pod_yet_frees_nothing() {
    let mut scene = Scene::new(&["H100-80GB"]);
    scene.want(vec![wanted("s1", mig("1g.10gb", 0, 1), Some(("a", ONE)))]);
    scene.settle();
    scene.allocate("a", ONE, "MIG-1");
    scene.node.on_pods(admitted("a"));
    // The reservation is lost, and another slice needs the place.
    scene.want(vec![wanted("s2", mig("7g.80gb", 0, 8), Some(("b", "nvidia.com/mig-7g.80gb")))]);
    scene.held.clear();
    scene.list_holders();
    scene.settle();
    assert_eq!(scene.places(), ["1g.10gb at 0:1"]);
    let now = scene.tick();
    scene.node.on_pod_left(PodKey::new("ns", "a"), PodUid::new("a-uid"), now);
    scene.node.on_pods(NodePods::new());
    scene.list_holders();
    scene.settle();
    assert_eq!(scene.places(), ["7g.80gb at 0:8"], "the pod has ended");
}

#[test]
fn a_cut_off_pods_device_is_offered_only_after_an_observation_shows_no_process() {
    for reserved in [Some(("b", ONE)), None] {
        let mut scene = Scene::new(&["H100-80GB"]);
        scene.want(vec![wanted("s1", mig("1g.10gb", 0, 1), Some(("a", ONE)))]);
        scene.settle();
        scene.allocate("a", ONE, "MIG-1");
        scene.gpus.set_processes(&DeviceId::new("MIG-1"), true);
        scene.node.on_pod_cut_off(PodKey::new("ns", "a"), PodUid::new("a-uid"));
        scene.want(vec![wanted("s1", mig("1g.10gb", 0, 1), reserved)]);
        scene.free("MIG-1");
        for _ in 0..2 {
            still_runs(&mut scene);
            scene.observe();
        }
        scene.gpus.set_processes(&DeviceId::new("MIG-1"), false);
        scene.observe();
        let state = slice(&scene.settle(), "s1").state;
        assert_eq!(state, if reserved.is_some() { SliceState::Ready } else { SliceState::Idle });
    }
}

#[test]
fn the_device_of_an_ended_pod_is_free_at_once() {
    let mut scene = Scene::new(&["H100-80GB"]);
    scene.want(vec![wanted("s1", mig("1g.10gb", 0, 1), Some(("a", ONE)))]);
    scene.settle();
    scene.allocate("a", ONE, "MIG-1");
    scene.gpus.set_processes(&DeviceId::new("MIG-1"), true);
    scene.observe();
    scene.want(vec![wanted("s1", mig("1g.10gb", 0, 1), None)]);
    scene.free("MIG-1");
    assert_eq!(slice(&scene.decide().status, "s1").state, SliceState::Idle);
}
