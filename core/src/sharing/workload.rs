//! What a workload does to a GPU: four numbers, of one workload on one GPU model.

use super::{Duty, Latency, Need};
use crate::packing::fraction::{Busy, Sharing};
use serde::{Deserialize, Serialize};

/// A workload on one GPU model.
///
/// The packing study has one number `u` for what a busy copy needs, the slope of the latency over the copies. Measured
/// curves are flat first and steep when the GPU is full, so that slope is less than what is needed of a full GPU. Two numbers
/// are kept: [`pressure`](Self::pressure) says how the curve bends while there is room, [`need`](Self::need) what is needed
/// when there is none, and wherever a part of a GPU is compared with what is needed of it.
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
    /// A workload in a closed loop, of which all is known.
    #[must_use]
    pub const fn new(alone: Latency, need: Need, pressure: Need) -> Self {
        Self { alone, need, pressure, duty: Duty::ALWAYS }
    }

    /// A workload in a closed loop of which only the latency alone is known.
    #[must_use]
    pub const fn assumed(alone: Latency) -> Self {
        Self::new(alone, Need::UNKNOWN, Need::UNKNOWN)
    }

    /// The same workload, busy for this part of the time.
    #[must_use]
    pub const fn with_duty(self, duty: Duty) -> Self {
        Self { duty, ..self }
    }

    /// The latency alone on the whole GPU.
    #[must_use]
    pub const fn alone(&self) -> Latency {
        self.alone
    }

    /// What one busy copy needs of a GPU that is full.
    #[must_use]
    pub const fn need(&self) -> Need {
        self.need
    }

    /// What neighbours feel of one busy copy while the GPU is not full: from 0 for nothing to 1 for as much as if each had its
    /// turn.
    #[must_use]
    pub const fn pressure(&self) -> Need {
        self.pressure
    }

    /// The part of the time in which it is busy when it is alone.
    #[must_use]
    pub const fn duty(&self) -> Duty {
        self.duty
    }

    /// What a tenant keeps busy of a GPU that is shared so, for [`Part::busy_for`](crate::packing::fraction::Part::busy_for):
    /// its duty times its need under MPS, and its duty alone where tenants take turns. Rounded up.
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
