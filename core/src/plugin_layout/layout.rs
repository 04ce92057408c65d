//! A layout, and the configuration with which NVIDIA's device plugin applies it.

use super::digest::digest;
use super::expected_allocatable::cut_into;
use crate::mig::catalog;
use crate::nvidia_keys::{GPU, MIG_PREFIX};
use crate::resource::ResourceName;
use serde::{Deserialize, Serialize};
use std::fmt::{self, Write as _};

/// The key of the `ConfigMap` for nodes without the label: the plugin's chart takes the key of this name
/// (k8s-device-plugin `cmd/config-manager`, `NamedConfigFallback`).
pub const DEFAULT_KEY: &str = "default";
/// Its text, which changes nothing. Without this key, and with only one other key, the chart would take that one
/// (`single`).
pub(super) const DEFAULT_TEXT: &str = "version: v1\n";
/// The most characters of a layout's name: a label's value has 63, and a dot and a digest may follow the name.
pub const LAYOUT_NAME_LENGTH_LIMIT: usize = 54;
/// The most time slices of a GPU. The plugin has no limit; a higher number counts as a typing mistake.
pub const TIME_SLICES_LIMIT: u32 = 1000;

/// Whether and how the plugin offers MIG devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum MigStrategy {
    /// The plugin offers no MIG devices.
    #[default]
    None,
    /// The plugin offers them as `nvidia.com/gpu`; all have one profile.
    Single,
    /// The plugin offers them as `nvidia.com/mig-<profile>`.
    Mixed,
}

impl fmt::Display for MigStrategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "none",
            Self::Single => "single",
            Self::Mixed => "mixed",
        })
    }
}

/// How one GPU or MIG device is shared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sharing {
    /// One container has the whole device.
    None,
    /// Containers take turns by time slicing.
    TimeSlicing {
        /// The number of devices that the plugin advertises for each.
        replicas: u32,
        /// Whether the resource name ends in `.shared`.
        renamed: bool,
        /// Whether the plugin rejects a container that asks for more than one.
        fail_greater_than_one: bool,
    },
    /// Containers share by MPS. The plugin always rejects a container that asks for more than one.
    Mps {
        /// The number of devices that the plugin advertises for each.
        replicas: u32,
        /// Whether the resource name ends in `.shared`.
        renamed: bool,
    },
}

impl Sharing {
    /// The number of replicas, and whether the resource name ends in `.shared`.
    #[must_use]
    pub fn replicas(self) -> (u32, bool) {
        match self {
            Self::None => (1, false),
            Self::TimeSlicing { replicas, renamed, .. } | Self::Mps { replicas, renamed } => {
                (replicas, renamed)
            }
        }
    }
}

/// How NVIDIA's device plugin serves the GPUs of a node, from `spec.plugin` of a node policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PluginLayout {
    /// How the plugin offers MIG devices.
    pub mig_strategy: MigStrategy,
    /// The MIG manager's configuration; `None` leaves the GPUs as they are cut.
    pub mig_config: Option<String>,
    /// How a GPU or MIG device is shared.
    pub sharing: Sharing,
}

impl PluginLayout {
    /// The plugin's configuration, as k8s-device-plugin `api/config/v1` reads it.
    #[must_use]
    pub fn config(&self) -> String {
        let mut text = format!("version: v1\nflags:\n  migStrategy: {}\n", self.mig_strategy);
        let (section, replicas, renamed, fail) = match self.sharing {
            Sharing::None => return text,
            Sharing::TimeSlicing { replicas, renamed, fail_greater_than_one } => {
                ("timeSlicing", replicas, renamed, Some(fail_greater_than_one))
            }
            Sharing::Mps { replicas, renamed } => ("mps", replicas, renamed, None),
        };
        // Writing into a String cannot fail.
        let _ = write!(text, "sharing:\n  {section}:\n    renameByDefault: {renamed}\n");
        if let Some(fail) = fail {
            let _ = writeln!(text, "    failRequestsGreaterThanOne: {fail}");
        }
        text.push_str("    resources:\n");
        for name in self.shared_names() {
            let _ = write!(text, "    - name: {name}\n      replicas: {replicas}\n");
        }
        text
    }

    /// The resource names that are shared. The plugin ignores those that the node does not have.
    fn shared_names(&self) -> Vec<String> {
        let mut names = vec![GPU.to_owned()];
        if self.mig_strategy == MigStrategy::Mixed {
            let cut = self.mig_config.as_deref().and_then(cut_into);
            // The plugin may offer an instance with media engines under its plain name, so the configuration then lists
            // all profiles.
            let cut = cut.filter(|profile| profile.is_plain());
            let profiles = cut.map_or_else(catalog::profiles, |profile| [profile].into());
            names.extend(profiles.into_iter().map(|profile| ResourceName::Mig(profile).to_string()));
        }
        debug_assert!(names.iter().skip(1).all(|name| name.starts_with(MIG_PREFIX)));
        names
    }

    /// Fingerprint of everything in the layout.
    pub(super) fn digest(&self) -> String {
        digest([self.config().as_str(), self.mig_config.as_deref().unwrap_or_default()])
    }
}

/// The form that `kerf policy check` prints: `migStrategy none, 4 time slices`.
impl fmt::Display for PluginLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "migStrategy {}", self.mig_strategy)?;
        if let Some(config) = &self.mig_config {
            write!(f, ", MIG configuration {config}")?;
        }
        match self.sharing {
            Sharing::None => Ok(()),
            Sharing::TimeSlicing { replicas, .. } => write!(f, ", {replicas} time slices"),
            Sharing::Mps { replicas, .. } => write!(f, ", {replicas} shares by MPS"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(mig_strategy: MigStrategy, mig_config: Option<&str>, sharing: Sharing) -> PluginLayout {
        PluginLayout { mig_strategy, mig_config: mig_config.map(str::to_owned), sharing }
    }

    /// The configuration that k8s-device-plugin v0.19.3 reads.
    #[test]
    fn configurations_have_the_plugins_format() {
        let sliced = Sharing::TimeSlicing { replicas: 4, renamed: false, fail_greater_than_one: true };
        let renamed = Sharing::TimeSlicing { replicas: 2, renamed: true, fail_greater_than_one: false };
        let texts = [
            layout(MigStrategy::None, None, Sharing::None),
            layout(MigStrategy::None, None, sliced),
            layout(MigStrategy::None, None, Sharing::Mps { replicas: 4, renamed: false }),
            layout(MigStrategy::Single, Some("all-1g.10gb"), renamed),
            layout(MigStrategy::Mixed, Some("all-1g.10gb"), sliced),
        ]
        .map(|layout| layout.config());
        insta::assert_snapshot!(texts.join("---\n"));
    }

    #[test]
    fn every_profile_is_shared_if_the_cut_is_unknown() {
        let sliced = Sharing::TimeSlicing { replicas: 4, renamed: false, fail_greater_than_one: false };
        let text = layout(MigStrategy::Mixed, Some("all-balanced"), sliced).config();
        assert_eq!(text.matches("- name: ").count(), catalog::profiles().len() + 1);
        assert!(text.contains("- name: nvidia.com/mig-3g.40gb\n"));
    }

    #[test]
    fn the_digest_differs_if_only_the_cut_differs() {
        let cut = |config| layout(MigStrategy::Mixed, config, Sharing::None).digest();
        assert_ne!(cut(Some("all-1g.10gb")), cut(None));
    }
}
