//! The GPUs of a node, by the labels of GPU feature discovery under any layout.

use super::digest::digest;
use crate::mig::Profile;
use crate::mig::catalog::{self, GpuModel};
use crate::nvidia_keys::{
    COMPUTE_MAJOR, COMPUTE_MINOR, COUNT, DRIVER, MEMORY, MIG_CAPABLE, MIG_PREFIX, MIG_STRATEGY, PRODUCT,
    is_plugin_resource,
};
use crate::units::MemoryMib;
use std::collections::BTreeMap;

/// Suffixes of the product label: the first on shared GPUs, the second before a MIG device's profile.
const SHARED: &str = "-SHARED";
const MIG: &str = "-MIG-";

/// The GPUs of a node that NVIDIA's device plugin serves, or may serve.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeGpus {
    /// The product name for messages, or a text saying that the model is unknown.
    pub product: String,
    /// The model; `None` if the catalog does not have it.
    pub model: Option<&'static GpuModel>,
    /// The number of whole GPUs; `None` if the labels do not say.
    pub count: Option<u32>,
    /// Whether MIG can cut them; `None` if the labels do not say.
    pub mig_capable: Option<bool>,
    /// The compute capability, major and minor; `None` if the labels do not say.
    pub compute: Option<(u32, u32)>,
    /// Whether labels or allocatable show that some are cut now.
    pub has_mig_devices: bool,
    /// Changes with the GPUs, the driver and at a boot. It has a part for each; compare it with [`is_another`].
    pub fingerprint: String,
}

impl NodeGpus {
    /// Reads the GPUs from a node's labels and allocatable; `None` if neither shows a GPU.
    #[must_use]
    pub fn from_labels(
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
        // The labels count too, because a restarting plugin advertises nothing for a moment while pods still hold
        // devices.
        let has_mig_devices = device.is_some()
            || labels.keys().any(|key| key.starts_with(MIG_PREFIX))
            || value(MIG_STRATEGY).is_some()
                && allocatable.iter().any(|(name, n)| name.contains("/mig-") && *n > 0);
        let counted = count.map(|count| count.to_string()).unwrap_or_default();
        let driver = value(DRIVER).unwrap_or_default();
        let known_product = label.map_or("", |_| product);
        let fingerprint = [known_product, &counted, driver, boot].map(part).join(".");
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

/// The part of a fingerprint for a property that is not in the labels.
const UNKNOWN: &str = "-";

fn part(text: &str) -> String {
    if text.is_empty() { UNKNOWN.to_owned() } else { digest([text]) }
}

/// Whether a node's GPUs, driver or boot differ from before. A part that is absent now or was absent then does not
/// count: labels go with the pod that writes them, and a failed cut leaves no count. Otherwise kerf would retry a
/// layout because of what its failure has changed. A fingerprint of another form is from an older kerf and counts as a
/// difference.
pub(super) fn is_another(before: &str, now: &str) -> bool {
    let parts = |text: &str| text.split('.').count();
    let differ = |(before, now): (&str, &str)| before != now && before != UNKNOWN && now != UNKNOWN;
    parts(before) != parts(now) || before.split('.').zip(now.split('.')).any(differ)
}

/// The product's name without the suffixes that a layout adds, and the profile of the MIG devices in it.
fn plain(product: &str) -> (&str, Option<&str>) {
    let product = product.strip_suffix(SHARED).unwrap_or(product);
    match product.rsplit_once(MIG) {
        Some((product, device)) => (product, Some(device)),
        None => (product, None),
    }
}

/// The model with this product name. With the memory of the whole GPU the catalog decides; without it the model with
/// the longest matching name wins, and several of that length give `None`.
fn model(product: &str, memory: Option<MemoryMib>) -> Option<&'static GpuModel> {
    if let Some(memory) = memory {
        return catalog::by_product(product, memory);
    }
    let words = |text: &str| format!(" {} ", text.replace('-', " "));
    let named = words(product);
    let matching = |model: &GpuModel| {
        let parts = model.products.iter().filter(|part| named.contains(&words(part)));
        parts.map(|part| part.len()).max()
    };
    let most = catalog::MODELS.iter().filter_map(matching).max()?;
    let mut models = catalog::MODELS.iter().filter(|model| matching(model) == Some(most));
    models.next().filter(|_| models.next().is_none())
}

/// The number of GPUs that so many MIG devices of one profile are on, if each GPU has the most that fit.
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
        NodeGpus::from_labels(&labels(&[(PRODUCT, product), (COUNT, count)]), &numbers(&[]), "b").unwrap()
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
    fn unknown_properties_are_not_guessed() {
        assert_eq!(gpus("NVIDIA-A100-SXM4-80GB-MIG-INVALID", "0").count, None);
        assert_eq!(gpus("NVIDIA-A100-SXM4-80GB-MIG-1g.10gb", "9").count, None);
        assert_eq!(gpus("NVIDIA-H20", "8").model, None, "two models are called so");
        let reported = labels(&[(PRODUCT, "NVIDIA-H20"), (MEMORY, "143771")]);
        let reported = NodeGpus::from_labels(&reported, &numbers(&[]), "b").unwrap();
        assert_eq!(reported.model.map(|model| model.name), Some("H20-141GB"));
        assert_eq!(gpus("NVIDIA-GeForce-RTX-4090", "1").model, None);
        let plugin = NodeGpus::from_labels(&labels(&[]), &numbers(&[("nvidia.com/gpu", 1)]), "b").unwrap();
        assert_eq!((plugin.model, plugin.count), (None, None));
    }

    #[test]
    fn a_missing_label_is_no_difference() {
        let of = |all: &[(&str, &str)], boot: &str| {
            NodeGpus::from_labels(&labels(all), &numbers(&[("nvidia.com/gpu", 8)]), boot).unwrap().fingerprint
        };
        let product = (PRODUCT, "NVIDIA-A100-SXM4-80GB");
        let reported = of(&[product, (COUNT, "8"), (DRIVER, "570.1")], "b");
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
            assert_eq!(super::is_another(&reported, &now), is_another, "{labels:?}, boot {boot}");
            assert_eq!(super::is_another(&now, &reported), is_another, "{labels:?}, boot {boot}");
        }
        assert!(super::is_another("1a2b3c4d", &reported), "as kerf wrote it before");
    }

    #[test]
    fn a_node_without_gpus_has_none() {
        assert_eq!(NodeGpus::from_labels(&labels(&[("a", "b")]), &numbers(&[("cpu", 4)]), "b"), None);
    }
}
