//! kerf's scheduler extender. It returns to kube-scheduler which nodes can serve a pod and which is best, reserves
//! slices for pods, and binds the pods once their slices exist.
//!
//! | module | what is in it |
//! |---|---|
//! | [`args`], [`app`] | flags and wiring |
//! | `scheduling` | the scheduler extender: kube-scheduler's requests and the answers to them |
//! | `controllers` | the leader's tasks beside scheduling |
//! | `cluster_index` | nodes, pods, reservations and pending pods; no I/O, no clock |
//! | `objects` | the parts of Kubernetes objects that are read |
//! | `watch`, `relist`, `seen_nodes` | the sources that feed the index, and the Nodes that layouts may concern |
//! | `assumed`, `unschedulable` | parts of the index: where pods will probably be bound, and which refused pods have room now |
//! | `usage` | what namespaces hold under their quotas |
//! | `shared` | equal values that are stored once |
//! | `agents`, `connections` | the server for the nodes' agents, and their connections |
//! | `certificates` | the certificates for scheduler and agents |
//! | `term`, `leader` | who leads, since when |
//! | `cluster` | the index, which outlives terms, and its current term |
//! | `in_flight` | how many Bindings may be under way at once |
//! | `policy_source` | which policies apply now |
//! | `api_timeout`, `evict` | requests to the API server with a timeout, and evictions |
//! | `events` | Events about pods and nodes |
//! | `metrics`, `metric_labels`, `collector` | counters, the values of labels, and gauges that are read from the term at each scrape |
#![forbid(unsafe_code)]

pub(crate) mod agents;
pub(crate) mod api_timeout;
pub mod app;
pub mod args;
pub(crate) mod assumed;
pub(crate) mod certificates;
pub(crate) mod cluster;
pub(crate) mod cluster_index;
pub(crate) mod collector;
pub(crate) mod connections;
pub(crate) mod controllers;
pub(crate) mod events;
pub(crate) mod evict;
pub(crate) mod in_flight;
pub(crate) mod leader;
pub(crate) mod metric_labels;
pub(crate) mod metrics;
pub(crate) mod objects;
pub(crate) mod policy_source;
pub(crate) mod relist;
pub(crate) mod scheduling;
pub(crate) mod seen_nodes;
pub(crate) mod shared;
pub(crate) mod term;
pub(crate) mod unschedulable;
pub(crate) mod usage;
pub(crate) mod watch;

// `kerf explain` reads a pod by the same rules.
use kerf_runtime::destinations;

#[cfg(test)]
mod api_stand_in;
#[cfg(test)]
mod simulated_agent;
