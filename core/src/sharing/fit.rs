//! The numbers of a workload, from two short runs.

use super::predict::pressure;
use super::{Latency, Need, SwitchingCost, Workload};
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Copies that ran in a closed loop on one GPU, with their latency.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Run {
    /// The number of copies that ran together.
    pub copies: u32,
    /// The mean latency over all copies.
    #[serde(rename = "meanSeconds")]
    pub mean: Latency,
}

/// Why two runs do not describe a workload.
#[derive(Debug, Clone, Copy, PartialEq, Error)]
pub enum FitError {
    /// The mean is not a positive number of seconds.
    #[error("a run has no mean latency above 0; let it go on until every copy has ended some inferences")]
    NoTime,
    /// At most one copy ran in a run that needs several.
    #[error("too few copies ran together: {copies}; run 2 or more, best as many as are to share a GPU")]
    TooFewCopies {
        /// The number of copies that ran.
        copies: u32,
    },
    /// The copies were faster together than alone, by more than the noise of a run.
    #[error(
        "{copies} copies together were faster than one alone; measure the one again, warmed up and on a GPU that is idle \
         otherwise"
    )]
    FasterTogether {
        /// The number of copies that ran together.
        copies: u32,
    },
    /// The copies took more than twice as long as one after another.
    #[error(
        "{copies} copies together took more than twice as long as they would one after another; end what else uses the \
         GPU, and see that all copies share it in the way that is measured"
    )]
    SlowerThanInTurns {
        /// The number of copies that ran together.
        copies: u32,
    },
}

/// The accepted difference between two short runs of the same work. The value is a choice: runs of two minutes differ
/// by 0.2 % (one copy on the A100: 0.0880 and 0.0882 s), and shorter ones by more.
const NOISE: f64 = 0.05;

impl Run {
    /// A run of `copies` with this mean latency in seconds.
    ///
    /// # Errors
    /// If the mean is not a positive number.
    pub fn new(copies: u32, mean_seconds: f64) -> Result<Self, FitError> {
        let mean = Latency::from_seconds(mean_seconds).ok_or(FitError::NoTime)?;
        Ok(Self { copies, mean })
    }

    /// The latency together divided by the latency alone.
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
    /// Computes the numbers from the latency of one copy alone and a run of several copies under MPS, in a closed loop
    /// and without a limit of threads.
    ///
    /// Run as many copies as will share a GPU. Up to that number the prediction is a curve through both runs, at most
    /// 16 % above and 3 % below measured values. Beyond it, only the measured throughput is certain.
    ///
    /// # Errors
    /// If the runs contradict each other; the text names the remedy.
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
    /// Computes the cost from the latency of one copy alone and a run of several copies in turns.
    ///
    /// Copies that leave the GPU idle in between fill each other's gaps. They take less time than one after another,
    /// and count as if switching cost nothing.
    ///
    /// # Errors
    /// If the runs contradict each other; the text names the remedy.
    pub fn fit(alone: Latency, together: Run) -> Result<Self, FitError> {
        let copies = together.copies;
        let factor = together.slowdown(alone)? / f64::from(copies);
        Self::new(factor.max(1.0)).ok_or(FitError::SlowerThanInTurns { copies })
    }
}
