//! Init containers, whose devices List omits and the kubelet's checkpoint has: the devices are held, and no other pod
//! gets them.

use super::tests::{ONE, Scene, devices, failing, mig, slice, wanted, wanted_of};
use super::*;
use crate::gpu::fake::{FakeGpus, uuid};
use kerf_core::contract::{Condition, GpuNodeStatus, Holder, Shape, SliceState, WantedSlice};
use kerf_core::kind::Kind;
use kerf_core::names::DeviceId;
use kerf_core::names::PodKey;
use kerf_core::names::PodUid;
use kerf_core::resource::ResourceName;
use kerf_core::units::SizeGb;
use std::collections::BTreeMap;
use std::time::Duration;

/// A slice at `start` for a container of a pod whose init container `load` needs two and `main` one.
fn staged(id: &str, start: u8, container: &str) -> WantedSlice {
    let mut slice = wanted(id, mig("1g.10gb", start, 1), Some(("a", ONE)));
    slice.reservation.as_mut().unwrap().container = container.to_owned();
    slice
}

fn spec() -> Vec<WantedSlice> {
    let other = wanted("s3", mig("1g.10gb", 2, 1), Some(("b", ONE)));
    vec![staged("s1", 0, "load"), staged("s2", 1, "main"), other]
}

/// The pods as the API server shows them: only `a`.
fn pods(admitted: bool) -> NodePods {
    pods_of(ONE, admitted)
}

fn pods_of(name: &str, admitted: bool) -> NodePods {
    let names = BTreeMap::from([(name.parse().unwrap(), 2)]);
    let inits = BTreeSet::from(["load".to_owned()]);
    let pod = NodePod {
        key: PodKey::new("ns", "a"),
        admitted,
        names,
        inits,
        requested: BTreeMap::new(),
        assigned: Vec::new(),
    };
    NodePods::from([(PodUid::new("a-uid"), pod)])
}

/// The kubelet admits `a`: `load` gets both devices, and `main` the first of them, which is the only one that is ever
/// listed.
fn admit(scene: &mut Scene) {
    admit_with(scene, ONE, ["MIG-1", "MIG-2"]);
}

fn admit_with(scene: &mut Scene, name: &str, devices: [&str; 2]) {
    let name = name.parse::<ResourceName>().unwrap();
    for ids in [&devices[..], &devices[..1]] {
        let now = scene.tick();
        scene.node.on_allocated(name, ids.iter().copied().map(DeviceId::new).collect(), now);
    }
    let holder = Holder { namespace: "ns".into(), pod: "a".into(), container: "main".into() };
    scene.held.insert(DeviceId::new(devices[0]), Held { name, holder });
    let recorded = [("load", devices[0]), ("load", devices[1]), ("main", devices[0])];
    scene.recorded = Ok(recorded.map(|(container, device)| entry("a-uid", container, name, device)).to_vec());
    scene.list_holders();
}

/// An entry of the kubelet's checkpoint.
fn entry(uid: &str, container: &str, name: ResourceName, device: &str) -> Recorded {
    let (container, device) = (container.to_owned(), DeviceId::new(device));
    Recorded { uid: PodUid::new(uid), container, name, device }
}

/// A node on which `a` was admitted a while ago.
fn admitted() -> Scene {
    let mut scene = Scene::new(&["H100-80GB"]);
    scene.want(spec());
    scene.settle();
    scene.node.on_pods(pods(false));
    admit(&mut scene);
    scene.node.on_pods(pods(true));
    scene.now += Duration::from_mins(1);
    scene.settle();
    scene
}

fn held_by<'s>(status: &'s GpuNodeStatus, id: &str) -> Option<(&'s str, &'s str)> {
    slice(status, id).holder.as_ref().map(|h| (h.pod.as_str(), h.container.as_str()))
}

#[test]
fn a_device_of_only_an_init_container_is_held_until_its_pod_ends() {
    let mut scene = admitted();
    let status = scene.settle();
    assert_eq!(held_by(&status, "s1"), Some(("a", "main")), "the kubelet's choice");
    assert_eq!(held_by(&status, "s2"), Some(("a", "load")), "by its checkpoint");
    assert_eq!(slice(&status, "s3").state, SliceState::Ready, "nothing of a's is free any more");
    assert_eq!(devices(&scene.kubelet), ["MIG-1", "MIG-2", "MIG-3"], "its containers may start again");
    // The ended pod's reservation still exists. What the pod held does not block another pod.
    scene.end_pods();
    let status = scene.settle();
    assert_eq!(held_by(&status, "s2"), None);
    assert_eq!(devices(&scene.kubelet), ["MIG-3"], "the next pod's is offered as before");
}

#[test]
fn an_init_containers_device_of_a_cut_off_pod_is_offered_only_after_an_observation() {
    let mut scene = admitted();
    scene.node.on_pod_cut_off(PodKey::new("ns", "a"), PodUid::new("a-uid"));
    scene.want(vec![wanted("s2", mig("1g.10gb", 1, 1), Some(("q", ONE)))]);
    scene.end_pods();
    assert_eq!(slice(&scene.settle(), "s2").ready_for, None);
    scene.observe();
    assert_eq!(slice(&scene.settle(), "s2").state, SliceState::Ready);
}

#[test]
fn an_allocation_is_held_while_its_pod_is_about_to_be_admitted() {
    let mut scene = Scene::new(&["H100-80GB"]);
    scene.want(spec());
    scene.settle();
    scene.node.on_pods(pods(false));
    admit(&mut scene);
    scene.recorded = Ok(Vec::new());
    scene.node.on_allocated(ONE.parse().unwrap(), vec![DeviceId::new("MIG-2")], scene.now);
    for _ in 0..5 {
        scene.now += Duration::from_secs(1);
        scene.list_holders();
        let status = scene.decide().status;
        assert_eq!(held_by(&status, "s2"), None, "whose it is is not known yet");
        assert!(
            scene.node.facts.account.is_held(&DeviceId::new("MIG-2")),
            "the kubelet may be about to write it"
        );
    }
}

#[test]
fn a_restarted_agent_knows_what_init_containers_hold() {
    let mut scene = admitted();
    scene.settle();
    scene.restart_agent();
    scene.node.on_pods(pods(true));
    scene.want(spec());
    let status = scene.settle();
    assert_eq!(held_by(&status, "s2"), Some(("a", "load")));
    assert_eq!(slice(&status, "s3").state, SliceState::Ready);
}

#[test]
fn an_init_containers_device_stays_if_its_reservation_is_lost() {
    for restarts in [false, true] {
        let mut scene = admitted();
        // Somebody deletes the GpuNode: the new one's spec is empty, and then a big slice is desired.
        let big = wanted("s9", mig("7g.80gb", 0, 8), Some(("c", "nvidia.com/mig-7g.80gb")));
        if restarts {
            scene.restart_agent();
            scene.node.on_pods(pods(true));
        }
        scene.want(vec![big]);
        let status = scene.settle();
        assert!(scene.places().contains(&"1g.10gb at 1:1".to_owned()), "{:?}", scene.places());
        let of_it = |s: &&kerf_core::contract::SliceStatus| s.device == Some(DeviceId::new("MIG-2"));
        let kept = status.slices.iter().find(of_it).unwrap();
        assert_eq!(
            (kept.state, kept.holder.as_ref().unwrap().container.as_str()),
            (SliceState::Held, "load")
        );
        scene.now += Duration::from_secs(2);
        scene.end_pods();
        let status = scene.settle();
        assert_eq!(slice(&status, "s9").state, SliceState::Ready, "its pod has ended");
    }
}

#[test]
fn an_init_containers_device_stays_if_another_pod_gets_a_similar_one() {
    let mut scene = admitted();
    // The reservation is lost, and the kubelet allocates a slice of the same name to a pod that it does not list yet.
    let in_its_place = mig("1g.10gb+me", 1, 1);
    scene.want(vec![wanted("s9", in_its_place, Some(("c", "nvidia.com/mig-1g.10gb.me")))]);
    let now = scene.tick();
    scene.node.on_allocated(ONE.parse().unwrap(), vec![DeviceId::new("MIG-3")], now);
    scene.settle();
    assert!(scene.places().contains(&"1g.10gb at 1:1".to_owned()), "{:?}", scene.places());
}

#[test]
fn a_namesake_of_a_pod_that_has_ended_holds_nothing() {
    let mut scene = admitted();
    let mut again = pods(false);
    let pod = again.remove(&PodUid::new("a-uid")).unwrap();
    scene.held.clear();
    scene.node.on_pods(NodePods::from([(PodUid::new("another"), pod)]));
    scene.list_holders();
    let status = scene.settle();
    assert_eq!(held_by(&status, "s2"), None);
}

#[test]
fn an_init_container_holds_its_device_without_a_reservation() {
    let mut scene = admitted();
    let mut slices = spec();
    slices[1].reservation = None;
    scene.want(slices);
    let status = scene.decide().status;
    assert_eq!(slice(&status, "s2").state, SliceState::Held);
    assert_eq!(held_by(&status, "s2"), Some(("a", "load")));
}

fn one_of(mut pods: NodePods) -> NodePods {
    pods.values_mut().flat_map(|pod| pod.names.values_mut()).for_each(|count| *count = 1);
    pods
}

/// `a` has reserved `MIG-2`. Its init container holds `MIG-1`, which the kubelet had just freed for it. The agent has
/// learned of `a` before the kubelet's request, or after it.
fn with_anothers(heard_before: bool) -> Scene {
    let mut scene = Scene::new(&["H100-80GB"]);
    let of_z = wanted("s1", mig("1g.10gb", 0, 1), Some(("z", ONE)));
    scene.want(vec![of_z, staged("s2", 1, "load")]);
    scene.settle();
    scene.allocate("z", ONE, "MIG-1");
    assert_eq!(slice(&scene.settle(), "s2").state, SliceState::Ready);
    let lists = scene.decide().lists;
    let held: Vec<_> = lists[&ONE.parse().unwrap()].iter().map(|d| d.held).collect();
    assert_eq!(held, [true, false], "the list marks the held one, so that the kubelet prefers the other");
    if heard_before {
        scene.node.on_pods(pods(false));
    }
    let now = scene.tick();
    scene.node.on_allocated(ONE.parse().unwrap(), vec![DeviceId::new("MIG-1")], now);
    scene.held.clear();
    scene.recorded = Ok(vec![entry("a-uid", "load", ONE.parse().unwrap(), "MIG-1")]);
    scene.node.on_pods(one_of(pods(false)));
    scene.list_holders();
    scene.node.on_pods(one_of(pods(true)));
    // `z` has ended, and its reservation is gone.
    scene.want(vec![staged("s2", 1, "load")]);
    scene.now += Duration::from_mins(1);
    scene.settle();
    scene
}

#[test]
fn an_init_containers_other_device_than_the_reserved_one_stays_until_the_pod_ends() {
    for (heard_before, restarts) in [(true, false), (false, false), (true, true)] {
        let mut scene = with_anothers(heard_before);
        let in_its_place = wanted("s9", mig("1g.10gb+me", 0, 1), Some(("c", "nvidia.com/mig-1g.10gb.me")));
        let spec = vec![staged("s2", 1, "load"), in_its_place];
        if restarts {
            scene.settle();
            scene.start_agent();
            scene.node.on_registration(Ok(scene.node.resource_names()));
            scene.node.on_pods(pods(true));
            scene.acknowledge();
            scene.list_holders();
        }
        scene.want(spec);
        scene.now += Duration::from_mins(1);
        scene.observe();
        scene.settle();
        assert!(scene.places().contains(&"1g.10gb at 0:1".to_owned()), "{:?}", scene.places());
        scene.end_pods();
        assert_eq!(slice(&scene.settle(), "s9").state, SliceState::Ready);
    }
}

const FOUR: &str = "nvidia.com/gpu-4gb";

/// Two MPS shares for `a`; only its init container holds the second.
fn shares() -> Vec<WantedSlice> {
    let shares = [("s1", "main"), ("s2", "load")].map(|(id, container)| {
        let mut slice = wanted(id, Shape::mps(SizeGb(4)), Some(("a", FOUR)));
        let reservation = slice.reservation.as_mut().unwrap();
        reservation.container = container.to_owned();
        slice
    });
    shares.to_vec()
}

/// A node without MIG on which `a` was admitted a while ago.
fn sharing(settings: Settings) -> Scene {
    let mut scene = Scene::with_settings(FakeGpus::new(&["T4-16GB"]), settings);
    scene.node.on_conflicts(Vec::new(), scene.now);
    scene.want(shares());
    scene.settle();
    let limit = scene.node.wanted_daemons().get(&uuid(0)).map(|daemon| daemon.limit);
    let serving = limit.map(|limit| (uuid(0), Daemon::Serving { generation: 1, limit, threads: 100 }));
    scene.node.on_daemons(serving.into_iter().collect());
    scene.settle();
    scene.node.on_pods(pods_of(FOUR, false));
    admit_with(&mut scene, FOUR, ["GPU-0::1", "GPU-0::2"]);
    scene.node.on_pods(pods_of(FOUR, true));
    scene.now += Duration::from_mins(1);
    scene.settle();
    scene
}

/// The agent restarts, and reads the pods and what the kubelet lists.
fn come_back(scene: &mut Scene) {
    scene.start_agent();
    scene.node.on_registration(Ok(scene.node.resource_names()));
    scene.node.on_pods(pods_of(FOUR, true));
    scene.acknowledge();
    scene.list_holders();
}

#[test]
fn a_share_of_only_an_init_container_survives_a_restart_even_if_not_wanted() {
    // The ledger loses it before the restart or after it. The agent has its checkpoint, or only the kubelet's.
    for (seen, with_record) in [(true, true), (false, true), (true, false)] {
        let mut scene = sharing(Settings::default());
        if seen {
            scene.want(Vec::new());
        }
        scene.settle();
        if !with_record {
            scene.record = Restored::default();
        }
        come_back(&mut scene);
        let whole = wanted("s9", Shape::Whole { size_gb: SizeGb(15) }, Some(("c", "nvidia.com/gpu")));
        scene.want(vec![whole]);
        let status = scene.settle();
        assert_eq!(slice(&status, "s2").state, SliceState::Held, "{seen} {with_record}");
        assert_eq!(held_by(&status, "s2"), Some(("a", "load")), "the extender counts it");
        assert_eq!(slice(&status, "s9").device, None);
        scene.now += Duration::from_secs(2);
        scene.end_pods();
        assert_eq!(slice(&scene.settle(), "s9").state, SliceState::Ready, "its pod has ended");
    }
}

#[test]
fn an_init_containers_mps_daemon_continues_while_conflicts_are_being_detected() {
    let mut scene =
        sharing(Settings { mps: Some("/mps".into()), detect_conflicts: true, ..Settings::default() });
    // Pretend that `main` holds a share of another GPU, so that no listed share needs the daemon.
    scene.held.clear();
    let daemons =
        |scene: &mut Scene| scene.decide().slices.map(|kept| kept.daemons.into_keys().collect::<Vec<_>>());
    assert_eq!(daemons(&mut scene), Some(vec![uuid(0)]));
    scene.settle();
    come_back(&mut scene);
    scene.want(shares());
    assert_eq!(daemons(&mut scene), Some(vec![uuid(0)]), "a daemon that ends takes its clients along");
}

#[test]
fn a_share_without_a_holder_ends_after_a_restart() {
    let mut scene = sharing(Settings::default());
    scene.held.clear();
    scene.start_agent();
    scene.node.on_registration(Ok(scene.node.resource_names()));
    scene.node.on_pods(NodePods::new());
    scene.acknowledge();
    scene.list_holders();
    scene.want(Vec::new());
    assert!(scene.settle().slices.is_empty());
    assert_eq!(scene.record.shares, Some(Shares::new()));
}

/// A pod to which NVIDIA's device plugin gave two GPUs; only its init container holds the second.
fn with_pod_of_plugin() -> Scene {
    let mut scene = Scene::new(&["T4-16GB", "T4-16GB", "T4-16GB"]);
    let holder = Holder { namespace: "ns".into(), pod: "a".into(), container: "main".into() };
    let name: ResourceName = GPU.parse().unwrap();
    scene.held.insert(DeviceId::new("GPU-0"), Held { name, holder });
    scene.recorded = Ok(["GPU-0", "GPU-1"].map(|device| entry("a-uid", "load", name, device)).to_vec());
    scene.restart_agent();
    scene.node.on_pods(pods_of(GPU, true));
    scene
}

const GPU: &str = "nvidia.com/gpu";
const WHOLE: Shape = Shape::Whole { size_gb: SizeGb(15) };

#[test]
fn an_init_containers_gpu_of_nvidias_device_plugin_is_occupied_until_its_pod_ends() {
    let mut scene = with_pod_of_plugin();
    scene.want(vec![wanted_of(1, "s1", WHOLE, Some(("b", GPU)))]);
    for _ in 0..2 {
        let status = scene.settle();
        assert!(slice(&status, "s1").device.is_none(), "it may be a's: {:?}", status.slices);
        let held = status.slices.iter().find(|s| s.device == Some(DeviceId::new("GPU-1"))).unwrap();
        assert_eq!(
            (held.state, held.holder.as_ref().unwrap().container.as_str()),
            (SliceState::Held, "load")
        );
        // The next process reports the same.
        scene.restart_agent();
        scene.node.on_pods(pods_of(GPU, true));
        scene.want(vec![wanted_of(1, "s1", WHOLE, Some(("b", GPU)))]);
    }
    scene.end_pods();
    let status = scene.settle();
    assert_eq!((slice(&status, "s1").state, status.slices.len()), (SliceState::Ready, 1));
}

#[test]
fn an_ended_foreign_pod_frees_its_gpu_and_an_unlisted_init_container_keeps_its_own() {
    let mut scene = with_pod_of_plugin();
    let holder = Holder { namespace: "ns".into(), pod: "c".into(), container: "main".into() };
    scene.held.insert(DeviceId::new("GPU-2"), Held { name: GPU.parse().unwrap(), holder });
    scene.want(vec![wanted_of(2, "s1", WHOLE, Some(("b", GPU)))]);
    scene.list_holders();
    scene.settle();
    scene.free("GPU-2");
    let status = scene.settle();
    assert_eq!(slice(&status, "s1").state, SliceState::Ready, "{:?}", status.slices);
    assert!(status.slices.iter().any(|s| s.device == Some(DeviceId::new("GPU-1"))), "and keeps the other");
}

#[test]
fn a_pod_swaps_reservations_with_the_pod_whose_init_container_holds_its_slice() {
    let mut scene = with_anothers(true);
    // The leader reserved the slice before the kubelet's report showed that it was taken.
    scene.want(vec![wanted("s1", mig("1g.10gb", 0, 1), Some(("w", ONE))), staged("s2", 1, "load")]);
    let status = scene.settle();
    let reported = slice(&status, "s1");
    assert_eq!(
        (reported.state, reported.ready_for.as_ref().map(PodUid::as_str)),
        (SliceState::Held, Some("a-uid"))
    );
    assert_eq!(held_by(&status, "s1"), Some(("a", "load")));
    assert_eq!(slice(&status, "s2").ready_for.as_ref().map(PodUid::as_str), Some("w-uid"));
}

#[test]
fn the_last_readable_checkpoint_of_the_kubelet_stays_in_force() {
    let mut scene = admitted();
    scene.recorded = Err("the checkpoint is corrupt".into());
    scene.list_holders();
    // What an init container gets meanwhile stays with its pod, because no source shows that it does not hold it.
    let others = wanted("s9", mig("1g.10gb", 3, 1), None);
    let mut wanted = spec();
    wanted.push(others);
    scene.want(wanted);
    let status = scene.settle();
    assert_eq!(held_by(&status, "s2"), Some(("a", "load")));
    assert_eq!(slice(&status, "s9").state, SliceState::Idle, "the agent made it, and no pod got it");
    let failing = failing(&status, Condition::ALLOCATIONS_KNOWN);
    assert_eq!(failing.as_deref(), Some("the checkpoint is corrupt"));
    assert!(scene.decide().next.due_at.is_some(), "it is read again");
    scene.end_pods();
    let status = scene.settle();
    assert_eq!((held_by(&status, "s2"), slice(&status, "s3").state), (None, SliceState::Ready));
}

#[test]
fn unaccounted_devices_are_occupied_if_the_kubelets_checkpoint_was_never_read() {
    let mut scene = admitted();
    scene.settle();
    let read = std::mem::replace(&mut scene.recorded, Err("there is none".into()));
    scene.restart_agent();
    scene.node.on_pods(pods(true));
    // The reservation is lost, and another slice is in use without a holder.
    let of_others = [("s3", 2, "b"), ("s4", 3, "c")];
    let of_others = of_others.map(|(id, at, pod)| wanted(id, mig("1g.10gb", at, 1), Some((pod, ONE))));
    scene.want([staged("s1", 0, "main")].into_iter().chain(of_others).collect());
    let status = scene.settle();
    let of_it = |s: &&kerf_core::contract::SliceStatus| s.device == Some(DeviceId::new("MIG-2"));
    assert_eq!(status.slices.iter().find(of_it).map(|s| s.state), Some(SliceState::Held));
    assert_eq!(slice(&status, "s3").ready_for, None, "it was there before, and its pod is not bound");
    assert_eq!(slice(&status, "s4").state, SliceState::Ready, "the agent made it");
    assert!(failing(&status, Condition::ALLOCATIONS_KNOWN).is_some());
    scene.recorded = read;
    scene.end_pods();
    let status = scene.settle();
    assert_eq!(failing(&status, Condition::ALLOCATIONS_KNOWN), None);
    assert!(status.slices.iter().find(of_it).is_none_or(|s| s.state == SliceState::Idle), "{status:?}");
    assert_eq!(slice(&status, "s3").state, SliceState::Ready);
}

#[test]
fn nothing_starts_beside_an_earlier_share_if_the_kubelets_checkpoint_was_never_read() {
    // The GPU answers before the kubelet, or after it.
    for gpu_is_late in [false, true] {
        let mut scene = sharing(Settings::default());
        scene.held.clear();
        scene.settle();
        scene.recorded = Err("there is none".into());
        if gpu_is_late {
            scene.node = Node::new(scene.settings.clone());
            scene.node.restore(&scene.record, scene.now);
            scene.node.on_pods(pods_of(FOUR, true));
            scene.list_holders();
            scene.decide();
            scene.observe();
            scene.node.on_registration(Ok(scene.node.resource_names()));
            scene.acknowledge();
        } else {
            come_back(&mut scene);
        }
        let slice_of_time = Shape::share(Kind::TimeSlicing, SizeGb(4)).unwrap();
        scene.want(vec![wanted("s9", slice_of_time, Some(("c", "nvidia.com/gpu-4gb.shared")))]);
        let status = scene.settle();
        assert_eq!(slice(&status, "s2").state, SliceState::Held, "{gpu_is_late}");
        assert_eq!(slice(&status, "s9").device, None, "{gpu_is_late}");
        scene.recorded = Ok(Vec::new());
        scene.end_pods();
        assert_eq!(slice(&scene.settle(), "s9").state, SliceState::Ready, "it is read again");
    }
}

#[test]
fn a_pod_that_was_recreated_while_the_kubelet_was_down_keeps_its_device() {
    let mut scene = admitted();
    // A StatefulSet's pod: the old one is deleted by force, and the kubelet still lists it when it has admitted the new
    // one.
    scene.node.on_pod_cut_off(PodKey::new("ns", "a"), PodUid::new("a-uid"));
    let now = scene.tick();
    scene.node.on_pod_left(PodKey::new("ns", "a"), PodUid::new("a-uid"), now);
    let again = one_of(pods(true)).into_values().map(|pod| (PodUid::new("again"), pod)).collect();
    scene.node.on_pods(again);
    let name = ONE.parse().unwrap();
    let held = scene.held.remove(&DeviceId::new("MIG-1")).unwrap();
    scene.held.insert(DeviceId::new("MIG-3"), held);
    scene.recorded = Ok(vec![entry("again", "main", name, "MIG-3")]);
    scene.list_holders();
    assert_eq!(scene.node.facts.account.look(scene.now), (false, None), "no holder is missing");
    // A kubelet that was just started lists no pod.
    scene.held.clear();
    scene.list_holders();
    assert!(scene.node.facts.account.is_held(&DeviceId::new("MIG-3")));
    assert!(!scene.node.facts.account.is_held(&DeviceId::new("MIG-1")));
}
