use super::*;
use crate::contract::{GpuNodeSpec, MigPart};
use crate::ledger;
use crate::mig::{ComputeInstance, Geometry, Profile};
use crate::request::Role;
use crate::testing::{gpu_uuid, h100_shape, node_status, owner_in_epoch, request, request_sized};
use crate::units::{MemoryMib, SizeGb};
use proptest::prelude::*;

pub(super) fn node(models: &[&str]) -> NodeInventory {
    NodeInventory::from_spec(&GpuNodeSpec::default(), &node_status(models))
}

pub(super) fn with(mut node: NodeInventory, gpu: usize, shape: Shape, idle: Option<&str>) -> NodeInventory {
    let occupancy = idle.map_or(Occupancy::Taken, |id| Occupancy::Idle(SliceId::new(id)));
    node.gpus[gpu].slices.push(PlacedSlice { shape, occupancy });
    node
}

fn place(node: &NodeInventory, resource: &str) -> Result<(String, String, Source), Refusal> {
    let fit = fit(node, &request(resource, 1), &Fleet::default())?;
    let placed = fit.slices.into_iter().next().unwrap();
    Ok((placed.gpu.to_string(), placed.shape.to_string(), placed.source))
}

#[test]
fn a_small_slice_leaves_room_for_the_largest() {
    let placed = place(&node(&["H100-80GB"]), "nvidia.com/mig-1g.10gb").unwrap();
    assert_eq!(placed, ("GPU-0".into(), "1g.10gb at 6:1".into(), Source::Cut(vec![])));
}

#[test]
fn a_cut_gpu_is_used_before_an_uncut_one() {
    let node = with(node(&["H100-80GB", "H100-80GB"]), 1, h100_shape("1g.10gb", 6), None);
    assert_eq!(place(&node, "nvidia.com/mig-1g.10gb").unwrap().0, "GPU-1");
}

#[test]
fn an_idle_slice_at_the_best_place_is_used_again() {
    let node = with(node(&["H100-80GB"]), 0, h100_shape("1g.10gb", 6), Some("s1"));
    assert_eq!(place(&node, "nvidia.com/mig-1g.10gb").unwrap().2, Source::Idle(SliceId::new("s1")));
}

#[test]
fn a_released_slice_is_used_again_if_no_new_one_costs_less() {
    let beside = |taken: &[u8]| {
        let h100 = node(&["H100-80GB"]);
        let mut node =
            taken.iter().fold(h100, |node, start| with(node, 0, h100_shape("1g.10gb", *start), None));
        let occupancy = Occupancy::Released("s1".into());
        node.gpus[0].slices.push(PlacedSlice { shape: h100_shape("1g.10gb", 6), occupancy });
        place(&node, "nvidia.com/mig-1g.10gb").unwrap().2
    };
    assert_eq!(beside(&[]), Source::Cut(vec![]), "a pod may still get it, so that the GPU is in use");
    assert_eq!(beside(&[0, 1, 2, 3, 4, 5]), Source::Idle("s1".into()));
}

#[test]
fn idle_slices_make_room_for_a_bigger_one() {
    let small = (0..7).fold(node(&["H100-80GB"]), |n, start| {
        let id = format!("s{start}");
        with(n, 0, h100_shape("1g.10gb", start), (start >= 4).then_some(id.as_str()))
    });
    let (_, shape, source) = place(&small, "nvidia.com/mig-3g.40gb").unwrap();
    assert_eq!(shape, "3g.40gb at 4:4");
    assert_eq!(source, Source::Cut(["s4", "s5", "s6"].map(SliceId::new).to_vec()));
}

#[test]
fn an_idle_instance_with_the_media_engines_goes_wherever_it_lies() {
    let shape = |profile: &str, start| {
        let part = MigPart::Whole;
        Shape::Mig { profile: profile.parse().unwrap(), start, size: 1, part }
    };
    let taken = with(node(&["A30-24GB"]), 0, shape("1g.6gb", 1), None);
    let node = with(taken, 0, shape("1g.6gb+me", 0), Some("s0"));
    let (_, place, source) = place(&node, "nvidia.com/mig-2g.12gb.me").unwrap();
    assert_eq!((place.as_str(), source), ("2g.12gb+me at 2:2", Source::Cut(vec!["s0".into()])));
}

#[test]
fn only_idle_slices_at_its_place_go_for_a_compute_instance() {
    let instance = h100_shape("3g.40gb", 4).instance().unwrap();
    let part =
        |start| Shape::from_instance(instance, MigPart::Compute(ComputeInstance { start, compute: 1 }));
    let shared = with(with(node(&["H100-80GB"]), 0, part(2), None), 0, part(0), Some("at its place"));
    let mut node = with(shared, 0, h100_shape("1g.10gb", 0), Some("elsewhere"));
    node.gpus[0].rule.compute_instances = true;
    let (_, shape, source) = place(&node, "nvidia.com/mig-2c.3g.40gb").unwrap();
    assert_eq!(shape, "2c.3g.40gb at 4:4, compute 0");
    assert_eq!(source, Source::Cut(vec![SliceId::new("at its place")]));
}

#[test]
fn the_same_memory_slices_are_given_with_the_most_compute() {
    assert_eq!(place(&node(&["H100-80GB"]), "nvidia.com/mig-1g.20gb").unwrap().1, "1g.20gb at 6:2");
    let busy = with(node(&["H100-80GB"]), 0, h100_shape("1g.10gb", 6), None);
    assert_eq!(place(&busy, "nvidia.com/mig-1g.20gb").unwrap().1, "2g.20gb at 4:2");
}

#[test]
fn a_profile_that_the_user_wrote_is_exact() {
    let mut exact = request("nvidia.com/mig-1g.20gb", 1);
    exact.containers[0].profile = Some("1g.20gb".parse().unwrap());
    let busy = with(node(&["H100-80GB"]), 0, h100_shape("1g.10gb", 6), None);
    assert_eq!(fit(&busy, &exact, &Fleet::default()).unwrap().slices[0].shape.to_string(), "1g.20gb at 4:2");
}

#[test]
fn a_name_may_be_served_by_a_larger_gpus_profile() {
    let placed = place(&node(&["H200-141GB"]), "nvidia.com/mig-1g.10gb").unwrap();
    assert_eq!(placed.1, "1g.18gb at 6:1");
}

#[test]
fn shares_fill_a_gpu_up_to_its_memory_and_time_slices_spread() {
    let two = node(&["T4-16GB", "T4-16GB"]);
    let one = with(two, 0, Shape::mps(SizeGb(7)), None);
    assert_eq!(place(&one, "nvidia.com/gpu-7gb").unwrap().0, "GPU-0");
    // Shares may have 14 of 15 GiB: the driver keeps some memory, and the MPS server has a context.
    assert_eq!(place(&one, "nvidia.com/gpu-8gb").unwrap().0, "GPU-1");
    let slices = with(node(&["T4-16GB", "T4-16GB"]), 0, Shape::TimeSlicing { size_gb: SizeGb(4) }, None);
    assert_eq!(place(&slices, "nvidia.com/gpu-4gb.shared").unwrap().0, "GPU-1");
}

#[test]
fn shares_of_two_kinds_never_meet_on_one_gpu() {
    let mps = with(node(&["T4-16GB"]), 0, Shape::mps(SizeGb(4)), None);
    assert_eq!(place(&mps, "nvidia.com/gpu-4gb.shared"), Err(Refusal::NoRoom));
    let idle = with(node(&["T4-16GB"]), 0, Shape::mps(SizeGb(4)), Some("s1"));
    assert_eq!(place(&idle, "nvidia.com/gpu-4gb.shared").unwrap().2, Source::Cut(vec![SliceId::new("s1")]));
}

#[test]
fn a_refusal_distinguishes_full_from_impossible() {
    let full = with(node(&["H100-80GB"]), 0, h100_shape("7g.80gb", 0), None);
    assert_eq!(place(&full, "nvidia.com/mig-1g.10gb"), Err(Refusal::NoRoom));
    assert_eq!(place(&node(&["A100-40GB"]), "nvidia.com/mig-7g.80gb"), Err(Refusal::NeverFits));
    assert_eq!(place(&node(&["T4-16GB"]), "nvidia.com/mig-1g.5gb"), Err(Refusal::NeverFits));
    assert_eq!(
        fit(&node(&["A100-40GB"]), &request("nvidia.com/mig-1g.5gb", 8), &Fleet::default()),
        Err(Refusal::CountNeverFits)
    );
}

#[test]
fn an_idle_share_from_before_mig_mode_goes_for_an_instance() {
    let node = with(node(&["H100-80GB"]), 0, Shape::mps(SizeGb(10)), Some("s0"));
    let (_, _, source) = place(&node, "nvidia.com/mig-1g.10gb").unwrap();
    assert_eq!(source, Source::Cut(vec!["s0".into()]));
}

#[test]
fn several_slices_of_one_pod_are_placed_together_or_not_at_all() {
    let fit =
        fit(&node(&["H100-80GB", "H100-80GB"]), &request("nvidia.com/mig-1g.10gb", 14), &Fleet::default())
            .unwrap();
    assert_eq!(fit.slices.len(), 14);
    assert_eq!(fit.slices.iter().filter(|s| s.gpu == gpu_uuid(0)).count(), 7);
}

pub(super) fn gpus(fit: &Fit) -> Vec<&str> {
    fit.slices.iter().map(|slice| slice.gpu.as_str()).collect()
}

#[test]
fn the_mps_shares_of_one_container_are_on_one_gpu() {
    let two = with(node(&["T4-16GB", "T4-16GB"]), 0, Shape::mps(SizeGb(9)), None);
    let place = |name: &str, count| fit(&two, &request(name, count), &Fleet::default());
    assert_eq!(gpus(&place("nvidia.com/gpu-5gb", 1).unwrap()), ["GPU-0"]);
    let pair = place("nvidia.com/gpu-5gb", 2).unwrap();
    assert_eq!(gpus(&pair), ["GPU-1", "GPU-1"]);
    assert!(pair.slices.iter().all(|slice| slice.alone), "no other pod may take one of them");
    assert_eq!(place("nvidia.com/gpu-5gb", 4), Err(Refusal::CountNeverFits));
    assert_eq!(place("nvidia.com/gpu-8gb", 2), Err(Refusal::CountNeverFits));
    let slices = place("nvidia.com/gpu-5gb.shared", 2).unwrap();
    assert!(slices.slices.iter().all(|slice| !slice.alone), "time slices have no daemon");
}

#[test]
fn containers_that_may_get_each_others_mps_shares_have_them_on_one_gpu() {
    let of = |name: &str, resource: &str, count| ContainerRequest {
        name: name.into(),
        ..request(resource, count).containers.remove(0)
    };
    let mut pod = request("nvidia.com/gpu-4gb", 1);
    let other = of("other", "nvidia.com/gpu-7gb", 1);
    pod.containers = vec![of("one", "nvidia.com/gpu-4gb", 1), other, of("two", "nvidia.com/gpu-4gb", 2)];
    let placed = fit(&node(&["T4-16GB", "T4-16GB"]), &pod, &Fleet::default()).unwrap();
    let containers: Vec<_> = placed.slices.iter().map(|s| s.container.as_str()).collect();
    assert_eq!(containers, ["one", "other", "two", "two"], "in the order of the request");
    assert_eq!(gpus(&placed), ["GPU-0", "GPU-1", "GPU-0", "GPU-0"]);
}

/// A pod with one container for each of these profiles.
fn containers(names: &[&str]) -> RequestDocument {
    let container = |(n, name): (usize, &&str)| ContainerRequest {
        name: format!("c{n}"),
        ..request(&format!("nvidia.com/mig-{name}"), 1).containers.remove(0)
    };
    let containers = names.iter().enumerate().map(container).collect();
    RequestDocument { containers, ..request("nvidia.com/mig-1g.10gb", 1) }
}

#[test]
fn small_containers_that_come_first_do_not_take_the_only_place_of_a_large_one() {
    let place = |names: &[&str]| fit(&node(&["H100-80GB"]), &containers(names), &Fleet::default());
    let found = place(&["2g.20gb", "2g.20gb", "3g.40gb"]).unwrap();
    let places: Vec<_> = found.slices.iter().map(|s| format!("{} {}", s.container, s.shape)).collect();
    assert_eq!(places, ["c0 2g.20gb at 0:2", "c1 2g.20gb at 2:2", "c2 3g.40gb at 4:4"]);
    assert!(place(&["1g.10gb", "1g.10gb", "1g.20gb", "3g.40gb"]).is_ok());
    assert_eq!(place(&["2g.20gb", "3g.40gb", "3g.40gb"]), Err(Refusal::CountNeverFits));
}

#[test]
fn an_init_container_adds_only_what_the_later_ones_do_not_need() {
    let of = |name: &str, role, count| ContainerRequest {
        name: name.into(),
        role,
        ..request("nvidia.com/mig-1g.10gb", count).containers.remove(0)
    };
    let mut pod = request("nvidia.com/mig-1g.10gb", 1);
    pod.containers = vec![of("load", Role::Init, 5), of("proxy", Role::Sidecar, 1), of("main", Role::App, 2)];
    let placed = fit(&node(&["H100-80GB"]), &pod, &Fleet::default()).unwrap();
    let containers: Vec<_> = placed.slices.iter().map(|s| s.container.as_str()).collect();
    assert_eq!(containers, ["load", "load", "proxy", "main", "main"]);
    assert!(placed.slices.iter().all(|slice| !slice.alone), "the kubelet records what init containers hold");
    pod.containers[0].count = 3;
    let placed = fit(&node(&["H100-80GB"]), &pod, &Fleet::default()).unwrap();
    assert_eq!(placed.slices.len(), 3);
    pod.containers[0].count = 8;
    assert_eq!(fit(&node(&["H100-80GB"]), &pod, &Fleet::default()), Err(Refusal::CountNeverFits));
}

#[test]
fn refusals_have_one_constant_text_each() {
    use Refusal as R;
    let all = [
        R::NotAdmitted,
        R::UnreadableRequest,
        R::NoAgent,
        R::UnreadableStatus,
        R::UnreadableSpec,
        R::AgentNotReady,
        R::NotConnected,
        R::ReservedElsewhere,
        R::NeverFits,
        R::NotSelected,
        R::CountNeverFits,
        R::TooFewGpus,
        R::NoRoom,
    ];
    insta::assert_snapshot!(all.map(|r| r.to_string()).join("\n"));
}

proptest! {
    /// For all requests in any order: every accepted place is legal beside all the others.
    #[test]
    fn every_accepted_place_is_legal(asks in prop::collection::vec((0_usize..6, 0_usize..12, any::<bool>()), 1..40)) {
        let models = ["H100-80GB", "A100-40GB", "A30-24GB", "T4-16GB"];
        let status = node_status(&models);
        let mut fleet = Fleet::default();
        for gpu in &status.gpus {
            fleet.add(&gpu.profiles, [], []);
        }
        let names = ["mig-1g.5gb", "mig-1g.10gb", "mig-2g.12gb", "mig-3g.40gb", "gpu-4gb", "gpu-3gb.shared"];
        let mut spec = GpuNodeSpec::default();
        let mut pods = Vec::new();
        for (n, (name, leave, leaves)) in asks.into_iter().enumerate() {
            if leaves && !pods.is_empty() {
                let pod: ledger::OwnerInEpoch = pods.swap_remove(leave % pods.len());
                spec = ledger::release(&spec, &pod.uid).unwrap();
                continue;
            }
            let pod = owner_in_epoch(&n.to_string());
            let resource: ResourceName = format!("nvidia.com/{}", names[name]).parse().unwrap();
            if let Ok(next) = ledger::reserve(&spec, &status, &request_sized(resource, resource.size().unwrap(), 1), &pod, &fleet) {
                spec = next;
                pods.push(pod);
            }
            for gpu in &status.gpus {
                let here: Vec<_> = spec.slices.iter().filter(|s| s.gpu == gpu.uuid).collect();
                let instances = here.iter().filter_map(|s| s.shape.instance());
                prop_assert!(Geometry::from_instances(&gpu.profiles, instances).is_ok(), "{here:?}");
                let shares: MemoryMib = here.iter().filter(|s| s.shape.instance().is_none())
                    .map(|s| s.shape.size().share_memory()).sum();
                prop_assert!(shares <= gpu.memory.saturating_sub(gpu.beside_shares()));
            }
            let reserved = spec.slices.iter().filter(|s| s.reservation.is_some()).count();
            prop_assert_eq!(reserved, pods.len());
        }
    }
}

/// Whether instances of these profiles fit together on an empty GPU at any places.
fn can_lie_together(geometry: &Geometry<'_>, profiles: &[Profile]) -> bool {
    let [first, others @ ..] = profiles else { return true };
    let entry = geometry.table().entry(*first).unwrap();
    entry.placements().any(|placement| {
        let placed = geometry.clone().place(*first, placement.start);
        placed.is_ok_and(|geometry| can_lie_together(&geometry, others))
    })
}

proptest! {
    /// A pod fits on an empty GPU in any order of its containers if its profiles fit there together at all.
    #[test]
    fn a_pod_of_several_containers_fits_on_an_empty_gpu_that_can_hold_it(
        model in 0_usize..4, picks in prop::collection::vec(any::<prop::sample::Index>(), 2..6),
    ) {
        let node = node(&[["H100-80GB", "A100-40GB", "A30-24GB", "H200-141GB"][model]]);
        let table = node.gpus[0].table.clone();
        let profiles: Vec<Profile> = picks.iter().map(|pick| pick.get(table.entries()).profile).collect();
        let mut pod = request("nvidia.com/mig-1g.10gb", 1);
        pod.containers = profiles.iter().map(|profile| ContainerRequest::exact(*profile)).collect();
        let mut fleet = Fleet::default();
        fleet.add(&table, [], []);
        let fits = fit(&node, &pod, &fleet).is_ok();
        prop_assert_eq!(fits, can_lie_together(&Geometry::empty(&table), &profiles), "{:?}", profiles);
    }
}

#[test]
fn a_held_slice_without_a_known_holder_is_taken() {
    let (id, gpu, shape) = (SliceId::new("s1"), gpu_uuid(0), h100_shape("1g.10gb", 0));
    let slice = crate::contract::WantedSlice { id, gpu, shape, reservation: None };
    let taken = |state| {
        let mut status = node_status(&["H100-80GB"]);
        let slice = crate::testing::slice_status(&slice, false);
        status.slices.push(crate::contract::SliceStatus { state, ..slice });
        NodeInventory::from_spec(&GpuNodeSpec::default(), &status).gpus[0].taken().count()
    };
    assert_eq!(taken(crate::contract::SliceState::Held), 1);
    assert_eq!(taken(crate::contract::SliceState::Idle), 0, "it is on its way out");
}
