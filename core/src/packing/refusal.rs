//! Why a node cannot serve a request.

use thiserror::Error;

/// Why a node cannot serve a request. Texts are constant, so that the scheduler's event groups them over nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Error)]
pub enum Refusal {
    /// The pod has no request document.
    #[error(
        "pod was not admitted by kerf's webhook: create it anew while the webhook runs, or name another scheduler"
    )]
    NotAdmitted,
    /// The pod's request document cannot be read.
    #[error("pod's kerf.dev/request annotation cannot be read: create the pod anew")]
    UnreadableRequest,
    /// The node has no GpuNode.
    #[error("no kerf agent on the node")]
    NoAgent,
    /// The GpuNode's status cannot be read.
    #[error("GpuNode status cannot be read, the node counts as full: update its agent")]
    UnreadableStatus,
    /// The GpuNode's spec cannot be read.
    #[error(
        "GpuNode spec cannot be read, the node counts as full: update kerf's extender or correct the spec"
    )]
    UnreadableSpec,
    /// The agent does not serve the node.
    #[error("kerf agent not ready")]
    AgentNotReady,
    /// The agent is not connected to the extender that leads.
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
    /// No GPU of the node can ever serve it in its present mode.
    #[error("no GPU of the kind and size that is requested")]
    NeverFits,
    /// A GPU of the node could serve it, but for the models and UUIDs that the pod names.
    #[error("no GPU of the model or UUID that is requested")]
    NotSelected,
    /// The pod wants more slices than the node could hold empty.
    #[error("more slices requested than the node can hold: ask for fewer")]
    CountNeverFits,
    /// A container needs several GPUs, and the node has too few that could serve it.
    #[error(
        "not enough different GPUs: ask for fewer, or by kerf.dev/gpu-count for slices that may be of one GPU"
    )]
    TooFewGpus,
    /// A container wants several replicas of NVIDIA's device plugin, which gives no more for more of them.
    #[error("more than one replica of NVIDIA's device plugin in one container: ask for one")]
    OneReplica,
    /// The node is static, and NVIDIA's device plugin is given another layout there.
    #[error("NVIDIA's device plugin is given a new layout on the node")]
    LayoutChanging,
    /// The node is static, and a leader of the extender that vanished may have a Binding to it under way.
    #[error(
        "kerf's extender has a new leader, which waits until no Binding of the former one can be under way: about a minute"
    )]
    LeaderChanged,
    /// The node is static now, and pods hold slices there that kerf's agent made when it was managed.
    #[error("pods still hold slices of kerf's agent on the node, which NVIDIA's device plugin serves now")]
    SlicesLeft,
    /// What would fit is in use.
    #[error("GPU slices in use")]
    NoRoom,
    /// The node's kubelet does not list the neutral name by which the pod asks, or the node's agent is of an earlier version
    /// and does not report it.
    #[error(
        "resource name kerf.dev/gpu-<N>gb not registered on the node: update its kerf agent, or wait until it has started"
    )]
    NameNotRegistered,
    /// The pod runs in a user namespace, and the node has none.
    #[error("no user namespaces on the node, which the pod needs for processes that run as root")]
    NoUserNamespaces,
    /// The node could serve the pod, but only by kinds that come later in the pod's order than those of another node.
    #[error("another node serves the pod by a kind that comes first in its order")]
    Outranked,
}
