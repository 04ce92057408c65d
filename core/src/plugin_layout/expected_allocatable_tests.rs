use super::*;
use crate::nvidia_keys::{COMPUTE_MAJOR, COMPUTE_MINOR, COUNT, MIG_CAPABLE, PRODUCT};
use crate::plugin_layout::testing::{labels, numbers};

fn a100(count: &str) -> NodeGpus {
    let found = labels(&[(PRODUCT, "NVIDIA-A100-SXM4-80GB"), (COUNT, count), (COMPUTE_MAJOR, "8")]);
    NodeGpus::from_labels(&found, &numbers(&[]), "b").unwrap()
}

fn gpus(product: &str, major: &str, minor: &str) -> NodeGpus {
    let found = [(PRODUCT, product), (COUNT, "1"), (COMPUTE_MAJOR, major), (COMPUTE_MINOR, minor)];
    NodeGpus::from_labels(&labels(&found), &numbers(&[]), "b").unwrap()
}

fn layout(mig_strategy: MigStrategy, mig_config: Option<&str>, sharing: Sharing) -> PluginLayout {
    PluginLayout { mig_strategy, mig_config: mig_config.map(str::to_owned), sharing }
}

fn sliced(replicas: u32, renamed: bool) -> Sharing {
    Sharing::TimeSlicing { replicas, renamed, fail_greater_than_one: true }
}

#[test]
fn a_layout_predicts_the_allocatable() {
    let (none, single, mixed) = (MigStrategy::None, MigStrategy::Single, MigStrategy::Mixed);
    let mps = Sharing::Mps { replicas: 4, renamed: false };
    for (layout, expected) in [
        (layout(none, None, Sharing::None), "2 nvidia.com/gpu"),
        (layout(none, None, sliced(4, false)), "8 nvidia.com/gpu"),
        (layout(none, None, sliced(4, true)), "8 nvidia.com/gpu.shared"),
        (layout(none, None, mps), "8 nvidia.com/gpu"),
        (layout(single, Some("all-1g.10gb"), Sharing::None), "14 nvidia.com/gpu"),
        (layout(single, Some("all-3g.40gb"), sliced(2, true)), "8 nvidia.com/gpu.shared"),
        (layout(mixed, Some("all-1g.10gb"), Sharing::None), "14 nvidia.com/mig-1g.10gb"),
        (layout(mixed, Some("all-1g.10gb"), sliced(2, false)), "28 nvidia.com/mig-1g.10gb"),
        (layout(mixed, Some("all-1g.10gb.me"), Sharing::None), "devices nvidia.com/mig-…"),
        (layout(mixed, Some("all-disabled"), Sharing::None), "2 nvidia.com/gpu"),
        (layout(mixed, Some("all-balanced"), Sharing::None), "devices nvidia.com/mig-…"),
        (layout(mixed, None, Sharing::None), "devices nvidia.com/…"),
        (layout(single, None, sliced(2, false)), "devices nvidia.com/gpu in multiples of 2"),
    ] {
        assert_eq!(layout.expected(&a100("2")).unwrap().to_string(), expected, "{layout:?}");
    }
}

#[test]
fn unfit_gpus_are_refused_with_the_reason() {
    let (single, mixed) = (MigStrategy::Single, MigStrategy::Mixed);
    let mps = |replicas| layout(MigStrategy::None, None, Sharing::Mps { replicas, renamed: false });
    let t4 = gpus("Tesla-T4", "7", "5");
    let unknown = gpus("NVIDIA-X1", "9", "0");
    let incapable = NodeGpus { mig_capable: Some(false), ..unknown.clone() };
    let refused = [
        layout(single, Some("all-1g.10gb"), Sharing::None).expected(&t4),
        layout(mixed, None, Sharing::None).expected(&incapable),
        layout(mixed, Some("all-1g.5gb"), Sharing::None).expected(&a100("1")),
        mps(4).expected(&gpus("Tesla-P100", "6", "0")),
        mps(17).expected(&gpus("Tesla-V100", "7", "0")),
    ];
    let texts: Vec<_> = refused.into_iter().map(|refused| refused.unwrap_err().to_string()).collect();
    insta::assert_snapshot!(texts.join("\n"));
    assert!(mps(48).expected(&t4).is_ok());
    assert!(
        layout(mixed, Some("all-1g.10gb"), Sharing::None).expected(&unknown).is_ok(),
        "it may be a new one"
    );
    let labels = labels(&[(PRODUCT, "NVIDIA-X1"), (MIG_CAPABLE, "true")]);
    let new = NodeGpus::from_labels(&labels, &numbers(&[]), "b").unwrap();
    assert_eq!(
        layout(mixed, None, Sharing::None).expected(&new).unwrap().to_string(),
        "devices nvidia.com/…"
    );
}

#[test]
fn expected_devices_are_there_if_the_node_shows_exactly_those() {
    let eight = ExpectedAllocatable::Counts(numbers(&[("nvidia.com/gpu", 8)]));
    let some = ExpectedAllocatable::Some { prefix: "nvidia.com/mig-".to_owned(), shared: false, multiple: 2 };
    let renamed = ExpectedAllocatable::Some { prefix: GPU.to_owned(), shared: true, multiple: 4 };
    for (expected, allocatable, is_met) in [
        (&eight, &[("nvidia.com/gpu", 8), ("cpu", 4), ("nvidia.com/gpu-10gb", 1)][..], true),
        (&eight, &[("nvidia.com/gpu", 8), ("nvidia.com/gpu.shared", 0)], true),
        (&eight, &[("nvidia.com/gpu", 8), ("nvidia.com/mig-1g.10gb", 7)], false),
        (&eight, &[("nvidia.com/gpu", 2)], false),
        (&eight, &[], false),
        (&some, &[("nvidia.com/mig-1g.10gb", 4), ("nvidia.com/gpu", 0)], true),
        (&some, &[("nvidia.com/mig-1g.10gb", 3)], false),
        (&some, &[("nvidia.com/mig-1g.10gb.shared", 4)], false),
        (&some, &[("nvidia.com/gpu", 4)], false),
        (&renamed, &[("nvidia.com/gpu.shared", 4)], true),
        (&renamed, &[("nvidia.com/gpu-10gb.shared", 4)], false),
        (&renamed, &[("nvidia.com/gpu", 4)], false),
    ] {
        assert_eq!(expected.is_met_by(&numbers(allocatable)), is_met, "{expected:?} {allocatable:?}");
    }
}
