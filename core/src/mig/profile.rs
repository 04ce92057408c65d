//! The name of a MIG profile, as in `1g.10gb` or `1g.10gb+me`.

use crate::units::SizeGb;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use thiserror::Error;

/// The engines of a profile, beside compute and memory.
///
/// The suffixes are those of the MIG user guide: `+me` for the media engines, `+me.all` for all of them, `-me` for
/// none, and `+gfx` for graphics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Extras {
    /// No suffix: the profile's ordinary engines.
    Plain,
    /// `+me`: the one instance that has the media engines.
    Media,
    /// `+me.all`: all media engines in one instance.
    AllMedia,
    /// `-me`: an instance without media engines.
    NoMedia,
    /// `+gfx`: an instance that can run graphics.
    Graphics,
}

impl Extras {
    const SUFFIXES: [(Self, &'static str); 5] = [
        (Self::AllMedia, "+me.all"),
        (Self::Media, "+me"),
        (Self::NoMedia, "-me"),
        (Self::Graphics, "+gfx"),
        (Self::Plain, ""),
    ];
}

/// The profile of a GPU instance with a full-size compute instance: compute slices, nominal memory, extras.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Profile {
    compute: u8,
    size: SizeGb,
    extras: Extras,
}

impl Profile {
    /// The profile with `compute` slices and `size` GB, without extras.
    #[must_use]
    pub const fn plain(compute: u8, size: SizeGb) -> Self {
        Self { compute, size, extras: Extras::Plain }
    }

    /// The same profile with other extras.
    #[must_use]
    pub const fn with_extras(self, extras: Extras) -> Self {
        Self { extras, ..self }
    }

    /// The number of compute slices: the G of `Gg.Mgb`.
    #[must_use]
    pub const fn compute(self) -> u8 {
        self.compute
    }

    /// The nominal memory in GB: the M of `Gg.Mgb`.
    #[must_use]
    pub const fn size(self) -> SizeGb {
        self.size
    }

    /// Whether an instance takes engines that only one instance of a GPU can have: the media extension, or all media
    /// engines (MIG user guide: one instance may include media extensions).
    #[must_use]
    pub const fn claims_media(self) -> bool {
        matches!(self.extras, Extras::Media | Extras::AllMedia)
    }

    /// Whether the profile has no extras.
    #[must_use]
    pub fn is_plain(self) -> bool {
        self.extras == Extras::Plain
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let suffix = Extras::SUFFIXES.iter().find(|(e, _)| *e == self.extras).map_or("", |(_, s)| s);
        write!(f, "{}g.{}gb{suffix}", self.compute, self.size.0)
    }
}

/// The error for a text that is no MIG profile; it holds the text.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{0:?} is no MIG profile; write it like 1g.10gb or 1g.10gb+me")]
pub struct UnknownProfile(pub String);

impl FromStr for Profile {
    type Err = UnknownProfile;

    /// Parses the grammar of go-nvlib's `pkg/nvlib/device/mig_profile.go`, for profiles with a full-size compute
    /// instance.
    fn from_str(text: &str) -> Result<Self, UnknownProfile> {
        let unknown = || UnknownProfile(text.to_owned());
        let number = |digits: &str| match digits.as_bytes() {
            [b'1'..=b'9', rest @ ..] if rest.iter().all(u8::is_ascii_digit) => digits.parse::<u32>().ok(),
            _ => None,
        };
        let (compute, rest) = text.split_once("g.").ok_or_else(unknown)?;
        let (size, suffix) = rest.split_once("gb").ok_or_else(unknown)?;
        let (extras, _) = Extras::SUFFIXES.into_iter().find(|(_, s)| *s == suffix).ok_or_else(unknown)?;
        let compute = number(compute).and_then(|c| u8::try_from(c).ok()).ok_or_else(unknown)?;
        let size = number(size).map(SizeGb).ok_or_else(unknown)?;
        Ok(Self { compute, size, extras })
    }
}

impl From<Profile> for String {
    fn from(profile: Profile) -> Self {
        profile.to_string()
    }
}

impl TryFrom<String> for Profile {
    type Error = UnknownProfile;

    fn try_from(text: String) -> Result<Self, UnknownProfile> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn texts_that_are_no_profile_are_refused() {
        for text in [
            "",
            "1g",
            "10gb",
            "0g.10gb",
            "1g.0gb",
            "01g.10gb",
            "1g.10gb+xx",
            "1g.10gb+me+me",
            "1c.1g.10gb",
            "999g.1gb",
        ] {
            assert!(text.parse::<Profile>().is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn profiles_are_read_as_they_are_written(compute in 1_u8..8, size in 1_u32..300, extras in 0_usize..5) {
            let profile = Profile::plain(compute, SizeGb(size)).with_extras(Extras::SUFFIXES[extras].0);
            prop_assert_eq!(profile.to_string().parse::<Profile>(), Ok(profile));
        }
    }
}
