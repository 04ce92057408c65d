//! A workload's numbers from two short runs.

use super::predict::pressure;
use super::{Latency, Need, SwitchingCost, Workload};
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Copies that ran in a closed loop on one GPU, and what they took.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Run {
    /// How many copies.
    pub copies: u32,
    /// The mean latency over all of them.
    #[serde(rename = "meanSeconds")]
    pub mean: Latency,
}

/// Why two runs say nothing about a workload.
#[derive(Debug, Clone, Copy, PartialEq, Error)]
pub enum FitError {
    /// A mean that is no positive number of seconds.
    #[error("a run has no mean latency above 0; let it go on until every copy has ended some inferences")]
    NoTime,
    /// One copy, or none, where several were to run together.
    #[error("too few copies ran together: {copies}; run 2 or more, best as many as are to share a GPU")]
    TooFewCopies {
        /// How many ran.
        copies: u32,
    },
    /// Together faster than alone, by more than a run's noise.
    #[error(
        "{copies} copies together were faster than one alone; measure the one again, warmed up and on a GPU that is idle \
         otherwise"
    )]
    FasterTogether {
        /// How many ran together.
        copies: u32,
    },
    /// More than twice as slow as one after another.
    #[error(
        "{copies} copies together took more than twice as long as they would one after another; end what else uses the \
         GPU, and see that all copies share it in the way that is measured"
    )]
    SlowerThanInTurns {
        /// How many ran together.
        copies: u32,
    },
}

/// What two short runs of the same work may differ by. A choice: runs of two minutes differ by 0.2 % (one copy on the A100:
/// 0.0880 and 0.0882 s), shorter ones by more.
const NOISE: f64 = 0.05;

impl Run {
    /// A run of `copies` with this mean in seconds.
    ///
    /// # Errors
    /// When the mean is no positive number.
    pub fn new(copies: u32, mean_seconds: f64) -> Result<Self, FitError> {
        let mean = Latency::from_seconds(mean_seconds).ok_or(FitError::NoTime)?;
        Ok(Self { copies, mean })
    }

    /// The latency together over the latency alone.
    fn slowdown(self, alone: Latency) -> Result<f64, FitError> {
        let copies = self.copies;
        let slowdown = self.mean.seconds() / alone.seconds();
        if copies < 2 {
            return Err(FitError::TooFewCopies { copies });
        }
        if slowdown < 1.0 - NOISE {
            return Err(FitError::FasterTogether { copies });
        }
        Ok(slowdown.max(1.0))
    }
}

impl Workload {
    /// From the latency of one copy alone and a run of several under MPS, without a limit of threads. In a closed loop.
    ///
    /// Take as many copies as are to share a GPU: between one copy and that many the prediction is a curve through both, at
    /// most 16 % above and 3 % below what was measured; beyond, nothing is promised but the throughput that was seen.
    ///
    /// # Errors
    /// When the runs contradict each other; the text names the remedy.
    pub fn fit(alone: Latency, together: Run) -> Result<Self, FitError> {
        let copies = together.copies;
        let slowdown = together.slowdown(alone)?;
        let need = Need::new(slowdown / f64::from(copies));
        let pressure = Need::new(pressure(slowdown, copies));
        let both = need.zip(pressure).ok_or(FitError::SlowerThanInTurns { copies })?;
        Ok(Self::new(alone, both.0, both.1))
    }
}

impl SwitchingCost {
    /// From the latency of one copy alone and a run of several that took turns.
    ///
    /// Copies that leave the GPU idle in between fill each other's gaps: they take less than one after another would, and
    /// count as if switching cost nothing.
    ///
    /// # Errors
    /// When the runs contradict each other; the text names the remedy.
    pub fn fit(alone: Latency, together: Run) -> Result<Self, FitError> {
        let copies = together.copies;
        let factor = together.slowdown(alone)? / f64::from(copies);
        Self::new(factor.max(1.0)).ok_or(FitError::SlowerThanInTurns { copies })
    }
}
