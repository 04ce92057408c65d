//! One simulated agent: it keeps its node's ledger, dials the extender, creates slices after the set time,
//! and writes its GpuNode's status at intervals, for people.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kerf_core::contract::{Condition, ConditionStatus, GpuNodeStatus, NodePolicy, SliceState, SliceStatus};
use kerf_core::ledger::{Answer, BoundPod, Due, Found, Moment, NodeState, Order};
use kerf_core::names::{GpuUuid, NodeName, PodKey, PodUid, SliceId};
use kerf_core::resource::ResourceName;
use kerf_core::testing::SimulatedNode;
use kerf_protocol::client;
use kerf_protocol::convert::{Hello, Role};
use kerf_protocol::limits::WINDOW;
use kube::Api;
use serde_json::{Map, json};
use tokio::sync::{Notify, oneshot, watch};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::agents::{CutLanes, Offer, Shared};
use crate::pods::is_finished;

/// Delay of the status write after a first change, and the shortest interval of two writes.
const WRITE_DELAY: Duration = Duration::from_millis(500);
const WRITE_INTERVAL: Duration = Duration::from_secs(5);

pub(super) struct Agent {
    name: NodeName,
    shared: Arc<Shared>,
    began: Instant,
    life: Mutex<Life>,
    // Every change is published here, from where the stream to the extender reads it.
    state: watch::Sender<Arc<NodeState>>,
    /// Wakes the task when the next due time may have changed.
    changed: Notify,
}

struct Life {
    node: SimulatedNode,
    /// Slices that kerf did not create.
    foreign: Vec<SliceStatus>,
    /// When each cut that is under way will end.
    cuts: BTreeMap<SliceId, Instant>,
    /// When the last queued cut ends, for each GPU or for the node.
    lanes: BTreeMap<Option<GpuUuid>, Instant>,
    /// Pods of the node, as its watch shows them.
    pods: BTreeMap<PodUid, BoundPod>,
    written: Written,
}

/// The slices in the GpuNode's status.
#[derive(Default)]
struct Written {
    slices: Vec<SliceStatus>,
    at: Option<Instant>,
    /// When the status is written next.
    due: Option<Instant>,
}

impl Agent {
    /// The agent of a node with this status's GPUs and foreign slices. These pods are bound there.
    pub(super) fn new(
        name: NodeName,
        status: GpuNodeStatus,
        pods: BTreeSet<PodUid>,
        shared: Arc<Shared>,
    ) -> Arc<Self> {
        let ready = |mut condition: Condition| {
            if condition.kind == Condition::READY {
                condition.status = ConditionStatus::True;
            }
            condition
        };
        let conditions = status.conditions.into_iter().map(ready).collect();
        let foreign: Vec<_> = status.slices.into_iter().filter(|slice| slice.id.is_none()).collect();
        let status = GpuNodeStatus { conditions, slices: Vec::new(), ..status };
        let life = Life {
            node: SimulatedNode::from_status(status, NodePolicy::default(), shared.limits),
            foreign,
            cuts: BTreeMap::new(),
            lanes: BTreeMap::new(),
            pods: pods.into_iter().map(|pod| (pod, BoundPod::Alive)).collect(),
            written: Written::default(),
        };
        let state = watch::Sender::new(Arc::new(life.state(Offer::All)));
        let (began, changed) = (Instant::now(), Notify::new());
        Arc::new(Self { name, shared, began, life: Mutex::new(life), state, changed })
    }

    /// Serves orders until it is aborted.
    pub(super) async fn run(self: Arc<Self>) {
        let stop = CancellationToken::new();
        // Aborting this task must end its connections too.
        let _end = stop.clone().drop_guard();
        let extenders = Arc::clone(&self.shared.extenders);
        tokio::spawn(client::run(Arc::clone(&self), extenders, stop));
        loop {
            let next = self.due();
            tokio::select! {
                () = sleep_until(next) => {}
                () = self.changed.notified() => {}
            }
            self.write().await;
        }
    }

    pub(super) fn status(&self) -> GpuNodeStatus {
        self.state.borrow().status.clone()
    }

    /// The highest epoch that a leader has announced.
    pub(super) fn epoch(&self) -> u64 {
        self.life().node.ledger.epoch()
    }

    /// Applies a policy if it has changed.
    pub(super) fn follow_policy(&self, policy: NodePolicy) {
        let mut life = self.life();
        if policy != life.node.ledger.desired().policy {
            life.node.follow_policy(policy, self.moment());
            self.follow_pods(&mut life);
            self.publish(&mut life);
        }
    }

    /// Handles a pod that was bound here, to which the kubelet allocates its devices, or that has ended.
    /// `None` means that a new list does not contain it.
    pub(super) fn pod(&self, uid: &PodUid, pod: Option<BoundPod>) {
        let mut life = self.life();
        match pod {
            Some(pod) => {
                if pod == BoundPod::Alive {
                    life.node.allocate(uid);
                }
                life.pods.insert(uid.clone(), pod);
            }
            None => drop(life.pods.remove(uid)),
        }
        self.follow_pods(&mut life);
        self.publish(&mut life);
    }

    /// Publishes the slices again, after the set offer has changed.
    pub(super) fn offer_otherwise(&self) {
        self.publish(&mut self.life());
    }

    fn life(&self) -> MutexGuard<'_, Life> {
        self.life.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn moment(&self) -> Moment {
        Moment(self.began.elapsed())
    }

    fn follow_pods(&self, life: &mut Life) {
        for ended in life.node.ledger.pods(&life.pods, self.moment()) {
            life.node.free(&ended.key.name);
        }
        life.pods.retain(|_, pod| *pod == BoundPod::Alive);
    }

    /// Does what is due, and returns when the next step is due.
    fn due(self: &Arc<Self>) -> Instant {
        let mut life = self.life();
        let now = Instant::now();
        let cuts_end = self.shared.offer() != Offer::Nothing;
        let made = life.cuts.extract_if(.., |_, at| cuts_end && *at <= now);
        let made: Vec<SliceId> = made.map(|(id, _)| id).collect();
        for id in &made {
            life.node.cut_slice(id);
        }
        let Due { released, look_up, next } = life.node.ledger.due(self.moment());
        for uid in look_up {
            let slices = &life.node.ledger.desired().slices;
            let mut reservations = slices.iter().filter_map(|slice| slice.reservation.as_ref());
            if let Some(reservation) = reservations.find(|reservation| reservation.uid == uid) {
                tokio::spawn(Arc::clone(self).look_up(uid, reservation.key()));
            }
        }
        if !(made.is_empty() && released.is_empty()) {
            self.publish(&mut life);
        }
        let next = next.map(|Moment(at)| self.began + at);
        let cut = life.cuts.values().min().copied().filter(|_| cuts_end);
        let all = [next, cut, life.written.due];
        all.into_iter().flatten().min().unwrap_or(now + WRITE_INTERVAL)
    }

    /// Reads from the API server whether a pod is bound, without a cache.
    async fn look_up(self: Arc<Self>, uid: PodUid, key: PodKey) {
        let asked = self.moment();
        let pods = Api::<Pod>::namespaced(self.shared.client.clone(), &key.namespace);
        let found = match pods.get_opt(&key.name).await {
            Ok(pod) => self.found(&uid, pod),
            Err(_) => Found::Unknown,
        };
        let mut life = self.life();
        if let Some(released) = life.node.ledger.looked_up(&uid, asked, found) {
            life.node.free(&released.key.name);
        }
        self.publish(&mut life);
    }

    fn found(&self, uid: &PodUid, pod: Option<Pod>) -> Found {
        let is_it = |pod: &Pod| pod.metadata.uid.as_deref() == Some(uid.as_str()) && !is_finished(pod);
        let Some(pod) = pod.filter(is_it) else { return Found::Gone };
        match pod.spec.and_then(|spec| spec.node_name) {
            None => Found::Unbound,
            Some(node) if node == self.name.as_str() => Found::Here,
            Some(_) => Found::Elsewhere,
        }
    }

    /// Begins the cuts of new slices of the ledger, each after the earlier ones of its lane.
    fn cut(&self, life: &mut Life) {
        let (now, time) = (Instant::now(), self.shared.cut());
        for (id, gpu) in life.node.missing() {
            if time.is_zero() && self.shared.offer() != Offer::Nothing {
                life.node.cut_slice(&id);
            } else if !life.cuts.contains_key(&id) {
                let lane = (self.shared.lanes == CutLanes::PerGpu).then_some(gpu);
                let free = life.lanes.entry(lane).or_insert(now);
                *free = (*free).max(now) + time;
                let at = *free;
                life.cuts.insert(id, at);
            }
        }
    }

    fn publish(&self, life: &mut Life) {
        let state = life.state(self.shared.offer());
        let written = &mut life.written;
        if written.due.is_none() && written.slices != state.status.slices {
            let now = Instant::now();
            let again = written.at.map_or(now, |at| at + WRITE_INTERVAL);
            written.due = Some(again.max(now + WRITE_DELAY));
        }
        self.state.send_replace(Arc::new(state));
        self.changed.notify_one();
    }

    /// Writes the status if it is due.
    async fn write(&self) {
        // The lock is released before the write, which waits for the API server.
        let slices = {
            let written = &mut self.life().written;
            let now = Instant::now();
            if written.due.is_none_or(|due| due > now) {
                return;
            }
            (written.due, written.at) = (None, Some(now));
            written.slices.clone_from(&self.state.borrow().status.slices);
            written.slices.clone()
        };
        let fields = Map::from_iter([("slices".to_owned(), json!(slices))]);
        if let Err(error) = self.shared.write(&self.name, &fields).await {
            tracing::warn!(name = %self.name, %error, "failed to write a simulated agent's status");
            let written = &mut self.life().written;
            written.due.get_or_insert(Instant::now() + WRITE_INTERVAL);
        }
    }
}

impl Life {
    fn state(&self, offer: Offer) -> NodeState {
        let mut state = self.node.state();
        state.status.slices.extend_from_slice(&self.foreign);
        if offer == Offer::FirstOfName {
            hold_back(&mut state.status.slices);
        }
        state
    }
}

/// Of several reservations under one name, leaves the first pod's slices ready and lets the others wait.
fn hold_back(slices: &mut [SliceStatus]) {
    let mut first = BTreeMap::<ResourceName, PodUid>::new();
    for slice in slices.iter_mut().filter(|slice| slice.holder.is_none()) {
        let Some(reservation) = &slice.reservation else { continue };
        let of_first = first.entry(reservation.resource).or_insert_with(|| reservation.uid.clone());
        if *of_first != reservation.uid {
            (slice.state, slice.ready_for) = (SliceState::Waiting, None);
        }
    }
}

impl client::Agent for Agent {
    fn hello(&self) -> Hello {
        let text = || "simulated".to_owned();
        Hello {
            node: self.name.clone(),
            node_uid: text(),
            boot_id: text(),
            version: text(),
            instance: text(),
            epoch: self.epoch(),
            window: WINDOW,
        }
    }

    fn state(&self) -> watch::Receiver<Arc<NodeState>> {
        self.state.subscribe()
    }

    fn role(&self, _: SocketAddr, role: Option<&Role>) {
        if let Some(role) = role.filter(|role| role.leads) {
            self.life().node.ledger.hear(role.epoch);
        }
    }

    fn order(&self, order: Order) -> oneshot::Receiver<Answer> {
        let (sender, answer) = oneshot::channel();
        let mut life = self.life();
        let followed = life.node.follow(&order, self.moment());
        self.cut(&mut life);
        self.publish(&mut life);
        // The receiver was created above, so sending cannot fail.
        let _ = sender.send(followed);
        answer
    }
}
