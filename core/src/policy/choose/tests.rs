use super::*;
use crate::contract::GpuNodeSpec;
use crate::mig::catalog;
use crate::names::NodeName;
use crate::policy::{PolicyDocument, SupplyIndex};
use crate::request::{Dialect, GpuSelection, Role};
use crate::resource::SHARE_SIZES;
use crate::testing::node_status;
use crate::units::{ComputePercent, MemoryMib};
use proptest::prelude::*;
use serde_json::{Value, json};

fn policy() -> Policy {
    policy_with(&json!({}))
}

pub(super) fn policy_with(more: &Value) -> Policy {
    let mut document = json!({
        "apiVersion": "kerf.dev/v1alpha1", "kind": "GpuPolicy", "metadata": {"name": "default"},
        "spec": {
            "defaultIsolation": "memory",
            "isolation": {
                "hardware": ["mig", "whole"],
                "memory": ["mig", "mps", "whole"],
                "none": ["time-slicing", "mps", "mig", "whole"],
            },
            "maxCount": 8,
        }
    });
    for (key, value) in more.as_object().unwrap() {
        document["spec"][key] = value.clone();
    }
    serde_json::from_value::<PolicyDocument>(document).unwrap().try_into().unwrap()
}

fn supply(models: &[&str]) -> Supply {
    Supply::from_statuses(&[node_status(models)])
}

pub(super) fn ask(want: Want, isolation: Option<IsolationClass>) -> PodAsk {
    let main = ContainerAsk {
        name: "main".into(),
        role: Role::App,
        want,
        count: 1,
        by: String::new(),
        memory: None,
        compute: None,
        distinct_gpus: false,
    };
    PodAsk {
        isolation,
        containers: vec![main],
        gpus: GpuSelection::default(),
        dialect: None,
        ignored: Vec::new(),
    }
}

fn chosen(models: &[&str], gb: u32, isolation: Option<IsolationClass>) -> String {
    match choose(&policy(), &supply(models), &ask(Want::Size(SizeGb(gb)), isolation)) {
        Ok(choice) => {
            let warnings = choice.warnings.iter().map(ToString::to_string);
            let resource = choice.document.containers[0].resource.to_string();
            std::iter::once(resource).chain(warnings).collect::<Vec<_>>().join(" | ")
        }
        Err(denied) => denied.to_string(),
    }
}

#[test]
fn the_first_kind_that_the_cluster_serves_is_taken() {
    assert_eq!(chosen(&["H100-80GB", "T4-16GB"], 9, None), "nvidia.com/mig-1g.10gb");
    assert_eq!(chosen(&["T4-16GB"], 10, None), "nvidia.com/gpu-10gb");
    assert_eq!(
        chosen(&["H100-80GB", "T4-16GB"], 10, Some(IsolationClass::None)),
        "nvidia.com/gpu-10gb.shared"
    );
}

#[test]
fn a_size_beyond_the_first_kind_takes_the_next() {
    assert_eq!(
        chosen(&["H100-80GB", "T4-16GB"], 20, Some(IsolationClass::None)).split(" | ").next(),
        Some("nvidia.com/mig-1g.20gb")
    );
}

#[test]
fn a_name_is_the_smallest_profile_of_the_cluster() {
    assert_eq!(chosen(&["H200-141GB"], 10, None), "nvidia.com/mig-1g.18gb");
    assert_eq!(
        chosen(&["H200-141GB", "A100-40GB"], 5, None).split(" | ").next(),
        Some("nvidia.com/mig-1g.5gb")
    );
}

#[test]
fn a_whole_gpu_serves_more_than_half_of_it_if_no_slice_does() {
    let hardware = Some(IsolationClass::Hardware);
    let first = |text: String| text.split(" | ").next().unwrap().to_owned();
    let mut l40s = node_status(&["L40S-48GB"]);
    l40s.gpus[0].kinds = vec![Kind::Whole];
    let chosen_of = |gb| {
        let asked = ask(Want::Size(SizeGb(gb)), hardware);
        choose(&policy(), &Supply::from_statuses(&[l40s.clone()]), &asked).unwrap().document.containers[0]
            .resource
    };
    assert_eq!(chosen_of(40).to_string(), "nvidia.com/gpu");
    assert_eq!(chosen_of(10).to_string(), "nvidia.com/mig-1g.10gb", "it waits for a slice");
    assert_eq!(first(chosen(&["A30-24GB", "L40S-48GB"], 24, hardware)), "nvidia.com/mig-4g.24gb");
    assert_eq!(first(chosen(&["A30-24GB", "L40S-48GB"], 30, hardware)), "nvidia.com/gpu");
    assert_eq!(first(chosen(&["A30-24GB", "L40S-48GB"], 40, None)), "nvidia.com/gpu-40gb");
}

#[test]
fn a_compute_instance_serves_pods_without_isolation_only() {
    let part = Want::Compute("1c.3g.40gb".parse().unwrap());
    let of = |class| choose(&policy(), &supply(&["H100-80GB"]), &ask(part, Some(class)));
    let choice = of(IsolationClass::None).unwrap();
    assert_eq!(choice.document.containers[0].resource.to_string(), "nvidia.com/mig-1c.3g.40gb");
    assert!(matches!(of(IsolationClass::Memory), Err(Denied::Kind { .. })));
}

#[test]
fn an_empty_cluster_gives_a_neutral_name() {
    assert_eq!(chosen(&[], 10, None), "kerf.dev/gpu-10gb");
    assert_eq!(chosen(&[], 10, Some(IsolationClass::None)), "kerf.dev/gpu-10gb");
}

#[test]
fn accepted_requests_have_warnings() {
    insta::assert_snapshot!(
        [
            chosen(&["H100-80GB"], 10, None),
            chosen(&["H100-80GB"], 100, None),
            chosen(&["T4-16GB"], 13, None),
            chosen(&["T4-16GB"], 40, Some(IsolationClass::Hardware)),
        ]
        .join("\n")
    );
    let exact = chosen(&["H200-141GB"], 16, None);
    assert_eq!(exact, "nvidia.com/mig-1g.18gb", "it has 16 GiB, which is what was asked for");
}

#[test]
fn an_exact_profile_is_kept_and_a_weak_kind_refused() {
    let profile = "2g.20gb".parse().unwrap();
    let choice = choose(&policy(), &supply(&["H100-80GB"]), &ask(Want::Profile(profile), None)).unwrap();
    assert_eq!(choice.document.containers[0].profile, Some(profile));
    let weak = ask(Want::Share(Kind::TimeSlicing, SizeGb(10)), None);
    insta::assert_snapshot!(choose(&policy(), &supply(&["T4-16GB"]), &weak).unwrap_err());
}

fn resource_of(choice: &Choice) -> String {
    choice.document.containers[0].resource.to_string()
}

#[test]
fn only_gpus_that_the_pod_may_have_serve_it() {
    let mut picky = ask(Want::Size(SizeGb(10)), None);
    picky.gpus.models = vec!["T4-16GB".to_owned()];
    let choice = choose(&policy(), &supply(&["H100-80GB", "T4-16GB"]), &picky).unwrap();
    assert_eq!(resource_of(&choice), "nvidia.com/gpu-10gb");
    assert_eq!(choice.document.gpus, picky.gpus);
    picky.gpus.models = vec!["L4-24GB".to_owned()];
    let choice = choose(&policy(), &supply(&["H100-80GB", "T4-16GB"]), &picky).unwrap();
    assert_eq!(resource_of(&choice), "nvidia.com/gpu-10gb", "an L4 has no MIG");
    assert!(matches!(choice.warnings[0], Warning::NoSupply(..)));
}

fn needing(gb: u32, memory: Option<u64>, compute: Option<u8>, class: IsolationClass) -> PodAsk {
    let mut needing = ask(Want::Size(SizeGb(gb)), Some(class));
    needing.containers[0].memory = memory.map(MemoryMib);
    needing.containers[0].compute = compute.and_then(ComputePercent::new);
    needing
}

#[test]
fn a_strict_size_gets_slices_that_really_have_it() {
    let of = |models: &[&str], class| {
        let choice = choose(&policy(), &supply(models), &needing(10, Some(10_240), None, class)).unwrap();
        assert_eq!(choice.document.containers[0].memory, Some(MemoryMib(10_240)));
        resource_of(&choice)
    };
    assert_eq!(of(&["H100-80GB"], IsolationClass::Memory), "nvidia.com/mig-1g.20gb", "a 1g.10gb has 9984Mi");
    assert_eq!(of(&["T4-16GB"], IsolationClass::Memory), "nvidia.com/gpu-10gb");
    assert_eq!(of(&[], IsolationClass::None), "kerf.dev/gpu-10gb");
}

#[test]
fn a_share_of_compute_gets_slices_that_guarantee_it() {
    let of =
        |percent, class| choose(&policy(), &supply(&["H100-80GB"]), &needing(10, None, Some(percent), class));
    assert_eq!(resource_of(&of(14, IsolationClass::Hardware).unwrap()), "nvidia.com/mig-1g.10gb");
    assert_eq!(resource_of(&of(25, IsolationClass::Hardware).unwrap()), "nvidia.com/mig-2g.20gb");
    assert_eq!(resource_of(&of(50, IsolationClass::Hardware).unwrap()), "nvidia.com/mig-4g.40gb");
    let h100 = policy_with(&json!({"isolation": {"memory": ["mig"]}, "models": ["H100-80GB"]}));
    let none = choose(&h100, &supply(&[]), &needing(10, None, Some(50), IsolationClass::Memory)).unwrap();
    assert_eq!(resource_of(&none), "nvidia.com/mig-4g.40gb", "as the catalog's H100 has it");
    let t4 =
        choose(&policy(), &supply(&["T4-16GB"]), &needing(10, None, Some(50), IsolationClass::None)).unwrap();
    assert_eq!(resource_of(&t4), "nvidia.com/gpu-10gb", "a time slice has no compute for itself");
    let slices_only =
        policy_with(&json!({"defaultIsolation": "none", "isolation": {"none": ["time-slicing"]}}));
    let denied =
        choose(&slices_only, &supply(&["T4-16GB"]), &needing(10, None, Some(50), IsolationClass::None));
    assert!(matches!(denied, Err(Denied::Compute { percent: 50, .. })));
    // A T4 has no MIG, so only its time slices could serve the size.
    let isolation = json!({"defaultIsolation": "none", "isolation": {"none": ["mig", "time-slicing"]}});
    let mut on_t4 = needing(10, None, Some(50), IsolationClass::None);
    on_t4.gpus.models = vec!["T4-16GB".to_owned()];
    let denied = choose(&policy_with(&isolation), &supply(&["T4-16GB"]), &on_t4);
    assert!(matches!(denied, Err(Denied::Compute { percent: 50, .. })), "{denied:?}");
}

#[test]
fn a_share_of_compute_skips_gpus_without_compute_limits() {
    let policy_of_node = json!({"gpus": [{"mps": {"computeLimit": "none"}}]});
    let spec =
        GpuNodeSpec { policy: serde_json::from_value(policy_of_node).unwrap(), ..GpuNodeSpec::default() };
    let mut index = SupplyIndex::default();
    index.show(NodeName::new("n"), &spec, &node_status(&["T4-16GB"]));
    let supply = index.supply();
    let resource = |compute| {
        let ask = needing(10, None, compute, IsolationClass::Memory);
        resource_of(&choose(&policy(), &supply, &ask).unwrap())
    };
    assert_eq!(resource(None), "nvidia.com/gpu-10gb");
    assert_eq!(resource(Some(50)), "nvidia.com/gpu", "all of it is more than half");
}

#[test]
fn a_name_implies_the_class_if_the_pod_names_none() {
    let of = |policy: &Policy, want, class| {
        let choice = choose(policy, &supply(&["T4-16GB"]), &ask(want, class)).unwrap();
        (resource_of(&choice), choice.document.isolation)
    };
    let whole = "nvidia.com/gpu".to_owned();
    assert_eq!(of(&policy(), Want::Whole, None), (whole.clone(), IsolationClass::Hardware));
    assert_eq!(of(&policy(), Want::Whole, Some(IsolationClass::None)), (whole.clone(), IsolationClass::None));
    let weak = policy_with(&json!({"isolation": {"hardware": ["mig"], "memory": ["mps", "whole"]}}));
    assert_eq!(of(&weak, Want::Whole, None), (whole, IsolationClass::Memory));
    let shared = "nvidia.com/gpu.shared".to_owned();
    assert_eq!(of(&policy(), Want::Replica, None), (shared, IsolationClass::None));
    let denied = choose(&policy(), &supply(&["T4-16GB"]), &ask(Want::Replica, Some(IsolationClass::Memory)));
    assert!(matches!(denied, Err(Denied::Kind { .. })));
    let unfenced = policy_with(
        &json!({"isolation": {"hardware": ["mig"], "none": ["mps"]}, "defaultIsolation": "none"}),
    );
    let share = "nvidia.com/gpu.mps".to_owned();
    assert_eq!(of(&unfenced, Want::MpsReplica, None), (share, IsolationClass::None));
}

#[test]
fn names_imply_no_isolation_only_if_the_policy_serves_all_of_them_without() {
    let policy = policy_with(&json!({"isolation": {"memory": ["mig"], "none": ["time-slicing"]}}));
    let mut asking = ask(Want::Replica, None);
    let turn = Want::MigReplica("1g.10gb".parse().unwrap());
    asking.containers.push(ContainerAsk {
        name: "second".into(),
        want: turn,
        ..asking.containers[0].clone()
    });
    let denied = choose(&policy, &supply(&[]), &asking);
    assert!(matches!(denied, Err(Denied::Kind { class: IsolationClass::Memory, .. })), "{denied:?}");
}

#[test]
fn a_whole_gpu_may_have_any_size_without_a_bound() {
    let size = |policy: &Policy| {
        let choice = choose(policy, &supply(&["L40S-48GB"]), &ask(Want::Whole, None)).unwrap();
        (choice.document.containers[0].size_gb, choice.warnings.len())
    };
    assert_eq!(size(&policy()).0, SizeGb::ANY);
    let bounded = policy_with(&json!({"sizes": {"maxGb": 20}}));
    assert_eq!(size(&bounded), (SizeGb(20), 1), "no GPU is of 20 to 40 GB");
}

#[test]
fn a_refusal_names_the_policys_bound_and_the_nearest_request() {
    let sized = policy_with(&json!({
        "sizes": {"minGb": 5, "maxGb": 40, "stepGb": 5}, "maxPerPod": {"memoryGb": 60, "slices": 4},
    }));
    let of = |gb, count| {
        let mut asking = ask(Want::Size(SizeGb(gb)), None);
        asking.containers[0].count = count;
        choose(&sized, &supply(&["H100-80GB"]), &asking)
    };
    assert_eq!(of(7, 1).unwrap().document.containers[0].size_gb, SizeGb(10));
    assert!(of(20, 3).is_ok() && of(5, 4).is_ok(), "as much as a pod may have");
    let is_stepped = |warning: &Warning| matches!(warning, Warning::Stepped(..));
    assert!(!of(10, 1).unwrap().warnings.iter().any(is_stepped), "it is a whole number of steps");
    let denied =
        [of(2, 1), of(41, 1), of(20, 4), of(5, 5), of(5, 9)].map(|denied| denied.unwrap_err().to_string());
    let reported = of(7, 1).unwrap().warnings[0].to_string();
    insta::assert_snapshot!(denied.join("\n") + "\n" + &reported);
}

#[test]
fn a_name_without_a_size_counts_as_the_largest_slice() {
    let capped = policy_with(&json!({"maxPerPod": {"memoryGb": 80}}));
    let of = |count, model: &str, models: &[&str]| {
        let mut asking = ask(Want::Whole, None);
        asking.containers[0].count = count;
        asking.gpus.models.extend(Some(model.to_owned()).filter(|model| !model.is_empty()));
        choose(&capped, &supply(models), &asking)
    };
    let both = ["T4-16GB", "L40S-48GB"];
    insta::assert_snapshot!(of(8, "", &both).unwrap_err(), @"the pod asks for 360 GB of GPU memory in all, where nvidia.com/gpu counts as 45 GB, the most that it may be, more than the 80 GB that policy default allows one pod; ask for 80 GB or less, or make several pods of it");
    assert!(of(1, "", &both).is_ok() && of(2, "", &both).is_err());
    assert!(of(5, "T4-16GB", &both).is_ok() && of(6, "T4-16GB", &both).is_err());
    assert!(of(8, "", &[]).is_ok(), "an empty supply counts no memory");
}

#[test]
fn the_document_says_whether_pods_may_be_moved() {
    let still = policy_with(&json!({"preemption": {"movesOthers": false}}));
    let of =
        |policy: &Policy| choose(policy, &supply(&[]), &ask(Want::Size(SizeGb(10)), None)).unwrap().document;
    assert!(of(&still).never_evicts && !of(&policy()).never_evicts);
}

fn want() -> impl Strategy<Value = Want> {
    prop_oneof![
        4 => (1_u32..=140).prop_map(|gb| Want::Size(SizeGb(gb))),
        1 => prop::sample::select(vec!["1g.10gb", "2g.20gb", "1g.10gb+me"]).prop_map(|p| Want::Profile(p.parse().unwrap())),
        1 => Just(Want::Compute("1c.3g.40gb".parse().unwrap())),
        1 => Just(Want::MigReplica("1g.10gb".parse().unwrap())),
        1 => (prop::sample::select(vec![Kind::Mps, Kind::TimeSlicing]), 1_u32..=96).prop_map(|(kind, gb)| Want::Share(kind, SizeGb(gb))),
        1 => prop::sample::select(vec![Want::Whole, Want::Replica, Want::MpsReplica]),
    ]
}

fn container_ask() -> impl Strategy<Value = ContainerAsk> {
    (want(), 1_u32..4, any::<bool>(), prop::option::of(0_u8..=100)).prop_map(
        |(want, count, strict, compute)| {
            let memory = match want {
                Want::Size(size) if strict => Some(size.share_memory()),
                _ => None,
            };
            let compute = compute.and_then(ComputePercent::new);
            ContainerAsk {
                name: "c".into(),
                role: Role::App,
                want,
                count,
                by: String::new(),
                memory,
                compute,
                distinct_gpus: false,
            }
        },
    )
}

/// Whether a container gets only what the policy allows for its request in this class.
fn is_allowed(
    policy: &Policy,
    class: IsolationClass,
    asked: &ContainerAsk,
    given: &ContainerRequest,
) -> bool {
    let sizes = policy.spec().sizes;
    let kinds = given.resource.kind().map_or_else(|| given.kinds.clone(), |kind| vec![kind]);
    let size = (given.size_gb != SizeGb::ANY).then_some(given.size_gb);
    let is_sized = size.is_none_or(|size| {
        sizes.min_gb.is_none_or(|min| min <= size) && sizes.max_gb.is_none_or(|max| size <= max)
    });
    let is_asked = match asked.want {
        Want::Size(wanted) => size.is_some_and(|size| size >= wanted),
        Want::Profile(profile) => given.resource == ResourceName::Mig(profile),
        Want::Compute(profile) => given.resource == ResourceName::Compute(profile),
        Want::MigReplica(profile) => given.resource == ResourceName::MigReplica(profile),
        Want::Share(wanted, _) => given.only_kind() == Some(wanted),
        Want::Whole | Want::Replica => true,
        Want::MpsReplica => given.resource == ResourceName::MpsReplica,
    };
    let keeps = |kind: &Kind| {
        policy.kinds(class).is_some_and(|kinds| kinds.contains(kind))
            && (given.resource.is_neutral() || strongest_class(given.resource) >= class)
            && kind.strongest_class() >= class
    };
    !kinds.is_empty()
        && kinds.iter().all(keeps)
        && given.resource.is_neutral() != given.kinds.is_empty()
        && given.resource.size().zip(size).is_none_or(|(of_name, size)| of_name >= size)
        && (is_sized && is_asked && given.count == asked.count && given.count <= policy.max_count())
}

proptest! {
    #[test]
    fn every_choice_is_allowed_and_meets_the_request(
        mut containers in prop::collection::vec(container_ask(), 1..4),
        isolation in prop::option::of(prop::sample::select(IsolationClass::ALL.to_vec())),
        models in prop::sample::subsequence(vec!["H100-80GB", "A100-40GB", "H200-141GB", "T4-16GB", "A30-24GB"], 0..=5),
        named in prop::sample::subsequence(vec!["H100-80GB", "T4-16GB"], 0..=2),
        is_neutral in any::<bool>(),
        bounds in prop::sample::select(vec![json!({}), json!({"stepGb": 7}), json!({"minGb": 3, "maxGb": 50, "stepGb": 4})]),
        dialect in prop::option::of(prop::sample::select(Dialect::ALL.to_vec())),
        statics in prop::sample::subsequence(super::static_tests::LAYOUTS.to_vec(), 0..=2),
    ) {
        for (number, container) in containers.iter_mut().enumerate() {
            container.name = format!("c{number}");
        }
        let gpus = GpuSelection { models: named.into_iter().map(str::to_owned).collect(), ..GpuSelection::default() };
        let asking = PodAsk { isolation, containers, gpus, dialect, ignored: Vec::new() };
        let policy = policy_with(&json!({"sizes": bounds}));
        let supply = super::static_tests::beside(&models, &statics);
        let supply = if is_neutral { supply } else { supply.with_concrete_names() };
        if let Ok(choice) = choose(&policy, &supply, &asking) {
            let class = choice.document.isolation;
            for (asked, given) in asking.containers.iter().zip(&choice.document.containers) {
                prop_assert!(is_allowed(&policy, class, asked, given), "{:?} {:?}", asked, given);
            }
            prop_assert_eq!(&RequestDocument::parse(&choice.document.to_json()).unwrap(), &choice.document);
            prop_assert!(isolation.is_none_or(|asked| asked == class));
        }
    }
}

#[test]
fn a_size_is_raised_to_a_step_but_not_beyond_the_largest() {
    for (sizes, asked, given) in [
        (json!({"maxGb": 40, "stepGb": 7}), 34, 35),
        (json!({"maxGb": 40, "stepGb": 7}), 38, 40),
        (json!({"maxGb": 1000, "stepGb": 7}), 278, 278),
    ] {
        let policy = policy_with(&json!({"sizes": sizes}));
        let choice = choose(&policy, &supply(&[]), &ask(Want::Size(SizeGb(asked)), None)).unwrap();
        assert_eq!(choice.document.containers[0].size_gb, SizeGb(given), "{sizes} {asked}");
    }
}

#[test]
fn the_largest_size_of_any_kind_is_conceivable_and_no_larger_one() {
    for (kinds, models, most) in [
        (json!(["mps"]), vec!["H100-80GB"], 80),
        (json!(["whole"]), vec!["H100-80GB"], 80),
        (json!(["mps", "mig"]), vec!["T4-16GB", "H100-80GB", "GB300-278GB"], 278),
    ] {
        let policy = policy_with(&json!({"isolation": {"memory": kinds}, "models": models}));
        let of = |gb| choose(&policy, &supply(&[]), &ask(Want::Size(SizeGb(gb)), None));
        assert!(of(most).is_ok(), "{kinds}");
        let denied = of(most + 1);
        assert!(
            matches!(denied, Err(Denied::Size { most: SizeGb(gb), .. }) if gb == most),
            "{kinds} {denied:?}"
        );
    }
}

/// A GPU of 15 GB may have slightly less than 15 GiB.
#[test]
fn a_whole_gpu_covers_the_size_and_surely_the_memory() {
    let whole = policy_with(&json!({"isolation": {"memory": ["whole"]}}));
    for (gb, memory, is_served) in [(14, 14 * 1024, true), (15, 15 * 1024, false), (20, 10 * 1024, false)] {
        let asking = needing(gb, Some(memory), None, IsolationClass::Memory);
        let choice = choose(&whole, &supply(&["T4-16GB"]), &asking).unwrap();
        let is_warned = choice.warnings.iter().any(|warning| matches!(warning, Warning::NoSupply(..)));
        assert_eq!(is_warned, !is_served, "{gb} GB with {memory} MiB");
    }
}

#[test]
fn a_name_that_no_model_of_the_pod_may_have_is_refused() {
    let of = |want, models: &[&str]| {
        let mut asking = ask(want, Some(IsolationClass::None));
        asking.gpus.models = models.iter().map(|model| (*model).to_owned()).collect();
        choose(&policy(), &supply(&[]), &asking)
    };
    let profile = Want::Profile("5g.50gb".parse().unwrap());
    assert!(of(profile, &[]).is_ok() && of(profile, &["T5-32GB"]).is_ok(), "an unknown model may have it");
    assert!(matches!(of(profile, &["H100-80GB"]), Err(Denied::NoModel { .. })));
    for want in [Want::Whole, Want::Replica, Want::MpsReplica] {
        assert!(of(want, &["H100-80GB"]).is_ok(), "{want:?}");
    }
    for kind in [Kind::Mps, Kind::TimeSlicing] {
        assert!(of(Want::Share(kind, SizeGb(80)), &["H100-80GB"]).is_ok(), "{kind}");
        let denied = of(Want::Share(kind, SizeGb(96)), &["H100-80GB"]);
        assert!(matches!(denied, Err(Denied::NoModel { .. })), "{kind} {denied:?}");
    }
}

#[test]
fn a_forbidden_class_is_refused_with_the_allowed_ones() {
    let policy = policy_with(&json!({"isolation": {"memory": ["mps"], "none": ["mps"]}}));
    let hardware = ask(Want::Size(SizeGb(4)), Some(IsolationClass::Hardware));
    let denied = choose(&policy, &supply(&[]), &hardware);
    assert!(matches!(&denied, Err(Denied::Class { allowed, .. }) if allowed == "memory, none"), "{denied:?}");
}

#[test]
fn the_policys_sizes_hold_for_names_with_a_size() {
    let sized = policy_with(&json!({"sizes": {"minGb": 10, "maxGb": 20}}));
    let of = |profile: &str| {
        choose(&sized, &supply(&["A100-40GB"]), &ask(Want::Profile(profile.parse().unwrap()), None))
    };
    assert!(matches!(of("1g.5gb"), Err(Denied::TooSmall { .. })));
    assert!(of("2g.10gb").is_ok() && of("3g.20gb").is_ok());
    assert!(matches!(of("7g.40gb"), Err(Denied::TooLarge { .. })));
}

#[test]
fn the_document_names_containers_that_name_a_kind_of_slice() {
    let mut asking = ask(Want::Size(SizeGb(10)), None);
    let exact = Want::Profile("1g.10gb".parse().unwrap());
    asking.containers.push(ContainerAsk {
        name: "exact".into(),
        want: exact,
        ..asking.containers[0].clone()
    });
    let document = choose(&policy(), &supply(&["H100-80GB"]), &asking).unwrap().document;
    assert_eq!(document.chosen.unwrap().named, ["exact"]);
}

#[test]
fn a_model_that_the_policy_forbids_causes_a_warning() {
    let mut asking = ask(Want::Size(SizeGb(10)), None);
    asking.gpus.models = ["H100-80GB", "T4-16GB"].map(str::to_owned).into();
    let policy = policy_with(&json!({"models": ["H100-80GB"]}));
    let warnings = choose(&policy, &supply(&["H100-80GB"]), &asking).unwrap().warnings;
    assert!(warnings.contains(&Warning::ModelsBeyond("T4-16GB".to_owned(), "default".to_owned())));
}

#[test]
fn a_profile_with_exactly_the_memory_is_conceivable() {
    let profile = "1g.10gb".parse().unwrap();
    let tables = catalog::MODELS.iter().filter_map(catalog::GpuModel::mig_table);
    let memory = tables.filter_map(|table| Some(table.entry(profile)?.memory.0)).max().unwrap();
    let chosen = |memory| {
        let needing = needing(10, Some(memory), None, IsolationClass::Hardware);
        let supply = Supply::default().with_concrete_names();
        resource_of(&choose(&policy_with(&json!({})), &supply, &needing).unwrap())
    };
    assert_eq!(chosen(memory), "nvidia.com/mig-1g.10gb");
    assert_ne!(chosen(memory + 1), "nvidia.com/mig-1g.10gb");
}

/// A GB300 has profiles of 35 GB. Newer drivers name them by 31 GB, and the catalog has these names only.
#[test]
fn a_name_under_another_driver_serves_no_request_for_memory_or_compute() {
    let policy = policy_with(&json!({"isolation": {"memory": ["mig"]}, "models": ["GB300-278GB"]}));
    let of = |memory, compute| {
        let asking = needing(31, memory, compute, IsolationClass::Memory);
        resource_of(&choose(&policy, &supply(&[]), &asking).unwrap())
    };
    assert_eq!(of(None, None), "nvidia.com/mig-1g.31gb");
    assert_eq!(of(Some(31 * 1024), None), "nvidia.com/mig-1g.35gb");
    assert_eq!(of(None, Some(10)), "nvidia.com/mig-1g.35gb");
}

#[test]
fn the_largest_slice_is_that_of_the_largest_model() {
    let of = |kind, models: &[&str]| {
        let models = models.iter().map(|model| (*model).to_owned()).collect();
        largest(kind, &GpuSelection { models, ..GpuSelection::default() }).map(|size| size.0)
    };
    for kind in Kind::ALL {
        assert_eq!(of(kind, &["T4-16GB", "H100-80GB", "A30-24GB"]), Some(80), "{kind}");
    }
    assert_eq!(
        Kind::ALL.map(|kind| of(kind, &["T4-16GB"])),
        Kind::ALL.map(|kind| (kind != Kind::Mig).then_some(15))
    );
    assert_eq!(of(Kind::Mig, &["T4-16GB", "T5-32GB"]), Some(LARGEST_SIZE.0), "an unknown model may be any");
    let most = SHARE_SIZES.last().map(|size| size.0);
    assert_eq!((of(Kind::Mps, &[]), of(Kind::Whole, &[])), (most, Some(LARGEST_SIZE.0)));
}
