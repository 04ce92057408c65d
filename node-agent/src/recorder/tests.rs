use super::*;
use crate::api_stand_in::{self, Asked, Log};
use kerf_core::names::{DeviceId, GpuUuid};
use kerf_core::units::MemoryMib;
use kerf_runtime::event_note::LONGEST_NOTE;
use serde_json::Value;
use std::collections::BTreeSet;
use std::sync::atomic::AtomicUsize;

fn gpu(number: u32) -> GpuUuid {
    GpuUuid::new(format!("GPU-{number}"))
}

fn unhealthy(number: u32) -> AgentEvent {
    AgentEvent::GpuUnhealthy { gpu: gpu(number), why: "XID 79: GPU has fallen off the bus".to_owned() }
}

fn pod() -> About {
    About::Pod { key: PodKey::new("ml", "train-0"), uid: Some(PodUid::new("u-1")) }
}

fn one_of_each() -> Vec<AgentEvent> {
    let text = || "because".to_owned();
    vec![
        AgentEvent::MpsRestarted { gpu: gpu(0), how: Some(text()) },
        AgentEvent::GpuMemoryOverUse {
            gpu: gpu(0),
            used: MemoryMib(5000),
            given: MemoryMib(4096),
            evicted: false,
        },
        AgentEvent::NoSliceForPod,
        AgentEvent::OutsideMemory { gpu: gpu(0), memory: MemoryMib(512), processes: text() },
        unhealthy(0),
        AgentEvent::GpuRecovered { gpu: gpu(0) },
        AgentEvent::SliceMismatch { device: DeviceId::new("MIG-1") },
        AgentEvent::SliceAdopted { device: DeviceId::new("MIG-1") },
        AgentEvent::ForeignManager { text: text() },
        AgentEvent::RejectedPodRemoved { message: text() },
        AgentEvent::ModeChanged { gpu: gpu(0), mig: true },
        AgentEvent::DriverUpgrade { text: "the node's label x is y".to_owned() },
    ]
}

/// Sends all reports, and waits until all are written.
async fn written(
    reports: Vec<(About, AgentEvent)>,
    quiet: Duration,
    answer: impl Fn(&Asked) -> (u16, Value) + Send + Sync + 'static,
) -> (Log, u64) {
    let (client, log) = api_stand_in::client(answer);
    let (recorder, mut writer) = Recorder::new(client, NodeName::new("n1"));
    writer.quiet = quiet;
    for (about, reported) in reports {
        recorder.record(about, reported);
    }
    let dropped = Arc::clone(&recorder.dropped);
    drop(recorder);
    writer.run(CancellationToken::new()).await;
    (log, dropped.load(Ordering::Relaxed))
}

fn taken(asked: &Asked) -> (u16, Value) {
    (201, asked.body.clone())
}

#[tokio::test]
async fn an_event_refers_to_its_object() {
    let reports =
        vec![(pod(), unhealthy(0)), (About::Node, unhealthy(0)), (About::GpuNode(None), unhealthy(0))];
    let (log, dropped) = written(reports, REPEAT_INTERVAL, taken).await;
    assert_eq!(dropped, 0);
    let events = log.all();
    let paths: Vec<&str> = events.iter().map(|asked| asked.path.as_str()).collect();
    let path = |namespace: &str| format!("/apis/events.k8s.io/v1/namespaces/{namespace}/events");
    assert_eq!(paths, [path("ml"), path("default"), path("default")]);
    let regarding = |index: usize| &events[index].body["regarding"];
    assert_eq!((&regarding(0)["name"], &regarding(0)["uid"]), (&"train-0".into(), &"u-1".into()));
    assert_eq!((&regarding(1)["kind"], &regarding(1)["uid"]), (&"Node".into(), &"n1".into()));
    assert_eq!(regarding(2)["apiVersion"], "kerf.dev/v1alpha1");
    assert_eq!(events[0].body["reason"], "GpuUnhealthy");
    assert_eq!(events[0].body["type"], "Warning");
    assert_eq!(events[0].body["reportingController"], "kerf.dev/node-agent");
}

#[tokio::test]
async fn a_repeated_event_is_suppressed_for_a_while_and_another_one_is_written_at_once() {
    let reports = [(About::Node, 0), (About::Node, 0), (About::Node, 1), (pod(), 0)]
        .map(|(about, gpu)| (about, unhealthy(gpu)));
    let (log, _) = written(reports.to_vec(), REPEAT_INTERVAL, taken).await;
    let methods: Vec<String> = log.all().into_iter().map(|asked| asked.method).collect();
    assert_eq!(methods, ["POST", "POST", "POST"]);
}

/// Two GPUs with one error are two Events. The second error of one GPU is a repetition of its first Event.
#[tokio::test]
async fn a_repetition_is_counted_at_the_first_event() {
    let reports = [0, 1, 0].map(|gpu| (About::Node, unhealthy(gpu)));
    let (log, _) = written(reports.to_vec(), Duration::ZERO, taken).await;
    let all = log.all();
    let methods: Vec<&str> = all.iter().map(|asked| asked.method.as_str()).collect();
    assert_eq!(methods, ["POST", "POST", "PATCH"]);
    assert_eq!(all[2].body["series"]["count"], 2);
    assert!(all[2].path.ends_with(all[0].body["metadata"]["name"].as_str().unwrap()));
}

#[tokio::test]
async fn a_repetition_of_a_deleted_event_is_written_as_a_new_event() {
    let gone =
        |asked: &Asked| if asked.method == "PATCH" { api_stand_in::refusal(404) } else { taken(asked) };
    let reports = vec![(About::Node, unhealthy(0)), (About::Node, unhealthy(0))];
    let (log, dropped) = written(reports, Duration::ZERO, gone).await;
    let methods: Vec<String> = log.all().into_iter().map(|asked| asked.method).collect();
    assert_eq!((methods.as_slice(), dropped), (["POST", "PATCH", "POST"].map(str::to_owned).as_slice(), 0));
}

#[tokio::test]
async fn a_refused_event_is_counted_and_does_not_block_the_next() {
    let calls = AtomicUsize::new(0);
    let first_refused = move |asked: &Asked| match calls.fetch_add(1, Ordering::Relaxed) {
        0 => api_stand_in::refusal(403),
        _ => taken(asked),
    };
    let (log, dropped) =
        written(vec![(pod(), unhealthy(0)), (pod(), unhealthy(1))], REPEAT_INTERVAL, first_refused).await;
    assert_eq!((log.all().len(), dropped), (2, 1));
}

#[tokio::test]
async fn an_event_without_room_is_dropped_and_counted() {
    let (client, _) = api_stand_in::client(taken);
    let (recorder, writer) = Recorder::new(client, NodeName::new("n1"));
    for _ in 0..QUEUE + 3 {
        recorder.record(About::Node, unhealthy(0));
    }
    assert_eq!(recorder.dropped(), 3);
    drop(writer);
    recorder.record(About::Node, unhealthy(0));
    assert_eq!(recorder.dropped(), 4);
}

#[test]
fn every_text_fits_an_event_and_ends_as_a_sentence() {
    for reported in one_of_each() {
        let text = reported.to_string();
        assert!(text.ends_with('.') && text.len() < 512, "{text}");
        assert!(!reported.action().is_empty() && reported.reason().chars().all(char::is_alphanumeric));
    }
    let long = AgentEvent::RejectedPodRemoved { message: "ä".repeat(2000) };
    let note = event(&long, &NodeName::new("n1")).note.unwrap();
    assert!(note.len() <= LONGEST_NOTE && note.ends_with('…'), "{}", note.len());
}

/// Another variant of `AgentEvent` does not compile until it has a number, and fails until it is in [`one_of_each`] and
/// in the documentation.
#[test]
fn the_documentation_has_a_row_for_every_reason_and_for_no_other() {
    let number = |reported: &AgentEvent| match reported {
        AgentEvent::MpsRestarted { .. } => 0,
        AgentEvent::GpuMemoryOverUse { .. } => 1,
        AgentEvent::NoSliceForPod => 2,
        AgentEvent::OutsideMemory { .. } => 3,
        AgentEvent::GpuUnhealthy { .. } => 4,
        AgentEvent::GpuRecovered { .. } => 5,
        AgentEvent::SliceMismatch { .. } => 6,
        AgentEvent::SliceAdopted { .. } => 7,
        AgentEvent::ForeignManager { .. } => 8,
        AgentEvent::RejectedPodRemoved { .. } => 9,
        AgentEvent::ModeChanged { .. } => 10,
        AgentEvent::DriverUpgrade { .. } => 11,
    };
    assert_eq!(one_of_each().iter().map(number).collect::<Vec<_>>(), (0..=11).collect::<Vec<_>>());
    let text = include_str!("../../../docs/events.md");
    let rows = text.lines().filter(|line| line.contains("| agent |"));
    let documented: BTreeSet<&str> = rows.filter_map(|line| line.split('`').nth(1)).collect();
    assert_eq!(documented, one_of_each().iter().map(AgentEvent::reason).collect());
}
