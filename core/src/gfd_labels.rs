//! The labels that NVIDIA's GPU feature discovery (GFD) puts on nodes, with values that are true of a managed node,
//! because Kueue's flavours and other selectors use them.
//!
//! Names and values are GFD's (k8s-device-plugin `internal/lm`, v0.19.3) with MIG strategy `mixed`, which is how kerf
//! names MIG devices. GFD has one configuration for a node, and kerf has a policy for each GPU:
//!
//! - A product ends in `-SHARED` if its GPUs are available in shares only. If a whole GPU is available too, shares are
//!   a renamed resource, as with GFD's `renameByDefault`: the product stays, and `replicas` and `sharing-strategy`
//!   describe the shares. So the product changes with the policy, and not with every pod that comes and goes.
//! - A MIG device that pods may share in turns is available whole too, so its product has no `-SHARED` either.
//! - `replicas` is the number that the policy fixes, otherwise the number of shares on the fullest GPU now.
//! - `mps.capable` is always `false`: it makes NVIDIA start its MPS control daemon, which would take the GPUs from
//!   kerf's.
//! - With several models the labels describe the first one that is not in MIG mode; GFD takes any.

use crate::kind::Kind;
use crate::mig::{ComputeProfile, Profile};
use crate::nvidia_keys::PREFIX;
use crate::units::MemoryMib;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;

/// Labels of GPUs that kerf writes, without [`PREFIX`] and `gpu.`.
const GPU_LABELS: [&str; 9] = [
    "product",
    "count",
    "replicas",
    "sharing-strategy",
    "memory",
    "family",
    "compute.major",
    "compute.minor",
    "mode",
];

/// Labels of each MIG profile that kerf writes, without [`PREFIX`], `mig-` and the profile's name.
const PROFILE_LABELS: [&str; 13] = [
    "product",
    "count",
    "replicas",
    "sharing-strategy",
    "memory",
    "multiprocessors",
    "slices.gi",
    "slices.ci",
    "engines.copy",
    "engines.decoder",
    "engines.encoder",
    "engines.jpeg",
    "engines.ofa",
];

/// Labels of the node that kerf writes, without [`PREFIX`].
const NODE_LABELS: [&str; 15] = [
    "mig.capable",
    "mig.strategy",
    "mps.capable",
    "cuda.driver-version.major",
    "cuda.driver-version.minor",
    "cuda.driver-version.revision",
    "cuda.driver-version.full",
    "cuda.runtime-version.major",
    "cuda.runtime-version.minor",
    "cuda.runtime-version.full",
    "cuda.driver.major",
    "cuda.driver.minor",
    "cuda.driver.rev",
    "cuda.runtime.major",
    "cuda.runtime.minor",
];

/// Kubernetes' limit for a label's value (`LabelValueMaxLength`).
const VALUE_LENGTH_LIMIT: usize = 63;

/// The labels of a node, as key and value.
pub type GfdLabels = BTreeMap<String, String>;

/// The properties of one GPU that the labels describe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LabelledGpu {
    /// The product name as NVML reports it.
    pub product: String,
    /// The total memory of the GPU.
    pub memory: MemoryMib,
    /// The CUDA compute capability, major and minor.
    pub capability: (u32, u32),
    /// The class on the PCI bus; `None` if the machine does not report it.
    pub pci_class: Option<u32>,
    /// Whether the GPU has a MIG mode.
    pub mig_capable: bool,
    /// Whether the MIG mode is on.
    pub mig_on: bool,
    /// The kinds of slice that mode and policy allow.
    pub kinds: Vec<Kind>,
    /// The number of shares on the GPU now, by kind.
    pub shares: BTreeMap<Kind, u32>,
    /// The number of shares that the policy fixes; `None` if it fixes none.
    pub fixed: Option<u32>,
}

/// The properties of one MIG device that the labels describe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LabelledInstance {
    /// The product name of its GPU.
    pub product: String,
    /// The profile by which the device is named.
    pub profile: InstanceProfile,
    /// The number of pods that may share it by time slicing; `None` if the policy does not allow that.
    pub turns: Option<u8>,
    /// Its resources; `None` if the driver does not report them.
    pub attributes: Option<Attributes>,
}

/// The profile of a MIG device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum InstanceProfile {
    /// A GPU instance with one compute instance of full size.
    Full(Profile),
    /// A compute instance that shares its GPU instance with others.
    Part(ComputeProfile),
}

impl InstanceProfile {
    /// The name in GFD's labels and in resource names: `1g.10gb.me` for NVML's `1g.10gb+me`.
    fn name(self) -> String {
        let name = match self {
            Self::Full(profile) => profile.to_string(),
            Self::Part(part) => part.to_string(),
        };
        name.replace('+', ".")
    }
}

/// The resources of a MIG device (`nvmlDeviceGetAttributes_v2`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attributes {
    /// The memory of the MIG device.
    pub memory: MemoryMib,
    /// The number of streaming multiprocessors.
    pub multiprocessors: u32,
    /// The compute slices of its GPU instance.
    pub gpu_slices: u32,
    /// The compute slices of its compute instance.
    pub compute_slices: u32,
    /// The number of copy engines.
    pub copy: u32,
    /// The number of video decoders.
    pub decoder: u32,
    /// The number of video encoders.
    pub encoder: u32,
    /// The number of JPEG engines.
    pub jpeg: u32,
    /// The number of optical flow accelerators.
    pub ofa: u32,
}

/// The properties of the driver that the labels describe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LabelledDriver {
    /// The driver's version, such as `580.159.04`.
    pub version: String,
    /// The newest CUDA version that it runs, major and minor.
    pub cuda: (u32, u32),
}

/// The labels of a node with these GPUs (in the order of their indexes) and MIG devices; empty for a node without a
/// GPU. Labels whose value Kubernetes would reject are left out, as NFD does.
#[must_use]
pub fn labels(
    gpus: &[LabelledGpu],
    instances: &[LabelledInstance],
    driver: Option<&LabelledDriver>,
) -> GfdLabels {
    let Some(shown) = gpus.iter().find(|gpu| !gpu.mig_on).or(gpus.first()) else { return GfdLabels::new() };
    let mut labels = GfdLabels::new();
    label_gpus(&mut labels, shown, gpus);
    label_instances(&mut labels, instances);
    let mig_capable = gpus.iter().any(|gpu| gpu.mig_capable);
    set(&mut labels, "mig.capable", mig_capable);
    if mig_capable {
        set(&mut labels, "mig.strategy", "mixed");
    }
    set(&mut labels, "mps.capable", false);
    if let Some(driver) = driver {
        label_driver(&mut labels, driver);
    }
    labels.retain(|_, value| is_value(value));
    labels
}

/// Whether kerf writes a label of this name on managed nodes, and therefore removes it when it is no longer true.
#[must_use]
pub fn is_published(key: &str) -> bool {
    let Some(rest) = key.strip_prefix(PREFIX) else { return false };
    let of_gpu = rest.strip_prefix("gpu.").is_some_and(|suffix| GPU_LABELS.contains(&suffix));
    of_gpu || NODE_LABELS.contains(&rest) || rest.strip_prefix("mig-").is_some_and(is_profile_label)
}

fn is_profile_label(rest: &str) -> bool {
    PROFILE_LABELS.iter().any(|suffix| {
        let name = rest.strip_suffix(suffix).and_then(|rest| rest.strip_suffix('.'));
        name.is_some_and(|name| !name.is_empty() && name.contains("g."))
    })
}

fn set(labels: &mut GfdLabels, name: &str, value: impl Display) {
    labels.insert(format!("{PREFIX}{name}"), format!("{value}"));
}

fn label_gpus(labels: &mut GfdLabels, shown: &LabelledGpu, gpus: &[LabelledGpu]) {
    let same: Vec<_> = gpus.iter().filter(|gpu| gpu.product == shown.product).collect();
    let sharing = Sharing::from_gpus(same.iter().copied().filter(|gpu| !gpu.mig_on));
    let product = sanitised(&shown.product);
    set(labels, "gpu.product", if sharing.only { format!("{product}-SHARED") } else { product });
    set(labels, "gpu.count", same.len());
    set(labels, "gpu.replicas", sharing.replicas);
    set(labels, "gpu.sharing-strategy", sharing.strategy.map_or("none", Kind::as_str));
    if !shown.memory.is_zero() {
        set(labels, "gpu.memory", shown.memory.0);
    }
    let (major, minor) = shown.capability;
    if major > 0 {
        set(labels, "gpu.family", family(major, minor));
        set(labels, "gpu.compute.major", major);
        set(labels, "gpu.compute.minor", minor);
    }
    set(labels, "gpu.mode", mode(gpus));
}

/// The sharing of one model's GPUs that are not in MIG mode.
struct Sharing {
    /// Whether none of them is available as a whole.
    only: bool,
    /// The number of shares on the GPU with the most.
    replicas: u32,
    strategy: Option<Kind>,
}

impl Sharing {
    fn from_gpus<'g>(gpus: impl Iterator<Item = &'g LabelledGpu>) -> Self {
        let gpus: Vec<_> = gpus.collect();
        // GFD writes 1 for unshared GPUs, and 0 if no GPU can be used as a whole.
        let none = Self { only: false, replicas: u32::from(!gpus.is_empty()), strategy: None };
        let only = !gpus.is_empty() && gpus.iter().all(|gpu| gpu.is_only_shared());
        // The order is reversed, because `max_by_key` returns the last of equal GPUs and the first one must win.
        let shared = gpus.iter().filter_map(|gpu| gpu.shared()).rev().max_by_key(|(_, replicas)| *replicas);
        match shared {
            Some((strategy, replicas)) => Self { only, replicas, strategy: Some(strategy) },
            None => none,
        }
    }
}

impl LabelledGpu {
    fn is_only_shared(&self) -> bool {
        !self.kinds.is_empty() && self.kinds.iter().copied().all(is_share)
    }

    /// The kind of the GPU's shares, and their number.
    fn shared(&self) -> Option<(Kind, u32)> {
        let here = self.shares.iter().filter(|(kind, count)| is_share(**kind) && **count > 0);
        let most = here.rev().max_by_key(|(_, count)| **count).map(|(kind, count)| (*kind, *count));
        let planned = || self.kinds.first().copied().filter(|_| self.is_only_shared()).map(|kind| (kind, 1));
        let (kind, count) = most.or_else(planned)?;
        let fixed = self.fixed.filter(|_| self.is_only_shared());
        Some((kind, fixed.unwrap_or(count)))
    }
}

fn is_share(kind: Kind) -> bool {
    matches!(kind, Kind::Mps | Kind::TimeSlicing)
}

fn label_instances(labels: &mut GfdLabels, instances: &[LabelledInstance]) {
    let mut by_profile = BTreeMap::<InstanceProfile, Vec<&LabelledInstance>>::new();
    for instance in instances {
        by_profile.entry(instance.profile).or_default().push(instance);
    }
    for (profile, all) in by_profile {
        let name = profile.name();
        let mut set = |suffix: &str, value: String| set(labels, &format!("mig-{name}.{suffix}"), value);
        set("product", format!("{}-MIG-{}", sanitised(&all[0].product), sanitised(&name)));
        set("count", all.len().to_string());
        let turns = all.iter().filter_map(|instance| instance.turns).max();
        set("replicas", turns.unwrap_or(1).to_string());
        set("sharing-strategy", if turns.is_some() { Kind::TimeSlicing.as_str() } else { "none" }.to_owned());
        let Some(attributes) = all.iter().find_map(|instance| instance.attributes) else { continue };
        for (suffix, value) in attributes.labels() {
            set(suffix, value.to_string());
        }
    }
}

impl Attributes {
    fn labels(self) -> [(&'static str, u64); 9] {
        [
            ("memory", self.memory.0),
            ("multiprocessors", self.multiprocessors.into()),
            ("slices.gi", self.gpu_slices.into()),
            ("slices.ci", self.compute_slices.into()),
            ("engines.copy", self.copy.into()),
            ("engines.decoder", self.decoder.into()),
            ("engines.encoder", self.encoder.into()),
            ("engines.jpeg", self.jpeg.into()),
            ("engines.ofa", self.ofa.into()),
        ]
    }
}

/// GFD rejects a driver whose version does not have two or three parts, so kerf then writes no label of it.
fn label_driver(labels: &mut GfdLabels, driver: &LabelledDriver) {
    let parts: Vec<&str> = driver.version.split('.').collect();
    let (major, minor, revision) = match parts[..] {
        [major, minor] => (major, minor, ""),
        [major, minor, revision] => (major, minor, revision),
        _ => return,
    };
    for (name, value) in [
        ("cuda.driver-version.major", major),
        ("cuda.driver-version.minor", minor),
        ("cuda.driver-version.revision", revision),
        ("cuda.driver-version.full", &driver.version),
        ("cuda.driver.major", major),
        ("cuda.driver.minor", minor),
        ("cuda.driver.rev", revision),
    ] {
        set(labels, name, value);
    }
    let (major, minor) = driver.cuda;
    for (name, value) in [
        ("cuda.runtime-version.major", major.to_string()),
        ("cuda.runtime-version.minor", minor.to_string()),
        ("cuda.runtime-version.full", format!("{major}.{minor}")),
        ("cuda.runtime.major", major.to_string()),
        ("cuda.runtime.minor", minor.to_string()),
    ] {
        set(labels, name, value);
    }
}

/// Only the characters that a label may have, with dashes for spaces.
fn sanitised(text: &str) -> String {
    let kept: String =
        text.chars().filter(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | ' ')).collect();
    kept.split_whitespace().collect::<Vec<_>>().join("-")
}

/// GFD's `getArchFamily`. Like GFD, it calls a family that is newer than its list `undefined`.
fn family(major: u32, minor: u32) -> &'static str {
    match (major, minor) {
        (1, _) => "tesla",
        (2, _) => "fermi",
        (3, _) => "kepler",
        (5, _) => "maxwell",
        (6, _) => "pascal",
        (7, 0..5) => "volta",
        (7, _) => "turing",
        (8, 0..9) => "ampere",
        (8, _) => "ada-lovelace",
        (9, _) => "hopper",
        (10 | 12, _) => "blackwell",
        _ => "undefined",
    }
}

/// The mode by the PCI class that all GPUs share (the PCI code and ID assignment specification: 0x0300 VGA, 0x0302 3D).
fn mode(gpus: &[LabelledGpu]) -> &'static str {
    let classes: BTreeSet<Option<u32>> = gpus.iter().map(|gpu| gpu.pci_class).collect();
    match classes.into_iter().collect::<Vec<_>>()[..] {
        [Some(0x03_00_00)] => "graphics",
        [Some(0x03_02_00)] => "compute",
        _ => "unknown",
    }
}

fn is_value(value: &str) -> bool {
    let ends = |c: Option<char>| c.is_none_or(|c| c.is_ascii_alphanumeric());
    value.len() <= VALUE_LENGTH_LIMIT && ends(value.chars().next()) && ends(value.chars().next_back())
}

#[cfg(test)]
#[path = "gfd_labels_tests.rs"]
mod tests;
