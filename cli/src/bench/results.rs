//! The measured results, as `results.json` has them. Units are seconds, joules, watts and MiB throughout.

use super::Technology;
use kerf_core::sharing::{Advice, SwitchingCost, Workload};
use serde::{Deserialize, Serialize};

/// The version of the documents in this module.
pub const VERSION: u32 = 1;

/// The results of one run of `kerf bench sharing`.
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
    /// The least time of measuring with all copies warm.
    pub measure_seconds: f64,
    /// One or two GPUs: MIG instances may be on another GPU than the shares.
    pub gpus: Vec<Gpu>,
    /// The measured points, in the order of the table.
    pub points: Vec<Point>,
    /// The points that were tried and failed.
    pub failed: Vec<Failed>,
    /// The points that were not tried.
    pub left_out: Vec<LeftOut>,
    /// The workload's numbers, from the points with one and with the most copies under MPS, or from an earlier run
    /// (`--fit`). `None` if these points are missing or contradict each other ([`fit_problem`](Self::fit_problem)).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fit: Option<Fit>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fit_problem: Option<String>,
    /// The model's prediction for every point, with the measured value.
    pub forecasts: Vec<Forecast>,
}

/// The GPU that the copies shared.
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
    /// The version of torch in the client.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub torch: Option<String>,
}

/// The figures for one technology and one number of copies.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Point {
    /// How the copies shared the GPU.
    pub technology: Technology,
    pub copies: u32,
    /// The UUID of the GPU that has the slices of all copies.
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
    /// The mean time of a turn, over all copies.
    pub mean_seconds: f64,
    /// Half of the turns took no longer.
    pub p50_seconds: f64,
    /// 95 % of the turns took no longer.
    pub p95_seconds: f64,
    /// 99 % of the turns took no longer.
    pub p99_seconds: f64,
    /// Turns per second of all copies together.
    pub per_second: f64,
    /// The number of turns that were counted.
    pub turns: u64,
    /// The length of the window that was counted.
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

/// A point that could not be measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Failed {
    pub technology: Technology,
    pub copies: u32,
    pub reason: String,
}

/// A technology, or one of its points, that was not tried.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LeftOut {
    pub technology: Technology,
    /// The number of copies; `None` for all numbers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copies: Option<u32>,
    pub reason: String,
}

/// The model's numbers, fitted to the run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Fit {
    /// The workload's numbers on this GPU model.
    pub workload: Workload,
    /// The most copies under MPS. The model was fitted to this run and to one copy alone.
    pub copies: u32,
    /// The cost of time slicing, from the most copies as time slices; `None` if there were none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub switching: Option<SwitchingCost>,
}

/// A prediction and the measured value.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Forecast {
    /// How the copies shared the GPU.
    pub technology: Technology,
    pub copies: u32,
    /// The measured mean of a turn.
    pub measured_seconds: f64,
    /// The predicted mean of a turn.
    pub predicted_seconds: f64,
    /// By how many percent the prediction is above the measurement.
    pub error_percent: f64,
    /// Whether the model was fitted to this point, so that the error proves nothing.
    pub fitted: bool,
    /// Whether the prediction is from 5 % below to 20 % above the measurement.
    pub within: bool,
}

/// The results of one run of `kerf bench profile`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProfileResults {
    pub version: u32,
    /// The start of the run (RFC 3339).
    pub at: String,
    pub gpu: Gpu,
    /// The two points: one copy, and several.
    pub points: Vec<Point>,
    /// The workload's numbers on this GPU model.
    pub workload: Workload,
    /// How to share the GPU among copies of it; `None` if not even a whole GPU serves the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub advice: Option<Advice>,
}

/// The results of one run of `kerf bench neighbours`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NeighbourResults {
    pub version: u32,
    /// The start of the run (RFC 3339).
    pub at: String,
    pub workload: String,
    pub gpu: Gpu,
    /// One row for each measured profile.
    pub rows: Vec<Neighbour>,
    /// The profiles that could not be measured, with the reason.
    pub failed: Vec<(String, String)>,
}

/// A workload in a MIG instance, alone and beside a noisy neighbour.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Neighbour {
    /// The profile of both instances.
    pub profile: String,
    /// The workload's instance, in words of kerf's record.
    pub slice: String,
    /// The neighbour's workload and its instance.
    pub neighbour: String,
    pub alone: Figures,
    pub beside: Figures,
}
