//! kerf's scheduler extender. It returns to kube-scheduler which nodes can serve a pod and which is best, reserves
//! slices for pods, and binds the pods once their slices exist.
//!
//! | module | what is in it |
//! |---|---|
//! | [`args`], [`app`] | flags and wiring |
//! | [`wire`], [`routes`] | kube-scheduler's requests and the answers to them |
//! | [`ask`], [`pod`], [`template`] | the parts of a pod that are read |
//! | [`shared`] | equal values that are stored once |
//! | [`cluster_index`] | nodes, pods, reservations and pending pods; no I/O, no clock |
//! | [`assumed`] | assumed pods: where pods will probably be bound |
//! | [`usage`] | what namespaces hold under their quotas |
//! | [`filter`] | which nodes fit and in what order |
//! | [`preempt`] | where the scheduler may evict pods for a pod |
//! | [`bind`], [`binding`] | the steps from the choice of a pod's node to its Binding |
//! | [`agents`], [`connections`] | the server for the nodes' agents, and their connections |
//! | [`certificates`] | the certificates for scheduler and agents |
//! | [`timers`] | reservations and requests that end by time alone |
//! | [`unschedulable`], [`requeue`] | which refused pods have room now, and how the scheduler requeues them |
//! | [`another_kind`] | which pending pods another kind of slice would serve if they were recreated |
//! | [`former_epoch`] | the epoch of a former leader |
//! | [`node_policies`] | what nodes may cut, by the admins' documents |
//! | [`plugin_layout`] | the configuration of NVIDIA's device plugin on the nodes that it serves |
//! | [`node_view`], [`seen_nodes`] | the parts of a Node that are read, and the Nodes that layouts may concern |
//! | [`gpu_node_view`], [`metadata`] | the parts of a GpuNode, and of any object's metadata, that are read |
//! | [`events`] | Events about pods and nodes |
//! | [`watch`], [`confirm`] | the sources that feed the index |
//! | [`relist`] | requests for a new list from a watch |
//! | [`cluster`] | the index, which outlives terms, and its current term |
//! | [`fresh`] | what a new leader reads again |
//! | [`term`], [`leader`] | who leads, since when |
//! | [`in_flight`] | how many Bindings may be under way at once |
//! | [`policy_source`] | which policies apply now |
//! | [`api_timeout`] | requests to the API server with a timeout |
//! | [`metrics`], [`metric_labels`] | counters, and the values of labels |
//! | [`collector`] | gauges that are read from the term at each scrape |
#![forbid(unsafe_code)]

pub mod agents;
pub mod another_kind;
pub mod api_timeout;
pub mod app;
pub mod args;
pub mod ask;
pub mod assumed;
pub mod bind;
pub mod binding;
pub mod certificates;
pub mod cluster;
pub mod cluster_index;
pub mod collector;
pub mod compute;
pub mod confirm;
pub mod connections;
pub mod events;
pub mod evict;
pub mod filter;
pub mod former_epoch;
pub mod fresh;
pub mod gpu_node_view;
pub mod in_flight;
pub mod leader;
pub mod metadata;
pub mod metric_labels;
pub mod metrics;
pub mod node_policies;
pub mod node_view;
pub mod plugin_layout;
pub mod pod;
pub mod policy_source;
pub mod preempt;
pub mod relist;
pub mod requeue;
pub mod routes;
pub mod seen_nodes;
pub mod shared;
pub mod template;
pub mod term;
pub mod timers;
pub mod unschedulable;
pub mod usage;
pub mod watch;
pub mod wire;

// `kerf explain` reads a pod by the same rules.
use kerf_runtime::destinations;

#[cfg(test)]
mod api_stand_in;
#[cfg(test)]
mod simulated_agent;
