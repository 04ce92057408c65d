//! From the scheduler's choice to a bound pod: promise, commit, wait for the slices, send the Binding.
//!
//! The promise outlives the request. A time-out, or a scheduler that hangs up, ends the request only: the pod's next
//! filter finds the promise. The Binding is sent only while the request is open, for a scheduler that gave up has
//! forgotten what else it assumed for the pod.

mod over_stream;

use crate::binding::{self, BindingError};
use crate::cluster_index::{Progress, Promise, Unreservable};
use crate::events::{self, Topic};
use crate::metrics::Outcome;
use crate::pod::KnownPod;
use crate::term::Term;
use crate::wire::BindArgs;
use jiff::Timestamp;
use kerf_core::contract::{AssignedSlice, AssignmentDocument};
use kerf_core::ledger::{BindFailure, Rejection};
use kerf_core::names::{NodeName, PodKey, PodUid};
use kerf_core::packing::Refusal;
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;
use tokio::time::{Instant, timeout_at};

/// How long after the gate the Binding itself may take. With the default gate of 4 s this stays under the 5 s that
/// kube-scheduler waits (`DefaultExtenderTimeout`).
const POST_GRACE: Duration = Duration::from_millis(800);

/// Why a pod was not bound. The scheduler shows the text in an event.
#[derive(Debug, Error)]
pub enum BindError {
    /// The node cannot serve it.
    #[error("{0}")]
    Refused(Refusal),
    /// Its slice is not ready in time.
    #[error("slice is being cut; the reservation stays")]
    StillCutting,
    /// The promise could not be written in time.
    #[error("reservation is being written; it stays")]
    StillWriting,
    /// Its slice could not be made, or the promise not be written.
    #[error("{0}; the pod is placed anew")]
    Failed(String),
    /// Its promise is gone.
    #[error("the slice was taken, or the pod has ended, meanwhile")]
    Lost,
    /// This replica does not lead any more.
    #[error("not the leader any more")]
    Deposed,
    /// It failed between this leader and the node's agent, which keeps the node's ledger.
    #[error(transparent)]
    Agent(#[from] BindFailure),
    /// The API server did not take the Binding.
    #[error(transparent)]
    Binding(#[from] BindingError),
}

impl BindError {
    /// How this is counted.
    #[must_use]
    pub fn outcome(&self) -> Outcome {
        match self {
            Self::Refused(_) | Self::Lost => Outcome::Refused,
            Self::StillCutting | Self::StillWriting => Outcome::TimedOut,
            Self::Deposed => Outcome::NotLeader,
            Self::Failed(_) | Self::Binding(_) => Outcome::Error,
            Self::Agent(failure) => outcome(failure),
        }
    }
}

fn outcome(failure: &BindFailure) -> Outcome {
    match failure {
        BindFailure::Rejected(Rejection::OldEpoch) | BindFailure::Deposed => Outcome::NotLeader,
        BindFailure::Rejected(_) | BindFailure::Released => Outcome::Refused,
        BindFailure::NoAnswer | BindFailure::NotReady | BindFailure::Expiring => Outcome::TimedOut,
        BindFailure::SliceFailed(_)
        | BindFailure::Disconnected
        | BindFailure::Refused
        | BindFailure::Unknown => Outcome::Error,
    }
}

impl From<Unreservable> for BindError {
    fn from(error: Unreservable) -> Self {
        match error {
            Unreservable::Refused(refusal) => Self::Refused(refusal),
            Unreservable::UnknownPod => Self::Lost,
        }
    }
}

/// What a bound pod's owner is told.
fn note(node: &NodeName, assignment: &AssignmentDocument) -> String {
    let slice = |slice: &AssignedSlice| {
        format!("{} ({}) of {} for container {}", slice.id, slice.shape, slice.gpu, slice.container)
    };
    let slices: Vec<String> = assignment.slices.iter().map(slice).collect();
    let passed = assignment.passed.iter().map(|kind| format!("; {kind}"));
    format!("on node {node}: slice {}{}", slices.join(", slice "), passed.collect::<String>())
}

/// A pod on its way to a node.
#[derive(Debug, Clone)]
pub struct Bind {
    /// Its UID.
    pub uid: PodUid,
    /// Its namespace and name.
    pub key: PodKey,
    /// The node.
    pub node: NodeName,
}

impl From<BindArgs> for Bind {
    fn from(args: BindArgs) -> Self {
        Self {
            uid: PodUid::new(args.pod_uid),
            key: PodKey::new(args.pod_namespace, args.pod_name),
            node: NodeName::new(args.node),
        }
    }
}

/// Binds a pod. Dropping the future ends the request and keeps the promise.
pub async fn bind(term: &Arc<Term>, bind: Bind, gate: Duration) -> Result<(), BindError> {
    let began = Instant::now();
    let open = OpenBind::begin(term, &bind);
    let result = bind.run(term, began + gate).await;
    drop(open);
    let (pod, node, ms) = (&bind.key, &bind.node, began.elapsed().as_millis());
    match &result {
        Ok(()) => tracing::info!(%pod, uid = %bind.uid, %node, ms, "bound"),
        Err(error) => tracing::info!(%pod, uid = %bind.uid, %node, ms, reason = %error, "not bound"),
    }
    result
}

/// A bind under way: its reservation is in use. Dropped when the request ends, however it does.
struct OpenBind {
    term: Arc<Term>,
    uid: PodUid,
    node: NodeName,
}

impl OpenBind {
    fn begin(term: &Arc<Term>, bind: &Bind) -> Self {
        term.with(|index| index.begin_bind(&bind.uid));
        Self { term: term.clone(), uid: bind.uid.clone(), node: bind.node.clone() }
    }
}

impl Drop for OpenBind {
    fn drop(&mut self) {
        self.term.with(|index| index.end_bind(&self.uid, &self.node, std::time::Instant::now()));
    }
}

impl Bind {
    async fn run(&self, term: &Arc<Term>, gate: Instant) -> Result<(), BindError> {
        if term.with(|index| index.keeps_ledger(&self.node)) {
            return self.run_over_stream(term, gate).await;
        }
        let assignment = tokio::select! {
            () = term.closing.cancelled() => return Err(BindError::Deposed),
            prepared = self.prepare(term, gate) => prepared?,
        };
        self.post(term, assignment, gate + POST_GRACE).await
    }

    /// Sends the Binding, and gives it up at `until`.
    async fn post(
        &self,
        term: &Arc<Term>,
        assignment: Option<AssignmentDocument>,
        until: Instant,
    ) -> Result<(), BindError> {
        // Held until the outcome is noted: a leader that ends in order waits for it.
        let Some(_open) = term.open_post() else { return Err(BindError::Deposed) };
        let epoch = term.with(|index| {
            index.begin_post(&self.uid, &self.key, until.into_std());
            index.epoch()
        });
        let post = binding::post(&term.client, self, assignment.as_ref(), term.lead(epoch));
        let post = timeout_at(until, post).await;
        match post.unwrap_or(Err(BindingError::TimedOut)) {
            Ok(()) => {
                let (counted, stages, commands) = term.with(|index| {
                    index.bound(&self.uid, &self.key, &self.node);
                    let stages = index.arrive(&self.uid, std::time::Instant::now());
                    (index.counted(&self.uid), stages, index.may_command_mps(&self.uid))
                });
                term.metrics.bound(counted, stages, Timestamp::now());
                if commands {
                    tokio::spawn(self.clone().warn_of_commands(term.clone()));
                }
                if let Some(assignment) = assignment {
                    // Nothing waits for it.
                    tokio::spawn(self.clone().tell(term.clone(), assignment));
                }
                Ok(())
            }
            Err(error) => {
                if error.is_definite() {
                    term.with(|index| index.post_refused(&self.uid, until.into_std()));
                }
                Err(error.into())
            }
        }
    }

    /// Reserves, and waits until the slices are there. Gives the assignment, if the pod is assigned something.
    async fn prepare(
        &self,
        term: &Arc<Term>,
        gate: Instant,
    ) -> Result<Option<AssignmentDocument>, BindError> {
        match self.reserve(term, gate).await? {
            Some(promise) => self.ready(term, &promise, gate).await,
            None => Ok(None),
        }
    }

    /// Tells the pod's owner which slices it has got.
    async fn tell(self, term: Arc<Term>, assignment: AssignmentDocument) {
        let note = note(&self.node, &assignment);
        events::tell(&term.client, &self.key, &self.uid, Topic::SlicesAssigned, note).await;
    }

    /// Tells that the pod's processes may be root, which its policy allows beside an MPS daemon.
    async fn warn_of_commands(self, term: Arc<Term>) {
        let note = "its containers may run as root, and mps.rootContainers of its policy is allow: they can change limits of their GPU's MPS daemon and end their neighbours' work; set spec.hostUsers: false, or runAsNonRoot: true and allowPrivilegeEscalation: false".to_owned();
        events::tell(&term.client, &self.key, &self.uid, Topic::MayCommandMps, note).await;
    }

    /// What is promised to the pod; `None` for one that asks for nothing.
    async fn reserve(&self, term: &Arc<Term>, gate: Instant) -> Result<Option<Promise>, BindError> {
        let reserve = |ask| {
            term.with(|index| {
                let result = index.reserve(&self.uid, &self.key, &self.node, ask);
                if result.as_ref().is_ok_and(|promise| !promise.kept) {
                    index.set_out(&self.uid, std::time::Instant::now());
                }
                result
            })
        };
        let first = match reserve(None) {
            Err(Unreservable::UnknownPod) => {
                let pod = self.pod(term, gate).await?;
                if pod.asks_for_nothing {
                    return Ok(None);
                }
                match pod.ask() {
                    Err(Refusal::NotAdmitted) if !pod.devices.is_empty() => {
                        term.with(|index| index.reserve_plain(&pod, &self.node))
                    }
                    ask => reserve(Some(ask.map_err(BindError::Refused)?)),
                }
            }
            result => result,
        };
        if first.as_ref().is_ok_and(|promise| !promise.kept) {
            term.metrics.reserved(term.with(|index| index.counted(&self.uid)), Timestamp::now());
        }
        Ok(Some(first?))
    }

    /// The pod as the API server has it.
    async fn pod(&self, term: &Arc<Term>, gate: Instant) -> Result<KnownPod, BindError> {
        let pod = timeout_at(gate, binding::pod(&term.client, &self.key, &self.uid)).await;
        pod.unwrap_or(Err(BindingError::TimedOut))?.ok_or(BindError::Lost)
    }

    /// Waits until all slices are ready, and logs the commit on the way. What is promised on a static node is there.
    async fn ready(
        &self,
        term: &Arc<Term>,
        promise: &Promise,
        gate: Instant,
    ) -> Result<Option<AssignmentDocument>, BindError> {
        let mut changes = term.watch_node(&self.node);
        let mut logged = false;
        loop {
            changes.mark_unchanged();
            let late = match term.with(|index| index.progress(&self.uid, &self.node)) {
                Progress::Ready(assignment) => {
                    return Ok(Some(assignment));
                }
                Progress::Bare => return Ok(None),
                Progress::Failed(reason) => return Err(BindError::Failed(reason)),
                Progress::Lost => return Err(BindError::Lost),
                Progress::Writing => BindError::StillWriting,
                Progress::Cutting { revision } => {
                    if !std::mem::replace(&mut logged, true) {
                        self.log_promise(promise, revision);
                    }
                    BindError::StillCutting
                }
            };
            if timeout_at(gate, changes.changed()).await.is_err() {
                return Err(late);
            }
        }
    }

    fn log_promise(&self, promise: &Promise, revision: u64) {
        let source = match (promise.kept, promise.cut.is_empty()) {
            (true, _) => "kept",
            (false, true) => "idle",
            (false, false) => "cut",
        };
        let slices: Vec<String> =
            promise.slices.iter().map(|s| format!("{} ({}) on {}", s.id, s.shape, s.gpu)).collect();
        let (pod, node, slices) = (&self.key, &self.node, slices.join(", "));
        tracing::info!(%pod, uid = %self.uid, %node, slices, source, revision, "reserved");
    }
}

#[cfg(test)]
#[path = "bind_tests.rs"]
mod stream_tests;
#[cfg(test)]
mod tests {
    use super::*;
    use kerf_core::contract::PassedKind;
    use kerf_core::kind::Kind;
    use kerf_core::testing::h100_shape;

    #[test]
    fn a_bound_pods_owner_is_told_its_slices_and_what_was_passed_over() {
        let slice = AssignedSlice {
            container: "main".to_owned(),
            id: "s1".into(),
            gpu: "GPU-0".into(),
            shape: h100_shape("1g.10gb", 0),
        };
        let mut assignment =
            AssignmentDocument { version: 1, slices: vec![slice], devices: Vec::new(), passed: Vec::new() };
        let plain = "on node n: slice s1 (1g.10gb at 0:1) of GPU-0 for container main";
        assert_eq!(note(&"n".into(), &assignment), plain);
        assignment.passed.push(PassedKind { kind: Kind::Mps, full: 12, never: 0, excluded: 0, tainted: 0 });
        let passed = format!("{plain}; mps was preferred: no free capacity on 12 nodes");
        assert_eq!(note(&"n".into(), &assignment), passed);
    }
}
