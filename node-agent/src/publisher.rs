//! Writes GpuNode.status: only on change, one write at a time, always the newest. What the API server shows is no longer
//! what was written where the GpuNode was deleted and made anew, or etcd was restored: then all is written again.

use crate::ending::{Ending, Session};
use crate::node::unserved;
use jiff::Timestamp;
use kerf_core::contract::{Condition, ConditionStatus, GpuNodeStatus, SliceState, SliceStatus};
use kerf_runtime::gpu_node::GpuNode;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Map, Value, json};
use std::time::Duration;
use tokio::sync::{mpsc, watch};

/// How long a change that nobody waits for may be held back, so that several make one write.
const GATHER: Duration = Duration::from_millis(100);

/// How long the last write, that the agent stops, may take.
const LAST_WRITE: Duration = Duration::from_secs(2);

/// The wait after a failed write; doubled up to [`LONGEST_WAIT`].
const FIRST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(5);

/// The status as the API server lists it, or has it for another object than before; `None` while it has none.
pub type Shown = Option<Value>;

/// Publishes `statuses` until `stop`, and again where the API server shows another than was written. `written` is what the
/// status says now, if that is known.
pub async fn publish(
    (api, name): (Api<GpuNode>, String),
    mut statuses: watch::Receiver<GpuNodeStatus>,
    mut shown: mpsc::UnboundedReceiver<Shown>,
    written: Option<GpuNodeStatus>,
    session: Session,
) {
    let stop = session.stop();
    let mut writer =
        Writer { api, name, times: written.clone().unwrap_or_default(), written, trusted: false };
    let mut wait = FIRST_WAIT;
    loop {
        tokio::select! {
            changed = statuses.changed() => if changed.is_err() { return },
            Some(shown) = shown.recv() => {
                if writer.is_lost(shown.as_ref()) {
                    if shown.is_some() {
                        tracing::warn!("GpuNode.status is not what was written; writing all of it");
                    } else {
                        // It was just made, or made anew: what was written meanwhile is written once more.
                        tracing::info!("the GpuNode has no status; writing all of it");
                    }
                    statuses.mark_changed();
                }
                continue;
            }
            () = stop.cancelled() => return say_goodbye(writer, &statuses, session.ending()).await,
        }
        gather(&mut statuses, writer.written.as_ref()).await;
        let newest = statuses.borrow_and_update().clone();
        match writer.write(newest).await {
            Ok(()) => wait = FIRST_WAIT,
            Err(error) => {
                tracing::warn!(%error, "failed to write GpuNode.status; trying again");
                statuses.mark_changed();
                stop.run_until_cancelled(tokio::time::sleep(wait)).await;
                wait = (wait * 2).min(LONGEST_WAIT);
            }
        }
    }
}

/// Says that nobody serves the node now: the kubelet takes the end of the agent's sockets for the end of its devices.
async fn say_goodbye(mut writer: Writer, statuses: &watch::Receiver<GpuNodeStatus>, ending: Option<&Ending>) {
    let condition = Condition {
        kind: Condition::READY.to_owned(),
        status: ConditionStatus::False,
        reason: ending.map_or("AgentStopped", Ending::reason).to_owned(),
        message: ending.map_or_else(|| "the node's agent was stopped".to_owned(), ToString::to_string),
        last_transition_time: String::new(),
    };
    let last = unserved(statuses.borrow().clone(), condition);
    match tokio::time::timeout(LAST_WRITE, writer.write(last)).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::warn!(%error, "failed to say in GpuNode.status that the agent stops"),
        Err(_) => tracing::warn!("no time was left to say in GpuNode.status that the agent stops"),
    }
}

/// Waits a moment for more changes, unless somebody waits for this one.
async fn gather(statuses: &mut watch::Receiver<GpuNodeStatus>, written: Option<&GpuNodeStatus>) {
    let is_urgent = |status: &GpuNodeStatus| written.is_none_or(|written| is_urgent(written, status));
    let moment = tokio::time::sleep(GATHER);
    tokio::pin!(moment);
    while !is_urgent(&statuses.borrow_and_update()) {
        tokio::select! {
            () = &mut moment => return,
            changed = statuses.changed() => if changed.is_err() { return },
        }
    }
}

/// Whether a slice became ready or failed, or the agent's readiness changed: the extender waits for these.
fn is_urgent(written: &GpuNodeStatus, status: &GpuNodeStatus) -> bool {
    let said = |slice: &SliceStatus| {
        written.slices.iter().any(|w| {
            (&w.id, w.state, &w.ready_for, &w.gpu) == (&slice.id, slice.state, &slice.ready_for, &slice.gpu)
        })
    };
    let awaited = |slice: &&SliceStatus| matches!(slice.state, SliceState::Ready | SliceState::Failed);
    written.is_ready() != status.is_ready() || !status.slices.iter().filter(awaited).all(said)
}

struct Writer {
    api: Api<GpuNode>,
    name: String,
    /// What was written last; `None` if that is not known.
    written: Option<GpuNodeStatus>,
    /// A status with the conditions that were written last, for their times.
    times: GpuNodeStatus,
    /// Whether `written` is of this process, so that a write may leave out what has not changed.
    trusted: bool,
}

impl Writer {
    /// Whether what was written is not what the API server shows; then the next write leaves nothing out. One that was
    /// shown before the last write costs a write that changes nothing.
    fn is_lost(&mut self, shown: Option<&Value>) -> bool {
        let lost = self.trusted && shown != self.written.as_ref().map(|written| json!(written)).as_ref();
        self.trusted &= !lost;
        lost
    }

    async fn write(&mut self, mut status: GpuNodeStatus) -> Result<(), kube::Error> {
        keep_times(&mut status, &self.times, Timestamp::now());
        let body = match &self.written {
            Some(written) if self.trusted => changes(written, &status),
            _ => changes(&GpuNodeStatus::default(), &status).into_iter().chain(all(&status)).collect(),
        };
        if body.is_empty() {
            return Ok(());
        }
        let fields = body.len();
        let patch = Patch::Merge(json!({ "status": body }));
        let begun = std::time::Instant::now();
        let result = self.api.patch_status(&self.name, &PatchParams::default(), &patch).await;
        tracing::debug!(fields, revision = status.observed_revision, took = ?begun.elapsed(), "wrote the status");
        self.trusted = result.is_ok();
        result?;
        self.times = status.clone();
        self.written = Some(status);
        Ok(())
    }
}

/// A condition that has not changed keeps its time.
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

/// The fields of the status that changed. Lists are replaced as a whole by a merge patch.
fn changes(written: &GpuNodeStatus, status: &GpuNodeStatus) -> Map<String, Value> {
    let old = all(written);
    all(status).into_iter().filter(|(field, value)| old.get(field) != Some(value)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api_stand_in::client;
    use kerf_core::contract::Shape;
    use kerf_core::names::{GpuUuid, PodUid, SliceId};
    use kerf_core::units::{MemoryMib, SizeGb};
    use tokio_util::sync::CancellationToken;

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
    fn what_the_extender_waits_for_is_written_at_once() {
        let preparing = status(slice(SliceState::Preparing, None), true);
        let ready = status(slice(SliceState::Ready, Some("a")), true);
        assert!(is_urgent(&preparing, &ready));
        assert!(!is_urgent(&ready, &ready));
        assert!(is_urgent(&ready, &status(slice(SliceState::Ready, Some("b")), true)));
        assert!(!is_urgent(&ready, &status(slice(SliceState::Held, Some("a")), true)));
        assert!(is_urgent(&ready, &status(slice(SliceState::Ready, Some("a")), false)));
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
    async fn a_status_that_the_api_server_has_not_is_written_whole_though_nothing_changed() {
        let (client, log) = client(|_| (200, json!({"metadata": {"name": "n1"}})));
        let (said, statuses) = watch::channel(GpuNodeStatus::default());
        let (show, shown) = mpsc::unbounded_channel();
        let stop = CancellationToken::new();
        let node = (Api::all(client), "n1".to_owned());
        tokio::spawn(publish(node, statuses, shown, None, Session::until(&stop)));
        let writes = async |count: usize| {
            let until = tokio::time::Instant::now() + Duration::from_secs(10);
            while log.all().len() < count && tokio::time::Instant::now() < until {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            tokio::time::sleep(GATHER * 3).await;
            let all: Vec<Value> = log.all().into_iter().map(|asked| asked.body["status"].clone()).collect();
            assert_eq!(all.len(), count);
            all
        };
        // Nothing is known of the node yet, and nothing is what a GpuNode that was just made shows.
        show.send(None).unwrap();
        writes(0).await;
        said.send(status(slice(SliceState::Idle, None), true)).unwrap();
        let first = writes(1).await.remove(0);
        show.send(Some(first.clone())).unwrap();
        writes(1).await;
        // The first is a GpuNode that was made anew, the second one of an earlier time.
        let earlier = json!(status(slice(SliceState::Held, None), false));
        for (count, other) in [(2, None), (3, Some(earlier))] {
            show.send(other).unwrap();
            assert_eq!(writes(count).await[count - 1], first);
        }
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
