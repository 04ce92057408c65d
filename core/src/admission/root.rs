//! Decides whether a pod's processes could command the MPS daemon of their GPU, and what follows for the pod.
//!
//! The daemon obeys a process whose user is root on the node, regardless of its other namespaces, its capabilities and
//! the mode of the pipe folder. Such a process changes limits and ends its neighbours' work (measured with driver 580).
//! The daemon refuses other users, and the root of a user namespace. So either all processes of the pod must be in a
//! user namespace, or none may be able to become root.
//!
//! A user namespace does not suffice for a process that may mount in it. The kubelet maps the pipe folder to the pod's
//! users, so the pod's root owns it, and only the mount is read-only. Such a process remounts it writable and removes
//! the daemon's socket (seen with Kubernetes 1.36, containerd 2.4 and Linux 6.18).

use crate::contract::{ContainerRequest, RequestDocument, RootProcesses};
use crate::kind::Kind;
use crate::names::NodeName;
use crate::policy::{Choice, Denied, RootContainers, Supply};
use serde_json::Value;
use std::fmt;

/// Whether an MPS daemon could obey a pod's processes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Root {
    /// The daemon obeys none of them.
    Isolated,
    /// The daemon obeys none of them once the pod has a user namespace, and nothing in the pod forbids one.
    Separable(Exposed),
    /// The daemon may obey some of them.
    Exposed(Exposed),
}

/// Why an MPS daemon may obey a process of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exposed {
    container: String,
    gap: Gap,
    obstacle: Obstacle,
    rule: RootContainers,
}

/// What lets a container's processes be root, or become root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Gap {
    Privileged,
    Capabilities,
    Escalation,
    User,
}

/// What prevents a pod from having a user namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Obstacle {
    /// The pod does not ask for one, and the policy does not set one.
    Unsaid,
    /// The pod has `spec.hostUsers: true`.
    HostUsers,
    /// A host namespace. The API server rejects a user namespace beside it (core `validation.go`, `validateHostUsers`).
    HostNamespace(&'static str),
    /// A volume whose file system may not support idmapped mounts.
    Volume(String),
    /// A raw block volume. The API server rejects a user namespace beside it.
    Device(String),
    /// A user namespace would not help, because the container may mount in it.
    Mounting,
    /// A node that may serve the pod and has no user namespaces.
    Node(NodeName),
}

/// The API server rejects `hostUsers: false` beside these fields.
const HOST_NAMESPACES: [&str; 3] = ["hostNetwork", "hostPID", "hostIPC"];

/// Volumes that the kubelet makes in its own folder or in a tmpfs. On a node with user namespaces these support
/// idmapped mounts (Kubernetes, "User Namespaces": the kubelet's folder and tmpfs must). Other volumes are unknown
/// here: NFS does not support them, nor do many file systems behind a claim, and then the container would not start.
const OWN_VOLUMES: [&str; 5] = ["configMap", "downwardAPI", "emptyDir", "projected", "secret"];

impl Root {
    pub(super) fn from_pod(pod: &Value, rule: RootContainers) -> Self {
        let spec = &pod["spec"];
        let lists = ["initContainers", "containers"].into_iter();
        let mut containers = lists.flat_map(|list| spec[list].as_array().into_iter().flatten());
        let exposed = |container, gap, obstacle| Exposed { container, gap, obstacle, rule };
        // This comes before `hostUsers`, because a user namespace does not stop a process that may mount in it.
        if let Some(container) = containers.clone().find(|container| may_mount(container)) {
            let gap = gap(spec, container).unwrap_or(Gap::Capabilities);
            return Self::Exposed(exposed(name_of(container), gap, Obstacle::Mounting));
        }
        if spec["hostUsers"] == false {
            return Self::Isolated;
        }
        let gap = containers.find_map(|container| Some((name_of(container), gap(spec, container)?)));
        let Some((container, gap)) = gap else { return Self::Isolated };
        match obstacle(spec) {
            Some(obstacle) => Self::Exposed(exposed(container, gap, obstacle)),
            None if rule == RootContainers::Isolate => {
                Self::Separable(exposed(container, gap, Obstacle::Unsaid))
            }
            None => Self::Exposed(exposed(container, gap, Obstacle::Unsaid)),
        }
    }

    /// Applies the rule to a choice that may give an MPS share. `without_mps` chooses again as if there were no MPS.
    ///
    /// The pod gets its user namespace at creation, whatever kind it gets later. So if several kinds may serve it,
    /// every node with one of them must have user namespaces.
    pub(super) fn settle(
        self,
        mut choice: Choice,
        supply: &Supply,
        without_mps: impl FnOnce() -> Result<Choice, Denied>,
    ) -> Result<(Self, Choice), Exposed> {
        if !choice.document.containers.iter().any(|container| container.may_be(Kind::Mps)) {
            return Ok((self, choice));
        }
        let exposed = match self {
            Self::Isolated => return Ok((self, choice)),
            Self::Exposed(exposed) => exposed,
            Self::Separable(exposed) => {
                let Some(node) = supply.without_user_namespaces(&choice.document) else {
                    choice.document.user_namespace = true;
                    return Ok((Self::Separable(exposed), choice));
                };
                Exposed { obstacle: Obstacle::Node(node.clone()), ..exposed }
            }
        };
        let is_named = |request: &ContainerRequest| request.only_kind() == Some(Kind::Mps);
        match exposed.rule {
            RootContainers::Allow => choice.document.root_processes = RootProcesses::Allowed,
            RootContainers::Refuse if choice.document.containers.iter().any(is_named) => return Err(exposed),
            RootContainers::Refuse | RootContainers::Isolate => {
                choice = without_mps().map_err(|_| exposed.clone())?;
                choice.document.root_processes = RootProcesses::KeptOut;
            }
        }
        Ok((Self::Exposed(exposed), choice))
    }

    /// Whether kerf puts the pod into a user namespace.
    pub(super) fn separates(&self, document: &RequestDocument) -> bool {
        matches!(self, Self::Separable(_)) && document.user_namespace
    }

    /// The warning to the user; `None` if the processes do no harm.
    pub(super) fn warning(&self, document: &RequestDocument) -> Option<String> {
        let Self::Exposed(exposed) = self else { return None };
        match document.root_processes {
            RootProcesses::Harmless => None,
            RootProcesses::Allowed => Some(format!("{exposed}; the policy allows it")),
            RootProcesses::KeptOut => Some(format!("{exposed}; kind mps is passed over for the pod")),
        }
    }
}

fn name_of(container: &Value) -> String {
    container["name"].as_str().unwrap_or_default().to_owned()
}

/// What lets the container's processes be root. Fields of the container override those of the pod, as in the kubelet.
fn gap(spec: &Value, container: &Value) -> Option<Gap> {
    let own = &container["securityContext"];
    let said =
        |key: &str| [own, &spec["securityContext"]].into_iter().find(|context| !context[key].is_null());
    let is_user = said("runAsUser").map(|context| context["runAsUser"].as_i64().is_some_and(|user| user > 0));
    let is_non_root = said("runAsNonRoot").is_some_and(|context| context["runAsNonRoot"] == true);
    if own["privileged"] == true {
        Some(Gap::Privileged)
    } else if own["capabilities"]["add"].as_array().is_some_and(|added| !added.is_empty()) {
        Some(Gap::Capabilities)
    } else if !is_user.unwrap_or(is_non_root) {
        Some(Gap::User)
    } else {
        (own["allowPrivilegeEscalation"] != false).then_some(Gap::Escalation)
    }
}

/// Whether the container's processes may mount, in a user namespace too. Runtimes accept a capability's name in any
/// case, with the kernel's prefix or without it.
fn may_mount(container: &Value) -> bool {
    let context = &container["securityContext"];
    let added = context["capabilities"]["add"].as_array().into_iter().flatten();
    let mut names = added.filter_map(Value::as_str).map(str::to_ascii_uppercase);
    context["privileged"] == true
        || names.any(|name| ["ALL", "SYS_ADMIN"].contains(&name.trim_start_matches("CAP_")))
}

fn obstacle(spec: &Value) -> Option<Obstacle> {
    let host = HOST_NAMESPACES.into_iter().find(|key| spec[key] == true);
    let list = |key: &'static str| spec[key].as_array().into_iter().flatten();
    let mut containers = ["initContainers", "containers"].into_iter().flat_map(list);
    let has_devices =
        |container: &&Value| container["volumeDevices"].as_array().is_some_and(|d| !d.is_empty());
    if spec["hostUsers"] == true {
        return Some(Obstacle::HostUsers);
    }
    let host = host.map(Obstacle::HostNamespace);
    let volume = || list("volumes").find(|volume| !is_own(volume)).map(|v| Obstacle::Volume(name_of(v)));
    let device = || containers.find(has_devices).map(|container| Obstacle::Device(name_of(container)));
    host.or_else(volume).or_else(device)
}

/// Whether the kubelet makes the volume itself. An `emptyDir` of huge pages does not count, because it is another file
/// system.
fn is_own(volume: &Value) -> bool {
    let medium = volume["emptyDir"]["medium"].as_str().unwrap_or_default();
    OWN_VOLUMES.iter().any(|kind| volume.get(kind).is_some_and(Value::is_object))
        && !medium.starts_with("Huge")
}

impl fmt::Display for Exposed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { container, gap, obstacle, .. } = self;
        write!(
            f,
            "container {container}: its processes could command the MPS daemon that the pod shares with others, for {gap} and {obstacle}"
        )
    }
}

impl Exposed {
    pub(super) fn remedy(&self) -> String {
        let instead = match &self.obstacle {
            Obstacle::Unsaid | Obstacle::HostUsers => "set spec.hostUsers: false".to_owned(),
            Obstacle::HostNamespace(key) => format!("remove spec.{key}"),
            Obstacle::Volume(_) => {
                "set spec.hostUsers: false if its file system has idmapped mounts".to_owned()
            }
            Obstacle::Device(_) => "remove volumeDevices".to_owned(),
            Obstacle::Mounting => "remove privileged, and SYS_ADMIN and ALL from capabilities.add".to_owned(),
            Obstacle::Node(_) => "ask an admin to bring user namespaces to the node".to_owned(),
        };
        format!(
            "{instead}, or set runAsNonRoot: true and allowPrivilegeEscalation: false and add no capabilities in every container"
        )
    }
}

impl fmt::Display for Gap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Privileged => "securityContext.privileged is true",
            Self::Capabilities => "securityContext.capabilities.add gives capabilities",
            Self::Escalation => "securityContext.allowPrivilegeEscalation is not false",
            Self::User => "securityContext allows root (neither runAsNonRoot nor a runAsUser above 0)",
        })
    }
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unsaid => f.write_str("spec.hostUsers is not false"),
            Self::HostUsers => f.write_str("spec.hostUsers is true"),
            Self::HostNamespace(key) => write!(f, "spec.{key} allows no user namespace"),
            Self::Volume(name) => {
                write!(f, "spec.volumes[{name}] may have no idmapped mounts, which a user namespace takes")
            }
            Self::Mounting => {
                f.write_str("CAP_SYS_ADMIN makes the daemon's folder writable in a user namespace too")
            }
            Self::Device(name) => write!(f, "volumeDevices of container {name} allow no user namespace"),
            Self::Node(node) => {
                write!(f, "node {node}, which may serve the pod, has no user namespaces (kerf check)")
            }
        }
    }
}

#[cfg(test)]
#[path = "root_tests.rs"]
mod tests;
