//! Equal shares of a GPU: as many as the policy says, all alike, and no share by size beside them.

use super::tests::gpus;
use super::*;
use crate::contract::{GpuNodeSpec, GpuNodeStatus, RequestDocument};
use crate::kind::Kind;
use crate::ledger;
use crate::planner::{Allowed, Observed, ObservedGpu, check, plan};
use crate::testing::{node_status, owner_in_epoch, request_sized};
use crate::units::{ComputePercent, SizeGb};
use proptest::prelude::*;

const MPS: &str = "nvidia.com/gpu.mps";
const SLICE: &str = "nvidia.com/gpu.shared";

/// The spec of a node whose GPUs have this rule.
fn spec(rule: &str) -> GpuNodeSpec {
    let policy = serde_json::from_str(&format!(r#"{{"gpus": [{rule}]}}"#)).unwrap();
    GpuNodeSpec { policy, ..GpuNodeSpec::default() }
}

fn in_mps(replicas: u32) -> GpuNodeSpec {
    spec(&format!(r#"{{"mps": {{"replicas": {replicas}}}}}"#))
}

/// A pod with one slice of this name.
fn request(name: &str) -> RequestDocument {
    let name: ResourceName = name.parse().unwrap();
    request_sized(name, name.size().unwrap_or(SizeGb::ANY), 1)
}

/// The spec after as many pods with this name as fit.
fn filled(mut spec: GpuNodeSpec, status: &GpuNodeStatus, name: &str) -> GpuNodeSpec {
    for number in 0.. {
        let pod = owner_in_epoch(&number.to_string());
        match ledger::reserve(&spec, status, &request(name), &pod, &Fleet::default()) {
            Ok(next) => spec = next,
            Err(_) => break,
        }
    }
    spec
}

#[test]
fn a_gpu_has_as_many_equal_mps_shares_as_policy_says() {
    let of = |replicas, model: &str| {
        let spec = filled(in_mps(replicas), &node_status(&[model]), MPS);
        let shapes: Vec<_> = spec.slices.iter().map(|slice| slice.shape.to_string()).collect();
        (shapes.len(), shapes.first().cloned().unwrap_or_default())
    };
    assert_eq!(of(2, "T4-16GB"), (2, "7gb MPS share with 50 % of the compute".to_owned()));
    assert_eq!(of(4, "L40S-48GB"), (4, "11gb MPS share with 25 % of the compute".to_owned()));
    // 30 parts of 3 % each leave 10 % of the compute, and 30 parts of 1 GiB leave 14 GiB.
    assert_eq!(of(30, "L40S-48GB"), (30, "1gb MPS share with 3 % of the compute".to_owned()));
    assert_eq!(of(16, "T4-16GB").0, 0, "less than 1 GiB each");
}

#[test]
fn a_gpu_has_no_more_time_slices_than_policy_says() {
    let rule = spec(r#"{"timeSlicing": {"replicas": 10}}"#);
    let filled = filled(rule, &node_status(&["T4-16GB"]), SLICE);
    assert_eq!(filled.slices.len(), 10, "though 15 of 1 GB would fit");
}

#[test]
fn mps_shares_by_size_are_not_cut_from_a_gpu_that_is_shared_in_equal_parts() {
    let status = node_status(&["T4-16GB"]);
    let node = |spec: &GpuNodeSpec| NodeInventory::from_spec(spec, &status);
    let place = |spec: &GpuNodeSpec, name| fit(&node(spec), &request(name), &Fleet::default());
    let two = in_mps(2);
    assert_eq!(place(&two, "nvidia.com/gpu-7gb"), Err(Refusal::NeverFits));
    assert_eq!(gpus(&place(&two, "nvidia.com/gpu").unwrap()), ["GPU-0"], "a whole GPU while it is empty");
    assert!(place(&two, "nvidia.com/gpu-4gb.shared").is_ok(), "time slices by size are another kind");
    assert_eq!(place(&GpuNodeSpec::default(), MPS), Err(Refusal::NeverFits));
    let taken = filled(two, &status, MPS);
    for name in [MPS, "nvidia.com/gpu", "nvidia.com/gpu-4gb.shared"] {
        assert_eq!(place(&taken, name), Err(Refusal::NoRoom), "{name}");
    }
}

#[test]
fn an_equal_share_serves_requests_within_its_memory_and_compute() {
    let status = node_status(&["T4-16GB"]);
    let has = |rule: &str, compute, memory: Option<u64>| {
        let mut pod = request(MPS);
        pod.containers[0].compute = ComputePercent::new(compute);
        pod.containers[0].memory = memory.map(crate::units::MemoryMib);
        fit(&NodeInventory::from_spec(&spec(rule), &status), &pod, &Fleet::default()).is_ok()
    };
    let two = r#"{"mps": {"replicas": 2}}"#;
    assert!(has(two, 50, None) && !has(two, 51, None));
    assert!(has(two, 0, Some(7 * 1024)) && !has(two, 0, Some(7 * 1024 + 1)));
    let open = r#"{"mps": {"replicas": 2, "computeLimit": "none"}}"#;
    assert!(has(open, 0, None) && !has(open, 1, None), "no share has compute of its own");
}

proptest! {
    /// Whatever pods come and go, the shares of a GPU are equal and at most as many as the policy says, and the planner
    /// starts them all.
    #[test]
    fn equal_mps_shares_stay_equal_and_within_the_gpu(
        replicas in 2_u32..=48, model in 0_usize..4,
        steps in prop::collection::vec(prop::option::weighted(0.7, any::<prop::sample::Index>()), 1..120),
    ) {
        let model = ["T4-16GB", "L4-24GB", "L40S-48GB", "A10G-24GB"][model];
        let status = node_status(&[model, model]);
        let (mut spec, mut pods) = (in_mps(replicas), Vec::new());
        for (number, step) in steps.into_iter().enumerate() {
            let pod = owner_in_epoch(&number.to_string());
            match step {
                Some(_) => if let Ok(next) = ledger::reserve(&spec, &status, &request(MPS), &pod, &Fleet::default()) {
                    spec = next;
                    pods.push(pod);
                },
                None if pods.is_empty() => {}
                None => {
                    let gone: ledger::OwnerInEpoch = pods.swap_remove(number % pods.len());
                    spec = ledger::release(&spec, &gone.uid).unwrap();
                }
            }
            for gpu in &status.gpus {
                let here: Vec<_> = spec.slices.iter().filter(|slice| slice.gpu == gpu.uuid).collect();
                prop_assert!(here.len() <= replicas as usize);
                let usable = gpu.memory.saturating_sub(gpu.beside_shares());
                prop_assert!(here.iter().all(|slice| Some(slice.shape) == spec.policy.gpus[0].replica(Kind::Mps, usable)));
                let observed = Observed { gpus: vec![ObservedGpu {
                    uuid: gpu.uuid.clone(),
                    memory: gpu.memory,
                    allowed: Allowed { one_size: true, ..Allowed::default() },
                    table: None,
                    instances: vec![],
                    shares: vec![],
                }] };
                let wanted: Vec<_> = here.into_iter().cloned().collect();
                let plan = plan(&observed, &wanted);
                prop_assert_eq!(plan.steps.len(), wanted.len());
                prop_assert!(check(&observed, &wanted, &plan).is_ok());
            }
        }
    }
}
