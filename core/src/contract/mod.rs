//! The documents that kerf's programs exchange. Each has one writer and a version; nothing else is said between them.
//!
//! | document | where | written by |
//! |---|---|---|
//! | [`RequestDocument`] | Pod annotation `kerf.dev/request` | webhook |
//! | [`GpuNodeSpec`] | `GpuNode.spec` | extender's leader |
//! | [`GpuNodeStatus`] | `GpuNode.status` | that node's agent |
//! | [`Demand`] | ConfigMap `kerf-demand` | extender's leader |
//! | [`AssignmentDocument`] | Pod annotation `kerf.dev/assignment` | extender, with the Binding |

mod assignment;
mod chosen;
mod demand;
mod layout;
mod node_policy;
mod request;
mod spec;
mod status;
mod status_wire;

pub use assignment::{AssignedSlice, AssignmentDocument};
pub use chosen::{Chosen, PassedOver, Reason};
pub use demand::{DEMAND_VERSION, Demand, Slices, UnreadableDemand};
pub use layout::{IllegalLayout, LaidOut, Layout};
pub use node_policy::{
    GpuRule, GpuSelector, ModeChange, MpsMemory, MpsRule, NodePolicy, OverUse, SliceLength, TimeSlicingRule,
    WarmSlices,
};
pub use request::{ContainerRequest, REQUEST_VERSION, RequestDocument, UnreadableRequest};
pub use spec::{GpuNodeSpec, Reservation, Shape, WantedSlice};
pub use status::{
    Condition, ConditionStatus, GpuNodeStatus, GpuStatus, Holder, SliceState, SliceStatus, Summary,
    UnreadableStatus,
};
