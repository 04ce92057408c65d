//! Every annotation, label and object name that kerf defines, in one place.

/// The API group of kerf's resources and the prefix of its keys.
pub const GROUP: &str = "kerf.dev";

/// The version of the GpuNode resource.
pub const VERSION: &str = "v1alpha1";

/// `apiVersion` of kerf's resources and policy documents.
pub const API_VERSION: &str = "kerf.dev/v1alpha1";

/// Annotation: the GPU memory that the pod's only container asks for (`10Gi`). With the suffix `.<container>` it is for
/// that container.
pub const GPU_MEMORY: &str = "kerf.dev/gpu-memory";

/// Annotation: the exact MIG profile that the pod's only container asks for (`1g.10gb`, `1c.3g.40gb`). With the suffix
/// `.<container>` it is for that container.
pub const GPU_PROFILE: &str = "kerf.dev/gpu-profile";

/// Annotation: the number of slices of a container that asks by annotation. With the suffix `.<container>` it is for
/// that container.
pub const GPU_COUNT: &str = "kerf.dev/gpu-count";

/// Annotation: the least share of a GPU's compute that each slice must have, in percent. With the suffix `.<container>`
/// it is for that container, otherwise for all containers without their own.
pub const COMPUTE: &str = "kerf.dev/compute";

/// Annotation: the GPU models that may serve the pod, by their short names, separated by commas.
pub const GPU_MODEL: &str = "kerf.dev/gpu-model";

/// Annotation: the GPU models that must not serve the pod.
pub const GPU_MODEL_NOT: &str = "kerf.dev/gpu-model-not";

/// Annotation: the GPUs that may serve the pod, by their UUIDs, separated by commas.
pub const GPU_UUID: &str = "kerf.dev/gpu-uuid";

/// Annotation: the GPUs that must not serve the pod.
pub const GPU_UUID_NOT: &str = "kerf.dev/gpu-uuid-not";

/// Annotation: with `nominal`, 10Gi takes a `1g.10gb` whatever memory it really has; with `strict`, the slice really
/// has 10 GiB.
pub const MEMORY_MATCH: &str = "kerf.dev/memory-match";

/// Annotation: the isolation class, `hardware`, `memory` or `none`.
pub const ISOLATION: &str = "kerf.dev/isolation";

/// Annotation, reserved: the request document that the webhook writes.
pub const REQUEST: &str = "kerf.dev/request";

/// Annotation, reserved: the assignment that the extender writes with the Binding.
pub const ASSIGNMENT: &str = "kerf.dev/assignment";

/// Annotation, reserved: `UID/EPOCH`, the Lease and the epoch of the extender's leader that sent the pod's Binding.
pub const EPOCH: &str = "kerf.dev/epoch";

/// Annotation: the extender writes it on a pending pod when there is room for it, so that kube-scheduler requeues the
/// pod.
pub const ROOM: &str = "kerf.dev/room";

/// Annotation: `true` on a pod with a controller allows kerf to evict it, so that it restarts elsewhere and makes room
/// for a bigger pod.
pub const MOVABLE: &str = "kerf.dev/movable";

/// Annotation of kubectl and sidecar injectors: the container that a command without a container's name means.
pub const DEFAULT_CONTAINER: &str = "kubectl.kubernetes.io/default-container";

/// The annotations with which users ask for GPUs.
pub const ASKED: [&str; 11] = [
    GPU_MEMORY,
    GPU_PROFILE,
    GPU_COUNT,
    COMPUTE,
    ISOLATION,
    GPU_MODEL,
    GPU_MODEL_NOT,
    GPU_UUID,
    GPU_UUID_NOT,
    MEMORY_MATCH,
    MOVABLE,
];

/// The annotations that may have the suffix `.<container>`.
pub const PER_CONTAINER: [&str; 4] = [GPU_MEMORY, GPU_PROFILE, GPU_COUNT, COMPUTE];

/// Annotation of a GpuNode, written by the extender: the node policy from which the GpuNode's policy was copied.
pub const NODE_POLICY: &str = "kerf.dev/node-policy";

/// The annotations that only kerf may write on pods.
pub const RESERVED: [&str; 4] = [REQUEST, ASSIGNMENT, EPOCH, ROOM];

/// Label on admitted pods with value `true`, by which kerf's programs watch only the pods that concern them.
pub const SLICED: &str = "kerf.dev/sliced";

/// Label of the extender's pods, written by its leader: [`LEADER`] on the pod that the Service selects.
pub const ROLE: &str = "kerf.dev/role";

/// The value of [`ROLE`] on the leader's pod.
pub const LEADER: &str = "leader";

/// Name of the ConfigMap in kerf's namespace to which the extender's leader writes its epoch.
pub const DEMAND: &str = "kerf-demand";

/// The key of that ConfigMap with the document.
pub const DEMAND_DOCUMENT: &str = "demand.json";

/// Name of the ConfigMap in kerf's namespace from which agents read the authority of the extender's certificate.
pub const EXTENDER_AUTHORITY: &str = "kerf-extender-ca";

/// Prefix of the limits with which users ask for memory: `kerf.dev/gpu-10gb`. Pods may also use the bare `gpu-10gb`.
pub const SIZE_PREFIX: &str = "kerf.dev/gpu-";

/// Node label, written by admins: `true` on a managed node.
pub const MANAGED: &str = "kerf.dev/managed";

/// Node label, written by the agent: the GPU model (`H100-80GB`), or [`MIXED_MODELS`].
pub const NODE_MODEL: &str = "kerf.dev/gpu-model";

/// The value of [`NODE_MODEL`] on a node with GPUs of several models.
pub const MIXED_MODELS: &str = "mixed";

/// Node label, written by the agent: the largest size in GB that the node can serve by `kind`.
///
/// Node affinity compares it with `Gt`, so that a pod is only offered nodes that can serve it at all.
#[must_use]
pub fn node_kind_label(kind: crate::kind::Kind) -> String {
    format!("{GROUP}/{kind}-max-gb")
}

/// Node label, written by the agent: the size in GB of the largest neutral name that a slice of the node can have by
/// any kind. It is at least the slice's own size: a slice of 15 GB is the largest of `kerf.dev/gpu-16gb`.
pub const NODE_MAX_GB: &str = "kerf.dev/gpu-max-gb";

/// Node label, written by admins: the layout of NVIDIA's device plugin for the node, by name.
pub const LAYOUT: &str = "kerf.dev/layout";

/// Annotation of a Node and of a `ClusterPolicy`, written by the extender's leader: what it changed there for a layout
/// of NVIDIA's device plugin, and the state before.
pub const PLUGIN_LAYOUT: &str = "kerf.dev/plugin-layout";

/// Type of the Node condition that reports the state of the layout of NVIDIA's device plugin.
pub const LAYOUT_CONDITION: &str = "kerf.dev/Layout";

/// Node label of nos, which kerf reads so that its users need no new labels: with `mig` or `mps` the node is managed
/// and serves slices of that kind.
pub const NOS_PARTITIONING: &str = "nos.nebuly.com/gpu-partitioning";
