//! Metrics, alerts and dashboard. The programs expose what docs/metrics.md says; promtool shows that each alert fires
//! when it should; and a real Prometheus answers each query of the dashboard.

mod alerts;
mod answers;
mod dashboard;
mod documented;
