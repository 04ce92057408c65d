//! Mutating admission: a request for GPU memory, however it is spelled, becomes one concrete resource.
//!
//! | module | what it decides |
//! |---|---|
//! | [`admit`] | whether a pod is left alone, patched or denied: pure |
//! | `readmit` | whether a pod that carries a request document is one that kerf admitted: pure |
//! | `patch`, `edit` | the smallest patch that makes a pod carry its request: pure |
//! | `review` | the wire format of the API server's question and answer |
//! | `routes` | HTTP: one question, one answer, one log line |
//! | `supply_watch` | what the cluster's GPUs can serve, from the `GpuNodes` |
//! | `certificate`, `ca_bundle` | the certificate, and that the API server trusts it |
//! | [`app`], [`args`], `metrics` | the program |
#![forbid(unsafe_code)]

pub mod admit;
pub mod app;
pub mod args;
mod ca_bundle;
mod certificate;
mod edit;
mod metrics;
mod patch;
mod readmit;
mod review;
mod routes;
mod supply_watch;
