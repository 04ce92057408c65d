//! Fractions: MPS shares, time slices and whole GPUs as shares of a GPU, with the node's CPU and memory and the GPU's
//! model. [`Nodes`] finds the cheapest place for one more request; the extender and `kerf simulate --openb` run the
//! same code.
//!
//! [`cost()`] is a pure function of a node, a request and a [`Market`]. The market comes from the nodes' resources and
//! from a [`Workload`], which is learned from earlier requests.

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
pub use models::{MODELS_LIMIT, ModelId, ModelSet, Models, TooManyModels};
pub use node::{GPUS_LIMIT, Gpu, GpuSet, Node, ReleaseError, TakeError};
pub use nodes::{ChangeError, Costs, NodeId, Nodes, Placement};
pub use request::{GpuDemand, Order, Part, Request, Sharing};
pub use supply::Supply;
pub use workload::Workload;

#[cfg(test)]
mod tests;
