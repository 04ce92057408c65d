//! Random lives of a node with a kubelet that lags. It processes lists late and name by name, its answers are old when
//! they arrive, and pods are admitted in between, some with init containers that only its checkpoint has. It restarts
//! and lists no pod for a while. The agent restarts while the API server is away, and its ledger is lost. Whatever
//! happens, no device goes that a pod has or may be getting, and no GPU is allocated twice.

use super::*;
use crate::gpu::GpuBackend as _;
use crate::gpu::fake::{FakeGpus, uuid};
use crate::node::device_ids::share_slice;
use crate::processes::GpuUsage;
use kerf_core::contract::NodePolicy;
use kerf_core::contract::{GpuNodeStatus, Holder, MigPart, Reservation, Shape, WantedSlice};
use kerf_core::ledger::{Found, Order, OrderKind, Owner, Proposal};
use kerf_core::mig::Placement;
use kerf_core::names::DeviceId;
use kerf_core::names::PodKey;
use kerf_core::names::PodUid;
use kerf_core::packing::{Placed, Source};
use kerf_core::planner::Step;
use kerf_core::resource::ResourceName;
use kerf_core::units::SizeGb;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::time::Duration;

/// The resource names that pods request.
struct Names {
    mig: [&'static str; 3],
    share: &'static str,
    whole: &'static str,
}

const CONCRETE: Names = Names {
    mig: ["nvidia.com/mig-1g.10gb", "nvidia.com/mig-3g.40gb", "nvidia.com/mig-7g.80gb"],
    share: "nvidia.com/gpu-4gb",
    whole: "nvidia.com/gpu",
};

/// One name covers GPU instances, MPS shares, time slices and a whole GPU.
const NEUTRAL: Names = Names {
    mig: ["kerf.dev/gpu-4gb", "kerf.dev/gpu-40gb", "kerf.dev/gpu-80gb"],
    share: "kerf.dev/gpu-4gb",
    whole: "kerf.dev/gpu-4gb",
};

/// What a leader may order: the profile's name in `Names::mig`, and its placement.
const SHAPES: [(usize, &str, u8, u8); 7] = [
    (0, "1g.10gb", 0, 1),
    (0, "1g.10gb", 4, 1),
    (0, "1g.20gb", 4, 2),
    (0, "3g.40gb", 4, 4),
    (1, "3g.40gb", 4, 4),
    (2, "7g.80gb", 0, 8),
    (1, "7g.80gb", 0, 8),
];

/// How many shares the GPU without MIG may have.
const MOST_SHARES: usize = 3;

type Lists = BTreeMap<ResourceName, BTreeMap<DeviceId, bool>>;

/// A pod's identity for the kubelet and the API server.
#[derive(Clone)]
struct Identity {
    uid: PodUid,
    key: PodKey,
    /// Whether only an init container holds its device, so that the kubelet never lists it.
    staged: bool,
}

impl Identity {
    fn from_reservation(reservation: &Reservation) -> Self {
        Self { uid: reservation.uid.clone(), key: reservation.key(), staged: reservation.alone }
    }
}

struct Pod {
    name: ResourceName,
    /// Whether it has a whole GPU.
    whole: bool,
    since: Instant,
    /// Whether the kubelet lists it already.
    listed: bool,
    identity: Identity,
}

struct Life {
    names: &'static Names,
    node: Node,
    gpus: FakeGpus,
    now: Instant,
    /// How many pods have got a reservation.
    reserved: u32,
    record: Restored,
    /// Whether the kubelet has read the pods since its start.
    knows_pods: bool,
    /// The lists that the agent has sent, and those that the kubelet has processed.
    sent: Lists,
    taken: Lists,
    /// What the plugin grants since the last decision.
    granted: BTreeSet<(ResourceName, DeviceId)>,
    /// What the kubelet has picked for a pod and not allocated yet.
    picked: Option<(ResourceName, DeviceId, Identity)>,
    pods: BTreeMap<DeviceId, Pod>,
    /// Bound pods, as the API server shows them.
    roster: NodePods,
    strangers: u32,
    over: BTreeSet<PodUid>,
    /// Answers that are under way.
    allocatable: Option<Allocatable>,
    holders: Option<Holders>,
    /// The kubelet's checkpoint, and whether it cannot be read.
    file: Vec<Recorded>,
    corrupt: bool,
}

impl Life {
    fn new(names: &'static Names) -> Self {
        let gpus = FakeGpus::new(&["H100-80GB", "T4-16GB"]);
        let (mut node, now) = (Node::new(Settings::default()), Instant::now());
        node.restore(&Restored { is_own: true, ..Restored::default() }, now);
        node.on_policy(Ok(NodePolicy::default()));
        node.on_gpus(Ok(gpus.gpus()));
        node.on_registration(Ok(node.resource_names()));
        node.on_pods(NodePods::new());
        let (sent, taken) = (Lists::new(), Lists::new());
        let (pods, roster, allocatable, holders) = (BTreeMap::new(), NodePods::new(), None, None);
        let (granted, picked) = (BTreeSet::new(), None);
        let strangers = 0;
        let mut life = Self {
            names,
            node,
            gpus,
            now,
            reserved: 0,
            record: Restored::default(),
            knows_pods: true,
            sent,
            taken,
            granted,
            picked,
            pods,
            roster,
            strangers,
            over: BTreeSet::new(),
            allocatable,
            holders,
            file: Vec::new(),
            corrupt: false,
        };
        life.ask_and_answer();
        life
    }

    /// Begins with a pod that has an init container and is admitted.
    fn begin_with_init_container(&mut self, choice: usize) {
        const TO_ADMITTED: [u8; 9] = [15, 4, 13, 15, 4, 5, 6, 14, 13];
        self.act(0, choice);
        for action in TO_ADMITTED {
            self.act(action, 0);
        }
        assert!(self.roster.values().all(|pod| pod.admitted) && self.pods.len() == 1, "{:?}", self.roster);
    }

    fn act(&mut self, action: u8, choice: usize) {
        self.now += Duration::from_millis(if action == 14 { 2500 } else { 1 });
        match action {
            0 | 1 if choice >= 32 => self.want_share(choice),
            0 | 1 => self.want(choice),
            2 => self.release(choice),
            3 => self.take_lists(choice),
            4 => self.taken.clone_from(&self.sent),
            5 => self.pick(choice),
            6 => self.allocate(),
            7 if choice < 8 => self.list_pod(choice),
            8 => self.end_pod(choice),
            9 => {
                // A kubelet that was just started has rewritten it.
                self.corrupt = choice >= 30 && self.knows_pods;
                self.ask();
            }
            10 => self.answer(),
            11 => self.restart(choice),
            12 => self.ask_and_answer(),
            13 => {
                self.read_gpu_node();
                self.report_pods();
                self.ask_and_answer();
            }
            17 => self.lose_the_ledger(choice),
            18 => self.restart_kubelet(choice),
            19 => self.knows_pods = true,
            _ => self.step(),
        }
        self.decide();
        self.check();
    }

    /// Orders a slice for a pod. What is in its way is released first, even a reservation.
    fn want(&mut self, choice: usize) {
        let (name, profile, start, size) = SHAPES[choice % SHAPES.len()];
        let place = Placement { start, size };
        let stays = |w: &WantedSlice| w.shape.instance().is_none_or(|i| !i.placement.overlaps(place));
        let shape = Shape::Mig { profile: profile.parse().unwrap(), start, size, part: MigPart::Whole };
        self.reserve(0, shape, (self.names.mig[name], choice >= 16), stays);
    }

    /// Orders a share of the other GPU: by MPS, in time slices under a neutral name, or all of it. What is in its way
    /// is released first.
    fn want_share(&mut self, choice: usize) {
        let is_whole = choice == 39;
        let (name, shape) = if is_whole {
            (self.names.whole, Shape::Whole { size_gb: SizeGb(15) })
        } else if choice.is_multiple_of(2) && self.names.share == self.names.whole {
            (self.names.share, Shape::TimeSlicing { size_gb: SizeGb(4) })
        } else {
            (self.names.share, Shape::mps(SizeGb(4)))
        };
        let mut shares = self.node.desired().iter().filter(|w| w.gpu == uuid(1));
        let first = shares.next().map(|w| w.id.clone()).filter(|_| shares.count() + 1 >= MOST_SHARES);
        let stays = |w: &WantedSlice| !is_whole && w.shape == shape && Some(&w.id) != first.as_ref();
        self.reserve(1, shape, (name, choice >= 35 && !is_whole), stays);
    }

    /// Whether the agent accepts a leader's order.
    fn order(&mut self, kind: OrderKind) -> bool {
        self.node.on_order(&Order { epoch: 1, kind }, self.now).answer.is_ok()
    }

    /// Reserves a slice; the agent may reject it.
    fn reserve(
        &mut self,
        gpu: u32,
        shape: Shape,
        (name, alone): (&str, bool),
        stays: impl Fn(&WantedSlice) -> bool,
    ) {
        let in_the_way = |w: &&WantedSlice| w.gpu == uuid(gpu) && !stays(w);
        let of_pods = self.node.desired().iter().filter(in_the_way);
        let of_pods: Vec<_> = of_pods.filter_map(|w| Some(w.reservation.as_ref()?.uid.clone())).collect();
        for uid in of_pods {
            self.order(OrderKind::Release { uid, why: String::new() });
        }
        let idle = self.node.desired().iter().filter(in_the_way).filter(|w| w.reservation.is_none());
        let idle: Vec<_> = idle.collect();
        let same = idle.iter().find(|w| w.shape == shape && self.reserved.is_multiple_of(2));
        let source = match same {
            Some(same) => Source::Idle(same.id.clone()),
            None => Source::Cut(idle.iter().map(|w| w.id.clone()).collect()),
        };
        self.reserved += 1;
        let number = self.reserved;
        let owner =
            Owner { uid: PodUid::new(format!("u{number}")), key: PodKey::new("ns", format!("p{number}")) };
        let resource = name.parse().unwrap();
        let place = Placed { container: "main".into(), resource, alone, gpu: uuid(gpu), shape, source };
        self.order(OrderKind::Reserve(Proposal { owner, places: vec![place] }));
    }

    /// Loses the disk, and starts an agent without a checkpoint.
    fn lose_the_ledger(&mut self, choice: usize) {
        // Not if the kubelet lacks its data too, because then no source would list a share.
        if choice < 8 && self.knows_pods && !self.corrupt {
            self.record = Restored::default();
            self.restart(1);
            self.ask_and_answer();
            let status = Some(GpuNodeStatus::default());
            self.node.on_predecessor(Predecessor { status, ..Predecessor::default() }, self.now);
            self.read_gpu_node();
            self.now += Duration::from_secs(81);
        }
    }

    /// Restarts the kubelet. It has no pods, lists none, and has no list of devices.
    fn restart_kubelet(&mut self, choice: usize) {
        if choice < 12 {
            self.corrupt = false;
            // Assume that it had listed its pods. A restart between Allocate and the next list is another case.
            self.pods.values_mut().for_each(|pod| pod.listed = true);
            self.observe_admitted();
            self.report_pods();
            self.ask_and_answer();
            self.unpick();
            self.knows_pods = false;
            self.taken.clear();
            (self.allocatable, self.holders) = (None, None);
            self.node.on_registration(Err("the kubelet has restarted".into()));
            self.node.on_registration(Ok(self.node.resource_names()));
        }
    }

    fn release(&mut self, choice: usize) {
        let reserved = self.node.desired().iter().filter_map(|w| w.reservation.as_ref());
        let reserved: Vec<_> = reserved.map(|r| r.uid.clone()).collect();
        if let Some(uid) = reserved.get(choice % reserved.len().max(1)).cloned() {
            self.order(OrderKind::Release { uid, why: String::new() });
        }
    }

    fn read_gpu_node(&mut self) {
        self.node.on_predecessor(Predecessor::default(), self.now);
        self.node.on_policy(Ok(NodePolicy::default()));
        self.node.on_leader(Some(1), self.now);
    }

    fn take_lists(&mut self, choice: usize) {
        let changed: Vec<_> =
            self.sent.iter().filter(|(name, list)| self.taken.get(*name) != Some(list)).collect();
        if let Some((name, list)) = changed.get(choice % changed.len().max(1)) {
            self.taken.insert(**name, (*list).clone());
        }
    }

    /// The kubelet picks a device from the lists that it has taken.
    fn pick(&mut self, choice: usize) {
        let free: Vec<_> = self
            .taken
            .iter()
            .flat_map(|(name, list)| list.iter().map(move |(device, healthy)| (*name, device, *healthy)))
            .filter(|(_, device, healthy)| *healthy && !self.pods.contains_key(*device))
            .filter(|_| self.knows_pods)
            .map(|(name, device, _)| (name, device.clone()))
            .collect();
        let picked = free.get(choice % free.len().max(1)).cloned();
        self.unpick();
        let Some((name, device)) = picked else { return };
        let identity = self.pod_for(name, &device, choice);
        let names = BTreeMap::from([(name, 1)]);
        let pod = NodePod {
            key: identity.key.clone(),
            admitted: false,
            names,
            inits: BTreeSet::new(),
            requested: BTreeMap::new(),
            assigned: Vec::new(),
        };
        self.roster.insert(identity.uid.clone(), pod);
        self.picked = Some((name, device, identity));
        self.report_pods();
    }

    /// The pod for which the kubelet picks the device. If the device's pod must be alone it is that one, or at times
    /// another such pod that could have its own device. Otherwise it is a pod that requests the name, or a stranger.
    fn pod_for(&mut self, name: ResourceName, device: &DeviceId, choice: usize) -> Identity {
        let reservations = self.node.desired().iter().filter_map(|wanted| {
            Some((wanted.reservation.clone()?, self.node.facts.placement().device_of(wanted)))
        });
        let reservations: Vec<_> = reservations.filter(|(r, _)| !self.roster.contains_key(&r.uid)).collect();
        // The leader binds only pods that the agent has marked.
        let is_marked =
            |(r, _): &(Reservation, _)| self.order(OrderKind::Mark { uid: r.uid.clone(), attempt: 1 });
        let unbound: Vec<_> = reservations.into_iter().filter(is_marked).collect();
        let own = unbound.iter().find(|(r, of)| r.alone && of.as_ref() == Some(device));
        let can_have = |of: &DeviceId| {
            let is_offered = self.taken.get(&name).is_some_and(|list| list.get(of) == Some(&true));
            is_offered && !self.pods.contains_key(of)
        };
        let of_name = |r: &Reservation| r.resource == name;
        let other = || {
            let ready = |of: &Option<DeviceId>| of.as_ref().is_some_and(can_have);
            unbound.iter().find(|(r, of)| choice >= 16 && r.alone && of_name(r) && ready(of))
        };
        let ordinary = || unbound.iter().find(|(r, _)| !r.alone && of_name(r));
        if let Some((reservation, _)) = own.or_else(other).or_else(ordinary) {
            return Identity::from_reservation(reservation);
        }
        self.strangers += 1;
        let name = format!("x{}", self.strangers);
        Identity { uid: PodUid::new(&name), key: PodKey::new("ns", name), staged: false }
    }

    /// Rejects the pod for which something was picked.
    fn unpick(&mut self) {
        if let Some((_, _, identity)) = self.picked.take() {
            self.end(identity);
        }
    }

    /// Ends a pod, and reports that to the agent.
    fn end(&mut self, Identity { uid, key, .. }: Identity) {
        self.roster.remove(&uid);
        self.node.on_pod_left(key, uid.clone(), self.now);
        self.over.insert(uid);
    }

    fn report_pods(&mut self) {
        self.node.on_pods(self.roster.clone());
    }

    /// The kubelet allocates what it has picked, however long ago.
    fn allocate(&mut self) {
        let Some((name, device, identity)) = self.picked.clone() else { return };
        if !self.granted.contains(&(name, device.clone())) {
            return self.unpick();
        }
        self.picked = None;
        self.node.on_allocated(name, vec![device.clone()], self.now);
        let whole = self
            .node
            .facts
            .slices
            .shares()
            .get(&device)
            .is_some_and(|s| matches!(s.shape, Shape::Whole { .. }));
        self.pods.insert(device, Pod { name, whole, since: self.now, listed: false, identity });
    }

    fn list_pod(&mut self, choice: usize) {
        let count = self.pods.len().max(1);
        if let Some(pod) = self.pods.values_mut().nth(choice % count) {
            pod.listed = true;
        }
        self.observe_admitted();
    }

    /// A pod's status shows admission once the kubelet would list the pod.
    fn observe_admitted(&mut self) {
        for pod in self.pods.values().filter(|pod| pod.listed) {
            if let Some(known) = self.roster.get_mut(&pod.identity.uid) {
                known.admitted = true;
            }
        }
    }

    fn end_pod(&mut self, choice: usize) {
        let listed: Vec<_> = self.pods.iter().filter(|(_, pod)| pod.listed).map(|(d, _)| d.clone()).collect();
        let Some(device) = listed.get(choice % listed.len().max(1)) else { return };
        if let Some(Pod { identity, .. }) = self.pods.remove(device) {
            self.end(identity);
            self.report_pods();
        }
    }

    fn ask(&mut self) {
        // A kubelet lists a pod soon after Allocate.
        for pod in self.pods.values_mut() {
            pod.listed |= self.now > pod.since + Duration::from_millis(500);
        }
        self.observe_admitted();
        let healthy = self.taken.iter().map(|(name, list)| {
            (*name, list.iter().filter(|(_, healthy)| **healthy).map(|(device, _)| device.clone()).collect())
        });
        self.allocatable = Some(Allocatable { asked: self.now, healthy: healthy.collect() });
        let held = self.pods.iter().filter(|_| self.knows_pods);
        let held = held.filter(|(_, pod)| pod.listed && !pod.identity.staged);
        let held = held.map(|(device, pod)| {
            let PodKey { namespace, name } = pod.identity.key.clone();
            let holder = Holder { namespace, pod: name, container: "main".into() };
            (device.clone(), Held { name: pod.name, holder })
        });
        let recorded = self.pods.iter().filter(|(_, pod)| pod.listed);
        let recorded: Vec<_> = recorded
            .map(|(device, pod)| Recorded {
                uid: pod.identity.uid.clone(),
                container: if pod.identity.staged { "load" } else { "main" }.to_owned(),
                name: pod.name,
                device: device.clone(),
            })
            .collect();
        // What ended pods had stays there until another pod gets it.
        self.file.retain(|old| recorded.iter().all(|new| new.device != old.device));
        self.file.extend(recorded);
        let recorded = if self.corrupt { Err("corrupt".to_owned()) } else { Ok(self.file.clone()) };
        let held = held.collect();
        self.holders = Some(Holders { asked: self.now, held, foreign: Vec::new(), recorded });
    }

    fn answer(&mut self) {
        if let Some(allocatable) = self.allocatable.take() {
            self.node.on_allocatable(allocatable);
        } else if let Some(holders) = self.holders.take() {
            self.node.on_holders(Ok(holders));
        }
    }

    fn ask_and_answer(&mut self) {
        for _ in 0..2 {
            self.now += Duration::from_millis(1);
            self.ask();
            self.answer();
            self.answer();
            self.observe();
        }
    }

    /// The agent observes the GPUs instead of running the decided step.
    fn observe(&mut self) {
        self.node.on_gpus(Ok(self.gpus.gpus()));
    }

    /// Restarts the agent's process, for which the kubelet marks all its devices as unhealthy.
    fn restart(&mut self, choice: usize) {
        if choice > 2 {
            return;
        }
        self.node = Node::new(Settings::default());
        self.node.restore(&self.record, self.now);
        self.taken.values_mut().flat_map(BTreeMap::values_mut).for_each(|healthy| *healthy = false);
        self.pods.values_mut().for_each(|pod| pod.listed = true);
        (self.allocatable, self.holders) = (None, None);
        self.observe_admitted();
        self.unpick();
        self.node.on_gpus(Ok(self.gpus.gpus()));
        self.node.on_registration(Ok(self.node.resource_names()));
        if choice == 0 {
            self.read_gpu_node();
        }
    }

    fn step(&mut self) {
        match self.node.decide(self.now).step {
            Some(Step::Create { gpu, instance, part, id }) => {
                let result = self.gpus.create(&gpu, instance, part);
                self.node.on_created(&gpu, &id, result, self.now);
            }
            Some(Step::Destroy { gpu, instance, part }) => {
                let found = self.node.facts.inventory.find(&gpu, instance).unwrap().clone();
                let device = found.device().unwrap();
                assert!(!self.pods.contains_key(device), "{device} is destroyed under its pod");
                let offered = self.taken.values().any(|list| list.get(device) == Some(&true));
                assert!(!offered, "the kubelet may still hand {device} out");
                let result = self.gpus.destroy(&gpu, &found, part);
                self.node.on_destroyed(&gpu, (instance, part), result, self.now);
            }
            Some(other) => panic!("{other} is no step on a GPU"),
            None => {}
        }
    }

    fn decide(&mut self) {
        let Decision { lists, record, pods, .. } = self.node.decide(self.now);
        self.record = record;
        for uid in pods.look_up.into_keys() {
            let found = match &uid {
                uid if self.roster.contains_key(uid) => Found::Here,
                uid if self.over.contains(uid) => Found::Gone,
                _ => Found::Unbound,
            };
            self.node.on_looked_up(&uid, self.now, found);
        }
        let all = lists.iter().flat_map(|(name, list)| list.iter().map(move |d| (*name, d)));
        self.granted = all.filter(|(_, d)| d.grant.is_some()).map(|(name, d)| (name, d.id.clone())).collect();
        self.sent = lists
            .into_iter()
            .map(|(name, list)| (name, list.into_iter().map(|d| (d.id, d.healthy)).collect()))
            .collect();
    }

    fn check(&self) {
        let there: Vec<_> = self.gpus.gpus().into_iter().flat_map(|g| g.instances).collect();
        let of_shares: Vec<_> = self.pods.iter().filter(|(d, _)| share_slice(d).is_some()).collect();
        let wholes = of_shares.iter().filter(|(_, pod)| pod.whole).count();
        assert!(wholes == 0 || of_shares.len() == 1, "a GPU is given twice");
        assert!(of_shares.len() <= MOST_SHARES, "a GPU is given too often");
        for (device, pod) in &self.pods {
            let is_there = there.iter().any(|i| i.device() == Some(device));
            assert!(
                is_there || self.node.facts.slices.shares().contains_key(device),
                "{device} went from under its pod"
            );
            let elsewhere = self.taken.iter().filter(|(name, _)| **name != pod.name);
            let offered = elsewhere.into_iter().any(|(_, list)| list.get(device) == Some(&true));
            assert!(!offered, "{device} is offered under another name while a pod has it");
            if pod.identity.staged {
                continue;
            }
            // Right after a restart the agent has not read the holders and lists nothing.
            let lists_something = self.sent.values().any(|list| !list.is_empty());
            let listed = self.sent[&pod.name].contains_key(device);
            assert!(listed || !lists_something, "{device} was dropped while a pod has it");
        }
        let mut healthy: Vec<_> =
            self.taken.values().flatten().filter(|(_, h)| **h).map(|(d, _)| d).collect();
        healthy.sort();
        let count = healthy.len();
        healthy.dedup();
        assert_eq!(
            healthy.len(),
            count,
            "the kubelet may hand a device out under two names: {:?}",
            self.taken
        );
    }

    /// Everything catches up, and pods end.
    fn settle(&mut self) {
        (self.knows_pods, self.corrupt) = (true, false);
        self.read_gpu_node();
        self.pods.clear();
        self.unpick();
        for (uid, pod) in self.roster.clone() {
            self.end(Identity { uid, key: pod.key, staged: false });
        }
        self.report_pods();
        for _ in 0..40 {
            self.now += Duration::from_millis(500);
            self.decide();
            self.taken = self.sent.clone();
            self.ask();
            self.answer();
            self.answer();
            self.observe();
            // A process that ended unobserved counts as running until an observation shows that it does not run.
            let nothing_runs = [0, 1].map(|index| (uuid(index), GpuUsage::default()));
            self.node.on_usage(nothing_runs.into());
            self.step();
        }
        self.decide();
    }

    /// Every desired slice exists once everything has caught up.
    fn ends_well(mut self) -> Result<(), TestCaseError> {
        self.settle();
        let status = self.node.decide(self.now).status;
        for wanted in self.node.desired() {
            let slice = status.slice(&wanted.id).unwrap();
            prop_assert!(slice.device.is_some(), "{slice:?}");
            let is_waiting = slice.state == kerf_core::contract::SliceState::Waiting;
            prop_assert!(
                slice.ready_for.is_some() || wanted.reservation.is_none() || is_waiting,
                "{slice:?}"
            );
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { ..ProptestConfig::default() })]
    #[test]
    fn no_held_device_is_destroyed_and_in_the_end_every_wanted_slice_exists(
        begins in prop::option::of(16_usize..32),
        neutral in any::<bool>(),
        actions in prop::collection::vec((0_u8..20, 0_usize..40), 0..120)
    ) {
        let mut life = Life::new(if neutral { &NEUTRAL } else { &CONCRETE });
        if let Some(choice) = begins {
            life.begin_with_init_container(choice);
        }
        for (action, choice) in actions {
            life.act(action, choice);
        }
        life.ends_well()?;
    }
}

/// Lives that have failed in the past.
const LIVES: [&[(u8, usize)]; 3] = [
    // An init container holds a slice under another name than its pod's reservation, and then a restart.
    &[(0, 3), (12, 0), (15, 0), (4, 0), (0, 18), (5, 0), (6, 0), (11, 0), (13, 0), (4, 0)],
    // A pod holds a slice that is in no spec any more. Kubelet and agent restart, and the kubelet does not list the pod
    // yet.
    &[(0, 0), (12, 0), (7, 8), (4, 0), (17, 0), (5, 0), (6, 0), (18, 0), (11, 0), (13, 0), (0, 1), (7, 8)],
    // The same, and the slice is in the way of another.
    &[
        (0, 0),
        (12, 0),
        (7, 8),
        (4, 0),
        (17, 0),
        (5, 0),
        (6, 0),
        (18, 0),
        (11, 0),
        (13, 0),
        (0, 5),
        (7, 8),
        (7, 8),
    ],
];

#[test]
fn lives_that_failed_in_the_past_succeed() {
    for actions in LIVES {
        let mut life = Life::new(&CONCRETE);
        for (action, choice) in actions {
            life.act(*action, *choice);
        }
        life.ends_well().unwrap();
    }
}

#[test]
fn a_whole_gpu_whose_pod_ended_unobserved_is_free_in_the_end() {
    let mut life = Life::new(&CONCRETE);
    life.begin_with_init_container(16);
    for (action, choice) in
        [(0, 0), (0, 0), (0, 39), (3, 0), (0, 0), (5, 0), (6, 0), (0, 32), (11, 0), (12, 0)]
    {
        life.act(action, choice);
    }
    life.ends_well().unwrap();
}
