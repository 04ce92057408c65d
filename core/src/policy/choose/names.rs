//! The name that a kind has for what a container needs.

use crate::kind::{IsolationClass, Kind};
use crate::mig::{Profile, catalog};
use crate::policy::supply::has_compute;
use crate::policy::{Asked, Supply};
use crate::request::{ContainerAsk, GpuSelection};
use crate::resource::{ResourceName, SHARE_SIZES, share_size};
use crate::units::{LARGEST_SIZE, SizeGb};
use std::collections::BTreeSet;

/// What a slice must have, and on which GPUs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Need<'a> {
    pub asked: Asked,
    pub gpus: &'a GpuSelection,
}

/// What a container asks of a slice of this size.
pub(super) fn asked(container: &ContainerAsk, size: SizeGb) -> Asked {
    let ContainerAsk { memory, compute, distinct_gpus, .. } = *container;
    Asked { size, memory, compute, distinct_gpus }
}

impl Need<'_> {
    /// The size of a share that has all of it: one has as many GiB as its name says.
    fn share(&self) -> Option<SizeGb> {
        share_size(self.asked.memory.map_or(self.asked.size, |memory| memory.nominal().max(self.asked.size)))
    }

    /// The nominal size of a GPU that surely has the memory. One of 80 GB may have a little less than 80 GiB.
    fn whole(&self) -> SizeGb {
        self.asked.memory.map_or(self.asked.size, |memory| {
            SizeGb(memory.nominal().0.saturating_add(1)).max(self.asked.size)
        })
    }
}

/// The strongest class that a slice of this name serves. Compute instances and replicas share their GPU instance's memory and
/// faults.
pub(super) fn strongest_class(resource: ResourceName) -> IsolationClass {
    match resource {
        ResourceName::Compute(_) | ResourceName::MigReplica(_) => IsolationClass::None,
        other => other.kind().map_or(IsolationClass::None, Kind::strongest_class),
    }
}

/// The name by `kind`, if some GPU of the cluster serves it.
pub(super) fn served(supply: &Supply, kind: Kind, need: &Need) -> Option<ResourceName> {
    match kind {
        Kind::Mig => {
            let profile =
                supply.fitting_profile(need.asked.size, need.asked.memory, need.asked.compute, need.gpus);
            profile.map(ResourceName::Mig)
        }
        // Who has a time slice has all of the GPU's compute at times, and no part of it always.
        Kind::TimeSlicing if need.asked.compute.is_some() => None,
        Kind::Mps | Kind::TimeSlicing => {
            let size =
                need.share().filter(|size| supply.has_share(kind, *size, need.asked.compute, need.gpus))?;
            ResourceName::share(kind, size)
        }
        Kind::Whole => {
            let asked = Asked { size: need.whole(), ..need.asked };
            supply.has_whole(&asked, need.gpus).then_some(ResourceName::Whole)
        }
    }
}

/// The name by `kind` on some GPU that exists at all: for a cluster that is scaled to zero.
pub(super) fn conceivable(kind: Kind, need: &Need) -> Option<ResourceName> {
    match kind {
        Kind::Mig => conceivable_profile(need).map(ResourceName::Mig),
        Kind::TimeSlicing if need.asked.compute.is_some() => None,
        Kind::Mps | Kind::TimeSlicing => {
            let size = need.share().filter(|_| Some(need.asked.size) <= largest(kind, need.gpus))?;
            ResourceName::share(kind, size)
        }
        Kind::Whole => (Some(need.asked.size) <= largest(kind, need.gpus)).then_some(ResourceName::Whole),
    }
}

fn conceivable_profile(need: &Need) -> Option<Profile> {
    let plain = |profile: &Profile| profile.is_plain() && profile.size() >= need.asked.size;
    let smallest = |profile: &Profile| (profile.size(), profile.compute());
    if need.asked.memory.is_none() && need.asked.compute.is_none() {
        return profiles(need.gpus).into_iter().filter(plain).min_by_key(smallest);
    }
    let tables = models(need.gpus).filter_map(catalog::GpuModel::mig_table);
    let fits = tables.flat_map(|table| {
        let most = table.entries().iter().map(|entry| entry.profile.compute()).max().unwrap_or(1);
        let fits = |entry: &crate::mig::ProfileEntry| {
            need.asked.memory.is_none_or(|memory| entry.memory >= memory)
                && need.asked.compute.is_none_or(|compute| has_compute(entry.profile, most, compute))
        };
        let fitting = table.entries().iter().filter(|entry| fits(entry)).map(|entry| entry.profile);
        fitting.filter(plain).collect::<Vec<_>>()
    });
    fits.min_by_key(smallest)
}

/// The known models that a pod may have; all of them where it may have one that is not known.
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

/// Whether some model that a pod may have serves this name, as far as its models are known.
pub(super) fn exists(resource: ResourceName, gpus: &GpuSelection) -> bool {
    let is_open = gpus.models.iter().all(|model| catalog::by_name(model).is_none());
    is_open
        || match resource {
            ResourceName::Mig(profile) | ResourceName::MigReplica(profile) => {
                profiles(gpus).contains(&profile)
            }
            ResourceName::Compute(profile) => profiles(gpus).contains(&profile.of()),
            ResourceName::Mps(size) => Some(size) <= largest(Kind::Mps, gpus),
            ResourceName::TimeSlicing(size) => Some(size) <= largest(Kind::TimeSlicing, gpus),
            ResourceName::Neutral(_)
            | ResourceName::Whole
            | ResourceName::Replica
            | ResourceName::MpsReplica
            | ResourceName::Plugin(..) => true,
        }
}

/// The largest size that a slice of this kind can have on the GPUs that a pod may have, as far as their models are known.
pub(super) fn largest(kind: Kind, gpus: &GpuSelection) -> Option<SizeGb> {
    let memory = || models(gpus).map(|model| model.memory.nominal()).max();
    match kind {
        Kind::Mig => profiles(gpus).into_iter().map(Profile::size).max(),
        // Which models there are the catalog does not know: where the pod names none, one may be larger.
        Kind::Whole if gpus.models.is_empty() => Some(LARGEST_SIZE),
        Kind::Mps | Kind::TimeSlicing if gpus.models.is_empty() => SHARE_SIZES.last().copied(),
        Kind::Whole => memory(),
        Kind::Mps | Kind::TimeSlicing => memory().min(SHARE_SIZES.last().copied()),
    }
}
