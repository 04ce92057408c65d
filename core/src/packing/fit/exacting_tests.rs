//! Pods that select GPUs, and pods that ask for more than a slice's name says.

use super::tests::{gpus, node, with};
use super::*;
use crate::contract::ComputeLimit;
use crate::contract::Shape;
use crate::request::Role;
use crate::testing::{gpu_uuid, h100_shape, request};
use crate::units::{ComputePercent, MemoryMib, SizeGb};

fn selecting(resource: &str, gpus: &str) -> RequestDocument {
    RequestDocument { gpus: serde_json::from_str(gpus).unwrap(), ..request(resource, 1) }
}

fn exacting(resource: &str, memory: Option<u64>, compute: Option<u8>) -> RequestDocument {
    let mut document = request(resource, 1);
    document.containers[0].memory = memory.map(MemoryMib);
    document.containers[0].compute = compute.and_then(ComputePercent::new);
    document
}

fn placed(node: &NodeInventory, request: &RequestDocument) -> Result<Placed, Refusal> {
    Ok(fit(node, request, &Fleet::default())?.slices.remove(0))
}

#[test]
fn a_pod_is_placed_on_gpus_that_it_names_only() {
    let node = node(&["H100-80GB", "H200-141GB", "H100-80GB"]);
    let cases = [
        (r#"{"models": ["H200-141GB"]}"#, Ok("GPU-1")),
        (r#"{"notModels": ["H100-80GB"]}"#, Ok("GPU-1")),
        (r#"{"uuids": ["GPU-2"]}"#, Ok("GPU-2")),
        (r#"{"models": ["H100-80GB"], "notUuids": ["GPU-0"]}"#, Ok("GPU-2")),
        (r#"{"models": ["A30-24GB"]}"#, Err(Refusal::NotSelected)),
        (r#"{"uuids": ["GPU-7"]}"#, Err(Refusal::NotSelected)),
    ];
    for (gpus, expected) in cases {
        let found = placed(&node, &selecting("nvidia.com/mig-1g.10gb", gpus));
        assert_eq!(found.map(|p| p.gpu.to_string()), expected.map(str::to_owned), "{gpus}");
    }
}

#[test]
fn the_refusal_distinguishes_selection_full_and_impossible() {
    let node = with(node(&["H100-80GB", "H100-80GB"]), 0, h100_shape("7g.80gb", 0), None);
    let refusal = |resource: &str, count: u32| {
        let mut request = selecting(resource, r#"{"uuids": ["GPU-0"]}"#);
        request.containers[0].count = count;
        placed(&node, &request).unwrap_err()
    };
    assert_eq!(refusal("nvidia.com/mig-1g.10gb", 1), Refusal::NoRoom);
    assert_eq!(refusal("nvidia.com/mig-1g.10gb", 8), Refusal::CountNeverFits, "two GPUs could hold them");
    assert_eq!(refusal("nvidia.com/gpu-4gb", 1), Refusal::NeverFits);
    assert_eq!(refusal("nvidia.com/mig-7g.141gb", 1), Refusal::NeverFits, "nor another GPU has it");
}

#[test]
fn a_pod_with_uuids_is_alone_if_the_kubelet_could_give_it_another_gpu() {
    let alone = |models: &[&str], gpus: &str| {
        placed(&node(models), &selecting("nvidia.com/gpu-4gb", gpus)).unwrap().alone
    };
    assert!(alone(&["T4-16GB", "T4-16GB"], r#"{"uuids": ["GPU-0"]}"#));
    assert!(alone(&["T4-16GB", "T4-16GB"], r#"{"notUuids": ["GPU-1"]}"#));
    assert!(!alone(&["T4-16GB", "T4-16GB"], r#"{"uuids": ["GPU-0", "GPU-1"]}"#));
    assert!(!alone(&["T4-16GB"], r#"{"uuids": ["GPU-0"]}"#));
    // Slices of two models are never offered together.
    assert!(!alone(&["T4-16GB", "L4-24GB"], r#"{"uuids": ["GPU-0"]}"#));
    assert!(!alone(&["T4-16GB", "L4-24GB"], r#"{"models": ["T4-16GB"]}"#));
}

#[test]
fn a_compute_minimum_that_each_gpu_meets_needs_no_slice_alone() {
    let two = node(&["H100-80GB", "H100-80GB"]);
    let placed = placed(&two, &exacting("nvidia.com/mig-1g.10gb", None, Some(14))).unwrap();
    assert_eq!((placed.shape.to_string().as_str(), placed.alone), ("1g.10gb at 6:1", false));
}

#[test]
fn a_gpu_that_cannot_have_such_a_slice_needs_no_slice_alone() {
    let mut two = node(&["H100-80GB", "H100-80GB"]);
    two.gpus[1].table = crate::mig::MigTable::default();
    assert!(!placed(&two, &exacting("nvidia.com/mig-1g.10gb", Some(9_000), None)).unwrap().alone);
}

#[test]
fn a_strict_request_gets_an_instance_that_really_has_the_memory() {
    let node = node(&["H100-80GB"]);
    let shape = |memory| placed(&node, &exacting("nvidia.com/mig-1g.10gb", memory, None));
    let text = |memory| shape(memory).unwrap().shape.to_string();
    let table = &node.gpus[0].table;
    let real = table.entry("1g.10gb".parse().unwrap()).unwrap().memory.0;
    assert!(real < 10_240, "a 1g.10gb has less than its name says");
    assert_eq!(text(None), "1g.10gb at 6:1");
    assert_eq!(text(Some(real)), "1g.10gb at 6:1");
    assert_eq!(text(Some(real + 1)), "1g.20gb at 6:2");
    assert_eq!(shape(Some(81_560)).unwrap_err(), Refusal::NeverFits);
    let idle = with(node.clone(), 0, h100_shape("1g.10gb", 6), Some("s1"));
    let reused =
        |memory| placed(&idle, &exacting("nvidia.com/mig-1g.10gb", Some(memory), None)).unwrap().source;
    assert_eq!(reused(real), Source::Idle(SliceId::new("s1")));
    assert_eq!(reused(real + 1), Source::Cut(vec![SliceId::new("s1")]));
    let mut exact = exacting("nvidia.com/mig-1g.10gb", Some(real + 1), None);
    exact.containers[0].profile = "1g.10gb".parse().ok();
    assert_eq!(placed(&node, &exact).unwrap_err(), Refusal::NeverFits);
}

#[test]
fn a_share_and_a_whole_gpu_have_at_least_the_memory_of_a_strict_request() {
    let node = node(&["T4-16GB"]);
    let may = |name: &str, memory| {
        let mut request = exacting("nvidia.com/gpu-10gb", Some(memory), None);
        request.containers[0].resource = name.parse().unwrap();
        placed(&node, &request).is_ok()
    };
    for (name, most) in
        [("nvidia.com/gpu-10gb", 10_240), ("nvidia.com/gpu-10gb.shared", 10_240), ("nvidia.com/gpu", 15_360)]
    {
        assert!(may(name, most) && !may(name, most + 1), "{name}");
    }
}

#[test]
fn an_instance_has_at_least_the_compute_that_is_asked_for() {
    let node = node(&["H100-80GB"]);
    let text = |name: &str, compute| {
        placed(&node, &exacting(name, None, Some(compute))).map(|placed| placed.shape.to_string())
    };
    for (compute, expected) in
        [(1, "1g.10gb at 6:1"), (14, "1g.10gb at 6:1"), (15, "2g.20gb at 4:2"), (28, "2g.20gb at 4:2")]
    {
        assert_eq!(text("nvidia.com/mig-1g.10gb", compute).as_deref(), Ok(expected), "{compute}");
    }
    assert_eq!(text("nvidia.com/mig-1g.10gb", 50).as_deref(), Ok("4g.40gb at 0:4"));
    assert_eq!(text("nvidia.com/mig-1g.10gb", 58).as_deref(), Ok("7g.80gb at 0:8"));
}

#[test]
fn a_compute_instance_has_the_memory_and_the_compute_that_is_asked_for() {
    let mut node = node(&["H100-80GB"]);
    let real = node.gpus[0].table.entry("3g.40gb".parse().unwrap()).unwrap().memory.0;
    let may = |node: &NodeInventory, memory, compute| {
        placed(node, &exacting("nvidia.com/mig-1c.3g.40gb", memory, compute)).is_ok()
    };
    assert!(!may(&node, None, None), "policy does not allow compute instances");
    node.gpus[0].rule.compute_instances = true;
    assert!(may(&node, Some(real), None) && !may(&node, Some(real + 1), None));
    assert!(may(&node, None, Some(14)) && !may(&node, None, Some(15)), "a seventh is 14.3 %");
}

#[test]
fn an_mps_share_with_a_part_of_the_compute_is_a_slice_of_its_own() {
    let four = |compute: Option<u8>| Shape::Mps {
        size_gb: SizeGb(4),
        compute: compute.and_then(ComputePercent::new),
    };
    let node = node(&["T4-16GB"]);
    let asked = |compute| exacting("nvidia.com/gpu-4gb", None, compute);
    for idle in [None, Some(30), Some(50)] {
        let node = with(node.clone(), 0, four(idle), Some("s1"));
        for compute in [None, Some(30), Some(50)] {
            let placed = placed(&node, &asked(compute)).unwrap();
            assert_eq!(placed.shape, four(compute));
            assert_eq!(placed.source == Source::Idle(SliceId::new("s1")), idle == compute);
            assert!(!placed.alone, "only shares with the same part are offered together");
        }
    }
}

#[test]
fn mps_shares_never_exceed_the_compute_of_the_gpu() {
    let share = |gb, compute| Shape::Mps { size_gb: SizeGb(gb), compute: ComputePercent::new(compute) };
    let full = with(with(node(&["T4-16GB"]), 0, share(2, 60), None), 0, share(2, 20), None);
    let may =
        |node: &NodeInventory, name: &str, compute| placed(node, &exacting(name, None, compute)).is_ok();
    assert!(may(&full, "nvidia.com/gpu-1gb", Some(20)) && !may(&full, "nvidia.com/gpu-1gb", Some(21)));
    // Of 15 GiB: a share without a compute limit counts with the same part of compute as of memory.
    assert!(may(&full, "nvidia.com/gpu-3gb", None) && !may(&full, "nvidia.com/gpu-4gb", None));
    let mut twice = full.clone();
    twice.gpus[0].rule.mps.memory_percent = 200.try_into().unwrap();
    assert!(may(&twice, "nvidia.com/gpu-1gb", Some(100)));
    let idle = with(with(node(&["T4-16GB"]), 0, share(2, 60), Some("s1")), 0, share(2, 20), Some("s2"));
    let source = placed(&idle, &exacting("nvidia.com/gpu-1gb", None, Some(60))).unwrap().source;
    assert_eq!(source, Source::Cut(vec![SliceId::new("s1")]), "the other may stay beside it");
}

#[test]
fn no_share_has_compute_without_compute_limits() {
    let mut free = node(&["T4-16GB"]);
    free.gpus[0].rule.mps.compute_limit = ComputeLimit::None;
    let may = |compute| placed(&free, &exacting("nvidia.com/gpu-4gb", None, compute)).is_ok();
    assert!(may(None) && !may(Some(10)));
}

#[test]
fn policy_may_let_all_shares_together_but_none_alone_exceed_the_memory() {
    let mut node = with(node(&["T4-16GB"]), 0, Shape::mps(SizeGb(11)), None);
    let may = |node: &NodeInventory, name: &str| placed(node, &request(name, 1)).is_ok();
    assert!(may(&node, "nvidia.com/gpu-3gb") && !may(&node, "nvidia.com/gpu-4gb"));
    node.gpus[0].rule.mps.memory_percent = 150.try_into().unwrap();
    assert!(may(&node, "nvidia.com/gpu-10gb") && !may(&node, "nvidia.com/gpu-11gb"));
    node.gpus[0].rule.mps.memory_percent = 400.try_into().unwrap();
    assert!(may(&node, "nvidia.com/gpu-14gb") && !may(&node, "nvidia.com/gpu-16gb"));
    let slices = with(super::tests::node(&["T4-16GB"]), 0, Shape::TimeSlicing { size_gb: SizeGb(12) }, None);
    let mut slices = slices;
    slices.gpus[0].rule.mps.memory_percent = 400.try_into().unwrap();
    assert!(!may(&slices, "nvidia.com/gpu-4gb.shared"), "time slices have no such limit");
}

#[test]
fn all_slices_of_a_name_meet_its_most_demanding_container() {
    let strict = exacting("nvidia.com/mig-1g.10gb", Some(10_240), None).containers.remove(0);
    let mut pod = request("nvidia.com/mig-1g.10gb", 1);
    let load = ContainerRequest { name: "load".to_owned(), role: Role::Init, ..strict };
    pod.containers.insert(0, load);
    let found = fit(&node(&["H100-80GB"]), &pod, &Fleet::default()).unwrap();
    let shapes: Vec<_> = found.slices.iter().map(|slice| slice.shape.to_string()).collect();
    assert_eq!(shapes, ["1g.20gb at 6:2"], "the init container gets the slice of the other");
    assert_eq!(gpus(&found), [gpu_uuid(0).as_str()]);
}
