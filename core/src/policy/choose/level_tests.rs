use super::super::tests::{ask, policy_with};
use super::super::{choose, on_one_sort_of_node};
use super::*;
use crate::kind::IsolationClass;
use crate::policy::{Policy, Supply};
use crate::resource::ResourceName;
use crate::testing::{node_status, with_neutral_names};
use proptest::prelude::*;
use serde_json::json;

/// What each container asks: its role, how many slices, and of which size in GB.
type Asks<'a> = &'a [(Role, u32, u32)];

use Role::{App, Init, Sidecar};

fn pod(asks: Asks) -> PodAsk {
    let one = ask(Want::Size(SizeGb(1)), None);
    let container = |(index, (role, count, gb)): (usize, &(Role, u32, u32))| {
        let name = format!("c{index}");
        ContainerAsk {
            name,
            role: *role,
            count: *count,
            want: Want::Size(SizeGb(*gb)),
            ..one.containers[0].clone()
        }
    };
    PodAsk { containers: asks.iter().enumerate().map(container).collect(), ..one }
}

/// A cluster of GPUs that are shared by MPS, where each size has its own name.
fn shared() -> Supply {
    Supply::from_statuses(&[node_status(&["T4-16GB", "T4-16GB"])])
}

fn policy() -> Policy {
    policy_with(&json!({}))
}

/// The memory that the pod holds, in GB.
fn sum(document: &RequestDocument) -> u64 {
    document.holdings().iter().map(|holding| u64::from(holding.count) * u64::from(holding.size_gb.0)).sum()
}

/// The containers' sizes, and what the pod holds in all.
fn sizes(asks: Asks) -> (Vec<u32>, u64) {
    let choice = choose(&policy(), &shared(), &pod(asks)).unwrap();
    let sizes = choice.document.containers.iter().map(|container| container.size_gb.0).collect();
    (sizes, sum(&choice.document))
}

/// Levelling does not depend on which kinds exist or what is in use, because the extender may take any kind.
#[test]
fn levelling_needs_no_inventory() {
    let asked = pod(&[(Init, 1, 5), (App, 1, 4)]);
    for models in [&[][..], &["T4-16GB"], &["H100-80GB", "T4-16GB", "A100-40GB"]] {
        let supply = Supply::from_statuses(&[with_neutral_names(node_status(models))]);
        let choice = choose(&policy(), &supply, &asked).unwrap();
        let sizes: Vec<u32> =
            choice.document.containers.iter().map(|container| container.size_gb.0).collect();
        assert_eq!((sizes, choice.document.holdings().len()), (vec![5, 5], 1), "{models:?}");
    }
}

#[test]
fn sizes_of_one_name_stay_as_they_were_asked() {
    for (models, first, second) in [(&["H100-80GB"][..], 5, 4), (&["H100-80GB", "T4-16GB"], 14, 13)] {
        let supply = Supply::from_statuses(&[with_neutral_names(node_status(models))]);
        let choice = choose(&policy(), &supply, &pod(&[(Init, 1, first), (App, 1, second)])).unwrap();
        let sizes: Vec<u32> =
            choice.document.containers.iter().map(|container| container.size_gb.0).collect();
        assert_eq!((sizes, choice.document.holdings().len()), (vec![first, second], 1), "{models:?}");
    }
}

#[test]
fn a_slice_is_matched_to_one_at_least_as_large() {
    let level = |gb, memory: Option<u64>, compute| -> Level {
        (SizeGb(gb), memory.map(MemoryMib), ComputePercent::new(compute), false)
    };
    let plain = |gb| level(gb, None, 0);
    for (after, before, expected) in [
        (vec![(plain(5), 1)], vec![(plain(5), 1), (plain(4), 1)], true),
        (vec![(plain(5), 2)], vec![(plain(5), 1), (plain(4), 1)], false),
        (vec![(plain(5), 1), (plain(4), 2)], vec![(plain(6), 3)], true),
        (vec![(plain(5), 4)], vec![(plain(6), 3)], false),
        (vec![(plain(6), 1), (plain(4), 1)], vec![(plain(5), 2)], false),
        (vec![(level(4, Some(4096), 0), 1)], vec![(plain(5), 1)], false),
        (vec![(plain(4), 1)], vec![(level(4, Some(4096), 0), 1)], true),
        (vec![(level(4, None, 50), 1)], vec![(plain(5), 1)], false),
    ] {
        assert_eq!(is_within(&after, &before), expected, "{after:?} {before:?}");
    }
}

#[test]
fn slices_of_an_init_container_serve_containers_of_other_sizes() {
    let cases: [(Asks, Vec<u32>, u64); 11] = [
        (&[(Init, 1, 5), (App, 1, 4)], vec![5, 5], 5),
        (&[(Init, 1, 4), (App, 1, 5)], vec![5, 5], 5),
        (&[(Init, 1, 5), (Init, 1, 3), (App, 1, 4)], vec![5, 5, 5], 5),
        (&[(Init, 1, 5), (App, 1, 4), (App, 1, 4)], vec![5, 5, 4], 9),
        (&[(Init, 1, 5), (App, 1, 1), (App, 1, 4)], vec![5, 1, 5], 6),
        (&[(Init, 1, 3), (Init, 1, 2)], vec![3, 3], 3),
        (&[(Init, 1, 5), (Sidecar, 1, 4), (App, 1, 2)], vec![5, 5, 2], 7),
        // The sidecar starts first, so it never gets what the init container gives back.
        (&[(Sidecar, 1, 4), (Init, 1, 5), (App, 1, 2)], vec![4, 5, 5], 9),
        (&[(Init, 3, 2), (App, 1, 3)], vec![2, 3], 9),
        (&[(Init, 2, 3), (App, 2, 2)], vec![3, 3], 6),
        // The first init container needs no 5 GB, because the app container with 3 GB gets its slice.
        (
            &[(Init, 1, 3), (Init, 1, 5), (Init, 1, 7), (App, 1, 5), (App, 1, 3), (App, 1, 6)],
            vec![3, 5, 7, 5, 3, 7],
            15,
        ),
    ];
    for (asks, expected, held) in cases {
        assert_eq!(sizes(asks), (expected, held), "{asks:?}");
    }
}

#[test]
fn sizes_that_share_no_slice_stay_as_they_were_asked() {
    let cases: [Asks; 4] = [
        &[(App, 1, 5), (App, 1, 4)],
        &[(Sidecar, 1, 5), (App, 1, 4)],
        &[(Init, 1, 4), (App, 1, 4)],
        // Four slices of 6 GB are more than four of 1 GB and one of 6 GB.
        &[(Init, 1, 6), (App, 4, 1)],
    ];
    for asks in cases {
        let asked: Vec<u32> = asks.iter().map(|(_, _, gb)| *gb).collect();
        assert_eq!(sizes(asks).0, asked, "{asks:?}");
    }
}

#[test]
fn a_raised_size_has_the_memory_that_either_container_asks_for() {
    let mut asked = pod(&[(Init, 1, 5), (App, 1, 4)]);
    asked.containers[0].memory = Some(MemoryMib(5120));
    let (levelled, _) = levelled(&asked).unwrap();
    assert!(levelled.containers.iter().all(|container| container.memory == Some(MemoryMib(5120))));
}

#[test]
fn a_pod_of_more_containers_than_the_limit_is_not_levelled() {
    let with_apps = |apps| pod(&[&[(Init, 1, 5)][..], &vec![(App, 1, 4); apps]].concat());
    assert!(levelled(&with_apps(CONTAINERS_LIMIT - 1)).is_some());
    assert!(levelled(&with_apps(CONTAINERS_LIMIT)).is_none());
}

#[test]
fn a_pod_holds_less_if_neither_an_asked_nor_a_given_size_grows() {
    let shares = |shares: &[(u32, u32)]| {
        let share = |(given, asked): &(u32, u32)| {
            ContainerRequest::for_slice(ResourceName::Mps(SizeGb(*given)), SizeGb(*asked))
        };
        RequestDocument::for_containers(IsolationClass::None, shares.iter().map(share).collect())
    };
    let before = shares(&[(5, 5), (4, 4)]);
    for (after, expected, case) in [
        (vec![(5, 5)], true, "one slice fewer"),
        (vec![(5, 5), (4, 4)], false, "the same slices"),
        (vec![(8, 5)], false, "a larger slice is given"),
        (vec![(5, 8)], false, "a larger slice is asked for"),
    ] {
        assert_eq!(is_less(&shares(&after), &before), expected, "{case}");
    }
}

#[test]
fn a_raised_size_causes_a_warning_and_compute_is_not_raised() {
    let reported = |asked: &PodAsk| {
        let choice = choose(&policy(), &shared(), asked).unwrap();
        choice
            .warnings
            .iter()
            .filter(|warning| matches!(warning, Warning::Levelled(..)))
            .map(ToString::to_string)
            .collect::<Vec<_>>()
    };
    let mut asked = pod(&[(Init, 1, 5), (App, 1, 4)]);
    assert_eq!(
        reported(&asked),
        [
            "container c1: 4 GB takes 5 GB, so that it shares one slice with another container of the pod before or after it, and the pod holds less in all"
        ]
    );
    asked.containers[1].compute = ComputePercent::new(50);
    assert_eq!(reported(&asked), [""; 0]);
    assert!(levelled(&asked).is_none());
    asked.containers[0].compute = ComputePercent::new(50);
    assert_eq!(reported(&asked).len(), 1);
}

#[test]
fn levelling_keeps_a_pod_within_the_policys_limit() {
    let bounded = policy_with(&json!({"maxPerPod": {"memoryGb": 6}}));
    let choice = choose(&bounded, &shared(), &pod(&[(Init, 1, 5), (App, 1, 4)])).unwrap();
    assert_eq!(choice.document.containers.iter().map(|c| c.size_gb.0).collect::<Vec<_>>(), [5, 5]);
    assert!(choose(&bounded, &shared(), &pod(&[(App, 1, 5), (App, 1, 4)])).is_err());
}

fn any_asks() -> impl Strategy<Value = Vec<(Role, u32, u32)>> {
    let init = (prop::sample::select(vec![Init, Sidecar]), 1_u32..4, 1_u32..21);
    let app = (Just(App), 1_u32..4, 1_u32..21);
    (prop::collection::vec(init, 0..4), prop::collection::vec(app, 0..4))
        .prop_map(|(inits, apps)| inits.into_iter().chain(apps).collect::<Vec<_>>())
        .prop_filter("somebody asks", |asks| !asks.is_empty())
}

fn any_cluster() -> impl Strategy<Value = Vec<Vec<&'static str>>> {
    let model = prop::sample::select(vec!["T4-16GB", "H100-80GB", "A100-40GB", "L40S-48GB"]);
    prop::collection::vec(prop::collection::vec(model, 1..3), 0..3)
}

proptest! {
    #[test]
    fn levelling_never_raises_what_a_pod_holds_nor_lowers_a_size(
        asks in any_asks(),
        cluster in any_cluster(),
        isolation in prop::option::of(prop::sample::select(IsolationClass::ALL.to_vec())),
        max in prop::option::of(4_u32..40),
    ) {
        let supply = Supply::from_statuses(&cluster.iter().map(|models| node_status(models)).collect::<Vec<_>>());
        let bounds = max.map_or(json!({}), |max| json!({"sizes": {"maxGb": max}, "maxPerPod": {"memoryGb": 2 * max}}));
        let policy = policy_with(&bounds);
        let asked = PodAsk { isolation, ..pod(&asks) };
        let (plain, chosen) = (on_one_sort_of_node(&policy, &supply, &asked), choose(&policy, &supply, &asked));
        if let Ok((plain, _)) = &plain {
            prop_assert!(sum(&chosen.as_ref().unwrap().document) <= sum(&plain.document));
        }
        let Ok(chosen) = chosen else { return Ok(()) };
        let most = asks.iter().map(|(_, _, gb)| *gb).max().unwrap();
        for ((role, count, gb), given) in asks.iter().zip(&chosen.document.containers) {
            prop_assert_eq!((*role, *count), (given.role, given.count));
            prop_assert!((*gb..=most).contains(&given.size_gb.0));
        }
        prop_assert!(max.is_none_or(|max| sum(&chosen.document) <= u64::from(2 * max)));
    }
}
