//! The documents that kerf's programs exchange. Each has one writer and a version; nothing else is said between them.
//!
//! | document | where | written by |
//! |---|---|---|
//! | [`RequestDocument`] | Pod annotation `kerf.dev/request` | webhook |
//! | [`GpuNodeSpec`] | `GpuNode.spec` | extender's leader |
//! | [`GpuNodeStatus`] | `GpuNode.status` | that node's agent |
//! | [`AssignmentDocument`] | Pod annotation `kerf.dev/assignment` | extender, with the Binding |
//!
//! While kerf is updated its programs are of two versions, so a reader overlooks fields that it does not know. What it may not
//! overlook comes with another version of the document. The exception is [`NodePolicy`], the admin's words inside of
//! `GpuNode.spec`: like the policies' files it is refused for a field that is not known.

mod assignment;
mod chosen;
mod layout;
mod mig_part;
mod mig_rule;
mod node_policy;
mod peer;
mod request;
mod spec;
mod status;
mod status_wire;

pub use assignment::{AssignedDevices, AssignedSlice, AssignmentDocument, PassedKind};
pub use chosen::Chosen;
pub use layout::{IllegalLayout, LaidOut, Layout};
pub use mig_part::MigPart;
pub use mig_rule::{MigReplicas, MigRule};
pub use node_policy::{
    ComputeLimit, GpuRule, GpuSelector, ModeChange, MpsMemory, MpsRule, NodePolicy, OverUse, SliceLength,
    TimeSlicingRule, WarmSlices,
};
pub use peer::{PcieAncestor, Peer};
pub use request::{
    AskedLimits, ContainerRequest, REQUEST_VERSION, RequestDocument, RootProcesses, UnreadableRequest,
};
pub use spec::{GpuNodeSpec, Reservation, Shape, WantedSlice};
pub use status::{
    Condition, ConditionStatus, GpuNodeStatus, GpuStatus, Holder, SliceReservation, SliceState, SliceStatus,
    Summary, UnreadableStatus,
};

#[cfg(test)]
mod skew_tests;
