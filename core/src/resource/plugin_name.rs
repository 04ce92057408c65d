//! The resource names under which NVIDIA's device plugin offers devices.

use super::{ResourceName, UnknownResource};
use crate::mig::Profile;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// A resource name of NVIDIA's device plugin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum PluginName {
    /// `nvidia.com/gpu`: a GPU, a MIG instance (strategy `single`), or a replica of either.
    Gpu,
    /// `nvidia.com/gpu.shared`: a replica of a GPU or of a MIG instance.
    Shared,
    /// `nvidia.com/mig-<profile>`: a MIG instance (strategy `mixed`), or a replica of one.
    Mig(Profile),
    /// `nvidia.com/mig-<profile>.shared`: a replica of a MIG instance.
    MigShared(Profile),
}

impl PluginName {
    /// kerf's own resource name with this spelling; `None` if kerf cuts no such slices for static nodes.
    #[must_use]
    pub fn plain(self) -> Option<ResourceName> {
        match self {
            Self::Gpu => Some(ResourceName::Whole),
            Self::Shared => Some(ResourceName::Replica),
            Self::Mig(profile) => Some(ResourceName::Mig(profile)),
            // kerf's agents serve this name too, but only to pods of managed nodes.
            Self::MigShared(_) => None,
        }
    }
}

impl ResourceName {
    /// The plugin's name for this resource; `None` if the plugin cannot serve it.
    #[must_use]
    pub fn plugin_name(self) -> Option<PluginName> {
        match self {
            Self::Whole => Some(PluginName::Gpu),
            Self::Replica => Some(PluginName::Shared),
            Self::Mig(profile) => Some(PluginName::Mig(profile)),
            Self::Plugin(name, _) => Some(name),
            Self::Compute(_)
            | Self::MigReplica(_)
            | Self::Mps(_)
            | Self::MpsReplica
            | Self::TimeSlicing(_)
            | Self::Neutral(_) => None,
        }
    }
}

impl fmt::Display for PluginName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gpu => ResourceName::Whole.fmt(f),
            Self::Shared => ResourceName::Replica.fmt(f),
            Self::Mig(profile) => ResourceName::Mig(*profile).fmt(f),
            Self::MigShared(profile) => ResourceName::MigReplica(*profile).fmt(f),
        }
    }
}

impl FromStr for PluginName {
    type Err = UnknownResource;

    fn from_str(text: &str) -> Result<Self, UnknownResource> {
        match text.parse()? {
            ResourceName::MigReplica(profile) => Ok(Self::MigShared(profile)),
            name => name.plugin_name().ok_or_else(|| UnknownResource(text.to_owned())),
        }
    }
}

impl From<PluginName> for String {
    fn from(name: PluginName) -> Self {
        name.to_string()
    }
}

impl TryFrom<String> for PluginName {
    type Error = UnknownResource;

    fn try_from(text: String) -> Result<Self, UnknownResource> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_plugins_names_are_read_as_they_are_written() {
        for text in [
            "nvidia.com/gpu",
            "nvidia.com/gpu.shared",
            "nvidia.com/mig-1g.10gb",
            "nvidia.com/mig-1g.10gb.me",
            "nvidia.com/mig-1g.10gb.shared",
            "nvidia.com/mig-1g.10gb.me.shared",
        ] {
            assert_eq!(text.parse::<PluginName>().unwrap().to_string(), text);
        }
        for text in
            ["cpu", "nvidia.com/gpu-10gb", "nvidia.com/gpu-10gb.shared", "nvidia.com/gpu.shared.shared"]
        {
            assert!(text.parse::<PluginName>().is_err(), "{text}");
        }
    }
}
