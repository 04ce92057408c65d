//! The decisions of kerf, as pure functions over values.
//!
//! Nothing in this crate reads a clock, a file, the environment, the network or a random source. Everything that a
//! decision needs is an argument, and its result is a value. The test `core_is_pure` enforces that.
//!
//! | room | what it decides |
//! |---|---|
//! | [`units`], [`quantity`] | amounts of GPU memory, and how users write them |
//! | [`names`], [`kind`], [`resource`], [`keys`], [`nvidia_keys`] | the names and spellings that cross a program's boundary |
//! | [`mig`] | which sets of GPU instances are legal on a GPU |
//! | [`request`] | what a pod asks for |
//! | [`policy`] | which kinds of slice may serve it |
//! | [`selector`] | which nodes and names a list selects |
//! | [`quota`] | how much the pods of a namespace may hold |
//! | [`admission`] | whether and how a created pod is admitted |
//! | [`accounting`] | how much of a GPU's memory shares may use |
//! | [`capacity`] | which slices a GPU can hold by its rule |
//! | [`inventory`] | what is taken, idle or free on a node |
//! | [`packing`] | where a pod's slices go |
//! | [`closeness`] | which GPUs are best together |
//! | [`ledger`] | reservations on a node, their owners and ends, and the orders of a leader |
//! | [`planner`] | the steps from the observed to the desired state, and an independent checker of them |
//! | [`plugin_layout`] | how NVIDIA's device plugin is configured on static nodes |
//! | [`offer`] | which devices the kubelet may hand out |
//! | [`gfd_labels`] | the labels of a managed node for selectors made for NVIDIA's labels |
//! | [`managed`] | whether a node is managed |
//! | [`static_node`] | what a static node offers |
//! | [`sharing`] | what tenants of one GPU cost each other, and which way of sharing serves them |
//! | [`contract`] | the documents that the programs exchange |
#![deny(missing_docs)]
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::needless_pass_by_value, reason = "tests hand over json! values"))]

pub mod accounting;
pub mod admission;
pub mod capacity;
pub mod closeness;
pub mod contract;
pub mod gfd_labels;
pub mod inventory;
pub mod keys;
pub mod kind;
pub mod ledger;
pub mod managed;
pub mod mig;
pub mod names;
pub mod nvidia_keys;
pub mod offer;
pub mod packing;
pub mod planner;
pub mod plugin_layout;
pub mod policy;
pub mod quantity;
pub mod quota;
pub mod request;
pub mod resource;
pub mod selector;
pub mod sharing;
pub mod static_node;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod units;
