//! A neighbour on a share, and the state that a tenant beside it must not change: its work, the daemon, the
//! server, their limits and files, and the GPU's mode. All of it is checked from the host.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use kerf_node_agent::mps::{Answer, Control, Scope, Word, daemon_dir, pipe_dir};
use kerf_nvml_mock::{MockFiles, MockState};
use kerf_tests::cluster::wait;
use kerf_tests::mps::{MpsStandIn, Orders};
use kerf_tests::pods::{phase_of, state_of};

use super::super::scene::{Scene, restarts};
use super::super::{server, users};
use crate::job::{Ask, Job};
use crate::tenant::{Facts, control_program};

const SHARE: Ask = Ask::Share(10);

/// The byte that `sees.py` writes at first and at no other time.
const MARK: u8 = 0xC5;

/// Timeout for an answer of the daemon, and for two turns of a twentieth of a second each.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Exclusive process mode, as a number of `nvmlComputeMode_t`.
const EXCLUSIVE: u32 = 3;

/// The state that must not change.
#[derive(Debug, Clone, PartialEq)]
struct State {
    daemon: String,
    server: u32,
    serves_neighbour: bool,
    limits: Vec<Answer>,
    /// Inode, mode and owner of the pipe folder's files.
    files: BTreeMap<String, (u64, u32, u32)>,
    compute_mode: String,
}

pub struct Neighbour<'a> {
    scene: &'a Scene<'a>,
    job: Job,
    gpu: String,
    control: Control,
    /// The daemon's folder that its clients see.
    shown: PathBuf,
    /// Its process id on the host.
    process: i32,
    usual: Option<State>,
}

impl<'a> Neighbour<'a> {
    /// Starts it. Until a tenant comes, it has the daemon of a whole GPU to itself.
    pub async fn start(scene: &'a Scene<'a>) -> anyhow::Result<Self> {
        let job = Job::new("neighbour", SHARE);
        scene.run(std::slice::from_ref(&job)).await?;
        let gpu = gpu_of(scene, &job.name).await?;
        let root = users::mps_root(scene.args);
        let (shown, pipe) = (pipe_dir(&root, &gpu), daemon_dir(&root, &gpu));
        let control = Control { program: control_program(scene.args)?, pipe, timeout: TIMEOUT };
        let process = server::client(&job)?.id;
        let neighbour = Self { scene, job, gpu, control, shown, process, usual: None };
        // CUDA registers as a client by itself; without CUDA the stand-in gets an order.
        neighbour.order_clients([u32::try_from(process)?].into())?;
        Ok(neighbour)
    }

    /// Fails if the tenant's slice is on another GPU.
    pub async fn ensure_beside(&self, tenant: &str) -> anyhow::Result<()> {
        let gpu = gpu_of(self.scene, tenant).await?;
        ensure!(gpu == self.gpu, "{tenant} is on {gpu} and its neighbour on {}", self.gpu);
        Ok(())
    }

    /// Records the state to compare with, once two consecutive readings agree, because a tenant that has just
    /// started changes it too.
    pub async fn settle(&mut self) -> anyhow::Result<()> {
        let mut last = None;
        let settled = async || {
            tokio::time::sleep(Duration::from_millis(500)).await;
            let now = self.state().await?;
            let same = now.serves_neighbour && last.as_ref() == Some(&now);
            last = Some(now);
            Ok(same)
        };
        wait(Duration::from_secs(20), "the daemon to serve the neighbour and its tenant", settled).await?;
        self.usual = last;
        Ok(())
    }

    /// Removes the clients that were ordered from a stand-in.
    pub fn end(self) -> anyhow::Result<()> {
        self.order_clients(BTreeSet::new())
    }

    /// The facts that a tenant gets.
    pub fn facts(&self) -> anyhow::Result<Facts> {
        let usual = self.usual.as_ref().context("the neighbour has not settled")?;
        let daemon: u32 = usual.daemon.parse().context("the daemon's process")?;
        let places = self.scene.args.places();
        let files = ["cdi", "agent", "kubelet", "containerd.toml"].map(|name| places.state().join(name));
        Ok(Facts {
            daemon,
            server: usual.server,
            clients: vec![u32::try_from(self.process)?],
            processes: vec![self.process, i32::try_from(usual.server)?, i32::try_from(daemon)?],
            pipe: self.shown.clone(),
            node_files: files.into(),
            share_mib: SHARE.mib().unwrap_or_default(),
            pattern: MARK,
            without_cuda: !self.scene.is_real(),
        })
    }

    /// Whether only the server's clients can use the GPU.
    pub fn is_exclusive(&self) -> bool {
        self.usual.as_ref().is_some_and(|usual| usual.compute_mode == EXCLUSIVE.to_string())
    }

    /// How long the daemon takes to answer while a tenant may keep it busy.
    pub async fn answers_after(&self, timeout: Duration) -> anyhow::Result<Duration> {
        let begun = Instant::now();
        self.ask_for(timeout, Word::ServerList).await.context("the daemon did not answer meanwhile")?;
        Ok(begun.elapsed())
    }

    /// Every change from the recorded state, as a text; empty if the neighbour works undisturbed.
    pub async fn harm(&self) -> anyhow::Result<Vec<String>> {
        let (goes_on, now) = tokio::join!(self.goes_on(), self.state());
        let mut harm: Vec<String> = goes_on.err().map(|error| format!("{error:#}")).into_iter().collect();
        let usual = self.usual.as_ref().context("the neighbour has not settled")?;
        match now {
            Ok(mut now) => {
                // Files that root creates there for a new client do not affect the neighbour.
                now.files.retain(|name, (.., owner)| usual.files.contains_key(name) || *owner != 0);
                harm.extend((now != *usual).then(|| format!("expected {usual:?}, saw {now:?}")));
            }
            Err(error) => harm.push(format!("{error:#}")),
        }
        Ok(harm)
    }

    /// Waits for two more turns in the container's first run. Each turn compares the GPU's memory with what
    /// was written.
    async fn goes_on(&self) -> anyhow::Result<()> {
        let pod = self.scene.pods.get(&self.job.name).await?;
        ensure!(phase_of(&pod) == "Running", "the neighbour does not run any more: {}", state_of(&pod));
        ensure!(restarts(&pod) == 0, "the neighbour's container was restarted");
        let turns = || self.scene.lines(&pod).len();
        let before = turns();
        wait(TIMEOUT, "the neighbour to go on", async || Ok(turns() >= before + 2)).await
    }

    async fn state(&self) -> anyhow::Result<State> {
        let folder = self.control.pipe.parent().context("a pipe folder has a parent")?;
        let noted = fs::read_to_string(folder.join("daemon.pid")).context("no daemon is noted")?;
        let daemon = noted.split_whitespace().next().unwrap_or_default().to_owned();
        ensure!(PathBuf::from(format!("/proc/{daemon}")).exists(), "the daemon, process {daemon}, is gone");
        let Answer::Servers(servers) = self.ask(Word::ServerList).await? else {
            anyhow::bail!("the daemon names no servers");
        };
        let [server] = servers[..] else { anyhow::bail!("expected one server, saw {servers:?}") };
        let scopes = [Scope::Default, Scope::Server(server)];
        let words = scopes.into_iter().flat_map(|scope| [Word::Threads(scope), Word::Memory(scope)]);
        let mut limits = Vec::new();
        for word in words {
            limits.push(self.ask(word).await?);
        }
        let clients = self.ask(Word::ClientList(server)).await?;
        let own = u32::try_from(self.process)?;
        Ok(State {
            daemon,
            server,
            serves_neighbour: matches!(clients, Answer::Clients(clients) if clients.contains(&own)),
            limits,
            files: self.files()?,
            compute_mode: self.compute_mode()?,
        })
    }

    async fn ask(&self, word: Word) -> anyhow::Result<Answer> {
        self.ask_for(TIMEOUT, word).await
    }

    /// The daemon serves one control client at a time, and the agent or the tenant may be connected. So it is
    /// asked until it answers.
    async fn ask_for(&self, timeout: Duration, word: Word) -> anyhow::Result<Answer> {
        let begun = Instant::now();
        loop {
            match self.control.ask(word).await {
                Ok(answer) => return Ok(answer),
                Err(error) if begun.elapsed() >= timeout => return Err(error.into()),
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    }

    fn files(&self) -> anyhow::Result<BTreeMap<String, (u64, u32, u32)>> {
        let mut files = BTreeMap::new();
        for entry in fs::read_dir(&self.shown).context("the pipe folder cannot be read")? {
            let entry = entry?;
            let about = entry.metadata()?;
            let name = entry.file_name().to_string_lossy().into_owned();
            files.insert(name, (about.ino(), about.mode(), about.uid()));
        }
        Ok(files)
    }

    /// NVML's number for a simulated GPU, nvidia-smi's text for a real one.
    fn compute_mode(&self) -> anyhow::Result<String> {
        if !self.scene.is_real() {
            let files = MockFiles::in_folder(self.scene.args.places().nvml());
            let state = MockState::load(&files.state)?;
            let gpu = state.gpus.iter().find(|gpu| gpu.uuid == self.gpu).context("no such GPU")?;
            return Ok(gpu.compute_mode.to_string());
        }
        let mut command = Command::new("nvidia-smi");
        command.args(["--query-gpu=compute_mode", "--format=csv,noheader", "--id", &self.gpu]);
        let output = command.output().context("failed to run nvidia-smi")?;
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }

    fn order_clients(&self, clients: BTreeSet<u32>) -> anyhow::Result<()> {
        if self.scene.is_real() {
            return Ok(());
        }
        let stand_ins = MpsStandIn::below(users::mps_root(self.scene.args));
        stand_ins.order(&self.gpu, Orders { clients, ..Orders::default() }).context("failed to order clients")
    }
}

/// The one GPU that the pod has a share of.
async fn gpu_of(scene: &Scene<'_>, pod: &str) -> anyhow::Result<String> {
    let gpus = scene.node.gpus_of(pod).await?;
    let [gpu] = &gpus[..] else { anyhow::bail!("expected {pod} on one GPU, saw it on {gpus:?}") };
    Ok(gpu.to_string())
}
