//! What the agent counts. Labels are closed sets.

use crate::executor::Outcome;
use crate::gpu::GpuError;
use kerf_core::contract::{GpuNodeStatus, SliceState};
use kerf_core::kind::Kind;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use std::collections::BTreeMap;
use std::time::Duration;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct SliceLabels {
    kind: &'static str,
    state: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StepLabels {
    step: &'static str,
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StepLabel {
    step: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CodeLabel {
    code: &'static str,
}

/// The agent's metrics.
#[derive(Debug, Clone)]
pub struct Metrics {
    slices: Family<SliceLabels, Gauge>,
    steps: Family<StepLabels, Counter>,
    durations: Family<StepLabel, Histogram>,
    nvml_errors: Family<CodeLabel, Counter>,
}

/// A millisecond to 33 seconds, doubling: an instance takes milliseconds on an idle GPU and seconds on a busy node.
fn step_seconds() -> Histogram {
    Histogram::new(exponential_buckets(0.001, 2.0, 16))
}

impl Metrics {
    /// The metrics, registered under `kerf_agent`.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            slices: Family::default(),
            steps: Family::default(),
            durations: Family::new_with_constructor(step_seconds),
            nvml_errors: Family::default(),
        };
        let registry = registry.sub_registry_with_prefix("kerf_agent");
        registry.register("slices", "Slices of the node by kind and state", metrics.slices.clone());
        registry.register("steps", "Calls to the GPUs by outcome", metrics.steps.clone());
        registry.register(
            "step_duration_seconds",
            "Duration of calls to the GPUs",
            metrics.durations.clone(),
        );
        registry.register("nvml_errors", "Errors by NVML's code", metrics.nvml_errors.clone());
        metrics
    }

    pub(crate) fn count(&self, outcome: &Outcome) {
        let (step, took, error) = match outcome {
            Outcome::Unrecorded { .. } => return,
            Outcome::Observed { result, took, .. } => ("observe", took, result.as_ref().err()),
            Outcome::Created { result, took, .. } => ("create", took, result.as_ref().err()),
            Outcome::Switched { result, took, .. } => ("switch", took, result.as_ref().err()),
            Outcome::Destroyed { result, took, .. } => ("destroy", took, result.as_ref().err()),
        };
        self.count_step(step, *took, error);
    }

    fn count_step(&self, step: &'static str, took: Duration, error: Option<&GpuError>) {
        let outcome = if error.is_some() { "failed" } else { "done" };
        self.steps.get_or_create(&StepLabels { step, outcome }).inc();
        self.durations.get_or_create(&StepLabel { step }).observe(took.as_secs_f64());
        if let Some(error) = error {
            self.nvml_errors.get_or_create(&CodeLabel { code: error.code().as_str() }).inc();
        }
    }

    pub(crate) fn set_slices(&self, status: &GpuNodeStatus) {
        let mut counts: BTreeMap<(Kind, &'static str), i64> = BTreeMap::new();
        for slice in &status.slices {
            *counts.entry((slice.shape.kind(), state(slice.state))).or_default() += 1;
        }
        for kind in Kind::ALL {
            for state in STATES {
                let count = counts.get(&(kind, state)).copied().unwrap_or(0);
                self.slices.get_or_create(&SliceLabels { kind: kind.as_str(), state }).set(count);
            }
        }
    }
}

const STATES: [&str; 6] = ["preparing", "waiting", "ready", "held", "idle", "failed"];

fn state(state: SliceState) -> &'static str {
    let [preparing, waiting, ready, held, idle, failed] = STATES;
    match state {
        SliceState::Preparing => preparing,
        SliceState::Waiting => waiting,
        SliceState::Ready => ready,
        SliceState::Held => held,
        SliceState::Idle => idle,
        SliceState::Failed => failed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::NvmlCode;

    #[test]
    fn steps_and_errors_are_counted_under_their_documented_names() {
        let mut registry = Registry::default();
        let metrics = Metrics::register(&mut registry);
        let error = GpuError::Call { call: "nvmlX", code: NvmlCode::InsufficientResources };
        metrics.count_step("create", Duration::from_millis(3), Some(&error));
        metrics.set_slices(&GpuNodeStatus::default());
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        for line in [
            "kerf_agent_steps_total{step=\"create\",outcome=\"failed\"} 1",
            "kerf_agent_nvml_errors_total{code=\"INSUFFICIENT_RESOURCES\"} 1",
            "kerf_agent_slices{kind=\"mig\",state=\"held\"} 0",
            "kerf_agent_step_duration_seconds_count{step=\"create\"} 1",
        ] {
            assert!(text.contains(line), "{line} in {text}");
        }
    }
}
