//! The resource names that a node serves, and the labels that show what it can serve, from its GPUs alone.
//!
//! All names are registered at the start, without devices: a kubelet that has never seen a name starts the pod without
//! a GPU.

use crate::gpu::Gpu;
use kerf_core::accounting::beside_shares;
use kerf_core::contract::{GpuRule, Shape};
use kerf_core::keys;
use kerf_core::kind::Kind;
use kerf_core::mig::{ComputeProfile, MigTable, Profile};
use kerf_core::resource::{NEUTRAL_SIZES, ResourceName, SHARE_SIZES, neutral_size};
use kerf_core::units::SizeGb;
use std::collections::{BTreeMap, BTreeSet};

/// Every name under which a slice of these GPUs can be offered: the neutral names up to the largest GPU; under MIG the
/// profiles of the GPU; else the GPU as a whole, and all sizes of shares that fit. Further names come from the policy's
/// rule. Kinds that the policy does not allow have their names too, because the policy may change and a name must exist
/// before its pod does.
pub(crate) fn resource_names<'g>(gpus: impl Iterator<Item = (&'g Gpu, GpuRule)>) -> BTreeSet<ResourceName> {
    let mut names = BTreeSet::new();
    for (gpu, rule) in gpus {
        let largest = neutral_step(gpu.memory.nominal());
        names.extend(neutral_names().take_while(|(size, _)| *size <= largest).map(|(_, name)| name));
        if let Some(table) = &gpu.table {
            let present: Vec<_> = table.entries().iter().map(|e| e.profile).collect();
            names.extend(present.iter().copied().map(ResourceName::Mig));
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

/// The neutral names with their sizes, ascending.
fn neutral_names() -> impl Iterator<Item = (SizeGb, ResourceName)> {
    NEUTRAL_SIZES.into_iter().map(|size| (size, ResourceName::Neutral(size)))
}

/// The neutral size for a slice of this size, rounded up; the largest for slices that exceed all.
fn neutral_step(size: SizeGb) -> SizeGb {
    let [.., largest] = NEUTRAL_SIZES;
    neutral_size(size).unwrap_or(largest)
}

/// The largest size whose neutral name is in `registered`, with those of all smaller sizes.
pub(crate) fn neutral_up_to(registered: &BTreeSet<ResourceName>) -> Option<SizeGb> {
    neutral_names().take_while(|(_, name)| registered.contains(name)).map(|(size, _)| size).last()
}

/// Whether a slice of this shape can be offered under a name. A neutral name covers all sizes above the next smaller
/// one.
pub(crate) fn is_kept_by(name: ResourceName, shape: Shape) -> bool {
    match name {
        ResourceName::Neutral(size) => neutral_step(shape.size()) >= size,
        name => shape.keeps(name),
    }
}

fn parts(profile: Profile) -> impl Iterator<Item = ResourceName> {
    let all = ComputeProfile::all(profile).filter(move |part| part.compute() < profile.compute());
    all.map(ResourceName::Compute)
}

/// Sizes of shares that fit on the GPU. They include the size of all its memory though no new share has it: an extender
/// of an earlier version may have assigned one, and its pod still uses that name.
fn share_sizes(gpu: &Gpu) -> impl Iterator<Item = SizeGb> {
    let memory = gpu.memory;
    SHARE_SIZES.into_iter().filter(move |size| size.share_memory() <= memory)
}

/// The node labels that the agent owns; `None` removes a label.
pub(crate) fn labels<'g>(
    gpus: impl Iterator<Item = (&'g Gpu, Vec<Kind>)>,
) -> BTreeMap<String, Option<String>> {
    let gpus: Vec<_> = gpus.collect();
    let models: BTreeSet<String> = gpus.iter().map(|(gpu, _)| gpu.model.clone()).collect();
    let model =
        if models.len() > 1 { Some(keys::MIXED_MODELS.to_owned()) } else { models.into_iter().next() };
    let mut labels = BTreeMap::from([(keys::NODE_MODEL.to_owned(), model)]);
    for kind in Kind::ALL {
        let able = gpus.iter().filter(|(_, kinds)| kinds.contains(&kind));
        let largest = able.filter_map(|(gpu, _)| largest(gpu, kind)).max();
        labels.insert(keys::node_kind_label(kind), largest.map(|size| size.0.to_string()));
    }
    let slices = gpus.iter().flat_map(|(gpu, kinds)| kinds.iter().filter_map(|kind| largest(gpu, *kind)));
    let largest = slices.max().map(neutral_step);
    labels.insert(keys::NODE_MAX_GB.to_owned(), largest.map(|size| size.0.to_string()));
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
    fn a_node_registers_the_ladder_and_no_other_models_profiles() {
        let names = texts(&["H100-80GB"]);
        assert_eq!(names.len(), 30, "7 profiles and 23 sizes up to 80 GB: {names:?}");
        let has = |name: &str| names.iter().any(|known| known == name);
        for name in ["nvidia.com/mig-1g.10gb", "nvidia.com/mig-1g.10gb.me", "nvidia.com/mig-7g.80gb"] {
            assert!(has(name), "{name} in {names:?}");
        }
        for name in ["nvidia.com/mig-1g.5gb", "nvidia.com/mig-1g.18gb", "nvidia.com/gpu-10gb"] {
            assert!(!has(name), "{name} in {names:?}");
        }
        assert!(
            has("kerf.dev/gpu-1gb") && has("kerf.dev/gpu-80gb") && !has("kerf.dev/gpu-96gb"),
            "{names:?}"
        );
        let names = texts(&["T4-16GB", "H200-141GB"]);
        assert!(names.contains(&"kerf.dev/gpu-141gb".to_owned()), "{names:?}");
    }

    #[test]
    fn a_node_without_mig_serves_all_shares_that_fit() {
        let names = texts(&["T4-16GB"]);
        let sizes = |prefix: &str| names.iter().filter(|name| name.starts_with(prefix)).count();
        assert_eq!(sizes("nvidia.com/"), 27, "13 sizes up to 14 GB, two kinds, and the whole");
        assert_eq!(sizes("kerf.dev/"), 14, "the whole GPU of 15 GB is one of 16 GB: {names:?}");
        assert!(names.contains(&"nvidia.com/gpu-14gb.shared".to_owned()));
        assert!(!names.contains(&"nvidia.com/gpu-16gb".to_owned()), "the GPU has 15 GiB");
    }

    #[test]
    fn labels_show_the_model_and_the_largest_size_of_each_kind() {
        let of = |models: &[&str]| {
            let gpus = FakeGpus::new(models).gpus();
            labels(gpus.iter().map(|gpu| (gpu, super::super::rules::kinds(gpu, &GpuRule::default()))))
        };
        let labels = of(&["H100-80GB", "H100-80GB"]);
        assert_eq!(labels[keys::NODE_MODEL].as_deref(), Some("H100-80GB"));
        assert_eq!(labels["kerf.dev/mig-max-gb"].as_deref(), Some("80"));
        assert_eq!(labels["kerf.dev/mps-max-gb"], None);
        assert_eq!(labels["kerf.dev/gpu-max-gb"].as_deref(), Some("80"));
        let labels = of(&["A100-40GB", "T4-16GB"]);
        assert_eq!(labels["kerf.dev/whole-max-gb"].as_deref(), Some("15"));
        assert_eq!(labels[keys::NODE_MODEL].as_deref(), Some("mixed"));
        assert_eq!(labels["kerf.dev/time-slicing-max-gb"].as_deref(), Some("14"));
        let labels = of(&["T4-16GB"]);
        assert_eq!(labels["kerf.dev/gpu-max-gb"].as_deref(), Some("16"), "the whole GPU has a name of 16 GB");
    }
}
