//! Every annotation, label and object name of kerf's own, in one place.

/// The API group of kerf's resources and the prefix of its keys.
pub const GROUP: &str = "kerf.dev";

/// The version of the GpuNode resource.
pub const VERSION: &str = "v1alpha1";

/// `apiVersion` of kerf's resources and policy documents.
pub const API_VERSION: &str = "kerf.dev/v1alpha1";

/// Annotation: how much GPU memory the pod's only container asks for (`10Gi`).
/// With `.<container>` behind it, the named container's.
pub const GPU_MEMORY: &str = "kerf.dev/gpu-memory";

/// Annotation: the exact MIG profile that the pod's only container asks for (`1g.10gb`, `1c.3g.40gb`).
/// With `.<container>` behind it, the named container's.
pub const GPU_PROFILE: &str = "kerf.dev/gpu-profile";

/// Annotation: how many slices a container asks for that asks by annotation. With `.<container>` behind it, the named
/// container's.
pub const GPU_COUNT: &str = "kerf.dev/gpu-count";

/// Annotation: the least share of a GPU's compute that each slice must have, in percent. With `.<container>` behind it, of
/// the named container's slices; without, of those of all containers that have no share of their own.
pub const COMPUTE: &str = "kerf.dev/compute";

/// Annotation: the GPU models that may serve the pod, by their short names, with commas between.
pub const GPU_MODEL: &str = "kerf.dev/gpu-model";

/// Annotation: the GPU models that may not serve the pod.
pub const GPU_MODEL_NOT: &str = "kerf.dev/gpu-model-not";

/// Annotation: the GPUs that may serve the pod, by their UUIDs, with commas between.
pub const GPU_UUID: &str = "kerf.dev/gpu-uuid";

/// Annotation: the GPUs that may not serve the pod.
pub const GPU_UUID_NOT: &str = "kerf.dev/gpu-uuid-not";

/// Annotation: `nominal`, so that 10Gi takes a `1g.10gb` whatever it really has, or `strict`, so that it really has 10 GiB.
pub const MEMORY_MATCH: &str = "kerf.dev/memory-match";

/// Annotation: the isolation class, `hardware`, `memory` or `none`.
pub const ISOLATION: &str = "kerf.dev/isolation";

/// Annotation, reserved: the request document that the webhook writes.
pub const REQUEST: &str = "kerf.dev/request";

/// Annotation, reserved: the assignment that the extender writes with the Binding.
pub const ASSIGNMENT: &str = "kerf.dev/assignment";

/// Annotation, reserved: `UID/EPOCH`, the Lease and the epoch of the extender's leader that sent the pod's Binding.
pub const EPOCH: &str = "kerf.dev/epoch";

/// Annotation: written by the extender on a waiting pod when there is room for it, so that the scheduler looks at it again.
pub const ROOM: &str = "kerf.dev/room";

/// Annotation: `true` on a pod with a controller says that it may be restarted elsewhere to make room for a bigger one.
pub const MOVABLE: &str = "kerf.dev/movable";

/// Annotation that kubectl and the injectors of sidecars know: the container that a command without a container's name means.
pub const DEFAULT_CONTAINER: &str = "kubectl.kubernetes.io/default-container";

/// The annotations by which users ask.
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

/// Those of them that name a container when `.<container>` stands behind them.
pub const PER_CONTAINER: [&str; 4] = [GPU_MEMORY, GPU_PROFILE, GPU_COUNT, COMPUTE];

/// Annotation of a GpuNode, written by the extender: the policy for nodes that the GpuNode's policy was copied from.
pub const NODE_POLICY: &str = "kerf.dev/node-policy";

/// The annotations that kerf writes on pods, and nobody else.
pub const RESERVED: [&str; 4] = [REQUEST, ASSIGNMENT, EPOCH, ROOM];

/// Label on admitted pods, by which kerf's programs watch only the pods that concern them. Its value is `true`.
pub const SLICED: &str = "kerf.dev/sliced";

/// Label of the extender's pods, written by its leader: [`LEADER`] on the one to which the Service leads.
pub const ROLE: &str = "kerf.dev/role";

/// Value of [`ROLE`] on the leader's pod.
pub const LEADER: &str = "leader";

/// Name of the ConfigMap, in kerf's namespace, in which the extender's leader writes its epoch.
pub const DEMAND: &str = "kerf-demand";

/// The key in it under which the document is.
pub const DEMAND_DOCUMENT: &str = "demand.json";

/// Name of the ConfigMap, in kerf's namespace, in which agents find the authority of the extender's certificate.
pub const EXTENDER_AUTHORITY: &str = "kerf-extender-ca";

/// Prefix of the limits in which users ask for memory: `kerf.dev/gpu-10gb`. In Pods the bare `gpu-10gb` works too.
pub const SIZE_PREFIX: &str = "kerf.dev/gpu-";

/// Node label, written by admins: `true` on a node whose GPUs are kerf's.
pub const MANAGED: &str = "kerf.dev/managed";

/// Node label, written by the agent: the GPU model (`H100-80GB`), or [`MIXED_MODELS`].
pub const NODE_MODEL: &str = "kerf.dev/gpu-model";

/// Value of [`NODE_MODEL`] on a node with GPUs of several models.
pub const MIXED_MODELS: &str = "mixed";

/// Node label, written by the agent: the largest size in GB that the node can serve by `kind`.
///
/// Node affinity compares it with `Gt`, so a pod meets only nodes that can ever serve it.
#[must_use]
pub fn node_kind_label(kind: crate::kind::Kind) -> String {
    format!("{GROUP}/{kind}-max-gb")
}

/// Node label, written by the agent: the largest neutral name that a slice of the node can have by any kind, by its size in GB.
/// That is at least the slice's own size: a slice of 15 GB is the largest of `kerf.dev/gpu-16gb`.
pub const NODE_MAX_GB: &str = "kerf.dev/gpu-max-gb";

/// Node label: the name of the layout of NVIDIA's device plugin that a node is to have; an admin sets it.
pub const LAYOUT: &str = "kerf.dev/layout";

/// Annotation of a Node and of a `ClusterPolicy`, written by the extender's leader: what it changed there for a layout of NVIDIA's
/// device plugin, and what was there before.
pub const PLUGIN_LAYOUT: &str = "kerf.dev/plugin-layout";

/// Type of the condition of a Node that tells how far the layout of NVIDIA's device plugin is.
pub const LAYOUT_CONDITION: &str = "kerf.dev/Layout";

/// Node label of nos, read so that its users need not label anew: `mig` or `mps` makes a node kerf's own, for slices of that
/// kind.
pub const NOS_PARTITIONING: &str = "nos.nebuly.com/gpu-partitioning";
