//! The measured results, as `results.json` has them. Units are seconds, joules, watts and MiB throughout.

use super::Technology;
use kerf_core::sharing::{Advice, SwitchingCost, Workload};
use serde::{Deserialize, Serialize};

pub const VERSION: u32 = 1;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Results {
    pub version: u32,
    /// The start of the run (RFC 3339).
    pub at: String,
    /// The workload of the clients: `yolos`, `llm`, `burn` or `command`.
    pub workload: String,
    /// The command and arguments of the workload `command`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    /// How long each copy ran before it counted as warm.
    pub warm_up_seconds: f64,
    pub measure_seconds: f64,
    /// The GPUs of the run. There may be two, because MIG instances may be on another GPU than the shares.
    pub gpus: Vec<Gpu>,
    pub points: Vec<Point>,
    pub failed: Vec<Failed>,
    pub left_out: Vec<LeftOut>,
    /// The workload's numbers, from the points with one and with the most copies under MPS, or from an earlier run
    /// (`--fit`). `None` if these points are missing or contradict each other ([`fit_problem`](Self::fit_problem)).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fit: Option<Fit>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fit_problem: Option<String>,
    pub forecasts: Vec<Forecast>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Gpu {
    pub uuid: String,
    pub node: String,
    /// The short model name, such as kerf's catalog has.
    pub model: String,
    pub memory_mib: u64,
    /// The product name that the client's CUDA reports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub product: Option<String>,
    /// The driver version that the client's NVML reports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub torch: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Point {
    pub technology: Technology,
    pub copies: u32,
    pub gpu: String,
    /// The slice that kerf assigned to a copy, in words (`10gb MPS share with 14 % of the compute`).
    pub slice: String,
    /// The percentage of the GPU's threads that each copy may use, 100 without a limit; `None` for other kinds than
    /// MPS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threads_percent: Option<u8>,
    /// The profile of the MIG instances; `None` for other kinds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
    #[serde(flatten)]
    pub figures: Figures,
}

/// The figures of clients for the time in which all were warm and none had ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Figures {
    pub mean_seconds: f64,
    pub p50_seconds: f64,
    pub p95_seconds: f64,
    pub p99_seconds: f64,
    pub per_second: f64,
    pub turns: u64,
    pub window_seconds: f64,
    /// The largest GPU memory in use that NVML reported. This and the next two are `None` if NVML did not report them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_mib: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power_watts: Option<f64>,
    /// The GPU's energy per turn of all copies, by NVML's counter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub energy_per_turn_joules: Option<f64>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Failed {
    pub technology: Technology,
    pub copies: u32,
    pub reason: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LeftOut {
    pub technology: Technology,
    /// The number of copies; `None` for all numbers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copies: Option<u32>,
    pub reason: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Fit {
    pub workload: Workload,
    /// The most copies under MPS. The model was fitted to this run and to one copy alone.
    pub copies: u32,
    /// The cost of time slicing, from the most copies as time slices; `None` if there were none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub switching: Option<SwitchingCost>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Forecast {
    pub technology: Technology,
    pub copies: u32,
    pub measured_seconds: f64,
    pub predicted_seconds: f64,
    /// By how many percent the prediction is above the measurement.
    pub error_percent: f64,
    /// Whether the model was fitted to this point. Then the error proves nothing.
    pub fitted: bool,
    /// Whether the prediction is from 5 % below to 20 % above the measurement.
    pub within: bool,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProfileResults {
    pub version: u32,
    pub at: String,
    pub gpu: Gpu,
    pub points: Vec<Point>,
    pub workload: Workload,
    /// How to share the GPU among copies of it; `None` if not even a whole GPU serves the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub advice: Option<Advice>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NeighbourResults {
    pub version: u32,
    pub at: String,
    pub workload: String,
    pub gpu: Gpu,
    pub rows: Vec<Neighbour>,
    pub failed: Vec<(String, String)>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Neighbour {
    pub profile: String,
    pub slice: String,
    pub neighbour: String,
    pub alone: Figures,
    pub beside: Figures,
}
