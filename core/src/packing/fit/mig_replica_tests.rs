//! Replicas of GPU instances: several pods share one instance in turns.

use super::*;
use crate::contract::{GpuNodeSpec, GpuNodeStatus, RequestDocument, WantedSlice};
use crate::ledger;
use crate::planner::{Allowed, Observed, ObservedGpu, check, plan};
use crate::testing::{node_status, owner_in_epoch, request};
use crate::units::{ComputePercent, MemoryMib};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::LazyLock;

const SHARED: &str = "nvidia.com/mig-1g.10gb.shared";
const WHOLE: &str = "nvidia.com/mig-1g.10gb";

/// A fleet without GPUs that has already computed the model, because that takes long.
static FLEET: LazyLock<Fleet> = LazyLock::new(|| {
    let mut fleet = Fleet::default();
    let known = fleet.add(&node_status(&["H100-80GB"]).gpus[0].profiles, [], []).unwrap();
    fleet.remove(known);
    fleet
});

/// The spec of a node whose GPU instances are shared by up to `most` pods in turns.
fn by_turns(most: u32) -> GpuNodeSpec {
    let policy = serde_json::from_str(&format!(r#"{{"gpus": [{{"mig": {{"timeSlicing": {most}}}}}]}}"#));
    GpuNodeSpec { policy: policy.unwrap(), ..GpuNodeSpec::default() }
}

/// The spec with one more pod's slice of this name.
fn with(
    spec: &GpuNodeSpec,
    status: &GpuNodeStatus,
    pod: &str,
    ask: &RequestDocument,
) -> Result<GpuNodeSpec, Refusal> {
    ledger::reserve(spec, status, ask, &owner_in_epoch(pod), &FLEET)
}

/// The reserved slices, in the order of their reservations.
fn reserved(spec: &GpuNodeSpec) -> Vec<String> {
    let reserved = spec.slices.iter().filter(|slice| slice.reservation.is_some());
    reserved.map(|slice| slice.shape.to_string()).collect()
}

fn filled(mut spec: GpuNodeSpec, status: &GpuNodeStatus, names: &[&str]) -> GpuNodeSpec {
    for (number, name) in names.iter().enumerate() {
        spec = with(&spec, status, &number.to_string(), &request(name, 1)).unwrap();
    }
    spec
}

#[test]
fn an_instance_is_filled_before_another_is_shared() {
    let status = node_status(&["H100-80GB"]);
    let spec = filled(by_turns(3), &status, &[SHARED, WHOLE, SHARED, SHARED, SHARED]);
    assert_eq!(
        reserved(&spec),
        [
            "1g.10gb at 6:1, replica 0",
            "1g.10gb at 4:1",
            "1g.10gb at 6:1, replica 1",
            "1g.10gb at 6:1, replica 2",
            "1g.10gb at 5:1, replica 0",
        ]
    );
    let mut seven = by_turns(2);
    for number in 0..14 {
        seven = with(&seven, &status, &number.to_string(), &request(SHARED, 1)).unwrap();
    }
    assert_eq!(with(&seven, &status, "more", &request(SHARED, 1)), Err(Refusal::NoRoom));
    assert_eq!(with(&GpuNodeSpec::default(), &status, "p", &request(SHARED, 1)), Err(Refusal::NeverFits));
}

#[test]
fn a_released_replica_is_reused_first() {
    let status = node_status(&["H100-80GB"]);
    let spec = filled(by_turns(3), &status, &[SHARED, SHARED, SHARED]);
    let spec = ledger::release(&spec, &owner_in_epoch("1").uid).unwrap();
    let before: Vec<_> = spec.slices.iter().map(|slice| slice.id.clone()).collect();
    let next = with(&spec, &status, "next", &request(SHARED, 1)).unwrap();
    assert_eq!(reserved(&next)[2], "1g.10gb at 6:1, replica 1");
    assert!(next.slices.iter().all(|slice| before.contains(&slice.id)), "it lay idle");
    // All pods have ended: a pod for a whole instance gets one, and a pod for a replica gets one of an idle instance.
    let idle = |spec: GpuNodeSpec, pods: &[&str]| {
        pods.iter().fold(spec, |spec, pod| ledger::release(&spec, &owner_in_epoch(pod).uid).unwrap())
    };
    let spec = idle(next, &["0", "2", "next"]);
    let whole = with(&spec, &status, "whole", &request(WHOLE, 1)).unwrap();
    let shapes = |spec: &GpuNodeSpec| spec.slices.iter().map(|s| s.shape.to_string()).collect::<Vec<_>>();
    assert_eq!(shapes(&whole), ["1g.10gb at 6:1"], "the idle turns are gone");
    let turn = with(&idle(whole, &["whole"]), &status, "turn", &request(SHARED, 1)).unwrap();
    assert_eq!(shapes(&turn), ["1g.10gb at 6:1, replica 0"], "the idle instance is no slice of its own");
}

#[test]
fn the_instance_with_the_most_pods_gets_the_next_one() {
    let status = node_status(&["H100-80GB"]);
    let spec = filled(by_turns(3), &status, &[SHARED; 5]);
    let free = |spec: &GpuNodeSpec, pod: &str| ledger::release(spec, &owner_in_epoch(pod).uid).unwrap();
    let spec = with(&free(&free(&spec, "0"), "1"), &status, "next", &request(SHARED, 1)).unwrap();
    let places = ["6:1, replica 2", "4:1, replica 0", "4:1, replica 1", "4:1, replica 2"];
    assert_eq!(reserved(&spec), places.map(|place| format!("1g.10gb at {place}")));
}

#[test]
fn the_first_free_number_is_a_new_replicas() {
    let status = node_status(&["H100-80GB"]);
    let mut node = NodeInventory::from_spec(&by_turns(3), &status);
    let instance = crate::testing::h100_shape("1g.10gb", 6).instance().unwrap();
    let shape = |replica| Shape::from_instance(instance, crate::contract::MigPart::Replica { replica });
    node.gpus[0].slices.push(PlacedSlice { shape: shape(1), occupancy: Occupancy::Taken });
    assert_eq!(fit(&node, &request(SHARED, 1), &FLEET).unwrap().slices[0].shape, shape(0));
}

#[test]
fn a_replica_guarantees_no_compute_and_has_the_memory_of_its_instance() {
    let status = node_status(&["H100-80GB"]);
    let has = |compute, memory: Option<u64>| {
        let mut pod = request(SHARED, 1);
        pod.containers[0].compute = ComputePercent::new(compute);
        pod.containers[0].memory = memory.map(MemoryMib);
        with(&by_turns(2), &status, "p", &pod).is_ok()
    };
    assert!(has(0, None) && !has(1, None));
    assert!(has(0, Some(9_000)) && !has(0, Some(20_000)));
}

#[test]
fn replicas_are_kept_warm_and_dropped_by_policy() {
    let status = node_status(&["H100-80GB"]);
    let mut spec = by_turns(3);
    spec.policy.warm = serde_json::from_str(&format!(r#"[{{"resource": "{SHARED}", "count": 4}}]"#)).unwrap();
    let warm = ledger::keep_warm(&spec, &status, &BTreeSet::new(), &FLEET).unwrap();
    let shapes: Vec<_> = warm.slices.iter().map(|slice| slice.shape.to_string()).collect();
    let places = ["6:1, replica 0", "6:1, replica 1", "6:1, replica 2", "4:1, replica 0"];
    assert_eq!(shapes, places.map(|place| format!("1g.10gb at {place}")));
    assert_eq!(ledger::keep_warm(&warm, &status, &BTreeSet::new(), &FLEET), None);
    let forbidden = GpuNodeSpec { policy: crate::contract::NodePolicy::default(), ..warm };
    assert!(ledger::drop_disallowed(&forbidden, &status).unwrap().slices.is_empty());
}

/// The index of a pod's name, whether a pod comes or one goes, and which one goes.
type Turn = (usize, bool, prop::sample::Index);

/// The uses of each GPU instance: `None` for a pod alone, or the number of a replica.
fn uses<'s>(
    slices: impl Iterator<Item = &'s WantedSlice>,
) -> BTreeMap<crate::mig::Instance, Vec<Option<u8>>> {
    let mut uses = BTreeMap::<_, Vec<_>>::new();
    for slice in slices {
        uses.entry(slice.shape.instance().unwrap()).or_default().push(slice.shape.replica());
    }
    uses
}

proptest! {
    /// Whatever pods come and go: an instance belongs to one pod, or to at most `most` pods with different replica
    /// numbers, and the planner makes all of it from an empty node.
    #[test]
    fn an_instance_serves_one_pod_or_at_most_the_policys_replicas(
        most in 2_u32..6,
        turns in prop::collection::vec((0_usize..4, prop::bool::weighted(0.7), any::<prop::sample::Index>()), 1..60),
    ) {
        let status = node_status(&["H100-80GB", "H100-80GB"]);
        let names = [SHARED, WHOLE, "nvidia.com/mig-2g.20gb.shared", "nvidia.com/mig-3g.40gb"];
        let (mut spec, mut pods) = (by_turns(most), Vec::new());
        let turns: Vec<Turn> = turns;
        for (number, (name, comes, which)) in turns.into_iter().enumerate() {
            let pod = number.to_string();
            if comes {
                if let Ok(next) = with(&spec, &status, &pod, &request(names[name], 1)) {
                    spec = next;
                    pods.push(pod);
                }
            } else if !pods.is_empty() {
                let gone = pods.swap_remove(which.index(pods.len()));
                spec = ledger::release(&spec, &owner_in_epoch(&gone).uid).unwrap();
            }
            for gpu in &status.gpus {
                let here = || spec.slices.iter().filter(|slice| slice.gpu == gpu.uuid);
                for (_, of) in uses(here()) {
                    let alone = of == [None];
                    let numbers: BTreeSet<_> = of.iter().flatten().collect();
                    prop_assert!(alone || numbers.len() == of.len() && of.len() <= most as usize, "{:?}", of);
                }
                let observed = Observed { gpus: vec![ObservedGpu {
                    uuid: gpu.uuid.clone(),
                    memory: gpu.memory,
                    allowed: Allowed { mig_replicas: u8::try_from(most).ok(), ..Allowed::default() },
                    table: Some(gpu.profiles.clone()),
                    instances: vec![],
                    shares: vec![],
                }] };
                let wanted: Vec<_> = here().cloned().collect();
                let plan = plan(&observed, &wanted);
                prop_assert_eq!(&plan.refused, &vec![]);
                prop_assert!(check(&observed, &wanted, &plan).is_ok());
            }
        }
    }

    /// Pods that come one after the other start no new instance while an instance has a replica left.
    #[test]
    fn no_more_instances_are_shared_than_needed(most in 2_u32..6, pods in 1_usize..=14) {
        let status = node_status(&["H100-80GB", "H100-80GB"]);
        let spec = filled(by_turns(most), &status, &vec![SHARED; pods]);
        let instances: BTreeSet<_> = spec.slices.iter().map(|s| (s.gpu.clone(), s.shape.instance())).collect();
        prop_assert_eq!(instances.len(), pods.div_ceil(most as usize));
    }
}
