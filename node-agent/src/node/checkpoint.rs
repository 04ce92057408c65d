//! The content of the agent's checkpoint.

use super::Ill;
use crate::gpu::limits;
use kerf_core::contract::Shape;
use kerf_core::ledger::Saved;
use kerf_core::mig::Profile;
use kerf_core::names::{DeviceId, GpuUuid, SliceId};
use kerf_core::nvidia_keys::DEPLOY_CLIENTS;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Not;

/// GPUs, and the MIG profiles that each offers.
pub type Profiles = BTreeMap<GpuUuid, BTreeSet<Profile>>;

/// The shares that exist, by their devices.
pub(crate) type Shares = BTreeMap<DeviceId, Shape>;

/// The content of the checkpoint, as the node restores it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(clippy::struct_excessive_bools, reason = "each is an independent fact")]
pub struct Restored {
    pub ledger: Saved,
    /// Whether the agent kept the ledger itself, and did not follow a GpuNode's spec.
    #[serde(skip_serializing_if = "Not::not")]
    pub is_own: bool,
    /// The UID of the GpuNode whose spec was followed; `None` if the ledger is the agent's own.
    pub uid: Option<String>,
    /// Whether there is a checkpoint that cannot be read.
    #[serde(skip)]
    pub is_lost: bool,
    /// The GPUs that the node had, with their MIG profiles.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub gpus: Profiles,
    /// MIG devices that are to be destroyed, with their slices' names: without these they would count as unknown after
    /// a restart.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub made: BTreeMap<DeviceId, SliceId>,
    /// Whether NVIDIA's device plugin was here.
    #[serde(skip_serializing_if = "Not::not")]
    pub plugin: bool,
    /// The shares that existed, desired or not: no other source shows a share that only an init container holds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shares: Option<Shares>,
    /// The GPUs whose MIG mode was on when they were last seen: the next load of the driver may lack it.
    #[serde(rename = "mig")]
    pub mig_on: BTreeSet<GpuUuid>,
    /// The GPUs that lost their MIG mode with the driver's load and do not have it back yet. The file stores this
    /// apart.
    #[serde(skip)]
    pub mig_lost: BTreeSet<GpuUuid>,
    /// The GPUs that kerf had put into `EXCLUSIVE_PROCESS` mode.
    pub exclusive: BTreeSet<GpuUuid>,
    /// The limits that kerf had set on the GPU memory of cgroups.
    #[serde(with = "limits::by_gpu")]
    pub limits: limits::Limits,
    /// The GPUs whose time slices have had another length than the driver's default since the boot.
    pub lengths: BTreeSet<GpuUuid>,
    /// The Node's labels by which kerf has paused DCGM and similar programs, or is about to.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub paused: BTreeSet<String>,
    pub ills: Vec<Ill>,
    /// Whether the driver was reloaded since, at a boot or within one, and not everything was made again yet.
    #[serde(rename = "recovering")]
    pub booted: bool,
}

impl Restored {
    /// Replaces a checkpoint that cannot be read. Labels that are paused while no MIG manager works were paused by an
    /// agent.
    #[must_use]
    pub fn lost() -> Self {
        Self { is_lost: true, paused: DEPLOY_CLIENTS.map(str::to_owned).into(), ..Self::default() }
    }

    /// Whether NVIDIA's device plugin was here; `None` if the checkpoint was lost.
    #[must_use]
    pub fn plugin_was_here(&self) -> Option<bool> {
        (!self.is_lost).then_some(self.plugin)
    }

    /// Keeps what still counts after the driver was reloaded, at a boot or within one. Compute modes, limits and
    /// lengths end with a load, so what is set now was set by others. A GPU that is still ill reports it again. Shares
    /// stay, because the kubelet remembers to which pods it has allocated them. The Node's labels stay too.
    #[must_use]
    pub fn after_reload(self) -> Self {
        let Self { ledger, is_own, uid, gpus, plugin, shares, mig_on, mut mig_lost, paused, .. } = self;
        mig_lost.extend(mig_on);
        let restored = Self { ledger, is_own, uid, gpus, plugin, ..Self::default() };
        Self { shares, mig_lost, paused, booted: true, ..restored }
    }
}
