use super::*;
use crate::kind::{IsolationClass, Kind};
use crate::request::Dialect;
use crate::units::SizeGb;
use proptest::prelude::*;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::LazyLock;

fn pod(annotations: Value, containers: Value) -> PodView {
    serde_json::from_value(
        json!({"metadata": {"annotations": annotations}, "spec": {"containers": containers}}),
    )
    .unwrap()
}

fn limits(limits: Value) -> Value {
    json!([{"name": "main", "resources": {"limits": limits}}])
}

fn strictest() -> Reading<'static> {
    static IN_FORCE: LazyLock<BTreeSet<Dialect>> = LazyLock::new(|| BTreeSet::from([Dialect::Mig]));
    Reading::without_policy(&IN_FORCE)
}

fn ours(pod: &PodView) -> Result<Option<PodAsk>, AskError> {
    read(pod, &strictest())
}

fn asked(pod: &PodView) -> Vec<(String, Want, u32)> {
    let ask = ours(pod).unwrap();
    ask.into_iter().flat_map(|a| a.containers).map(|c| (c.name, c.want, c.count)).collect()
}

#[test]
fn a_pod_without_a_gpu_asks_for_nothing() {
    for other in ["nvidia.com/gpu", "nvidia.com/gpumem", "aliyun.com/gpu-mem", "cpu"] {
        assert_eq!(
            ours(&pod(json!({"gpu-fraction": "0.5"}), limits(json!({other: "1"})))),
            Ok(None),
            "{other}"
        );
    }
    assert_eq!(ours(&pod(json!({"kerf.dev/movable": "true"}), limits(json!({"cpu": 1})))), Ok(None));
}

#[test]
fn a_key_about_slices_in_a_pod_that_asks_for_none_is_refused() {
    let of = |key: &str, text: &str, limit: &str, amount: &str| {
        ours(&pod(json!({key: text}), limits(json!({limit: amount}))))
    };
    let idle = |key: &str, others: Option<(&str, Dialect)>| {
        let others = others.map(|(limit, dialect)| (limit.to_owned(), dialect));
        Err(AskError::Idle { key: key.to_owned(), others })
    };
    for (key, text) in [
        ("kerf.dev/compute.main", "50"),
        ("kerf.dev/compute", "50"),
        ("kerf.dev/isolation", "hardwre"),
        ("kerf.dev/memory-match", "strict"),
        ("kerf.dev/gpu-uuid-not", "GPU-1"),
    ] {
        assert_eq!(of(key, text, "cpu", "1"), idle(key, None));
    }
    let model = "kerf.dev/gpu-model";
    assert_eq!(
        of(model, "H100-80GB", "nvidia.com/gpu", "1"),
        idle(model, Some(("nvidia.com/gpu", Dialect::Nvidia)))
    );
    assert_eq!(of(model, "H100-80GB", "nvidia.com/gpu", "0"), idle(model, None), "none of them is asked for");
}

#[test]
fn every_spelling_asks_for_the_same() {
    let ten = vec![("main".to_owned(), Want::Size(SizeGb(10)), 1)];
    assert_eq!(asked(&pod(json!({"kerf.dev/gpu-memory": "10Gi"}), json!([{"name": "main"}]))), ten);
    let two = json!([{"name": "main"}, {"name": "log"}]);
    assert_eq!(asked(&pod(json!({"kerf.dev/gpu-memory.main": "10G"}), two)), ten);
    assert_eq!(asked(&pod(json!({}), limits(json!({"kerf.dev/gpu-10gb": "1"})))), ten);
    assert_eq!(asked(&pod(json!({}), limits(json!({"gpu-10gb": 1})))), ten);
    assert_eq!(asked(&pod(json!({"kerf.dev/gpu-memory": "10Gi"}), limits(json!({"gpu-10gb": 1})))), ten);
}

#[test]
fn a_limit_gives_the_count_beside_an_annotation() {
    let of = |annotated: Option<&str>, limit: &str| {
        let mut notes = json!({"kerf.dev/gpu-memory": "10Gi"});
        if let Some(count) = annotated {
            notes["kerf.dev/gpu-count"] = json!(count);
        }
        ours(&pod(notes, limits(json!({"gpu-10gb": limit})))).map(|ask| ask.unwrap().containers[0].count)
    };
    assert_eq!((of(None, "3"), of(Some("3"), "3")), (Ok(3), Ok(3)));
    assert!(matches!(of(Some("2"), "3"), Err(AskError::Twice { .. })));
}

#[test]
fn a_limit_may_ask_for_several_and_for_an_exact_slice() {
    let of = |name: &str, count: &str| asked(&pod(json!({}), limits(json!({name: count})))).remove(0);
    let main = |want, count| ("main".to_owned(), want, count);
    assert_eq!(of("gpu-10gb", "3"), main(Want::Size(SizeGb(10)), 3));
    assert_eq!(of("nvidia.com/mig-1g.10gb", "2"), main(Want::Profile("1g.10gb".parse().unwrap()), 2));
    assert_eq!(of("nvidia.com/mig-1c.3g.40gb", "1"), main(Want::Compute("1c.3g.40gb".parse().unwrap()), 1));
    assert_eq!(of("nvidia.com/gpu-10gb", "1"), main(Want::Share(Kind::Mps, SizeGb(10)), 1));
    assert_eq!(of("nvidia.com/gpu-10gb.shared", "1"), main(Want::Share(Kind::TimeSlicing, SizeGb(10)), 1));
}

#[test]
fn zero_of_nvidias_names_asks_for_nothing_and_zero_of_kerfs_is_refused() {
    let of = |name: &str, amount: Value| ours(&pod(json!({}), limits(json!({name: amount}))));
    for name in
        ["nvidia.com/mig-1g.10gb", "nvidia.com/mig-1c.3g.40gb", "nvidia.com/gpu-10gb", "nvidia.com/gpu"]
    {
        assert_eq!((of(name, json!("0")), of(name, json!(0))), (Ok(None), Ok(None)), "{name}");
    }
    assert!(matches!(of("gpu-10gb", json!("0")), Err(AskError::Count { .. })));
    let beside = json!({"kerf.dev/gpu-10gb": "1", "nvidia.com/mig-1g.10gb": "0"});
    assert_eq!(asked(&pod(json!({}), limits(beside))), [("main".to_owned(), Want::Size(SizeGb(10)), 1)]);
}

#[test]
fn annotations_give_counts_and_profiles_by_container() {
    let notes = json!({
        "kerf.dev/gpu-memory.main": "10Gi", "kerf.dev/gpu-count.main": "2",
        "kerf.dev/gpu-profile.side": "1g.10gb", "kerf.dev/compute.main": "30", "kerf.dev/compute": "50",
    });
    let ask = ours(&pod(notes, json!([{"name": "main"}, {"name": "side"}]))).unwrap().unwrap();
    let [main, side] = ask.containers.as_slice() else { panic!("{ask:?}") };
    assert_eq!(
        (main.want, main.count, main.compute.map(crate::units::ComputePercent::get)),
        (Want::Size(SizeGb(10)), 2, Some(30))
    );
    let exact = Want::Profile("1g.10gb".parse().unwrap());
    assert_eq!(
        (side.want, side.count, side.compute),
        (exact, 1, None),
        "the profile says what compute it has"
    );
}

#[test]
fn a_strict_size_is_the_memory_that_was_written() {
    let strict = |text: &str| {
        let notes = json!({"kerf.dev/gpu-memory": text, "kerf.dev/memory-match": "strict"});
        let ask = ours(&pod(notes, json!([{"name": "main"}]))).unwrap().unwrap();
        (ask.containers[0].want, ask.containers[0].memory)
    };
    assert_eq!(strict("10Gi"), (Want::Size(SizeGb(10)), Some(MemoryMib(10_240))));
    assert_eq!(strict("10G"), (Want::Size(SizeGb(10)), Some(MemoryMib(9_537))));
    let nominal = json!({"kerf.dev/gpu-memory": "10Gi", "kerf.dev/memory-match": "nominal"});
    assert_eq!(ours(&pod(nominal, json!([{"name": "main"}]))).unwrap().unwrap().containers[0].memory, None);
    let by_limit = pod(json!({"kerf.dev/memory-match": "strict"}), limits(json!({"gpu-10gb": "1"})));
    assert_eq!(ours(&by_limit).unwrap().unwrap().containers[0].memory, Some(MemoryMib(10_240)));
}

#[test]
fn class_and_gpus_are_read_from_annotations() {
    let notes = json!({
        "kerf.dev/gpu-memory": "10Gi", "kerf.dev/isolation": "hardware",
        "kerf.dev/gpu-model": "H100-80GB", "kerf.dev/gpu-uuid-not": "GPU-1",
    });
    let ask = ours(&pod(notes, json!([{"name": "main"}]))).unwrap().unwrap();
    assert_eq!(ask.isolation, Some(IsolationClass::Hardware));
    assert_eq!((ask.gpus.models.len(), ask.gpus.not_uuids.len()), (1, 1));
}

#[test]
fn init_containers_and_sidecars_ask_as_app_containers_do() {
    let mut asking = pod(
        json!({"kerf.dev/gpu-memory": "10Gi", "kerf.dev/gpu-memory.fetch": "20Gi"}),
        json!([{"name": "main"}]),
    );
    asking.spec.init_containers = serde_json::from_value(json!([
        {"name": "fetch"},
        {"name": "proxy", "restartPolicy": "Always", "resources": {"limits": {"gpu-5gb": "1"}}},
        {"name": "load", "resources": {"limits": {"kerf.dev/gpu-10gb": "2"}}},
        {"name": "chown"},
    ]))
    .unwrap();
    let roles = |pod: &PodView| {
        let ask = ours(pod).unwrap().unwrap();
        ask.containers.into_iter().map(|c| (c.name, c.role, c.count)).collect::<Vec<_>>()
    };
    let expected = [
        ("fetch", Role::Init, 1),
        ("proxy", Role::Sidecar, 1),
        ("load", Role::Init, 2),
        ("main", Role::App, 1),
    ];
    assert_eq!(roles(&asking), expected.map(|(name, role, count)| (name.to_owned(), role, count)));
    asking.spec.init_containers[2].security_context.privileged = Some(true);
    assert_eq!(ours(&asking), Err(AskError::Privileged("load".to_owned())));
    asking.spec.init_containers[2].security_context.privileged = None;
    asking.spec.init_containers[3].security_context.privileged = Some(true);
    assert!(ours(&asking).is_ok(), "it has no slice to look beyond");
}

#[test]
fn names_of_dialects_beside_kerfs_are_refused_unless_zero() {
    let of = |limits_: Value| ours(&pod(json!({}), limits(limits_)));
    for (name, dialect) in [
        ("nvidia.com/gpu", Dialect::Nvidia),
        ("nvidia.com/gpu.shared", Dialect::Nvidia),
        ("nvidia.com/gpucores", Dialect::Hami),
        ("aliyun.com/gpu-mem", Dialect::Gpushare),
    ] {
        let refused = AskError::Everybodys { container: "main".to_owned(), limit: name.to_owned(), dialect };
        assert_eq!(of(json!({"gpu-10gb": "1", name: "1"})), Err(refused));
        assert!(of(json!({"gpu-10gb": "1", name: "0"})).is_ok(), "{name}");
    }
}

/// Any text that may be in the fields that kerf reads.
fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        "[-+.0-9a-zA-Z/,%]{0,12}",
        prop::sample::select(vec![
            "1",
            "0",
            "10Gi",
            "500m",
            "3k",
            "0.5",
            "1g.10gb",
            "1c.3g.40gb",
            "A100",
            "GPU-1",
            "strict",
            "true",
            "main",
            "50"
        ])
        .prop_map(str::to_owned),
    ]
}

fn key() -> impl Strategy<Value = String> {
    let known: Vec<&str> = crate::keys::ASKED
        .into_iter()
        .chain([
            "gpu-fraction",
            "gpu-memory",
            "gpu-fraction-num-devices",
            "gpu-fraction-container-name",
            "gpu-sm-percentage",
        ])
        .chain(["nvidia.com/use-gputype", "nvidia.com/nouse-gpuuuid", "nvidia.com/vgpu-mode"])
        .collect();
    prop_oneof![
        4 => prop::sample::select(known.clone()).prop_map(str::to_owned),
        2 => (prop::sample::select(known), prop::sample::select(vec!["main", "init", "x", ""])).prop_map(|(key, c)| format!("{key}.{c}")),
        1 => "(kerf.dev/)?[-a-z./é]{0,12}",
    ]
}

fn name() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => prop::sample::select(vec![
            "gpu-10gb", "kerf.dev/gpu-20gb", "nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/gpumem",
            "nvidia.com/gpumem-percentage", "nvidia.com/gpucores", "aliyun.com/gpu-mem", "aliyun.com/gpu-count",
            "nvidia.com/mig-1g.10gb", "nvidia.com/gpu-8gb", "nvidia.com/priority", "cpu",
        ]).prop_map(str::to_owned),
        1 => "(kerf.dev/gpu-|gpu-|nvidia.com/mig-|nvidia.com/gpu-)?[-+a-z0-9.]{0,12}",
    ]
}

proptest! {
    #[test]
    fn any_pod_is_read_or_refused_without_a_panic(
        annotations in prop::collection::btree_map(key(), text(), 0..4),
        first in prop::collection::btree_map(name(), text(), 0..3),
        second in prop::collection::btree_map(name(), text(), 0..2),
        labels in prop::collection::btree_map(prop::sample::select(vec!["aliyun.com/gpu-count", "pipelines.kubeflow.org/x", "app"]), text(), 0..2),
        dialects in prop::sample::subsequence(Dialect::ALL.to_vec(), 0..=Dialect::ALL.len()),
        fraction_of in prop::option::of((0_u32..300).prop_map(SizeGb)),
    ) {
        let pod: PodView = serde_json::from_value(json!({
            "metadata": {"annotations": annotations, "labels": labels},
            "spec": {
                "containers": [{"name": "main", "resources": {"limits": first}}],
                "initContainers": [{"name": "init", "resources": {"requests": second}}],
            },
        })).unwrap();
        let dialects: BTreeSet<Dialect> = dialects.into_iter().collect();
        let reading = Reading { dialects: &dialects, fraction_of, sidecars: None };
        match read(&pod, &reading) {
            Ok(Some(ask)) => {
                prop_assert!(!ask.containers.is_empty());
                prop_assert!(ask.containers.iter().all(|c| c.count > 0 && c.want != Want::Size(SizeGb::ANY)));
            }
            Ok(None) => {}
            Err(error) => prop_assert!(!error.to_string().is_empty()),
        }
    }

    #[test]
    fn any_json_is_read_without_a_panic(text in "[{}\\[\\]\":,a-z0-9 ]{0,64}") {
        if let Ok(pod) = serde_json::from_str::<PodView>(&text) {
            let _ = ours(&pod);
        }
    }
}
