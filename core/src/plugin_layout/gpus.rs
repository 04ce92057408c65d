//! Which GPUs a node has, by the labels of GPU feature discovery, whatever layout they were written under.

use super::digest::digest;
use crate::mig::Profile;
use crate::mig::catalog::{self, GpuModel};
use crate::nvidia_keys::{
    COMPUTE_MAJOR, COMPUTE_MINOR, COUNT, DRIVER, MEMORY, MIG_CAPABLE, MIG_PREFIX, MIG_STRATEGY, PRODUCT,
    is_plugin_resource,
};
use crate::units::MemoryMib;
use std::collections::BTreeMap;

/// What stands behind the product's name if GPUs are shared, and before a MIG device's profile.
const SHARED: &str = "-SHARED";
const MIG: &str = "-MIG-";

/// The GPUs of a node that NVIDIA's device plugin serves, or may serve.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeGpus {
    /// Their model's name in messages: the product, or that it is not known.
    pub product: String,
    /// Their model, if the catalog has it.
    pub model: Option<&'static GpuModel>,
    /// How many; `None` if the labels do not tell.
    pub count: Option<u32>,
    /// Whether they can be cut; `None` if the labels do not tell.
    pub mig_capable: Option<bool>,
    /// Their compute capability.
    pub compute: Option<(u32, u32)>,
    /// Whether some are cut now, and offered so or told of.
    pub has_mig_devices: bool,
    /// Changes with the GPUs, the driver and at a boot: a part for each, to be compared by [`is_another`].
    pub fingerprint: String,
}

impl NodeGpus {
    /// The GPUs of a node with these labels and this allocatable; `None` if nothing tells of any.
    #[must_use]
    pub fn of(
        labels: &BTreeMap<String, String>,
        allocatable: &BTreeMap<String, u64>,
        boot: &str,
    ) -> Option<Self> {
        let value = |key: &str| labels.get(key).map(String::as_str);
        let number = |key: &str| value(key)?.parse::<u32>().ok();
        let label = value(PRODUCT);
        if label.is_none()
            && number(COUNT).is_none()
            && !allocatable.keys().any(|name| is_plugin_resource(name))
        {
            return None;
        }
        let (product, device) = label.map_or(("GPUs of an unknown model", None), plain);
        let memory = value(MEMORY).filter(|_| device.is_none()).and_then(|memory| memory.parse().ok());
        let model = model(product, memory.map(MemoryMib));
        let count = match device {
            None => number(COUNT).filter(|count| *count > 0),
            Some(device) => number(COUNT).and_then(|devices| gpus(devices, device, model)),
        };
        let mig_capable = value(MIG_CAPABLE).map(|capable| capable == "true");
        let compute = number(COMPUTE_MAJOR).zip(number(COMPUTE_MINOR).or(Some(0)));
        // A plugin that restarts offers nothing for a moment, and pods hold on.
        let has_mig_devices = device.is_some()
            || labels.keys().any(|key| key.starts_with(MIG_PREFIX))
            || value(MIG_STRATEGY).is_some()
                && allocatable.iter().any(|(name, n)| name.contains("/mig-") && *n > 0);
        let counted = count.map(|count| count.to_string()).unwrap_or_default();
        let driver = value(DRIVER).unwrap_or_default();
        let product_told = label.map_or("", |_| product);
        let fingerprint = [product_told, &counted, driver, boot].map(part).join(".");
        Some(Self {
            product: product.to_owned(),
            model,
            count,
            mig_capable,
            compute,
            has_mig_devices,
            fingerprint,
        })
    }
}

/// What stands for a part of which nothing is told.
const UNTOLD: &str = "-";

fn part(text: &str) -> String {
    if text.is_empty() { UNTOLD.to_owned() } else { digest([text]) }
}

/// Whether a node's GPUs, driver or boot are others than they were. What is not told now, or was not then, is none: labels go with
/// the pod that writes them, and a cut that failed leaves no count. One of another form is an
/// older kerf's, and is as good as another node.
pub(super) fn is_another(before: &str, now: &str) -> bool {
    let parts = |text: &str| text.split('.').count();
    let differ = |(before, now): (&str, &str)| before != now && before != UNTOLD && now != UNTOLD;
    parts(before) != parts(now) || before.split('.').zip(now.split('.')).any(differ)
}

/// The product's name without what a layout puts behind it, and the profile of the MIG devices that it names.
fn plain(product: &str) -> (&str, Option<&str>) {
    let product = product.strip_suffix(SHARED).unwrap_or(product);
    match product.rsplit_once(MIG) {
        Some((product, device)) => (product, Some(device)),
        None => (product, None),
    }
}

/// The model with this product name: by its memory, if that is told of the whole GPU; else the one whose name says most, and
/// `None` if several say as much.
fn model(product: &str, memory: Option<MemoryMib>) -> Option<&'static GpuModel> {
    if let Some(memory) = memory {
        return catalog::by_product(product, memory);
    }
    let words = |text: &str| format!(" {} ", text.replace('-', " "));
    let named = words(product);
    let said = |model: &GpuModel| {
        let parts = model.products.iter().filter(|part| named.contains(&words(part)));
        parts.map(|part| part.len()).max()
    };
    let most = catalog::MODELS.iter().filter_map(said).max()?;
    let mut models = catalog::MODELS.iter().filter(|model| said(model) == Some(most));
    models.next().filter(|_| models.next().is_none())
}

/// How many GPUs have so many MIG devices of one profile, if each has as many as it can.
fn gpus(devices: u32, profile: &str, model: Option<&GpuModel>) -> Option<u32> {
    let profile: Profile = profile.replacen("gb.", "gb+", 1).parse().ok()?;
    let each = u32::from(model?.mig_table()?.entry(profile)?.max);
    (each > 0 && devices > 0 && devices.is_multiple_of(each)).then(|| devices / each)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugin_layout::testing::{labels, numbers};

    fn gpus(product: &str, count: &str) -> NodeGpus {
        NodeGpus::of(&labels(&[(PRODUCT, product), (COUNT, count)]), &numbers(&[]), "b").unwrap()
    }

    #[test]
    fn the_gpus_are_the_same_under_every_layout() {
        for (product, count) in [
            ("NVIDIA-A100-SXM4-80GB", "2"),
            ("NVIDIA-A100-SXM4-80GB-SHARED", "2"),
            ("NVIDIA-A100-SXM4-80GB-MIG-1g.10gb", "14"),
            ("NVIDIA-A100-SXM4-80GB-MIG-1g.10gb-SHARED", "14"),
        ] {
            let gpus = gpus(product, count);
            let model = gpus.model.map(|model| model.name);
            assert_eq!((model, gpus.count), (Some("A100-80GB"), Some(2)), "{product}");
            assert_eq!(gpus.fingerprint, self::gpus("NVIDIA-A100-SXM4-80GB", "2").fingerprint);
        }
    }

    #[test]
    fn what_the_labels_leave_open_is_not_guessed() {
        assert_eq!(gpus("NVIDIA-A100-SXM4-80GB-MIG-INVALID", "0").count, None);
        assert_eq!(gpus("NVIDIA-A100-SXM4-80GB-MIG-1g.10gb", "9").count, None);
        assert_eq!(gpus("NVIDIA-H20", "8").model, None, "two models are called so");
        let told = labels(&[(PRODUCT, "NVIDIA-H20"), (MEMORY, "143771")]);
        let told = NodeGpus::of(&told, &numbers(&[]), "b").unwrap();
        assert_eq!(told.model.map(|model| model.name), Some("H20-141GB"));
        assert_eq!(gpus("NVIDIA-GeForce-RTX-4090", "1").model, None);
        let plugin = NodeGpus::of(&labels(&[]), &numbers(&[("nvidia.com/gpu", 1)]), "b").unwrap();
        assert_eq!((plugin.model, plugin.count), (None, None));
    }

    #[test]
    fn what_is_not_told_is_no_other_node() {
        let of = |all: &[(&str, &str)], boot: &str| {
            NodeGpus::of(&labels(all), &numbers(&[("nvidia.com/gpu", 8)]), boot).unwrap().fingerprint
        };
        let product = (PRODUCT, "NVIDIA-A100-SXM4-80GB");
        let told = of(&[product, (COUNT, "8"), (DRIVER, "570.1")], "b");
        for (labels, boot, is_another) in [
            (&[product, (COUNT, "8"), (DRIVER, "570.1")][..], "b", false),
            (&[(PRODUCT, "NVIDIA-A100-SXM4-80GB-MIG-INVALID"), (COUNT, "0"), (DRIVER, "570.1")], "b", false),
            (&[], "b", false),
            (&[], "c", true),
            (&[product, (COUNT, "7"), (DRIVER, "570.1")], "b", true),
            (&[product, (COUNT, "8"), (DRIVER, "580.1")], "b", true),
            (&[(PRODUCT, "NVIDIA-H200"), (COUNT, "8")], "b", true),
        ] {
            let now = of(labels, boot);
            assert_eq!(super::is_another(&told, &now), is_another, "{labels:?}, boot {boot}");
            assert_eq!(super::is_another(&now, &told), is_another, "{labels:?}, boot {boot}");
        }
        assert!(super::is_another("1a2b3c4d", &told), "as kerf wrote it before");
    }

    #[test]
    fn a_node_without_gpus_has_none() {
        assert_eq!(NodeGpus::of(&labels(&[("a", "b")]), &numbers(&[("cpu", 4)]), "b"), None);
    }
}
