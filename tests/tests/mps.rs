//! The agent's MPS supervision with the stand-in for `nvidia-cuda-mps-control`: processes, sockets, files, control
//! words.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test that cannot be set up has failed")]

use futures::FutureExt as _;
use futures::future::{BoxFuture, join_all};
use kerf_core::units::MemoryMib;
use kerf_node_agent::gpu::ComputeMode;
use kerf_node_agent::mps::{
    ComputeModes, Observed, Paths, State, Status, Targets, Timings, Wanted, WantedByTarget, leave, pipe_dir,
    supervise,
};
use kerf_tests::binaries;
use kerf_tests::mps::{Event, Fault, MpsStandIn, Orders, ServerFault, WordFault};
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeSet;
use std::fs::{self, Permissions};
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tempfile::TempDir;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

const GPU: &str = "GPU-7ce2be1e-795f-dc99-f369-725ee6944871";
const OTHER: &str = "MIG-0d1ffd2c-cf72-5372-a1b9-c9c2a5a5a3d5";

/// Longer than any step takes on the slowest machine.
const TIMEOUT: Duration = Duration::from_mins(1);

/// The words that the supervisor sends.
const WORDS: [&str; 14] = [
    "get_server_list",
    "get_server_status",
    "start_server",
    "get_client_list",
    "get_default_active_thread_percentage",
    "set_default_active_thread_percentage",
    "get_active_thread_percentage",
    "set_active_thread_percentage",
    "get_default_device_pinned_mem_limit",
    "set_default_device_pinned_mem_limit",
    "get_device_pinned_mem_limit",
    "set_device_pinned_mem_limit",
    "shutdown_server",
    "quit",
];

fn timings() -> Timings {
    Timings {
        control_timeout: Duration::from_secs(1),
        probe_every: Duration::from_millis(200),
        start_poll: Duration::from_millis(10),
        settle_poll: Duration::from_millis(50),
        fault_grace: Duration::from_millis(500),
        quit_within: Duration::from_secs(1),
        backoff_min: Duration::from_millis(20),
        backoff_max: Duration::from_millis(200),
        ..Timings::default()
    }
}

fn wanted(gib: u64, threads: u8) -> Wanted {
    Wanted { limit: MemoryMib(gib * 1024), threads, exclusive: true, in_use: false }
}

fn serving(wanted: &Wanted) -> State {
    State::Serving { limit: wanted.limit, threads: wanted.threads }
}

/// The GPUs in `EXCLUSIVE_PROCESS` mode.
#[derive(Debug, Clone, Default)]
struct Modes(Arc<Mutex<BTreeSet<String>>>);

impl ComputeModes for Modes {
    fn mode(&self, target: &str) -> BoxFuture<'_, Result<ComputeMode, String>> {
        let is_exclusive = self.0.lock().unwrap().contains(target);
        let mode = if is_exclusive { ComputeMode::ExclusiveProcess } else { ComputeMode::Default };
        async move { Ok(mode) }.boxed()
    }

    fn set(&self, target: &str, mode: ComputeMode) -> BoxFuture<'_, Result<(), String>> {
        let mut modes = self.0.lock().unwrap();
        if mode == ComputeMode::ExclusiveProcess {
            modes.insert(target.to_owned())
        } else {
            modes.remove(target)
        };
        async { Ok(()) }.boxed()
    }
}

impl Modes {
    fn exclusive(&self) -> Vec<String> {
        self.0.lock().unwrap().iter().cloned().collect()
    }
}

/// A node's folder, which outlives the agent.
struct Node {
    folder: TempDir,
    root: PathBuf,
    stand_in: MpsStandIn,
    modes: Modes,
}

impl Node {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("mps");
        Self { stand_in: MpsStandIn::below(&root), root, modes: Modes::default(), folder }
    }

    fn paths(&self) -> Paths {
        Paths {
            root: self.root.clone(),
            program: MpsStandIn::program().unwrap(),
            launcher: binaries::ours("kerf-node-agent").unwrap(),
            cgroup: None,
            private_shm: false,
        }
    }

    fn agent(&self, wanted: impl Into<Option<WantedByTarget>>) -> Agent {
        self.agent_with(self.paths(), wanted)
    }

    fn agent_with(&self, paths: Paths, wanted: impl Into<Option<WantedByTarget>>) -> Agent {
        let targets = |wanted| Targets { wanted, ..Targets::default() };
        let (wanted, wants) = watch::channel(wanted.into().map(targets));
        let (says, observed) = watch::channel(Observed::new());
        let supervisor =
            supervise(paths, timings(), wants, says, self.modes.clone(), CancellationToken::new());
        Agent { wanted, observed, task: tokio::spawn(supervisor) }
    }

    fn order(&self, target: &str, orders: Orders) {
        self.stand_in.order(target, orders).unwrap();
    }

    fn words(&self, target: &str) -> Vec<String> {
        self.stand_in.words(target).unwrap()
    }

    /// All processes that have been the target's daemon.
    fn daemons(&self, target: &str) -> Vec<u32> {
        let events = self.stand_in.events(target).unwrap().into_iter();
        events
            .filter_map(|event| if let Event::Started { daemon, .. } = event { Some(daemon) } else { None })
            .collect()
    }
}

/// A supervisor. Dropping it acts like SIGKILL on an agent: nothing is cleaned up.
struct Agent {
    wanted: watch::Sender<Option<Targets>>,
    observed: watch::Receiver<Observed>,
    task: JoinHandle<()>,
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Agent {
    fn want(&self, target: &str, wanted: Option<Wanted>) {
        self.wanted.send_modify(|all| {
            let all = &mut all.get_or_insert_default().wanted;
            match wanted {
                Some(wanted) => all.insert(target.to_owned(), wanted),
                None => all.remove(target),
            };
        });
    }

    async fn until(&self, target: &str, is: impl Fn(Option<&Status>) -> bool) -> Option<Status> {
        let mut observed = self.observed.clone();
        let waited = tokio::time::timeout(TIMEOUT, observed.wait_for(|all| is(all.get(target)))).await;
        let found = waited.map(|seen| seen.unwrap().get(target).cloned());
        found.unwrap_or_else(|_| panic!("{target} is still {:?}", self.observed.borrow().get(target)))
    }

    async fn until_serving(&self, target: &str, wanted: &Wanted) -> Status {
        self.until(target, |s| s.is_some_and(|s| s.state == serving(wanted))).await.unwrap()
    }

    async fn until_gone(&self, target: &str) {
        self.until(target, |status| status.is_none()).await;
    }
}

fn each<const N: usize>(targets: [&str; N], wanted: &Wanted) -> WantedByTarget {
    targets.map(|target| (target.to_owned(), wanted.clone())).into()
}

fn clients(clients: &[u32]) -> Orders {
    Orders { clients: clients.iter().copied().collect(), ..Orders::default() }
}

fn runs(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, fields)| !fields.starts_with('Z'))
}

/// The running processes of a daemon's servers.
fn servers_of(daemon: u32) -> Vec<u32> {
    let all =
        fs::read_dir("/proc").unwrap().filter_map(|entry| entry.unwrap().file_name().into_string().ok());
    let is_of = |pid: &u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let fields = stat.rsplit_once(") ").map(|(_, fields)| fields.split(' ').collect::<Vec<_>>());
        // Field 5, counted with the name: the process group.
        fields.is_some_and(|fields| fields[2] == daemon.to_string())
            && stat.contains("(nvidia-cuda-mps")
            && runs(*pid)
    };
    all.filter_map(|name| name.parse().ok()).filter(is_of).collect()
}

/// Waits for the processes of a daemon's servers.
async fn until_servers_of(daemon: u32) -> Vec<u32> {
    let found = async {
        loop {
            let servers = servers_of(daemon);
            if !servers.is_empty() {
                return servers;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(TIMEOUT, found).await.unwrap()
}

fn kill(pid: u32) {
    kill_process(Pid::from_raw(i32::try_from(pid).unwrap()).unwrap(), Signal::KILL).unwrap();
}

#[tokio::test]
async fn a_daemon_applies_limits_accepts_new_ones_with_clients_and_stops() {
    let node = Node::new();
    let (first, second) = (wanted(10, 14), wanted(20, 30));
    let agent = node.agent(each([GPU], &first));
    let status = agent.until_serving(GPU, &first).await;
    assert_eq!((status.generation, status.servers.len()), (1, 1));
    assert_eq!(node.modes.exclusive(), [GPU]);
    let started = node.stand_in.events(GPU).unwrap().into_iter().next().unwrap();
    assert!(
        matches!(&started, Event::Started { arguments, .. } if arguments[..] == ["-f", "-multiuser-server"])
    );

    node.order(GPU, clients(&[7001]));
    let status = agent.until(GPU, |s| s.is_some_and(|s| s.clients == [7001].into())).await.unwrap();
    assert_eq!(status.state, serving(&first));
    agent.want(GPU, Some(second.clone()));
    agent.until_serving(GPU, &second).await;
    node.order(GPU, clients(&[7001, 7002]));
    let status = agent.until(GPU, |s| s.is_some_and(|s| s.clients.len() == 2)).await.unwrap();
    assert_eq!((status.generation, node.daemons(GPU).len()), (1, 1));
    let limits: Vec<(u32, Option<u64>, f64)> = node
        .stand_in
        .events(GPU)
        .unwrap()
        .into_iter()
        .filter_map(|event| match event {
            Event::Client { client, memory, threads, .. } => Some((client, memory, threads)),
            _ => None,
        })
        .collect();
    assert_eq!(limits, [(7001, Some(10_240), 14.0), (7002, Some(20_480), 30.0)]);

    agent.want(GPU, None);
    agent.until_gone(GPU).await;
    assert_eq!(node.modes.exclusive(), Vec::<String>::new());
    assert!(!node.root.join(GPU).exists() && !runs(node.daemons(GPU)[0]));
}

/// An admin set that mode before kerf served the GPU.
#[tokio::test]
async fn a_gpu_that_was_exclusive_before_stays_so() {
    let node = Node::new();
    node.modes.set(GPU, ComputeMode::ExclusiveProcess).await.unwrap();
    let wanted = wanted(10, 14);
    let agent = node.agent(each([GPU], &wanted));
    agent.until_serving(GPU, &wanted).await;
    agent.want(GPU, None);
    agent.until_gone(GPU).await;
    assert_eq!(node.modes.exclusive(), [GPU]);
}

#[tokio::test]
async fn clients_that_connect_before_the_limits_are_set_lose_their_server() {
    let node = Node::new();
    node.order(GPU, clients(&[7001]));
    let want = wanted(10, 14);
    let agent = node.agent(each([GPU], &want));
    let status = agent.until_serving(GPU, &want).await;
    let early = node.stand_in.events(GPU).unwrap().into_iter().find_map(|event| match event {
        Event::Client { server, memory: None, .. } => Some(server),
        _ => None,
    });
    let early = early.unwrap();
    assert!(node.words(GPU).contains(&format!("shutdown_server {early} -f")));
    assert!(!status.servers.contains(&early) && status.servers.len() == 1);
    assert_eq!(status.generation, 1);
}

#[tokio::test]
async fn one_slow_command_restarts_no_daemon() {
    let node = Node::new();
    let want = wanted(10, 14);
    let agent = node.agent(each([GPU], &want));
    agent.until_serving(GPU, &want).await;
    let word = "get_server_status".to_owned();
    let hang = WordFault { word, fault: Fault::HangBefore, times: None };
    node.order(GPU, Orders { faults: vec![hang], ..Orders::default() });
    let hangs = async {
        while node.stand_in.struck(GPU).unwrap().is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(TIMEOUT, hangs).await.unwrap();
    node.order(GPU, clients(&[7001]));
    let status = agent.until(GPU, |s| s.is_some_and(|s| s.clients == [7001].into())).await.unwrap();
    assert_eq!((status.state, status.generation), (serving(&want), 1));
}

#[tokio::test]
async fn a_daemon_that_hangs_while_pods_use_the_gpu_is_not_killed() {
    let node = Node::new();
    let used = Wanted { in_use: true, ..wanted(10, 14) };
    let agent = node.agent(each([GPU], &used));
    agent.until_serving(GPU, &used).await;
    let hang = WordFault { word: "get_server_list".to_owned(), fault: Fault::HangBefore, times: None };
    node.order(GPU, Orders { faults: vec![hang], ..Orders::default() });
    let waits = |state: &State| matches!(state, State::Ill { text, .. } if text.contains("only when they have ended"));
    agent.until(GPU, |s| s.is_some_and(|s| waits(&s.state))).await;
    node.order(GPU, Orders::default());
    assert_eq!(agent.until_serving(GPU, &used).await.generation, 1);
}

#[tokio::test]
async fn a_fault_is_reported_until_it_ends_or_a_shutdown_or_restart_ends_it() {
    let cases = [
        (ServerFault::UntilClientsLeave, clients(&[7001]), 0, 1),
        (ServerFault::UntilShutDown, clients(&[7001]), 1, 1),
        (ServerFault::UntilRestart, clients(&[]), 1, 2),
    ];
    for (server_fault, clients_then, shutdowns, generation) in cases {
        let node = Node::new();
        let want = wanted(10, 14);
        let agent = node.agent(each([GPU], &want));
        agent.until_serving(GPU, &want).await;
        node.order(GPU, Orders { server_fault: Some(server_fault), ..clients_then });
        agent.until(GPU, |s| s.is_some_and(|s| matches!(s.state, State::Ill { fault: true, .. }))).await;
        if server_fault == ServerFault::UntilClientsLeave {
            node.order(GPU, clients(&[]));
        }
        let status = agent.until_serving(GPU, &want).await;
        assert_eq!(status.generation, generation, "{server_fault:?}");
        let counts = node.stand_in.counts(GPU).unwrap();
        assert_eq!(counts.get("shutdown_server").copied().unwrap_or(0), shutdowns, "{server_fault:?}");
    }
}

/// Makes each word fail once, each on a daemon of its own, through the whole life of the daemon.
async fn each_word_goes_wrong_once(fault: Fault) {
    let node = Node::new();
    let agent = node.agent(WantedByTarget::new());
    let way = async |word: &str| {
        let target = format!("GPU-{word}");
        let wrong = WordFault { word: word.to_owned(), fault: fault.clone(), times: Some(1) };
        let server_fault = (word == "shutdown_server").then_some(ServerFault::UntilShutDown);
        node.order(&target, Orders { faults: vec![wrong], server_fault, ..Orders::default() });
        for want in [wanted(10, 14), wanted(20, 30)] {
            agent.want(&target, Some(want.clone()));
            agent.until_serving(&target, &want).await;
        }
        agent.want(&target, None);
        agent.until_gone(&target).await;
        assert_eq!(node.stand_in.struck(&target).unwrap(), [(word.to_owned(), fault.clone())]);
    };
    join_all(WORDS.map(way)).await;
    assert_eq!(node.modes.exclusive(), Vec::<String>::new());
    let said: BTreeSet<String> = WORDS
        .iter()
        .flat_map(|word| node.stand_in.counts(&format!("GPU-{word}")).unwrap().into_keys())
        .collect();
    assert_eq!(said, WORDS.map(ToOwned::to_owned).into(), "a word is said that no fault was tried with");
}

#[tokio::test]
async fn each_command_may_be_rejected() {
    each_word_goes_wrong_once(Fault::Answer("Insufficient privileges".to_owned())).await;
}

#[tokio::test]
async fn each_command_may_hang_before_it_takes_effect() {
    each_word_goes_wrong_once(Fault::HangBefore).await;
}

#[tokio::test]
async fn each_command_may_hang_after_it_took_effect() {
    each_word_goes_wrong_once(Fault::HangAfter).await;
}

#[tokio::test]
async fn the_daemon_may_die_before_each_command() {
    each_word_goes_wrong_once(Fault::DieBefore).await;
}

#[tokio::test]
async fn the_daemon_may_die_after_each_command() {
    each_word_goes_wrong_once(Fault::DieAfter).await;
}

#[tokio::test]
async fn the_next_agent_adopts_desired_daemons_and_ends_others() {
    let node = Node::new();
    let want = wanted(10, 14);
    let agent = node.agent(each([GPU, OTHER], &want));
    for target in [GPU, OTHER] {
        agent.until_serving(target, &want).await;
        node.order(target, clients(&[7001]));
        agent.until(target, |s| s.is_some_and(|s| s.state == serving(&want) && !s.clients.is_empty())).await;
    }
    let daemons = [GPU, OTHER].map(|target| node.daemons(target)[0]);
    drop(agent);

    let agent = node.agent(None);
    let said_before = node.words(GPU).len();
    // Leaves time for what must not happen.
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(agent.observed.borrow().is_empty());
    agent.want(GPU, Some(want.clone()));
    let status = agent.until_serving(GPU, &want).await;
    agent.until_gone(OTHER).await;
    assert_eq!(status.generation, 1);
    assert!(runs(daemons[0]) && !runs(daemons[1]));
    assert_eq!(node.daemons(GPU), [daemons[0]]);
    assert_eq!(node.modes.exclusive(), [GPU]);
    let said = &node.words(GPU)[said_before..];
    assert!(said.iter().all(|word| word.starts_with("get_")), "{said:?}");
}

#[tokio::test]
async fn the_next_agent_removes_a_dead_daemons_files_and_starts_another() {
    let node = Node::new();
    let want = wanted(10, 14);
    let agent = node.agent(each([GPU], &want));
    agent.until_serving(GPU, &want).await;
    drop(agent);
    let first = node.daemons(GPU)[0];
    let servers = until_servers_of(first).await;
    kill(first);
    assert!(pipe_dir(&node.root, GPU).join("control").exists());
    assert_eq!(servers_of(first), servers, "a dead daemon's servers go on");

    let agent = node.agent(each([GPU], &want));
    let status =
        agent.until(GPU, |s| s.is_some_and(|s| s.generation == 2 && s.state == serving(&want))).await;
    assert_eq!(servers_of(first), Vec::<u32>::new(), "they would hold memory beside the next one's");
    assert_eq!((status.unwrap().generation, node.daemons(GPU).len()), (2, 2));
}

#[tokio::test]
async fn an_adopted_daemon_that_dies_takes_its_servers_with_it() {
    let node = Node::new();
    let want = wanted(10, 14);
    let agent = node.agent(each([GPU], &want));
    agent.until_serving(GPU, &want).await;
    drop(agent);
    let agent = node.agent(each([GPU], &want));
    agent.until_serving(GPU, &want).await;
    let first = node.daemons(GPU)[0];
    until_servers_of(first).await;
    kill(first);
    agent.until(GPU, |s| s.is_some_and(|s| s.generation == 2 && s.state == serving(&want))).await;
    assert_eq!(servers_of(first), Vec::<u32>::new());
}

#[tokio::test]
async fn a_pid_file_that_names_another_process_kills_no_process() {
    let node = Node::new();
    let want = wanted(10, 14);
    let agent = node.agent(each([GPU], &want));
    agent.until_serving(GPU, &want).await;
    drop(agent);
    kill(node.daemons(GPU)[0]);
    // The test's own process, which must live.
    fs::write(node.root.join(GPU).join("daemon.pid"), format!("{} 1\n", std::process::id())).unwrap();

    let agent = node.agent(each([GPU], &want));
    let status = agent.until_serving(GPU, &want).await;
    assert_eq!((status.generation, node.daemons(GPU).len()), (2, 2));
}

#[tokio::test]
async fn a_daemon_with_an_unknown_process_is_replaced() {
    let node = Node::new();
    let want = wanted(10, 14);
    let agent = node.agent(each([GPU], &want));
    agent.until_serving(GPU, &want).await;
    drop(agent);
    fs::remove_file(node.root.join(GPU).join("daemon.pid")).unwrap();
    let agent = node.agent(each([GPU], &want));
    agent.until(GPU, |s| s.is_some_and(|s| s.generation == 2 && s.state == serving(&want))).await;
    assert_eq!(node.daemons(GPU).len(), 2);
    assert!(!runs(node.daemons(GPU)[0]));
}

#[tokio::test]
async fn an_uninstalled_agent_leaves_nothing_behind() {
    let node = Node::new();
    let want = wanted(10, 14);
    let agent = node.agent(each([GPU, OTHER], &want));
    for target in [GPU, OTHER] {
        agent.until_serving(target, &want).await;
    }
    drop(agent);
    tokio::time::timeout(TIMEOUT, leave(node.paths(), timings(), node.modes.clone(), &BTreeSet::new()))
        .await
        .unwrap();
    assert_eq!(fs::read_dir(&node.root).unwrap().count(), 0);
    assert_eq!(node.modes.exclusive(), Vec::<String>::new());
    assert!([GPU, OTHER].iter().all(|target| !runs(node.daemons(target)[0])));
}

#[tokio::test]
async fn a_missing_program_is_reported_until_it_exists() {
    let node = Node::new();
    let want = wanted(10, 14);
    let program = node.root.with_file_name("nvidia-cuda-mps-control");
    let agent = node.agent_with(Paths { program: program.clone(), ..node.paths() }, each([GPU], &want));
    let names = |s: Option<&Status>| {
        s.is_some_and(
            |s| matches!(&s.state, State::Ill { text, .. } if text.contains("nvidia-cuda-mps-control")),
        )
    };
    agent.until(GPU, names).await;
    std::os::unix::fs::symlink(MpsStandIn::program().unwrap(), program).unwrap();
    agent.until_serving(GPU, &want).await;
}

/// Whether this process may give another a mount namespace.
fn may_mount(node: &Node) -> bool {
    let mut try_it = Command::new(node.paths().launcher);
    try_it.args(["mps-exec", "--private-shm"]);
    try_it.arg("--pid-file").arg(node.root.with_file_name("tried.pid")).args(["--", "true"]);
    try_it.output().unwrap().status.success()
}

#[tokio::test]
async fn a_daemon_has_its_own_shared_memory_and_session() {
    let node = Node::new();
    let private_shm = may_mount(&node);
    let want = wanted(10, 14);
    let agent = node.agent_with(Paths { private_shm, ..node.paths() }, each([GPU], &want));
    agent.until_serving(GPU, &want).await;
    let daemon = node.daemons(GPU)[0];
    let stat = fs::read_to_string(format!("/proc/{daemon}/stat")).unwrap();
    // Fields 5 and 6, counted with the name: process group and session.
    let fields: Vec<&str> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
    assert_eq!(fields[2..4], [daemon.to_string(), daemon.to_string()]);
    if !private_shm {
        eprintln!("no mount namespace is allowed here: /dev/shm is not looked at");
        return;
    }
    fs::write(format!("/proc/{daemon}/root/dev/shm/kerf"), "").unwrap();
    assert!(!fs::exists("/dev/shm/kerf").unwrap(), "the mount is seen outside");
    let mounts = fs::read_to_string(format!("/proc/{daemon}/mountinfo")).unwrap();
    let is_bounded = |line: &str| line.contains(" /dev/shm ") && line.contains("size=65536k");
    assert!(mounts.lines().any(is_bounded), "{mounts}");
}

/// The output of the control program when it is run like this, with these words.
fn said(mut command: Command, pipe: &Path, words: &str) -> String {
    command.env("CUDA_MPS_PIPE_DIRECTORY", pipe).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut client = command.spawn().unwrap();
    client.stdin.take().unwrap().write_all(words.as_bytes()).unwrap();
    String::from_utf8(client.wait_with_output().unwrap().stdout).unwrap()
}

#[tokio::test]
async fn other_users_and_the_root_of_a_user_namespace_cannot_command_a_daemon() {
    const TENANT: u32 = 1000;
    if !rustix::process::geteuid().is_root() {
        return eprintln!("SKIPPED: only root can start a client as another user");
    }
    let (node, wanted) = (Node::new(), wanted(10, 14));
    let agent = node.agent(each([GPU], &wanted));
    let before = agent.until_serving(GPU, &wanted).await;
    // The folder is open, so that other users can reach the socket and run the program that they brought along.
    fs::set_permissions(node.folder.path(), Permissions::from_mode(0o755)).unwrap();
    let (pipe, program) = (pipe_dir(&node.root, GPU), node.folder.path().join("mps-control"));
    // Another process copies it. Otherwise a fork of another test could hold the copy open for writing, and it could
    // not be executed.
    let copied = Command::new("cp").arg(MpsStandIn::program().unwrap()).arg(&program).status().unwrap();
    assert!(copied.success());
    let (mut user, mut separated) = (Command::new(&program), Command::new("unshare"));
    user.uid(TENANT).gid(TENANT);
    separated.args(["--user", "--map-root-user"]).arg(&program).uid(TENANT).gid(TENANT);
    for tenant in [user, separated] {
        let text = format!("{tenant:?}");
        let words = "set_default_active_thread_percentage 77\nquit -t 0\n";
        assert_eq!(said(tenant, &pipe, words), "Insufficient privileges\n", "{text}");
    }
    let words = "get_default_active_thread_percentage\n";
    assert_eq!(said(Command::new(&program), &pipe, words), "14.0\n", "root of the node is obeyed");
    assert_eq!(node.daemons(GPU).len(), 1);
    assert_eq!(agent.until_serving(GPU, &wanted).await.generation, before.generation);
}
