//! Fixed layouts: pods get slices of the layout and no others.

use super::*;
use crate::contract::{GpuNodeSpec, GpuNodeStatus, NodePolicy};
use crate::inventory::{NodeInventory, Occupancy, PlacedSlice};
use crate::kind::Kind;
use crate::ledger;
use crate::packing::{Fleet, Refusal, fit};
use crate::testing::{node_status, owner_in_epoch, request, request_sized};
use crate::units::SizeGb;
use proptest::prelude::*;

fn node(model: &str, rule: &str) -> (GpuNodeSpec, GpuNodeStatus) {
    let policy: NodePolicy = serde_json::from_str(&format!(r#"{{"gpus": [{rule}]}}"#)).unwrap();
    (GpuNodeSpec { policy, ..GpuNodeSpec::default() }, node_status(&[model]))
}

/// A T4 with a layout of `count` slices of this name, beside what else `rule` says of the GPU.
fn t4(rule: &str, name: &str, count: u32) -> (GpuNodeSpec, GpuNodeStatus) {
    let layout = format!(r#"[{{"resource": "{name}", "count": {count}}}]"#);
    node("T4-16GB", &format!(r#"{{{rule} "layout": {layout}}}"#))
}

const MIXED: &str = r#"{"layout": [{"resource": "nvidia.com/mig-1g.10gb", "count": 3},
    {"resource": "nvidia.com/mig-4g.40gb", "count": 1}]}"#;

fn shapes(spec: &GpuNodeSpec, status: &GpuNodeStatus) -> Vec<String> {
    let gpu = &NodeInventory::from_spec(spec, status).gpus[0];
    gpu.layout.iter().flatten().map(ToString::to_string).collect()
}

#[test]
fn a_layout_has_one_place_for_each_of_its_profiles() {
    let (spec, status) = node("H100-80GB", MIXED);
    let expected = ["4g.40gb at 0:4", "1g.10gb at 4:1", "1g.10gb at 5:1", "1g.10gb at 6:1"];
    assert_eq!(shapes(&spec, &status), expected);
    let (spec, status) = node("A100-40GB", MIXED);
    assert_eq!(shapes(&spec, &status), Vec::<String>::new(), "it has no such profiles");
}

#[test]
fn shares_are_laid_out_within_the_gpus_limits() {
    let shares = |count: u32, percent: u32| {
        let rule = format!(r#""mps": {{"memoryPercent": {percent}}},"#);
        let (spec, status) = t4(&rule, "nvidia.com/gpu-4gb", count);
        shapes(&spec, &status).len()
    };
    assert_eq!((shares(3, 100), shares(4, 100), shares(5, 150), shares(6, 150)), (3, 0, 5, 0));
    assert_eq!(shares(u32::MAX, 400), 0);
    let one = |name: &str, rule: &str| {
        let (spec, status) = t4(rule, name, 1);
        shapes(&spec, &status).join("")
    };
    assert_eq!(one("nvidia.com/gpu", ""), "whole GPU of 15 GB");
    assert_eq!(one("nvidia.com/gpu-4gb.shared", ""), "4gb time slice");
    assert_eq!(one("nvidia.com/gpu.shared", r#""timeSlicing": {"replicas": 3},"#), "4gb time slice");
    let share = one("nvidia.com/gpu.mps", r#""mps": {"replicas": 3},"#);
    assert_eq!(share, "4gb MPS share with 33 % of the compute");
}

/// The node with a slice of this name that a pod reserved before the layout was set.
fn reserved_before(
    (mut spec, status): (GpuNodeSpec, GpuNodeStatus),
    name: &str,
) -> ((GpuNodeSpec, GpuNodeStatus), String) {
    let policy = std::mem::take(&mut spec.policy);
    let before = (spec, status);
    let (spec, held) = reserve(&before, name).unwrap();
    ((GpuNodeSpec { policy, ..spec }, before.1), held)
}

/// Reserves a slice for a pod of this name, and returns what it got.
fn reserve(
    (spec, status): &(GpuNodeSpec, GpuNodeStatus),
    name: &str,
) -> Result<(GpuNodeSpec, String), Refusal> {
    let next = ledger::reserve(spec, status, &request(name, 1), &owner_in_epoch("a"), &Fleet::default())?;
    let given = next.slices.iter().find(|slice| slice.reservation.is_some()).unwrap();
    let text = given.shape.to_string();
    Ok((next, text))
}

#[test]
fn a_pod_gets_slices_of_the_layout_only() {
    let node = node("H100-80GB", MIXED);
    assert_eq!(reserve(&node, "nvidia.com/mig-1g.10gb").unwrap().1, "1g.10gb at 4:1");
    assert_eq!(reserve(&node, "nvidia.com/mig-3g.40gb").unwrap().1, "4g.40gb at 0:4");
    for name in ["nvidia.com/mig-2g.20gb", "nvidia.com/mig-7g.80gb", "nvidia.com/mig-1c.4g.40gb"] {
        assert_eq!(reserve(&node, name), Err(Refusal::NeverFits), "{name}");
    }
    let full = fit(
        &NodeInventory::from_spec(&node.0, &node.1),
        &request("nvidia.com/mig-1g.10gb", 4),
        &Fleet::default(),
    );
    assert_eq!(full, Err(Refusal::CountNeverFits));
}

#[test]
fn a_missing_slice_with_less_compute_costs_less_than_an_idle_one_with_more() {
    const HALVES: &str = r#"{"layout": [{"resource": "nvidia.com/mig-3g.40gb", "count": 1},
        {"resource": "nvidia.com/mig-4g.40gb", "count": 1}]}"#;
    let (spec, status) = node("H100-80GB", HALVES);
    let mut node = NodeInventory::from_spec(&spec, &status);
    let shape = node.gpus[0].layout.as_ref().unwrap()[0];
    assert_eq!(shape.to_string(), "4g.40gb at 0:4");
    node.gpus[0].slices.push(PlacedSlice { shape, occupancy: Occupancy::Idle("s1".into()) });
    let found = fit(&node, &request("nvidia.com/mig-3g.40gb", 1), &Fleet::default()).unwrap();
    assert_eq!(found.slices[0].shape.to_string(), "3g.40gb at 4:4");
}

#[test]
fn a_layout_of_shares_serves_no_request_that_is_larger_than_any_share() {
    let (spec, status) = t4("", "nvidia.com/gpu-4gb", 2);
    let gpu = NodeInventory::from_spec(&spec, &status).gpus.remove(0);
    let serves = |size| {
        let name = ResourceName::Neutral(SizeGb(size));
        let asked =
            ContainerRequest { kinds: vec![Kind::Mps], ..ContainerRequest::for_slice(name, SizeGb(size)) };
        candidate(&gpu, gpu.layout.as_ref().unwrap(), &asked).is_some()
    };
    assert!(serves(4) && !serves(278));
}

#[test]
fn a_layout_of_mps_shares_waits_for_a_time_slice_that_is_still_held() {
    let (spec, status) = t4("", "nvidia.com/gpu-4gb", 2);
    let mut gpu = NodeInventory::from_spec(&spec, &status).gpus.remove(0);
    assert_eq!(missing(&gpu).len(), 2);
    let shape = Shape::TimeSlicing { size_gb: SizeGb(4) };
    gpu.slices.push(PlacedSlice { shape, occupancy: Occupancy::Taken });
    assert_eq!(missing(&gpu), []);
}

#[test]
fn a_whole_gpu_is_laid_out_once_it_is_undivided_and_no_pod_holds_a_share() {
    let (spec, status) = t4("", "nvidia.com/gpu", 1);
    let mut gpu = NodeInventory::from_spec(&spec, &status).gpus.remove(0);
    assert_eq!(missing(&gpu).len(), 1);
    gpu.undivided = false;
    assert_eq!(missing(&gpu), []);
    gpu.undivided = true;
    let shape = Shape::TimeSlicing { size_gb: SizeGb(4) };
    gpu.slices.push(PlacedSlice { shape, occupancy: Occupancy::Taken });
    assert_eq!(missing(&gpu), []);
}

#[test]
fn an_idle_share_that_is_not_in_the_layout_goes() {
    let ((spec, status), _) = reserved_before(t4("", "nvidia.com/gpu-4gb", 2), "nvidia.com/gpu-2gb");
    let idle = ledger::release(&spec, &owner_in_epoch("a").uid).unwrap();
    assert_eq!(ledger::drop_disallowed(&idle, &status).unwrap().slices, []);
}

#[test]
fn equal_shares_and_shares_of_a_size_have_names_of_their_own() {
    let (equal, sized) = ("nvidia.com/gpu.shared", "nvidia.com/gpu-4gb.shared");
    let in_three = t4(r#""timeSlicing": {"replicas": 3},"#, equal, 1);
    for ((spec, status), name, other) in [(in_three, equal, sized), (t4("", sized, 1), sized, equal)] {
        let node = NodeInventory::from_spec(&spec, &status);
        let given = |name: &str| {
            let fit = fit(&node, &request_sized(name.parse().unwrap(), SizeGb(4), 1), &Fleet::default())?;
            Ok(fit.slices[0].shape)
        };
        assert_eq!(given(name), Ok(Shape::TimeSlicing { size_gb: SizeGb(4) }), "{name}");
        assert_eq!(given(other), Err(Refusal::NeverFits), "{other}");
    }
}

#[test]
fn a_layout_is_cut_beside_slices_that_are_still_held() {
    let ((laid_out, status), held) = reserved_before(node("H100-80GB", MIXED), "nvidia.com/mig-2g.20gb");
    assert_eq!(held, "2g.20gb at 4:2");
    assert_eq!(ledger::drop_disallowed(&laid_out, &status), None, "a pod has reserved it");
    let with = ledger::keep_warm(&laid_out, &status, &BTreeSet::new(), &Fleet::default()).unwrap();
    let shapes = |spec: &GpuNodeSpec| spec.slices.iter().map(|s| s.shape.to_string()).collect::<Vec<_>>();
    assert_eq!(shapes(&with), ["2g.20gb at 4:2", "4g.40gb at 0:4", "1g.10gb at 6:1"]);
    let free = ledger::release(&with, &owner_in_epoch("a").uid).unwrap();
    let gone = ledger::drop_disallowed(&free, &status).unwrap();
    assert_eq!(shapes(&gone), ["4g.40gb at 0:4", "1g.10gb at 6:1"]);
    let all = ledger::keep_warm(&gone, &status, &BTreeSet::new(), &Fleet::default()).unwrap();
    assert_eq!(shapes(&all), ["4g.40gb at 0:4", "1g.10gb at 6:1", "1g.10gb at 4:1", "1g.10gb at 5:1"]);
    assert_eq!(ledger::keep_warm(&all, &status, &BTreeSet::new(), &Fleet::default()), None);
    assert_eq!(ledger::drop_disallowed(&all, &status), None);
}

proptest! {
    /// Whatever pods come and go: every slice on the GPU is of the layout, and after each round all of the layout
    /// exists.
    #[test]
    fn a_gpu_has_its_layout_and_nothing_else(
        steps in prop::collection::vec((0_usize..6, any::<bool>()), 1..24), is_mig in any::<bool>(),
    ) {
        const SHARES: &str = r#"{"layout": [{"resource": "nvidia.com/gpu-4gb", "count": 2},
            {"resource": "nvidia.com/gpu-2gb", "count": 3}]}"#;
        let (mut spec, status) = if is_mig { node("H100-80GB", MIXED) } else { node("T4-16GB", SHARES) };
        let layout = NodeInventory::from_spec(&spec, &status).gpus[0].layout.clone().unwrap();
        let names = ["mig-1g.10gb", "mig-4g.40gb", "mig-2g.20gb", "gpu-4gb", "gpu-2gb", "gpu-8gb"];
        let mut pods = Vec::new();
        for (n, (name, leaves)) in steps.into_iter().enumerate() {
            if leaves && !pods.is_empty() {
                let pod: ledger::OwnerInEpoch = pods.swap_remove(name % pods.len());
                spec = ledger::release(&spec, &pod.uid).unwrap();
            } else {
                let pod = owner_in_epoch(&n.to_string());
                let asked = request(&format!("nvidia.com/{}", names[name]), 1);
                if let Ok(next) = ledger::reserve(&spec, &status, &asked, &pod, &Fleet::default()) {
                    spec = next;
                    pods.push(pod);
                }
            }
            prop_assert_eq!(ledger::drop_disallowed(&spec, &status), None);
            spec = ledger::keep_warm(&spec, &status, &BTreeSet::new(), &Fleet::default()).unwrap_or(spec);
            let mut there: Vec<_> = spec.slices.iter().map(|slice| slice.shape).collect();
            let mut laid_out = layout.clone();
            there.sort_unstable();
            laid_out.sort_unstable();
            prop_assert_eq!(there, laid_out);
            prop_assert_eq!(spec.slices.iter().filter(|s| s.reservation.is_some()).count(), pods.len());
        }
    }
}
