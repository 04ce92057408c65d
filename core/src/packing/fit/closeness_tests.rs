use super::tests::{gpus, with};
use super::*;
use crate::contract::{GpuNodeSpec, Peer};
use crate::testing::{node_status, request, request_sized};
use crate::units::SizeGb;

/// A node whose GPUs form NVLink islands of two with interleaved indexes: 0 and 2, 1 and 3, and so on.
fn pairs(models: &[&str]) -> NodeInventory {
    let mut status = node_status(models);
    for gpu in status.gpus.iter_mut().filter(|gpu| gpu.index & 2 == 0) {
        gpu.peers = vec![Peer { index: gpu.index + 2, nvlinks: 4, pcie: None }];
    }
    NodeInventory::from_spec(&GpuNodeSpec::default(), &status)
}

/// A T4 as a whole GPU.
const WHOLE: Shape = Shape::Whole { size_gb: SizeGb(15) };

fn whole(count: u32) -> RequestDocument {
    request_sized(ResourceName::Whole, SizeGb::ANY, count)
}

#[track_caller]
fn check(node: &NodeInventory, request: &RequestDocument, expected: &[&str]) {
    assert_eq!(gpus(&fit(node, request, &Fleet::default()).unwrap()), expected);
}

#[test]
fn whole_gpus_of_one_pod_have_nvlinks_to_each_other() {
    let node = pairs(&["T4-16GB"; 4]);
    check(&node, &whole(2), &["GPU-0", "GPU-2"]);
    check(&with(node.clone(), 0, WHOLE, None), &whole(2), &["GPU-1", "GPU-3"]);
    check(&with(node.clone(), 2, WHOLE, None), &whole(1), &["GPU-0"]);
    check(&with(node.clone(), 1, WHOLE, None), &whole(1), &["GPU-3"]);
    let mut two = whole(1);
    two.containers.push(ContainerRequest { name: "side".to_owned(), ..two.containers[0].clone() });
    check(&node, &two, &["GPU-0", "GPU-2"]);
    let plain = NodeInventory::from_spec(&GpuNodeSpec::default(), &node_status(&["T4-16GB"; 4]));
    check(&plain, &whole(2), &["GPU-0", "GPU-1"]);
}

#[test]
fn cost_goes_before_closeness() {
    let larger = pairs(&["T4-16GB", "T4-16GB", "L4-24GB", "L4-24GB"]);
    check(&larger, &whole(2), &["GPU-0", "GPU-1"]);
    let odd = pairs(&["T4-16GB", "L4-24GB", "L4-24GB", "L40S-48GB"]);
    check(&odd, &whole(2), &["GPU-0", "GPU-2"]);
}

#[test]
fn closeness_goes_before_an_idle_whole_gpu() {
    let idle = |node, gpu, id| with(node, gpu, WHOLE, Some(id));
    let node = idle(idle(pairs(&["T4-16GB"; 4]), 1, "s1"), 2, "s2");
    check(&node, &whole(2), &["GPU-1", "GPU-3"]);
    check(&node, &whole(1), &["GPU-1"]);
    check(&idle(node, 0, "s0"), &whole(2), &["GPU-0", "GPU-2"]);
}

#[test]
fn slices_on_different_gpus_are_placed_close_together() {
    let node = pairs(&["T4-16GB"; 4]);
    let mut slices = request("nvidia.com/gpu-4gb.shared", 2);
    slices.containers[0].distinct_gpus = true;
    check(&node, &slices, &["GPU-0", "GPU-2"]);
    let busy = with(node.clone(), 0, Shape::TimeSlicing { size_gb: SizeGb(4) }, None);
    check(&busy, &slices, &["GPU-1", "GPU-3"]);
    let full = with(busy, 3, Shape::TimeSlicing { size_gb: SizeGb(16) }, None);
    check(&full, &slices, &["GPU-1", "GPU-2"]);
}

#[test]
fn slices_that_may_be_on_one_gpu_leave_linked_gpus_together() {
    let mut status = node_status(&["T4-16GB"; 3]);
    status.gpus[1].peers = vec![Peer { index: 2, nvlinks: 4, pcie: None }];
    let node = NodeInventory::from_spec(&GpuNodeSpec::default(), &status);
    check(&node, &request("nvidia.com/gpu-4gb.shared", 2), &["GPU-0", "GPU-1"]);
}

#[test]
fn a_gpu_that_a_slice_of_another_name_has_taken_is_replaced() {
    let mut status = node_status(&["T4-16GB"; 3]);
    status.gpus[0].peers = vec![Peer { index: 1, nvlinks: 4, pcie: None }];
    let node = NodeInventory::from_spec(&GpuNodeSpec::default(), &status);
    let mut pod = request_sized(ResourceName::Whole, SizeGb(14), 1);
    let share = ContainerRequest::for_slice(ResourceName::TimeSlicing(SizeGb(14)), SizeGb(14));
    pod.containers.push(ContainerRequest { name: "share".to_owned(), ..share });
    pod.containers.push(ContainerRequest { name: "last".to_owned(), ..pod.containers[0].clone() });
    check(&node, &pod, &["GPU-0", "GPU-1", "GPU-2"]);
}

#[test]
fn requirements_of_a_slice_go_before_closeness() {
    let mut node = pairs(&["T4-16GB"; 4]);
    node.gpus[1].memory = crate::units::MemoryMib(17_000);
    let mut two = whole(1);
    let memory = Some(crate::units::MemoryMib(16_900));
    two.containers.push(ContainerRequest { name: "side".to_owned(), memory, ..two.containers[0].clone() });
    assert_eq!(
        fit(&node, &two, &Fleet::default()),
        Err(Refusal::CountNeverFits),
        "the kubelet gives any to any"
    );
    node.gpus[2].memory = crate::units::MemoryMib(17_000);
    check(&node, &two, &["GPU-1", "GPU-2"]);
}
