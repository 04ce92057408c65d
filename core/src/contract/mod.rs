//! The documents that kerf's programs exchange. Each has one writer and a version. Agents and the extender also
//! exchange messages over streams; see the crate `protocol`.
//!
//! | document | where | written by |
//! |---|---|---|
//! | [`RequestDocument`] | Pod annotation `kerf.dev/request` | webhook |
//! | [`GpuNodeSpec`] | the ledger on the node's disk | that node's agent |
//! | its [`NodePolicy`] | `GpuNode.spec` | an admin, or the extender's leader from policy files |
//! | [`GpuNodeStatus`] | `GpuNode.status` | that node's agent |
//! | [`AssignmentDocument`] | Pod annotation `kerf.dev/assignment` | extender, with the Binding |
//!
//! During an update kerf's programs are of two versions, so a reader ignores unknown fields. A change that a reader
//! must not ignore comes with another version of the document. The exception is [`NodePolicy`] inside of
//! `GpuNode.spec`. An admin may write it, so an unknown field is refused there, as in policy files.

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
mod wanted;

pub use assignment::{AssignedDevices, AssignedSlice, AssignmentDocument, PassedKind};
pub use chosen::Chosen;
pub use layout::{IllegalLayout, LaidOut, Layout};
pub use mig_part::MigPart;
pub use mig_rule::{MigReplicas, MigRule};
pub use node_policy::{
    ComputeLimit, GpuRule, GpuSelector, MPS_REPLICAS_LIMIT, ModeChange, MpsMemory, MpsRule, NodePolicy,
    OverUse, SliceLength, TimeSlicingRule, WarmSlices,
};
pub use peer::{PcieAncestor, Peer};
pub use request::{ContainerRequest, REQUEST_VERSION, RequestDocument, RootProcesses, UnreadableRequest};
pub use spec::{GpuNodeSpec, Reservation, Shape, WantedSlice};
pub use status::{
    Condition, ConditionStatus, GpuNodeStatus, GpuStatus, Holder, SliceReservation, SliceState, SliceStatus,
    Summary, UnreadableStatus,
};
pub use wanted::{Reserved, Wanted};

#[cfg(test)]
mod skew_tests;
