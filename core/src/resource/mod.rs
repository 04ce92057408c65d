//! Every extended resource name that kerf emits, accepts or registers.
//!
//! The names are those that users know: those of NVIDIA's device plugin for MIG (k8s-device-plugin `internal/resource`)
//! and those of nos for shares. A name guarantees a minimum; the request document contains what the user asked for.

mod plugin_name;

pub use plugin_name::PluginName;

use crate::keys::SIZE_PREFIX;
use crate::kind::Kind;
use crate::mig::{ComputeProfile, Profile, catalog};
use crate::nvidia_keys::{GPU, GPU_MPS, GPU_SHARED, MIG_PREFIX, SHARED};
use crate::quantity::{SizeError, named_size};
use crate::units::SizeGb;
use serde::{Deserialize, Deserializer, Serialize};
use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;
use thiserror::Error;

const SHARE_PREFIX: &str = "nvidia.com/gpu-";
/// Separates a name of NVIDIA's device plugin from a kind; no resource name contains it.
const KIND_MARK: char = '=';

/// The sizes of shares that have a resource name, in GB, ascending.
///
/// Each name costs a socket in every agent and a key in every node's status, so the list is short and closed: a request
/// between two sizes takes the larger. It has every GB up to 12, and the memory sizes of common GPUs and their halves.
pub const SHARE_SIZES: [SizeGb; 24] = {
    const GB: [u32; 24] =
        [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 14, 16, 18, 20, 22, 24, 32, 40, 48, 64, 80, 96];
    let mut sizes = [SizeGb(0); 24];
    let mut i = 0;
    while i < GB.len() {
        sizes[i] = SizeGb(GB[i]);
        i += 1;
    }
    sizes
};

/// The sizes with a neutral name, in GB, ascending: those of shares, and those of GPUs larger than any share.
pub const NEUTRAL_SIZES: [SizeGb; 28] = {
    const LARGER: [u32; 4] = [141, 180, 192, 278];
    let mut sizes = [SizeGb(0); 28];
    let mut i = 0;
    while i < sizes.len() {
        sizes[i] = if i < SHARE_SIZES.len() { SHARE_SIZES[i] } else { SizeGb(LARGER[i - SHARE_SIZES.len()]) };
        i += 1;
    }
    sizes
};

/// The smallest size with a neutral name that is at least `size`, if there is one.
#[must_use]
pub fn neutral_size(size: SizeGb) -> Option<SizeGb> {
    NEUTRAL_SIZES.into_iter().find(|step| *step >= size)
}

/// The smallest share size with a name that is at least `size`, if there is one.
#[must_use]
pub fn share_size(size: SizeGb) -> Option<SizeGb> {
    SHARE_SIZES.into_iter().find(|s| *s >= size)
}

/// A resource name that an admitted pod has in its limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum ResourceName {
    /// `nvidia.com/mig-<profile>`, with `+` written as `.`.
    Mig(Profile),
    /// `nvidia.com/mig-<C>c.<profile>`: a compute instance that shares its GPU instance with others.
    Compute(ComputeProfile),
    /// `nvidia.com/mig-<profile>.shared`: one of a GPU instance's equal time slices, whose number the policy fixes.
    MigReplica(Profile),
    /// `nvidia.com/gpu`: a whole GPU, with MIG mode off.
    Whole,
    /// `nvidia.com/gpu.shared`: one of a GPU's equal time slices, whose number the policy fixes.
    Replica,
    /// `nvidia.com/gpu.mps`: one of a GPU's equal MPS shares, whose number the policy fixes. The name differs from that
    /// of a whole GPU, so that the kubelet never picks a share for a pod that has reserved a GPU.
    MpsReplica,
    /// `nvidia.com/gpu-<N>gb`: an MPS share of N GiB.
    Mps(SizeGb),
    /// `nvidia.com/gpu-<N>gb.shared`: a time slice of N GiB.
    TimeSlicing(SizeGb),
    /// `kerf.dev/gpu-<N>gb`: a slice of a size in [`NEUTRAL_SIZES`]; its kind is chosen together with the node.
    Neutral(SizeGb),
    /// A name of NVIDIA's device plugin, with the kind that a static node serves under it. It is used if the name does
    /// not say the kind: an MPS replica or a MIG instance as `nvidia.com/gpu`. Limits have the plugin's name alone;
    /// kerf's own documents have the kind after it.
    Plugin(PluginName, Kind),
}

impl ResourceName {
    /// The kind of slice that the name means; `None` for a neutral name.
    #[must_use]
    pub fn kind(self) -> Option<Kind> {
        Some(match self {
            Self::Mig(_) | Self::Compute(_) | Self::MigReplica(_) => Kind::Mig,
            Self::Whole => Kind::Whole,
            Self::Mps(_) | Self::MpsReplica => Kind::Mps,
            Self::TimeSlicing(_) | Self::Replica => Kind::TimeSlicing,
            Self::Neutral(_) => return None,
            Self::Plugin(_, kind) => kind,
        })
    }

    /// Whether the kind of slice is chosen together with the node.
    #[must_use]
    pub fn is_neutral(self) -> bool {
        matches!(self, Self::Neutral(_))
    }

    /// Whether only static nodes, which NVIDIA's device plugin serves, have this name.
    #[must_use]
    pub fn is_plugins(self) -> bool {
        matches!(self, Self::Plugin(..))
    }

    /// The name of a share of `size` by `kind`; `None` for kinds that make no shares.
    #[must_use]
    pub fn share(kind: Kind, size: SizeGb) -> Option<Self> {
        match kind {
            Kind::Mig | Kind::Whole => None,
            Kind::Mps => Some(Self::Mps(size)),
            Kind::TimeSlicing => Some(Self::TimeSlicing(size)),
        }
    }

    /// The name of one of a GPU's equal shares by `kind`; `None` for kinds that make no shares.
    #[must_use]
    pub const fn replica(kind: Kind) -> Option<Self> {
        match kind {
            Kind::Mig | Kind::Whole => None,
            Kind::Mps => Some(Self::MpsReplica),
            Kind::TimeSlicing => Some(Self::Replica),
        }
    }

    /// The size that the name guarantees; `None` if it depends on the GPU.
    #[must_use]
    pub fn size(self) -> Option<SizeGb> {
        match self {
            Self::Mig(profile) | Self::MigReplica(profile) => Some(profile.size()),
            Self::Compute(profile) => Some(profile.gpu_profile().size()),
            Self::Mps(size) | Self::TimeSlicing(size) | Self::Neutral(size) => Some(size),
            Self::Whole | Self::Replica | Self::MpsReplica | Self::Plugin(..) => None,
        }
    }

    /// Whether a GPU instance of `profile` has at least the compute and memory that this name guarantees.
    #[must_use]
    pub fn is_kept_by(self, profile: Profile) -> bool {
        matches!(self, Self::Mig(least)
            if profile == least
                || least.is_plain() && profile.is_plain()
                    && profile.compute() >= least.compute() && profile.size() >= least.size())
    }
}

impl fmt::Display for ResourceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mig(profile) => write!(f, "{MIG_PREFIX}{}", profile.to_string().replace('+', ".")),
            Self::Compute(profile) => write!(f, "{MIG_PREFIX}{}", profile.to_string().replace('+', ".")),
            Self::MigReplica(profile) => write!(f, "{}{SHARED}", Self::Mig(*profile)),
            Self::Whole => f.write_str(GPU),
            Self::Replica => f.write_str(GPU_SHARED),
            Self::MpsReplica => f.write_str(GPU_MPS),
            Self::Mps(size) => write!(f, "{SHARE_PREFIX}{}gb", size.0),
            Self::TimeSlicing(size) => write!(f, "{SHARE_PREFIX}{}gb{SHARED}", size.0),
            Self::Neutral(size) => write!(f, "{SIZE_PREFIX}{}gb", size.0),
            Self::Plugin(name, _) => name.fmt(f),
        }
    }
}

/// Every name that kerf can give to a pod, ascending: the catalog's profiles, the parts of their compute and their
/// replicas, whole GPUs, shares of all sizes, and the neutral names. The list is closed.
#[must_use]
pub fn all_names() -> Vec<ResourceName> {
    let profiles = catalog::profiles();
    let computes = profiles.iter().flat_map(|profile| parts(*profile)).map(ResourceName::Compute);
    let shares = SHARE_SIZES.into_iter().flat_map(|s| [ResourceName::Mps(s), ResourceName::TimeSlicing(s)]);
    let whole_or_by_turns =
        |profile: &Profile| [ResourceName::Mig(*profile), ResourceName::MigReplica(*profile)];
    let names = profiles.iter().flat_map(whole_or_by_turns).chain(computes).chain(shares);
    let names = names.chain(NEUTRAL_SIZES.into_iter().map(ResourceName::Neutral));
    let names: BTreeSet<_> =
        names.chain([ResourceName::Whole, ResourceName::Replica, ResourceName::MpsReplica]).collect();
    names.into_iter().collect()
}

/// The compute instances that can share a GPU instance of `profile`.
fn parts(profile: Profile) -> impl Iterator<Item = ComputeProfile> {
    ComputeProfile::all(profile).filter(move |part| part.compute() < profile.compute())
}

/// The text is none of kerf's resource names.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{0:?} is no resource name of kerf's")]
pub struct UnknownResource(pub String);

impl FromStr for ResourceName {
    type Err = UnknownResource;

    fn from_str(text: &str) -> Result<Self, UnknownResource> {
        let unknown = || UnknownResource(text.to_owned());
        if let Some(profile) = text.strip_prefix(MIG_PREFIX) {
            let instance = |text: &str| text.replacen("gb.", "gb+", 1);
            if let Some(shared) = profile.strip_suffix(SHARED) {
                return instance(shared).parse().map(Self::MigReplica).map_err(|_| unknown());
            }
            let profile = instance(profile);
            // A compute instance with all of its GPU instance's compute has no name: `1c.1g.10gb` does not exist.
            let is_part = |part: &ComputeProfile| part.compute() < part.gpu_profile().compute();
            let part = || profile.parse().ok().filter(is_part).map(Self::Compute).ok_or_else(unknown);
            return profile.parse().map(Self::Mig).or_else(|_| part());
        }
        match text {
            GPU => return Ok(Self::Whole),
            GPU_SHARED => return Ok(Self::Replica),
            GPU_MPS => return Ok(Self::MpsReplica),
            _ => {}
        }
        if let Some(size) = text.strip_prefix(SIZE_PREFIX).and_then(|size| size.strip_suffix("gb")) {
            let size = named_size(text, size).ok().filter(|size| NEUTRAL_SIZES.contains(size));
            return size.map(Self::Neutral).ok_or_else(unknown);
        }
        let share = text.strip_prefix(SHARE_PREFIX).ok_or_else(unknown)?;
        let (share, time_slice) = match share.strip_suffix(SHARED) {
            Some(share) => (share, true),
            None => (share, false),
        };
        let size =
            share.strip_suffix("gb").and_then(|digits| named_size(text, digits).ok()).ok_or_else(unknown)?;
        Ok(if time_slice { Self::TimeSlicing(size) } else { Self::Mps(size) })
    }
}

impl From<ResourceName> for String {
    fn from(name: ResourceName) -> Self {
        match name {
            ResourceName::Plugin(_, kind) => format!("{name}{KIND_MARK}{kind}"),
            name => name.to_string(),
        }
    }
}

impl TryFrom<String> for ResourceName {
    type Error = UnknownResource;

    fn try_from(text: String) -> Result<Self, UnknownResource> {
        let Some((name, kind)) = text.split_once(KIND_MARK) else { return text.parse() };
        let kind = Kind::ALL.into_iter().find(|known| known.as_str() == kind);
        let kind = kind.ok_or_else(|| UnknownResource(text.clone()))?;
        Ok(Self::Plugin(name.parse()?, kind))
    }
}

/// Parses the name of slices that an admin lays out or keeps warm. The name alone must fix the kind.
pub(crate) fn plain<'de, D: Deserializer<'de>>(from: D) -> Result<ResourceName, D::Error> {
    let name: ResourceName = String::deserialize(from)?.parse().map_err(serde::de::Error::custom)?;
    match name {
        ResourceName::Neutral(size) => Err(serde::de::Error::custom(format!(
            "{name} is of no kind; write the kind's own name, for instance {} or {}",
            ResourceName::Mps(size),
            ResourceName::TimeSlicing(size)
        ))),
        name => Ok(name),
    }
}

/// Reads a limit's name as a size that the user asks for: `kerf.dev/gpu-10gb`, or the bare `gpu-10gb`.
///
/// `None` means that the name is not kerf's, `Some(Err)` that it is kerf's and malformed.
#[must_use]
pub fn asked_size(limit: &str) -> Option<Result<SizeGb, SizeError>> {
    let rest = limit.strip_prefix(SIZE_PREFIX).or_else(|| limit.strip_prefix("gpu-"))?;
    Some(match rest.strip_suffix("gb") {
        Some(digits) => named_size(limit, digits),
        None => Err(SizeError::Malformed(limit.to_owned())),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for text in [
            "nvidia.com/mig-1g.10gb",
            "nvidia.com/mig-1g.10gb.me",
            "nvidia.com/mig-7g.141gb",
            "nvidia.com/mig-1c.3g.40gb",
            "nvidia.com/mig-2c.7g.80gb.me",
            "nvidia.com/mig-1g.10gb.shared",
            "nvidia.com/mig-1g.10gb.me.shared",
            "nvidia.com/gpu",
            "nvidia.com/gpu.shared",
            "nvidia.com/gpu.mps",
            "nvidia.com/gpu-10gb",
            "nvidia.com/gpu-10gb.shared",
        ] {
            let name: ResourceName = text.parse().unwrap();
            assert_eq!(name.to_string(), text);
        }
    }

    #[test]
    fn a_plugins_name_keeps_its_kind_in_documents_and_not_in_limits() {
        let name = ResourceName::Plugin(PluginName::Gpu, Kind::Mps);
        assert_eq!(name.to_string(), "nvidia.com/gpu");
        let text = serde_json::to_string(&name).unwrap();
        assert_eq!(text, r#""nvidia.com/gpu=mps""#);
        assert_eq!(serde_json::from_str::<ResourceName>(&text).unwrap(), name);
        assert!(serde_json::from_str::<ResourceName>(r#""nvidia.com/gpu=fast""#).is_err());
    }

    #[test]
    fn names_of_other_systems_are_not_parsed() {
        for text in [
            "nvidia.com/gpus",
            "cpu",
            "nvidia.com/gpu-xgb",
            "nvidia.com/mig-big",
            "nvidia.com/mig-1c.1g.10gb",
            "nvidia.com/mig-1c.3g.40gb.shared",
            "nvidia.com/mig-.shared",
        ] {
            assert_eq!(text.parse::<ResourceName>(), Err(UnknownResource(text.into())), "{text}");
        }
        assert_eq!(asked_size("cpu"), None);
        assert_eq!(asked_size("nvidia.com/gpu-10gb"), None);
    }

    #[test]
    fn a_neutral_name_is_a_step_of_the_ladder() {
        for (text, step) in [
            ("kerf.dev/gpu-10gb", Some(10)),
            ("kerf.dev/gpu-141gb", Some(141)),
            ("kerf.dev/gpu-13gb", None),
            ("kerf.dev/gpu-010gb", None),
            ("kerf.dev/gpu-10", None),
            ("gpu-10gb", None),
        ] {
            let step = step.map(|size| ResourceName::Neutral(SizeGb(size)));
            assert_eq!(text.parse::<ResourceName>().ok(), step, "{text}");
        }
        assert!(NEUTRAL_SIZES.is_sorted() && NEUTRAL_SIZES.starts_with(&SHARE_SIZES));
        assert_eq!(neutral_size(SizeGb(13)), Some(SizeGb(14)));
        assert_eq!(neutral_size(SizeGb(279)), None);
        assert_eq!(ResourceName::Neutral(SizeGb(10)).kind(), None);
    }

    #[test]
    fn an_admins_resource_name_must_fix_the_kind() {
        let read = |name: &str| plain(serde_json::Value::from(name));
        assert_eq!(read("nvidia.com/gpu-10gb").unwrap(), ResourceName::Mps(SizeGb(10)));
        let error = read("kerf.dev/gpu-10gb").unwrap_err().to_string();
        assert!(error.contains("nvidia.com/gpu-10gb"), "{error}");
    }

    #[test]
    fn sizes_are_asked_with_and_without_the_prefix() {
        assert_eq!(asked_size("kerf.dev/gpu-10gb"), Some(Ok(SizeGb(10))));
        assert_eq!(asked_size("gpu-10gb"), Some(Ok(SizeGb(10))));
        assert!(matches!(asked_size("gpu-10"), Some(Err(SizeError::Malformed(_)))));
        assert!(matches!(asked_size("gpu-0gb"), Some(Err(SizeError::TooSmall(_)))));
    }

    #[test]
    fn a_name_guarantees_a_minimum() {
        let name: ResourceName = "nvidia.com/mig-1g.10gb".parse().unwrap();
        for (profile, kept) in [
            ("1g.10gb", true),
            ("1g.18gb", true),
            ("2g.10gb", true),
            ("1g.5gb", false),
            ("1g.10gb+me", false),
        ] {
            assert_eq!(name.is_kept_by(profile.parse().unwrap()), kept, "{profile}");
        }
    }

    #[test]
    fn every_kind_has_its_names_and_each_name_once() {
        let names = all_names();
        for name in [
            "nvidia.com/mig-1g.10gb",
            "nvidia.com/mig-2c.7g.80gb",
            "nvidia.com/mig-1g.10gb.shared",
            "nvidia.com/gpu",
            "nvidia.com/gpu.shared",
            "nvidia.com/gpu.mps",
            "nvidia.com/gpu-10gb",
            "nvidia.com/gpu-10gb.shared",
            "kerf.dev/gpu-10gb",
        ] {
            assert_eq!(names.iter().filter(|n| n.to_string() == name).count(), 1, "{name}");
        }
        assert!(names.iter().all(|name| name.to_string().parse() == Ok(*name)));
    }

    #[test]
    fn a_size_between_two_names_takes_the_larger() {
        assert_eq!(share_size(SizeGb(13)), Some(SizeGb(14)));
        assert_eq!(share_size(SizeGb(10)), Some(SizeGb(10)));
        assert_eq!(share_size(SizeGb(97)), None);
    }
}
