//! Fractions: MPS shares, time slices and whole GPUs by the share of a GPU, with the node's CPU and memory and the GPU's
//! model. [`Nodes`] says where one more request costs least; the extender and `kerf simulate --openb` drive the same code.
//!
//! [`cost()`] is pure: what is left of a node, a request, and a [`Market`]. The market comes from a [`Workload`], which is
//! learned from the requests that came, and from what the nodes have.

mod amount;
mod cost;
mod demand;
mod gap;
mod market;
mod models;
mod node;
mod nodes;
mod request;
mod supply;
mod wanted;
mod workload;

pub use amount::{Busy, CpuMilli, GpuMilli};
pub use cost::{Choice, cost};
pub use market::Market;
pub use models::{MOST_MODELS, ModelId, ModelSet, Models, TooManyModels};
pub use node::{Gpu, GpuSet, MOST_GPUS, Node, ReleaseError, TakeError};
pub use nodes::{ChangeError, Costs, NodeId, Nodes, Placement};
pub use request::{GpuDemand, Order, Part, Request, Sharing};
pub use supply::Supply;
pub use workload::Workload;

#[cfg(test)]
mod tests;
