//! The loop on fake GPUs, with the node's disk.

use super::*;
use crate::gpu::GpuBackend;
use crate::gpu::GpuThread;
use crate::gpu::events::Reopen;
use crate::gpu::fake::{FakeGpus, uuid};
use crate::node::{Kept, Settings};
use crate::processes::Host;
use crate::recording::Recording;
use kerf_core::contract::{Condition, ConditionStatus, GpuRule, MpsRule, Shape, WantedSlice};
use kerf_core::units::SizeGb;
use prometheus_client::registry::Registry;
use std::fs;
use std::path::Path;

/// Longer than anything takes on the slowest machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// What the loop says should be.
struct Seen {
    events: Events,
    kept: watch::Receiver<Option<Kept>>,
    status: watch::Receiver<GpuNodeStatus>,
}

/// A loop with one GPU without MIG, whose record is in `state`.
fn start(folder: &Path, state: &Path, stop: &CancellationToken) -> Seen {
    let gpus = FakeGpus::new(&["T4-16GB"]);
    let open = move || Ok(Box::new(gpus.clone()) as Box<dyn GpuBackend>);
    let thread = GpuThread::start(Box::new(open), PATIENCE).unwrap();
    let (recording, recalled) = Recording::open(state, "boot".to_owned()).unwrap();
    let host = Host { proc: folder.to_owned(), cgroups: folder.to_owned() };
    let executor = Executor::new(thread, recording, host);
    let (events, queue) = Events::channel();
    let (kept, to_keep) = watch::channel(None);
    let (status, shown) = watch::channel(GpuNodeStatus::default());
    let (client, _) = crate::api_stand_in::client(|_| crate::api_stand_in::refusal(404));
    let keepers = Keepers {
        kept,
        lengths: watch::Sender::default(),
        remove_rejected: watch::Sender::default(),
        evict: mpsc::channel(1).0,
        reopen: Reopen::default(),
    };
    let outlets = Outlets {
        events: events.clone(),
        allocations: Allocations::default(),
        plugin_folder: folder.to_owned(),
        want_holders: Arc::default(),
        watched: watch::Sender::default(),
        status,
        counts: watch::Sender::default(),
        labels: watch::Sender::default(),
        gfd_labels: watch::Sender::default(),
        keepers,
        recorder: Recorder::new(client, "n".into()).0,
        readiness: Readiness::new(&[]),
        metrics: Metrics::register(&mut Registry::default()),
    };
    let node = Node::remembering(None, Settings { mps: Some(folder.to_owned()), ..Settings::default() });
    let standing = Standing::of(&recalled.unwrap_or_default());
    let reconciler = Reconciler::new((node, standing), outlets, executor, Duration::from_mins(1));
    tokio::spawn(reconciler.run(queue, stop.clone()));
    Seen { events, kept: to_keep, status: shown }
}

/// Wants an MPS share on a GPU that is exclusive meanwhile.
fn want_a_share(events: &Events) {
    let mut spec = GpuNodeSpec::default();
    let rule = GpuRule { mps: MpsRule { exclusive: true, ..MpsRule::default() }, ..GpuRule::default() };
    spec.policy.gpus.push(rule);
    let share =
        WantedSlice { id: "s1".into(), gpu: uuid(0), shape: Shape::mps(SizeGb(4)), reservation: None };
    spec.slices.push(share);
    events.send(Event::Spec(None, Ok(spec)));
    events.send(Event::Holders(Ok(Holders {
        asked: Instant::now(),
        held: BTreeMap::new(),
        foreign: Vec::new(),
        recorded: Ok(Vec::new()),
    })));
    events.send(Event::Pods(NodePods::new()));
}

/// A process that is killed at any time finds in the record what it had set.
#[tokio::test]
async fn what_shares_need_is_on_the_disk_before_it_is_set() {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state");
    fs::create_dir(&state).unwrap();
    let in_the_way = state.join("checkpoint.json.new");
    fs::create_dir(&in_the_way).unwrap();
    let stop = CancellationToken::new();
    let mut seen = start(folder.path(), &state, &stop);
    want_a_share(&seen.events);
    let is_told = |status: &GpuNodeStatus| {
        let mut all = status.conditions.iter();
        all.any(|c| c.kind == Condition::SPEC_REACHED && c.status == ConditionStatus::False)
    };
    tokio::time::timeout(PATIENCE, seen.status.wait_for(is_told)).await.unwrap().unwrap();
    let has_daemon = |kept: &Option<Kept>| kept.as_ref().is_some_and(|kept| !kept.daemons.is_empty());
    assert!(!has_daemon(&seen.kept.borrow()), "the disk refuses");

    fs::remove_dir(&in_the_way).unwrap();
    tokio::time::timeout(PATIENCE, seen.kept.wait_for(has_daemon)).await.unwrap().unwrap();
    let text = fs::read_to_string(state.join("checkpoint.json")).unwrap();
    let record: crate::checkpoint::Record = serde_json::from_str(&text).unwrap();
    assert_eq!(record.exclusive, [uuid(0)].into());
    assert_eq!(record.spec.slices.len(), 1);
    stop.cancel();
}
