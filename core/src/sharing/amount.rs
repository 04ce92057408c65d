//! Times, rates and parts as types, so that a need is never taken for a duty, nor seconds for milliseconds.

use serde::{Deserialize, Serialize};

/// A number that is looked at when it is made or read; JSON has it as a number.
macro_rules! amount {
    ($(#[$doc:meta])* $name:ident, $make:ident, $get:ident, $range:expr, $refusal:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, PartialOrd, Serialize, Deserialize)]
        #[serde(try_from = "f64", into = "f64")]
        pub struct $name(f64);

        impl $name {
            /// From the number; `None` if it lies outside of what the type can be, or is none.
            #[must_use]
            pub fn $make(number: f64) -> Option<Self> {
                $range.contains(&number).then_some(Self(number))
            }

            /// The number.
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

/// A nanosecond and 30 years, in seconds: a latency outside is a mistake of who measured.
const LATENCIES: std::ops::RangeInclusive<f64> = 1e-9..=1e9;

amount!(
    /// A mean time from the start of an inference to its end, in seconds. A queue in front of the pod is not in it.
    Latency,
    from_seconds,
    seconds,
    LATENCIES,
    "a latency is a number of seconds above 0"
);

amount!(
    /// Inferences per second.
    Throughput,
    from_per_second,
    per_second,
    0.0..=f64::MAX,
    "a throughput is a number of inferences per second, 0 or more"
);

amount!(
    /// A part of one GPU's time that one inference needs, as a part of the inference's latency alone: 0.5 for one that
    /// leaves half of the GPU to others while it runs. Above 1 are workloads that get less done side by side than in turns.
    Need,
    new,
    get,
    0.0..=2.0,
    "a need is a part of one GPU from 0 to 2; write 0.5 if it was not measured"
);

amount!(
    /// The part of the time in which a tenant has an inference running when it is alone on the GPU, from 0 to 1.
    ///
    /// [`Duty::ALWAYS`] is a closed loop: the next inference begins when the last has ended, however long that took.
    /// Everything below is an open loop: inferences come at their own pace.
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
    /// What taking turns costs: copies under time slicing take so many times as long as one after another would.
    SwitchingCost,
    new,
    get,
    1.0..=2.0,
    "the cost of switching is a factor from 1 to 2"
);

impl Need {
    /// For a workload that was not measured (packing study, section 6): above the 0.36 of an H200, and next to the 0.52 of
    /// an A100.
    pub const UNKNOWN: Self = Self(0.5);
}

impl Duty {
    /// Always busy: a closed loop.
    pub const ALWAYS: Self = Self(1.0);
    /// Never busy.
    pub const NEVER: Self = Self(0.0);
}

impl SwitchingCost {
    /// Measured at 3, 5 and 7 copies on an A100, to 0.1 %. An H200 has 1.07; where nothing was measured, the larger is the
    /// safe side.
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
    /// `times` as long, within what a latency can be.
    pub(super) fn times(self, times: f64) -> Self {
        Self((self.0 * times).clamp(*LATENCIES.start(), *LATENCIES.end()))
    }
}

impl Throughput {
    /// Nothing gets done.
    pub const NONE: Self = Self(0.0);
}

impl std::iter::Sum for Throughput {
    fn sum<I: Iterator<Item = Self>>(iter: I) -> Self {
        Self(iter.map(|t| t.0).sum())
    }
}
