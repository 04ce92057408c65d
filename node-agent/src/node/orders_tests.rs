//! Tests the agent's decisions on a leader's orders.

use super::tests::{ONE, Scene, admitted, mig, slice};
use super::*;
use crate::gpu::GpuInstance;
use crate::gpu::fake::uuid;
use kerf_core::contract::{GpuNodeStatus, SliceReservation, SliceState};
use kerf_core::ledger::{Found, Order, OrderKind, Owner, Proposal, Rejection};
use kerf_core::names::PodKey;
use kerf_core::packing::{Placed, Source};
use std::collections::BTreeMap;

const EPOCH: u64 = 7;

/// A node whose agent has read its policy, and follows orders.
pub(super) fn scene() -> Scene {
    let mut scene = Scene::new(&["H100-80GB"]);
    scene.record.is_own = true;
    scene.restart_agent();
    scene.read_gpu_node();
    scene.settle();
    scene
}

fn uid(pod: &str) -> PodUid {
    PodUid::new(format!("{pod}-uid"))
}

/// A slice of one seventh at this place for a pod.
fn reserve_from(pod: &str, start: u8, source: Source) -> OrderKind {
    let place = Placed {
        container: "main".to_owned(),
        resource: ONE.parse().unwrap(),
        alone: false,
        gpu: uuid(0),
        shape: mig("1g.10gb", start, 1),
        source,
    };
    let owner = Owner { uid: uid(pod), key: PodKey::new("ns", pod) };
    OrderKind::Reserve(Proposal { owner, places: vec![place] })
}

pub(super) fn reserve(pod: &str, start: u8) -> OrderKind {
    reserve_from(pod, start, Source::Cut(Vec::new()))
}

fn mark(pod: &str, attempt: u64) -> OrderKind {
    OrderKind::Mark { uid: uid(pod), attempt }
}

pub(super) fn order(scene: &mut Scene, kind: OrderKind) -> Reply {
    let now = scene.tick();
    scene.node.on_order(&Order { epoch: EPOCH, kind }, now)
}

fn rejection(reply: Reply) -> Rejection {
    reply.answer.unwrap_err()
}

fn reported<'s>(status: &'s GpuNodeStatus, id: &str) -> Option<&'s SliceReservation> {
    slice(status, id).reservation.as_ref()
}

/// The desired slices, with their pods.
fn desired(scene: &Scene) -> Vec<(String, Option<String>)> {
    let slices = scene.node.desired().iter();
    let pod = |slice: &kerf_core::contract::WantedSlice| slice.reservation.as_ref().map(|r| r.pod.clone());
    slices.map(|slice| (slice.id.to_string(), pod(slice))).collect()
}

/// A node with a pod `a` that is bound to it and holds its slice.
fn held() -> Scene {
    let mut scene = scene();
    order(&mut scene, reserve("a", 3)).answer.unwrap();
    scene.settle();
    order(&mut scene, mark("a", 1)).answer.unwrap();
    scene.node.on_pods(admitted("a"));
    scene.decide();
    scene.allocate("a", ONE, "MIG-1");
    let status = scene.settle();
    assert_eq!(slice(&status, "s1").state, SliceState::Held);
    scene
}

#[test]
fn a_pod_keeps_its_ordered_slice_until_it_ends() {
    let mut scene = scene();
    let reply = order(&mut scene, reserve("a", 3));
    assert_eq!(reply.answer.unwrap().lifetime, Duration::from_mins(1));
    assert_eq!(reply.reserved, Some(uid("a")), "it must be on the disk");
    assert_eq!(rejection(order(&mut scene, mark("a", 1))), Rejection::NotReady);
    let decision = scene.decide();
    assert_eq!(decision.record.ledger.desired.slices.len(), 1);
    assert_eq!(reported(&decision.status, "s1").map(|r| (r.uid.clone(), r.binding)), Some((uid("a"), false)));
    scene.run(decision.step.unwrap());
    let status = scene.settle();
    assert_eq!(scene.places(), ["1g.10gb at 3:1"]);
    assert_eq!(slice(&status, "s1").ready_for, Some(uid("a")));

    order(&mut scene, mark("a", 1)).answer.unwrap();
    assert!(reported(&scene.decide().status, "s1").unwrap().binding);
    let release = OrderKind::Release { uid: uid("a"), why: "test".to_owned() };
    assert_eq!(rejection(order(&mut scene, release)), Rejection::BindingOpen);
    scene.now += Duration::from_secs(70);
    scene.decide();
    assert_eq!(desired(&scene), [("s1".to_owned(), Some("a".to_owned()))], "its Binding may be made");

    scene.node.on_pods(admitted("a"));
    scene.decide();
    scene.allocate("a", ONE, "MIG-1");
    scene.now += Duration::from_hours(1);
    let status = scene.settle();
    assert_eq!(slice(&status, "s1").state, SliceState::Held);
    assert!(!reported(&status, "s1").unwrap().binding);

    scene.end_pods();
    let status = scene.settle();
    assert_eq!((slice(&status, "s1").state, reported(&status, "s1")), (SliceState::Idle, None));
    assert_eq!(scene.places(), ["1g.10gb at 3:1"], "it stays as idle capacity");
}

#[test]
fn an_idle_slice_is_reused_or_gives_way() {
    let mut scene = held();
    scene.end_pods();
    scene.settle();
    order(&mut scene, reserve_from("b", 3, Source::Idle("s1".into()))).answer.unwrap();
    let status = scene.settle();
    assert_eq!(slice(&status, "s1").ready_for, Some(uid("b")));
    assert!(matches!(rejection(order(&mut scene, reserve("c", 3))), Rejection::Taken(_)));
    let taking = reserve_from("c", 3, Source::Cut(vec!["s1".into()]));
    assert!(matches!(rejection(order(&mut scene, taking)), Rejection::Taken(_)));
    assert_eq!(desired(&scene), [("s1".to_owned(), Some("b".to_owned()))]);
}

#[test]
fn orders_that_arrive_together_see_each_other() {
    let mut scene = scene();
    order(&mut scene, reserve("a", 3)).answer.unwrap();
    assert!(matches!(rejection(order(&mut scene, reserve("b", 3))), Rejection::Taken(_)));
    order(&mut scene, reserve("b", 4)).answer.unwrap();
    scene.settle();
    assert_eq!(scene.places().len(), 2);
}

#[test]
fn a_reservation_that_is_not_renewed_expires() {
    let mut scene = scene();
    order(&mut scene, reserve("a", 3)).answer.unwrap();
    scene.settle();
    scene.now += Duration::from_secs(40);
    assert_eq!(order(&mut scene, reserve("a", 0)).reserved, Some(uid("a")), "it keeps its place");
    scene.now += Duration::from_secs(40);
    let due_at = scene.decide().next.due_at.unwrap();
    assert!(due_at <= scene.now + Duration::from_secs(20), "the end is due by itself");
    assert_eq!(desired(&scene)[0].1.as_deref(), Some("a"));
    scene.now += Duration::from_secs(20);
    scene.decide();
    assert_eq!(desired(&scene), [("s1".to_owned(), None)]);
    let status = scene.settle();
    assert_eq!(slice(&status, "s1").ready_for, None);
}

#[test]
fn after_a_restart_pods_that_are_not_seen_here_are_looked_up() {
    let mut scene = scene();
    order(&mut scene, reserve("a", 3)).answer.unwrap();
    scene.settle();
    // A mark is not on the disk.
    order(&mut scene, mark("a", 1)).answer.unwrap();
    scene.settle();
    scene.restart_agent();
    scene.read_gpu_node();
    let status = scene.settle();
    assert!(reported(&status, "s1").unwrap().binding, "its Binding may have been sent");
    scene.now += Duration::from_secs(30);
    let looked_up: BTreeMap<_, _> = [(uid("a"), PodKey::new("ns", "a"))].into();
    assert_eq!(scene.decide().pods.look_up, looked_up, "it may be gone");
    let asked = scene.tick();
    scene.node.on_looked_up(&uid("a"), asked, Found::Unbound);
    assert!(reported(&scene.settle(), "s1").unwrap().binding, "it may still be under way");
    assert_eq!(scene.decide().pods.look_up, BTreeMap::new());
    scene.now += Duration::from_secs(81);
    assert_eq!(scene.decide().pods.look_up, looked_up);
    let asked = scene.tick();
    scene.node.on_looked_up(&uid("a"), asked, Found::Unknown);
    scene.decide();
    assert_eq!(desired(&scene)[0].1.as_deref(), Some("a"), "an error says nothing");
    scene.node.on_looked_up(&uid("a"), asked, Found::Gone);
    scene.decide();
    assert_eq!(desired(&scene), [("s1".to_owned(), None)]);
}

#[test]
fn a_held_slice_stays_reserved_over_a_restart() {
    let mut scene = held();
    scene.settle();
    scene.start_agent();
    scene.node.on_registration(Ok(scene.node.resource_names()));
    scene.list_holders();
    scene.node.on_pods(admitted("a"));
    scene.read_gpu_node();
    scene.acknowledge();
    let status = scene.settle();
    assert_eq!(slice(&status, "s1").state, SliceState::Held);
    assert!(!reported(&status, "s1").unwrap().binding);
    scene.now += Duration::from_hours(1);
    assert_eq!(scene.decide().pods.look_up, BTreeMap::new());
    assert_eq!(desired(&scene)[0].1.as_deref(), Some("a"));
}

/// A reservation that is not on the disk had no answer, and is lost. Once it is on the disk it stays with its pod, its
/// slice is cut once, and no other pod gets the place.
#[test]
fn an_agent_may_restart_at_each_step_of_a_reservation() {
    const STEPS: [&str; 7] = ["accepted", "recorded", "cut", "ready", "marked", "bound", "allocated"];
    for (done, name) in STEPS.into_iter().enumerate() {
        let mut scene = scene();
        order(&mut scene, reserve("a", 3)).answer.unwrap();
        if done >= 1 {
            let step = scene.decide().step.unwrap();
            if done >= 2 {
                scene.run(step);
            }
        }
        if done >= 3 {
            scene.settle();
        }
        if done >= 4 {
            order(&mut scene, mark("a", 1)).answer.unwrap();
        }
        let pods = if done >= 5 { admitted("a") } else { NodePods::new() };
        if done >= 5 {
            scene.node.on_pods(pods.clone());
            scene.decide();
        }
        if done >= 6 {
            scene.allocate("a", ONE, "MIG-1");
            scene.settle();
        }

        scene.start_agent();
        scene.node.on_registration(Ok(scene.node.resource_names()));
        scene.list_holders();
        scene.node.on_pods(pods);
        scene.read_gpu_node();
        scene.acknowledge();
        let status = scene.settle();
        let next = order(&mut scene, reserve("b", 3)).answer;
        if done == 0 {
            assert!(next.is_ok(), "{name}: {next:?}");
            assert_eq!(desired(&scene), [("s1".to_owned(), Some("b".to_owned()))], "{name}");
            continue;
        }
        assert!(matches!(next, Err(Rejection::Taken(_))), "{name}: {next:?}");
        assert_eq!(desired(&scene), [("s1".to_owned(), Some("a".to_owned()))], "{name}");
        assert_eq!(scene.places(), ["1g.10gb at 3:1"], "{name}");
        // A pod that is not visible here may have a Binding under way, whatever was marked.
        assert_eq!(reported(&status, "s1").unwrap().binding, done < 5, "{name}");
        let made = slice(&status, "s1");
        if done == 6 {
            assert_eq!(made.state, SliceState::Held, "{name}");
        } else {
            assert_eq!(made.ready_for, Some(uid("a")), "{name}");
        }
    }
}

#[test]
fn nothing_is_reserved_while_facts_are_unknown_and_other_orders_are_followed() {
    let mut scene = held();
    scene.node.on_conflicts(vec!["NVIDIA's MIG manager is at work".to_owned()], scene.now);
    let Rejection::Closed(why) = rejection(order(&mut scene, reserve("b", 0))) else { panic!() };
    assert!(why.contains("MIG manager"), "{why}");
    let outcome = OrderKind::Outcome { uid: uid("a"), attempt: 1, bound: true };
    order(&mut scene, outcome).answer.unwrap();

    let mut fresh = Scene::new(&["H100-80GB"]);
    fresh.start_agent();
    assert!(matches!(rejection(order(&mut fresh, reserve("a", 0))), Rejection::Closed(_)));
}

#[test]
fn orders_of_an_older_epoch_are_rejected() {
    let mut scene = scene();
    order(&mut scene, reserve("a", 3)).answer.unwrap();
    let now = scene.tick();
    let older = Order { epoch: EPOCH - 1, kind: reserve("b", 4) };
    assert_eq!(rejection(scene.node.on_order(&older, now)), Rejection::OldEpoch);
    assert_eq!(scene.decide().record.ledger.epoch, EPOCH);
}

/// A node without a leader continues with what it has, and only reports it.
#[test]
fn a_node_without_a_leader_is_not_ready() {
    use kerf_core::contract::Condition;
    let mut scene = scene();
    scene.node.health.forget_leader();
    let reasons = |scene: &mut Scene| {
        let status = scene.decide().status;
        [Condition::READY, Condition::CONNECTED].map(|kind| status.condition(kind).unwrap().reason.clone())
    };
    assert_eq!(reasons(&mut scene), ["NotConnected", "NotConnected"]);
    scene.node.on_leader(Some(EPOCH), scene.now);
    assert_eq!(reasons(&mut scene), ["Serving", "LeaderConnected"]);
    let older = Order { epoch: EPOCH - 1, kind: reserve("b", 4) };
    assert_eq!(rejection(scene.node.on_order(&older, scene.now)), Rejection::OldEpoch, "it has the leader's");
    let lost = scene.now;
    scene.node.on_leader(None, lost);
    assert_eq!(scene.decide().next.due_at, Some(lost + Duration::from_mins(1)));
    scene.now += Duration::from_secs(59);
    assert_eq!(reasons(&mut scene), ["Serving", "LeaderConnected"], "another may lead soon");
    scene.now += Duration::from_secs(1);
    assert_eq!(reasons(&mut scene), ["NotConnected", "NotConnected"]);
    assert_eq!(scene.node.closed(), None, "who leads is no matter to the ledger");
    scene.node.on_leader(Some(EPOCH + 1), scene.now);
    assert_eq!(reasons(&mut scene), ["Serving", "LeaderConnected"]);
}

#[test]
fn a_reservation_that_cannot_be_recorded_is_removed_unless_it_is_marked() {
    let mut scene = scene();
    order(&mut scene, reserve("a", 3)).answer.unwrap();
    scene.settle();
    order(&mut scene, mark("a", 1)).answer.unwrap();
    order(&mut scene, reserve("b", 4)).answer.unwrap();
    let (now, both) = (scene.tick(), [uid("a"), uid("b")]);
    scene.node.on_unrecorded_reservations(both.iter(), "the disk is full", now);
    let pods: Vec<_> = desired(&scene).into_iter().map(|(_, pod)| pod).collect();
    assert_eq!(pods, [Some("a".to_owned()), None]);
    let status = scene.decide().status;
    let condition = status.condition(kerf_core::contract::Condition::SPEC_REACHED).unwrap();
    assert!(condition.message.contains("the disk is full"), "{condition:?}");
    assert_eq!(scene.node.closed(), None, "marks go on");
}

#[test]
fn idle_slices_are_kept_as_the_policy_says_without_an_order() {
    let mut scene = scene();
    let warm = r#"{"warm": [{"resource": "nvidia.com/mig-1g.10gb", "count": 2}]}"#;
    scene.policy = serde_json::from_str(warm).unwrap();
    scene.read_gpu_node();
    let decision = scene.decide();
    assert!(decision.next.due_at.is_some_and(|due_at| due_at <= scene.now), "the next decision cuts");
    scene.settle();
    assert_eq!(scene.places().len(), 2);
    scene.policy = serde_json::from_str(r#"{"gpus": [{"computeInstances": true}]}"#).unwrap();
    scene.read_gpu_node();
    scene.settle();
    assert_eq!(scene.places().len(), 2, "the policy allows them still");
}

/// A pod in the API server.
#[derive(Debug, Clone, Default)]
struct Pod {
    /// The last mark that the agent has answered.
    marked: Option<(u64, Instant)>,
    bound: bool,
    ended: bool,
}

/// An agent, its leader, its kubelet and the API server, whose watch may be late.
struct World {
    scene: Scene,
    pods: Vec<Pod>,
    attempts: u64,
}

impl World {
    fn name(number: usize) -> String {
        format!("p{number}")
    }

    fn number(&self, choice: u8) -> usize {
        usize::from(choice) % self.pods.len()
    }

    /// The leader proposes a place for a pod, with the idle slice there or a new cut.
    fn reserve(&mut self, choice: u8) {
        if choice.is_multiple_of(2) || self.pods.is_empty() {
            self.pods.push(Pod::default());
        }
        let number = self.pods.len() - 1;
        let start = choice / 2 % 7;
        let shape = mig("1g.10gb", start, 1);
        let slices = &self.scene.node.desired();
        let there = slices.iter().find(|slice| slice.shape == shape).map(|slice| slice.id.clone());
        let source = there.map_or_else(|| Source::Cut(Vec::new()), Source::Idle);
        // The agent may reject it.
        let _reply = order(&mut self.scene, reserve_from(&Self::name(number), start, source));
    }

    fn mark(&mut self, choice: u8) {
        let number = self.number(choice);
        self.attempts += 1;
        let reply = order(&mut self.scene, mark(&Self::name(number), self.attempts));
        if reply.answer.is_ok() {
            self.pods[number].marked = Some((self.attempts, self.scene.now));
        }
    }

    /// The API server makes a Binding, or rejects it for good.
    fn bind(&mut self, choice: u8) {
        let (number, now) = (self.number(choice), self.scene.now);
        let pod = &mut self.pods[number];
        let Some((attempt, at)) = pod.marked.take() else { return };
        let is_in_time = now.duration_since(at) < Duration::from_secs(80);
        if is_in_time && !pod.ended && !choice.is_multiple_of(3) {
            pod.bound = true;
        } else if !pod.bound {
            let outcome = OrderKind::Outcome { uid: uid(&Self::name(number)), attempt, bound: false };
            order(&mut self.scene, outcome).answer.unwrap();
        }
    }

    fn allocate(&mut self) {
        let status = self.scene.settle();
        for (number, pod) in self.pods.iter().enumerate().filter(|(_, pod)| pod.bound && !pod.ended) {
            let name = Self::name(number);
            let mut slices = status.slices.iter();
            let ready = |slice: &&kerf_core::contract::SliceStatus| {
                slice.ready_for == Some(uid(&name)) && slice.holder.is_none()
            };
            if let Some(device) = slices.find(ready).and_then(|slice| slice.device.clone()) {
                assert!(!pod.ended);
                self.scene.allocate(&name, ONE, device.as_str());
            }
        }
    }

    fn end(&mut self, choice: u8) {
        let number = self.number(choice);
        self.pods[number].ended = true;
        let name = Self::name(number);
        self.scene.held.retain(|_, held| held.holder.pod != name);
        self.scene.list_holders();
    }

    /// Brings the node's watch of pods up to date.
    fn watch(&mut self) {
        let mut here = NodePods::new();
        for (number, pod) in self.pods.iter().enumerate().filter(|(_, pod)| pod.bound) {
            let name = Self::name(number);
            if pod.ended {
                self.scene.node.on_pod_left(PodKey::new("ns", name.clone()), uid(&name), self.scene.now);
            } else {
                here.extend(admitted(&name));
            }
        }
        self.scene.node.on_pods(here);
    }

    /// Time passes, and look-ups are answered.
    fn pass(&mut self) {
        self.scene.now += Duration::from_secs(31);
        for looked_up in self.scene.decide().pods.look_up.into_keys() {
            let is_it = |number: &usize| uid(&Self::name(*number)) == looked_up;
            let number = (0..self.pods.len()).find(is_it).unwrap();
            let found = match &self.pods[number] {
                Pod { ended: true, .. } => Found::Gone,
                Pod { bound: true, .. } => Found::Here,
                Pod { .. } => Found::Unbound,
            };
            let asked = self.scene.now;
            self.scene.node.on_looked_up(&looked_up, asked, found);
        }
    }

    fn restart(&mut self) {
        self.scene.settle();
        self.scene.start_agent();
        self.scene.node.on_registration(Ok(self.scene.node.resource_names()));
        self.scene.read_gpu_node();
        self.scene.list_holders();
        self.watch();
        self.scene.acknowledge();
    }

    fn check(&self) {
        let slices = &self.scene.node.desired();
        for (number, _) in self.pods.iter().enumerate().filter(|(_, pod)| pod.bound && !pod.ended) {
            let its = slices.iter().filter_map(|slice| slice.reservation.as_ref());
            let its = its.filter(|reservation| reservation.uid == uid(&Self::name(number)));
            assert_eq!(its.count(), 1, "pod {number} is bound");
        }
        let places: BTreeSet<_> = slices.iter().filter_map(|slice| slice.shape.instance()).collect();
        assert_eq!(places.len(), slices.len(), "two slices have one place: {slices:?}");
        let gpus = self.scene.gpus.gpus();
        let there: Vec<_> =
            gpus.iter().flat_map(|gpu| &gpu.instances).flat_map(GpuInstance::devices).collect();
        for device in self.scene.held.keys() {
            assert!(there.iter().any(|(.., there)| *there == device), "{device} is held");
        }
    }
}

proptest::proptest! {
    #![proptest_config(proptest::test_runner::Config::with_cases(48))]

    /// Whatever the leader orders, the kubelet does and the watch lacks: bound pods have their places, and in the end
    /// no place stays taken.
    #[test]
    fn bound_pods_have_places_and_no_place_stays_taken(events in proptest::collection::vec((0_u8..9, 0_u8..255), 1..40)) {
        let mut world = World { scene: scene(), pods: Vec::new(), attempts: 0 };
        world.reserve(0);
        for (event, choice) in events {
            match event {
                0 | 1 => world.reserve(choice),
                2 => world.mark(choice),
                3 => world.bind(choice),
                4 => world.watch(),
                5 => world.allocate(),
                6 => world.end(choice),
                7 => world.pass(),
                _ => world.restart(),
            }
            world.scene.settle();
            world.check();
        }
        for number in 0..world.pods.len() {
            world.end(u8::try_from(number).unwrap());
        }
        world.watch();
        for _ in 0..8 {
            world.pass();
        }
        let left = world.scene.node.desired().iter().filter(|slice| slice.reservation.is_some());
        proptest::prop_assert_eq!(left.count(), 0);
    }
}
