//! Tests the loop on fake GPUs, with the node's disk.

use super::*;
use crate::checkpoint;
use crate::checkpoint_writer::CheckpointWriter;
use crate::gpu::GpuBackend;
use crate::gpu::fake::{FakeGpus, uuid};
use crate::gpu::{GpuError, GpuThread, NvmlCode, Open};
use crate::node::{DesiredSlices, Predecessor, Restored, Settings};
use crate::node::{Holders, NodePods};
use crate::processes::Host;
use crate::reconcilers::gpu_events::Reopen;
use kerf_core::contract::{Condition, ConditionStatus, GpuNodeSpec, GpuRule, MpsRule, Shape, WantedSlice};
use kerf_core::ledger::{Answer, Order, OrderKind, Owner, Proposal, Rejection};
use kerf_core::names::{PodKey, PodUid};
use kerf_core::packing::{Placed, Source};
use kerf_core::units::SizeGb;
use prometheus_client::registry::Registry;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use tokio::sync::oneshot;

/// Longer than anything takes on the slowest machine.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The desired state that the loop publishes.
struct Seen {
    events: Events,
    slices: watch::Receiver<Option<DesiredSlices>>,
    status: watch::Receiver<GpuNodeStatus>,
    running: tokio::task::JoinHandle<()>,
}

/// A loop with one GPU without MIG, whose checkpoint is in `state`.
fn start(folder: &Path, state: &Path, stop: &CancellationToken) -> Seen {
    let gpus = FakeGpus::new(&["T4-16GB"]);
    let open = move || Ok(Box::new(gpus.clone()) as Box<dyn GpuBackend>);
    start_with(Box::new(open), (folder, state), &Session::until(stop))
}

fn start_with(open: Open, folders: (&Path, &Path), session: &Session) -> Seen {
    start_looking(Duration::from_millis(50), open, folders, session)
}

/// A loop with this interval of observations.
fn start_looking(every: Duration, open: Open, (folder, state): (&Path, &Path), session: &Session) -> Seen {
    let thread = GpuThread::start(open, TIMEOUT).unwrap();
    let (checkpoint_writer, _) =
        CheckpointWriter::open(state, "boot".to_owned(), folder.join("sys")).unwrap();
    let host = Host { proc: folder.to_owned(), cgroups: folder.to_owned() };
    let executor = Executor::new(thread, checkpoint_writer, host);
    let (events, queue) = Events::channel();
    let (slices, desired_slices) = watch::channel(None);
    let (status, shown) = watch::channel(GpuNodeStatus::default());
    let (client, _) = crate::api_stand_in::client(|_| crate::api_stand_in::refusal(404));
    let desired = DesiredState {
        slices,
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
        reported: watch::Sender::default(),
        look_up: mpsc::unbounded_channel().0,
        counts: watch::Sender::default(),
        labels: watch::Sender::default(),
        gfd_labels: watch::Sender::default(),
        desired,
        recorder: Recorder::new(client, "n".into()).0,
        readiness: Readiness::new(&[]),
        metrics: Metrics::register(&mut Registry::default()),
    };
    let mut node = Node::new(Settings { mps: Some(folder.join("mps")), ..Settings::default() });
    node.restore(&Restored::default(), Instant::now());
    let applied = AppliedSettings::from_checkpoint(&Restored::default());
    let reconciler = Reconciler::new((node, applied), outlets, executor, every);
    let running = tokio::spawn(reconciler.run(queue, session.clone()));
    Seen { events, slices: desired_slices, status: shown, running }
}

/// Reads the GpuNode of an agent that followed this spec.
fn read_gpu_node(events: &Events, spec: GpuNodeSpec) {
    let policy = spec.policy.clone();
    events.send(Event::Predecessor(Box::new(Predecessor { spec, ..Predecessor::default() })));
    events.send(Event::Policy(Ok(policy)));
}

/// Desires an MPS share on a GPU that is exclusive meanwhile.
fn want_a_share(events: &Events) {
    let mut spec = GpuNodeSpec { revision: 1, ..GpuNodeSpec::default() };
    let rule = GpuRule { mps: MpsRule { exclusive: true, ..MpsRule::default() }, ..GpuRule::default() };
    spec.policy.gpus.push(rule);
    let share =
        WantedSlice { id: "s1".into(), gpu: uuid(0), shape: Shape::mps(SizeGb(4)), reservation: None };
    spec.slices.push(share);
    read_gpu_node(events, spec);
    events.send(Event::Holders(Ok(Holders {
        asked: Instant::now(),
        held: BTreeMap::new(),
        foreign: Vec::new(),
        recorded: Ok(Vec::new()),
    })));
    events.send(Event::Pods(NodePods::new()));
}

/// A process that is killed at any time finds its settings in the checkpoint.
#[tokio::test]
async fn settings_for_shares_are_on_the_disk_before_they_are_made() {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state");
    let stop = CancellationToken::new();
    let mut seen = start(folder.path(), &state, &stop);
    let in_the_way = state.join("ledger.0");
    symlink("/dev/full", &in_the_way).unwrap();
    want_a_share(&seen.events);
    let is_published = |status: &GpuNodeStatus| {
        let mut all = status.conditions.iter();
        all.any(|c| c.kind == Condition::SPEC_REACHED && c.status == ConditionStatus::False)
    };
    tokio::time::timeout(TIMEOUT, seen.status.wait_for(is_published)).await.unwrap().unwrap();
    let has_daemon =
        |slices: &Option<DesiredSlices>| slices.as_ref().is_some_and(|slices| !slices.daemons.is_empty());
    assert!(!has_daemon(&seen.slices.borrow()), "the disk refuses");

    fs::remove_file(&in_the_way).unwrap();
    tokio::time::timeout(TIMEOUT, seen.slices.wait_for(has_daemon)).await.unwrap().unwrap();
    let record = checkpoint::tests::on_disk(&state).unwrap();
    assert_eq!(record.node.exclusive, [uuid(0)].into());
    assert_eq!(record.node.ledger.desired.slices.len(), 1);
    stop.cancel();
}

/// An agent with two GPUs that accepts orders, and its state's folder.
async fn ordered(folder: &Path, stop: &CancellationToken) -> (Seen, PathBuf) {
    let gpus = FakeGpus::new(&["H100-80GB", "H100-80GB"]);
    ordered_on(&gpus, Duration::from_millis(50), folder, stop).await
}

async fn ordered_on(
    gpus: &FakeGpus,
    look_every: Duration,
    folder: &Path,
    stop: &CancellationToken,
) -> (Seen, PathBuf) {
    let state = folder.join("state");
    let seen = start_looking(look_every, opens(gpus), (folder, &state), &Session::until(stop));
    read_gpu_node(&seen.events, GpuNodeSpec::default());
    let (held, foreign, recorded) = (BTreeMap::new(), Vec::new(), Ok(Vec::new()));
    seen.events.send(Event::Holders(Ok(Holders { asked: Instant::now(), held, foreign, recorded })));
    seen.events.send(Event::Pods(NodePods::new()));
    let has_modes = || checkpoint::tests::on_disk(&state).is_some_and(|record| record.node.mig_on.len() == 2);
    let begun = Instant::now();
    while !has_modes() {
        assert!(begun.elapsed() < TIMEOUT);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    (seen, state)
}

/// Orders a place for a pod: one of seven on each of two GPUs. Returns the receiver of the answer.
fn order(seen: &Seen, pod: u8) -> oneshot::Receiver<Answer> {
    let place = Placed {
        container: "main".to_owned(),
        resource: "nvidia.com/mig-1g.10gb".parse().unwrap(),
        alone: false,
        gpu: uuid(u32::from(pod % 2)),
        shape: kerf_core::testing::h100_shape("1g.10gb", pod / 2),
        source: Source::Cut(Vec::new()),
    };
    let owner = Owner { uid: PodUid::new(format!("uid-{pod}")), key: PodKey::new("ns", format!("p{pod}")) };
    let kind = OrderKind::Reserve(Proposal { owner, places: vec![place] });
    let (to, answer) = oneshot::channel();
    seen.events.send(Event::Order(Order { epoch: 1, kind }, to));
    answer
}

async fn answer(waiting: oneshot::Receiver<Answer>) -> Answer {
    tokio::time::timeout(TIMEOUT, waiting).await.unwrap().unwrap()
}

#[tokio::test]
async fn orders_that_arrive_together_are_answered_after_one_write() {
    let (folder, stop) = (tempfile::tempdir().unwrap(), CancellationToken::new());
    let (seen, state) = ordered(folder.path(), &stop).await;
    let before = checkpoint::tests::writes(&state);
    let orders: Vec<_> = (0..8).map(|pod| order(&seen, pod)).collect();
    for (number, waiting) in (1..).zip(orders) {
        answer(waiting).await.unwrap();
        let record = checkpoint::tests::on_disk(&state).unwrap();
        assert!(record.node.ledger.desired.slices.len() >= number, "an answer comes after the disk");
    }
    assert_eq!(checkpoint::tests::writes(&state), before + 1);
    // Once more: the pod has its place, and the disk has it too.
    answer(order(&seen, 3)).await.unwrap();
    assert_eq!(checkpoint::tests::writes(&state), before + 1);
    stop.cancel();
}

#[tokio::test]
async fn a_long_cut_does_not_delay_other_gpus() {
    let (folder, stop) = (tempfile::tempdir().unwrap(), CancellationToken::new());
    let gpus = FakeGpus::new(&["H100-80GB", "H100-80GB"]);
    // An observation of all GPUs would wait for the hung one.
    let (seen, _) = ordered_on(&gpus, TIMEOUT, folder.path(), &stop).await;
    gpus.set_hanging(0, true);
    let orders: Vec<_> = (0..6).map(|pod| order(&seen, pod)).collect();
    for waiting in orders {
        answer(waiting).await.unwrap();
    }
    let cut = |gpu: usize| gpus.gpus()[gpu].instances.len();
    let begun = Instant::now();
    while cut(1) < 3 {
        assert!(begun.elapsed() < TIMEOUT, "{} of 3", cut(1));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(cut(0), 0);
    gpus.set_hanging(0, false);
    while cut(0) < 3 {
        assert!(begun.elapsed() < TIMEOUT, "{} of 3", cut(0));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    stop.cancel();
}

#[tokio::test]
async fn on_a_full_disk_orders_are_refused_and_the_record_of_before_stays() {
    let (folder, stop) = (tempfile::tempdir().unwrap(), CancellationToken::new());
    let (mut seen, state) = ordered(folder.path(), &stop).await;
    answer(order(&seen, 0)).await.unwrap();
    let newest = checkpoint::tests::newest(&state);
    let other = state.join(if newest == "ledger.0" { "ledger.1" } else { "ledger.0" });
    drop(fs::remove_file(&other));
    symlink("/dev/full", &other).unwrap();
    let refused = [order(&seen, 1), order(&seen, 2)];
    for waiting in refused {
        let Err(Rejection::Disk(why)) = answer(waiting).await else { panic!("it cannot be on the disk") };
        assert!(why.contains("No space left"), "{why}");
    }
    let is_published = |status: &GpuNodeStatus| {
        let is_it =
            |ready: &Condition| ready.reason == "RecordNotWritten" && ready.message.contains("No space left");
        status.condition(Condition::READY).is_some_and(is_it)
    };
    tokio::time::timeout(TIMEOUT, seen.status.wait_for(is_published)).await.unwrap().unwrap();
    fs::remove_file(&other).unwrap();
    let pods = || {
        let slices = checkpoint::tests::on_disk(&state).unwrap().node.ledger.desired.slices;
        slices.into_iter().filter_map(|slice| slice.reservation.map(|r| r.pod)).collect::<Vec<_>>()
    };
    assert_eq!(pods(), ["p0"]);
    answer(order(&seen, 1)).await.unwrap();
    assert_eq!(pods(), ["p0", "p1"]);
    let is_well = |status: &GpuNodeStatus| !is_published(status);
    tokio::time::timeout(TIMEOUT, seen.status.wait_for(is_well)).await.unwrap().unwrap();
    stop.cancel();
}

/// Runs a session on GPUs that `open` opens, until it ends by itself.
async fn ending(open: Open, folder: &Path, between: impl AsyncFnOnce(&mut Seen)) -> Ending {
    let session = Session::until(&CancellationToken::new());
    let mut seen = start_with(open, (folder, &folder.join("state")), &session);
    between(&mut seen).await;
    tokio::time::timeout(TIMEOUT, seen.running).await.unwrap().unwrap();
    session.ending().unwrap().clone()
}

fn opens(gpus: &FakeGpus) -> Open {
    let gpus = gpus.clone();
    Box::new(move || Ok(Box::new(gpus.clone())))
}

#[tokio::test]
async fn a_library_of_another_version_than_the_driver_ends_the_process() {
    let folder = tempfile::tempdir().unwrap();
    let error = GpuError::Call { call: "nvmlInit_v2", code: NvmlCode::VersionMismatch };
    let expected = error.clone();
    let ended = ending(Box::new(move || Err(error.clone())), folder.path(), async |_| ()).await;
    assert_eq!(ended, Ending::VersionMismatch(expected));
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
        tokio::time::timeout(TIMEOUT, seen.status.wait_for(sees)).await.unwrap().unwrap();
        gpus.set_panicking(1);
    });
    assert_eq!(ended.await, Ending::ThreadEnded);
}

/// The old state of the GPUs stays recorded, so that the new process finds that the mode was lost.
#[tokio::test]
async fn a_reloaded_driver_ends_the_process_before_lost_modes_count_as_switched_off() {
    let folder = tempfile::tempdir().unwrap();
    let (module, gpus) = (folder.path().join("sys/module/nvidia"), FakeGpus::new(&["H100-80GB"]));
    fs::create_dir_all(&module).unwrap();
    let ended = ending(opens(&gpus), folder.path(), async |seen| {
        let sees = |status: &GpuNodeStatus| !status.gpus.is_empty();
        tokio::time::timeout(TIMEOUT, seen.status.wait_for(sees)).await.unwrap().unwrap();
        gpus.reboot();
        fs::rename(&module, folder.path().join("old")).unwrap();
        fs::create_dir_all(&module).unwrap();
    });
    assert_eq!(ended.await, Ending::Reloaded);
    let state = folder.path().join("state");
    let (_, before) = CheckpointWriter::open(&state, "boot".to_owned(), folder.path().join("sys")).unwrap();
    let restored = before.unwrap();
    assert_eq!((restored.mig_lost, restored.booted), ([uuid(0)].into(), true));
}

#[tokio::test]
async fn a_driver_upgrade_waits_only_for_mps_daemons_of_an_earlier_process() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = folder.path().join("mps/GPU-0");
    fs::create_dir_all(&daemon).unwrap();
    let ended = ending(opens(&FakeGpus::new(&["T4-16GB"])), folder.path(), async |seen| {
        want_a_share(&seen.events);
        seen.events.send(Event::Upgrade(Some("a label".to_owned())));
        let is_published = |status: &GpuNodeStatus| {
            status.conditions.iter().any(|c| c.kind == Condition::READY && c.reason == "DriverUpgrade")
        };
        tokio::time::timeout(TIMEOUT, seen.status.wait_for(is_published)).await.unwrap().unwrap();
        let is_known =
            |slices: &Option<DesiredSlices>| slices.as_ref().is_some_and(|slices| slices.daemons.is_empty());
        tokio::time::timeout(TIMEOUT, seen.slices.wait_for(is_known)).await.unwrap().unwrap();
        assert!(!seen.running.is_finished(), "its daemon may hold the driver");
        fs::remove_dir(&daemon).unwrap();
    });
    assert_eq!(ended.await, Ending::Upgrade("a label".to_owned()));
}
