//! Times, rates and parts as types, so that a need is never used as a duty, nor seconds as milliseconds.

use serde::{Deserialize, Serialize};

/// A number that is checked when it is made or parsed. In JSON it is a plain number.
macro_rules! amount {
    ($(#[$doc:meta])* $name:ident, $make:ident, $get:ident, $range:expr, $refusal:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, PartialOrd, Serialize, Deserialize)]
        #[serde(try_from = "f64", into = "f64")]
        pub struct $name(f64);

        impl $name {
            /// Checks the number; `None` if it is outside the type's range, or not a number.
            #[must_use]
            pub fn $make(number: f64) -> Option<Self> {
                $range.contains(&number).then_some(Self(number))
            }

            /// The number in the unit of the type.
            #[must_use]
            pub const fn $get(self) -> f64 {
                self.0
            }
        }

        impl TryFrom<f64> for $name {
            type Error = &'static str;

            fn try_from(number: f64) -> Result<Self, Self::Error> {
                Self::$make(number).ok_or($refusal)
            }
        }

        impl From<$name> for f64 {
            fn from(amount: $name) -> Self {
                amount.0
            }
        }
    };
}

/// A nanosecond and 30 years, in seconds. A latency outside this range is a measuring error.
const LATENCIES: std::ops::RangeInclusive<f64> = 1e-9..=1e9;

amount!(
    /// The mean time from the start of an inference to its end, in seconds, without a queue in front of the pod.
    Latency,
    from_seconds,
    seconds,
    LATENCIES,
    "a latency is a number of seconds above 0"
);

amount!(
    /// The number of inferences per second.
    Throughput,
    from_per_second,
    per_second,
    0.0..=f64::MAX,
    "a throughput is a number of inferences per second, 0 or more"
);

amount!(
    /// The part of one GPU that one inference needs while it runs, as a part of its latency alone: 0.5 leaves half of
    /// the GPU to others. It is above 1 for workloads that achieve less side by side than in turns.
    Need,
    new,
    get,
    0.0..=2.0,
    "a need is a part of one GPU from 0 to 2; write 0.5 if it was not measured"
);

amount!(
    /// The part of the time in which a tenant has an inference running while it is alone on the GPU, from 0 to 1.
    ///
    /// [`Duty::ALWAYS`] is a closed loop: the next inference starts when the last has ended, however long that took.
    /// Every lower value is an open loop: inferences come at their own rate.
    Duty,
    new,
    get,
    0.0..=1.0,
    "a duty is a part of the time from 0 to 1"
);

amount!(
    /// The part of one GPU that a MIG instance has.
    GpuPart,
    new,
    get,
    f64::MIN_POSITIVE..=1.0,
    "a part of a GPU is above 0 and at most 1"
);

amount!(
    /// The cost of taking turns: copies under time slicing take this many times as long as one after another would.
    SwitchingCost,
    new,
    get,
    1.0..=2.0,
    "the cost of switching is a factor from 1 to 2"
);

impl Need {
    /// The value for a workload that was not measured (packing study, section 6): above the 0.36 of an H200, and close
    /// to the 0.52 of an A100.
    pub const UNKNOWN: Self = Self(0.5);
}

impl Duty {
    /// Always busy, as in a closed loop.
    pub const ALWAYS: Self = Self(1.0);
}

impl SwitchingCost {
    /// Measured at 3, 5 and 7 copies on an A100, to 0.1 %. It also serves for models that were not measured, because
    /// the larger cost is the safe assumption.
    pub const A100: Self = Self(1.11);
    /// Measured at 3 and 7 copies on an H200.
    pub const H200: Self = Self(1.07);
}

impl Default for SwitchingCost {
    fn default() -> Self {
        Self::A100
    }
}

impl Latency {
    /// The latency multiplied by `times`, within the range of a latency.
    pub(super) fn times(self, times: f64) -> Self {
        Self((self.0 * times).clamp(*LATENCIES.start(), *LATENCIES.end()))
    }
}

impl Throughput {
    /// The throughput of zero inferences per second.
    pub const NONE: Self = Self(0.0);
}

impl std::iter::Sum for Throughput {
    fn sum<I: Iterator<Item = Self>>(iter: I) -> Self {
        Self(iter.map(|t| t.0).sum())
    }
}
