//! A malicious tenant: its pod, and the orders that make it try one attack at a time.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use anyhow::Context as _;
use k8s_openapi::api::core::v1::Pod;
use kerf_tests::kubelet_rules::IMAGE;
use kerf_tests::mps::MpsStandIn;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::args::Args;
use crate::job::{self, Ask, CONTAINER};
use crate::lent;

/// Its programs, by their file names in containers.
const SCRIPTS: [(&str, &str); 3] = [
    ("tenant.py", include_str!("tenant.py")),
    ("attempts.py", include_str!("attempts.py")),
    ("attempts_cuda.py", include_str!("attempts_cuda.py")),
];

/// The copy of `nvidia-cuda-mps-control` that it brings along.
const CONTROL: &str = "mps-control";

/// Capabilities that a root tenant has beside a container's defaults: nearly all others, but never
/// `SYS_ADMIN`.
const CAPABILITIES: [&str; 21] = [
    "BPF",
    "CHECKPOINT_RESTORE",
    "DAC_READ_SEARCH",
    "IPC_LOCK",
    "IPC_OWNER",
    "LEASE",
    "LINUX_IMMUTABLE",
    "MAC_ADMIN",
    "NET_ADMIN",
    "PERFMON",
    "SYSLOG",
    "SYS_BOOT",
    "SYS_MODULE",
    "SYS_NICE",
    "SYS_PACCT",
    "SYS_PTRACE",
    "SYS_RAWIO",
    "SYS_RESOURCE",
    "SYS_TIME",
    "SYS_TTY_CONFIG",
    "WAKE_ALARM",
];

/// The user of a tenant's processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tenant {
    /// Root in the container, with `CAPABILITIES` but without the one to mount. The pod sets no `hostUsers`.
    Root,
    /// An ordinary user who cannot become root, without a user namespace.
    User,
}

/// Facts that a tenant of a cluster cannot easily learn. This one gets them, so that the attacks are the
/// strongest.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Facts {
    pub daemon: u32,
    pub server: u32,
    /// The server's clients, which are the neighbour's processes.
    pub clients: Vec<u32>,
    /// All of these processes, by their ids on the host.
    pub processes: Vec<i32>,
    /// The daemon's pipe folder on the host.
    pub pipe: PathBuf,
    /// Files of the agent, of containerd and of the kubelet on the host.
    pub node_files: Vec<PathBuf>,
    pub share_mib: u64,
    /// The byte with which the neighbour filled a part of its memory.
    pub pattern: u8,
    /// Whether the GPU is simulated, so that CUDA is missing.
    pub without_cuda: bool,
}

/// The first report of a tenant.
#[derive(Debug, Deserialize)]
pub struct Ready {
    /// Its user id inside the container.
    pub user: u32,
    /// `/proc/self/uid_map`: first user inside, first user outside, and their number.
    pub users: Vec<(String, String, String)>,
}

/// The report of one try.
#[derive(Debug, Deserialize)]
pub struct Tried {
    /// The serial number of the order.
    pub serial: u64,
    /// The outcome of its steps.
    pub said: String,
}

impl Ready {
    /// Whether its users are mapped to other users on the host.
    pub fn is_separated(&self) -> bool {
        self.users.iter().all(|(inside, outside, _)| inside != outside)
    }
}

impl Tenant {
    pub fn name(self) -> &'static str {
        match self {
            Self::Root => "tenant-root",
            Self::User => "tenant-user",
        }
    }

    /// Description for the test's output.
    pub fn text(self) -> &'static str {
        match self {
            Self::Root => "root of a user namespace",
            Self::User => "user 1000",
        }
    }

    /// The pod with this share. It has no volume, because kerf gives a pod with one no user namespace.
    pub fn pod(self, args: &Args, ask: Ask) -> anyhow::Result<Pod> {
        let context = match self {
            Self::Root => json!({"capabilities": {"add": CAPABILITIES}}),
            Self::User => json!({"runAsUser": 1000, "allowPrivilegeEscalation": false}),
        };
        self.pod_with(args, ask, &context)
    }

    /// The same pod in a user namespace and with the capability to mount; kerf gives it no share.
    pub fn mounting(args: &Args, ask: Ask) -> anyhow::Result<Pod> {
        let mut pod = Self::Root.pod_with(args, ask, &json!({"capabilities": {"add": ["SYS_ADMIN"]}}))?;
        if let Some(spec) = &mut pod.spec {
            spec.host_users = Some(false);
        }
        Ok(pod)
    }

    fn pod_with(self, args: &Args, ask: Ask, context: &Value) -> anyhow::Result<Pod> {
        let program = format!("{}/tenant.py", job::INSIDE);
        let pod = json!({
            "metadata": {"name": self.name(), "annotations": ask.annotations()},
            "spec": {
                "runtimeClassName": lent::RUNTIME_CLASS,
                "restartPolicy": "Never",
                "automountServiceAccountToken": false,
                "enableServiceLinks": false,
                "terminationGracePeriodSeconds": 2,
                "containers": [{
                    "name": CONTAINER,
                    "image": IMAGE,
                    "imagePullPolicy": "Never",
                    "securityContext": context,
                    "command": [args.python, program, "--name", self.name()],
                    "env": [{"name": "LD_LIBRARY_PATH", "value": args.libraries}],
                }],
            },
        });
        serde_json::from_value(pod).context("the pod is malformed")
    }

    /// Orders the tenant to try one attack.
    pub fn order(self, args: &Args, serial: u64, attempt: &str, facts: &Facts) -> anyhow::Result<()> {
        self.write(args, &json!({"serial": serial, "attempt": attempt, "facts": facts}))
    }

    /// Writes an empty order, so that a tenant that has just started tries nothing.
    pub fn order_nothing(self, args: &Args) -> anyhow::Result<()> {
        self.write(args, &Value::Null)
    }

    /// Writes an order. The rename makes sure that the tenant never reads half of it.
    fn write(self, args: &Args, order: &Value) -> anyhow::Result<()> {
        let file = job::folder(args).join(format!("{}.json", self.name()));
        let unfinished = file.with_extension("unfinished");
        fs::write(&unfinished, order.to_string()).context("failed to write an order")?;
        fs::rename(unfinished, file).context("failed to give an order")
    }
}

/// Writes its programs into the folder that its pod mounts.
pub fn write_programs(args: &Args) -> anyhow::Result<()> {
    let folder = job::folder(args);
    for (name, text) in SCRIPTS {
        fs::write(folder.join(name), text).with_context(|| format!("failed to write {name}"))?;
    }
    let control = folder.join(CONTROL);
    fs::copy(control_program(args)?, &control).context("failed to copy the MPS control program")?;
    // A tenant that is not root must be able to run it.
    fs::set_permissions(control, Permissions::from_mode(0o755)).context("failed to let containers run it")
}

/// The program that sends commands to the node's MPS daemons.
pub fn control_program(args: &Args) -> anyhow::Result<PathBuf> {
    if args.simulated { Ok(MpsStandIn::program()?) } else { args.mps_control() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_mapping_to_other_users_separates() {
        let ready = |outside: &str| Ready {
            user: 0,
            users: vec![("0".to_owned(), outside.to_owned(), "65536".to_owned())],
        };
        assert!(ready("65536").is_separated());
        assert!(!ready("0").is_separated());
    }
}
