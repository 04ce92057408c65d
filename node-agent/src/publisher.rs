//! Writes GpuNode.status, for people: only on change, one write at a time, always the newest, and not before the
//! GpuNode exists. An object that was listed or created again gets the whole status.

use crate::ending::{Ending, Session};
use crate::node::unserved;
use jiff::Timestamp;
use kerf_core::contract::{Condition, ConditionStatus, GpuNodeStatus};
use kerf_runtime::gpu_node::GpuNode;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Map, Value, json};
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

/// How long the first change after a quiet time may be held back, and a change of conditions.
const FIRST_CHANGE_DELAY: Duration = Duration::from_millis(500);
const CONDITIONS_DELAY: Duration = Duration::from_secs(1);

/// How long the last write, which says that the agent stops, may take.
const LAST_WRITE_TIMEOUT: Duration = Duration::from_secs(2);

/// The wait after a failed write, which doubles up to [`BACKOFF_LIMIT`].
const FIRST_BACKOFF: Duration = Duration::from_millis(100);
const BACKOFF_LIMIT: Duration = Duration::from_secs(5);

/// Publishes `statuses` until `stop`, at most once per `interval` except for conditions. `shown` carries the status of
/// each GpuNode that was listed or created again.
pub async fn publish(
    (api, name): (Api<GpuNode>, String),
    mut statuses: watch::Receiver<GpuNodeStatus>,
    mut shown: mpsc::UnboundedReceiver<Option<GpuNodeStatus>>,
    interval: Duration,
    session: Session,
) {
    let stop = session.stop();
    let mut writer = Writer { api, name, interval, times: None, written: None, at: None };
    let mut wait = FIRST_BACKOFF;
    loop {
        tokio::select! {
            changed = statuses.changed(), if writer.times.is_some() => if changed.is_err() { return },
            Some(shown) = shown.recv() => {
                writer.times = Some(shown.unwrap_or_default());
                if writer.written.take().is_some() {
                    statuses.mark_changed();
                }
                continue;
            }
            () = stop.cancelled() => return say_goodbye(writer, &statuses, session.ending()).await,
        }
        if stop.run_until_cancelled(writer.gather(&mut statuses)).await.is_none() {
            return say_goodbye(writer, &statuses, session.ending()).await;
        }
        let newest = statuses.borrow_and_update().clone();
        match writer.write(newest).await {
            Ok(()) => wait = FIRST_BACKOFF,
            Err(error) => {
                tracing::warn!(%error, "failed to write GpuNode.status; trying again");
                statuses.mark_changed();
                stop.run_until_cancelled(tokio::time::sleep(wait)).await;
                wait = (wait * 2).min(BACKOFF_LIMIT);
            }
        }
    }
}

/// Writes that no agent serves the node now: the kubelet marks the devices as gone when the agent's sockets close.
async fn say_goodbye(mut writer: Writer, statuses: &watch::Receiver<GpuNodeStatus>, ending: Option<&Ending>) {
    let condition = Condition {
        kind: Condition::READY.to_owned(),
        status: ConditionStatus::False,
        reason: ending.map_or("AgentStopped", Ending::reason).to_owned(),
        message: ending.map_or_else(|| "the node's agent was stopped".to_owned(), ToString::to_string),
        last_transition_time: String::new(),
    };
    let last = unserved(statuses.borrow().clone(), condition);
    match tokio::time::timeout(LAST_WRITE_TIMEOUT, writer.write(last)).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::warn!(%error, "failed to say in GpuNode.status that the agent stops"),
        Err(_) => tracing::warn!("no time was left to say in GpuNode.status that the agent stops"),
    }
}

struct Writer {
    api: Api<GpuNode>,
    name: String,
    interval: Duration,
    /// A status with the conditions of the GpuNode, for their transition times; `None` until the GpuNode was seen.
    times: Option<GpuNodeStatus>,
    /// The status that was written last; `None` if the GpuNode's content is unknown.
    written: Option<GpuNodeStatus>,
    at: Option<Instant>,
}

impl Writer {
    /// Waits for more changes, as long as this one may be held back.
    async fn gather(&self, statuses: &mut watch::Receiver<GpuNodeStatus>) {
        let begun = Instant::now();
        loop {
            let until = self.due(begun, &statuses.borrow_and_update());
            tokio::select! {
                () = tokio::time::sleep_until(until) => return,
                changed = statuses.changed() => if changed.is_err() { return },
            }
        }
    }

    /// When the status is written, if its first change was seen at `begun`.
    fn due(&self, begun: Instant, status: &GpuNodeStatus) -> Instant {
        let Some(written) = &self.written else { return begun };
        let again = self.at.map_or(begun, |at| at + self.interval);
        let due = again.max(begun + FIRST_CHANGE_DELAY.min(self.interval));
        let is_other = !written.conditions.iter().map(said).eq(status.conditions.iter().map(said));
        if is_other { due.min(begun + CONDITIONS_DELAY) } else { due }
    }

    async fn write(&mut self, mut status: GpuNodeStatus) -> Result<(), kube::Error> {
        keep_times(&mut status, self.times.as_ref().unwrap_or(&GpuNodeStatus::default()), Timestamp::now());
        let body = self.written.as_ref().map_or_else(|| all(&status), |written| changes(written, &status));
        if body.is_empty() {
            return Ok(());
        }
        let fields = body.len();
        let patch = Patch::Merge(json!({ "status": body }));
        let begun = Instant::now();
        // If the write fails, it is unknown what the GpuNode has.
        self.written = None;
        self.api.patch_status(&self.name, &PatchParams::default(), &patch).await?;
        tracing::debug!(fields, took = ?begun.elapsed(), "wrote the status");
        self.times = Some(status.clone());
        (self.written, self.at) = (Some(status), Some(Instant::now()));
        Ok(())
    }
}

/// What a condition says, without its time.
fn said(condition: &Condition) -> (&str, ConditionStatus, &str) {
    (&condition.kind, condition.status, &condition.reason)
}

/// Keeps the transition time of each condition that has not changed.
fn keep_times(status: &mut GpuNodeStatus, before: &GpuNodeStatus, now: Timestamp) {
    for condition in &mut status.conditions {
        let same =
            before.conditions.iter().find(|c| c.kind == condition.kind && c.status == condition.status);
        condition.last_transition_time = same
            .map(|c| c.last_transition_time.clone())
            .filter(|time| !time.is_empty())
            .unwrap_or_else(|| now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string());
    }
}

fn all(status: &GpuNodeStatus) -> Map<String, Value> {
    match json!(status) {
        Value::Object(fields) => fields,
        _ => Map::new(),
    }
}

/// The fields of the status that changed. A merge patch replaces lists as a whole.
fn changes(written: &GpuNodeStatus, status: &GpuNodeStatus) -> Map<String, Value> {
    let old = all(written);
    all(status).into_iter().filter(|(field, value)| old.get(field) != Some(value)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api_stand_in::client;
    use kerf_core::contract::{Shape, SliceState, SliceStatus};
    use kerf_core::names::{GpuUuid, PodUid, SliceId};
    use kerf_core::units::{MemoryMib, SizeGb};
    use tokio_util::sync::CancellationToken;

    /// A burst on a node is published in two writes, and a bad condition is visible within a second.
    #[tokio::test]
    async fn a_status_is_written_at_most_once_per_interval_and_a_condition_earlier() {
        let (api, _) = client(|_| (200, json!({})));
        let begun = Instant::now();
        let written = status(slice(SliceState::Preparing, None), true);
        let (changed, ill) = (
            status(slice(SliceState::Ready, Some("a")), true),
            status(slice(SliceState::Preparing, None), false),
        );
        let mut writer = Writer {
            api: Api::all(api),
            name: "n1".to_owned(),
            interval: Duration::from_secs(5),
            written: Some(written),
            at: None,
            times: None,
        };
        let after = |writer: &Writer, status| writer.due(begun, status).duration_since(begun);
        assert_eq!(after(&writer, &changed), FIRST_CHANGE_DELAY, "it was quiet");
        writer.at = Some(begun - Duration::from_secs(1));
        assert_eq!(after(&writer, &changed), Duration::from_secs(4));
        assert_eq!(after(&writer, &ill), CONDITIONS_DELAY);
        writer.written = None;
        assert_eq!(after(&writer, &changed), Duration::ZERO);
    }

    fn slice(state: SliceState, ready_for: Option<&str>) -> SliceStatus {
        SliceStatus {
            id: Some(SliceId::new("s1")),
            gpu: GpuUuid::new("GPU-0"),
            shape: Shape::mps(SizeGb(4)),
            state,
            memory: MemoryMib(4096),
            device: None,
            resource: None,
            ready_for: ready_for.map(PodUid::new),
            holder: None,
            message: None,
            reservation: None,
            leaving: false,
        }
    }

    fn status(slice: SliceStatus, ready: bool) -> GpuNodeStatus {
        let status = if ready { ConditionStatus::True } else { ConditionStatus::False };
        let condition = Condition {
            kind: Condition::READY.to_owned(),
            status,
            reason: String::new(),
            message: String::new(),
            last_transition_time: String::new(),
        };
        GpuNodeStatus { slices: vec![slice], conditions: vec![condition], ..GpuNodeStatus::default() }
    }

    #[test]
    fn a_conditions_time_changes_with_its_status_only() {
        let (first, second) = (Timestamp::UNIX_EPOCH, "2026-01-02T03:04:05Z".parse().unwrap());
        let mut before = status(slice(SliceState::Idle, None), true);
        keep_times(&mut before, &GpuNodeStatus::default(), first);
        assert_eq!(before.conditions[0].last_transition_time, "1970-01-01T00:00:00Z");
        let mut same = status(slice(SliceState::Held, None), true);
        keep_times(&mut same, &before, second);
        assert_eq!(same.conditions[0].last_transition_time, "1970-01-01T00:00:00Z");
        let mut other = status(slice(SliceState::Held, None), false);
        keep_times(&mut other, &before, second);
        assert_eq!(other.conditions[0].last_transition_time, "2026-01-02T03:04:05Z");
    }

    #[tokio::test]
    async fn a_listed_or_recreated_gpu_node_gets_the_whole_status() {
        let (client, log) = client(|_| (200, json!({"metadata": {"name": "n1"}})));
        let (said, statuses) = watch::channel(GpuNodeStatus::default());
        let (show, shown) = mpsc::unbounded_channel();
        let stop = CancellationToken::new();
        let node = (Api::all(client), "n1".to_owned());
        let interval = Duration::from_millis(20);
        tokio::spawn(publish(node, statuses, shown, interval, Session::until(&stop)));
        let writes = async |count: usize| {
            let until = tokio::time::Instant::now() + Duration::from_secs(10);
            while log.all().len() < count && tokio::time::Instant::now() < until {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            tokio::time::sleep(interval * 10).await;
            let all: Vec<Value> = log.all().into_iter().map(|asked| asked.body["status"].clone()).collect();
            assert_eq!(all.len(), count);
            all
        };
        said.send(status(slice(SliceState::Idle, None), true)).unwrap();
        writes(0).await;
        show.send(None).unwrap();
        let first = writes(1).await.remove(0);
        // The first is a GpuNode that was created again, the second has conditions of an earlier time.
        let mut earlier = status(slice(SliceState::Held, None), true);
        earlier.conditions[0].last_transition_time = "1970-01-01T00:00:00Z".to_owned();
        for (count, other) in [(2, None), (3, Some(earlier))] {
            show.send(other).unwrap();
            assert_eq!(writes(count).await[count - 1]["slices"], first["slices"]);
        }
        let times = &writes(3).await[2]["conditions"][0]["lastTransitionTime"];
        assert_eq!(*times, json!("1970-01-01T00:00:00Z"), "a condition that is the same keeps its time");
        stop.cancel();
    }

    #[test]
    fn only_changed_fields_are_written() {
        let before = status(slice(SliceState::Idle, None), true);
        let after = status(slice(SliceState::Held, None), true);
        assert_eq!(changes(&before, &after).keys().collect::<Vec<_>>(), ["slices"]);
        assert!(changes(&before, &before).is_empty());
    }
}
