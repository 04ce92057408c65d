//! The agent's metrics. Labels are closed sets, except for the node's GPUs, slices and their holders: there are as many
//! series as slices, and they go with them.

mod devices;

pub(crate) use devices::SliceUse;

use devices::Devices;
use kerf_core::contract::{Condition, GpuNodeStatus, SliceState, SliceStatus};
use kerf_core::kind::Kind;
use kerf_core::names::{GpuUuid, PodKey};
use kerf_core::units::MemoryMib;
use kerf_nvml::GpuError;
use kerf_runtime::histogram::histogram;
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

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ConditionLabels {
    condition: &'static str,
    status: &'static str,
}

/// A call to the GPUs that is not a step of the loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call {
    SetExclusive,
    LimitMemory,
}

impl Call {
    fn as_str(self) -> &'static str {
        match self {
            Self::SetExclusive => "set_exclusive",
            Self::LimitMemory => "limit_memory",
        }
    }
}

#[derive(Debug, Clone)]
pub struct Metrics {
    slices: Family<SliceLabels, Gauge>,
    steps: Family<StepLabels, Counter>,
    durations: Family<StepLabel, Histogram>,
    nvml_errors: Family<CodeLabel, Counter>,
    conditions: Family<ConditionLabels, Gauge>,
    devices: Devices,
    mismatches: Counter,
    rejected: Counter,
}

/// From a millisecond to 33 seconds, doubling: an instance takes milliseconds on an idle GPU and seconds on a busy
/// node.
fn step_seconds() -> Histogram {
    histogram(exponential_buckets(0.001, 2.0, 16))
}

impl Metrics {
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            slices: Family::default(),
            steps: Family::default(),
            durations: Family::new_with_constructor(step_seconds),
            nvml_errors: Family::default(),
            conditions: Family::default(),
            devices: Devices::default(),
            mismatches: Counter::default(),
            rejected: Counter::default(),
        };
        for step in STEPS {
            for outcome in OUTCOMES {
                drop(metrics.steps.get_or_create(&StepLabels { step, outcome }));
            }
        }
        let registry = registry.sub_registry_with_prefix("kerf_agent");
        registry.register("slices", "Slices of the node by kind and state", metrics.slices.clone());
        registry.register("steps", "Calls to the GPUs by outcome", metrics.steps.clone());
        registry.register(
            "step_duration_seconds",
            "Duration of calls to the GPUs",
            metrics.durations.clone(),
        );
        registry.register("nvml_errors", "Errors by NVML's code", metrics.nvml_errors.clone());
        let help = "The present status of each condition of the GpuNode; always 1";
        registry.register("condition", help, metrics.conditions.clone());
        metrics.devices.register(registry);
        registry.register(
            "slice_mismatches",
            "Slices that the kubelet gave to a pod without a reservation",
            metrics.mismatches.clone(),
        );
        registry.register(
            "rejected_pods",
            "Pods that the kubelet rejected for lack of devices",
            metrics.rejected.clone(),
        );
        metrics
    }

    pub(crate) fn count_call(&self, call: Call, took: Duration, error: Option<&GpuError>) {
        self.count_step(call.as_str(), took, error);
    }

    /// Counts a failed wait for GPU errors. It has no duration, because the wait never ends when all is well.
    pub(crate) fn count_events(&self, error: &GpuError) {
        self.steps.get_or_create(&StepLabels { step: "events", outcome: "failed" }).inc();
        self.count_error(error);
    }

    /// Counts a call to the GPUs; `step` is one of [`STEPS`].
    pub(crate) fn count_step(&self, step: &'static str, took: Duration, error: Option<&GpuError>) {
        let outcome = if error.is_some() { "failed" } else { "done" };
        self.steps.get_or_create(&StepLabels { step, outcome }).inc();
        self.durations.get_or_create(&StepLabel { step }).observe(took.as_secs_f64());
        if let Some(error) = error {
            self.count_error(error);
        }
    }

    fn count_error(&self, error: &GpuError) {
        self.nvml_errors.get_or_create(&CodeLabel { code: error.code().as_str() }).inc();
    }

    /// Counts a slice that went to a pod without a reservation for it.
    pub(crate) fn count_mismatch(&self) {
        self.mismatches.inc();
    }

    /// Counts a pod that the kubelet rejected for lack of devices.
    pub(crate) fn count_rejection(&self) {
        self.rejected.inc();
    }

    /// Sets which pods exceed their share of a GPU's memory, and by how much.
    pub(crate) fn set_over_use(&self, pods: impl Iterator<Item = (GpuUuid, PodKey, MemoryMib)>) {
        self.devices.set_over_use(pods);
    }

    /// Replaces the series of slices, GPUs and conditions, so that those of vanished slices and GPUs end.
    pub(crate) fn set_each(
        &self,
        status: &GpuNodeStatus,
        of_slice: impl Fn(&SliceStatus) -> SliceUse,
        busy: impl Fn(&GpuUuid) -> Option<u32>,
    ) {
        self.devices.set(status, of_slice, busy);
        self.conditions.clear();
        for condition in &status.conditions {
            // The types are a closed list that has all conditions of this program.
            let kind = Condition::ALL.into_iter().find(|kind| *kind == condition.kind);
            let Some(kind) = kind else { continue };
            let labels = ConditionLabels { condition: kind, status: condition.status.as_str() };
            self.conditions.get_or_create(&labels).set(1);
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

/// All steps and outcomes, so that a counter that never counted is exported as zero.
const STEPS: [&str; 7] =
    ["observe", "create", "switch", "destroy", "set_exclusive", "limit_memory", "events"];
const OUTCOMES: [&str; 2] = ["done", "failed"];

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
    use kerf_core::contract::WantedSlice;
    use kerf_core::testing::{h100_shape, node_status, slice_status};

    #[test]
    fn steps_and_errors_are_counted_under_their_documented_names() {
        let mut registry = Registry::default();
        let metrics = Metrics::register(&mut registry);
        let error = GpuError::Call { call: "nvmlX", code: NvmlCode::InsufficientResources };
        metrics.count_step("create", Duration::from_millis(3), Some(&error));
        metrics.set_slices(&GpuNodeStatus::default());
        let (_, idle) = one_slice();
        let used = SliceUse { requested: Some(MemoryMib(7168)), busy: Some(35), ..SliceUse::default() };
        metrics.set_each(&idle, |_| used, |_| Some(50));
        metrics.set_over_use([(GpuUuid::new("GPU-0"), PodKey::new("ns", "a"), MemoryMib(2))].into_iter());
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        for line in [
            "kerf_agent_steps_total{step=\"create\",outcome=\"failed\"} 1",
            "kerf_agent_nvml_errors_total{code=\"INSUFFICIENT_RESOURCES\"} 1",
            "kerf_agent_slices{kind=\"mig\",state=\"held\"} 0",
            "kerf_agent_step_duration_seconds_count{step=\"create\"} 1",
            "kerf_agent_slice_memory_bytes{gpu=\"GPU-0\",slice=\"s1\",device=\"device-s1\",kind=\"mig\",\
             namespace=\"\",pod=\"\",container=\"\"} 10737418240",
            "kerf_agent_slice_memory_requested_bytes{gpu=\"GPU-0\",slice=\"s1\",device=\"device-s1\",kind=\"mig\",\
             namespace=\"\",pod=\"\",container=\"\"} 7516192768",
            "kerf_agent_slice_utilization_ratio{gpu=\"GPU-0\",slice=\"s1\",device=\"device-s1\",kind=\"mig\",\
             namespace=\"\",pod=\"\",container=\"\"} 0.35",
            "kerf_agent_memory_over_use_bytes{gpu=\"GPU-0\",namespace=\"ns\",pod=\"a\"} 2097152",
            "kerf_agent_gpu_utilization_ratio{gpu=\"GPU-0\"} 0.5",
            "kerf_agent_condition{condition=\"Ready\",status=\"True\"} 1",
            "kerf_agent_gpu_healthy{gpu=\"GPU-0\"} 1",
            "kerf_agent_gpu_info{gpu=\"GPU-0\",index=\"0\",model=\"H100-80GB\"} 1",
            "kerf_agent_gpu_memory_bytes{gpu=\"GPU-0\",state=\"unusable\"} 0",
            "kerf_agent_steps_total{step=\"switch\",outcome=\"failed\"} 0",
            "kerf_agent_rejected_pods_total 0",
        ] {
            assert!(text.contains(line), "{line} in {text}");
        }
    }

    /// A node with one idle slice.
    fn one_slice() -> (Vec<WantedSlice>, GpuNodeStatus) {
        let shape = h100_shape("1g.10gb", 0);
        let wanted = WantedSlice { id: "s1".into(), gpu: "GPU-0".into(), shape, reservation: None };
        let mut status = node_status(&["H100-80GB"]);
        status.slices.push(slice_status(&wanted, false));
        (vec![wanted], status)
    }

    #[test]
    fn an_idle_slice_uses_no_memory_and_a_removed_one_has_no_series() {
        let mut registry = Registry::default();
        let metrics = Metrics::register(&mut registry);
        let (_, mut status) = one_slice();
        let reported = |metrics: &Metrics, status: &GpuNodeStatus, used| {
            metrics.set_each(status, |_| SliceUse { used: MemoryMib(used), ..SliceUse::default() }, |_| None);
            let mut text = String::new();
            prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
            let used = |line: &&str| line.starts_with("kerf_agent_slice_memory_used_bytes{");
            text.lines().find(used).and_then(|line| line.rsplit(' ').next()).map(str::to_owned)
        };
        assert_eq!(reported(&metrics, &status, 0).as_deref(), Some("0"));
        assert_eq!(reported(&metrics, &status, 1).as_deref(), Some("1048576"));
        status.slices.clear();
        assert_eq!(reported(&metrics, &status, 0), None);
    }
}
