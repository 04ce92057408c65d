//! The reasons why a node cannot serve a request.

use thiserror::Error;

/// Why a node cannot serve a request. The texts are constant, so that the scheduler's event groups nodes by text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Error)]
pub enum Refusal {
    /// The pod has no request document.
    #[error(
        "pod was not admitted by kerf's webhook: create it anew while the webhook runs, or name another scheduler"
    )]
    NotAdmitted,
    /// The pod's request document does not parse.
    #[error("pod's kerf.dev/request annotation cannot be read: create the pod anew")]
    UnreadableRequest,
    /// The node has no GpuNode, so no agent manages it.
    #[error("no kerf agent on the node")]
    NoAgent,
    /// The status of the GpuNode does not parse.
    #[error("GpuNode status cannot be read, the node counts as full: update its agent")]
    UnreadableStatus,
    /// The spec of the GpuNode does not parse.
    #[error(
        "GpuNode spec cannot be read, the node counts as full: update kerf's extender or correct the spec"
    )]
    UnreadableSpec,
    /// The agent reports that it is not ready.
    #[error("kerf agent not ready")]
    AgentNotReady,
    /// The agent has no stream to the extender's leader.
    #[error("kerf agent not connected to the extender: look at its pod on the node")]
    NotConnected,
    /// The pod has a reservation on another node.
    #[error("slice is reserved for the pod on another node")]
    ReservedElsewhere,
    /// The pod's namespace holds as much as its policy allows.
    #[error("GPU quota of the pod's namespace is full")]
    QuotaFull,
    /// The pod asks for more than its namespace may ever hold.
    #[error("more than the whole GPU quota of the pod's namespace: ask for less")]
    OverQuota,
    /// No GPU of the node can serve the request in its present mode, even if it were empty.
    #[error("no GPU of the kind and size that is requested")]
    NeverFits,
    /// Only GPUs of other models or UUIDs than the pod names could serve it.
    #[error("no GPU of the model or UUID that is requested")]
    NotSelected,
    /// The pod asks for more slices than the node could hold if it were empty.
    #[error("more slices requested than the node can hold: ask for fewer")]
    CountNeverFits,
    /// A container needs several GPUs, and too few GPUs of the node could serve it.
    #[error(
        "not enough different GPUs: ask for fewer, or by kerf.dev/gpu-count for slices that may be of one GPU"
    )]
    TooFewGpus,
    /// A container asks for several replicas of NVIDIA's device plugin, which give it no more than one does.
    #[error("more than one replica of NVIDIA's device plugin in one container: ask for one")]
    OneReplica,
    /// The node is static, and NVIDIA's device plugin is changing to another layout.
    #[error("NVIDIA's device plugin is given a new layout on the node")]
    LayoutChanging,
    /// The node is static, and a Binding of the extender's former leader may still be on its way to it.
    #[error(
        "kerf's extender has a new leader, which waits until no Binding of the former one can be under way: about a minute"
    )]
    LeaderChanged,
    /// The node is static now, and pods still hold slices that kerf's agent made before.
    #[error("pods still hold slices of kerf's agent on the node, which NVIDIA's device plugin serves now")]
    SlicesLeft,
    /// The request would fit, and its room is in use.
    #[error("GPU slices in use")]
    NoRoom,
    /// The node's kubelet has not registered the neutral name in the request, or the agent is of an earlier version
    /// that does not report it.
    #[error(
        "resource name kerf.dev/gpu-<N>gb not registered on the node: update its kerf agent, or wait until it has started"
    )]
    NameNotRegistered,
    /// The pod runs in a user namespace, which the node does not support.
    #[error("no user namespaces on the node, which the pod needs for processes that run as root")]
    NoUserNamespaces,
    /// The node could serve the pod, but only by kinds that come later in the pod's order than those of another node.
    #[error("another node serves the pod by a kind that comes first in its order")]
    Outranked,
}
