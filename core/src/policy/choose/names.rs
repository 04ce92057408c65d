//! The resource names by which each kind can serve a container's need.

use crate::kind::{IsolationClass, Kind};
use crate::mig::{Profile, catalog};
use crate::packing::Asked;
use crate::policy::Supply;
use crate::policy::supply::{has_compute, smallest};
use crate::request::{ContainerAsk, GpuSelection};
use crate::resource::{ResourceName, SHARE_SIZES, neutral_size, share_size};
use crate::units::{LARGEST_SIZE, SizeGb};
use std::collections::BTreeSet;

/// The requirements on a slice, and the GPUs on which it may be.
#[derive(Debug, Clone, Copy)]
pub(super) struct Need<'a> {
    pub asked: Asked,
    pub gpus: &'a GpuSelection,
}

/// The request of a container, with this size.
pub(super) fn asked(container: &ContainerAsk, size: SizeGb) -> Asked {
    let ContainerAsk { memory, compute, distinct_gpus, .. } = *container;
    Asked { size, memory, compute, distinct_gpus }
}

impl Need<'_> {
    /// The nominal size that covers both the size and the memory.
    fn size(&self) -> SizeGb {
        self.asked.memory.map_or(self.asked.size, |memory| memory.nominal().max(self.asked.size))
    }

    /// The neutral name whose size covers both the size and the memory.
    pub fn neutral(&self) -> Option<ResourceName> {
        neutral_size(self.size()).map(ResourceName::Neutral)
    }

    /// The size of a share that covers the need. A share of N GB has N GiB, so its size also covers real memory.
    fn share(&self) -> Option<SizeGb> {
        share_size(self.size())
    }

    /// The nominal size of a GPU that has the memory for certain. One GB is added, because a GPU of 80 GB may have
    /// slightly less than 80 GiB.
    fn whole(&self) -> SizeGb {
        self.asked.memory.map_or(self.asked.size, |memory| {
            SizeGb(memory.nominal().0.saturating_add(1)).max(self.asked.size)
        })
    }
}

/// The strongest class that a slice of this name serves. It is `none` for compute instances and MIG replicas, because
/// they share memory and faults with others in their GPU instance.
pub(super) fn strongest_class(resource: ResourceName) -> IsolationClass {
    match resource {
        ResourceName::Compute(_) | ResourceName::MigReplica(_) => IsolationClass::None,
        other => other.kind().map_or(IsolationClass::None, Kind::strongest_class),
    }
}

/// The names by `kind` that some GPU of a managed node serves, the smallest first.
pub(super) fn served(managed: &Supply, kind: Kind, need: &Need) -> Vec<ResourceName> {
    let Need { asked, gpus } = *need;
    match kind {
        Kind::Mig => managed.fitting_profiles(&asked, gpus).into_iter().map(ResourceName::Mig).collect(),
        // No time slice serves a share of compute, because it gets the GPU's compute at times, but no guaranteed share.
        Kind::TimeSlicing if asked.compute.is_some() => Vec::new(),
        Kind::Mps | Kind::TimeSlicing => {
            let size = need.share().filter(|size| managed.has_share(kind, *size, asked.compute, gpus));
            size.and_then(|size| ResourceName::share(kind, size)).into_iter().collect()
        }
        Kind::Whole => {
            let is_served = managed.has_whole(&Asked { size: need.whole(), ..asked }, gpus);
            is_served.then_some(ResourceName::Whole).into_iter().collect()
        }
    }
}

/// The names by `kind` on GPUs of the catalog, the smallest first. They are for a cluster whose GPU nodes are scaled to
/// zero.
pub(super) fn conceivable(kind: Kind, need: &Need) -> Vec<ResourceName> {
    let is_small = || Some(need.asked.size) <= largest(kind, need.gpus);
    match kind {
        Kind::Mig => conceivable_profiles(need).into_iter().map(ResourceName::Mig).collect(),
        Kind::TimeSlicing if need.asked.compute.is_some() => Vec::new(),
        Kind::Mps | Kind::TimeSlicing => {
            let size = need.share().filter(|_| is_small());
            size.and_then(|size| ResourceName::share(kind, size)).into_iter().collect()
        }
        Kind::Whole => is_small().then_some(ResourceName::Whole).into_iter().collect(),
    }
}

/// The smallest profile of each model that covers the need, without duplicates.
fn conceivable_profiles(need: &Need) -> Vec<Profile> {
    let Asked { size, memory, compute, .. } = need.asked;
    let fitting = |model: &catalog::GpuModel| {
        let table = model.mig_table().unwrap_or_default();
        let most = table.compute();
        let fits = |entry: &&crate::mig::ProfileEntry| {
            memory.is_none_or(|memory| entry.memory >= memory)
                && compute.is_none_or(|compute| has_compute(entry.profile, most, compute))
        };
        let entries = table.entries().iter().filter(fits).map(|entry| entry.profile);
        // For profiles under other drivers the catalog has only the name, so they cannot serve a request for memory or
        // compute.
        let is_plain_ask = memory.is_none() && compute.is_none();
        let others = model.other_names().iter().map(|(_, profile)| *profile).filter(|_| is_plain_ask);
        let large = entries.chain(others).filter(|profile| profile.is_plain() && profile.size() >= size);
        large.min_by_key(smallest)
    };
    let mut profiles: Vec<Profile> = models(need.gpus).filter_map(fitting).collect();
    profiles.sort_unstable_by_key(smallest);
    profiles.dedup();
    profiles
}

/// The models of the catalog that a pod may have; all of them if the pod names a model that is not in the catalog.
fn models(gpus: &GpuSelection) -> impl Iterator<Item = &'static catalog::GpuModel> {
    let is_known = gpus.models.iter().all(|model| catalog::by_name(model).is_some());
    catalog::MODELS.iter().filter(move |model| !is_known || gpus.admits_model(model.name))
}

/// Every profile that one of these models has under some driver.
fn profiles(gpus: &GpuSelection) -> BTreeSet<Profile> {
    let of_model = |model: &catalog::GpuModel| {
        let table = model.mig_table().unwrap_or_default();
        let present: Vec<Profile> = table.entries().iter().map(|entry| entry.profile).collect();
        present.into_iter().chain(model.other_names().iter().map(|(_, profile)| *profile))
    };
    models(gpus).flat_map(of_model).collect()
}

/// Whether some model that the pod may have could serve this name. If none of its models is in the catalog, any name
/// may exist.
pub(super) fn exists(resource: ResourceName, gpus: &GpuSelection) -> bool {
    let is_open = gpus.models.iter().all(|model| catalog::by_name(model).is_none());
    is_open
        || match resource {
            ResourceName::Mig(profile) | ResourceName::MigReplica(profile) => {
                profiles(gpus).contains(&profile)
            }
            ResourceName::Compute(profile) => profiles(gpus).contains(&profile.gpu_profile()),
            ResourceName::Mps(size) => Some(size) <= largest(Kind::Mps, gpus),
            ResourceName::TimeSlicing(size) => Some(size) <= largest(Kind::TimeSlicing, gpus),
            ResourceName::Neutral(_)
            | ResourceName::Whole
            | ResourceName::Replica
            | ResourceName::MpsReplica
            | ResourceName::Plugin(..) => true,
        }
}

/// The largest size that a slice of this kind can have on the GPUs that a pod may have, by the catalog's models.
pub(super) fn largest(kind: Kind, gpus: &GpuSelection) -> Option<SizeGb> {
    let memory = || models(gpus).map(|model| model.memory.nominal()).max();
    match kind {
        Kind::Mig => profiles(gpus).into_iter().map(Profile::size).max(),
        // If the pod names no model, a GPU outside the catalog may be larger than those in it.
        Kind::Whole if gpus.models.is_empty() => Some(LARGEST_SIZE),
        Kind::Mps | Kind::TimeSlicing if gpus.models.is_empty() => SHARE_SIZES.last().copied(),
        Kind::Whole => memory(),
        Kind::Mps | Kind::TimeSlicing => memory().min(SHARE_SIZES.last().copied()),
    }
}
