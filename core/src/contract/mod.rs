//! The documents that kerf's programs exchange. Each has one writer and a version; nothing else is said between them.
//!
//! | document | where | written by |
//! |---|---|---|
//! | [`RequestDocument`] | Pod annotation `kerf.dev/request` | webhook |
//! | [`GpuNodeSpec`] | `GpuNode.spec` | extender's leader |
//! | [`GpuNodeStatus`] | `GpuNode.status` | that node's agent |
//! | [`AssignmentDocument`] | Pod annotation `kerf.dev/assignment` | extender, with the Binding |

mod assignment;
mod node_policy;
mod request;
mod spec;
mod status;
mod status_wire;

pub use assignment::{AssignedSlice, AssignmentDocument};
pub use node_policy::{
    GpuRule, GpuSelector, ModeChange, MpsRule, NodePolicy, OverUse, SliceLength, TimeSlicingRule, WarmSlices,
};
pub use request::{ContainerRequest, REQUEST_VERSION, RequestDocument, UnreadableRequest};
pub use spec::{GpuNodeSpec, Reservation, Shape, WantedSlice};
pub use status::{
    Condition, ConditionStatus, GpuNodeStatus, GpuStatus, Holder, SliceState, SliceStatus, Summary,
    UnreadableStatus,
};
