use super::*;
use crate::contract::{RequestDocument, SliceState, SliceStatus};
use crate::inventory::NodeInventory;
use crate::ledger;
use crate::packing::{Fleet, fit};
use crate::resource::all_names;
use crate::testing::{gpu_uuid, node_status, promisee, request_sized, slice_status};
use crate::units::ComputePercent;
use proptest::prelude::*;

fn all() -> GpuSelection {
    GpuSelection::default()
}

fn named(text: &str) -> ResourceName {
    format!("nvidia.com/{text}").parse().unwrap()
}

fn of(status: &GpuNodeStatus, spec: &GpuNodeSpec) -> Supply {
    let mut index = SupplyIndex::default();
    index.show("n".into(), spec, status, true);
    index.supply()
}

/// What is left of a name while pods wait for these.
fn left(supply: &Supply, name: &str, pending: &[(&str, u32)]) -> (u32, u32) {
    let name = named(name);
    let pending = pending.iter().map(|(name, count)| (named(name), *count)).collect();
    let room = supply.wanted(pending).room(name, name.size().unwrap_or(SizeGb(14)), &all());
    (room.room, room.left())
}

/// A node whose slices these pods were promised, one each.
fn promised(status: &GpuNodeStatus, names: &[&str]) -> GpuNodeSpec {
    names.iter().enumerate().fold(GpuNodeSpec::default(), |spec, (number, name)| {
        let name = named(name);
        let request = request_sized(name, name.size().unwrap(), 1);
        let pod = promisee(&number.to_string());
        ledger::reserve(&spec, status, &request, &pod, &Fleet::default()).unwrap()
    })
}

#[test]
fn each_name_has_room_by_itself() {
    let supply = Supply::of(&[node_status(&["H100-80GB", "H100-80GB", "T4-16GB"])]);
    for (name, room) in [
        ("mig-1g.10gb", 14),
        ("mig-1g.20gb", 8),
        ("mig-3g.40gb", 4),
        ("mig-7g.80gb", 2),
        ("mig-1g.10gb.me", 2),
        ("mig-1c.3g.40gb", 0),
        ("gpu", 1),
        ("gpu-4gb", 3),
        ("gpu-10gb", 1),
        ("gpu-10gb.shared", 1),
        ("gpu-16gb", 0),
        ("gpu.shared", 0),
    ] {
        assert_eq!(left(&supply, name, &[]), (room, room), "{name}");
    }
}

#[test]
fn compute_that_is_given_away_leaves_no_room_for_shares() {
    let status = node_status(&["T4-16GB"]);
    let room = |spec: &GpuNodeSpec, compute| {
        of(&status, spec).room_for(named("gpu-2gb"), SizeGb(2), ComputePercent::new(compute), &all()).room
    };
    assert_eq!([0, 1, 50, 100].map(|compute| room(&GpuNodeSpec::default(), compute)), [7, 7, 2, 1]);
    let mut greedy = request_sized(named("gpu-2gb"), SizeGb(2), 1);
    greedy.containers[0].compute = ComputePercent::new(100);
    let spec =
        ledger::reserve(&GpuNodeSpec::default(), &status, &greedy, &promisee("greedy"), &Fleet::default())
            .unwrap();
    assert_eq!([0, 1].map(|compute| room(&spec, compute)), [0, 0]);
}

#[test]
fn a_name_without_a_size_is_at_most_what_some_gpu_gives_by_it() {
    let status = node_status(&["T4-16GB", "L4-24GB"]);
    let policy = r#"{"gpus": [{"select": {"indexes": [0]}, "kinds": ["time-slicing"], "timeSlicing": {"replicas": 3}}]}"#;
    let spec = GpuNodeSpec { policy: serde_json::from_str(policy).unwrap(), ..GpuNodeSpec::default() };
    let supply = of(&status, &spec);
    let most = |name: &str| supply.at_most(named(name), &all()).map(|size| size.0);
    assert_eq!(["gpu", "gpu.shared", "gpu-4gb"].map(most), [Some(23), Some(4), None]);
    let t4 = GpuSelection { models: vec!["T4-16GB".to_owned()], ..all() };
    assert_eq!(supply.at_most(named("gpu"), &t4), None, "it is shared in equal parts");
}

#[test]
fn what_is_promised_is_in_the_way_and_what_is_idle_is_not() {
    let status = node_status(&["H100-80GB", "T4-16GB"]);
    let spec = promised(&status, &["mig-3g.40gb", "mig-1g.10gb", "gpu-8gb"]);
    let supply = of(&status, &spec);
    for (name, room) in
        [("mig-1g.10gb", 3), ("mig-3g.40gb", 0), ("gpu-4gb", 1), ("gpu-4gb.shared", 0), ("gpu", 0)]
    {
        assert_eq!(left(&supply, name, &[]).0, room, "{name}");
    }
    let idle =
        (0..3).fold(spec, |spec, pod| ledger::release(&spec, &promisee(&pod.to_string()).uid).unwrap());
    let supply = of(&status, &idle);
    for (name, room) in [("mig-7g.80gb", 1), ("gpu-4gb.shared", 3), ("gpu", 1)] {
        assert_eq!(left(&supply, name, &[]).0, room, "{name}");
    }
}

#[test]
fn a_node_that_is_not_served_has_no_room_and_can_do_what_it_could() {
    let mut index = SupplyIndex::default();
    assert!(index.show("n".into(), &GpuNodeSpec::default(), &node_status(&["H100-80GB"]), false));
    let supply = index.supply();
    assert_eq!(left(&supply, "mig-1g.10gb", &[]).0, 0);
    assert!(supply.has_profile("1g.10gb".parse().unwrap(), &all()));
    assert!(!supply.is_empty());
}

#[test]
fn a_pod_is_answered_for_the_gpus_that_it_may_have() {
    let supply = Supply::of(&[node_status(&["H100-80GB", "A30-24GB"]), node_status(&["T4-16GB", "L4-24GB"])]);
    let selected = |json: &str| -> GpuSelection { serde_json::from_str(json).unwrap() };
    let (h100, no_h100) =
        (selected(r#"{"models": ["H100-80GB"]}"#), selected(r#"{"notModels": ["H100-80GB"]}"#));
    assert_eq!(supply.profile_for(SizeGb(5), &all()), "1g.6gb".parse().ok());
    assert_eq!(supply.profile_for(SizeGb(5), &h100), "1g.10gb".parse().ok());
    assert_eq!(supply.profile_for(SizeGb(40), &no_h100), None);
    assert!(
        supply.has_share(Kind::Mps, SizeGb(14), None, &no_h100)
            && !supply.has_share(Kind::Mps, SizeGb(14), None, &h100)
    );
    assert!(!supply.has_whole(&Asked::of(SizeGb(24)), &selected(r#"{"notModels": ["L4-24GB"]}"#)));
    let room = |gpus: &GpuSelection| supply.room(named("gpu-4gb"), SizeGb(4), gpus).room;
    assert_eq!((room(&all()), room(&h100), room(&no_h100)), (3 + 5, 0, 8));
    // Both nodes' second GPUs have this UUID.
    let [second, not_second] =
        ["uuids", "notUuids"].map(|key| selected(&format!(r#"{{"{key}": ["{}"]}}"#, gpu_uuid(1))));
    assert_eq!((room(&second), room(&not_second)), (5, 3));
    assert_eq!(supply.largest_gpu(), Some(SizeGb(80)));
}

#[test]
fn pods_that_wait_take_what_there_is_room_for_and_no_more() {
    let status = node_status(&["H100-80GB", "H100-80GB"]);
    let supply = of(&status, &promised(&status, &["mig-1g.10gb"]));
    for (pending, name, expected) in [
        (&[("mig-1g.10gb", 5)][..], "mig-1g.10gb", (13, 8)),
        (&[("mig-1g.10gb", 100)], "mig-1g.10gb", (13, 0)),
        // A small one of many: the GPU that it takes a part of is gone for the largest.
        (&[("mig-1g.10gb", 1)], "mig-7g.80gb", (1, 0)),
        (&[("mig-7g.80gb", 1)], "mig-1g.10gb", (13, 6)),
        // One of the two largest does not fit, and is in nobody's way.
        (&[("mig-7g.80gb", 2)], "mig-1g.10gb", (13, 6)),
        (&[("mig-7g.80gb", 1), ("mig-1g.10gb", 6)], "mig-1g.10gb", (13, 0)),
        (&[("gpu-10gb", 50)], "mig-1g.10gb", (13, 13)),
    ] {
        assert_eq!(left(&supply, name, pending), expected, "{name} beside {pending:?}");
    }
}

#[test]
fn kinds_compete_for_gpus_of_which_nobody_has_anything() {
    let status = node_status(&["T4-16GB", "T4-16GB", "T4-16GB"]);
    let empty = of(&status, &GpuNodeSpec::default());
    let begun = of(&status, &promised(&status, &["gpu-8gb"]));
    for (supply, pending, name, expected) in [
        (&empty, &[("gpu-4gb", 3)][..], "gpu", (3, 2)),
        (&empty, &[("gpu-4gb", 4)], "gpu", (3, 1)),
        (&empty, &[("gpu-4gb.shared", 2)], "gpu", (3, 1)),
        (&empty, &[("gpu", 1)], "gpu-4gb", (9, 6)),
        (&empty, &[("gpu", 7)], "gpu-4gb", (9, 0)),
        // The GPU that is shared by MPS already takes the first.
        (&begun, &[("gpu-4gb", 1)], "gpu-4gb.shared", (6, 6)),
        (&begun, &[("gpu-4gb", 2)], "gpu-4gb.shared", (6, 3)),
        (&begun, &[("gpu-4gb.shared", 2)], "gpu-4gb", (7, 1)),
    ] {
        assert_eq!(left(supply, name, pending), expected, "{name} beside {pending:?}");
    }
}

#[test]
fn a_node_that_is_gone_is_counted_no_more() {
    let mut index = SupplyIndex::default();
    let (spec, status) = (GpuNodeSpec::default(), node_status(&["T4-16GB"]));
    assert!(index.show("a".into(), &spec, &status, true) && index.show("b".into(), &spec, &status, true));
    assert!(!index.show("a".into(), &spec, &status, true), "nothing has changed");
    assert_eq!(left(&index.supply(), "gpu", &[]).0, 2);
    assert!(index.show("a".into(), &promised(&status, &["gpu-1gb"]), &status, true));
    assert_eq!(left(&index.supply(), "gpu", &[]).0, 1);
    assert!(index.retain(|name| name.as_str() == "b") && !index.retain(|_| true));
    assert_eq!(left(&index.supply(), "gpu", &[]).0, 1);
    assert!(index.remove(&"b".into()) && !index.remove(&"b".into()));
    assert!(index.supply().is_empty() && index.nodes() == 0);
}

/// A slice that was given back, which the agent has not said yet.
fn still_ready(slice: &crate::contract::WantedSlice) -> SliceStatus {
    SliceStatus { state: SliceState::Ready, ..slice_status(slice, false) }
}

/// One slice; an MPS share with so much compute, if it is any.
fn one(name: ResourceName, size: SizeGb, compute: u8) -> RequestDocument {
    let mut request = request_sized(name, size, 1);
    request.containers[0].compute = ComputePercent::new(compute).filter(|_| name.kind() == Some(Kind::Mps));
    request
}

/// How many pods with one slice each the node takes one after the other.
fn taken_until_refusal(
    status: &GpuNodeStatus,
    spec: &GpuNodeSpec,
    request: &RequestDocument,
    fleet: &Fleet,
) -> u32 {
    let (mut spec, mut count) = (spec.clone(), 0);
    while fit(&NodeInventory::of(&spec, status), request, fleet).is_ok() {
        spec = ledger::reserve(&spec, status, request, &promisee(&format!("more-{count}")), fleet).unwrap();
        count += 1;
    }
    count
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]
    /// On nodes after any history of promises, there is room for as many as the extender promises one after the other.
    #[test]
    fn room_is_what_is_promised_until_a_pod_is_refused(
        models in prop::collection::vec(prop::sample::select(vec!["H100-80GB", "A30-24GB", "H200-141GB", "T4-16GB", "L4-24GB"]), 1..4),
        history in prop::collection::vec((0_usize..400, 0_usize..8, any::<bool>(), any::<bool>(), 0_u8..=100), 0..24),
        asked in prop::collection::vec((0_usize..400, 0_u8..=100), 8),
        shares in prop::option::of(1_u32..5),
    ) {
        let mut status = node_status(&models);
        status.gpus.iter_mut().for_each(|gpu| gpu.mps_shares = shares);
        let mut fleet = Fleet::default();
        for gpu in &status.gpus {
            fleet.add(&gpu.profiles, [], []);
        }
        let names = all_names();
        let size = |name: ResourceName| name.size().unwrap_or(SizeGb(14));
        let (mut spec, mut pods) = (GpuNodeSpec::default(), Vec::new());
        let mut index = SupplyIndex::default();
        for (number, (name, leaver, leaves, is_seen, compute)) in history.into_iter().enumerate() {
            let name = names[name % names.len()];
            if leaves && !pods.is_empty() {
                let pod: ledger::Promisee = pods.swap_remove(leaver % pods.len());
                let slices = ledger::reserved(&spec, &pod.uid).filter(|_| !is_seen);
                status.slices.extend(slices.map(still_ready));
                spec = ledger::release(&spec, &pod.uid).unwrap();
            } else {
                let pod = promisee(&number.to_string());
                if let Ok(next) = ledger::reserve(&spec, &status, &one(name, size(name), compute), &pod, &fleet) {
                    spec = next;
                    pods.push(pod);
                }
            }
            // The index hears of each step: what it keeps must not outlive it.
            index.show("n".into(), &spec, &status, true);
        }
        index.show("n".into(), &spec, &status, true);
        let supply = index.supply();
        for (name, compute) in asked.into_iter().map(|(name, compute)| (names[name % names.len()], compute)) {
            let request = one(name, size(name), compute);
            let expected = taken_until_refusal(&status, &spec, &request, &fleet);
            let room = supply.room_for(name, size(name), request.containers[0].compute, &all()).room;
            prop_assert_eq!(room, expected, "{:?} of {:?}", request, spec.slices);
        }
    }

    /// However much pods wait for, no more is taken than there is room for, and who waits for the same name counts in full.
    #[test]
    fn what_is_left_is_never_more_than_without_those_who_wait(
        models in prop::collection::vec(prop::sample::select(vec!["H100-80GB", "T4-16GB", "L4-24GB"]), 1..5),
        pending in prop::collection::btree_map(0_usize..400, 0_u32..40, 0..6),
        asked in 0_usize..400,
    ) {
        let (names, supply) = (all_names(), Supply::of(&[node_status(&models)]));
        let name = names[asked % names.len()];
        let pending: BTreeMap<_, _> = pending.into_iter().map(|(n, count)| (names[n % names.len()], count)).collect();
        let alone = supply.room(name, SizeGb(14), &all());
        let room = supply.wanted(pending.clone()).room(name, SizeGb(14), &all());
        prop_assert_eq!(room.room, alone.room);
        prop_assert!(room.pending <= room.room);
        prop_assert!(room.pending >= pending.get(&name).copied().unwrap_or(0).min(room.room));
    }
}

#[test]
fn a_node_that_is_shut_has_no_room_and_serves_what_it_ever_could() {
    let status = node_status(&["H100-80GB", "H100-80GB"]);
    let mut index = SupplyIndex::default();
    for name in ["a", "b"] {
        index.show(name.into(), &GpuNodeSpec::default(), &status, true);
    }
    let room = |index: &SupplyIndex| left(&index.supply(), "mig-1g.10gb", &[]).0;
    assert_eq!(room(&index), 28);
    assert!(index.show_shut("a".into(), true));
    assert!(!index.show_shut("a".into(), true), "nothing changed");
    assert_eq!(room(&index), 14);
    assert_eq!(index.supply().largest(Kind::Mig), Some(SizeGb(80)));
    // It goes on reporting meanwhile.
    let spec = promised(&status, &["mig-1g.10gb"]);
    index.show("a".into(), &spec, &status, true);
    assert_eq!(room(&index), 14);
    assert!(index.retain_shut(|_| false));
    assert_eq!(room(&index), 27);

    // Its GpuNode may come, go and be closed itself at any time.
    index.show_shut("a".into(), true);
    index.remove(&"a".into());
    assert!(!index.show_shut("a".into(), false), "nothing is there");
    index.show_shut("a".into(), true);
    index.show("a".into(), &spec, &status, false);
    index.show_shut("a".into(), false);
    assert_eq!(room(&index), 14);
}
