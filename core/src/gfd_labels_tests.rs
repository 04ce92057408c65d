use super::*;
use crate::units::SizeGb;
use std::fmt::Write as _;

const A10G: &str = "NVIDIA A10G";
const A100: &str = "NVIDIA A100-SXM4-80GB";

fn driver() -> LabelledDriver {
    LabelledDriver { version: "580.159.04".to_owned(), cuda: (13, 0) }
}

fn gpu(product: &str, mib: u64, kinds: &[Kind]) -> LabelledGpu {
    LabelledGpu {
        product: product.to_owned(),
        memory: MemoryMib(mib),
        capability: (8, if product == A10G { 6 } else { 0 }),
        pci_class: Some(0x03_02_00),
        mig_capable: product == A100,
        mig_on: kinds == [Kind::Mig],
        kinds: kinds.to_vec(),
        shares: BTreeMap::new(),
        fixed: None,
    }
}

fn with_shares(mut gpu: LabelledGpu, kind: Kind, count: u32) -> LabelledGpu {
    gpu.shares.insert(kind, count);
    gpu
}

/// One instance, with the figures of an A100-80GB's `1g.10gb` and `3g.40gb`.
fn instance(profile: InstanceProfile, sms: u32, slices: u32, mib: u64) -> LabelledInstance {
    let (gpu_slices, compute_slices) = match profile {
        InstanceProfile::Full(_) => (slices, slices),
        InstanceProfile::Part(part) => (slices, u32::from(part.compute())),
    };
    let attributes = Attributes {
        memory: MemoryMib(mib),
        multiprocessors: sms,
        gpu_slices,
        compute_slices,
        copy: slices,
        decoder: slices / 2,
        encoder: 0,
        jpeg: 0,
        ofa: 0,
    };
    LabelledInstance { product: A100.to_owned(), profile, turns: None, attributes: Some(attributes) }
}

fn reported(labels: &GfdLabels) -> String {
    labels.iter().fold(String::new(), |mut text, (key, value)| {
        let _ = writeln!(text, "{key}={value}");
        text
    })
}

/// Only the labels about the GPUs' sharing.
fn sharing(gpus: &[LabelledGpu]) -> [String; 4] {
    let labels = labels(gpus, &[], None);
    ["product", "count", "replicas", "sharing-strategy"]
        .map(|name| labels[&format!("nvidia.com/gpu.{name}")].clone())
}

#[test]
fn a_whole_gpu_has_gfds_labels() {
    let whole = gpu(A10G, 23_028, &[Kind::Whole]);
    insta::assert_snapshot!(reported(&labels(&[whole], &[], Some(&driver()))));
}

#[test]
fn mig_devices_have_gfds_labels_of_the_mixed_strategy() {
    let profile = |text: &str| InstanceProfile::Full(text.parse().unwrap());
    let part = InstanceProfile::Part("1c.3g.40gb".parse().unwrap());
    let gpus = [gpu(A100, 81_920, &[Kind::Mig]), gpu(A100, 81_920, &[Kind::Mig])];
    let instances = [
        instance(profile("1g.10gb"), 14, 1, 9_728),
        instance(profile("1g.10gb"), 14, 1, 9_728),
        instance(profile("1g.10gb+me"), 14, 1, 9_728),
        instance(part, 14, 3, 40_192),
    ];
    insta::assert_snapshot!(reported(&labels(&gpus, &instances, None)));
}

#[test]
fn a_gpu_with_shares_only_has_a_shared_product() {
    let two = |kind| LabelledGpu { fixed: Some(2), ..gpu(A10G, 23_028, &[kind]) };
    let shared =
        |replicas: &str, strategy: &str| ["NVIDIA-A10G-SHARED", "1", replicas, strategy].map(str::to_owned);
    assert_eq!(sharing(&[two(Kind::TimeSlicing)]), shared("2", "time-slicing"), "the demo's time-sliced-2");
    assert_eq!(sharing(&[two(Kind::Mps)]), shared("2", "mps"));
    let open = gpu(A10G, 23_028, &[Kind::Mps, Kind::TimeSlicing]);
    assert_eq!(sharing(std::slice::from_ref(&open)), shared("1", "mps"), "nothing is cut yet");
    assert_eq!(sharing(&[with_shares(open, Kind::TimeSlicing, 3)]), shared("3", "time-slicing"));
}

#[test]
fn the_product_stays_if_a_whole_gpu_is_available() {
    let plain = |count: &str, replicas: &str, strategy: &str| {
        ["NVIDIA-A10G", count, replicas, strategy].map(str::to_owned)
    };
    let any = || gpu(A10G, 23_028, &[Kind::Whole, Kind::Mps, Kind::TimeSlicing]);
    assert_eq!(sharing(&[any()]), plain("1", "1", "none"));
    assert_eq!(sharing(&[with_shares(any(), Kind::Mps, 4), any()]), plain("2", "4", "mps"));
    assert_eq!(
        sharing(&[with_shares(any(), Kind::Whole, 1)]),
        plain("1", "1", "none"),
        "a whole is no share"
    );
    assert_eq!(sharing(&[gpu(A10G, 23_028, &[])]), plain("1", "1", "none"), "nothing is allowed");
}

#[test]
fn labels_describe_the_first_model_without_mig_and_count_its_mig_gpus() {
    let reported = |gpus: &[LabelledGpu]| sharing(gpus)[..3].join(" ");
    let (mig, whole) = (gpu(A100, 81_920, &[Kind::Mig]), gpu(A100, 81_920, &[Kind::Whole]));
    let other = gpu(A10G, 23_028, &[Kind::TimeSlicing]);
    assert_eq!(reported(&[mig.clone(), other.clone()]), "NVIDIA-A10G-SHARED 1 1");
    assert_eq!(reported(&[mig.clone(), whole, other]), "NVIDIA-A100-SXM4-80GB 2 1");
    assert_eq!(reported(&[mig]), "NVIDIA-A100-SXM4-80GB 1 0", "GFD's replicas of a GPU in MIG mode");
}

#[test]
fn shared_mig_devices_are_labelled_by_profile() {
    let one = instance(InstanceProfile::Full(Profile::plain(1, SizeGb(10))), 14, 1, 9_728);
    let reported = |turns: Option<u8>| {
        let shared = LabelledInstance { turns, ..one.clone() };
        let labels = labels(&[gpu(A100, 81_920, &[Kind::Mig])], &[shared, one.clone()], None);
        let of = |name: &str| labels[&format!("nvidia.com/mig-1g.10gb.{name}")].clone();
        ["product", "count", "replicas", "sharing-strategy"].map(of)
    };
    let product = "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb";
    assert_eq!(reported(None), [product, "2", "1", "none"]);
    assert_eq!(reported(Some(4)), [product, "2", "4", "time-slicing"]);
}

#[test]
fn a_node_without_a_gpu_has_none_of_the_labels() {
    assert_eq!(labels(&[], &[], Some(&driver())), GfdLabels::new());
}

#[test]
fn an_invalid_label_value_is_left_out() {
    let long = gpu(
        "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition (Engineering Sample)",
        97_887,
        &[Kind::Whole],
    );
    let labels = labels(&[long], &[], None);
    assert_eq!(labels.get("nvidia.com/gpu.product"), None);
    assert_eq!(labels["nvidia.com/gpu.memory"], "97887");
    assert_eq!(sanitised("NVIDIA  H100 (80GB) +NVL"), "NVIDIA-H100-80GB-NVL");
}

#[test]
fn kerf_removes_exactly_the_labels_that_it_writes() {
    let instance = instance(InstanceProfile::Full(Profile::plain(1, SizeGb(10))), 14, 1, 9_728);
    let all = labels(&[gpu(A100, 81_920, &[Kind::Mig])], &[instance], Some(&driver()));
    for key in all.keys() {
        assert!(is_published(key), "{key}");
    }
    assert_eq!(all.len(), GPU_LABELS.len() + PROFILE_LABELS.len() + NODE_LABELS.len());
    for key in [
        "nvidia.com/mig.config",
        "nvidia.com/mig.config.state",
        "nvidia.com/gpu.present",
        "nvidia.com/gpu.deploy.mig-manager",
        "nvidia.com/gpu.machine",
        "nvidia.com/gfd.timestamp",
        "nvidia.com/device-plugin.config",
        "nvidia.com/mig-manager.product",
        "nvidia.com/mig-1g.10gb",
        "feature.node.kubernetes.io/gpu.product",
        "gpu.product",
    ] {
        assert!(!is_published(key), "{key}");
    }
}

#[test]
fn families_have_gfds_names() {
    for ((major, minor), name) in [
        ((7, 0), "volta"),
        ((7, 5), "turing"),
        ((8, 0), "ampere"),
        ((8, 6), "ampere"),
        ((8, 9), "ada-lovelace"),
        ((9, 0), "hopper"),
        ((10, 0), "blackwell"),
        ((12, 0), "blackwell"),
        ((13, 0), "undefined"),
    ] {
        assert_eq!(family(major, minor), name);
    }
}
