//! The pods of the node and their stages: seen, admitted, running, ended.
//!
//! It decides what an event of the watch requires, and leaves the action to the caller.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use tokio_util::sync::CancellationToken;

use super::active::{ActivePod, ActivePods};
use super::admission::Rejection;
use super::demand::{ContainerRole, PodDemand, PodKey};
use super::devices::locked;
use super::status::ContainerStates;

/// The API's default grace period.
const DEFAULT_GRACE: Duration = Duration::from_secs(30);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// Seen, but not admitted yet.
    Waiting,
    /// Being admitted by the device manager.
    Admitting,
    /// Admitted; its containers run or are starting.
    Running,
    /// Its containers will not run again: completed, rejected or stopped.
    Ended,
}

/// The action that an event requires.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    Nothing,
    /// Queue the pod for its admission.
    Admit,
    /// It already ran before this kubelet started, so keep it.
    Adopt,
    /// It is being deleted and no container runs, so remove it from the API.
    Remove,
}

pub(super) struct Admission {
    pub(super) pod: Arc<Pod>,
    /// The running containers of a pod that ran before the kubelet's process started; `None` for a new pod.
    pub(super) running: Option<BTreeSet<String>>,
}

struct PodRecord {
    pod: Arc<Pod>,
    active: ActivePod,
    stage: Stage,
    deleting: bool,
    gone: bool,
    /// Whether a restarted kubelet must admit it again.
    again: bool,
    /// Why a restarted kubelet ended it.
    refusal: Option<Rejection>,
    states: Arc<Mutex<ContainerStates>>,
    stop: CancellationToken,
}

/// All pods bound to the node, by UID.
pub(super) struct PodTable {
    records: Mutex<BTreeMap<String, PodRecord>>,
    /// Whether the pods were listed since the kubelet's process started.
    are_known: AtomicBool,
    halted: CancellationToken,
}

impl PodTable {
    /// An empty table. Cancelling `halted` stops all pods.
    pub(super) fn new(halted: CancellationToken) -> Self {
        Self { records: Mutex::default(), are_known: AtomicBool::new(false), halted }
    }

    /// Records a pod as it is in the API server now.
    pub(super) fn observe(&self, pod: Arc<Pod>) -> Step {
        let mut records = locked(&self.records);
        let deleting = pod.metadata.deletion_timestamp.is_some();
        let Some(uid) = pod.metadata.uid.clone() else { return Step::Nothing };
        if let Some(record) = records.get_mut(&uid) {
            record.pod = pod;
            return record.update(deleting);
        }
        let (record, step) = PodRecord::first_seen(pod, deleting, self.halted.child_token());
        records.insert(uid, record);
        step
    }

    /// Records that a complete list was observed, so pods that are not in it are gone.
    pub(super) fn keep_only(&self, listed: &BTreeSet<String>) {
        let known: Vec<String> = locked(&self.records).keys().cloned().collect();
        for uid in known.iter().filter(|uid| !listed.contains(*uid)) {
            self.gone(uid);
        }
    }

    /// Records that the pod is gone from the API server.
    pub(super) fn gone(&self, uid: &str) {
        let mut records = locked(&self.records);
        let Some(record) = records.get_mut(uid) else { return };
        record.gone = true;
        record.stop.cancel();
        // Only pods without processes are removed here, because `ended` removes others once their containers have
        // stopped.
        if matches!(record.stage, Stage::Waiting | Stage::Ended) {
            records.remove(uid);
        }
    }

    /// Begins a pod's admission; `None` if it is no longer due.
    pub(super) fn begin_admission(&self, uid: &str) -> Option<Admission> {
        let mut records = locked(&self.records);
        let record = records.get_mut(uid)?;
        let pod = Arc::clone(&record.pod);
        match record.stage {
            Stage::Waiting => {
                record.stage = Stage::Admitting;
                Some(Admission { pod, running: None })
            }
            Stage::Running if std::mem::take(&mut record.again) => {
                let states = locked(&record.states);
                let running = states.iter().filter(|(_, state)| state.started.is_some());
                Some(Admission { pod, running: Some(running.map(|(name, _)| name.clone()).collect()) })
            }
            _ => None,
        }
    }

    /// Ends a running pod that a restarted kubelet rejects.
    pub(super) fn refuse(&self, uid: &str, refusal: Rejection) {
        if let Some(record) = locked(&self.records).get_mut(uid) {
            record.refusal = Some(refusal);
            record.stop.cancel();
        }
    }

    /// Why a restarted kubelet ended the pod.
    pub(super) fn refusal(&self, uid: &str) -> Option<Rejection> {
        locked(&self.records).get(uid)?.refusal.clone()
    }

    /// The states of the pod's containers, shared with the task that runs them.
    pub(super) fn states(&self, uid: &str) -> Arc<Mutex<ContainerStates>> {
        locked(&self.records).get(uid).map(|record| Arc::clone(&record.states)).unwrap_or_default()
    }

    /// Marks the pod as running, and returns the token that stops its containers.
    pub(super) fn start(&self, uid: &str) -> CancellationToken {
        let mut records = locked(&self.records);
        let Some(record) = records.get_mut(uid) else { return cancelled() };
        record.stage = Stage::Running;
        record.stop.clone()
    }

    /// Records that none of the pod's containers runs any more. True if it is being deleted, so that it can
    /// be removed from the API.
    pub(super) fn ended(&self, uid: &str) -> bool {
        let mut records = locked(&self.records);
        let Some(record) = records.get_mut(uid) else { return false };
        record.stage = Stage::Ended;
        if record.gone {
            records.remove(uid);
            return false;
        }
        record.deleting
    }

    /// The grace period between TERM and KILL of the pod's processes.
    pub(super) fn grace(&self, uid: &str) -> Duration {
        let seconds = locked(&self.records).get(uid).and_then(|record| {
            let spec = record.pod.spec.as_ref();
            let usual = spec.and_then(|spec| spec.termination_grace_period_seconds);
            record.pod.metadata.deletion_grace_period_seconds.or(usual)
        });
        seconds.map_or(DEFAULT_GRACE, |seconds| Duration::from_secs(u64::try_from(seconds).unwrap_or(0)))
    }

    /// Records that the first complete list since the kubelet's start was observed.
    pub(super) fn became_known(&self) {
        self.are_known.store(true, Ordering::Relaxed);
    }

    /// Records that the kubelet's process ended. The next one has no pods at first, and must admit again
    /// those that were being admitted and those that run.
    pub(super) fn interrupted(&self) {
        self.are_known.store(false, Ordering::Relaxed);
        for record in locked(&self.records).values_mut() {
            match record.stage {
                Stage::Admitting => record.stage = Stage::Waiting,
                Stage::Running => record.again = true,
                Stage::Waiting | Stage::Ended => {}
            }
        }
    }

    /// The pods whose containers run or will run, even if the kubelet's process has not listed them yet.
    pub(super) fn unended(&self) -> Vec<ActivePod> {
        let records = locked(&self.records);
        let active = records.values().filter(|record| record.stage != Stage::Ended);
        active.map(|record| record.active.clone()).collect()
    }

    /// The sum of this resource's limits over the other admitted active pods.
    pub(super) fn in_use(&self, resource: &str, except: &str) -> usize {
        let records = locked(&self.records);
        let running = records.iter().filter(|(uid, record)| *uid != except && record.stage == Stage::Running);
        running.filter_map(|(_, record)| PodDemand::from_pod(&record.pod).peak().get(resource).copied()).sum()
    }

    /// Whether the pod's spec has a container of this name, including init containers.
    pub(super) fn has_container(&self, uid: &str, container: &str) -> bool {
        let records = locked(&self.records);
        let demand = records.get(uid).map(|record| PodDemand::from_pod(&record.pod));
        demand.is_some_and(|demand| demand.containers.iter().any(|known| known.name == container))
    }

    /// The UID of a pod by its key. Of two pods with the same key it is the active one's.
    pub(super) fn find(&self, key: &PodKey) -> Option<String> {
        let records = locked(&self.records);
        let mut same = records.iter().filter(|(_, record)| record.active.key == *key).collect::<Vec<_>>();
        same.sort_by_key(|(_, record)| record.stage == Stage::Ended);
        same.first().map(|(uid, _)| (*uid).clone())
    }
}

impl ActivePods for PodTable {
    fn active(&self) -> Vec<ActivePod> {
        if self.are_known() { self.unended() } else { Vec::new() }
    }

    fn are_known(&self) -> bool {
        self.are_known.load(Ordering::Relaxed)
    }
}

impl PodRecord {
    fn first_seen(pod: Arc<Pod>, deleting: bool, token: CancellationToken) -> (Self, Step) {
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        let (stage, step) = match phase {
            Some("Succeeded" | "Failed") if deleting => (Stage::Ended, Step::Remove),
            Some("Succeeded" | "Failed") => (Stage::Ended, Step::Nothing),
            Some("Running") => (Stage::Running, Step::Adopt),
            _ if deleting => (Stage::Ended, Step::Remove),
            _ => (Stage::Waiting, Step::Admit),
        };
        if deleting {
            token.cancel();
        }
        let active = active_pod(&pod);
        let states = Arc::default();
        let (gone, again, refusal) = (false, false, None);
        (Self { pod, active, stage, deleting, gone, again, refusal, states, stop: token }, step)
    }

    fn update(&mut self, deleting: bool) -> Step {
        if !deleting || self.deleting {
            let again = self.again && !deleting;
            return if self.stage == Stage::Waiting || again { Step::Admit } else { Step::Nothing };
        }
        self.deleting = true;
        self.stop.cancel();
        match self.stage {
            Stage::Waiting => {
                self.stage = Stage::Ended;
                Step::Remove
            }
            Stage::Ended => Step::Remove,
            Stage::Admitting | Stage::Running => Step::Nothing,
        }
    }
}

fn active_pod(pod: &Pod) -> ActivePod {
    let demand = PodDemand::from_pod(pod);
    let lasting = demand.containers.iter().filter(|container| container.role != ContainerRole::Init);
    let containers = lasting.map(|container| container.name.clone()).collect();
    ActivePod { key: demand.key, uid: demand.uid, containers }
}

fn cancelled() -> CancellationToken {
    let token = CancellationToken::new();
    token.cancel();
    token
}
