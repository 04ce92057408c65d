//! Everything that is known of a cluster when it is judged. `read` fills it and `judge` reads it, so that the judgement
//! needs no cluster.

use super::gpu_managers::OtherManager;
use super::need::Need;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod, PodSpec, ResourceQuota, Secret, Service, Volume};
use kerf_core::managed::is_managed;
use kerf_runtime::gpu_node::GpuNode;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

pub const AGENT: &str = "kerf-node-agent";

pub const PROBED: &str = "default";

#[derive(Debug, Clone, PartialEq, Default)]
pub enum Seen<T> {
    Found(T),
    #[default]
    Absent,
    Unknown(String),
}

impl<T> Seen<T> {
    pub fn found(&self) -> Option<&T> {
        match self {
            Self::Found(it) => Some(it),
            Self::Absent | Self::Unknown(_) => None,
        }
    }
}

impl<T> Seen<Vec<T>> {
    /// The items that were found. For callers that treat an unknown list like an empty one.
    pub fn all(&self) -> &[T] {
        self.found().map_or(&[], Vec::as_slice)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Probe {
    #[default]
    NotTried,
    /// The webhook admitted it and wrote a request into it.
    Admitted,
    Refused(String),
    /// The pod came back unchanged, so the webhook has not seen it.
    PassedBy,
    Unreachable(String),
    Hindered(String),
}

#[derive(Debug, Default)]
pub struct Observed {
    pub namespace: String,
    pub url: String,
    pub version: String,
    /// The API server's time, with which all other clocks are compared.
    pub now: Timestamp,
    /// How far this machine's clock is ahead of the API server's.
    pub skew: SignedDuration,
    /// The served resources of each API that kerf needs, by group and version.
    pub apis: BTreeMap<&'static str, Seen<Vec<String>>>,
    pub rights: Vec<(Need, Seen<bool>)>,
    pub crd: Seen<Value>,
    pub guards: Seen<Vec<String>>,
    /// The names of those that a binding puts in force.
    pub guards_bound: Seen<Vec<String>>,
    pub webhook: Seen<MutatingWebhookConfiguration>,
    pub secrets: BTreeMap<String, Seen<Secret>>,
    pub probe: Probe,
    pub lease: Seen<Lease>,
    /// The same Lease a little later. It is read only if the first one had expired, because a renewal in between shows
    /// a slow clock.
    pub lease_later: Option<Lease>,
    pub extender_service: Seen<Service>,
    pub main_schedulers: Seen<Vec<Pod>>,
    pub config_maps: Seen<Vec<ConfigMap>>,
    pub deployments: Seen<Vec<Deployment>>,
    pub pods: Seen<Vec<Pod>>,
    pub nodes: Seen<Vec<Node>>,
    pub node_leases: Seen<Vec<Lease>>,
    pub gpu_nodes: Seen<Vec<GpuNode>>,
    /// Other GPU managers, found by their pods, webhooks and `ResourceSlices`.
    pub other_managers: Seen<Vec<OtherManager>>,
    pub cluster_policy: Seen<Value>,
    pub resource_quotas: Seen<Vec<ResourceQuota>>,
    pub device_classes: Seen<Vec<Value>>,
}

impl Observed {
    /// The pods of one of kerf's programs that have not ended and are not being deleted. Others do not count, because
    /// an evicted pod stays as an object while another runs in its place.
    pub fn pods_of(&self, program: &str) -> impl Iterator<Item = &Pod> {
        self.pods.all().iter().filter(move |pod| {
            let name = pod.metadata.labels.as_ref().and_then(|labels| labels.get("app.kubernetes.io/name"));
            let is_of = name.is_some_and(|name| name == program);
            is_of && pod.metadata.deletion_timestamp.is_none() && !has_ended(pod)
        })
    }

    pub fn pod_spec_of(&self, program: &str) -> Option<&PodSpec> {
        let deployment = self.deployments.all().iter().find(|deployment| name_of(*deployment) == program)?;
        deployment.spec.as_ref()?.template.spec.as_ref()
    }

    pub fn volumes_of(&self, program: &str) -> impl Iterator<Item = &Volume> {
        self.pod_spec_of(program).and_then(|pod| pod.volumes.as_ref()).into_iter().flatten()
    }

    /// The value of a flag like `--moves=false` in one of kerf's Deployments. If it is repeated, the last one counts,
    /// as in the program.
    pub fn flag_of(&self, program: &str, flag: &str) -> Option<&str> {
        let pod = self.pod_spec_of(program);
        let arguments = pod.into_iter().flat_map(|pod| &pod.containers).flat_map(|c| c.args.iter().flatten());
        let mut values = arguments.filter_map(|argument| argument.strip_prefix(flag)?.strip_prefix('='));
        values.next_back()
    }

    /// Whether the extender has this optional ability, by the flag of the same name.
    pub fn extender_may(&self, what: &str) -> bool {
        self.flag_of("kerf-extender", &format!("--{what}")) != Some("false")
    }

    pub fn managed(&self) -> Vec<&Node> {
        self.by_owner().0
    }

    pub fn unmanaged(&self) -> Vec<&Node> {
        self.by_owner().1
    }

    fn by_owner(&self) -> (Vec<&Node>, Vec<&Node>) {
        let with_agent: BTreeSet<&str> =
            self.pods_of(AGENT).filter_map(|pod| pod.spec.as_ref()?.node_name.as_deref()).collect();
        let is_kerfs = |node: &&Node| {
            node.metadata.labels.as_ref().is_some_and(is_managed) || with_agent.contains(name_of(*node))
        };
        self.nodes.all().iter().partition(is_kerfs)
    }
}

pub fn label<'n>(node: &'n Node, key: &str) -> Option<&'n str> {
    node.metadata.labels.as_ref()?.get(key).map(String::as_str)
}

pub fn name_of(object: &impl k8s_openapi::Metadata<Ty = kube::core::ObjectMeta>) -> &str {
    object.metadata().name.as_deref().unwrap_or_default()
}

fn has_ended(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Failed" | "Succeeded"))
}

pub fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

pub fn trouble_of(pod: &Pod) -> String {
    let Some(status) = &pod.status else { return "it has no status".to_owned() };
    let containers =
        status.init_container_statuses.iter().flatten().chain(status.container_statuses.iter().flatten());
    for container in containers {
        let waiting = container.state.as_ref().and_then(|state| state.waiting.as_ref());
        if let Some(waiting) = waiting {
            let reason = waiting.reason.as_deref().unwrap_or("waiting");
            let message = waiting.message.as_deref().map(|text| format!(": {text}")).unwrap_or_default();
            return format!("container {} is {reason}{message}", container.name);
        }
        if !container.ready {
            return format!("container {} is not ready", container.name);
        }
    }
    let conditions = status.conditions.iter().flatten();
    let scheduled = conditions.into_iter().find(|c| c.type_ == "PodScheduled" && c.status != "True");
    match scheduled.and_then(|condition| condition.message.as_deref()) {
        Some(message) => format!("it is not scheduled: {message}"),
        None => format!("its phase is {}", status.phase.as_deref().unwrap_or("not known")),
    }
}
