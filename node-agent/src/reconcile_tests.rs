//! The loop on fake GPUs, with the node's disk.

use super::*;
use crate::checkpoint;
use crate::gpu::GpuBackend;
use crate::gpu::events::Reopen;
use crate::gpu::fake::{FakeGpus, uuid};
use crate::gpu::{GpuError, GpuThread, NvmlCode, Open};
use crate::node::{Kept, Recalled, Settings};
use crate::processes::Host;
use crate::recording::{Before, Recording};
use kerf_core::contract::{Condition, ConditionStatus, GpuRule, MpsRule, Shape, WantedSlice};
use kerf_core::units::SizeGb;
use prometheus_client::registry::Registry;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

/// Longer than anything takes on the slowest machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// What the loop says should be.
struct Seen {
    events: Events,
    kept: watch::Receiver<Option<Kept>>,
    status: watch::Receiver<GpuNodeStatus>,
    running: tokio::task::JoinHandle<()>,
}

/// A loop with one GPU without MIG, whose record is in `state`.
fn start(folder: &Path, state: &Path, stop: &CancellationToken) -> Seen {
    let gpus = FakeGpus::new(&["T4-16GB"]);
    let open = move || Ok(Box::new(gpus.clone()) as Box<dyn GpuBackend>);
    start_with(Box::new(open), (folder, state), &Session::until(stop))
}

fn start_with(open: Open, (folder, state): (&Path, &Path), session: &Session) -> Seen {
    let thread = GpuThread::start(open, PATIENCE).unwrap();
    let (recording, _) = Recording::open(state, "boot".to_owned(), folder.join("sys")).unwrap();
    let host = Host { proc: folder.to_owned(), cgroups: folder.to_owned() };
    let executor = Executor::new(thread, recording, host);
    let (events, queue) = Events::channel();
    let (kept, to_keep) = watch::channel(None);
    let (status, shown) = watch::channel(GpuNodeStatus::default());
    let (client, _) = crate::api_stand_in::client(|_| crate::api_stand_in::refusal(404));
    let keepers = Keepers {
        kept,
        lengths: watch::Sender::default(),
        pause: watch::Sender::default(),
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
    let node = Node::remembering(None, Settings { mps: Some(folder.join("mps")), ..Settings::default() });
    let standing = Standing::of(&Recalled::default());
    let reconciler = Reconciler::new((node, standing), outlets, executor, Duration::from_millis(50));
    let running = tokio::spawn(reconciler.run(queue, session.clone()));
    Seen { events, kept: to_keep, status: shown, running }
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
    let stop = CancellationToken::new();
    let mut seen = start(folder.path(), &state, &stop);
    let in_the_way = state.join("ledger.0");
    symlink("/dev/full", &in_the_way).unwrap();
    want_a_share(&seen.events);
    let is_told = |status: &GpuNodeStatus| {
        let mut all = status.conditions.iter();
        all.any(|c| c.kind == Condition::SPEC_REACHED && c.status == ConditionStatus::False)
    };
    tokio::time::timeout(PATIENCE, seen.status.wait_for(is_told)).await.unwrap().unwrap();
    let has_daemon = |kept: &Option<Kept>| kept.as_ref().is_some_and(|kept| !kept.daemons.is_empty());
    assert!(!has_daemon(&seen.kept.borrow()), "the disk refuses");

    fs::remove_file(&in_the_way).unwrap();
    tokio::time::timeout(PATIENCE, seen.kept.wait_for(has_daemon)).await.unwrap().unwrap();
    let record = checkpoint::tests::on_disk(&state).unwrap();
    assert_eq!(record.exclusive, [uuid(0)].into());
    assert_eq!(record.ledger.desired.slices.len(), 1);
    stop.cancel();
}

/// A session on GPUs that are opened so, until it ends by itself.
async fn ending(open: Open, folder: &Path, between: impl AsyncFnOnce(&mut Seen)) -> Ending {
    let session = Session::until(&CancellationToken::new());
    let mut seen = start_with(open, (folder, &folder.join("state")), &session);
    between(&mut seen).await;
    tokio::time::timeout(PATIENCE, seen.running).await.unwrap().unwrap();
    session.ending().unwrap().clone()
}

fn opens(gpus: &FakeGpus) -> Open {
    let gpus = gpus.clone();
    Box::new(move || Ok(Box::new(gpus.clone())))
}

#[tokio::test]
async fn a_library_that_is_not_the_drivers_ends_the_process() {
    let folder = tempfile::tempdir().unwrap();
    let error = GpuError::Call { call: "nvmlInit_v2", code: NvmlCode::VersionMismatch };
    let told = error.clone();
    let ended = ending(Box::new(move || Err(error.clone())), folder.path(), async |_| ()).await;
    assert_eq!(ended, Ending::VersionMismatch(told));
}

#[tokio::test]
async fn a_panic_on_the_gpus_thread_ends_the_process() {
    let folder = tempfile::tempdir().unwrap();
    let ended = ending(Box::new(|| panic!("a fault of the agent's")), folder.path(), async |_| ()).await;
    assert_eq!(ended, Ending::ThreadEnded);
}

#[tokio::test]
async fn a_panic_on_the_thread_of_one_gpu_ends_the_process_too() {
    let folder = tempfile::tempdir().unwrap();
    let gpus = FakeGpus::new(&["T4-16GB", "T4-16GB"]);
    let ended = ending(opens(&gpus), folder.path(), async |seen| {
        let sees = |status: &GpuNodeStatus| status.gpus.len() == 2;
        tokio::time::timeout(PATIENCE, seen.status.wait_for(sees)).await.unwrap().unwrap();
        gpus.set_panicking(1);
    });
    assert_eq!(ended.await, Ending::ThreadEnded);
}

/// What was known of the GPUs is recorded as it was: the new process finds that the mode was lost.
#[tokio::test]
async fn a_driver_that_is_loaded_anew_ends_the_process_before_anything_is_taken_for_an_admins_choice() {
    let folder = tempfile::tempdir().unwrap();
    let (module, gpus) = (folder.path().join("sys/module/nvidia"), FakeGpus::new(&["H100-80GB"]));
    fs::create_dir_all(&module).unwrap();
    let ended = ending(opens(&gpus), folder.path(), async |seen| {
        let sees = |status: &GpuNodeStatus| !status.gpus.is_empty();
        tokio::time::timeout(PATIENCE, seen.status.wait_for(sees)).await.unwrap().unwrap();
        gpus.reboot();
        fs::rename(&module, folder.path().join("old")).unwrap();
        fs::create_dir_all(&module).unwrap();
    });
    assert_eq!(ended.await, Ending::Reloaded);
    let state = folder.path().join("state");
    let (_, before) = Recording::open(&state, "boot".to_owned(), folder.path().join("sys")).unwrap();
    let Before::Recorded(recalled) = before else { panic!("{before:?}") };
    assert_eq!((recalled.mig_lost, recalled.booted), ([uuid(0)].into(), true));
}

#[tokio::test]
async fn an_upgrade_of_the_driver_waits_for_mps_daemons_of_an_earlier_process_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = folder.path().join("mps/GPU-0");
    fs::create_dir_all(&daemon).unwrap();
    let ended = ending(opens(&FakeGpus::new(&["T4-16GB"])), folder.path(), async |seen| {
        want_a_share(&seen.events);
        seen.events.send(Event::Upgrade(Some("a label".to_owned())));
        let is_told = |status: &GpuNodeStatus| {
            status.conditions.iter().any(|c| c.kind == Condition::READY && c.reason == "DriverUpgrade")
        };
        tokio::time::timeout(PATIENCE, seen.status.wait_for(is_told)).await.unwrap().unwrap();
        let is_known = |kept: &Option<Kept>| kept.as_ref().is_some_and(|kept| kept.daemons.is_empty());
        tokio::time::timeout(PATIENCE, seen.kept.wait_for(is_known)).await.unwrap().unwrap();
        assert!(!seen.running.is_finished(), "its daemon may hold the driver");
        fs::remove_dir(&daemon).unwrap();
    });
    assert_eq!(ended.await, Ending::Upgrade("a label".to_owned()));
}
