//! Which container gets which device, and what is recorded about it: the pure half of the stand-in.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kerf_tests::kubelet::{
    AllocationError, DeviceLedger, PodDemand, RateLimit, Rejection, ResourceCount, fit, node_patch,
};
use serde_json::json;

use super::{NAME, ids, pod};

fn ledger_with(healthy: &[&str], unhealthy: &[&str]) -> DeviceLedger {
    let mut ledger = DeviceLedger::new(7);
    let healthy = healthy.iter().map(|id| ((*id).to_owned(), true));
    let unhealthy = unhealthy.iter().map(|id| ((*id).to_owned(), false));
    ledger.set_devices(NAME, healthy.chain(unhealthy));
    ledger
}

/// What the kubelet does with one container if the plugin has no preference.
fn allocate(ledger: &mut DeviceLedger, uid: &str, count: usize) -> Result<BTreeSet<String>, AllocationError> {
    let Some(choice) = ledger.choose(uid, "main", NAME, count, &BTreeSet::new())? else {
        return Ok(BTreeSet::new());
    };
    let ids = ledger.take(&choice, &[]);
    ledger.record(uid, "main", NAME, ids.clone());
    Ok(ids)
}

#[test]
fn too_few_free_devices_are_rejected_with_the_kubelets_text() {
    let mut ledger = ledger_with(&["a"], &["b"]);
    assert_eq!(allocate(&mut ledger, "one", 1).unwrap(), ids(["a"]));
    let error = allocate(&mut ledger, "two", 1).unwrap_err();
    assert_eq!(
        error.to_string(),
        "requested number of devices unavailable for nvidia.com/mig-1g.10gb. Requested: 1, Available: 0"
    );
}

#[test]
fn a_name_without_a_healthy_device_is_rejected_with_the_kubelets_text() {
    let text = "no healthy devices present; cannot allocate unhealthy devices nvidia.com/mig-1g.10gb";
    let mut sick = ledger_with(&[], &["a"]);
    assert_eq!(allocate(&mut sick, "one", 1).unwrap_err().to_string(), text);
    let mut restarted = DeviceLedger::restored(ledger_with(&["a"], &[]).checkpoint(), 7);
    assert_eq!(allocate(&mut restarted, "one", 1).unwrap_err().to_string(), text);
}

#[test]
fn a_forgotten_name_is_known_as_long_as_a_pod_holds_a_device_of_it() {
    let mut ledger = ledger_with(&["a"], &[]);
    allocate(&mut ledger, "one", 1).unwrap();
    ledger.forget(NAME);
    assert!(ledger.knows(NAME));
    let error = allocate(&mut ledger, "two", 1).unwrap_err();
    assert_eq!(error.to_string(), "cannot allocate unregistered device nvidia.com/mig-1g.10gb");
    ledger.collect_garbage(&BTreeSet::new());
    assert!(!ledger.knows(NAME));
}

#[test]
fn a_container_whose_device_fell_ill_is_not_admitted_again() {
    let mut ledger = ledger_with(&["a", "b"], &[]);
    let held = allocate(&mut ledger, "one", 1).unwrap();
    assert_eq!(allocate(&mut ledger, "one", 1).unwrap(), BTreeSet::new(), "what it holds is enough");
    ledger.set_devices(NAME, ["a", "b"].map(|id| (id.to_owned(), !held.contains(id))));
    let error = allocate(&mut ledger, "one", 1).unwrap_err();
    assert!(error.to_string().starts_with("previously allocated devices are no longer healthy"), "{error}");
}

#[test]
fn a_container_cannot_change_what_it_asks_for() {
    let mut ledger = ledger_with(&["a", "b"], &[]);
    allocate(&mut ledger, "one", 1).unwrap();
    let error = allocate(&mut ledger, "one", 2).unwrap_err();
    assert!(matches!(error, AllocationError::RequestChanged { held: 1, asked: 2, .. }), "{error}");
}

#[test]
fn preferred_devices_are_taken_where_they_are_free() {
    let mut ledger = ledger_with(&["a", "b", "c", "d"], &[]);
    let choice = ledger.choose("one", "main", NAME, 2, &BTreeSet::new()).unwrap().unwrap();
    let taken = ledger.take(&choice, &["gone".to_owned(), "c".to_owned(), "d".to_owned(), "a".to_owned()]);
    assert_eq!(taken, ids(["c", "d"]));
}

#[test]
fn reusable_devices_come_first() {
    let mut ledger = ledger_with(&["a", "b", "c"], &[]);
    let choice = ledger.choose("one", "main", NAME, 2, &ids(["b"])).unwrap().unwrap();
    assert_eq!(choice.needed(), 1);
    assert_eq!(ledger.take(&choice, &["a".to_owned()]), ids(["a", "b"]));
}

#[test]
fn any_of_the_reusable_devices_may_be_taken_over() {
    let mut ledger = ledger_with(&["a", "b", "c", "d"], &[]);
    let reusable = ids(["a", "b", "c", "d"]);
    let mut reused = |_| ledger.choose("one", "main", NAME, 1, &reusable).unwrap().unwrap().reused;
    let different: BTreeSet<BTreeSet<String>> = (0..20).map(&mut reused).collect();
    assert!(different.len() > 2, "always the same few: {different:?}");
}

#[test]
fn the_order_of_picks_varies_and_repeats_with_the_seed() {
    let devices: Vec<String> = (0..8).map(|number| format!("device-{number}")).collect();
    let picks = |seed| -> Vec<BTreeSet<String>> {
        let mut ledger = DeviceLedger::new(seed);
        ledger.set_devices(NAME, devices.iter().map(|id| (id.clone(), true)));
        let taken = (0..20).map(|pod| {
            ledger.collect_garbage(&BTreeSet::new());
            allocate(&mut ledger, &format!("pod-{pod}"), 1).unwrap()
        });
        taken.collect()
    };
    assert_eq!(picks(1), picks(1));
    assert_ne!(picks(1), picks(2));
    assert!(
        picks(1).into_iter().collect::<BTreeSet<_>>().len() > 3,
        "the same few devices were picked always"
    );
}

#[test]
fn no_device_has_two_holders_however_pods_come_and_go() {
    let mut ledger = ledger_with(&["a", "b", "c", "d", "e"], &["f"]);
    let mut active: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for round in 0_usize..500 {
        if round % 3 == 2 {
            let gone = active.keys().nth(round % active.len().max(1)).cloned();
            gone.and_then(|uid| active.remove(&uid));
        }
        let uid = format!("pod-{round}");
        ledger.collect_garbage(&active.keys().cloned().collect());
        let free = 5 - active.values().map(BTreeSet::len).sum::<usize>();
        match allocate(&mut ledger, &uid, 1 + round % 2) {
            Ok(taken) => {
                assert!(active.values().all(|held| held.is_disjoint(&taken)), "round {round}");
                active.insert(uid, taken);
            }
            Err(error) => assert!(free < 1 + round % 2, "round {round}: {free} free, but {error}"),
        }
    }
}

#[test]
fn the_device_manager_serves_only_extended_resources() {
    let demand = PodDemand::from_pod(&pod("one", &[("load", "", 1)], &[("main", 2)]));
    assert_eq!(demand.containers.len(), 2);
    assert!(demand.containers.iter().all(|container| container.limits.keys().eq([NAME])));
    assert_eq!(demand.key.to_string(), "team/one");
}

#[test]
fn the_peak_adds_sidecars_to_the_containers_and_takes_init_containers_one_by_one() {
    let peak = |init: &[(&str, &str, u32)], app: &[(&str, u32)]| {
        PodDemand::from_pod(&pod("one", init, app)).peak()[NAME]
    };
    assert_eq!(peak(&[("load", "", 3)], &[("main", 1), ("side", 1)]), 3);
    assert_eq!(peak(&[("log", "Always", 1), ("load", "", 3)], &[("main", 1)]), 4);
    assert_eq!(peak(&[("log", "Always", 1)], &[("main", 1)]), 2);
}

#[test]
fn a_name_that_the_node_does_not_list_is_dropped_from_the_fit_check() {
    let peak = PodDemand::from_pod(&pod("one", &[], &[("main", 1)])).peak();
    assert_eq!(fit(&peak, &BTreeMap::new(), |_| 0), Ok(()));
}

#[test]
fn a_request_must_fit_the_nodes_allocatable() {
    let peak = PodDemand::from_pod(&pod("one", &[], &[("main", 1)])).peak();
    let allocatable = BTreeMap::from([(NAME.to_owned(), 1)]);
    assert_eq!(fit(&peak, &allocatable, |_| 0), Ok(()));
    let Rejection { reason, message } = fit(&peak, &allocatable, |_| 1).unwrap_err();
    assert_eq!(reason, "OutOfnvidia.com/mig-1g.10gb");
    assert_eq!(
        message,
        "Pod was rejected: Node didn't have enough resource: nvidia.com/mig-1g.10gb, requested: 1, used: 1, capacity: 1"
    );
}

#[test]
fn a_status_tick_sets_its_own_names_and_keeps_the_others() {
    let list = |items: &[(&str, &str)]| -> BTreeMap<String, Quantity> {
        items.iter().map(|(name, value)| ((*name).to_owned(), Quantity((*value).to_owned()))).collect()
    };
    let capacity = list(&[("cpu", "8"), ("example.com/foreign", "4"), (NAME, "9")]);
    let allocatable = list(&[("cpu", "7"), (NAME, "9"), ("example.com/stray", "1")]);
    let owned = BTreeMap::from([(NAME.to_owned(), ResourceCount { capacity: 2, allocatable: 1 })]);
    let patch = node_patch(&capacity, &allocatable, &owned).unwrap();
    let expected = json!({"status": {
        "capacity": {NAME: "2"},
        "allocatable": {NAME: "1", "example.com/foreign": "4", "example.com/stray": null},
    }});
    assert_eq!(patch, expected);

    let capacity = list(&[("cpu", "8"), (NAME, "2")]);
    let allocatable = list(&[("cpu", "7"), (NAME, "1")]);
    assert_eq!(node_patch(&capacity, &allocatable, &owned), None, "nothing is written without a change");
}

#[test]
fn pod_resources_lets_a_burst_through_and_then_a_hundred_a_second() {
    let start = Instant::now();
    let limit = RateLimit::full(start);
    let passed = |at: Duration| (0..1000).take_while(|_| limit.take(start + at).is_ok()).count();
    assert_eq!(passed(Duration::ZERO), 10);
    assert_eq!(passed(Duration::from_millis(35)), 3);
    let refused = limit.take(start + Duration::from_millis(36)).unwrap_err();
    assert_eq!(
        (refused.code(), refused.message()),
        (tonic::Code::ResourceExhausted, "rejected by rate limit")
    );
    assert_eq!(passed(Duration::from_mins(1)), 10, "the bucket has a bottom and a brim");
}
