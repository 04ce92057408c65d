//! Pods whose kind of slice stays full while another that their policy allows has room: they are told, or made anew.
//!
//! A pod's kind is chosen when it is created. What is full then may be free later, and the other way round, but the limits
//! of a pod cannot be changed. So an Event says what would serve it, and where policy says so a pod with a controller is
//! deleted, so that the one that its controller makes in its place is chosen for anew. A Job's pod is only told: the Job
//! counts a pod that is deleted before it ends as one that failed, and fails itself after a few of them.
//!
//! A kind of which no node has any is full too: a pod that came before the nodes did was given what the policy names first.

use crate::ask::Ask;
use crate::events::{self, Topic};
use crate::term::Term;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kerf_core::contract::Slices;
use kerf_core::names::{PodKey, PodUid};
use kerf_core::policy::{Alternative, Policies, Policy, Supply, SupplyIndex, WaitedLong, alternative};
use kerf_core::resource::ResourceName;
use kube::api::{Api, DeleteParams, Preconditions};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::time::{sleep, timeout};

/// How often it is looked who has waited long.
const LOOK: Duration = Duration::from_secs(2);
/// A pod that is looked at, or expected on a node, does not wait; after this long it waits no more.
const PAUSE: Duration = Duration::from_secs(10);
/// How many pods are deleted in [`SPAN`] at most: a policy that is wrong does not churn a cluster.
const MOST: usize = 10;
/// See [`MOST`].
const SPAN: Duration = Duration::from_mins(1);
/// How long one call may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// A pod that waits, since it was seen to.
#[derive(Debug, Clone)]
struct Waiter {
    uid: PodUid,
    pod: PodKey,
    ask: Ask,
    waited: Duration,
    /// Why it is not deleted, as far as is known.
    kept: Option<Kept>,
}

/// Why a pod is not deleted, whatever its policy says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kept {
    /// No controller owns it: nobody would make another.
    Orphan,
    /// A Job owns it, which would count it as failed (`backoffLimit`).
    OfJob,
}

impl Kept {
    fn by(owners: &[OwnerReference]) -> Option<Self> {
        let Some(controller) = owners.iter().find(|owner| owner.controller == Some(true)) else {
            return Some(Self::Orphan);
        };
        let is_job = controller.kind == "Job" && controller.api_version.starts_with("batch/");
        is_job.then_some(Self::OfJob)
    }
}

/// What is due for a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Due {
    uid: PodUid,
    pod: PodKey,
    then: WaitedLong,
    found: Alternative,
    waited: Duration,
    kept: Option<Kept>,
}

/// What is due, the longest waiting first. Of what others are made anew for, nothing is offered twice.
fn due(waiters: &[Waiter], supply: &Supply, pending: &Slices<u32>, policies: &Policies) -> Vec<Due> {
    let mut pending = pending.clone();
    let mut all = Vec::new();
    for waiter in waiters {
        let Some(policy) = policy_of(&waiter.ask, policies) else { continue };
        if waiter.waited < after(policy) {
            continue;
        }
        // What the pod itself waits for is in nobody else's way once it is chosen for anew.
        let others = without(&pending, &waiter.ask.document.slices());
        let Some(found) = alternative(policy, &supply.wanted(others.clone()), &waiter.ask.document) else {
            continue;
        };
        let is_kept = found.is_named || waiter.kept.is_some();
        let then = if is_kept { WaitedLong::Tell } else { policy.spec().waiting.then };
        if then == WaitedLong::Recreate {
            pending = others;
            for (name, count) in found.document.slices() {
                *pending.entry(name).or_default() += count;
            }
        }
        let (uid, pod) = (waiter.uid.clone(), waiter.pod.clone());
        all.push(Due { uid, pod, then, found, waited: waiter.waited, kept: waiter.kept });
    }
    all
}

/// What is left of `all` without `own`.
fn without(all: &Slices<u32>, own: &Slices<u32>) -> Slices<u32> {
    let mut left = all.clone();
    for (name, count) in &mut left {
        *count = count.saturating_sub(own.get(name).copied().unwrap_or(0));
    }
    left
}

/// The policy that chose for a pod, as it is now.
fn policy_of<'p>(ask: &Ask, policies: &'p Policies) -> Option<&'p Policy> {
    let chosen = ask.document.chosen.as_ref()?;
    policies.pods.iter().find(|policy| policy.name() == chosen.policy)
}

fn after(policy: &Policy) -> Duration {
    Duration::from_secs(policy.spec().waiting.after_seconds.into())
}

impl Due {
    /// What the pod is told.
    fn note(&self) -> String {
        let Alternative { container, full, other, room, is_named, document } = &self.found;
        let how = if *is_named {
            let size = document.containers.iter().find(|c| c.name == *container).map_or(0, |c| c.size_gb.0);
            format!("ask by size (kerf.dev/gpu-{size}gb) and not by name, and it may be given that")
        } else if self.kept == Some(Kept::OfJob) {
            "create its Job anew, and it is given that (were the pod deleted alone, the Job would count it as failed)"
                .to_owned()
        } else {
            "create the pod anew, and it is given that".to_owned()
        };
        let seconds = self.waited.as_secs();
        format!(
            "container {container} has waited {seconds} s for {full}, which stays full; {other} has room for {room} more: {how}"
        )
    }
}

/// How often something may be done in a span of time.
#[derive(Debug, Default)]
struct Allowance(VecDeque<Instant>);

impl Allowance {
    fn take(&mut self, now: Instant) -> bool {
        while self.0.front().is_some_and(|at| now.duration_since(*at) >= SPAN) {
            self.0.pop_front();
        }
        let may = self.0.len() < MOST;
        if may {
            self.0.push_back(now);
        }
        may
    }

    /// It was not done after all.
    fn give_back(&mut self) {
        self.0.pop_back();
    }
}

/// What is remembered of pods that wait.
#[derive(Debug, Default)]
struct Memory {
    /// When each was seen to wait first and last.
    since: BTreeMap<PodUid, (Instant, Instant)>,
    told: BTreeMap<PodUid, BTreeSet<ResourceName>>,
    /// Pods that were to be deleted and are not.
    kept: BTreeMap<PodUid, Kept>,
    deletions: Allowance,
    /// Whether no pod is deleted: there is no right to.
    only_tells: bool,
    supply: SupplyIndex,
}

impl Memory {
    /// Those who wait now, the longest first. A pod that does not wait for a while, because there seems to be room for it,
    /// begins anew.
    fn waiters(&mut self, refused: Vec<(PodUid, PodKey, Ask)>, now: Instant) -> Vec<Waiter> {
        let Self { since, told, kept, .. } = self;
        since.retain(|_, (_, last)| now.duration_since(*last) < PAUSE);
        told.retain(|uid, _| since.contains_key(uid));
        kept.retain(|uid, _| since.contains_key(uid));
        let waiter = |(uid, pod, ask): (PodUid, PodKey, Ask)| {
            let (first, last) = since.entry(uid.clone()).or_insert((now, now));
            *last = now;
            let kept = kept.get(&uid).copied();
            Waiter { uid, pod, ask, waited: now.duration_since(*first), kept }
        };
        let mut waiters: Vec<_> = refused.into_iter().map(waiter).collect();
        waiters.sort_by_key(|waiter| std::cmp::Reverse(waiter.waited));
        waiters
    }

    /// Whether a pod has not been told of this yet.
    fn is_news(&mut self, due: &Due) -> bool {
        self.told.entry(due.uid.clone()).or_default().insert(due.found.other)
    }
}

/// Looks after those who wait until the term ends.
/// Without `may_delete` all are told, whatever their policies say.
pub async fn run(term: Arc<Term>, may_delete: bool) {
    let mut memory = Memory { only_tells: !may_delete, ..Memory::default() };
    loop {
        tokio::select! {
            () = term.stop.cancelled() => return,
            () = sleep(LOOK) => {}
        }
        look(&term, &mut memory, Instant::now()).await;
    }
}

/// Does what is due now.
async fn look(term: &Arc<Term>, memory: &mut Memory, now: Instant) {
    let refused = term.with(|index| if index.is_listed() { index.refused_pods() } else { Vec::new() });
    let waiters = memory.waiters(refused, now);
    let policies = term.policies.current();
    let is_long =
        |waiter: &Waiter| policy_of(&waiter.ask, &policies).is_some_and(|p| waiter.waited >= after(p));
    if !waiters.iter().any(is_long) {
        return;
    }
    let demand = term.with(|index| {
        index.show_supply(&mut memory.supply);
        index.demand()
    });
    let supply = memory.supply.supply().holding(Arc::new(demand.held));
    for due in due(&waiters, &supply, &demand.pending, &policies) {
        act(term, memory, due, now).await;
    }
}

async fn act(term: &Arc<Term>, memory: &mut Memory, mut due: Due, now: Instant) {
    let (uid, pod) = (due.uid.clone(), due.pod.clone());
    if due.then == WaitedLong::Recreate && !memory.only_tells && memory.deletions.take(now) {
        match timeout(PATIENCE, delete(term, &due)).await {
            Ok(Ok(Deletion::Made)) => {
                let note = format!("{}; it is deleted so that its controller makes another", due.note());
                tracing::info!(%pod, %uid, full = %due.found.full, other = %due.found.other, "made anew");
                return events::tell(&term.client, &pod, &uid, Topic::ChosenAnew, note).await;
            }
            Ok(Ok(Deletion::Needless)) => return memory.deletions.give_back(),
            Ok(Ok(Deletion::Kept(kept))) => {
                memory.deletions.give_back();
                memory.kept.insert(uid.clone(), kept);
                due.kept = Some(kept);
            }
            Ok(Err(error)) => {
                tracing::warn!(%pod, %uid, %error, "a pod that has waited long was not deleted");
            }
            Err(_) => tracing::warn!(%pod, %uid, "a pod that has waited long was not deleted in time"),
        }
    }
    if memory.is_news(&due) {
        tracing::info!(%pod, %uid, full = %due.found.full, other = %due.found.other, "another kind has room");
        events::tell(&term.client, &pod, &uid, Topic::AnotherKindHasRoom, due.note()).await;
    }
}

/// How the deletion of a pod ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Deletion {
    /// It is deleted.
    Made,
    /// It is another pod, on its way out, or has got something meanwhile.
    Needless,
    /// It is one that is not deleted.
    Kept(Kept),
}

/// Deletes a pod whose controller makes another, and that is this one, and has got nothing meanwhile.
async fn delete(term: &Arc<Term>, due: &Due) -> Result<Deletion, kube::Error> {
    let api: Api<Pod> = Api::namespaced(term.client.clone(), &due.pod.namespace);
    let Some(found) = api.get_metadata_opt(&due.pod.name).await? else { return Ok(Deletion::Needless) };
    let is_this = found.metadata.uid.as_deref() == Some(due.uid.as_str());
    let may_wait = term.with(|index| index.may_wait(&due.uid));
    if !is_this || found.metadata.deletion_timestamp.is_some() || !may_wait {
        return Ok(Deletion::Needless);
    }
    if let Some(kept) = Kept::by(&found.metadata.owner_references.unwrap_or_default()) {
        return Ok(Deletion::Kept(kept));
    }
    // With the version that was read: a Binding that comes between keeps the pod.
    let only = Preconditions { uid: found.metadata.uid, resource_version: found.metadata.resource_version };
    let params = DeleteParams { preconditions: Some(only), ..DeleteParams::default() };
    match api.delete(&due.pod.name, &params).await {
        Ok(_) => Ok(Deletion::Made),
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(Deletion::Needless),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
#[path = "waited_tests.rs"]
mod tests;
