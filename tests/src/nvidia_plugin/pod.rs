//! NVIDIA's pods of a node, as their chart creates them: config-manager runs first, then the program with
//! config-manager beside it (`deployments/helm/nvidia-device-plugin/templates` of k8s-device-plugin v0.19.3).

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::Context as _;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::container::{Again, Handle, Running};
use super::root::{NodeFolder, PodRoot};
use super::spec::StaticNodeSpec;
use crate::kubelet::locked;
use crate::process::Program;

/// How often the pod's processes are checked.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Delay before a program that ended is restarted. On a real node it is 10 s and doubles each time, up to
/// 5 minutes, which would make tests slow.
const RESTART_DELAY: Duration = Duration::from_millis(300);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum NvidiaPod {
    Plugin,
    Discovery,
    /// The pod of mps-control-daemon. It runs if GPU feature discovery found that MPS is chosen.
    MpsDaemon,
}

impl NvidiaPod {
    #[must_use]
    pub fn program(self) -> &'static str {
        match self {
            Self::Plugin => "nvidia-device-plugin",
            Self::Discovery => "gpu-feature-discovery",
            Self::MpsDaemon => "mps-control-daemon",
        }
    }

    /// The name of its config-manager's container, which signals the program after a change.
    #[must_use]
    pub fn sidecar(self) -> String {
        format!("{}-sidecar", self.program())
    }

    /// The name of the config-manager's container that runs before the program.
    #[must_use]
    pub fn init(self) -> String {
        format!("{}-init", self.program())
    }

    /// The process name that config-manager gets for the program.
    fn is_called(self, spec: &StaticNodeSpec) -> &'static str {
        match self {
            Self::MpsDaemon => spec.mps_daemon_is_called,
            other => other.program(),
        }
    }
}

pub(super) type Containers = Arc<Mutex<BTreeMap<String, Handle>>>;

pub(super) struct RunningPod {
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl RunningPod {
    pub fn start(
        pod: NvidiaPod,
        node: &NodeFolder,
        spec: &StaticNodeSpec,
        kubeconfig: &Path,
        containers: Containers,
    ) -> anyhow::Result<Self> {
        let plan =
            Plan::new(pod, node, spec, kubeconfig).with_context(|| format!("{pod:?} cannot be started"))?;
        let stop = CancellationToken::new();
        let task = tokio::spawn(plan.run(RESTART_DELAY, containers, stop.clone()));
        Ok(Self { stop, task })
    }

    pub async fn end(self) {
        self.stop.cancel();
        let _ = self.task.await;
    }
}

/// The pod's containers in order.
struct Plan {
    pod: NvidiaPod,
    init: Vec<(String, Program)>,
    main: Program,
    sidecar: Program,
    processes: PathBuf,
}

impl Plan {
    fn new(
        pod: NvidiaPod,
        node: &NodeFolder,
        spec: &StaticNodeSpec,
        kubeconfig: &Path,
    ) -> anyhow::Result<Self> {
        let root = PodRoot::create(node, pod.program())?;
        let account = root.dir.join("kubeconfig");
        fs::copy(kubeconfig, &account).context("failed to give the pod its account")?;
        let manager = |name: &str, once: bool| -> anyhow::Result<Program> {
            let variables = [
                ("ONESHOT", if once { "true" } else { "false" }),
                ("KUBECONFIG", &account.display().to_string()),
                ("NODE_NAME", &spec.name),
                ("NODE_LABEL", super::CONFIG_LABEL),
                ("CONFIG_FILE_SRCDIR", "/available-configs"),
                ("CONFIG_FILE_DST", "/config/config.yaml"),
                // No layout is the default, so the chart's fallbacks apply: a key `default`, or the only key.
                ("DEFAULT_CONFIG", ""),
                ("FALLBACK_STRATEGIES", "named,single"),
                ("SEND_SIGNAL", if once { "false" } else { "true" }),
                ("SIGNAL", if once { "" } else { "1" }),
                ("PROCESS_TO_SIGNAL", if once { "" } else { pod.is_called(spec) }),
            ];
            let container = root.container(name, "config-manager", true)?;
            variables.iter().fold(container, |it, (name, value)| it.env(name, value)).with_arguments(&[])
        };
        let mut main =
            root.container(pod.program(), pod.program(), false)?.env("CONFIG_FILE", "/config/config.yaml");
        if let Some(strategy) = &spec.mig_strategy {
            main = main.env("MIG_STRATEGY", strategy);
        }
        let mut init = Vec::new();
        let main = match pod {
            NvidiaPod::Plugin => main.env("MPS_ROOT", "/run/nvidia/mps").with_arguments(&[])?,
            NvidiaPod::Discovery => {
                let file = node.dir.join("features/gfd").display().to_string();
                main.env("GFD_USE_NODE_FEATURE_API", "false")
                    .env("GFD_OUTPUT_FILE", &file)
                    .env("GFD_SLEEP_INTERVAL", "60s")
                    .with_arguments(&[])?
            }
            NvidiaPod::MpsDaemon => {
                let name = "mps-control-daemon-mounts".to_owned();
                let mounts = root.container(&name, pod.program(), false)?.with_arguments(&["mount-shm"])?;
                init.push((name, mounts));
                main.env("NODE_NAME", &spec.name).with_arguments(&[])?
            }
        };
        init.push((pod.init(), manager(&pod.init(), true)?));
        let sidecar = manager(&pod.sidecar(), false)?;
        Ok(Self { pod, init, main, sidecar, processes: root.processes() })
    }

    async fn run(self, again_after: Duration, containers: Containers, stop: CancellationToken) {
        let begin = |name: String, program: Program, again: Again| {
            let running = Running::start(program, again);
            locked(&containers).insert(name, running.handle.clone());
            running
        };
        for (name, program) in self.init {
            let mut running = begin(name, program, Again::OnFailure(again_after));
            tokio::select! {
                () = running.success() => {}
                () = stop.cancelled() => return running.end().await,
            }
        }
        let again = Again::Always(again_after);
        let main = begin(self.pod.program().to_owned(), self.main, again);
        let showing = tokio::spawn(show(main.handle.clone(), self.pod.program(), self.processes.clone()));
        // On a real node both start together. If config-manager finds no process to signal, it ends and is
        // restarted 10 s later; waiting here avoids that delay.
        let shown = async {
            while fs::read_dir(&self.processes).is_ok_and(|mut shown| shown.next().is_none()) {
                tokio::time::sleep(POLL_INTERVAL).await;
            }
        };
        tokio::select! {
            () = shown => {
                let sidecar = begin(self.pod.sidecar(), self.sidecar, again);
                stop.cancelled().await;
                sidecar.end().await;
            }
            () = stop.cancelled() => {}
        }
        showing.abort();
        main.end().await;
    }
}

/// Shows the program's process to the pod's config-manager while it exists.
async fn show(program: Handle, name: &'static str, processes: PathBuf) {
    let mut shown: Option<u32> = None;
    loop {
        let process = program.read(|record| record.process).filter(|process| is_called(*process, name));
        if process != shown {
            if let Some(gone) = shown {
                let _ = fs::remove_dir_all(processes.join(gone.to_string()));
            }
            if let Some(process) = process {
                let folder = processes.join(process.to_string());
                // The folder is renamed into place, so that it appears together with its command line.
                let hidden = processes.join("next");
                let written = fs::create_dir_all(&hidden)
                    .and_then(|()| fs::write(hidden.join("cmdline"), format!("{name}\0")))
                    .and_then(|()| fs::rename(&hidden, &folder));
                if let Err(error) = written {
                    tracing::warn!(%error, "a pod's process cannot be shown");
                }
            }
            shown = process;
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Whether the process has become the program. Before that it is the stand-in that assembles its root.
fn is_called(process: u32, name: &str) -> bool {
    fs::read(format!("/proc/{process}/cmdline"))
        .is_ok_and(|line| line.split(|byte| *byte == 0).next() == Some(name.as_bytes()))
}
