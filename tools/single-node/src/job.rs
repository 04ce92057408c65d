//! The pods of the test: they run a script with the machine's Python, from the machine's `/usr` and `/opt`.

use std::fs;
use std::path::PathBuf;

use anyhow::Context as _;
use k8s_openapi::api::core::v1::Pod;
use kerf_core::keys;
use kerf_core::kind::Kind;
use kerf_tests::kubelet_rules::IMAGE;
use serde_json::{Value, json};

use crate::args::Args;
use crate::{distribution, lent};

pub const CONTAINER: &str = "main";

/// The default user of a job. kerf gives root no MPS share, because root could command the MPS daemon.
const USER: u32 = 1000;

/// The scripts, by their file names in pods.
const SCRIPTS: [(&str, &str); 2] =
    [("sees.py", include_str!("sees.py")), ("compiles.py", include_str!("compiles.py"))];

/// Mount path of the scripts in containers.
pub const INSIDE: &str = "/job";

/// The GPU request of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ask {
    /// An MPS share of this many GiB, with a memory limit.
    Share(u64),
    /// A time slice of this many GiB, without a memory limit.
    TimeSlice(u64),
    /// This many exclusive GPUs.
    Gpus(usize),
}

#[derive(Debug, Clone)]
pub struct Job {
    pub name: String,
    pub ask: Ask,
    /// How often it tries to allocate a fifth less than its share, and a fifth more.
    pub tries: usize,
    /// Memory that it keeps allocated and works on.
    pub keep_mib: u64,
    /// Whether it removes the MPS variables from its environment, and so leaves its MPS server.
    pub outside: bool,
    /// Whether it runs `torch.compile`, in an image of another distribution without files of the machine.
    pub compiles: bool,
    /// The user it runs as; `USER` if `None`.
    pub user: Option<u32>,
    pub environment: Vec<(&'static str, &'static str)>,
}

impl Ask {
    /// The memory that it may use; `None` for whole GPUs.
    pub fn mib(self) -> Option<u64> {
        match self {
            Self::Share(gib) | Self::TimeSlice(gib) => Some(gib * 1024),
            Self::Gpus(_) => None,
        }
    }

    pub fn gpus(self) -> usize {
        if let Self::Gpus(count) = self { count } else { 1 }
    }

    /// The kind of slice that serves it on a node without MIG.
    pub fn kind(self) -> Kind {
        match self {
            Self::Share(_) => Kind::Mps,
            Self::TimeSlice(_) => Kind::TimeSlicing,
            Self::Gpus(_) => Kind::Whole,
        }
    }

    pub fn annotations(self) -> Value {
        let (gib, class) = match self {
            Self::Share(gib) => (gib, "memory"),
            Self::TimeSlice(gib) => (gib, "none"),
            // More than half of the GPU with hardware isolation: only a whole GPU serves that without MIG.
            Self::Gpus(_) => (72, "hardware"),
        };
        let count = self.gpus().to_string();
        json!({keys::GPU_MEMORY: format!("{gib}Gi"), keys::ISOLATION: class, keys::GPU_COUNT: count})
    }
}

impl Job {
    /// A pod that reports what it sees and keeps little memory.
    pub fn new(name: impl Into<String>, ask: Ask) -> Self {
        let name = name.into();
        Self {
            name,
            ask,
            tries: 0,
            keep_mib: 64,
            outside: false,
            compiles: false,
            user: None,
            environment: Vec::new(),
        }
    }

    pub fn trying(self, tries: usize) -> Self {
        Self { tries, ..self }
    }

    /// The same, keeping `keep_mib` of memory that a fault would cost it.
    pub fn keeping(self, keep_mib: u64) -> Self {
        Self { keep_mib, ..self }
    }

    pub fn pod(&self, args: &Args) -> anyhow::Result<Pod> {
        let (mut volumes, mut mounts) =
            if self.compiles { (Vec::new(), Vec::new()) } else { (lent::volumes(), lent::mounts()) };
        volumes.push(json!({"name": "job", "hostPath": {"path": folder(args)}}));
        mounts.push(json!({"name": "job", "mountPath": INSIDE, "readOnly": true}));
        // Compiling writes caches below HOME, and looks up a user name that the image does not have.
        let own = [("HOME", "/tmp"), ("USER", "job")];
        let variables = self.environment.iter().copied().chain(own);
        let variables: Vec<_> =
            variables.map(|(name, value)| json!({"name": name, "value": value})).collect();
        let pod = json!({
            "metadata": {"name": self.name, "annotations": self.ask.annotations()},
            "spec": {
                "hostNetwork": true,
                "restartPolicy": "Never",
                "automountServiceAccountToken": false,
                "enableServiceLinks": false,
                "terminationGracePeriodSeconds": 2,
                "securityContext": {"runAsUser": self.user.unwrap_or(USER)},
                "containers": [{
                    "name": CONTAINER,
                    "image": if self.compiles { distribution::IMAGE } else { IMAGE },
                    "imagePullPolicy": "Never",
                    "securityContext": {"allowPrivilegeEscalation": false},
                    "command": self.command(args),
                    "env": variables,
                    "volumeMounts": mounts,
                }],
                "volumes": volumes,
            },
        });
        serde_json::from_value(pod).context("the pod is malformed")
    }

    /// The same pod without a GPU: it shows what a pod costs without kerf.
    pub fn control(&self, args: &Args) -> anyhow::Result<Pod> {
        let without_cuda = Args { simulated: true, ..args.clone() };
        let mut pod = Self { tries: 0, ..self.clone() }.pod(&without_cuda)?;
        pod.metadata.annotations = None;
        Ok(pod)
    }

    fn command(&self, args: &Args) -> Vec<String> {
        if self.compiles {
            return [distribution::PYTHON, "/job/compiles.py"].map(str::to_owned).into();
        }
        let mut command = vec![args.python.display().to_string(), "/job/sees.py".to_owned()];
        command.extend(["--name".to_owned(), self.name.clone()]);
        command.extend(["--keep".to_owned(), self.keep_mib.to_string()]);
        command.extend(["--gpus".to_owned(), self.ask.gpus().to_string()]);
        for mib in self.ask.mib().into_iter().flat_map(|mib| std::iter::repeat_n(mib, self.tries)) {
            command.extend(["--try".to_owned(), (mib * 4 / 5).to_string(), (mib * 6 / 5).to_string()]);
        }
        command.extend(self.outside.then(|| "--outside".to_owned()));
        command.extend(args.simulated.then(|| "--without-cuda".to_owned()));
        command
    }
}

/// Writes the scripts into the folder that pods mount.
pub fn write_scripts(args: &Args) -> anyhow::Result<()> {
    fs::create_dir_all(folder(args)).context("failed to create the scripts' folder")?;
    SCRIPTS.into_iter().try_for_each(|(name, text)| {
        fs::write(folder(args).join(name), text).with_context(|| format!("failed to write {name}"))
    })
}

/// The folder of the scripts. Containers mount it read-only.
pub fn folder(args: &Args) -> PathBuf {
    args.state.join("job")
}
