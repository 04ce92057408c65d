//! kerf's scheduler extender: tells kube-scheduler which nodes can serve a pod and which is best, promises slices to
//! pods, and binds them once their slices are there.
//!
//! | module | what it decides |
//! |---|---|
//! | [`args`], [`app`] | flags and wiring |
//! | [`wire`], [`routes`] | what kube-scheduler says and is told |
//! | [`ask`], [`pod`] | what is read of a pod |
//! | [`cluster_index`] | what is known, promised and pending; no I/O, no clock |
//! | [`tentative`] | where pods will probably be bound |
//! | [`usage`] | what namespaces hold under their quotas |
//! | [`filter`] | which nodes fit and in what order |
//! | [`preempt`] | where the scheduler may evict pods for a pod |
//! | [`bind`], [`binding`] | a pod's way from the choice of its node to its Binding |
//! | [`agents`] | the connections of the nodes' agents |
//! | [`certificates`] | the certificates that scheduler and agents are shown |
//! | [`timers`] | what is due by time alone |
//! | [`waiting`], [`wake`] | which refused pods have room now, and that the scheduler hears of it |
//! | [`another_kind`] | which pending pods another kind of slice would serve, were they created anew |
//! | [`former_epoch`] | which epoch a former leader had |
//! | [`node_policies`] | what nodes may cut, by the admins' documents |
//! | [`plugin_layout`] | how NVIDIA's device plugin is configured on the nodes that it serves |
//! | [`events`] | what pods are told |
//! | [`watch`], [`confirm`] | how the index hears of the cluster |
//! | [`cluster`] | what is known whether this replica leads or not, and by which term it is decided on |
//! | [`fresh`] | what a new leader reads anew |
//! | [`term`], [`leader`] | who leads, since when |
//! | [`in_flight`] | how many Bindings may be under way at once |
//! | [`in_force`] | which policies hold now |
//! | [`in_time`] | what the API server answers in time, or why it does not |
//! | [`metrics`] | what is counted |
#![forbid(unsafe_code)]

pub mod agents;
pub mod another_kind;
pub mod app;
pub mod args;
pub mod ask;
pub mod bind;
pub mod binding;
pub mod certificates;
pub mod cluster;
pub mod cluster_index;
pub mod compute;
pub mod confirm;
pub mod events;
pub mod evict;
pub mod filter;
pub mod former_epoch;
pub mod fresh;
pub mod in_flight;
pub mod in_force;
pub mod in_time;
pub mod leader;
pub mod metrics;
pub mod node_policies;
pub mod plugin_layout;
pub mod pod;
pub mod preempt;
pub mod routes;
pub mod tentative;
pub mod term;
pub mod timers;
pub mod usage;
pub mod waiting;
pub mod wake;
pub mod watch;
pub mod wire;

// `kerf explain` reads the same of a pod.
use kerf_runtime::destinations;

#[cfg(test)]
mod api_stand_in;
#[cfg(test)]
mod simulated_agent;
