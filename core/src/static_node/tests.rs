use super::*;
use crate::contract::RequestDocument;
use crate::keys;
use crate::kind::{IsolationClass, Kind};
use crate::packing::{Cost, Refusal};
use crate::plugin_layout::{ExpectedAllocatable, PluginLabels, Progress, Propagation};
use crate::resource::ResourceName;
use crate::testing::{request, request_sized, static_node};
use crate::units::{ComputePercent, MemoryMib, SizeGb};
use proptest::prelude::*;

/// Labels of GPU feature discovery, without `nvidia.com/`.
type Given<'g> = &'g [(&'g str, &'g str)];

/// A description, labels, devices, and the expected offers.
type Case<'c> = (&'c str, Given<'c>, &'c [(&'c str, u32)], &'c [&'c str]);

const A10G_TIME_SLICED: Given<'_> = &[
    ("gpu.product", "NVIDIA-A10G-SHARED"),
    ("gpu.memory", "23028"),
    ("gpu.count", "1"),
    ("gpu.replicas", "2"),
    ("gpu.sharing-strategy", "time-slicing"),
];
const A100_MIG_SINGLE: Given<'_> = &[
    ("gpu.product", "NVIDIA-A100-80GB-PCIe-MIG-1g.10gb"),
    ("gpu.memory", "9728"),
    ("gpu.count", "7"),
    ("gpu.replicas", "1"),
    ("gpu.sharing-strategy", "none"),
    ("mig.strategy", "single"),
];
const L40S_MPS: Given<'_> = &[
    ("gpu.product", "NVIDIA-L40S-SHARED"),
    ("gpu.memory", "46068"),
    ("gpu.count", "1"),
    ("gpu.replicas", "10"),
    ("gpu.sharing-strategy", "mps"),
    ("mps.capable", "true"),
];
const H100_MIXED: Given<'_> = &[
    ("gpu.product", "NVIDIA-H100-80GB-HBM3"),
    ("gpu.memory", "81559"),
    ("gpu.count", "2"),
    ("gpu.replicas", "1"),
    ("gpu.sharing-strategy", "none"),
    ("mig.strategy", "mixed"),
    ("mig-1g.10gb.count", "4"),
    ("mig-1g.10gb.memory", "9984"),
    ("mig-1g.10gb.replicas", "1"),
    ("mig-1g.10gb.sharing-strategy", "none"),
    ("mig-3g.40gb.count", "1"),
    ("mig-3g.40gb.memory", "40448"),
    ("mig-3g.40gb.replicas", "2"),
    ("mig-3g.40gb.sharing-strategy", "time-slicing"),
];

/// The labels of a whole GPU with these values instead.
fn a100(
    product: &'static str,
    replicas: &'static str,
    strategy: &'static str,
) -> [(&'static str, &'static str); 5] {
    [
        ("gpu.product", product),
        ("gpu.memory", "81920"),
        ("gpu.count", "2"),
        ("gpu.replicas", replicas),
        ("gpu.sharing-strategy", strategy),
    ]
}

/// Name, kind, number and nominal size of each offer, as one line.
fn offers(labels: Given<'_>, devices: &[(&str, u32)]) -> Vec<String> {
    let node = static_node(labels, devices);
    let line = |offer: &StaticOffer| {
        let size = offer.size.map_or("?".to_owned(), |size| size.to_string());
        let name = offer.name.to_string();
        format!("{} {}: {} of {size}", name.trim_start_matches("nvidia.com/"), offer.kind, offer.count)
    };
    node.offers.iter().map(line).collect()
}

#[test]
fn every_layout_is_read_from_its_labels() {
    let whole = a100("NVIDIA-A100-SXM4-80GB", "1", "none");
    let four = a100("NVIDIA-A100-SXM4-80GB-SHARED", "4", "time-slicing");
    let renamed = a100("NVIDIA-A100-SXM4-80GB", "4", "time-slicing");
    let mps = a100("NVIDIA-A100-SXM4-80GB-SHARED", "4", "mps");
    let mps_renamed = a100("NVIDIA-A100-SXM4-80GB", "4", "mps");
    let single_shared: Given<'_> = &[
        ("gpu.product", "NVIDIA-A100-80GB-PCIe-MIG-1g.10gb-SHARED"),
        ("gpu.memory", "9728"),
        ("gpu.count", "7"),
        ("gpu.replicas", "2"),
        ("gpu.sharing-strategy", "time-slicing"),
    ];
    let t4: Given<'_> = &[
        ("gpu.product", "Tesla-T4-SHARED"),
        ("gpu.memory", "15360"),
        ("gpu.count", "1"),
        ("gpu.replicas", "4"),
        ("gpu.sharing-strategy", "mps"),
    ];
    let cases: [Case<'_>; 13] = [
        ("whole GPUs", &whole, &[("gpu", 2)], &["gpu whole: 2 of 80 GB"]),
        ("time slices", &four, &[("gpu", 8)], &["gpu time-slicing: 8 of 20 GB"]),
        ("renamed", &renamed, &[("gpu.shared", 8)], &["gpu.shared time-slicing: 8 of 20 GB"]),
        ("MPS", &mps, &[("gpu", 8)], &["gpu mps: 8 of 20 GB"]),
        ("MPS renamed", &mps_renamed, &[("gpu.shared", 8)], &["gpu.shared mps: 8 of 20 GB"]),
        ("an A10G in two", A10G_TIME_SLICED, &[("gpu", 2)], &["gpu time-slicing: 2 of 12 GB"]),
        ("a T4 in four", t4, &[("gpu", 4)], &["gpu mps: 4 of 4 GB"]),
        ("an L40S in ten", L40S_MPS, &[("gpu", 10)], &["gpu mps: 10 of 5 GB"]),
        ("MIG single", A100_MIG_SINGLE, &[("gpu", 7)], &["gpu mig: 7 of 10 GB"]),
        (
            "MIG single of an H200",
            &[
                ("gpu.product", "NVIDIA-H200-MIG-1g.18gb"),
                ("gpu.memory", "16384"),
                ("gpu.count", "7"),
                ("gpu.replicas", "1"),
            ],
            &[("gpu", 7)],
            &["gpu mig: 7 of 18 GB"],
        ),
        ("MIG single, shared", single_shared, &[("gpu", 14)], &["gpu time-slicing: 14 of 5 GB"]),
        (
            "MIG mixed, one profile shared, one GPU without MIG",
            H100_MIXED,
            &[("gpu", 1), ("mig-1g.10gb", 4), ("mig-3g.40gb", 2)],
            &["gpu whole: 1 of 80 GB", "mig-1g.10gb mig: 4 of 10 GB", "mig-3g.40gb time-slicing: 2 of 20 GB"],
        ),
        (
            "MIG mixed, one profile shared and renamed",
            H100_MIXED,
            &[("mig-1g.10gb", 4), ("mig-3g.40gb.shared", 2)],
            &["mig-1g.10gb mig: 4 of 10 GB", "mig-3g.40gb.shared time-slicing: 2 of 20 GB"],
        ),
    ];
    for (layout, labels, devices, expected) in cases {
        assert_eq!(offers(labels, devices), expected, "{layout}");
    }
}

#[test]
fn devices_count_as_time_slices_if_labels_and_capacity_disagree() {
    let whole = a100("NVIDIA-A100-SXM4-80GB", "1", "none");
    let mps = a100("NVIDIA-A100-SXM4-80GB-SHARED", "4", "mps");
    let single = a100("NVIDIA-A100-SXM4-80GB-MIG-3g.40gb", "1", "none");
    let cases: [Case<'_>; 6] = [
        ("the labels show the sharing later", &whole, &[("gpu", 8)], &["gpu time-slicing: 8 of 20 GB"]),
        ("the plugin shares later", &mps, &[("gpu", 2)], &["gpu time-slicing: 2 of 20 GB"]),
        ("another number of replicas", &mps, &[("gpu", 4)], &["gpu time-slicing: 4 of 20 GB"]),
        ("replicas before, MIG next", &single, &[("gpu", 8)], &["gpu time-slicing: 8 of 20 GB"]),
        (
            "no labels at all",
            &[],
            &[("gpu", 8), ("mig-1g.10gb", 1)],
            &["gpu time-slicing: 8 of ?", "mig-1g.10gb time-slicing: 1 of ?"],
        ),
        (
            "labels of the GPUs and none of the instances",
            &whole,
            &[("mig-1g.10gb", 7)],
            &["mig-1g.10gb time-slicing: 7 of ?"],
        ),
    ];
    for (change, labels, devices, expected) in cases {
        assert_eq!(offers(labels, devices), expected, "{change}");
    }
}

#[test]
fn a_node_lists_names_whose_labels_and_capacity_disagree() {
    let mps = a100("NVIDIA-A100-SXM4-80GB-SHARED", "4", "mps");
    assert_eq!(static_node(&mps, &[("gpu", 8)]).doubts, []);
    let doubt = Doubt { name: PluginName::Gpu, there: 2, reported: 8 };
    assert_eq!(static_node(&mps, &[("gpu", 2)]).doubts, [doubt]);
    assert_eq!(static_node(&[], &[("gpu", 8)]).doubts, [], "there are no labels");
    let whole = a100("NVIDIA-A100-SXM4-80GB", "1", "none");
    assert_eq!(static_node(&whole, &[("gpu", 1)]).doubts, [], "the other is in MIG mode");
}

#[test]
fn unusable_gpus_offer_nothing() {
    let invalid = a100("NVIDIA-A100-SXM4-80GB-MIG-INVALID", "0", "");
    assert!(offers(&invalid, &[("gpu", 3)]).is_empty());
    let unused = a100("NVIDIA-A100-SXM4-80GB", "0", "none");
    assert!(offers(&unused, &[("gpu", 2)]).is_empty(), "in MIG mode without a strategy");
}

fn read(labels: Given<'_>, capacity: &[(&str, &str)], allocatable: &[(&str, &str)]) -> Option<StaticNode> {
    let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    StaticNode::read(&labels, None, capacity.iter().copied(), allocatable.iter().copied())
}

#[test]
fn a_node_is_static_if_it_has_devices_of_the_plugin_and_is_not_kerfs() {
    let gpus = [("cpu", "8"), ("nvidia.com/gpu", "2")];
    assert!(read(&[], &gpus, &gpus).is_some());
    assert!(read(&[(keys::MANAGED, "false")], &gpus, &gpus).is_some());
    assert!(read(&[(keys::MANAGED, "true")], &gpus, &gpus).is_none());
    assert!(read(&[(keys::NOS_PARTITIONING, "mig")], &gpus, &gpus).is_none());
    for none in [[("cpu", "8")], [("nvidia.com/gpu", "0")], [("nvidia.com/gpu-10gb", "3")]] {
        assert!(read(&[], &none, &none).is_none(), "{none:?}");
    }
}

#[test]
fn an_unhealthy_device_is_not_given_and_causes_no_doubt() {
    let mps: Vec<_> = a100("NVIDIA-A100-SXM4-80GB-SHARED", "4", "mps").into();
    let mps: Vec<(String, &str)> = mps.into_iter().map(|(k, v)| (format!("nvidia.com/{k}"), v)).collect();
    let mps: Vec<(&str, &str)> = mps.iter().map(|(k, v)| (k.as_str(), *v)).collect();
    let node = read(&mps, &[("nvidia.com/gpu", "8")], &[("nvidia.com/gpu", "4")]).unwrap();
    assert_eq!((node.offers[0].kind, node.offers[0].count), (Kind::Mps, 4));
    let sick = read(&mps, &[("nvidia.com/gpu", "8")], &[("nvidia.com/gpu", "0")]).unwrap();
    assert_eq!((sick.offers[0].kind, sick.offers[0].count), (Kind::Mps, 0));
}

#[test]
fn the_model_has_the_name_that_agents_use() {
    for (labels, model) in [
        (A10G_TIME_SLICED, "A10G-24GB"),
        (A100_MIG_SINGLE, "A100-80GB"),
        (L40S_MPS, "L40S-48GB"),
        (H100_MIXED, "H100-80GB"),
        (&[("gpu.product", "NVIDIA-H200-MIG-1g.18gb"), ("gpu.memory", "16384")], "H200-141GB"),
        (&[("gpu.product", "Tesla-T4"), ("gpu.memory", "15360")], "T4-16GB"),
        (&[], ""),
    ] {
        assert_eq!(static_node(labels, &[("gpu", 1)]).model, model);
    }
}

/// A pod with one container and no isolation that asks for `size` under this name.
fn asks(resource: ResourceName, size: u32, count: u32) -> RequestDocument {
    RequestDocument { isolation: IsolationClass::None, ..request_sized(resource, SizeGb(size), count) }
}

const MPS: ResourceName = ResourceName::Plugin(PluginName::Gpu, Kind::Mps);
const SLICE: ResourceName = ResourceName::Plugin(PluginName::Gpu, Kind::TimeSlicing);
const SINGLE: ResourceName = ResourceName::Plugin(PluginName::Gpu, Kind::Mig);

#[test]
fn a_pod_takes_one_replica_with_enough_memory_and_isolation() {
    let mps = static_node(&a100("NVIDIA-A100-SXM4-80GB-SHARED", "4", "mps"), &[("gpu", 8)]);
    let placed = |document: &RequestDocument| place(&mps, &Devices::new(), document).map(|spot| spot.devices);
    assert_eq!(placed(&asks(MPS, 10, 1)), Ok([(PluginName::Gpu, 1)].into()));
    assert_eq!(placed(&asks(MPS, 20, 1)), Ok([(PluginName::Gpu, 1)].into()));
    assert_eq!(placed(&asks(MPS, 21, 1)), Err(Refusal::NeverFits));
    assert_eq!(placed(&asks(MPS, 10, 2)), Err(Refusal::OneReplica));
    for other in [SLICE, SINGLE, ResourceName::Whole, ResourceName::Mps(SizeGb(10))] {
        assert_eq!(placed(&asks(other, 10, 1)), Err(Refusal::NeverFits), "{other:?}");
    }
    let with = |change: fn(&mut RequestDocument)| {
        let mut document = asks(MPS, 10, 1);
        change(&mut document);
        placed(&document).err()
    };
    assert_eq!(with(|d| d.isolation = IsolationClass::Memory), None);
    assert_eq!(with(|d| d.isolation = IsolationClass::Hardware), Some(Refusal::NeverFits));
    assert_eq!(with(|d| d.containers[0].compute = ComputePercent::new(25)), None);
    assert_eq!(with(|d| d.containers[0].compute = ComputePercent::new(26)), Some(Refusal::NeverFits));
    assert_eq!(with(|d| d.containers[0].memory = Some(MemoryMib(20_480))), None);
    assert_eq!(with(|d| d.containers[0].memory = Some(MemoryMib(20_481))), Some(Refusal::NeverFits));
    assert_eq!(with(|d| d.gpus.models = vec!["A100-80GB".to_owned()]), None);
    assert_eq!(with(|d| d.gpus.not_models = vec!["A100-80GB".to_owned()]), Some(Refusal::NotSelected));
    assert_eq!(with(|d| d.gpus.uuids = vec!["GPU-1".into()]), Some(Refusal::NotSelected));
    assert_eq!(with(|d| d.gpus.not_uuids = vec!["GPU-1".into()]), Some(Refusal::NotSelected));
}

#[test]
fn taken_devices_are_given_to_no_other_pod() {
    let mixed = static_node(H100_MIXED, &[("gpu", 1), ("mig-1g.10gb", 4), ("mig-3g.40gb", 2)]);
    let profile = PluginName::Mig("1g.10gb".parse().unwrap());
    let one = request("nvidia.com/mig-1g.10gb", 1);
    for (taken, expected) in [(0, None), (3, None), (4, Some(Refusal::NoRoom)), (9, Some(Refusal::NoRoom))] {
        assert_eq!(place(&mixed, &[(profile, taken)].into(), &one).err(), expected, "{taken}");
    }
    let five = request("nvidia.com/mig-1g.10gb", 5);
    assert_eq!(place(&mixed, &Devices::new(), &five).err(), Some(Refusal::CountNeverFits));
    let shared = request("nvidia.com/mig-3g.40gb", 1);
    assert_eq!(place(&mixed, &Devices::new(), &shared).err(), Some(Refusal::NeverFits), "it fences nothing");
}

#[test]
fn a_node_of_unknown_memory_serves_requests_by_name_only() {
    let unknown = static_node(&[], &[("gpu", 4)]);
    let charge = |document: &RequestDocument| {
        place(&unknown, &Devices::new(), document).map(|spot| spot.charge.slices)
    };
    assert_eq!(charge(&asks(SLICE, 0, 2)), Ok(2));
    assert_eq!(charge(&asks(SLICE, 1, 1)), Err(Refusal::NeverFits));
    assert_eq!(charge(&asks(ResourceName::Whole, 0, 1)), Err(Refusal::NeverFits));
}

#[test]
fn the_least_waste_wins_and_then_the_fuller_node() {
    let cost = |labels: Given<'_>, count: u32, taken: u32, request: &RequestDocument| {
        let node = static_node(labels, &[("gpu", count)]);
        place(&node, &[(PluginName::Gpu, taken)].into(), request).unwrap().cost
    };
    let (four, five) = (a100("NVIDIA-A100-SXM4-80GB-SHARED", "4", "mps"), asks(MPS, 5, 1));
    let (empty, fuller) = (cost(&four, 8, 0, &five), cost(&four, 8, 3, &five));
    assert!(fuller < empty);
    assert!(cost(L40S_MPS, 10, 0, &five) < fuller, "5 GB of 5 rather than of 20");
    assert!(empty < Cost(-1_000_000_000), "before anything is cut");
}

proptest! {
    /// For all labels and devices: no device is offered twice, and isolation is only offered if both show it.
    #[test]
    fn no_labels_overstate_the_devices(
        count in prop::option::of(0_u32..4),
        replicas in prop::option::of(0_u32..5),
        strategy in prop::sample::select(vec!["none", "time-slicing", "mps", ""]),
        product in prop::sample::select(vec!["NVIDIA-A100-SXM4-80GB", "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb", "NVIDIA-A100-SXM4-80GB-MIG-INVALID"]),
        name in prop::sample::select(vec!["gpu", "gpu.shared"]),
        capacity in 1_u32..20,
        sick in 0_u32..4,
    ) {
        let mut labels = BTreeMap::from([
            ("nvidia.com/gpu.product".to_owned(), product.to_owned()),
            ("nvidia.com/gpu.memory".to_owned(), "9728".to_owned()),
            ("nvidia.com/gpu.sharing-strategy".to_owned(), strategy.to_owned()),
        ]);
        labels.extend(count.map(|count| ("nvidia.com/gpu.count".to_owned(), count.to_string())));
        labels.extend(replicas.map(|replicas| ("nvidia.com/gpu.replicas".to_owned(), replicas.to_string())));
        let name = format!("nvidia.com/{name}");
        let (all, well) = (capacity.to_string(), capacity.saturating_sub(sick));
        let node = StaticNode::read(&labels, None, [(name.as_str(), all.as_str())], [(name.as_str(), well.to_string().as_str())]).unwrap();
        for offer in &node.offers {
            prop_assert_eq!(offer.count, well);
            let reported = count.unwrap_or(0) * replicas.unwrap_or(1);
            prop_assert!(offer.kind == Kind::TimeSlicing || capacity <= reported, "{:?}", offer);
            prop_assert!(offer.kind != Kind::Mps || strategy == "mps" && capacity == reported);
            prop_assert!(offer.replicas || matches!(offer.kind, Kind::Mig | Kind::Whole) || count.unwrap_or(0) == 0);
            if let Some(memory) = offer.memory {
                let parts = u64::from(capacity.div_ceil(count.unwrap_or(1).max(1)));
                prop_assert!(memory.0 * parts <= 9728, "the replicas of a GPU have no more than the GPU");
            }
        }
    }
}

#[test]
fn only_a_node_with_a_changing_layout_is_changing() {
    let record = |progress| NodeRecord {
        layout: "a".to_owned(),
        digest: "d".to_owned(),
        node: "n".to_owned(),
        progress,
        expected: ExpectedAllocatable::Counts([("nvidia.com/gpu".to_owned(), 4)].into()),
        set: PluginLabels::default(),
        previous: PluginLabels::default(),
        before: PluginLabels::default(),
        propagation: None,
    };
    let is_changing = |record: Option<&str>| {
        let one = [("nvidia.com/gpu", "1")];
        StaticNode::read(&BTreeMap::new(), record, one, one).unwrap().is_changing
    };
    let applying = record(Progress::Applying { since: 7, mig_had_failed: false });
    assert!(is_changing(Some(&applying.to_json())));
    let propagation = Propagation { since: 7, shown: BTreeMap::new(), cuts: false };
    let lagging = NodeRecord { propagation: Some(propagation), ..record(Progress::Applied) };
    assert!(is_changing(Some(&lagging.to_json())), "the plugin has not followed");
    for other in [None, Some(&*record(Progress::Applied).to_json()), Some("{"), Some("")] {
        assert!(!is_changing(other), "{other:?}");
    }
}
