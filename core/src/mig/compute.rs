//! Compute instances: parts of one GPU instance's compute slices. They share its memory and its faults.

use super::{Profile, UnknownProfile};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use thiserror::Error;

/// The profile of a compute instance: `1c.3g.40gb` is one compute slice of a `3g.40gb`. A compute instance with all
/// slices is written like its GPU instance: `3g.40gb`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ComputeProfile {
    compute: u8,
    gpu_profile: Profile,
}

/// The starts of compute instances with `compute` slices in a GPU instance with `slices` compute slices. As many fit at
/// a time as NVIDIA's guide lists (`nvidia-smi mig -lcip`). The places are assumed to be those of GPU instances with as
/// many slices.
const fn starts(slices: u8, compute: u8) -> &'static [u8] {
    match (slices, compute) {
        (1, 1) | (2, 2) | (3, 2 | 3) | (4, 4) | (7, 4 | 7) => &[0],
        (2, 1) => &[0, 1],
        (3, 1) => &[0, 1, 2],
        (4, 1) => &[0, 1, 2, 3],
        (4, 2) => &[0, 2],
        (7, 1) => &[0, 1, 2, 3, 4, 5, 6],
        (7, 2) => &[0, 2, 4],
        (7, 3) => &[0, 4],
        _ => &[],
    }
}

impl ComputeProfile {
    /// The profile with `compute` slices of a GPU instance of profile `gpu_profile`; `None` if that offers no such number.
    #[must_use]
    pub const fn new(compute: u8, gpu_profile: Profile) -> Option<Self> {
        if starts(gpu_profile.compute(), compute).is_empty() {
            None
        } else {
            Some(Self { compute, gpu_profile })
        }
    }

    /// The profile that takes all of a GPU instance; `None` if no such GPU instance exists.
    #[must_use]
    pub const fn full(gpu_profile: Profile) -> Option<Self> {
        Self::new(gpu_profile.compute(), gpu_profile)
    }

    /// All profiles in a GPU instance of profile `gpu_profile`, ordered by slices. Hopper's second profile with one slice and
    /// more multiprocessors is left out, because it has no name of its own.
    pub fn all(gpu_profile: Profile) -> impl Iterator<Item = Self> {
        (1..=gpu_profile.compute()).filter_map(move |compute| Self::new(compute, gpu_profile))
    }

    /// The number of compute slices: the C of `Cc.Gg.Mgb`.
    #[must_use]
    pub const fn compute(self) -> u8 {
        self.compute
    }

    /// The profile of its GPU instance.
    #[must_use]
    pub const fn gpu_profile(self) -> Profile {
        self.gpu_profile
    }

    /// The compute slices of the GPU instance at which it may start, ascending. As many instances fit beside each
    /// other.
    #[must_use]
    pub const fn starts(self) -> &'static [u8] {
        starts(self.gpu_profile.compute(), self.compute)
    }
}

impl fmt::Display for ComputeProfile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.compute != self.gpu_profile.compute() {
            write!(f, "{}c.", self.compute)?;
        }
        write!(f, "{}", self.gpu_profile)
    }
}

/// The error for a text that is no compute instance's profile.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum UnknownComputeProfile {
    /// The text does not have the form of a profile.
    #[error("{0:?} is no compute instance profile; write it like 1c.3g.40gb, or 3g.40gb for all of it")]
    Malformed(String),
    /// The GPU instance offers no compute instance with this number of slices.
    #[error("a {1} offers no compute instance of {0} slices; write one of {offered}", offered = offered(*.1))]
    NotOffered(u8, Profile),
}

/// The profiles that a GPU instance offers, for a message.
fn offered(gpu_profile: Profile) -> String {
    ComputeProfile::all(gpu_profile).map(|profile| profile.to_string()).collect::<Vec<_>>().join(", ")
}

impl FromStr for ComputeProfile {
    type Err = UnknownComputeProfile;

    /// Parses the grammar of go-nvlib's `pkg/nvlib/device/mig_profile.go`: `[Cc.]Gg.Mgb[extras]`.
    fn from_str(text: &str) -> Result<Self, UnknownComputeProfile> {
        let malformed = || UnknownComputeProfile::Malformed(text.to_owned());
        let profile = |text: &str| text.parse().map_err(|UnknownProfile(_)| malformed());
        let (compute, gpu_profile): (u8, Profile) = match text.split_once("c.") {
            None => profile(text).map(|gpu_profile: Profile| (gpu_profile.compute(), gpu_profile))?,
            Some((digits, gpu_profile)) => {
                let plain = digits.bytes().all(|b| b.is_ascii_digit()) && !digits.starts_with('0');
                (digits.parse().ok().filter(|_| plain).ok_or_else(malformed)?, profile(gpu_profile)?)
            }
        };
        Self::new(compute, gpu_profile).ok_or(UnknownComputeProfile::NotOffered(compute, gpu_profile))
    }
}

/// A compute instance at its place in its GPU instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ComputeInstance {
    /// The first compute slice that it takes.
    pub start: u8,
    /// The number of compute slices that it takes.
    pub compute: u8,
}

impl ComputeInstance {
    /// Whether both take some compute slice in common.
    #[must_use]
    pub fn overlaps(self, other: Self) -> bool {
        self.start < other.start + other.compute && other.start < self.start + self.compute
    }
}

/// Why a compute instance cannot be added to a geometry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum ComputeIllegal {
    /// The GPU instance offers no compute instance with this number of slices.
    #[error("a {1} offers no compute instance of {0} slices")]
    NotOffered(u8, Profile),
    /// The profile cannot start at this compute slice.
    #[error("{0} cannot start at compute slice {1}")]
    NoSuchStart(ComputeProfile, u8),
    /// Another compute instance takes some of these slices.
    #[error("compute slices {0} to {1} are taken")]
    Taken(u8, u8),
}

/// Compute instances that can exist together in a GPU instance. An illegal value of this type cannot be made.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ComputeGeometry {
    gpu_profile: Profile,
    instances: Vec<ComputeInstance>,
}

impl ComputeGeometry {
    /// The geometry of a GPU instance without compute instances.
    #[must_use]
    pub fn empty(gpu_profile: Profile) -> Self {
        Self { gpu_profile, instances: Vec::new() }
    }

    /// The geometry of these compute instances; an error if they cannot exist together.
    pub fn from_instances(
        gpu_profile: Profile,
        instances: impl IntoIterator<Item = ComputeInstance>,
    ) -> Result<Self, ComputeIllegal> {
        instances
            .into_iter()
            .try_fold(Self::empty(gpu_profile), |geometry, i| geometry.place(i.compute, i.start))
    }

    /// This geometry with one more compute instance of `compute` slices. The sum of the slices needs no check, because
    /// instances that do not overlap cannot exceed it.
    pub fn place(mut self, compute: u8, start: u8) -> Result<Self, ComputeIllegal> {
        let profile = ComputeProfile::new(compute, self.gpu_profile)
            .ok_or(ComputeIllegal::NotOffered(compute, self.gpu_profile))?;
        if !profile.starts().contains(&start) {
            return Err(ComputeIllegal::NoSuchStart(profile, start));
        }
        let wanted = ComputeInstance { start, compute };
        if self.instances.iter().any(|other| other.overlaps(wanted)) {
            return Err(ComputeIllegal::Taken(start, start + compute - 1));
        }
        self.instances.push(wanted);
        self.instances.sort_unstable();
        Ok(self)
    }

    /// The profile of the GPU instance.
    #[must_use]
    pub fn gpu_profile(&self) -> Profile {
        self.gpu_profile
    }

    /// The compute instances, ordered by their starts.
    #[must_use]
    pub fn instances(&self) -> &[ComputeInstance] {
        &self.instances
    }

    /// The number of taken compute slices.
    #[must_use]
    pub fn compute(&self) -> u8 {
        self.instances.iter().map(|i| i.compute).sum()
    }
}

#[cfg(test)]
#[path = "compute_tests.rs"]
mod tests;
