//! What is known of a cluster when it is judged. Plain data: `read` fills it, `judge` looks at it.

use super::need::Need;
use super::others::Foreigner;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod, PodSpec, ResourceQuota, Secret, Service, Volume};
use kerf_core::managed::is_managed;
use kerf_runtime::gpu_node::GpuNode;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// The agent as a program.
pub const AGENT: &str = "kerf-node-agent";

/// The namespace in which the webhook is shown a pod.
pub const PROBED: &str = "default";

/// Something that was looked for.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum Seen<T> {
    /// It is there.
    Found(T),
    /// It is not there.
    #[default]
    Absent,
    /// It could not be looked at, and why.
    Unknown(String),
}

impl<T> Seen<T> {
    /// It, if it is there.
    pub fn found(&self) -> Option<&T> {
        match self {
            Self::Found(it) => Some(it),
            Self::Absent | Self::Unknown(_) => None,
        }
    }
}

impl<T> Seen<Vec<T>> {
    /// What is there of it, for those to whom an unknown list is as good as an empty one.
    pub fn all(&self) -> &[T] {
        self.found().map_or(&[], Vec::as_slice)
    }
}

/// What came of the pod that the webhook was shown, and that nobody made.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Probe {
    /// It was not tried.
    #[default]
    NotTried,
    /// The webhook admitted it and wrote a request into it.
    Admitted,
    /// The webhook refused it, with this text.
    Refused(String),
    /// It came through unchanged.
    PassedBy,
    /// The API server could not reach the webhook, with this text.
    Unreachable(String),
    /// Something else refused it.
    Hindered(String),
}

/// A cluster.
#[derive(Debug, Default)]
pub struct Observed {
    /// kerf's namespace.
    pub namespace: String,
    /// The API server's address.
    pub url: String,
    /// Its version: `v1.36.0`.
    pub version: String,
    /// Its time, which all others are held against.
    pub now: Timestamp,
    /// How much this machine's clock is before it.
    pub skew: SignedDuration,
    /// Of each API that kerf needs the resources that are served, by group and version.
    pub apis: BTreeMap<&'static str, Seen<Vec<String>>>,
    /// Rights, and whether they are there.
    pub rights: Vec<(Need, Seen<bool>)>,
    /// The definition of `GpuNodes`, as JSON.
    pub crd: Seen<Value>,
    /// The names of all `ValidatingAdmissionPolicies`.
    pub guards: Seen<Vec<String>>,
    /// And of those that a binding puts in force.
    pub guards_bound: Seen<Vec<String>>,
    /// The webhook's configuration.
    pub webhook: Seen<MutatingWebhookConfiguration>,
    /// The Secrets of kerf's namespace that hold certificates, by name.
    pub secrets: BTreeMap<String, Seen<Secret>>,
    /// What became of the probe.
    pub probe: Probe,
    /// The Lease of the extender's leader.
    pub lease: Seen<Lease>,
    /// The same a little later, where the first had run out.
    pub lease_later: Option<Lease>,
    /// The extender's Service.
    pub extender_service: Seen<Service>,
    /// The pods of the cluster's own scheduler, where it runs as such.
    pub main_schedulers: Seen<Vec<Pod>>,
    /// `ConfigMaps` of kerf's namespace.
    pub config_maps: Seen<Vec<ConfigMap>>,
    /// Its Deployments.
    pub deployments: Seen<Vec<Deployment>>,
    /// Its pods.
    pub pods: Seen<Vec<Pod>>,
    /// All Nodes.
    pub nodes: Seen<Vec<Node>>,
    /// Their Leases.
    pub node_leases: Seen<Vec<Lease>>,
    /// All `GpuNodes`.
    pub gpu_nodes: Seen<Vec<GpuNode>>,
    /// Others that manage GPUs, by their pods, their webhooks and their `ResourceSlices`.
    pub foreigners: Seen<Vec<Foreigner>>,
    /// The `ClusterPolicy` that GPU Operator heeds, as JSON.
    pub cluster_policy: Seen<Value>,
    /// The `ResourceQuotas` of all namespaces.
    pub resource_quotas: Seen<Vec<ResourceQuota>>,
    /// The `DeviceClasses` of dynamic resource allocation, as JSON.
    pub device_classes: Seen<Vec<Value>>,
}

impl Observed {
    /// The pods of one of kerf's programs that have not ended, nor are on their way out. One that was evicted stays as an object while
    /// another runs in its place.
    pub fn pods_of(&self, program: &str) -> impl Iterator<Item = &Pod> {
        self.pods.all().iter().filter(move |pod| {
            let name = pod.metadata.labels.as_ref().and_then(|labels| labels.get("app.kubernetes.io/name"));
            let is_of = name.is_some_and(|name| name == program);
            is_of && pod.metadata.deletion_timestamp.is_none() && !has_ended(pod)
        })
    }

    /// The pods of the Deployment of one of kerf's programs, as it has them.
    pub fn pod_spec_of(&self, program: &str) -> Option<&PodSpec> {
        let deployment = self.deployments.all().iter().find(|deployment| name_of(*deployment) == program)?;
        deployment.spec.as_ref()?.template.spec.as_ref()
    }

    /// The volumes of the Deployment of one of kerf's programs.
    pub fn volumes_of(&self, program: &str) -> impl Iterator<Item = &Volume> {
        self.pod_spec_of(program).and_then(|pod| pod.volumes.as_ref()).into_iter().flatten()
    }

    /// What the Deployment of one of kerf's programs gives a flag, like `--moves=false`; of several the last.
    pub fn flag_of(&self, program: &str, flag: &str) -> Option<&str> {
        let pod = self.pod_spec_of(program);
        let arguments = pod.into_iter().flat_map(|pod| &pod.containers).flat_map(|c| c.args.iter().flatten());
        let mut values = arguments.filter_map(|argument| argument.strip_prefix(flag)?.strip_prefix('='));
        values.next_back()
    }

    /// Whether the extender may do this beyond placing pods: a name of its flags.
    pub fn extender_may(&self, what: &str) -> bool {
        self.flag_of("kerf-extender", &format!("--{what}")) != Some("false")
    }

    /// The Nodes that are kerf's: by their labels, or because the chart's values put an agent there.
    pub fn managed(&self) -> Vec<&Node> {
        self.by_owner().0
    }

    /// All other Nodes.
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

/// A Node's label.
pub fn label<'n>(node: &'n Node, key: &str) -> Option<&'n str> {
    node.metadata.labels.as_ref()?.get(key).map(String::as_str)
}

/// An object's name.
pub fn name_of(object: &impl k8s_openapi::Metadata<Ty = kube::core::ObjectMeta>) -> &str {
    object.metadata().name.as_deref().unwrap_or_default()
}

fn has_ended(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Failed" | "Succeeded"))
}

/// Whether a pod is ready.
pub fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// Why a pod is not ready, in the words of its containers' states, its conditions or its phase.
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
