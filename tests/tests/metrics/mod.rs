//! Metrics, alerts and dashboard: what the programs expose is what docs/metrics.md says; each alert fires when it should, by
//! promtool; and a real Prometheus answers each query of the dashboard.

mod alerts;
mod answers;
mod dashboard;
mod documented;
