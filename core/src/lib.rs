//! The decisions of kerf, as pure functions over values.
//!
//! Nothing in this crate reads a clock, a file, the environment, the network or a random source: everything that a
//! decision needs comes as an argument, everything that it says is a value. A test (`core_is_pure`) keeps it so.
//!
//! | room | what it decides |
//! |---|---|
//! | [`units`], [`quantity`] | what an amount of GPU memory is, and how users write it |
//! | [`names`], [`kind`], [`resource`], [`keys`], [`nvidia_keys`] | the words and spellings that cross a program's boundary |
//! | [`mig`] | which sets of GPU instances are legal on a GPU |
//! | [`request`] | what a pod asks for |
//! | [`policy`] | which kinds of slice may serve it |
//! | [`admission`] | what becomes of a pod that is created |
//! | [`accounting`] | what of a GPU's memory shares may come to |
//! | [`inventory`] | what of a node is taken, idle or free |
//! | [`packing`] | where it goes |
//! | [`closeness`] | which GPUs are best together |
//! | [`ledger`] | what is reserved on a node, for whom and for how long, and how a leader orders it |
//! | [`planner`] | which steps turn what is into what is wanted, and an independent checker of them |
//! | [`plugin_layout`] | how NVIDIA's device plugin is configured on the nodes that it serves |
//! | [`offer`] | which devices the kubelet may hand out |
//! | [`gfd_labels`] | what a served node's labels say to those who select on NVIDIA's |
//! | [`managed`] | whether a node's GPUs are kerf's own |
//! | [`static_node`] | what a node offers that NVIDIA's device plugin serves |
//! | [`sharing`] | what tenants of one GPU cost each other, and which way of sharing serves them |
//! | [`contract`] | the documents that the programs exchange |
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::needless_pass_by_value, reason = "tests hand over json! values"))]

pub mod accounting;
pub mod admission;
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
pub mod request;
pub mod resource;
pub mod sharing;
pub mod static_node;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod units;
