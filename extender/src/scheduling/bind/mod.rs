//! Binds a pod to the scheduler's choice: reserve, wait for the slices, send the Binding.
//!
//! The reservation outlives the request. A timeout, or a scheduler that hangs up, ends the request only, and the pod's
//! next filter finds the reservation. The Binding is sent only while the request is open, because a scheduler that hung
//! up has forgotten what else it assumed for the pod.

mod over_stream;

use crate::cluster_index::{Reserved, Unreservable};
use crate::events::EventReason;
use crate::metric_labels::Outcome;
use crate::objects::ask::Ask;
use crate::objects::pod::KnownPod;
use crate::scheduling::binding::{self, Bind, BindingError};
use crate::term::Term;
use jiff::Timestamp;
use kerf_core::contract::{AssignedSlice, AssignmentDocument};
use kerf_core::ledger::{BindFailure, Rejection};
use kerf_core::names::{NodeName, PodUid};
use kerf_core::packing::Refusal;
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;
use tokio::time::{Instant, timeout_at};

/// How long the Binding itself may take after the gate. With the default gate of 4 s this stays under the 5 s that
/// kube-scheduler waits (`DefaultExtenderTimeout`).
const BINDING_TIMEOUT: Duration = Duration::from_millis(800);

/// Why a pod was not bound. kube-scheduler shows the text in an Event.
#[derive(Debug, Error)]
pub enum BindError {
    /// The node cannot serve the pod.
    #[error("{0}")]
    Refused(Refusal),
    /// The pod has ended, or its reservation no longer exists.
    #[error("the slice was taken, or the pod has ended, meanwhile")]
    Lost,
    /// The index has neither the pod nor its request.
    #[error("the pod is unknown")]
    Unknown,
    #[error("not the leader any more")]
    Deposed,
    /// The reservation failed between this leader and the node's agent.
    #[error(transparent)]
    Agent(#[from] BindFailure),
    /// The API server did not accept the Binding, or its answer is missing.
    #[error(transparent)]
    Binding(#[from] BindingError),
}

impl BindError {
    /// The outcome under which metrics count this error.
    #[must_use]
    pub fn outcome(&self) -> Outcome {
        match self {
            Self::Refused(_) | Self::Lost | Self::Unknown => Outcome::Refused,
            Self::Deposed => Outcome::NotLeader,
            Self::Binding(_) => Outcome::Error,
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
            Unreservable::UnknownPod => Self::Unknown,
        }
    }
}

/// The message of the Event about a bound pod.
fn note(node: &NodeName, assignment: &AssignmentDocument) -> String {
    let slice = |slice: &AssignedSlice| {
        format!("{} ({}) of {} for container {}", slice.id, slice.shape, slice.gpu, slice.container)
    };
    let slices: Vec<String> = assignment.slices.iter().map(slice).collect();
    let passed = assignment.passed.iter().map(|kind| format!("; {kind}"));
    format!("on node {node}: slice {}{}", slices.join(", slice "), passed.collect::<String>())
}

/// Binds a pod. Dropping the future ends the request but keeps the reservation.
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

/// Marks a pod's reservation as in use while its bind is open. It is dropped when the request ends, in whatever way.
struct OpenBind {
    term: Arc<Term>,
    uid: PodUid,
    node: NodeName,
}

impl OpenBind {
    fn begin(term: &Arc<Term>, bind: &Bind) -> Self {
        term.with(|index| index.bindings().begin(&bind.uid));
        Self { term: term.clone(), uid: bind.uid.clone(), node: bind.node.clone() }
    }
}

impl Drop for OpenBind {
    fn drop(&mut self) {
        self.term.with(|index| index.reserving().end_bind(&self.uid, &self.node, std::time::Instant::now()));
    }
}

impl Bind {
    async fn run(&self, term: &Arc<Term>, gate: Instant) -> Result<(), BindError> {
        let first = self.run_with(term, None, gate).await;
        if !matches!(first, Err(BindError::Unknown)) {
            return first;
        }
        // The watch may not have shown a new pod yet, so the API server is asked.
        let pod = tokio::select! {
            () = term.closing.cancelled() => return Err(BindError::Deposed),
            pod = self.pod(term, gate) => pod?,
        };
        let until = gate + BINDING_TIMEOUT;
        match pod.ask() {
            // The scheduler calls the extender for every pod that names one of its resources, even with the amount 0.
            _ if pod.template.asks_for_nothing => self.post(term, None, until).await,
            Err(Refusal::NotAdmitted) if !pod.template.devices.is_empty() => {
                term.with(|index| index.reserving().reserve_plain(&pod, &self.node))
                    .map_err(BindError::Refused)?;
                self.post(term, None, until).await
            }
            ask => self.run_with(term, Some(ask.map_err(BindError::Refused)?), gate).await,
        }
    }

    /// Binds a pod whose request is in the index, or that asks for `ask`.
    async fn run_with(&self, term: &Arc<Term>, ask: Option<Ask>, gate: Instant) -> Result<(), BindError> {
        match self.run_once(term, ask.clone(), gate).await {
            // The copy was older than the agent's state and has caught up by now, so one more proposal is worth it.
            Err(BindError::Agent(failure)) if failure.is_stale_proposal() && Instant::now() < gate => {
                self.run_once(term, ask, gate).await
            }
            result => result,
        }
    }

    async fn run_once(&self, term: &Arc<Term>, ask: Option<Ask>, gate: Instant) -> Result<(), BindError> {
        match self.reserve(term, ask)? {
            Reserved::Proposed { proposal, connection } => {
                let connection = connection.ok_or(BindFailure::Disconnected)?;
                self.run_over_stream(term, proposal, connection, gate).await
            }
            Reserved::Assigned(assignment) => self.post(term, Some(assignment), gate + BINDING_TIMEOUT).await,
        }
    }

    fn reserve(&self, term: &Arc<Term>, ask: Option<Ask>) -> Result<Reserved, BindError> {
        let (reserved, is_first, counted) = term.with(|index| {
            let is_first = index.place_of(&self.uid).is_none();
            let reserved = index.reserving().reserve(&self.uid, &self.key, &self.node, ask)?;
            if is_first {
                index.reserving().stages().start_stages(&self.uid, std::time::Instant::now());
            }
            Ok::<_, Unreservable>((reserved, is_first, index.statistics().counted(&self.uid)))
        })?;
        if is_first {
            term.metrics.reserved(counted, Timestamp::now());
        }
        Ok(reserved)
    }

    /// Sends the Binding, and stops waiting for its answer at `until`.
    async fn post(
        &self,
        term: &Arc<Term>,
        assignment: Option<AssignmentDocument>,
        until: Instant,
    ) -> Result<(), BindError> {
        let leave = tokio::select! {
            () = term.closing.cancelled() => return Err(BindError::Deposed),
            leave = timeout_at(until - BINDING_TIMEOUT, term.in_flight.enter()) => {
                leave.map_err(|_| BindingError::Busy)?
            }
        };
        // The permit is held until the outcome is recorded, because a leader that ends in order waits for it.
        let Some(_open) = term.open_post() else { return Err(BindError::Deposed) };
        // The Binding is recorded before it is sent, so that a lost answer leaves a record of it.
        let epoch = term.with(|index| {
            index.bindings().send(&self.uid, &self.key, until.into_std());
            index.leadership().epoch()
        });
        let post = binding::post(&term.client, self, assignment.as_ref(), term.lead(epoch));
        let posted = timeout_at(until, post).await.unwrap_or(Err(BindingError::TimedOut));
        leave.answered(!posted.as_ref().is_err_and(BindingError::is_overload));
        match posted {
            Ok(()) => {
                let (counted, stages, commands) = term.with(|index| {
                    index.bound(&self.uid, &self.key, &self.node);
                    let stages = index.reserving().stages().end_stages(&self.uid, std::time::Instant::now());
                    (
                        index.statistics().counted(&self.uid),
                        stages,
                        index.statistics().may_command_mps(&self.uid),
                    )
                });
                term.metrics.bound(counted, stages, Timestamp::now());
                if commands {
                    tokio::spawn(self.clone().warn_of_commands(term.clone()));
                }
                if let Some(assignment) = assignment {
                    // The scheduler's answer must not wait for an Event.
                    tokio::spawn(self.clone().publish_assigned(term.clone(), assignment));
                }
                Ok(())
            }
            Err(error) => {
                // Without a definite error the Binding may still be made, so the reservation must stay.
                if error.is_definite() {
                    term.with(|index| index.reserving().refuse_binding(&self.uid, until.into_std()));
                }
                Err(error.into())
            }
        }
    }

    /// Writes an Event that names the pod's slices.
    async fn publish_assigned(self, term: Arc<Term>, assignment: AssignmentDocument) {
        let note = note(&self.node, &assignment);
        term.events.publish(&self.key, &self.uid, EventReason::SlicesAssigned, note).await;
    }

    /// Warns in an Event that the pod's processes may be root, which its policy allows beside an MPS daemon.
    async fn warn_of_commands(self, term: Arc<Term>) {
        let note = "its containers may run as root, and mps.rootContainers of its policy is allow: they can change limits of their GPU's MPS daemon and end their neighbours' work; set spec.hostUsers: false, or runAsNonRoot: true and allowPrivilegeEscalation: false".to_owned();
        term.events.publish(&self.key, &self.uid, EventReason::MayCommandMps, note).await;
    }

    async fn pod(&self, term: &Arc<Term>, gate: Instant) -> Result<KnownPod, BindError> {
        let pod = timeout_at(gate, binding::pod(&term.client, &self.key, &self.uid)).await;
        pod.unwrap_or(Err(BindingError::TimedOut))?.ok_or(BindError::Lost)
    }
}

#[cfg(test)]
mod stream_tests;
#[cfg(test)]
mod tests {
    use super::*;
    use kerf_core::contract::PassedKind;
    use kerf_core::kind::Kind;
    use kerf_core::testing::h100_shape;

    #[test]
    fn the_event_of_a_bound_pod_names_its_slices_and_the_passed_kinds() {
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
