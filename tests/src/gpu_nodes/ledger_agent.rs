//! One simulated agent that keeps its node's ledger and dials the extender. It makes slices in their time, and writes its GpuNode's
//! status late, for people.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kerf_core::contract::{Condition, ConditionStatus, GpuNodeStatus, NodePolicy, SliceStatus};
use kerf_core::ledger::{Answer, BoundPod, Due, Found, Limits, Moment, NodeState, Order};
use kerf_core::names::{GpuUuid, NodeName, PodUid, SliceId};
use kerf_core::testing::SimulatedNode;
use kerf_protocol::client::{self, Plain};
use kerf_protocol::convert::{Hello, Role};
use kerf_protocol::limits::WINDOW;
use serde_json::{Map, json};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::{Notify, oneshot, watch};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::agent::{Event, census};
use super::agents::{CutLanes, Shared};

/// How long after the first change in a quiet time the status is written, and how long after that again at the earliest.
const WRITE_DELAY: Duration = Duration::from_millis(500);
const WRITE_INTERVAL: Duration = Duration::from_secs(5);

/// The agent of one node.
pub(super) struct LedgerAgent {
    name: NodeName,
    shared: Arc<Shared>,
    began: Instant,
    life: Mutex<Life>,
    state: watch::Sender<Arc<NodeState>>,
    /// Rings when something is due at another time than before.
    changed: Notify,
}

struct Life {
    node: SimulatedNode,
    /// When the slices exist that are being cut.
    cuts: BTreeMap<SliceId, Instant>,
    /// Until when cuts are under way: on each GPU, or on the node.
    lanes: BTreeMap<Option<GpuUuid>, Instant>,
    /// What the node's own watch of pods shows.
    pods: BTreeMap<PodUid, BoundPod>,
    written: Written,
}

/// What the GpuNode has.
#[derive(Default)]
struct Written {
    slices: Vec<SliceStatus>,
    at: Option<Instant>,
    /// When it is written next.
    due: Option<Instant>,
}

impl LedgerAgent {
    pub(super) fn new(name: NodeName, status: GpuNodeStatus, shared: Arc<Shared>) -> Arc<Self> {
        let ready = |mut condition: Condition| {
            if condition.kind == Condition::READY {
                condition.status = ConditionStatus::True;
            }
            condition
        };
        let conditions = status.conditions.into_iter().map(ready).collect();
        let status = GpuNodeStatus { conditions, slices: Vec::new(), ..status };
        let node = SimulatedNode::of(status, NodePolicy::default(), Limits::default());
        let state = watch::Sender::new(Arc::new(node.state()));
        let life = Life {
            node,
            cuts: BTreeMap::new(),
            lanes: BTreeMap::new(),
            pods: BTreeMap::new(),
            written: Written::default(),
        };
        let (began, changed) = (Instant::now(), Notify::new());
        Arc::new(Self { name, shared, began, life: Mutex::new(life), state, changed })
    }

    /// Answers until the sender of events is gone.
    pub(super) async fn run(self: Arc<Self>, network: Arc<Plain>, mut events: UnboundedReceiver<Event>) {
        let stop = CancellationToken::new();
        let _end = stop.clone().drop_guard();
        tokio::spawn(client::run(Arc::clone(&self), network, stop));
        loop {
            let next = self.due();
            tokio::select! {
                event = events.recv() => match event {
                    Some(event) => self.take(event),
                    None => return,
                },
                () = sleep_until(next) => {}
                () = self.changed.notified() => {}
            }
            self.write().await;
        }
    }

    fn life(&self) -> MutexGuard<'_, Life> {
        self.life.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn moment(&self) -> Moment {
        Moment(self.began.elapsed())
    }

    fn take(&self, event: Event) {
        let mut life = self.life();
        match event {
            Event::Spec(spec) if spec.policy == life.node.ledger.desired().policy => return,
            Event::Spec(spec) => life.node.follow_policy(spec.policy, self.moment()),
            Event::Allocated(pod) => {
                life.node.allocate(&pod);
                life.pods.insert(pod, BoundPod::Alive);
            }
            Event::Ended(pod) => drop(life.pods.insert(pod, BoundPod::Ended)),
        }
        self.follow_pods(&mut life);
        self.publish(&mut life);
    }

    fn follow_pods(&self, life: &mut Life) {
        for ended in life.node.ledger.pods(&life.pods, self.moment()) {
            life.node.free(&ended.key.name);
        }
        life.pods.retain(|_, pod| *pod == BoundPod::Alive);
    }

    /// Does what is due, and says when something is due next.
    fn due(&self) -> Instant {
        let mut life = self.life();
        let now = Instant::now();
        let made: Vec<SliceId> = life.cuts.extract_if(.., |_, at| *at <= now).map(|(id, _)| id).collect();
        for id in &made {
            life.node.cut_slice(id);
        }
        let Due { released, look_up, next } = life.node.ledger.due(self.moment());
        for uid in &look_up {
            // A Binding is shown by the watch long before it is asked for.
            let found = if life.pods.contains_key(uid) { Found::Here } else { Found::Unbound };
            life.node.ledger.looked_up(uid, self.moment(), found);
        }
        if !(made.is_empty() && released.is_empty() && look_up.is_empty()) {
            self.publish(&mut life);
        }
        let next = next.map(|Moment(at)| self.began + at);
        let all = [next, life.cuts.values().min().copied(), life.written.due];
        all.into_iter().flatten().min().unwrap_or(now + WRITE_INTERVAL)
    }

    /// Begins the cuts of slices that are new in the ledger, each after those that it waits for.
    fn cut(&self, life: &mut Life) {
        let (now, time) = (Instant::now(), self.shared.cut());
        for (id, gpu) in life.node.missing() {
            if time.is_zero() {
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
        let state = life.node.state();
        self.shared.report(&self.name, census(&state.status));
        let written = &mut life.written;
        if written.due.is_none() && written.slices != state.status.slices {
            let now = Instant::now();
            let again = written.at.map_or(now, |at| at + WRITE_INTERVAL);
            written.due = Some(again.max(now + WRITE_DELAY));
        }
        self.state.send_replace(Arc::new(state));
        self.changed.notify_one();
    }

    /// Writes the status if it is time.
    async fn write(&self) {
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

impl client::Agent for LedgerAgent {
    fn hello(&self) -> Hello {
        let text = || "simulated".to_owned();
        Hello {
            node: self.name.clone(),
            node_uid: text(),
            boot_id: text(),
            version: text(),
            instance: text(),
            epoch: self.life().node.ledger.epoch(),
            window: WINDOW,
        }
    }

    fn state(&self) -> watch::Receiver<Arc<NodeState>> {
        self.state.subscribe()
    }

    fn role(&self, _: SocketAddr, _: Option<&Role>) {}

    fn order(&self, order: Order) -> oneshot::Receiver<Answer> {
        let (sender, answer) = oneshot::channel();
        let mut life = self.life();
        let followed = life.node.follow(&order, self.moment());
        self.cut(&mut life);
        self.publish(&mut life);
        // The receiver is here.
        let _ = sender.send(followed);
        answer
    }
}
