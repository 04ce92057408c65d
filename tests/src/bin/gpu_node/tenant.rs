//! A tenant that means ill: its pod, and the orders by which it tries one thing at a time.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use anyhow::Context as _;
use k8s_openapi::api::core::v1::Pod;
use kerf_tests::mps::MpsStandIn;
use kerf_tests::real_node::IMAGE;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::args::Args;
use crate::job::{self, Ask, CONTAINER};
use crate::lent;

/// Its programs, by the names under which containers have them.
const SCRIPTS: [(&str, &str); 3] = [
    ("tenant.py", include_str!("tenant.py")),
    ("attempts.py", include_str!("attempts.py")),
    ("attempts_cuda.py", include_str!("attempts_cuda.py")),
];

/// The control program that it brings along.
const CONTROL: &str = "mps-control";

/// What a root tenant has beside what containers have by default: all that there is but `SYS_ADMIN`.
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

/// Whom a tenant's processes are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tenant {
    /// Root in the container, with every capability but that to mount. The pod says nothing of user namespaces.
    Root,
    /// Another user, who cannot become root, and no user namespace.
    User,
}

/// What a tenant of a cluster cannot easily learn. This one knows it.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Facts {
    /// The MPS daemon's process.
    pub daemon: u32,
    /// The MPS server's process.
    pub server: u32,
    /// The server's clients, which are the neighbour's processes.
    pub clients: Vec<u32>,
    /// All of these, by their numbers on the host.
    pub processes: Vec<i32>,
    /// The daemon's pipe folder on the host.
    pub pipe: PathBuf,
    /// Files of the agent, of containerd and of the kubelet on the host.
    pub node_files: Vec<PathBuf>,
    /// The memory of its share.
    pub share_mib: u64,
    /// The byte that the neighbour wrote all over a part of its memory.
    pub pattern: u8,
    /// Whether there is no CUDA.
    pub without_cuda: bool,
}

/// What a tenant says once it runs.
#[derive(Debug, Deserialize)]
pub struct Ready {
    /// Its user, as it sees it.
    pub user: u32,
    /// `/proc/self/uid_map`: first user inside, first outside, how many.
    pub users: Vec<(String, String, String)>,
}

/// What a tenant says of a try.
#[derive(Debug, Deserialize)]
pub struct Tried {
    /// Of this order.
    pub serial: u64,
    /// What came of its steps.
    pub said: String,
}

impl Ready {
    /// Whether its users are others outside.
    pub fn is_separated(&self) -> bool {
        self.users.iter().all(|(inside, outside, _)| inside != outside)
    }
}

impl Tenant {
    /// The pod's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Root => "tenant-root",
            Self::User => "tenant-user",
        }
    }

    /// Who it is, for people.
    pub fn text(self) -> &'static str {
        match self {
            Self::Root => "root of a user namespace",
            Self::User => "user 1000",
        }
    }

    /// The pod, with this share. It has no volume, with which kerf gives no user namespace.
    pub fn pod(self, args: &Args, ask: Ask) -> anyhow::Result<Pod> {
        let context = match self {
            Self::Root => json!({"capabilities": {"add": CAPABILITIES}}),
            Self::User => json!({"runAsUser": 1000, "allowPrivilegeEscalation": false}),
        };
        self.pod_with(args, ask, &context)
    }

    /// The same pod in a user namespace, and with the capability to mount, which gets no share.
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

    /// Orders one try.
    pub fn order(self, args: &Args, serial: u64, attempt: &str, facts: &Facts) -> anyhow::Result<()> {
        self.write(args, &json!({"serial": serial, "attempt": attempt, "facts": facts}))
    }

    /// Orders nothing, so that a tenant that is just started tries nothing.
    pub fn order_nothing(self, args: &Args) -> anyhow::Result<()> {
        self.write(args, &Value::Null)
    }

    /// At once: who reads it never sees half of it.
    fn write(self, args: &Args, order: &Value) -> anyhow::Result<()> {
        let file = job::folder(args).join(format!("{}.json", self.name()));
        let unfinished = file.with_extension("unfinished");
        fs::write(&unfinished, order.to_string()).context("failed to write an order")?;
        fs::rename(unfinished, file).context("failed to give an order")
    }
}

/// Puts its programs where its pod has them from.
pub fn write_programs(args: &Args) -> anyhow::Result<()> {
    let folder = job::folder(args);
    for (name, text) in SCRIPTS {
        fs::write(folder.join(name), text).with_context(|| format!("failed to write {name}"))?;
    }
    let control = folder.join(CONTROL);
    fs::copy(control_program(args)?, &control).context("failed to copy the MPS control program")?;
    fs::set_permissions(control, Permissions::from_mode(0o755)).context("failed to let containers run it")
}

/// The program that speaks to the node's MPS daemons.
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
