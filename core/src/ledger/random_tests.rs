//! Random histories of a ledger: two leaders with outdated copies, messages that come late, twice or never, restarts,
//! and pods that are bound, deleted and bound elsewhere.

use super::*;
use crate::contract::{GpuRule, MigPart, NodePolicy, Shape, WantedSlice};
use crate::inventory::NodeInventory;
use crate::kind::Kind;
use crate::names::{GpuUuid, PodKey, PodUid};
use crate::packing::{Fleet, fit};
use crate::testing::{MIXED_REQUESTS as REQUESTS, SimulatedNode, request};
use crate::units::MemoryMib;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// The state of a pod in the API server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pod {
    Unbound,
    Here,
    Elsewhere,
    Gone,
}

struct Leader {
    epoch: u64,
    copy: NodeState,
}

/// A Binding that the API server may still make.
struct Posted {
    leader: usize,
    epoch: u64,
    pod: usize,
    attempt: u64,
    until: Moment,
}

struct World {
    node: SimulatedNode,
    gpus: Vec<(GpuUuid, MemoryMib)>,
    disk: Saved,
    now: Moment,
    leaders: [Leader; 2],
    pods: [Pod; REQUESTS.len()],
    orders: Vec<Order>,
    /// Attempts whose mark was answered, because the leader sees one answer of each.
    marked: BTreeSet<(u64, u64)>,
    bindings: Vec<Posted>,
    look_ups: Vec<(PodUid, Moment, Found)>,
    attempts: u64,
}

fn uid(pod: usize) -> PodUid {
    PodUid::new(format!("uid-{pod}"))
}

fn owner(pod: usize) -> Owner {
    Owner { uid: uid(pod), key: PodKey::new("default", format!("pod-{pod}")) }
}

fn pod(uid: &PodUid) -> usize {
    uid.as_str().strip_prefix("uid-").unwrap().parse().unwrap()
}

fn policy() -> NodePolicy {
    let mut rule = GpuRule { compute_instances: true, ..GpuRule::default() };
    rule.mig.time_slicing = Some(3.try_into().unwrap());
    NodePolicy { gpus: vec![rule], ..NodePolicy::default() }
}

impl World {
    fn new() -> Self {
        let node = SimulatedNode::new(&["H100-80GB", "T4-16GB"], policy(), Limits::default());
        let leader = |epoch| Leader { epoch, copy: node.state() };
        Self {
            disk: node.ledger.saved(),
            now: Moment::default(),
            leaders: [leader(1), leader(2)],
            pods: [Pod::Unbound; REQUESTS.len()],
            orders: Vec::new(),
            marked: BTreeSet::new(),
            bindings: Vec::new(),
            look_ups: Vec::new(),
            attempts: 0,
            gpus: node.state().status.gpus.iter().map(|gpu| (gpu.uuid.clone(), gpu.memory)).collect(),
            node,
        }
    }

    fn happens(&mut self, (event, first, second): (u8, usize, usize)) {
        let (leader, pod) = (first % self.leaders.len(), second % self.pods.len());
        let epoch = self.leaders[leader].epoch;
        match event {
            0..=3 => self.propose(leader, pod),
            4 | 5 => {
                self.attempts += 1;
                let attempt = self.attempts;
                self.orders.push(Order { epoch, kind: OrderKind::Mark { uid: uid(pod), attempt } });
            }
            6 => {
                let kind = OrderKind::Release { uid: uid(pod), why: String::new() };
                self.orders.push(Order { epoch, kind });
            }
            7..=12 if !self.orders.is_empty() => self.deliver(first % self.orders.len(), second % 4 == 0),
            13 if !self.orders.is_empty() => drop(self.orders.remove(first % self.orders.len())),
            14 | 15 => self.show(leader),
            16 | 17 => self.node.cut(),
            18 | 19 if !self.bindings.is_empty() => self.land(first % self.bindings.len(), second % 2 == 0),
            20 => self.watch(),
            21 if !self.look_ups.is_empty() => {
                let (uid, asked, found) = self.look_ups.remove(first % self.look_ups.len());
                self.node.ledger.looked_up(&uid, asked, found);
            }
            22 | 23 => self.pass(Duration::from_secs([1, 5, 20, 61][second % 4])),
            24 => self.restart(),
            25 => self.disk = self.node.ledger.saved(),
            26 if self.pods[pod] == Pod::Unbound => self.pods[pod] = Pod::Elsewhere,
            27 => self.pods[pod] = Pod::Gone,
            28 if self.pods[pod] == Pod::Here => self.node.allocate(&uid(pod)),
            29 if self.pods[pod] != Pod::Here => self.node.free(&owner(pod).key.name),
            30 => self.leaders[leader].epoch = self.leaders.iter().map(|l| l.epoch).max().unwrap_or(0) + 1,
            _ => self.ask_at_once(leader, pod),
        }
    }

    fn show(&mut self, leader: usize) {
        let copy = &mut self.leaders[leader].copy;
        difference(copy, &self.node.state()).apply(copy);
        assert_eq!(difference(copy, &self.node.state()), Change::default());
    }

    fn proposal(&self, leader: usize, pod: usize) -> Option<Order> {
        let Leader { epoch, copy } = &self.leaders[leader];
        let (name, count) = REQUESTS[pod];
        let inventory = NodeInventory::from_spec(&copy.desired(), &copy.status);
        let fit = fit(&inventory, &request(name, count), &Fleet::default()).ok()?;
        Some(Order { epoch: *epoch, kind: OrderKind::Reserve(Proposal::from_fit(owner(pod), fit)) })
    }

    fn propose(&mut self, leader: usize, pod: usize) {
        self.orders.extend(self.proposal(leader, pod));
    }

    /// The node's agent accepts every proposal that is made from the newest copy.
    fn ask_at_once(&mut self, leader: usize, pod: usize) {
        self.show(leader);
        if let Some(order) = self.proposal(leader, pod) {
            let answer = self.follow(&order);
            let is_old = order.epoch < self.node.ledger.epoch();
            assert!(answer.is_ok() || is_old, "{order:?}: {answer:?}");
        }
    }

    fn follow(&mut self, order: &Order) -> Answer {
        let before = self.node.ledger.saved();
        let answer = self.node.follow(order, self.now);
        let after = self.node.ledger.saved();
        assert!(after.epoch >= before.epoch);
        if order.epoch < before.epoch {
            assert_eq!((&answer, &after), (&Err(Rejection::OldEpoch), &before));
        }
        if let (OrderKind::Reserve(_), Ok(_)) = (&order.kind, &answer) {
            self.disk = after;
        }
        answer
    }

    fn deliver(&mut self, place: usize, again: bool) {
        let order = if again { self.orders[place].clone() } else { self.orders.swap_remove(place) };
        let answer = self.follow(&order);
        let OrderKind::Mark { uid, attempt } = order.kind else { return };
        if answer.is_ok() && self.marked.insert((order.epoch, attempt)) {
            let leader = self.leaders.iter().position(|l| l.epoch == order.epoch);
            // A replica that has lost leadership sends nothing.
            let Some(leader) = leader else { return };
            let until = self.now + Limits::default().binding();
            let epoch = order.epoch;
            self.bindings.push(Posted { leader, epoch, pod: pod(&uid), attempt, until });
        }
    }

    /// The API server binds or refuses; the leader gets the response only if `heard`.
    fn land(&mut self, place: usize, heard: bool) {
        let Posted { leader, epoch, pod, attempt, .. } = self.bindings.swap_remove(place);
        let bound = self.pods[pod] == Pod::Unbound;
        if bound {
            self.pods[pod] = Pod::Here;
        }
        if heard && self.leaders[leader].epoch == epoch {
            self.orders.push(Order { epoch, kind: OrderKind::Outcome { uid: uid(pod), attempt, bound } });
        }
    }

    fn watch(&mut self) {
        let here = |pod: usize| match self.pods[pod] {
            Pod::Here => Some((uid(pod), BoundPod::Alive)),
            Pod::Unbound | Pod::Elsewhere | Pod::Gone => None,
        };
        let bound_here: BTreeMap<_, _> = (0..self.pods.len()).filter_map(here).collect();
        self.node.ledger.pods(&bound_here, self.now);
    }

    fn pass(&mut self, time: Duration) {
        self.now = self.now + time;
        let now = self.now;
        self.bindings.retain(|binding| binding.until > now);
        let due = self.node.ledger.due(now);
        let found = |uid: PodUid| {
            let found = match self.pods[pod(&uid)] {
                Pod::Unbound => Found::Unbound,
                Pod::Here => Found::Here,
                Pod::Elsewhere => Found::Elsewhere,
                Pod::Gone => Found::Gone,
            };
            (uid, now, found)
        };
        let look_ups: Vec<_> = due.look_up.into_iter().map(found).collect();
        self.look_ups.extend(look_ups);
    }

    fn restart(&mut self) {
        self.look_ups.clear();
        self.node.restart(self.disk.clone(), self.now);
    }

    fn check(&self) {
        let (desired, held) = (self.node.ledger.desired(), self.node.held());
        for (gpu, memory) in &self.gpus {
            let has = |slice: &&WantedSlice| {
                slice.gpu == *gpu && (slice.reservation.is_some() || held.contains(&slice.id))
            };
            let shapes: Vec<Shape> = desired.slices.iter().filter(has).map(|s| s.shape).collect();
            assert_apart(gpu, *memory, &shapes);
        }
        let desired_ids: BTreeSet<_> = desired.slices.iter().map(|slice| slice.id.clone()).collect();
        assert_eq!(desired_ids.len(), desired.slices.len(), "an id is used twice");
        assert!(held.is_subset(&desired_ids), "a held slice is gone");
        let has_places = |pod: usize| reserved(desired, &uid(pod)).count() == REQUESTS[pod].1 as usize;
        for (pod, state) in self.pods.iter().enumerate() {
            assert!(*state != Pod::Here || has_places(pod), "pod {pod} is bound without a reservation");
        }
        for binding in &self.bindings {
            let may_bind = self.pods[binding.pod] == Pod::Unbound;
            assert!(!may_bind || has_places(binding.pod), "pod {} may be bound to nothing", binding.pod);
        }
    }

    /// No further orders come, and time passes.
    fn rest(&mut self) {
        let begin = self.now;
        self.orders.clear();
        self.look_ups.clear();
        for _ in 0..30 {
            self.pass(Duration::from_secs(5));
            for (uid, asked, found) in std::mem::take(&mut self.look_ups) {
                self.node.ledger.looked_up(&uid, asked, found);
            }
            self.watch();
            self.check();
            // 80 s, the longest interval between two look-ups, and a step.
            if self.now > begin + Duration::from_secs(115) {
                for slice in &self.node.ledger.desired().slices {
                    let owner = slice.reservation.as_ref().map(|r| pod(&r.uid));
                    assert!(owner.is_none_or(|pod| self.pods[pod] == Pod::Here), "{slice:?} is kept");
                }
            }
        }
    }
}

/// Whether all shapes can exist on one GPU, computed without planner and geometry.
fn assert_apart(gpu: &GpuUuid, memory: MemoryMib, shapes: &[Shape]) {
    let kinds: BTreeSet<Kind> = shapes.iter().map(|shape| shape.kind()).collect();
    assert!(kinds.len() < 2, "{gpu} has {shapes:?}");
    let in_shares: u64 =
        shapes.iter().filter(|s| s.instance().is_none()).map(|s| s.memory_of(memory).0).sum();
    assert!(in_shares <= memory.0, "{gpu} has {shapes:?}");
    for (place, shape) in shapes.iter().enumerate() {
        for other in &shapes[..place] {
            let (Some(one), Some(two)) = (shape.instance(), other.instance()) else { continue };
            let apart = if one == two {
                match (shape.mig_part(), other.mig_part()) {
                    (MigPart::Compute(a), MigPart::Compute(b)) => {
                        a.start + a.compute <= b.start || b.start + b.compute <= a.start
                    }
                    (MigPart::Replica { replica: a }, MigPart::Replica { replica: b }) => a != b,
                    _ => false,
                }
            } else {
                let (a, b) = (one.placement, two.placement);
                a.start + a.size <= b.start || b.start + b.size <= a.start
            };
            assert!(apart, "{gpu} has {shape} and {other}");
        }
    }
    let instances: BTreeSet<_> = shapes.iter().filter_map(|shape| shape.instance()).collect();
    assert!(
        instances.iter().map(|i| u32::from(i.profile.compute())).sum::<u32>() <= 7,
        "{gpu} has {shapes:?}"
    );
}

/// Each history is a hundred events and computes all prices again, so few must suffice; `PROPTEST_CASES` makes more.
fn lives() -> ProptestConfig {
    let usual = ProptestConfig::default();
    ProptestConfig { cases: usual.cases / 16, ..usual }
}

proptest! {
    #![proptest_config(lives())]
    #[test]
    fn no_slice_is_reserved_for_one_pod_and_held_by_another(
        events in prop::collection::vec((0_u8..34, 0_usize..64, 0_usize..64), 0..120)
    ) {
        let mut world = World::new();
        for event in events {
            world.happens(event);
            world.check();
        }
        world.rest();
    }
}
