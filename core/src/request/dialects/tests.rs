use super::*;
use crate::kind::IsolationClass;
use crate::request::{PodAsk, read};
use serde_json::{Value, json};

/// The request of a pod's only container, in a cluster whose GPUs have 80 GB: `Want`, count and share of compute.
fn asked(
    dialect: Dialect,
    metadata: &Value,
    limits: &Value,
) -> Result<Option<(Want, u32, Option<u8>)>, AskError> {
    let ask = pod_ask(&[dialect], Some(SizeGb(80)), metadata, limits)?;
    Ok(ask.map(|ask| {
        assert_eq!(ask.dialect, Some(dialect));
        let main = &ask.containers[0];
        (main.want, main.count, main.compute.map(crate::units::ComputePercent::get))
    }))
}

fn pod_ask(
    dialects: &[Dialect],
    fraction_of: Option<SizeGb>,
    metadata: &Value,
    limits: &Value,
) -> Result<Option<PodAsk>, AskError> {
    let containers = json!([{"name": "main", "resources": {"limits": limits, "requests": limits}}]);
    let pod =
        serde_json::from_value(json!({"metadata": metadata, "spec": {"containers": containers}})).unwrap();
    let dialects = dialects.iter().copied().collect();
    read(&pod, &Reading { dialects: &dialects, fraction_of, sidecars: None })
}

const fn gb(size: u32) -> Want {
    Want::Size(SizeGb(size))
}

#[test]
fn nvidias_names_are_whole_gpus_and_equal_time_slices() {
    let of = |limits| asked(Dialect::Nvidia, &json!({}), &limits);
    assert_eq!(of(json!({"nvidia.com/gpu": "2"})), Ok(Some((Want::Whole, 2, None))));
    assert_eq!(of(json!({"nvidia.com/gpu.shared": 1})), Ok(Some((Want::Replica, 1, None))));
    assert_eq!(of(json!({"nvidia.com/gpu": "0", "cpu": "1"})), Ok(None));
    assert!(matches!(of(json!({"nvidia.com/gpu": "500m"})), Err(AskError::Count { .. })));
    assert!(matches!(
        of(json!({"nvidia.com/gpu": "1", "nvidia.com/gpu.shared": "1"})),
        Err(AskError::Twice { .. })
    ));
    assert!(matches!(
        of(json!({"nvidia.com/gpu": "1", "nvidia.com/gpumem": "1"})),
        Err(AskError::Everybodys { .. })
    ));
}

#[test]
fn hamis_memory_is_in_mib_of_each_gpu() {
    let of = |limits| asked(Dialect::Hami, &json!({}), &limits);
    assert_eq!(of(json!({"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3k"})), Ok(Some((gb(3), 1, None))));
    let all = json!({"nvidia.com/gpu": "2", "nvidia.com/gpumem": "10240", "nvidia.com/gpucores": "30"});
    assert_eq!(of(all), Ok(Some((gb(10), 2, Some(30)))));
    assert_eq!(of(json!({"nvidia.com/gpumem-percentage": "25"})), Ok(Some((gb(20), 1, None))));
    assert_eq!(
        of(json!({"nvidia.com/gpu": "1", "nvidia.com/gpumem-percentage": "100"})),
        Ok(Some((Want::Whole, 1, None)))
    );
    assert_eq!(of(json!({"nvidia.com/gpu": "1"})), Ok(Some((Want::Whole, 1, None))));
    assert_eq!(
        of(json!({"nvidia.com/gpu": "1", "nvidia.com/gpucores": "50"})),
        Ok(Some((Want::Whole, 1, None)))
    );
    for bad in [
        json!({"nvidia.com/gpumem": "500m"}),
        json!({"nvidia.com/gpumem": "300000"}),
        json!({"nvidia.com/gpumem-percentage": "101"}),
    ] {
        assert!(matches!(of(bad.clone()), Err(AskError::Amount { .. })), "{bad}");
    }
    assert!(matches!(of(json!({"nvidia.com/gpucores": "200"})), Err(AskError::Compute { .. })));
}

#[test]
fn hamis_mode_implies_a_class_and_its_priority_is_ignored() {
    let of = |mode: &str, limits: Value| {
        let notes = json!({"annotations": {"nvidia.com/vgpu-mode": mode}});
        pod_ask(&[Dialect::Hami, Dialect::Nvidia], None, &notes, &limits).unwrap().unwrap()
    };
    let mig = of("mig", json!({"nvidia.com/gpumem": "8000", "nvidia.com/priority": "1"}));
    assert_eq!(mig.isolation, Some(IsolationClass::Hardware));
    assert_eq!(mig.ignored, ["nvidia.com/priority"]);
    assert_eq!(of("hami-core", json!({"nvidia.com/gpumem": "8000"})).isolation, Some(IsolationClass::Memory));
    let alone = of("mig", json!({"nvidia.com/gpu": "1"}));
    assert_eq!(alone.dialect, Some(Dialect::Nvidia), "a GPU by itself is the same in both dialects");
}

#[test]
fn gpushares_memory_is_in_gib_or_mib_and_of_all_gpus_together() {
    let of = |labels: Value, limits| asked(Dialect::Gpushare, &json!({"labels": labels}), &limits);
    assert_eq!(of(json!({}), json!({"aliyun.com/gpu-mem": "3"})), Ok(Some((gb(3), 1, None))));
    assert_eq!(of(json!({}), json!({"aliyun.com/gpu-mem": "8138"})), Ok(Some((gb(8), 1, None))));
    let two = json!({"aliyun.com/gpu-count": "2"});
    assert_eq!(of(two.clone(), json!({"aliyun.com/gpu-mem": "8"})), Ok(Some((gb(4), 2, None))));
    assert_eq!(
        of(json!({}), json!({"aliyun.com/gpu-mem": "8", "aliyun.com/gpu-count": "2"})),
        Ok(Some((gb(4), 2, None)))
    );
    assert_eq!(of(json!({}), json!({"aliyun.com/gpu-count": "1"})), Ok(Some((Want::Whole, 1, None))));
    assert_eq!(of(two, json!({"cpu": "1"})), Ok(None), "a label by itself asks for nothing");
    assert!(matches!(of(json!({}), json!({"aliyun.com/gpu-mem": "1.5"})), Err(AskError::Amount { .. })));
    let none = json!({"aliyun.com/gpu-count": "none"});
    assert!(matches!(of(none, json!({"aliyun.com/gpu-mem": "8"})), Err(AskError::Count { .. })));
}

#[test]
fn kais_annotations_are_for_one_container() {
    let of = |notes: Value| asked(Dialect::Kai, &json!({"annotations": notes}), &json!({"cpu": "1"}));
    assert_eq!(of(json!({"gpu-fraction": "0.5"})), Ok(Some((gb(40), 1, None))));
    assert_eq!(
        of(json!({"gpu-memory": "2000", "gpu-fraction-num-devices": "2"})),
        Ok(Some((gb(2), 2, None)))
    );
    assert_eq!(of(json!({"gpu-fraction": "0.1", "gpu-sm-percentage": "20"})), Ok(Some((gb(8), 1, Some(20)))));
    assert_eq!(of(json!({"app": "x"})), Ok(None));
    let idle = json!({"gpu-fraction-container-name": "x"});
    assert_eq!(of(idle), Ok(None), "who asks for nothing may name any container");
    for (bad, name) in [
        (json!({"gpu-fraction": "1"}), "Fraction"),
        (json!({"gpu-fraction": "half"}), "Fraction"),
        (json!({"gpu-fraction": "0.5", "gpu-memory": "2000"}), "Twice"),
        (json!({"gpu-memory": "2Gi"}), "Amount"),
        (json!({"gpu-fraction-num-devices": "2"}), "NothingAsked"),
        (json!({"gpu-fraction": "0.5", "gpu-fraction-num-devices": "0"}), "Count"),
        (json!({"gpu-fraction": "0.5", "gpu-sm-percentage": "0"}), "Compute"),
        (json!({"gpu-fraction": "0.5", "gpu-fraction-container-name": "x"}), "NoContainer"),
    ] {
        let error = format!("{:?}", of(bad.clone()).unwrap_err());
        assert!(error.starts_with(name), "{bad}: {error}");
    }
    let burst = json!({"annotations": {"gpu-fraction": "0.5", "gpu-fraction.limit": "0.9"}});
    let ask = pod_ask(&[Dialect::Kai], Some(SizeGb(80)), &burst, &json!({})).unwrap().unwrap();
    assert_eq!(ask.ignored, ["gpu-fraction.limit"]);
    let unknown = pod_ask(&[Dialect::Kai], None, &burst, &json!({}));
    assert!(matches!(unknown, Err(AskError::FractionOfWhat { .. })));
}

#[test]
fn runais_limit_may_be_a_part_of_a_gpu() {
    let of = |limits| asked(Dialect::Runai, &json!({}), &limits);
    assert_eq!(of(json!({"nvidia.com/gpu": "500m"})), Ok(Some((gb(40), 1, None))));
    assert_eq!(of(json!({"nvidia.com/gpu": "2"})), Ok(Some((Want::Whole, 2, None))));
    assert!(matches!(of(json!({"nvidia.com/gpu": "1500m"})), Err(AskError::Fraction { .. })));
    let on = |devices: &str, limits| {
        asked(Dialect::Runai, &json!({"annotations": {"gpu-fraction-num-devices": devices}}), &limits)
    };
    assert_eq!(on("2", json!({"nvidia.com/gpu": "0.5"})), Ok(Some((gb(40), 2, None))));
    assert!(matches!(on("0", json!({"nvidia.com/gpu": "0.5"})), Err(AskError::Count { .. })));
    assert!(matches!(on("2", json!({"cpu": "1"})), Err(AskError::NothingAsked { .. })));
    for others in [Dialect::Nvidia, Dialect::Hami] {
        let ask = pod_ask(
            &[others, Dialect::Runai],
            Some(SizeGb(80)),
            &json!({}),
            &json!({"nvidia.com/gpu": "0.5"}),
        );
        assert_eq!(ask.unwrap().unwrap().containers[0].want, gb(40), "beside {others}");
    }
    let pipeline = json!({
        "metadata": {"annotations": {"gpu-fraction": "0.5"}, "labels": {"pipelines.kubeflow.org/v2": "true"}},
        "spec": {"containers": [{"name": "wait"}, {"name": "main"}]},
    });
    let dialects = [Dialect::Runai].into_iter().collect();
    let reading = Reading { dialects: &dialects, fraction_of: Some(SizeGb(80)), sidecars: None };
    let ask = read(&serde_json::from_value(pipeline).unwrap(), &reading).unwrap().unwrap();
    assert_eq!(ask.containers[0].name, "main");
}

#[test]
fn a_count_means_different_gpus_in_some_dialects_only() {
    let of = |dialects: &[Dialect], metadata: Value, limits: Value| {
        let ask = pod_ask(dialects, Some(SizeGb(80)), &metadata, &limits).unwrap().unwrap();
        ask.containers[0].distinct_gpus
    };
    let hami = |gpus: &str, more: Value| {
        let mut limits = more;
        limits["nvidia.com/gpu"] = json!(gpus);
        of(&[Dialect::Hami, Dialect::Nvidia], json!({}), limits)
    };
    assert!(hami("2", json!({"nvidia.com/gpumem": "8000"})));
    assert!(hami("2", json!({"nvidia.com/gpumem-percentage": "25", "nvidia.com/gpucores": "30"})));
    assert!(!hami("1", json!({"nvidia.com/gpumem": "8000"})), "one GPU");
    assert!(hami("2", json!({"nvidia.com/gpumem-percentage": "100"})));
    assert!(!hami("2", json!({})), "NVIDIA's meaning where both dialects are on");
    for (dialect, name) in [
        (Dialect::Hami, "nvidia.com/gpu"),
        (Dialect::Runai, "nvidia.com/gpu"),
        (Dialect::Gpushare, "aliyun.com/gpu-count"),
    ] {
        assert!(of(&[dialect], json!({}), json!({name: "2"})), "{dialect:?}");
    }
    let label = json!({"labels": {"aliyun.com/gpu-count": "2"}});
    assert!(of(&[Dialect::Gpushare], label, json!({"aliyun.com/gpu-mem": "8"})));
    let devices =
        |key: &str, part: &str| json!({"annotations": {key: part, "gpu-fraction-num-devices": "2"}});
    assert!(of(&[Dialect::Kai], devices("gpu-fraction", "0.5"), json!({})));
    assert!(of(&[Dialect::Kai], devices("gpu-memory", "2000"), json!({})));
    let limit = json!({"nvidia.com/gpu": "0.5"});
    assert!(of(&[Dialect::Runai], devices("runai/any", ""), limit.clone()));
    assert!(!of(&[Dialect::Runai], json!({}), limit));
    assert!(!of(&[Dialect::Nvidia], json!({}), json!({"nvidia.com/gpu.shared": "2"})), "of whatever GPU");
    let ours = json!({"annotations": {"kerf.dev/gpu-memory": "10Gi", "kerf.dev/gpu-count": "2"}});
    assert!(!of(&[], ours, json!({})));
    assert!(!of(&[], json!({}), json!({"kerf.dev/gpu-10gb": "2"})));
}

#[test]
fn a_request_in_two_dialects_is_refused() {
    let both = json!({"annotations": {"gpu-fraction": "0.5"}});
    let twice =
        pod_ask(&[Dialect::Kai, Dialect::Nvidia], Some(SizeGb(80)), &both, &json!({"nvidia.com/gpu": "1"}));
    assert!(matches!(twice, Err(AskError::Twice { .. })));
    let ours = json!({"annotations": {"kerf.dev/gpu-memory": "10Gi"}});
    let twice = pod_ask(&[Dialect::Nvidia], None, &ours, &json!({"nvidia.com/gpu": "1"}));
    assert!(matches!(twice, Err(AskError::Twice { .. })));
}

#[test]
fn a_dialect_that_is_off_asks_for_nothing() {
    for limits in [
        json!({"nvidia.com/gpu": "1"}),
        json!({"nvidia.com/gpumem": "1"}),
        json!({"aliyun.com/gpu-mem": "1"}),
    ] {
        let notes = json!({"annotations": {"gpu-fraction": "0.5"}});
        assert_eq!(pod_ask(&[], Some(SizeGb(80)), &notes, &limits), Ok(None), "{limits}");
    }
    let kai = [Dialect::Kai].into_iter().collect();
    assert!(is_scheduler_of("kai-scheduler", &kai) && !is_scheduler_of("runai-scheduler", &kai));
}
