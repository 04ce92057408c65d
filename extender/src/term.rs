//! One leader's term: what it adds to the [`Cluster`], and who must hear of changes.
//!
//! All tasks of a term end with its token.

use crate::cluster::Cluster;
use crate::cluster_index::{ClusterIndex, Effects, HeldBack, NobodyPreempted, NodeOrder};
use crate::events::{self, Topic};
use crate::evict;
use crate::in_flight::InFlight;
use crate::in_force::InForce;
use crate::leader::Deadline;
use crate::metrics::Metrics;
use arc_swap::ArcSwapOption;
use hashbrown::HashMap;
use hashbrown::hash_map::Entry;
use kerf_core::ledger::{Order, OrderKind, Rejection};
use kerf_core::names::{NodeName, PodUid};
use kerf_protocol::server::{Disconnected, NotSent};
use kerf_runtime::shutdown::CancellationToken;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, OwnedRwLockReadGuard, RwLock, watch};

/// How often an agent is told what became of a Binding while it is not connected: it dials anew within seconds.
const TELLS: usize = 10;
const TELL_INTERVAL: Duration = Duration::from_secs(1);

/// The term of which requests are answered, if this replica leads and has listed everything.
#[derive(Debug, Default)]
pub struct Standing {
    term: ArcSwapOption<Term>,
    /// Rings when a term has ended.
    ended: Notify,
}

impl Standing {
    /// The term, if there is one.
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

/// A leader's term.
pub struct Term {
    /// Its client, which writes nothing after the Lease's deadline.
    pub client: kube::Client,
    /// Ends it.
    pub stop: CancellationToken,
    /// Ends the binds that have not sent their Binding yet, and no others. Cancelled with `stop` at the latest.
    pub closing: CancellationToken,
    /// Each Binding under way reads.
    posts: Arc<RwLock<()>>,
    /// What is known, and decided on.
    pub cluster: Arc<Cluster>,
    /// Its number among the terms of this process.
    number: u64,
    /// What it counts.
    pub metrics: Metrics,
    /// The admins' policies, as they are now.
    pub policies: InForce,
    /// How many Bindings may be under way.
    pub in_flight: Arc<InFlight>,
    /// How many Events may be written.
    pub events: events::Limit,
    /// Of marked Bindings.
    attempts: AtomicU64,
    deadline: OnceLock<Deadline>,
    lease_uid: OnceLock<String>,
    /// Who waits for a node.
    bells: Mutex<HashMap<NodeName, watch::Sender<()>>>,
    unconfirmed: Mutex<BTreeSet<PodUid>>,
    /// Rings when there are pods to confirm.
    pub confirm: Notify,
    /// Rings when room may have come.
    pub room: Notify,
}

impl std::fmt::Debug for Term {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Term").finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing panics while it holds these locks; if it did, the API server's state would still decide what is true.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Term {
    /// The term of `epoch`, or of a higher one, until `stop`.
    #[must_use]
    pub fn begin(
        cluster: &Arc<Cluster>,
        client: kube::Client,
        metrics: Metrics,
        epoch: u64,
        stop: CancellationToken,
    ) -> Arc<Self> {
        let term = Self::of(cluster.clone(), client, metrics, stop);
        cluster.begin(&term, epoch);
        term
    }

    /// The term of a leader that knows nothing yet, and so nothing that is old.
    #[cfg(test)]
    pub(crate) fn new(
        client: kube::Client,
        metrics: Metrics,
        epoch: u64,
        terms: kerf_core::packing::Terms,
        policies: InForce,
        stop: CancellationToken,
    ) -> Arc<Self> {
        let seen_nodes = crate::plugin_layout::SeenNodes::default();
        let cluster = Cluster::new(ClusterIndex::new(epoch, terms), policies, seen_nodes);
        let term = Self::of(cluster.clone(), client, metrics, stop);
        cluster.begin_as_it_is(&term);
        term
    }

    fn of(
        cluster: Arc<Cluster>,
        client: kube::Client,
        metrics: Metrics,
        stop: CancellationToken,
    ) -> Arc<Self> {
        Arc::new(Self {
            client,
            closing: stop.child_token(),
            posts: Arc::default(),
            stop,
            metrics,
            policies: cluster.policies.clone(),
            in_flight: Arc::default(),
            events: events::Limit::default(),
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

    /// The term is one of this Lease.
    pub fn set_lease_uid(&self, uid: String) {
        // A term has one Lease: a second one would be ignored.
        let _ = self.lease_uid.set(uid);
    }

    /// The term ends at the deadline of its Lease.
    pub fn set_deadline(&self, deadline: Deadline) {
        // A term has one deadline: a second one would be ignored.
        let _ = self.deadline.set(deadline);
    }

    /// The deadline of its Lease.
    #[must_use]
    pub fn deadline(&self) -> Option<&Deadline> {
        self.deadline.get()
    }

    /// A number that no other marked Binding of the term has.
    #[must_use]
    pub fn next_attempt(&self) -> u64 {
        self.attempts.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// The Lease that the leader holds, and its epoch, as a Binding carries them.
    #[must_use]
    pub fn lead(&self, epoch: u64) -> String {
        let uid = self.lease_uid.get().map_or("", String::as_str);
        format!("{uid}/{epoch}")
    }

    /// Its number among the terms of this process.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Asks or tells the index, and passes on what follows from it. Once the term has ended, `act` finds an empty index.
    pub fn with<R>(&self, act: impl FnOnce(&mut ClusterIndex) -> R) -> R {
        self.cluster.with_term(self.number, act).unwrap_or_else(|act| act(&mut ClusterIndex::default()))
    }

    /// The same where a caller gets the result as its answer; `None` once the term has ended.
    pub fn answer<R>(&self, act: impl FnOnce(&mut ClusterIndex) -> R) -> Option<R> {
        self.cluster.with_term(self.number, act).ok()
    }

    /// Waits until this holds of the index.
    pub async fn until(&self, holds: impl Fn(&ClusterIndex) -> bool) {
        self.cluster.until(holds).await;
    }

    /// The term has ended: it decides nothing any more.
    pub fn end(&self) {
        self.cluster.end(self.number);
    }

    /// Leave to send a Binding, kept until its outcome is noted; `None` once the term is ending.
    #[must_use]
    pub fn open_post(&self) -> Option<OwnedRwLockReadGuard<()>> {
        let open = self.posts.clone().try_read_owned().ok()?;
        (!self.closing.is_cancelled()).then_some(open)
    }

    /// Lets no further Binding be sent, and waits until those under way have ended.
    pub async fn close(&self) {
        self.closing.cancel();
        let _none_is_open = self.posts.write().await;
    }

    /// Hears of the changes at a node from now on.
    pub fn watch_node(&self, node: &NodeName) -> watch::Receiver<()> {
        lock(&self.bells).entry(node.clone()).or_default().subscribe()
    }

    /// The pods that are to be looked up.
    pub fn take_unconfirmed(&self) -> BTreeSet<PodUid> {
        std::mem::take(&mut lock(&self.unconfirmed))
    }

    /// Does what follows from what the index was told.
    pub(crate) fn pass_on(self: &Arc<Self>, effects: Effects) {
        for released in &effects.released {
            let (pod, uid, node) = (&released.pod, &released.uid, &released.node);
            tracing::info!(%pod, %uid, %node, why = %released.why, "released");
        }
        for eviction in effects.evictions {
            tokio::spawn(evict::evict(self.clone(), eviction));
        }
        for held_back in effects.held_back {
            let term = self.clone();
            tokio::spawn(async move {
                let HeldBack { uid, pod, over } = held_back;
                tracing::info!(%pod, %uid, %over, "held back by its namespace's quota");
                events::tell(&term, &pod, &uid, Topic::QuotaFull, over.to_string()).await;
            });
        }
        for NobodyPreempted { uid, pod, note } in effects.nobody_preempted {
            let term = self.clone();
            tokio::spawn(async move {
                events::tell(&term, &pod, &uid, Topic::NobodyPreempted, note).await;
            });
        }
        for order in effects.orders {
            tokio::spawn(self.clone().order(order));
        }
        if effects.deposed {
            tracing::error!("a leader of a newer epoch was heard of: this term ends");
            self.stop.cancel();
        }
        let mut bells = lock(&self.bells);
        for node in &effects.changed {
            if let Entry::Occupied(bell) = bells.entry(node.clone())
                && bell.get().send(()).is_err()
            {
                // Nobody waits any more.
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

    /// Tells a node's agent what became of a Binding, by its next connection if this one ends before it has answered.
    pub async fn tell(&self, node: &NodeName, order: &Order) {
        for _ in 0..TELLS {
            if self.deadline().is_some_and(Deadline::has_passed) {
                return;
            }
            let sent = async {
                let connection = self.cluster.agents.connection(node).ok_or(Disconnected)?;
                connection.order(order).await
            };
            match sent.await {
                Ok(_) | Err(NotSent::NotLeading(_)) => return,
                Err(NotSent::Disconnected(_)) => tokio::time::sleep(TELL_INTERVAL).await,
            }
        }
    }

    /// Sends an order that no bind waits for.
    async fn order(self: Arc<Self>, NodeOrder { node, connection, order }: NodeOrder) {
        let sent = async {
            let found = self.cluster.agents.connection(&node).filter(|found| found.id() == connection)?;
            found.order(&order).await.ok()
        };
        let answer = sent.await;
        if let Some(Err(rejection)) = &answer {
            tracing::info!(%node, ?order, %rejection, "agent rejected an order");
        }
        if let OrderKind::Release { uid, .. } = &order.kind {
            self.with(|index| match answer {
                Some(Err(Rejection::BindingOpen)) => index.release_rejected(uid, &node, connection),
                _ => index.release_answered(uid, &node, connection),
            });
        }
    }
}
