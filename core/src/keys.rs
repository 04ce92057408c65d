//! Every annotation, label and object name of kerf's own, in one place.

/// The API group of kerf's resources and the prefix of its keys.
pub const GROUP: &str = "kerf.dev";

/// The version of the GpuNode resource.
pub const VERSION: &str = "v1alpha1";

/// Annotation: how much GPU memory the pod's only container asks for (`10Gi`).
/// With `.<container>` behind it, the named container's.
pub const GPU_MEMORY: &str = "kerf.dev/gpu-memory";

/// Annotation: the isolation class, `hardware`, `memory` or `none`.
pub const ISOLATION: &str = "kerf.dev/isolation";

/// Annotation, reserved: the request document that the webhook writes.
pub const REQUEST: &str = "kerf.dev/request";

/// Annotation, reserved: the assignment that the extender writes with the Binding.
pub const ASSIGNMENT: &str = "kerf.dev/assignment";

/// Annotation: written by the extender on a waiting pod when there is room for it, so that the scheduler looks at it again.
pub const ROOM: &str = "kerf.dev/room";

/// Annotation: `true` on a pod with a controller says that it may be restarted elsewhere to make room for a bigger one.
pub const MOVABLE: &str = "kerf.dev/movable";

/// Label on admitted pods, by which kerf's programs watch only the pods that concern them. Its value is `true`.
pub const SLICED: &str = "kerf.dev/sliced";

/// Prefix of the limits in which users ask for memory: `kerf.dev/gpu-10gb`. In Pods the bare `gpu-10gb` works too.
pub const SIZE_PREFIX: &str = "kerf.dev/gpu-";

/// Node label, written by the agent: the GPU model (`H100-80GB`), or `mixed`.
pub const NODE_MODEL: &str = "kerf.dev/gpu-model";

/// Node label, written by the agent: the largest size in GB that the node can serve by `kind`.
///
/// Node affinity compares it with `Gt`, so a pod meets only nodes that can ever serve it.
#[must_use]
pub fn node_kind_label(kind: crate::kind::Kind) -> String {
    format!("{GROUP}/{kind}-max-gb")
}
