//! Mutating admission: a request for GPU memory, in any spelling, becomes one resource.
//!
//! | module | what it decides |
//! |---|---|
//! | `admit` | whether a pod is unchanged, patched or denied, as `kerf_core::admission` decides: pure |
//! | `patch`, `edit` | the smallest patch that makes a pod carry its request: pure |
//! | `templates` | pod templates: a bare name becomes a qualified one, and nothing else: pure |
//! | `decision` | the decision on a request, by `admit` or `templates`, and its log line |
//! | `admission` | what was decided, for the answer, the metrics and the log |
//! | `review` | the wire format of the API server's question and answer |
//! | `routes` | HTTP: one question, one answer, one log line |
//! | `match_conditions` | makes the API server send exactly the pods that the policies in force take |
//! | `policy_events` | reports on policy files as Events |
//! | `supply_watch` | what the cluster's GPUs can serve, from the `GpuNodes` and Nodes, and which names DRA serves |
//! | `namespaces` | the labels of namespaces, while a policy needs them |
//! | `certificate`, `ca_bundle` | the certificate, and the API server's trust in it |
//! | [`app`], [`args`], `metrics` | the program |
#![forbid(unsafe_code)]

mod admission;
mod admit;
pub mod app;
pub mod args;
mod ca_bundle;
mod certificate;
mod decision;
mod edit;
mod match_conditions;
mod metrics;
mod namespaces;
mod patch;
mod policy_events;
mod review;
mod routes;
mod supply_watch;
mod templates;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
