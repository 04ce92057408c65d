//! Models a node: the agent's process with core's [`Ledger`](kerf_core::ledger::Ledger), its disk, its GPUs and its
//! kubelet.

use crate::api::{self, Phase, Pod};
use crate::checks::{Rule, Violation};
use crate::setting::Setting;
use kerf_core::contract::{Shape, SliceState, SliceStatus};
use kerf_core::ledger::{
    Answer, BoundPod, Found, Limits, Moment, NodeState, Order, OrderKind, Rejection, Saved, Seen, reserved,
};
use kerf_core::names::{GpuUuid, PodUid, SliceId};
use kerf_core::planner::plan;
use kerf_core::testing::SimulatedNode;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The address of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplyTo {
    pub leader: usize,
    pub connection: u64,
    pub number: u64,
}

/// An answer that is held until the disk has the reservation.
#[derive(Debug, Clone)]
pub struct Waiting {
    pub uid: PodUid,
    pub answer: Answer,
    pub to: Option<ReplyTo>,
}

/// A lookup under way. Its result is the state at the time of the request.
#[derive(Debug, Clone)]
pub struct LookUp {
    pub uid: PodUid,
    pub asked: Moment,
    pub found: Found,
}

/// A slice that a pod's containers hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Taken {
    pub id: SliceId,
    pub gpu: GpuUuid,
    pub shape: Shape,
}

/// A node and its agent.
#[derive(Debug, Clone)]
pub struct Agent {
    /// The node's index in the world's list.
    pub place: usize,
    /// The ledger, the GPUs, and who holds what of them.
    pub node: SimulatedNode,
    /// The ledger on the disk, which survives a crash.
    pub disk: Saved,
    /// What this process has written to the disk; `None` before its first write.
    written: Option<Saved>,
    pub waiting: Vec<Waiting>,
    /// The pods that the watch shows; `None` before it has listed them.
    pub known: Option<BTreeMap<PodUid, BoundPod>>,
    pub look_ups: Vec<LookUp>,
    pub failed: BTreeSet<SliceId>,
    /// Existing slices that the kubelet has not listed since its restart.
    pub unknown: BTreeSet<SliceId>,
    resting: BTreeSet<GpuUuid>,
    /// When something is due next.
    pub due: Option<Moment>,
    /// The slices that containers hold, by pod.
    pub running: BTreeMap<usize, Vec<Taken>>,
    /// Whether slices are to be created or destroyed.
    pub has_steps: bool,
    /// The state that the agent reports now.
    pub report: Arc<NodeState>,
    /// The highest epoch that this process has received or found on its disk.
    pub heard: u64,
    /// Pods whose reservation was answered, for as long as they have it.
    pub answered: BTreeSet<PodUid>,
}

impl Agent {
    /// An agent that has listed its pods, of which there are none.
    pub fn new(place: usize, setting: &Setting) -> Self {
        let node = SimulatedNode::from_status(
            setting.nodes[place].clone(),
            setting.policy.clone(),
            Limits::default(),
        );
        let mut agent = Self {
            place,
            disk: node.ledger.saved(),
            written: None,
            waiting: Vec::new(),
            known: Some(BTreeMap::new()),
            look_ups: Vec::new(),
            failed: BTreeSet::new(),
            unknown: BTreeSet::new(),
            resting: BTreeSet::new(),
            due: None,
            running: BTreeMap::new(),
            has_steps: false,
            report: Arc::new(NodeState::default()),
            heard: 0,
            answered: BTreeSet::new(),
            node,
        };
        agent.report();
        agent
    }

    /// What the agent's loop does after every event: it follows its pods and the time, and does the upkeep.
    pub fn turn(&mut self, now: Moment, pods: &[Pod]) {
        self.follow_pods(now, pods);
        self.report();
        if self.node.closed.is_none() {
            let status = self.report.status.clone();
            let owners = self.owners();
            let owner = |shown: &SliceStatus| owners.get(shown.id.as_ref()?).map(|pod| &pods[*pod].owner.uid);
            self.node.ledger.upkeep(&status, owner, &mut self.resting);
        }
        let ledger = self.node.ledger.desired();
        self.answered.retain(|uid| reserved(ledger, uid).next().is_some());
        self.report();
        self.note_steps();
    }

    /// The pods that hold slices, as the kubelet's checkpoint has them.
    fn owners(&self) -> BTreeMap<SliceId, usize> {
        let all = self.running.iter().flat_map(|(pod, taken)| taken.iter().map(move |taken| (pod, taken)));
        all.map(|(pod, taken)| (taken.id.clone(), *pod)).collect()
    }

    fn follow_pods(&mut self, now: Moment, pods: &[Pod]) {
        if let Some(known) = &mut self.known {
            self.node.ledger.pods(known, now);
            known.retain(|_, pod| *pod == BoundPod::Alive);
        }
        let due = self.node.ledger.due(now);
        self.due = due.next;
        for uid in due.look_up {
            let found = pods.get(api::place(&uid)).map_or(Found::Gone, |pod| pod.found(self.place));
            self.look_ups.push(LookUp { uid, asked: now, found });
        }
    }

    /// Reads an order. Returns the answer, unless it must wait for the disk.
    pub fn read(
        &mut self,
        order: &Order,
        to: Option<ReplyTo>,
        now: Moment,
        pods: &[Pod],
    ) -> Result<Option<Answer>, Violation> {
        self.follow_pods(now, pods);
        self.report();
        let before = self.node.ledger.saved();
        let (observed, report) = (self.node.observed(), self.report.clone());
        let seen = Seen { closed: report.closed.as_deref(), observed: &observed, status: &report.status };
        let answer = self.node.ledger.follow(order, seen, now);
        self.check_order(order, &answer, &before)?;
        self.heard = self.heard.max(order.epoch);
        self.turn(now, pods);
        let (OrderKind::Reserve(_) | OrderKind::Mark { .. }, Ok(_)) = (&order.kind, &answer) else {
            return Ok(Some(answer));
        };
        let uid = owner(&order.kind).clone();
        if self.written.as_ref().is_some_and(|written| self.is_in(written, &uid)) {
            self.answered.insert(uid);
            return Ok(Some(answer));
        }
        self.waiting.push(Waiting { uid, answer, to });
        Ok(None)
    }

    fn check_order(&self, order: &Order, answer: &Answer, before: &Saved) -> Result<(), Violation> {
        let after = self.node.ledger.saved();
        if order.epoch < self.heard && (after != *before || *answer != Err(Rejection::OldEpoch)) {
            let text = format!("an order of epoch {} was answered {answer:?}", order.epoch);
            return Err(Violation::new(Rule::Epoch, text));
        }
        let uid = owner(&order.kind);
        match order.kind {
            OrderKind::Release { .. } if answer.is_ok() && !self.slices(uid).is_empty() => {
                Err(Violation::new(Rule::Released, format!("{uid} still has its reservation")))
            }
            OrderKind::Mark { .. } if answer.is_ok() && !self.is_ready(uid) => Err(Violation::new(
                Rule::Ready,
                format!("a Binding of {uid} is marked, and its slices are not ready"),
            )),
            _ => Ok(()),
        }
    }

    fn is_in(&self, saved: &Saved, uid: &PodUid) -> bool {
        reserved(&saved.desired, uid).eq(reserved(self.node.ledger.desired(), uid))
    }

    /// Whether the disk has the ledger's present state.
    pub fn is_on_disk(&self) -> bool {
        self.disk.epoch == self.node.ledger.epoch() && self.disk.desired == *self.node.ledger.desired()
    }

    /// Writes the ledger to the disk. Returns the answers that waited for it.
    pub fn sync(&mut self) -> Vec<(ReplyTo, Answer)> {
        self.disk = self.node.ledger.saved();
        self.written = Some(self.disk.clone());
        let waiting = std::mem::take(&mut self.waiting);
        self.answered.extend(waiting.iter().map(|waiting| waiting.uid.clone()));
        let ledger = self.node.ledger.desired();
        self.answered.retain(|uid| reserved(ledger, uid).next().is_some());
        waiting.into_iter().filter_map(|waiting| Some((waiting.to?, waiting.answer))).collect()
    }

    /// Fails to write the disk: reservations that wait for it are rejected.
    pub fn fail_sync(&mut self, now: Moment, pods: &[Pod]) -> Vec<(ReplyTo, Answer)> {
        let waiting = std::mem::take(&mut self.waiting);
        for Waiting { uid, .. } in &waiting {
            self.node.ledger.retract(uid);
        }
        self.turn(now, pods);
        let refused = || Err(Rejection::Disk("no space left on the device".to_owned()));
        waiting.into_iter().filter_map(|waiting| Some((waiting.to?, refused()))).collect()
    }

    /// Ends the process and starts another, which is closed until its pods are listed.
    pub fn crash(&mut self, now: Moment) {
        self.node.restart(self.disk.clone(), now);
        self.node.closed = Some("the node's pods are not listed".to_owned());
        self.heard = self.disk.epoch;
        (self.written, self.known) = (None, None);
        self.waiting.clear();
        self.look_ups.clear();
        self.failed.clear();
        self.resting.clear();
        self.due = self.node.ledger.due(now).next;
        self.report();
        self.note_steps();
    }

    /// The watch shows the pods that are bound here, and shows ended ones once more.
    pub fn watch(&mut self, now: Moment, pods: &[Pod]) {
        let alive = pods.iter().filter(|pod| pod.phase == Phase::Bound(self.place));
        let mut shown: BTreeMap<_, _> = alive.map(|pod| (pod.owner.uid.clone(), BoundPod::Alive)).collect();
        for uid in self.known.take().unwrap_or_default().into_keys() {
            shown.entry(uid).or_insert(BoundPod::Ended);
        }
        self.known = Some(shown);
        self.node.closed = None;
        self.turn(now, pods);
    }

    /// Whether the watch has something new to show.
    pub fn is_behind(&self, pods: &[Pod]) -> bool {
        let Some(known) = &self.known else { return true };
        let alive = || pods.iter().filter(|pod| pod.phase == Phase::Bound(self.place));
        alive().count() != known.len() || !alive().all(|pod| known.contains_key(&pod.owner.uid))
    }

    pub fn looked_up(&mut self, look_up: usize, fails: bool, now: Moment, pods: &[Pod]) {
        let LookUp { uid, asked, found } = self.look_ups.remove(look_up);
        self.node.ledger.looked_up(&uid, asked, if fails { Found::Unknown } else { found });
        self.turn(now, pods);
    }

    pub fn make(&mut self, now: Moment, pods: &[Pod]) {
        self.node.cut();
        self.failed.clear();
        self.turn(now, pods);
    }

    /// Fails to create the first missing slice.
    pub fn fail_to_make(&mut self, now: Moment, pods: &[Pod]) {
        let missing = self.node.missing();
        self.failed.extend(missing.into_iter().map(|(id, _)| id).find(|id| !self.failed.contains(id)));
        self.turn(now, pods);
    }

    /// The slices that are reserved for a pod.
    pub fn slices(&self, uid: &PodUid) -> Vec<Taken> {
        let taken = reserved(self.node.ledger.desired(), uid);
        taken
            .map(|slice| Taken { id: slice.id.clone(), gpu: slice.gpu.clone(), shape: slice.shape })
            .collect()
    }

    /// Whether the kubelet can start a pod.
    pub fn can_start(&self, pod: &Pod, place: usize, pods: &[Pod]) -> bool {
        let has_its_name = |other: &usize| pods[*other].request == pod.request;
        pod.phase == Phase::Bound(self.place)
            && !self.running.contains_key(&place)
            && !self.running.keys().any(has_its_name)
            && self.is_ready(&pod.owner.uid)
    }

    /// Whether all of a pod's slices exist and the kubelet has listed them.
    pub fn is_ready(&self, uid: &PodUid) -> bool {
        let slices = self.slices(uid);
        !slices.is_empty()
            && slices.iter().all(|slice| self.exists(&slice.id) && !self.unknown.contains(&slice.id))
    }

    pub fn exists(&self, id: &SliceId) -> bool {
        self.report.status.slice(id).is_some_and(|slice| slice.device.is_some())
    }

    /// The kubelet restarts (`is_new`), or lists all slices that exist.
    pub fn set_kubelet(&mut self, is_new: bool, now: Moment, pods: &[Pod]) {
        let slices =
            self.report.status.slices.iter().filter(|slice| slice.device.is_some() && slice.holder.is_none());
        self.unknown = slices.filter_map(|slice| slice.id.clone()).filter(|_| is_new).collect();
        self.turn(now, pods);
    }

    pub fn start(&mut self, place: usize, now: Moment, pods: &[Pod]) {
        let uid = &pods[place].owner.uid;
        self.running.insert(place, self.slices(uid));
        self.node.allocate(uid);
        self.turn(now, pods);
    }

    pub fn end(&mut self, place: usize, now: Moment, pods: &[Pod]) {
        self.running.remove(&place);
        self.node.free(&pods[place].owner.key.name);
        self.turn(now, pods);
    }

    fn report(&mut self) {
        let mut report = self.node.state();
        for slice in &mut report.status.slices {
            let is_in = |set: &BTreeSet<SliceId>| slice.id.as_ref().is_some_and(|id| set.contains(id));
            if slice.device.is_none() && is_in(&self.failed) {
                (slice.state, slice.message) = (SliceState::Failed, Some("no room".to_owned()));
            } else if slice.ready_for.is_some() && slice.holder.is_none() && is_in(&self.unknown) {
                (slice.state, slice.ready_for) = (SliceState::Preparing, None);
            }
        }
        if report != *self.report {
            self.report = Arc::new(report);
        }
    }

    fn note_steps(&mut self) {
        self.has_steps = !plan(&self.node.observed(), &self.node.ledger.desired().slices).steps.is_empty();
    }
}

/// The pod that an order is about.
pub fn owner(order: &OrderKind) -> &PodUid {
    match order {
        OrderKind::Reserve(proposal) => &proposal.owner.uid,
        OrderKind::Mark { uid, .. } | OrderKind::Outcome { uid, .. } | OrderKind::Release { uid, .. } => uid,
    }
}
