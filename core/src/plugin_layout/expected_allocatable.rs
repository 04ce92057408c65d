//! The expected allocatable of a layout: the resource names and counts that a node must show once the layout is
//! applied.

use super::gpus::NodeGpus;
use super::layout::{MigStrategy, PluginLayout, Sharing};
use crate::contract::MPS_REPLICAS_LIMIT;
use crate::mig::Profile;
use crate::mig::catalog::GpuModel;
use crate::nvidia_keys::{GPU, MIG_PREFIX, SHARED, is_plugin_resource};
use crate::resource::ResourceName;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use thiserror::Error;

/// From Volta on MPS isolates memory, and from Turing on the plugin allows more than sixteen clients
/// (k8s-device-plugin `cmd/mps-control-daemon`). Both are compute capabilities.
const VOLTA: (u32, u32) = (7, 0);
const TURING: (u32, u32) = (7, 5);
/// The most replicas before Turing.
const PRE_TURING_CLIENTS_LIMIT: u32 = 16;

/// The allocatable that the plugin should advertise in a layout.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ExpectedAllocatable {
    /// Exactly these resource names of the plugin, with these counts.
    Counts(BTreeMap<String, u64>),
    /// At least one device; the number cannot be known beforehand.
    #[serde(rename_all = "camelCase")]
    Some {
        /// The beginning of the resource names.
        prefix: String,
        /// Whether the names end in `.shared`.
        shared: bool,
        /// The count must be a multiple of this number, the replicas.
        multiple: u64,
    },
}

/// Why no GPU of a node can have a layout.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Unfit {
    /// GPUs of this product have no MIG.
    #[error("{0} cannot be cut by MIG; choose a layout with migStrategy none")]
    NoMig(String),
    /// The MIG configuration needs a profile that this model does not have.
    #[error("{product} has no MIG profile {profile}; it has {profiles}")]
    NoProfile {
        /// The product name of the GPUs.
        product: String,
        /// The profile that is missing.
        profile: Profile,
        /// The profiles of the model, separated by commas.
        profiles: String,
    },
    /// The GPUs are too old for MPS.
    #[error(
        "{product} has compute capability {major}.{minor}, and NVIDIA's device plugin shares by MPS from 7.0 on; use timeSlicing"
    )]
    NoMps {
        /// The product name of the GPUs.
        product: String,
        /// The part of the compute capability before the dot.
        major: u32,
        /// The part of the compute capability after the dot.
        minor: u32,
    },
    /// The layout has more replicas than MPS allows on these GPUs.
    #[error("{replicas} replicas are more than MPS has on {product}, {most}; write fewer")]
    ManyClients {
        /// The product name of the GPUs.
        product: String,
        /// The number of replicas in the layout.
        replicas: u32,
        /// The most replicas on these GPUs.
        most: u32,
    },
}

/// The profile into which mig-parted's configuration of this name cuts all GPUs (`all-1g.10gb`, mig-parted
/// `deployments/container/config.yaml`); `None` if the name does not say.
pub(super) fn cut_into(config: &str) -> Option<Profile> {
    config.strip_prefix("all-")?.replacen("gb.", "gb+", 1).parse().ok()
}

/// Whether mig-parted's own configuration of this name makes MIG devices. False for an admin's configurations, whose
/// content is unknown.
#[must_use]
pub fn cuts(config: &str) -> bool {
    config == "all-balanced" || cut_into(config).is_some()
}

fn leaves_whole(config: &str) -> bool {
    config == "all-disabled"
}

impl PluginLayout {
    /// The allocatable that this layout should yield on these GPUs, or why they cannot have it.
    pub fn expected(&self, gpus: &NodeGpus) -> Result<ExpectedAllocatable, Unfit> {
        self.fits(gpus)?;
        let (replicas, renamed) = self.sharing.replicas();
        let name = |plain: String| if renamed { plain + SHARED } else { plain };
        let some = |prefix: &str| ExpectedAllocatable::Some {
            prefix: prefix.to_owned(),
            shared: renamed,
            multiple: u64::from(replicas),
        };
        let cut = match (self.mig_strategy, self.mig_config.as_deref()) {
            (MigStrategy::None, _) => None,
            (_, Some(config)) if leaves_whole(config) => None,
            (MigStrategy::Single, None) => return Ok(some(GPU)),
            (MigStrategy::Mixed, None) => return Ok(some("nvidia.com/")),
            (strategy, Some(config)) => Some((strategy, cut_into(config))),
        };
        let devices = |each: u64| gpus.count.map(|count| u64::from(count) * each * u64::from(replicas));
        let (plain, count) = match cut {
            None => (GPU.to_owned(), devices(1)),
            Some((strategy, profile)) => {
                // v0.19.3 offers an instance with media engines under the plain name (k8s-device-plugin#1807), later
                // ones may not.
                let profile = profile.filter(|profile| profile.is_plain());
                let plain = match (strategy, profile) {
                    (MigStrategy::Mixed, Some(profile)) => ResourceName::Mig(profile).to_string(),
                    (MigStrategy::Mixed, None) => MIG_PREFIX.to_owned(),
                    (MigStrategy::Single | MigStrategy::None, _) => GPU.to_owned(),
                };
                (plain, profile.and_then(|profile| most(gpus, profile)).and_then(devices))
            }
        };
        Ok(match count {
            Some(count) => ExpectedAllocatable::Counts([(name(plain), count)].into()),
            None => some(&plain),
        })
    }

    fn fits(&self, gpus: &NodeGpus) -> Result<(), Unfit> {
        let product = || gpus.product.clone();
        if self.mig_strategy != MigStrategy::None {
            let table = gpus.model.map(GpuModel::mig_table);
            if gpus.mig_capable == Some(false) || table == Some(None) {
                return Err(Unfit::NoMig(product()));
            }
            let profile = self.mig_config.as_deref().and_then(cut_into);
            if let (Some(profile), Some(Some(table))) = (profile, table)
                && table.entry(profile).is_none()
            {
                let profiles: Vec<_> =
                    table.entries().iter().map(|entry| entry.profile.to_string()).collect();
                return Err(Unfit::NoProfile { product: product(), profile, profiles: profiles.join(", ") });
            }
        }
        let (Sharing::Mps { replicas, .. }, Some(compute)) = (self.sharing, gpus.compute) else {
            return Ok(());
        };
        if compute < VOLTA {
            return Err(Unfit::NoMps { product: product(), major: compute.0, minor: compute.1 });
        }
        let most = if compute < TURING { PRE_TURING_CLIENTS_LIMIT } else { MPS_REPLICAS_LIMIT };
        if replicas > most { Err(Unfit::ManyClients { product: product(), replicas, most }) } else { Ok(()) }
    }
}

/// The most instances of a profile on one GPU of the node's model.
fn most(gpus: &NodeGpus, profile: Profile) -> Option<u64> {
    Some(u64::from(gpus.model?.mig_table()?.entry(profile)?.max))
}

impl ExpectedAllocatable {
    /// Whether a node with this allocatable advertises the expected devices.
    #[must_use]
    pub fn is_met_by(&self, allocatable: &BTreeMap<String, u64>) -> bool {
        let mut shown = allocatable.iter().filter(|(name, count)| is_plugin_resource(name) && **count > 0);
        match self {
            Self::Counts(counts) => {
                let shown: BTreeMap<String, u64> =
                    shown.map(|(name, count)| (name.clone(), *count)).collect();
                shown == *counts
            }
            Self::Some { prefix, shared, multiple } => shown.any(|(name, count)| {
                name.starts_with(prefix.as_str())
                    && name.ends_with(SHARED) == *shared
                    && count.is_multiple_of(*multiple)
            }),
        }
    }
}

/// The plugin's devices in a node's allocatable, as messages list them.
pub(super) fn shown(allocatable: &BTreeMap<String, u64>) -> String {
    let names = allocatable.iter().filter(|(name, count)| is_plugin_resource(name) && **count > 0);
    let names: Vec<_> = names.map(|(name, count)| format!("{count} {name}")).collect();
    if names.is_empty() { "no device of the plugin".to_owned() } else { names.join(", ") }
}

impl fmt::Display for ExpectedAllocatable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Counts(counts) => f.write_str(&shown(counts)),
            Self::Some { prefix, shared, multiple } => {
                let rest = if prefix == GPU { "" } else { "…" };
                let shared = if *shared { SHARED } else { "" };
                write!(f, "devices {prefix}{rest}{shared}")?;
                if *multiple > 1 { write!(f, " in multiples of {multiple}") } else { Ok(()) }
            }
        }
    }
}

#[cfg(test)]
#[path = "expected_allocatable_tests.rs"]
mod tests;
