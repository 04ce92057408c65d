//! What was measured, as `results.json` has it. Seconds, joules, watts and MiB throughout.

use super::Technology;
use kerf_core::sharing::{Advice, SwitchingCost, Workload};
use serde::{Deserialize, Serialize};

/// The version of these documents.
pub const VERSION: u32 = 1;

/// All of a run of `kerf bench sharing`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Results {
    /// [`VERSION`].
    pub version: u32,
    /// When it began (RFC 3339).
    pub at: String,
    /// What the clients kept busy: `yolos`, `llm`, `burn` or `command`.
    pub workload: String,
    /// The command of the workload `command`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    /// How long each copy ran before it counted as warm.
    pub warm_up_seconds: f64,
    /// How long at least was measured while all copies were warm.
    pub measure_seconds: f64,
    /// The GPUs, one or two: MIG instances may be of another than shares.
    pub gpus: Vec<Gpu>,
    /// What was measured, in the order of the table.
    pub points: Vec<Point>,
    /// What was tried in vain.
    pub failed: Vec<Failed>,
    /// What was not tried.
    pub left_out: Vec<LeftOut>,
    /// The workload's numbers from the points with one and with the most copies under MPS; absent where these points are, or
    /// where they contradict each other ([`fit_problem`](Self::fit_problem)). Or an earlier run's (`--fit`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fit: Option<Fit>,
    /// Why there is no fit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fit_problem: Option<String>,
    /// What the model says of every point, beside what was measured.
    pub forecasts: Vec<Forecast>,
}

/// The GPU that the copies shared.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Gpu {
    /// Its UUID.
    pub uuid: String,
    /// Its node.
    pub node: String,
    /// The short name of its model.
    pub model: String,
    /// Its memory.
    pub memory_mib: u64,
    /// The product's name, by the client's CUDA.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub product: Option<String>,
    /// The driver's version, by the client's NVML.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
    /// The version of torch in the client.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub torch: Option<String>,
}

/// So many copies under one technology.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Point {
    /// How they shared the GPU.
    pub technology: Technology,
    /// How many there were.
    pub copies: u32,
    /// The UUID of the GPU that all of them had slices of.
    pub gpu: String,
    /// What each was given, by kerf's record (`10gb MPS share with 14 % of the compute`).
    pub slice: String,
    /// The part of the GPU's threads that each might use, in percent, 100 where it was not limited; absent but for MPS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threads_percent: Option<u8>,
    /// The profile of the MIG instances; absent but for MIG.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
    /// What they came to.
    #[serde(flatten)]
    pub figures: Figures,
}

/// What clients came to while all of them were warm and none had ended.
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
    /// Turns a second of all copies together.
    pub per_second: f64,
    /// How many turns were counted.
    pub turns: u64,
    /// For how long.
    pub window_seconds: f64,
    /// The most memory of the GPU that was in use, by NVML; absent, as what follows, where NVML did not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_mib: Option<f64>,
    /// The GPU's mean power.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power_watts: Option<f64>,
    /// The GPU's energy over the turns, by NVML's counter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub energy_per_turn_joules: Option<f64>,
}

/// A point that could not be measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Failed {
    /// How they were to share the GPU.
    pub technology: Technology,
    /// How many there were to be.
    pub copies: u32,
    /// What was in the way.
    pub reason: String,
}

/// What was not tried.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LeftOut {
    /// The technology.
    pub technology: Technology,
    /// How many copies; absent for any number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copies: Option<u32>,
    /// Why.
    pub reason: String,
}

/// The model's numbers, fitted to the run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Fit {
    /// The workload on this GPU model.
    pub workload: Workload,
    /// The most copies under MPS: the run that it was fitted to, beside the one alone.
    pub copies: u32,
    /// What taking turns costs, from the most copies as time slices; absent where there were none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub switching: Option<SwitchingCost>,
}

/// A prediction beside what was measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Forecast {
    /// How the copies shared the GPU.
    pub technology: Technology,
    /// How many there were.
    pub copies: u32,
    /// The measured mean.
    pub measured_seconds: f64,
    /// The predicted mean.
    pub predicted_seconds: f64,
    /// By how many percent the prediction is above what was measured.
    pub error_percent: f64,
    /// Whether the point was fitted to, so that it says nothing of the model.
    pub fitted: bool,
    /// Whether the prediction is from 5 % below to 20 % above what was measured.
    pub within: bool,
}

/// All of a run of `kerf bench profile`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProfileResults {
    /// [`VERSION`].
    pub version: u32,
    /// When it began (RFC 3339).
    pub at: String,
    /// The GPU.
    pub gpu: Gpu,
    /// What was measured: one copy, and several.
    pub points: Vec<Point>,
    /// The workload on this GPU model.
    pub workload: Workload,
    /// How to share the GPU among copies of it; absent where not even a whole one serves it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub advice: Option<Advice>,
}

/// All of a run of `kerf bench neighbours`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NeighbourResults {
    /// [`VERSION`].
    pub version: u32,
    /// When it began (RFC 3339).
    pub at: String,
    /// What was measured.
    pub workload: String,
    /// The GPU.
    pub gpu: Gpu,
    /// One for each profile.
    pub rows: Vec<Neighbour>,
    /// The profiles of which there is no row, and why.
    pub failed: Vec<(String, String)>,
}

/// A workload in a MIG instance, alone and beside a noisy neighbour.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Neighbour {
    /// The profile of both.
    pub profile: String,
    /// The instance, by kerf's record.
    pub slice: String,
    /// The neighbour's.
    pub neighbour: String,
    /// Alone on the GPU.
    pub alone: Figures,
    /// Beside the neighbour.
    pub beside: Figures,
}
