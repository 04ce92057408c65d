//! The ways of sharing that are measured, as the flags and the rows name them.

use clap::ValueEnum;
use kerf_core::kind::{IsolationClass, Kind};
use serde::{Deserialize, Serialize};
use std::fmt;

/// A way to share a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Technology {
    /// In turns.
    TimeSlicing,
    /// Side by side behind an MPS daemon, each with as many of the threads as the node lets all of them have.
    Mps,
    /// The same with a limit of threads for each.
    MpsLimited,
    /// One copy with the GPU to itself.
    Whole,
    /// A MIG instance each.
    Mig,
}

impl Technology {
    /// All technologies, in the order of the rows.
    pub const ALL: [Self; 5] = [Self::TimeSlicing, Self::Mps, Self::MpsLimited, Self::Whole, Self::Mig];

    /// The name in flags, rows and names of objects.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::TimeSlicing => "time-slicing",
            Self::Mps => "mps",
            Self::MpsLimited => "mps-limited",
            Self::Whole => "whole",
            Self::Mig => "mig",
        }
    }

    /// The kind of slice that every copy must get.
    #[must_use]
    pub const fn kind(self) -> Kind {
        match self {
            Self::TimeSlicing => Kind::TimeSlicing,
            Self::Mps | Self::MpsLimited => Kind::Mps,
            Self::Whole => Kind::Whole,
            Self::Mig => Kind::Mig,
        }
    }

    /// The isolation class for which the shipped policy chooses this kind, on a GPU that offers it.
    #[must_use]
    pub const fn isolation(self) -> IsolationClass {
        match self {
            Self::TimeSlicing => IsolationClass::None,
            Self::Mps | Self::MpsLimited => IsolationClass::Memory,
            Self::Whole | Self::Mig => IsolationClass::Hardware,
        }
    }
}

impl fmt::Display for Technology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
