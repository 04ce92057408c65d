//! The labels of GPU feature discovery, and whether the node's capacity agrees with them (k8s-device-plugin
//! `internal/lm`).

use super::{Doubt, StaticOffer};
use crate::kind::Kind;
use crate::mig::catalog::{self, GpuModel};
use crate::mig::{MigTable, Profile};
use crate::nvidia_keys::{self, attribute};
use crate::resource::PluginName;
use crate::units::MemoryMib;
use std::collections::BTreeMap;

const MIG: &str = "-MIG-";
const INVALID: &str = "-MIG-INVALID";

/// The compute slices of a MIG-capable GPU that is not in the catalog: no GPU has more (MIG user guide).
const COMPUTE_SLICES_LIMIT: u8 = 7;

pub(super) type Labels = BTreeMap<String, String>;

/// The devices of one name, by the node's labels.
#[derive(Debug, Clone, Copy, Default)]
struct LabelledDevices {
    /// The number of GPUs or MIG instances before they are shared.
    count: Option<u32>,
    /// The number of replicas of each; 0 for a device that cannot be used.
    replicas: Option<u32>,
    /// The memory of one device.
    memory: Option<MemoryMib>,
    /// Whether the replicas are made by MPS.
    mps: bool,
    /// The MIG profile, if the devices are MIG instances.
    profile: Option<Profile>,
}

impl LabelledDevices {
    /// The number of devices by the labels, if the capacity differs in a way that puts their kind in doubt.
    fn disagrees(&self, name: PluginName, capacity: u32) -> Option<u32> {
        let (units, replicas) = (self.count.filter(|count| *count > 0)?, self.replicas.unwrap_or(1));
        // Fewer GPUs than the labels say are no doubt, because the plugin makes no `nvidia.com/gpu` of GPUs in MIG
        // mode, though the labels count them.
        let may_be_fewer =
            replicas == 1 && name == PluginName::Gpu && self.profile.is_none() && capacity <= units;
        let reported = units.saturating_mul(replicas);
        (capacity != reported && !may_be_fewer).then_some(reported)
    }
}

fn number<T: std::str::FromStr>(labels: &Labels, key: &str) -> Option<T> {
    labels.get(key)?.parse().ok()
}

/// The product's name as NVML reports it, as far as a label can hold it, and the profile if the whole node has one.
fn product(labels: &Labels) -> (String, Option<Profile>) {
    let product = labels.get(nvidia_keys::PRODUCT).map_or("", String::as_str);
    let product = product.strip_suffix("-SHARED").unwrap_or(product);
    let (gpu, profile) = product.split_once(MIG).unwrap_or((product, ""));
    // A label has dashes for spaces, and a dot for the `+` in a profile's name.
    (gpu.replace('-', " "), profile.replacen("gb.", "gb+", 1).parse().ok())
}

/// The short name of the node's GPU model; empty if the labels do not say it.
pub(super) fn model(labels: &Labels) -> String {
    let (product, profile) = product(labels);
    let memory = number(labels, nvidia_keys::MEMORY).map_or(MemoryMib(0), MemoryMib);
    // Under strategy `single` the label has an instance's memory, so the GPU's comes from name and profile.
    let memory = profile.map_or(memory, |profile| memory_of(&product, profile));
    if product.is_empty() { String::new() } else { catalog::short_name(&product, memory) }
}

/// The memory of a GPU of this name that has `profile`: from the name, as in `A100-SXM4-80GB`, otherwise from the
/// catalog's models of this name.
fn memory_of(product: &str, profile: Profile) -> MemoryMib {
    let in_name = product.split([' ', '-']).find_map(|word| word.strip_suffix("GB")?.parse::<u64>().ok());
    let has_profile = |model: &&GpuModel| {
        let named = catalog::by_product(product, model.memory).is_some_and(|known| known.name == model.name);
        let has = |table: MigTable| table.entries().iter().any(|entry| entry.profile == profile);
        named && model.mig_table().is_some_and(has)
    };
    let known = || catalog::MODELS.iter().find(has_profile).map(|model| model.memory);
    in_name.map(|gb| MemoryMib(gb * 1024)).or_else(known).unwrap_or(MemoryMib(0))
}

/// The percentage of a GPU's compute that an instance of `profile` has.
fn compute(labels: &Labels, profile: Profile) -> u8 {
    let table = catalog::by_name(&model(labels)).and_then(GpuModel::mig_table).unwrap_or_default();
    let most =
        table.entries().iter().map(|entry| entry.profile.compute()).max().unwrap_or(COMPUTE_SLICES_LIMIT);
    u8::try_from(u32::from(profile.compute()) * 100 / u32::from(most)).unwrap_or(100)
}

fn labelled(labels: &Labels, name: PluginName) -> LabelledDevices {
    let (plain, profile) = match name {
        PluginName::Gpu | PluginName::Shared => (PluginName::Gpu, product(labels).1),
        PluginName::Mig(profile) | PluginName::MigShared(profile) => {
            (PluginName::Mig(profile), Some(profile))
        }
    };
    let key = |attribute: &str| nvidia_keys::label(plain, attribute);
    LabelledDevices {
        count: number(labels, &key(attribute::COUNT)),
        replicas: number(labels, &key(attribute::REPLICAS)),
        memory: number(labels, &key(attribute::MEMORY)).map(MemoryMib).filter(|memory| !memory.is_zero()),
        mps: labels.get(&key(attribute::SHARING_STRATEGY)).is_some_and(|strategy| strategy == "mps"),
        profile,
    }
}

/// The offer of a node under `name`, with `capacity` devices and `allocatable` usable ones, and a doubt if labels and
/// capacity disagree.
///
/// Allocatable counts. Labels are up to a minute late, and allocatable may be late too. If they disagree, the devices
/// count as time slices, which isolate nothing, of the smaller of both sizes.
pub(super) fn offer(
    labels: &Labels,
    name: PluginName,
    capacity: u32,
    allocatable: u32,
) -> Option<(StaticOffer, Option<Doubt>)> {
    let is_invalid = labels.get(nvidia_keys::PRODUCT).is_some_and(|product| product.contains(INVALID));
    let labelled = labelled(labels, name);
    if is_invalid && matches!(name, PluginName::Gpu | PluginName::Shared) || labelled.replicas == Some(0) {
        return None;
    }
    let renamed = matches!(name, PluginName::Shared | PluginName::MigShared(_));
    let Some(units) = labelled.count.filter(|count| *count > 0) else {
        let (size, memory, kind) = (None, None, Kind::TimeSlicing);
        let unknown =
            StaticOffer { name, kind, size, memory, replicas: renamed, compute: 0, count: allocatable };
        return Some((unknown, None));
    };
    let doubt = labelled.disagrees(name, capacity).map(|reported| Doubt { name, there: capacity, reported });
    let reported = labelled.replicas.unwrap_or(1);
    let replicas = reported.max(capacity.div_ceil(units)).max(1);
    let kind = match (doubt.is_none(), replicas, labelled.profile) {
        (true, 1, Some(_)) if !renamed => Kind::Mig,
        (true, 1, None) if !renamed => Kind::Whole,
        (true, 2.., None) if labelled.mps => Kind::Mps,
        _ => Kind::TimeSlicing,
    };
    let part = |memory: MemoryMib| MemoryMib(memory.0 / u64::from(replicas));
    let nominal = labelled.profile.map(|profile| profile.size().share_memory());
    let compute = match (kind, labelled.profile) {
        (Kind::Whole, _) => 100,
        // The plugin's daemon limits each of its clients to this (`CUDA_MPS_ACTIVE_THREAD_PERCENTAGE`).
        (Kind::Mps, _) => u8::try_from(100 / replicas).unwrap_or(0),
        (Kind::Mig, Some(profile)) => compute(labels, profile),
        _ => 0,
    };
    let memory = labelled.memory.or(nominal).map(part);
    let size = match (kind, labelled.profile) {
        (Kind::Mig, Some(profile)) => Some(profile.size()),
        _ => memory.map(MemoryMib::nominal),
    };
    let shared = kind == Kind::Mps || kind == Kind::TimeSlicing;
    let offer = StaticOffer { name, kind, size, memory, replicas: shared, compute, count: allocatable };
    Some((offer, doubt))
}
