//! Random walks of pods over a small cluster: whatever happens in whatever order, no slice has two holders, no two
//! slices overlap, no promise to a bound pod is taken back while it lives, and no namespace passes its quota.
//!
//! The world around the index is played here: an API server that holds specs and statuses, agents that cut what the
//! newest spec wants and never what somebody holds, and kubelets that hold what was bound.

use super::*;
use crate::ask::Ask;
use crate::filter::{Candidate, filter, prioritize};
use kerf_core::contract::{Chosen, GpuNodeSpec, GpuNodeStatus, RequestDocument, SliceStatus};
use kerf_core::kind::Kind;
use kerf_core::ledger::reserved;
use kerf_core::mig::Geometry;
use kerf_core::names::PodKey;
use kerf_core::packing::{KindPlan, Terms};
use kerf_core::policy::{Cap, Charge, PodFacts, Policies};
use kerf_core::static_node::Devices;
use kerf_core::testing::{node_status, request, slice_status};
use kerf_core::units::{MemoryMib, SizeGb};
use proptest::prelude::*;
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

const NODES: [(&str, &[&str]); 3] =
    [("h100", &["H100-80GB", "H100-80GB"]), ("a100", &["A100-40GB"]), ("t4", &["T4-16GB"])];
const ASKS: [&str; 9] = [
    "nvidia.com/mig-1g.10gb",
    "nvidia.com/mig-1g.5gb",
    "nvidia.com/mig-3g.40gb",
    "nvidia.com/mig-7g.80gb",
    "nvidia.com/gpu-8gb",
    "nvidia.com/gpu-4gb.shared",
    "kerf.dev/gpu-4gb",
    "kerf.dev/gpu-5gb",
    "kerf.dev/gpu-16gb",
];
/// The kinds that may serve a neutral name, by the number of the pod.
const KINDS: [&[Kind]; 3] =
    [&[Kind::Mps, Kind::Mig], &[Kind::Mig, Kind::TimeSlicing], &[Kind::TimeSlicing, Kind::Mps, Kind::Whole]];

/// The namespace that has a quota, its policy and what it may hold. An H100 alone has more.
const TEAM: &str = "team";
const POLICY: &str = "shared";
const QUOTA: Cap = Cap { memory_gb: Some(70), slices: Some(6) };

#[derive(Debug, Clone)]
enum Step {
    /// A pod is created, and filtered.
    Create { ask: usize, count: u32, team: bool },
    /// The scheduler binds a pod where it was sent, and waits for it or gives up.
    Bind { pod: usize },
    /// A bind that waits looks at its progress, and sends the Binding.
    Look { pod: usize },
    /// All that wait look.
    LookAll,
    /// A node's write, cut and report come through without trouble.
    Settle { node: usize },
    /// A node's writer writes; its answer is lost, or it comes.
    Write { node: usize, lost: bool },
    /// A node's agent cuts and reports.
    Agent { node: usize },
    /// The watch shows a node.
    Watch { node: usize },
    /// The watch shows a pod.
    WatchPod { pod: usize },
    /// A pod is deleted, and its kubelet lets go.
    Delete { pod: usize },
    /// Time passes.
    Wait,
    /// A new leader starts from what was written.
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    let (pod, node) = (0_usize..64, 0..NODES.len());
    prop_oneof![
        4 => (0..ASKS.len(), 1_u32..3, any::<bool>()).prop_map(|(ask, count, team)| Step::Create { ask, count, team }),
        10 => pod.clone().prop_map(|pod| Step::Bind { pod }),
        3 => pod.clone().prop_map(|pod| Step::Look { pod }),
        6 => Just(Step::LookAll),
        8 => node.clone().prop_map(|node| Step::Settle { node }),
        6 => (node.clone(), any::<bool>()).prop_map(|(node, lost)| Step::Write { node, lost }),
        6 => node.clone().prop_map(|node| Step::Agent { node }),
        6 => node.prop_map(|node| Step::Watch { node }),
        3 => pod.clone().prop_map(|pod| Step::WatchPod { pod }),
        2 => pod.prop_map(|pod| Step::Delete { pod }),
        1 => Just(Step::Wait),
        1 => Just(Step::Restart),
    ]
}

#[derive(Debug, Clone)]
struct Pod {
    candidate: Candidate,
    /// Where the scheduler sent it.
    sent: Option<NodeName>,
    bound: Option<NodeName>,
    /// The kubelet has allocated its devices, which it does once.
    allocated: bool,
}

struct World {
    index: ClusterIndex,
    epoch: u64,
    now: Instant,
    nodes: BTreeMap<NodeName, (GpuNodeSpec, GpuNodeStatus)>,
    pods: BTreeMap<PodUid, Pod>,
    created: usize,
    bindings: usize,
}

impl World {
    fn new() -> Self {
        let status = |gpus| GpuNodeStatus { neutral_up_to: Some(SizeGb(80)), ..node_status(gpus) };
        let nodes = NODES.map(|(name, gpus)| (NodeName::new(name), (GpuNodeSpec::default(), status(gpus))));
        let mut world = Self {
            index: ClusterIndex::default(),
            epoch: 0,
            now: Instant::now(),
            nodes: nodes.into(),
            pods: BTreeMap::new(),
            created: 0,
            bindings: 0,
        };
        world.restart();
        world
    }

    fn object(&self, name: &NodeName) -> GpuNode {
        let (spec, status) = &self.nodes[name];
        let mut node = GpuNode::new(name);
        (node.spec, node.status) = (Some(json!(spec)), Some(json!(status)));
        node
    }

    fn restart(&mut self) {
        self.epoch += 1;
        self.index = ClusterIndex::new(self.epoch, Terms::default());
        self.index.set_policies(&policies());
        self.index.nodes_listing();
        for name in self.nodes.keys() {
            self.index.show_node(&self.object(name));
        }
        self.index.nodes_listed();
        self.index.pods_listing();
        for pod in self.pods.values() {
            self.index.show_pod(known(pod));
        }
        self.index.pods_listed();
        self.confirm();
    }

    /// Looks up whom the index wants looked up.
    fn confirm(&mut self) {
        for uid in self.index.take_effects().unconfirmed {
            match self.pods.get(&uid) {
                Some(pod) => self.index.show_stray(known(pod)),
                None => self.index.pod_gone(&uid),
            }
        }
    }

    fn pick(&self, pod: usize) -> Option<PodUid> {
        self.pods.keys().nth(pod % self.pods.len().max(1)).cloned()
    }

    fn take(&mut self, step: &Step) {
        match step {
            Step::Create { ask, count, team } => {
                self.create(ASKS[*ask], *count, if *team { TEAM } else { "default" });
            }
            Step::Bind { pod } => {
                let unbound: Vec<_> =
                    self.pods.iter().filter(|(_, p)| p.bound.is_none()).map(|(uid, _)| uid.clone()).collect();
                if let Some(uid) = unbound.get(*pod % unbound.len().max(1)) {
                    self.bind(uid);
                }
            }
            Step::Look { pod } => self.pick(*pod).into_iter().for_each(|uid| self.look(&uid)),
            Step::LookAll => {
                for uid in self.pods.keys().cloned().collect::<Vec<_>>() {
                    self.look(&uid);
                }
            }
            Step::Settle { node } => {
                let write = Step::Write { node: *node, lost: false };
                for step in [write, Step::Agent { node: *node }, Step::Watch { node: *node }] {
                    self.take(&step);
                }
            }
            Step::Write { node, lost } => self.write(&NodeName::new(NODES[*node].0), *lost),
            Step::Agent { node } => self.agent(&NodeName::new(NODES[*node].0)),
            Step::Watch { node } => {
                let object = self.object(&NodeName::new(NODES[*node].0));
                self.index.show_node(&object);
            }
            Step::WatchPod { pod } => {
                if let Some(uid) = self.pick(*pod) {
                    self.index.show_pod(known(&self.pods[&uid]));
                }
            }
            Step::Delete { pod } => self.pick(*pod).into_iter().for_each(|uid| self.delete(&uid)),
            Step::Wait => self.now += Duration::from_secs(1),
            Step::Restart => self.restart(),
        }
        self.confirm();
    }

    fn create(&mut self, resource: &str, count: u32, namespace: &str) {
        self.created += 1;
        let name = format!("p{:03}", self.created);
        // The others are charged by what is known of the pod.
        let named = namespace == TEAM && count == 1;
        let chosen = named.then(|| Chosen { policy: POLICY.to_owned(), ..Chosen::default() });
        let mut document = RequestDocument { chosen, ..request(resource, count) };
        for container in document.containers.iter_mut().filter(|container| container.resource.is_neutral()) {
            container.kinds = KINDS[self.created % KINDS.len()].to_vec();
        }
        let facts = PodFacts { namespace: namespace.to_owned(), ..PodFacts::default() };
        let ask = Ask::read(Some(&document.to_json())).map(|ask| ask.of(Arc::new(facts)));
        let candidate = Candidate {
            uid: PodUid::new(format!("uid-{name}")),
            key: PodKey::new(namespace, name),
            ask,
            devices: Devices::new(),
            tolerations: Vec::new(),
            nominated: None,
        };
        let uid = candidate.uid.clone();
        self.pods.insert(uid.clone(), Pod { candidate, sent: None, bound: None, allocated: false });
        self.schedule(&uid);
    }

    /// A scheduling cycle.
    fn schedule(&mut self, uid: &PodUid) {
        let pod = self.pods[uid].candidate.clone();
        let names = NODES.map(|(name, _)| name);
        let fitting = filter(&mut self.index, &pod, &names, self.now).fitting;
        let scores = prioritize(&mut self.index, &pod, &fitting, self.now);
        let best = scores.into_iter().max_by_key(|(_, score)| *score).map(|(name, _)| NodeName::new(name));
        self.pods.get_mut(uid).unwrap().sent = best;
    }

    fn bind(&mut self, uid: &PodUid) {
        let pod = self.pods[uid].clone();
        if pod.bound.is_some() {
            return;
        }
        let Some(node) = pod.sent.clone() else { return self.schedule(uid) };
        let expected = self.index.tentatives.get(uid).map(|expected| expected.choice.plan.clone());
        match self.index.reserve(uid, &pod.candidate.key, &node, pod.candidate.ask.clone().ok()) {
            Ok(promise) => check_kinds(&pod, &promise, expected.filter(|_| !promise.kept)),
            Err(_) => self.schedule(uid),
        }
    }

    fn look(&mut self, uid: &PodUid) {
        let pod = self.pods[uid].clone();
        let (Some(node), None) = (pod.sent, pod.bound) else { return };
        if let Progress::Ready(assignment) = self.index.progress(uid, &node) {
            let written = &self.nodes[&node].0;
            for slice in &assignment.slices {
                assert!(reserved(written, uid).any(|s| s.id == slice.id), "the promise was written first");
            }
            self.pods.get_mut(uid).unwrap().bound = Some(node.clone());
            self.index.bound(uid, &pod.candidate.key, &node);
            self.bindings += 1;
        }
    }

    fn write(&mut self, name: &NodeName, lost: bool) {
        let Some((before, next)) = self.index.begin_write(name) else { return };
        let revision = next.revision;
        let taken = self.nodes[name].0.revision == before;
        if taken {
            self.check_write(name, &next);
            self.nodes.get_mut(name).unwrap().0 = next;
        }
        if taken && !lost {
            self.index.wrote(name, revision);
        } else {
            self.index.reread(&self.object(name));
        }
    }

    /// What a write may not do.
    fn check_write(&self, name: &NodeName, next: &GpuNodeSpec) {
        let (before, status) = &self.nodes[name];
        for (uid, pod) in self.pods.iter().filter(|(_, pod)| pod.bound.as_ref() == Some(name)) {
            let (had, has) = (reserved(before, uid).count(), reserved(next, uid).count());
            assert_eq!(had, has, "{}'s promise was taken back", pod.candidate.key);
        }
        for gpu in &status.gpus {
            let here: Vec<_> = next.slices.iter().filter(|s| s.gpu == gpu.uuid).collect();
            assert!(Geometry::of(&gpu.profiles, here.iter().filter_map(|s| s.shape.instance())).is_ok());
            let shares = here.iter().filter(|s| s.shape.instance().is_none());
            assert!(shares.map(|s| s.shape.size().share_memory()).sum::<MemoryMib>() <= gpu.memory);
        }
    }

    /// Cuts what the spec wants where nothing that is held is in the way, and lets bound pods hold their slices.
    fn agent(&mut self, name: &NodeName) {
        let (spec, status) = self.nodes.get_mut(name).unwrap();
        let held: Vec<SliceStatus> = status.slices.iter().filter(|s| s.holder.is_some()).cloned().collect();
        let in_the_way = |shape: kerf_core::contract::Shape, gpu: &kerf_core::names::GpuUuid| {
            held.iter().filter(|h| h.gpu == *gpu).any(|h| match (h.shape.instance(), shape.instance()) {
                (Some(one), Some(other)) => one.placement.overlaps(other.placement),
                _ => false,
            })
        };
        let mut slices = Vec::new();
        for wanted in &spec.slices {
            if let Some(held) = held.iter().find(|h| h.id.as_ref() == Some(&wanted.id)) {
                slices.push(held.clone());
                continue;
            }
            assert!(!in_the_way(wanted.shape, &wanted.gpu), "{} overlaps a held slice", wanted.id);
            let pod = wanted.reservation.as_ref().and_then(|r| self.pods.get(&r.uid));
            let allocated_now = pod.is_some_and(|pod| pod.bound.as_ref() == Some(name) && !pod.allocated);
            slices.push(slice_status(wanted, allocated_now));
        }
        for pod in self.pods.values_mut().filter(|pod| pod.bound.as_ref() == Some(name)) {
            pod.allocated = true;
        }
        let stays = |h: &SliceStatus| slices.iter().any(|s| s.id == h.id);
        assert!(held.iter().all(stays), "a held slice has left the spec");
        swap_equal_holders(&mut slices, &held);
        status.slices = slices;
        status.observed_revision = spec.revision;
    }

    /// The kubelet has let go, and then the pod goes. That the agent has not reported it yet is the ordinary case.
    fn delete(&mut self, uid: &PodUid) {
        let pod = self.pods.remove(uid).unwrap();
        if let Some(node) = &pod.bound {
            let (_, status) = self.nodes.get_mut(node).unwrap();
            let key = &pod.candidate.key;
            let of_pod = |s: &&mut SliceStatus| s.holder.as_ref().is_some_and(|h| h.key() == *key);
            status.slices.iter_mut().filter(of_pod).for_each(|s| (s.holder, s.ready_for) = (None, None));
        }
        self.index.hide_pod(&KnownPod { deleting: true, ..known(&pod) });
    }

    /// What a namespace's pods have, by what is written.
    fn has(&self, namespace: &str) -> Charge {
        let pods = self.pods.iter().filter(|(_, pod)| pod.candidate.key.namespace == namespace);
        pods.flat_map(|(uid, _)| self.nodes.values().map(|(spec, _)| Charge::of_pod(spec, uid))).sum()
    }

    fn check(&self) {
        assert!(QUOTA.admits(self.has(TEAM)), "{TEAM} has {:?}", self.has(TEAM));
        let mut holders = BTreeMap::new();
        for (name, (_, status)) in &self.nodes {
            for slice in status.slices.iter().filter(|s| s.holder.is_some()) {
                let id = (name, slice.id.clone());
                assert!(holders.insert(id, slice.holder.clone()).is_none(), "two holders");
            }
        }
        for (uid, pod) in &self.pods {
            let Some(node) = &pod.bound else { continue };
            let wanted: u32 =
                pod.candidate.ask.as_ref().unwrap().document.containers.iter().map(|c| c.count).sum();
            let has = reserved(&self.nodes[node].0, uid).count();
            assert_eq!(
                has,
                usize::try_from(wanted).unwrap(),
                "{} is bound with its slices",
                pod.candidate.key
            );
            assert!(
                self.nodes.iter().filter(|(_, (spec, _))| reserved(spec, uid).next().is_some()).count() == 1
            );
        }
    }
}

/// Every slice is of a kind that may serve its name, and of the one that the pod's filter chose.
#[expect(clippy::needless_pass_by_value, reason = "it is what was expected of this pod alone")]
fn check_kinds(pod: &Pod, promise: &Promise, expected: Option<KindPlan>) {
    let document = &pod.candidate.ask.as_ref().unwrap().document;
    for slice in &promise.slices {
        let (kind, reservation) = (slice.shape.kind(), slice.reservation.as_ref().unwrap());
        let container = document.containers.iter().find(|c| c.name == reservation.container).unwrap();
        assert!(container.may_be(kind), "{} got {kind} for {}", pod.candidate.key, container.resource);
        let chosen = expected.as_ref().and_then(|plan| plan.kind(container.resource));
        assert!(chosen.is_none_or(|chosen| chosen == kind), "{}: {chosen:?}, not {kind}", pod.candidate.key);
    }
}

/// Once all reports are in, every held slice is its holder's, and nothing is promised to pods that are gone.
fn check_at_rest(world: &mut World) {
    for _ in 0..4 {
        for node in 0..NODES.len() {
            world.take(&Step::Settle { node });
        }
    }
    for (spec, status) in world.nodes.values() {
        for slice in &spec.slices {
            let promised = slice.reservation.as_ref();
            let holder = status.slice(&slice.id).and_then(|s| s.holder.as_ref());
            assert!(
                promised.is_none_or(|r| world.pods.contains_key(&r.uid)),
                "promised to a pod that is gone"
            );
            assert!(holder.is_none_or(|h| promised.is_some_and(|r| r.key() == h.key())), "held by another");
        }
    }
}

/// The kubelet hands equal devices to pods as it likes: two pods that were allocated in one go have changed places.
fn swap_equal_holders(slices: &mut [SliceStatus], held: &[SliceStatus]) {
    let new = |s: &SliceStatus| s.holder.is_some() && !held.iter().any(|h| h.id == s.id);
    let profile = |s: &SliceStatus| s.shape.instance().map(|i| i.profile);
    let equal = |a: &SliceStatus, b: &SliceStatus| {
        new(a) && new(b) && a.resource == b.resource && profile(a).is_some() && profile(a) == profile(b)
    };
    for one in 0..slices.len() {
        if let Some(other) = (one + 1..slices.len()).find(|other| equal(&slices[one], &slices[*other])) {
            let holder = slices[one].holder.take();
            slices[one].holder = std::mem::replace(&mut slices[other].holder, holder);
            return;
        }
    }
}

fn known(pod: &Pod) -> KnownPod {
    KnownPod {
        has_slices: false,
        asks_for_nothing: false,
        devices: Devices::new(),
        uid: pod.candidate.uid.clone(),
        key: pod.candidate.key.clone(),
        node: pod.bound.clone(),
        ended: false,
        compute: crate::compute::Compute::default(),
        deleting: false,
        gated: false,
        movable_to: None,
        pending_to: None,
        request: pod.candidate.ask.as_ref().ok().map(|ask| ask.text.clone()),
        policy: pod
            .candidate
            .ask
            .as_ref()
            .ok()
            .and_then(|ask| Some(ask.document.chosen.as_ref()?.policy.as_str().into())),
        facts: pod.candidate.ask.as_ref().map(|ask| ask.facts.clone()).unwrap_or_default(),
        counted: crate::pod::Counted::default(),
    }
}

/// A policy for the namespace [`TEAM`], and none for others.
fn policies() -> Arc<Policies> {
    let document = json!({
        "apiVersion": "kerf.dev/v1alpha1", "kind": "GpuPolicy", "metadata": {"name": POLICY},
        "spec": {
            "match": {"namespaces": [TEAM]}, "defaultIsolation": "none", "isolation": {"none": ["mig"]}, "quota": QUOTA,
        },
    });
    let document: kerf_core::policy::PolicyDocument = serde_json::from_value(document).unwrap();
    Arc::new(Policies { pods: vec![document.try_into().unwrap()], nodes: Vec::new() })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_slice_is_promised_twice_and_no_held_one_is_taken_back(steps in prop::collection::vec(step(), 1..250)) {
        let mut world = World::new();
        for step in &steps {
            world.take(step);
            world.check();
        }
        check_at_rest(&mut world);
    }
}

#[test]
fn the_walks_do_bind_pods() {
    let mut world = World::new();
    for n in 0..12 {
        world.take(&Step::Create { ask: n % ASKS.len(), count: 1, team: false });
    }
    for round in 0..24 {
        for step in [Step::Bind { pod: round }, Step::Write { node: 0, lost: round % 2 == 0 }] {
            world.take(&step);
        }
        for node in 0..NODES.len() {
            world.take(&Step::Settle { node });
        }
        world.take(&Step::LookAll);
        world.check();
    }
    // One whole GPU, or the small ones on it; and one of the two kinds of share, whoever asks for it by a neutral name too.
    assert!(world.bindings >= 6, "{} bound", world.bindings);
}
