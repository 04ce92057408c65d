//! Reads, takes, renews and releases the Lease.

use super::deadline::Deadline;
use super::election::{Decision, Election, Former, Record};
use futures::{Stream, StreamExt};
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kerf_runtime::shutdown::CancellationToken;
use kube::api::{Api, ObjectMeta, PostParams};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{Config, Error, Event, watcher};
use std::future::pending;
use std::pin::{Pin, pin};
use std::time::Duration;
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};

/// The Lease's name, and how this replica takes it.
#[derive(Debug, Clone)]
pub struct LeaseSettings {
    pub namespace: String,
    pub name: String,
    /// This replica's name in the Lease's `holderIdentity`.
    pub identity: String,
    /// How long the Lease stays valid without a renewal.
    pub duration: Duration,
}

impl LeaseSettings {
    fn renew_every(&self) -> Duration {
        self.duration / 5
    }

    /// The pause after a renewal that failed. It is short, because an API server that does not answer for seconds fails
    /// two renewals in a row, and little time is left then until the leader gives up.
    fn renew_again_after(&self) -> Duration {
        self.renew_every() / 4
    }

    /// How long after the last renewal the leader gives up: well before another may take it.
    fn give_up_after(&self) -> Duration {
        self.duration * 2 / 3
    }
}

/// How often a candidate reads the Lease. The watch shows when a leader releases it; reading finds a leader that has
/// vanished, and what the watch missed.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Seconds after which the watch is restarted, as for the other watches.
const WATCH_SECONDS: u32 = 60;
/// The timeout of one request.
const TIMEOUT: Duration = Duration::from_secs(2);

/// A replica that competes for the Lease.
#[derive(Debug)]
pub struct Candidate {
    api: Api<Lease>,
    settings: LeaseSettings,
    election: Election,
}

/// The Lease while this replica holds it.
#[derive(Debug, Clone)]
pub struct Held {
    lease: Lease,
    transitions: u64,
    deadline: Deadline,
    former: Former,
    since: Instant,
}

impl Held {
    /// The leader's epoch, which is above every earlier leader's.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.transitions + 1
    }

    /// The Lease object's UID. A Lease that was deleted and recreated has another, and counts its transitions from
    /// zero.
    #[must_use]
    pub fn uid(&self) -> String {
        self.lease.metadata.uid.clone().unwrap_or_default()
    }

    /// Until when this leader may act.
    #[must_use]
    pub fn deadline(&self) -> &Deadline {
        &self.deadline
    }

    #[must_use]
    pub fn former(&self) -> Former {
        self.former
    }

    /// When the Lease was taken. The former leader has sent nothing since.
    #[must_use]
    pub fn since(&self) -> Instant {
        self.since
    }

    /// Raises the epoch above those that agents or the ConfigMap have: if the Lease was deleted, its own count is too
    /// low. The next renewal writes it.
    pub fn raise(&mut self, epoch: u64) {
        self.transitions = self.transitions.max(epoch.saturating_sub(1));
    }
}

impl Candidate {
    #[must_use]
    pub fn identity(&self) -> &str {
        &self.settings.identity
    }

    #[must_use]
    pub fn new(client: kube::Client, settings: LeaseSettings) -> Self {
        let api = Api::namespaced(client, &settings.namespace);
        let election = Election::new(settings.identity.clone());
        Self { api, settings, election }
    }

    /// Waits until this replica holds the Lease. Calls `another_leads` each time that another holder is found.
    pub async fn acquire(&mut self, another_leads: impl Fn()) -> Held {
        let config =
            Config::default().fields(&format!("metadata.name={}", self.settings.name)).timeout(WATCH_SECONDS);
        let mut changes = pin!(watcher(self.api.clone(), config).default_backoff());
        loop {
            match timeout(TIMEOUT, self.try_acquire()).await {
                Ok(Ok(Some(held))) => {
                    tracing::info!(identity = self.settings.identity, epoch = held.epoch(), "leading");
                    return held;
                }
                Ok(Ok(None)) => another_leads(),
                Ok(Err(error)) => tracing::warn!(lease = self.name(), %error, "failed to take the lease"),
                Err(_) => tracing::warn!(lease = self.name(), "failed to take the lease in time"),
            }
            tokio::select! {
                () = is_free(changes.as_mut()) => {}
                () = sleep(POLL_INTERVAL) => {}
            }
        }
    }

    /// Renews the Lease until it is lost or `stop`.
    pub async fn renew_until_lost(&self, held: &mut Held, stop: &CancellationToken) {
        let mut pause = self.settings.renew_every();
        // Each wait ends at the deadline, and after each the clock decides: a process that was frozen renews nothing.
        while let Some(deadline) = held.deadline.instant().filter(|at| Instant::now() < *at) {
            let within = |wait| deadline.min(Instant::now() + wait);
            tokio::select! {
                () = stop.cancelled() => return,
                () = sleep_until(within(pause)) => {}
            }
            if held.deadline.has_passed() {
                break;
            }
            pause = self.settings.renew_again_after();
            match timeout_at(within(TIMEOUT), self.renew(held)).await {
                Ok(Ok(true)) => pause = self.settings.renew_every(),
                Ok(Ok(false)) => {
                    tracing::error!(lease = self.name(), "the lease was taken by another");
                    return;
                }
                Ok(Err(error)) => tracing::warn!(lease = self.name(), %error, "failed to renew the lease"),
                Err(_) => tracing::warn!(lease = self.name(), "failed to renew the lease in time"),
            }
        }
        tracing::error!(lease = self.name(), "failed to renew the lease, so the term ends");
    }

    /// Records the lost epoch, so that this replica's next one is above it.
    pub fn lost(&mut self, held: &Held) {
        self.election.held(held.transitions);
    }

    /// Records another leader's epoch, so that this replica's next one is above it.
    pub fn hear(&mut self, epoch: u64) {
        if let Some(transitions) = epoch.checked_sub(1) {
            self.election.held(transitions);
        }
    }

    /// Releases the Lease, so that a successor does not wait for its expiry. None of this leader's requests may be
    /// under way.
    pub async fn release(&self, held: Held) {
        let Some(deadline) = held.deadline.instant() else { return };
        // A successor may write from now on, so this replica must not.
        held.deadline.end();
        let mut lease = held.lease.clone();
        lease.spec = Some(LeaseSpec { holder_identity: Some(String::new()), ..self.spec(&held, &lease) });
        let params = PostParams::default();
        let replace = self.api.replace(&self.settings.name, &params, &lease);
        let until = deadline.min(Instant::now() + TIMEOUT);
        match timeout_at(until, replace).await {
            Ok(Ok(_)) => tracing::info!(lease = self.name(), "lease released"),
            Ok(Err(error)) => tracing::warn!(lease = self.name(), %error, "failed to release the lease"),
            Err(_) => tracing::warn!(lease = self.name(), "failed to release the lease in time"),
        }
    }

    async fn try_acquire(&mut self) -> Result<Option<Held>, kube::Error> {
        let found = self.api.get_opt(&self.settings.name).await?;
        let record = found.as_ref().map(record);
        let now = Instant::now();
        let Decision::Take { transitions, former } = self.election.decide(record.as_ref(), now) else {
            return Ok(None);
        };
        let metadata = ObjectMeta {
            name: Some(self.settings.name.clone()),
            namespace: Some(self.settings.namespace.clone()),
            ..ObjectMeta::default()
        };
        let exists = found.is_some();
        let lease = found.unwrap_or(Lease { metadata, spec: None });
        let deadline = Deadline::new(now + self.settings.give_up_after());
        let mut held = Held { lease, transitions, deadline, former, since: now };
        let mut lease = held.lease.clone();
        let fresh = LeaseSpec { acquire_time: Some(wall_clock()), ..self.spec(&held, &Lease::default()) };
        lease.spec = Some(fresh);
        let params = PostParams::default();
        let written = if exists {
            self.api.replace(&self.settings.name, &params, &lease).await
        } else {
            self.api.create(&params, &lease).await
        };
        match written {
            Ok(lease) => {
                held.lease = lease;
                Ok(Some(held))
            }
            // Another replica took the Lease first.
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Renews once. Returns `false` if another replica has the Lease.
    async fn renew(&self, held: &mut Held) -> Result<bool, kube::Error> {
        loop {
            // The deadline counts from before the request, because other replicas may see the renewal from then on.
            let now = Instant::now();
            let mut lease = held.lease.clone();
            lease.spec = Some(self.spec(held, &lease));
            match self.api.replace(&self.settings.name, &PostParams::default(), &lease).await {
                Ok(lease) => {
                    held.lease = lease;
                    held.deadline.extend(now + self.settings.give_up_after());
                    return Ok(true);
                }
                // The deadline counts only from a renewal that was answered, so a Lease that is still this replica's is
                // renewed again at once.
                Err(kube::Error::Api(status)) if status.code == 409 || status.code == 404 => {
                    if !self.is_still_ours(held).await? {
                        return Ok(false);
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Reads the Lease after a refused renewal: another program changed it, or an earlier renewal's answer was lost.
    async fn is_still_ours(&self, held: &mut Held) -> Result<bool, kube::Error> {
        let Some(lease) = self.api.get_opt(&self.settings.name).await? else { return Ok(false) };
        let found = record(&lease);
        let ours = found.holder == self.settings.identity && found.transitions <= held.transitions;
        if ours {
            held.lease = lease;
        }
        Ok(ours)
    }

    fn spec(&self, held: &Held, before: &Lease) -> LeaseSpec {
        LeaseSpec {
            holder_identity: Some(self.settings.identity.clone()),
            lease_duration_seconds: i32::try_from(self.settings.duration.as_secs()).ok(),
            lease_transitions: i32::try_from(held.transitions).ok(),
            renew_time: Some(wall_clock()),
            acquire_time: before.spec.as_ref().and_then(|spec| spec.acquire_time.clone()),
            ..LeaseSpec::default()
        }
    }

    fn name(&self) -> String {
        format!("{}/{}", self.settings.namespace, self.settings.name)
    }
}

async fn is_free(mut changes: Pin<&mut impl Stream<Item = Result<Event<Lease>, Error>>>) {
    while let Some(event) = changes.next().await {
        match event {
            Ok(Event::InitApply(lease) | Event::Apply(lease)) if record(&lease).holder.is_empty() => return,
            Ok(Event::Delete(_)) => return,
            Ok(_) => {}
            Err(error) => tracing::debug!(%error, "failed to watch the lease, trying again"),
        }
    }
    pending::<()>().await;
}

/// The wall clock's time, for people who read the Lease. No decision reads it.
fn wall_clock() -> MicroTime {
    MicroTime(jiff::Timestamp::now())
}

fn record(lease: &Lease) -> Record {
    let spec = lease.spec.clone().unwrap_or_default();
    Record {
        holder: spec.holder_identity.unwrap_or_default(),
        transitions: spec.lease_transitions.and_then(|n| u64::try_from(n).ok()).unwrap_or(0),
        duration: Duration::from_secs(
            spec.lease_duration_seconds.and_then(|s| u64::try_from(s).ok()).unwrap_or(0),
        ),
        version: lease.metadata.resource_version.clone().unwrap_or_default(),
    }
}

#[cfg(test)]
#[path = "lease_tests.rs"]
mod tests;
