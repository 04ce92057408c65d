//! The effect of a workload on a GPU: four numbers for one workload on one GPU model.

use super::{Duty, Latency, Need};
use crate::packing::fraction::{Busy, Sharing};
use serde::{Deserialize, Serialize};

/// A workload on one GPU model.
///
/// The packing study has one number `u` for the need of a busy copy, the slope of the latency over the copies. Measured
/// curves are flat first and steep once the GPU is full, so that slope is less than the need on a full GPU. Therefore
/// there are two numbers. [`pressure`](Self::pressure) describes the bend of the curve while there is room.
/// [`need`](Self::need) is the need on a full GPU, and is compared with parts of a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Workload {
    #[serde(rename = "aloneSeconds")]
    alone: Latency,
    need: Need,
    pressure: Need,
    #[serde(default = "always")]
    duty: Duty,
}

fn always() -> Duty {
    Duty::ALWAYS
}

impl Workload {
    /// A workload in a closed loop with these measured numbers.
    #[must_use]
    pub const fn new(alone: Latency, need: Need, pressure: Need) -> Self {
        Self { alone, need, pressure, duty: Duty::ALWAYS }
    }

    /// A workload in a closed loop with only the latency alone measured.
    #[must_use]
    pub const fn assumed(alone: Latency) -> Self {
        Self::new(alone, Need::UNKNOWN, Need::UNKNOWN)
    }

    /// The latency alone on the whole GPU.
    #[must_use]
    pub const fn alone(&self) -> Latency {
        self.alone
    }

    /// The need of one busy copy on a full GPU.
    #[must_use]
    pub const fn need(&self) -> Need {
        self.need
    }

    /// The effect of one busy copy on its neighbours while the GPU is not full: 0 for none, 1 for as much as if each
    /// took its turn.
    #[must_use]
    pub const fn pressure(&self) -> Need {
        self.pressure
    }

    /// The part of the time in which it is busy while it is alone.
    #[must_use]
    pub const fn duty(&self) -> Duty {
        self.duty
    }

    /// The load of a tenant on a GPU that is shared in this way, to compare with [`Sharing::busy_limit`]. It is duty
    /// times need under MPS, and the duty alone under time slicing, rounded up.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "from 0 to 2,000")]
    pub fn busy(&self, sharing: Sharing) -> Busy {
        let need = match sharing {
            Sharing::Mps => self.need.get(),
            Sharing::TimeSlicing => 1.0,
        };
        Busy((1000.0 * self.duty.get() * need).ceil() as u16)
    }
}

#[cfg(test)]
impl Workload {
    /// The same workload, busy for this part of the time.
    pub(super) fn with_duty(self, duty: Duty) -> Self {
        Self { duty, ..self }
    }
}
