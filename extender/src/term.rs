//! One leader's term: what it adds to the [`Cluster`], and the tasks that its changes notify.
//!
//! All tasks of a term end with its token.

use crate::cluster::{Cluster, EffectHandler};
use crate::cluster_index::{ClusterIndex, Effects, HeldBack, NoPreemption, NodeOrder};
use crate::events::{EventReason, Recorder};
use crate::evict;
use crate::in_flight::InFlight;
use crate::leader::Deadline;
use crate::metrics::Metrics;
use crate::policy_source::PolicySource;
use arc_swap::ArcSwapOption;
use hashbrown::HashMap;
use hashbrown::hash_map::Entry;
use kerf_core::ledger::{Order, OrderKind, Rejection};
use kerf_core::names::{NodeName, PodUid};
use kerf_protocol::server::{Disconnected, NotSent};
use kerf_runtime::shutdown::CancellationToken;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;
use tokio::sync::{Notify, OwnedRwLockReadGuard, RwLock, watch};

/// How many times the outcome of a Binding is sent to an agent that is not connected.
const ATTEMPT_LIMIT: usize = 10;
/// The pause between two of these attempts. Agents reconnect within seconds.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// The term that requests are answered by, if this replica leads and has listed everything.
#[derive(Debug, Default)]
pub struct CurrentTerm {
    term: ArcSwapOption<Term>,
    /// Notified when a term has ended.
    ended: Notify,
}

impl CurrentTerm {
    /// The term, unless there is none or it is stopping.
    #[must_use]
    pub fn term(&self) -> Option<Arc<Term>> {
        self.term.load_full().filter(|term| !term.stop.is_cancelled())
    }

    /// Answers requests by this term from now on.
    pub fn begin(&self, term: Arc<Term>) {
        self.term.store(Some(term));
    }

    /// Answers no requests from now on.
    pub fn end(&self) {
        if self.term.swap(None).is_some() {
            self.ended.notify_one();
        }
    }

    /// Waits until a term ends.
    pub async fn ended(&self) {
        self.ended.notified().await;
    }
}

pub struct Term {
    /// A client that sends no write after the Lease's deadline.
    pub client: kube::Client,
    /// Cancelled when the term ends.
    pub stop: CancellationToken,
    /// Cancels the binds that have not sent their Binding yet, and no others. It is cancelled with `stop` at the
    /// latest.
    pub closing: CancellationToken,
    /// Each Binding under way holds a read lock, so that a write lock waits for all of them.
    posts: Arc<RwLock<()>>,
    pub cluster: Arc<Cluster>,
    /// The term's number within this process.
    number: u64,
    pub metrics: Metrics,
    pub policies: PolicySource,
    pub in_flight: Arc<InFlight>,
    /// Writes the term's Events about pods.
    pub events: Recorder,
    /// Counts marked Bindings, so that each has a number of its own.
    attempts: AtomicU64,
    deadline: OnceLock<Deadline>,
    lease_uid: OnceLock<String>,
    /// Notifies the tasks that watch a node.
    bells: Mutex<HashMap<NodeName, watch::Sender<()>>>,
    unconfirmed: Mutex<BTreeSet<PodUid>>,
    /// Notified when there are pods to confirm.
    pub confirm: Notify,
    /// Notified when room may have become free.
    pub room: Notify,
}

impl std::fmt::Debug for Term {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Term").finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No code panics while it holds these locks. If it did, the API server's state would still decide what is true.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Term {
    /// Begins a term of `epoch`, or of a higher one, until `stop`.
    #[must_use]
    pub fn begin(
        cluster: &Arc<Cluster>,
        client: kube::Client,
        metrics: Metrics,
        epoch: u64,
        stop: CancellationToken,
    ) -> Arc<Self> {
        let term = Self::assemble(cluster.clone(), client, metrics, stop);
        let handler: Weak<Self> = Arc::downgrade(&term);
        cluster.begin(term.number, handler, epoch);
        term
    }

    /// Begins a term on an empty index, which has no data that could be stale.
    #[cfg(test)]
    pub(crate) fn new(
        client: kube::Client,
        metrics: Metrics,
        epoch: u64,
        terms: kerf_core::packing::Terms,
        policies: PolicySource,
        stop: CancellationToken,
    ) -> Arc<Self> {
        let seen_nodes = crate::seen_nodes::SeenNodes::default();
        let cluster = Cluster::new(ClusterIndex::new(epoch, terms), policies, seen_nodes);
        let term = Self::assemble(cluster.clone(), client, metrics, stop);
        let handler: Weak<Self> = Arc::downgrade(&term);
        cluster.begin_as_it_is(term.number, handler);
        term
    }

    fn assemble(
        cluster: Arc<Cluster>,
        client: kube::Client,
        metrics: Metrics,
        stop: CancellationToken,
    ) -> Arc<Self> {
        Arc::new(Self {
            events: Recorder::new(client.clone(), metrics.clone()),
            client,
            closing: stop.child_token(),
            posts: Arc::default(),
            stop,
            metrics,
            policies: cluster.policies.clone(),
            in_flight: Arc::default(),
            number: cluster.next_term(),
            cluster,
            attempts: AtomicU64::new(0),
            deadline: OnceLock::new(),
            lease_uid: OnceLock::new(),
            bells: Mutex::default(),
            unconfirmed: Mutex::default(),
            confirm: Notify::new(),
            room: Notify::new(),
        })
    }

    /// Sets the Lease that this term holds.
    pub fn set_lease_uid(&self, uid: String) {
        // A term has one Lease, so a second call would be a mistake and is ignored.
        let _ = self.lease_uid.set(uid);
    }

    pub fn set_deadline(&self, deadline: Deadline) {
        // A term has one deadline, so a second call would be a mistake and is ignored.
        let _ = self.deadline.set(deadline);
    }

    /// The deadline of the term's Lease, if one is set.
    #[must_use]
    pub fn deadline(&self) -> Option<&Deadline> {
        self.deadline.get()
    }

    /// A number that no other marked Binding of the term has.
    #[must_use]
    pub fn next_attempt(&self) -> u64 {
        self.attempts.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// The UID of the leader's Lease and its epoch, as a Binding carries them in an annotation.
    #[must_use]
    pub fn lead(&self, epoch: u64) -> String {
        let uid = self.lease_uid.get().map_or("", String::as_str);
        format!("{uid}/{epoch}")
    }

    /// Runs `act` on the index, and passes its effects on. Once the term has ended, `act` gets an empty index.
    pub fn with<R>(&self, act: impl FnOnce(&mut ClusterIndex) -> R) -> R {
        self.cluster.with_term(self.number, act).unwrap_or_else(|act| act(&mut ClusterIndex::default()))
    }

    /// Like `with`, for results that a caller gets as an answer. `None` once the term has ended, so that no answer
    /// comes from an empty index.
    pub fn answer<R>(&self, act: impl FnOnce(&mut ClusterIndex) -> R) -> Option<R> {
        self.cluster.with_term(self.number, act).ok()
    }

    pub async fn until(&self, holds: impl Fn(&ClusterIndex) -> bool) {
        self.cluster.until(holds).await;
    }

    /// Ends the term: it decides nothing from now on.
    pub fn end(&self) {
        self.cluster.end(self.number);
    }

    /// A permit to send a Binding, which is kept until the outcome is recorded. `None` once the term is ending.
    #[must_use]
    pub fn open_post(&self) -> Option<OwnedRwLockReadGuard<()>> {
        let open = self.posts.clone().try_read_owned().ok()?;
        (!self.closing.is_cancelled()).then_some(open)
    }

    /// Stops further Bindings, and waits until those under way have ended.
    pub async fn close(&self) {
        self.closing.cancel();
        let _none_is_open = self.posts.write().await;
    }

    /// Subscribes to changes of a node from now on.
    pub fn watch_node(&self, node: &NodeName) -> watch::Receiver<()> {
        lock(&self.bells).entry(node.clone()).or_default().subscribe()
    }

    /// Takes the pods that are to be looked up.
    pub fn take_unconfirmed(&self) -> BTreeSet<PodUid> {
        std::mem::take(&mut lock(&self.unconfirmed))
    }

    /// Sends the outcome of a Binding to a node's agent. If the connection ends before the answer, its next connection
    /// is used.
    pub async fn send_outcome(&self, node: &NodeName, order: &Order) {
        for _ in 0..ATTEMPT_LIMIT {
            if self.deadline().is_some_and(Deadline::has_passed) {
                return;
            }
            let sent = async {
                let connection = self.cluster.agents.connection(node).ok_or(Disconnected)?;
                connection.order(order).await
            };
            match sent.await {
                Ok(_) | Err(NotSent::NotLeading(_)) => return,
                Err(NotSent::Disconnected(_)) => tokio::time::sleep(RETRY_INTERVAL).await,
            }
        }
    }

    /// Sends an order that no bind waits for.
    async fn order(self: Arc<Self>, NodeOrder { node, connection, order }: NodeOrder) {
        let sent = async {
            // The order rests on the copy of this connection, so it must not be sent over a later one.
            let found = self.cluster.agents.connection(&node).filter(|found| found.id() == connection)?;
            found.order(&order).await.ok()
        };
        let answer = sent.await;
        if let Some(Err(rejection)) = &answer {
            tracing::info!(%node, ?order, %rejection, "agent rejected an order");
        }
        if let OrderKind::Release { uid, .. } = &order.kind {
            self.with(|index| match answer {
                Some(Err(Rejection::BindingOpen)) => {
                    index.nodes().agents().reject_release(uid, &node, connection);
                }
                _ => index.nodes().agents().answer_release(uid, &node, connection),
            });
        }
    }
}

impl EffectHandler for Term {
    fn handle(self: Arc<Self>, effects: Effects) {
        for released in &effects.released {
            let (pod, uid, node) = (&released.pod, &released.uid, &released.node);
            tracing::info!(%pod, %uid, %node, why = %released.reason, "released");
        }
        for eviction in effects.evictions {
            let term = self.clone();
            tokio::spawn(async move {
                let makes_room_for = eviction.makes_room_for.clone();
                if !evict::evict(&term.client, &term.metrics, &term.events, eviction).await {
                    term.with(|index| index.room_maker().refuse(&makes_room_for));
                }
            });
        }
        for held_back in effects.held_back {
            let term = self.clone();
            tokio::spawn(async move {
                let HeldBack { uid, pod, over } = held_back;
                tracing::info!(%pod, %uid, %over, "held back by its namespace's quota");
                term.events.publish(&pod, &uid, EventReason::QuotaFull, over.to_string()).await;
            });
        }
        for NoPreemption { uid, pod, message } in effects.no_preemption {
            let term = self.clone();
            tokio::spawn(async move {
                term.events.publish(&pod, &uid, EventReason::NobodyPreempted, message).await;
            });
        }
        for order in effects.orders {
            tokio::spawn(self.clone().order(order));
        }
        if effects.deposed {
            tracing::error!("there is a leader of a newer epoch: this term ends");
            self.stop.cancel();
        }
        let mut bells = lock(&self.bells);
        for node in &effects.changed {
            if let Entry::Occupied(bell) = bells.entry(node.clone())
                && bell.get().send(()).is_err()
            {
                // The last receiver is gone, so the entry is removed.
                bell.remove();
            }
        }
        drop(bells);
        if !effects.changed.is_empty() {
            self.room.notify_one();
        }
        if !effects.unconfirmed.is_empty() {
            lock(&self.unconfirmed).extend(effects.unconfirmed);
            self.confirm.notify_one();
        }
    }
}
