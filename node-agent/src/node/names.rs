//! The resource names that a node serves and the labels that tell what it can serve, from its GPUs alone.
//!
//! All names are registered at start, with no devices: a kubelet that never heard of a name starts the pod without GPU.

use crate::gpu::Gpu;
use kerf_core::accounting::beside_shares;
use kerf_core::contract::GpuRule;
use kerf_core::keys;
use kerf_core::kind::Kind;
use kerf_core::mig::{ComputeProfile, MigTable, Profile, catalog};
use kerf_core::resource::{ResourceName, SHARE_SIZES};
use kerf_core::units::SizeGb;
use std::collections::{BTreeMap, BTreeSet};

/// Every name that a slice of these GPUs can be offered under: under MIG the profiles that are present and the plain
/// profiles of other models whose promise one of them keeps; else the GPU as a whole, and all sizes of shares that fit.
/// What policy's rule adds is asked for by names of its own. Kinds that it does not allow have their names all the same: it
/// may change, and a name must be there before a pod is.
pub(crate) fn resource_names<'g>(gpus: impl Iterator<Item = (&'g Gpu, GpuRule)>) -> BTreeSet<ResourceName> {
    let mut names = BTreeSet::new();
    for (gpu, rule) in gpus {
        if let Some(table) = &gpu.table {
            let present: Vec<_> = table.entries().iter().map(|e| e.profile).collect();
            names.extend(instance_names(&present));
            if rule.mig.time_slicing.is_some() {
                names.extend(present.iter().copied().map(ResourceName::MigReplica));
            }
            if rule.compute_instances {
                names.extend(present.into_iter().flat_map(parts));
            }
        } else {
            names.extend(share_sizes(gpu).flat_map(|s| [ResourceName::Mps(s), ResourceName::TimeSlicing(s)]));
            names.insert(ResourceName::Whole);
            let shared = Kind::ALL.into_iter().filter(|kind| rule.replicas(*kind).is_some());
            names.extend(shared.filter_map(ResourceName::replica));
        }
    }
    names
}

fn instance_names(present: &[Profile]) -> impl Iterator<Item = ResourceName> {
    let known = catalog::profiles().into_iter().filter(|profile| profile.is_plain()).map(ResourceName::Mig);
    let kept = known.filter(|name| present.iter().any(|profile| name.is_kept_by(*profile)));
    kept.chain(present.iter().copied().map(ResourceName::Mig))
}

fn parts(profile: Profile) -> impl Iterator<Item = ResourceName> {
    let all = ComputeProfile::all(profile).filter(move |part| part.compute() < profile.compute());
    all.map(ResourceName::Compute)
}

/// Also those that hold all of the memory, though no new share does: one that an extender of an earlier version gave away is held
/// on under its name.
fn share_sizes(gpu: &Gpu) -> impl Iterator<Item = SizeGb> {
    let memory = gpu.memory;
    SHARE_SIZES.into_iter().filter(move |size| size.share_memory() <= memory)
}

/// The node labels that the agent owns; `None` for one that must not be there.
pub(crate) fn labels<'g>(
    gpus: impl Iterator<Item = (&'g Gpu, Vec<Kind>)>,
) -> BTreeMap<String, Option<String>> {
    let gpus: Vec<_> = gpus.collect();
    let models: BTreeSet<String> =
        gpus.iter().map(|(gpu, _)| catalog::short_name(&gpu.product, gpu.memory)).collect();
    let model =
        if models.len() > 1 { Some(keys::MIXED_MODELS.to_owned()) } else { models.into_iter().next() };
    let mut labels = BTreeMap::from([(keys::NODE_MODEL.to_owned(), model)]);
    for kind in Kind::ALL {
        let able = gpus.iter().filter(|(_, kinds)| kinds.contains(&kind));
        let largest = able.filter_map(|(gpu, _)| largest(gpu, kind)).max();
        labels.insert(keys::node_kind_label(kind), largest.map(|size| size.0.to_string()));
    }
    labels
}

fn largest(gpu: &Gpu, kind: Kind) -> Option<SizeGb> {
    match kind {
        Kind::Mig => gpu.table.iter().flat_map(MigTable::entries).map(|e| e.profile.size()).max(),
        Kind::Whole => Some(gpu.memory.nominal()),
        Kind::Mps | Kind::TimeSlicing => {
            let most = gpu.memory.saturating_sub(beside_shares(gpu.memory, Some(gpu.reserved)));
            share_sizes(gpu).filter(|size| size.share_memory() <= most).max()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::fake::FakeGpus;

    fn texts(models: &[&str]) -> Vec<String> {
        let gpus = FakeGpus::new(models).gpus();
        let gpus = gpus.iter().map(|gpu| (gpu, GpuRule::default()));
        resource_names(gpus).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_mig_node_serves_its_own_profiles_and_the_smaller_ones_of_other_models() {
        let names = texts(&["H100-80GB"]);
        for name in
            ["mig-1g.10gb", "mig-1g.10gb.me", "mig-7g.80gb", "mig-1g.5gb", "mig-1g.18gb", "mig-3g.20gb"]
        {
            assert!(names.contains(&format!("nvidia.com/{name}")), "{name} in {names:?}");
        }
        for name in ["mig-7g.141gb", "mig-1g.5gb.me", "gpu-10gb"] {
            assert!(!names.contains(&format!("nvidia.com/{name}")), "{name} in {names:?}");
        }
    }

    #[test]
    fn a_node_without_mig_serves_all_shares_that_fit() {
        let names = texts(&["T4-16GB"]);
        assert_eq!(names.len(), 27, "13 sizes up to 14 GB, two kinds, and the whole");
        assert!(names.contains(&"nvidia.com/gpu-14gb.shared".to_owned()));
        assert!(!names.contains(&"nvidia.com/gpu-16gb".to_owned()), "the GPU has 15 GiB");
    }

    #[test]
    fn labels_tell_the_model_and_the_largest_size_of_each_kind() {
        let of = |models: &[&str]| {
            let gpus = FakeGpus::new(models).gpus();
            labels(gpus.iter().map(|gpu| (gpu, super::super::rules::kinds(gpu, &GpuRule::default()))))
        };
        let labels = of(&["H100-80GB", "H100-80GB"]);
        assert_eq!(labels[keys::NODE_MODEL].as_deref(), Some("H100-80GB"));
        assert_eq!(labels["kerf.dev/mig-max-gb"].as_deref(), Some("80"));
        assert_eq!(labels["kerf.dev/mps-max-gb"], None);
        let labels = of(&["A100-40GB", "T4-16GB"]);
        assert_eq!(labels["kerf.dev/whole-max-gb"].as_deref(), Some("15"));
        assert_eq!(labels[keys::NODE_MODEL].as_deref(), Some("mixed"));
        assert_eq!(labels["kerf.dev/time-slicing-max-gb"].as_deref(), Some("14"));
    }
}
