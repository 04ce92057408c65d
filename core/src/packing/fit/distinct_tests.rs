use super::tests::{gpus, node, with};
use super::*;
use crate::contract::{GpuNodeSpec, WantedSlice};
use crate::ledger;
use crate::names::{DeviceId, PodUid};
use crate::offer::{Bindings, ExistingSlice, offer};
use crate::request::Role;
use crate::testing::{node_status, owner_in_epoch, request};
use crate::units::SizeGb;
use proptest::prelude::*;
use proptest::sample::Index;
use std::collections::BTreeMap;

/// A container of a pod: the size in its name, the count, and whether the GPUs must differ.
type Wanted = (u32, u32, bool);

fn container(number: usize, (size, count, distinct_gpus): Wanted) -> ContainerRequest {
    let name = format!("nvidia.com/gpu-{size}gb.shared");
    ContainerRequest {
        name: format!("c{number}"),
        distinct_gpus,
        ..request(&name, count).containers.remove(0)
    }
}

fn pod(wanted: &[Wanted]) -> RequestDocument {
    let containers = wanted.iter().enumerate().map(|(number, wanted)| container(number, *wanted)).collect();
    RequestDocument { containers, ..request("nvidia.com/gpu-4gb.shared", 1) }
}

fn placed(node: &NodeInventory, wanted: &[Wanted]) -> Result<Fit, Refusal> {
    fit(node, &pod(wanted), &Fleet::default())
}

fn taken(models: &[&str], sizes: &[u32]) -> NodeInventory {
    let sizes = sizes.iter().enumerate().filter(|(_, size)| **size > 0);
    sizes.fold(node(models), |node, (gpu, size)| {
        with(node, gpu, Shape::TimeSlicing { size_gb: SizeGb(*size) }, None)
    })
}

#[test]
fn several_gpus_are_different_and_offered_alone() {
    let two = taken(&["T4-16GB", "T4-16GB"], &[6, 0]);
    let any = placed(&two, &[(4, 2, false)]).unwrap();
    assert_eq!(gpus(&any), ["GPU-1", "GPU-1"], "several slices go where the fewest take turns");
    assert!(any.slices.iter().all(|slice| !slice.alone));
    let distinct = placed(&two, &[(4, 2, true)]).unwrap();
    assert_eq!(gpus(&distinct), ["GPU-1", "GPU-0"]);
    assert!(distinct.slices.iter().all(|slice| slice.alone));
    let one = placed(&two, &[(4, 1, true)]).unwrap();
    assert!(one.slices.iter().all(|slice| !slice.alone), "one GPU is no other than itself");
}

#[test]
fn a_node_with_too_few_gpus_is_refused_for_that() {
    let two = &["T4-16GB", "T4-16GB"];
    assert_eq!(placed(&node(two), &[(4, 3, true)]), Err(Refusal::TooFewGpus), "three slices would fit");
    assert_eq!(placed(&node(two), &[(12, 3, true)]), Err(Refusal::CountNeverFits));
    assert_eq!(placed(&node(two), &[(20, 2, true)]), Err(Refusal::NeverFits));
    assert_eq!(placed(&node(two), &[(4, 1, true), (20, 1, true)]), Err(Refusal::NeverFits), "one never does");
    assert_eq!(placed(&taken(two, &[14, 0]), &[(4, 2, true)]), Err(Refusal::NoRoom));
    assert_eq!(placed(&node(two), &[(4, 2, true), (4, 2, true)]), Err(Refusal::TooFewGpus));
    assert!(placed(&node(two), &[(4, 2, true), (5, 2, true)]).is_ok(), "of another name");
}

#[test]
fn a_slice_leaves_its_best_place_to_slices_that_must_be_on_different_gpus() {
    let two = taken(&["L4-24GB", "T4-16GB"], &[2, 0]);
    let alone = placed(&two, &[(10, 1, false)]).unwrap();
    assert_eq!(gpus(&alone), ["GPU-1"], "it has no neighbour there");
    let found = placed(&two, &[(10, 1, false), (8, 2, true)]).unwrap();
    assert_eq!(gpus(&found), ["GPU-0", "GPU-0", "GPU-1"], "no order of the containers finds this");
    let found = placed(&taken(&["T4-16GB", "L4-24GB"], &[0, 2]), &[(10, 1, false), (8, 2, true)]).unwrap();
    assert_eq!(gpus(&found), ["GPU-1", "GPU-0", "GPU-1"], "nor this");
}

/// Searches places for this pod on a free node, with these spreads and this number of tries.
fn searched(wanted: &[Wanted], spreads: &[(u32, Spread)], tries: Option<u32>) -> bool {
    let spreads = spreads.iter().map(|(size, spread)| (ResourceName::TimeSlicing(SizeGb(*size)), *spread));
    let (request, spreads, fleet) = (pod(wanted), spreads.collect(), Fleet::default());
    let placing = Placing {
        node: node(&["T4-16GB"; 3]),
        fleet: &fleet,
        request: &request,
        spreads: &spreads,
        together: BTreeMap::new(),
        spots: Vec::new(),
    };
    let holdings = request.holdings();
    let order: Vec<usize> = (0..wanted.len()).collect();
    let slices: Vec<usize> = order.iter().flat_map(|n| vec![*n; wanted[*n].1 as usize]).collect();
    let found = match tries {
        Some(mut tries) => placing.search_on(&holdings, &slices, &mut tries),
        None => placing.search(&holdings, &order),
    };
    found.is_some()
}

#[test]
fn each_gpu_that_is_tried_for_a_slice_counts_once() {
    let finds = |tries| searched(&[(4, 1, false)], &[], Some(tries));
    assert!(finds(1) && !finds(0));
    // The second slice is not tried before the first one's GPU, and the third not before the second one's.
    let finds = |tries| searched(&[(4, 3, true)], &[(4, Spread::DistinctGpus)], Some(tries));
    assert!(finds(5) && !finds(4));
}

#[test]
fn only_slices_of_several_names_are_searched_for_if_some_must_be_on_different_gpus() {
    let distinct = (4, Spread::DistinctGpus);
    assert!(searched(&[(4, 2, true), (5, 1, false)], &[distinct], None));
    assert!(searched(&[(4, 2, true), (5, 2, false)], &[distinct, (5, Spread::OneGpu)], None));
    assert!(!searched(&[(4, 2, true)], &[distinct], None));
    assert!(!searched(&[(4, 2, false), (5, 1, false)], &[], None));
}

#[test]
fn several_slices_of_one_name_leave_their_best_place_too() {
    let two = taken(&["L40S-48GB", "T4-16GB"], &[2, 0]);
    let found = placed(&two, &[(10, 1, false), (10, 1, false), (8, 2, true)]).unwrap();
    assert_eq!(gpus(&found), ["GPU-0", "GPU-0", "GPU-0", "GPU-1"]);
}

#[test]
fn all_slices_of_the_name_are_on_different_gpus() {
    let four = node(&["T4-16GB"; 4]);
    let found = placed(&four, &[(4, 2, true), (4, 1, false), (5, 1, false)]).unwrap();
    let of_name = found.slices.iter().filter(|slice| slice.resource.size() == Some(SizeGb(4)));
    assert_eq!(of_name.map(|slice| &slice.gpu).collect::<BTreeSet<_>>().len(), 3);
    let alone: Vec<bool> = found.slices.iter().map(|slice| slice.alone).collect();
    assert_eq!(alone, [true, true, true, false]);
}

#[test]
fn whole_gpus_are_different_anyway() {
    let mut pod = request("nvidia.com/gpu-4gb.shared", 2);
    (pod.containers[0].resource, pod.containers[0].distinct_gpus) = (ResourceName::Whole, true);
    pod.containers[0].size_gb = SizeGb(10);
    let found = fit(&node(&["T4-16GB", "T4-16GB"]), &pod, &Fleet::default()).unwrap();
    assert_eq!(gpus(&found), ["GPU-0", "GPU-1"]);
    assert!(found.slices.iter().all(|slice| !slice.alone));
    assert_eq!(fit(&node(&["T4-16GB"]), &pod, &Fleet::default()), Err(Refusal::CountNeverFits));
    pod.containers.push(container(1, (4, 1, false)));
    let beside_another = fit(&node(&["T4-16GB"; 3]), &pod, &Fleet::default()).unwrap();
    assert!(beside_another.slices.iter().all(|slice| !slice.alone));
}

/// Whether all these slices find a place, by trying every GPU for every slice.
fn has_places(free: &mut [u64], on: &mut Vec<(u32, usize)>, slices: &[(u32, bool)]) -> bool {
    let [(size, distinct), others @ ..] = slices else { return true };
    let memory = SizeGb(*size).share_memory().0;
    (0..free.len()).any(|gpu| {
        if free[gpu] < memory || *distinct && on.contains(&(*size, gpu)) {
            return false;
        }
        free[gpu] -= memory;
        on.push((*size, gpu));
        let found = has_places(free, on, others);
        on.pop();
        free[gpu] += memory;
        found
    })
}

fn wanted(counts: std::ops::Range<u32>) -> impl Strategy<Value = Wanted> {
    (prop::sample::select(vec![4_u32, 6, 8, 12]), counts, prop::bool::weighted(0.6))
}

proptest! {
    #[test]
    fn a_place_is_found_if_there_is_one_and_no_gpu_serves_a_container_twice(
        wanted in prop::collection::vec(wanted(1..3), 1..3),
        used in prop::collection::vec(0_u32..15, 1..4),
    ) {
        let node = taken(&["T4-16GB"; 3][..used.len()], &used);
        let is_distinct = |size| wanted.iter().any(|(other, count, distinct)| *other == size && *distinct && *count > 1);
        let slices: Vec<(u32, bool)> = wanted.iter()
            .flat_map(|(size, count, _)| vec![(*size, is_distinct(*size)); *count as usize]).collect();
        let mut free: Vec<u64> = node.gpus.iter()
            .map(|gpu| gpu.for_shares().0 - gpu.taken().map(|taken| taken.size().share_memory().0).sum::<u64>()).collect();
        let found = placed(&node, &wanted);
        if slices.iter().any(|(_, distinct)| *distinct) {
            prop_assert_eq!(found.is_ok(), has_places(&mut free, &mut Vec::new(), &slices), "{:?}", found);
        }
        for (number, (_, count, distinct)) in wanted.iter().enumerate() {
            let of = found.iter().flat_map(|fit| &fit.slices).filter(|slice| slice.container == format!("c{number}"));
            let different: BTreeSet<&GpuUuid> = of.map(|slice| &slice.gpu).collect();
            prop_assert!(found.is_err() || !distinct || different.len() == *count as usize);
        }
    }
}

/// The kubelet's device manager on a node; it may pick any device that it is offered.
struct Kubelet {
    spec: GpuNodeSpec,
    /// The name under which each slice is held.
    held: BTreeMap<SliceId, ResourceName>,
    /// Its picks among several devices.
    picks: Vec<Index>,
}

impl Kubelet {
    fn offered(&self) -> crate::offer::Offer {
        let existing = |slice: &WantedSlice| ExistingSlice {
            id: slice.id.clone(),
            device: DeviceId::new(slice.id.as_str()),
            shape: slice.shape,
            model: "T4-16GB".to_owned(),
            held_as: self.held.get(&slice.id).copied(),
            settled: self.held.contains_key(&slice.id),
            served: true,
            reservation: slice.reservation.clone(),
        };
        offer(&self.spec.slices.iter().map(existing).collect::<Vec<_>>(), &[], &Bindings::default())
    }

    fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        let index = self.picks.remove(0);
        self.picks.push(index);
        index.get(from).clone()
    }

    /// The GPUs that each container gets if all slices of the pod are offered now.
    fn admit(&mut self, document: &RequestDocument, uid: &PodUid) -> Option<Vec<Vec<GpuUuid>>> {
        let offered = self.offered();
        if ledger::reserved(&self.spec, uid).any(|slice| offered.waiting.contains(&slice.id)) {
            return None;
        }
        let mut reusable: BTreeMap<ResourceName, BTreeSet<SliceId>> = BTreeMap::new();
        let (mut all, mut all_given) = (Vec::new(), BTreeSet::new());
        for container in &document.containers {
            let name = container.resource;
            let mut given: BTreeSet<SliceId> = BTreeSet::new();
            while given.len() < container.count as usize {
                let handed_on = reusable.entry(name).or_default().difference(&given).cloned();
                let mut from: Vec<SliceId> = handed_on.collect();
                if from.is_empty() {
                    let healthy = offered.healthy.get(&name).into_iter().flatten();
                    let healthy = healthy.map(|device| SliceId::new(device.as_str()));
                    from = healthy.filter(|id| !self.held.contains_key(id)).collect();
                }
                let id = self.pick(&from);
                self.held.insert(id.clone(), name);
                given.insert(id);
            }
            let reusable = reusable.entry(name).or_default();
            match container.role {
                Role::Init => reusable.extend(given.iter().cloned()),
                Role::App | Role::Sidecar => reusable.retain(|id| !given.contains(id)),
            }
            let gpu =
                |id: &SliceId| self.spec.slices.iter().find(|slice| slice.id == *id).unwrap().gpu.clone();
            all_given.extend(given.iter().cloned());
            all.push(given.iter().map(gpu).collect());
        }
        self.follow(uid, &all_given);
        Some(all)
    }

    /// Exchanges reservations if the kubelet has picked a slice that is reserved for another pod, as
    /// `ledger::follow_holders` does.
    fn follow(&mut self, uid: &PodUid, given: &BTreeSet<SliceId>) {
        for id in given {
            let is_own = |slice: &WantedSlice| slice.reservation.as_ref().is_some_and(|r| r.uid == *uid);
            let slices = &mut self.spec.slices;
            let here = slices.iter().position(|slice| slice.id == *id).unwrap();
            if is_own(&slices[here]) {
                continue;
            }
            let name = slices[here].reservation.as_ref().map(|r| r.resource);
            let of_name = |slice: &WantedSlice| slice.reservation.as_ref().map(|r| r.resource) == name;
            let there =
                slices.iter().position(|s| is_own(s) && of_name(s) && !given.contains(&s.id)).unwrap();
            let other = slices[here].reservation.take();
            slices[here].reservation = std::mem::replace(&mut slices[there].reservation, other);
        }
    }
}

proptest! {
    #[test]
    fn each_container_has_different_gpus_whatever_the_kubelet_picks(
        pods in prop::collection::vec((prop::collection::vec((wanted(1..4), 0_usize..3), 1..4), any::<Index>()), 1..6),
        picks in prop::collection::vec(any::<Index>(), 8..16),
    ) {
        let status = node_status(&["T4-16GB"; 4]);
        let mut kubelet = Kubelet { spec: GpuNodeSpec::default(), held: BTreeMap::new(), picks };
        let mut waiting = Vec::new();
        for (number, (containers, _)) in pods.iter().enumerate() {
            let roles = [Role::App, Role::Init, Role::Sidecar];
            let mut document = pod(&containers.iter().map(|(wanted, _)| *wanted).collect::<Vec<_>>());
            document.containers.iter_mut().zip(containers).for_each(|(c, (_, role))| c.role = roles[*role]);
            document.containers.sort_by_key(|container| container.role.is_app());
            let owner = owner_in_epoch(&number.to_string());
            let reserved = ledger::reserve(&kubelet.spec, &status, &document, &owner, &Fleet::default());
            if let Ok(spec) = reserved {
                kubelet.spec = spec;
                waiting.push((document, owner.uid));
            }
        }
        while !waiting.is_empty() {
            let first = kubelet.picks[0].index(waiting.len());
            let order = (0..waiting.len()).map(|at| (first + at) % waiting.len());
            let admitted = order.into_iter().find_map(|at| {
                let (document, uid) = &waiting[at];
                Some((at, kubelet.admit(document, uid)?))
            });
            prop_assert!(admitted.is_some(), "all wait for each other: {:?}", kubelet.offered());
            let (at, gpus) = admitted.unwrap();
            let (document, _) = waiting.remove(at);
            for (container, gpus) in document.containers.iter().zip(gpus) {
                let different: BTreeSet<&GpuUuid> = gpus.iter().collect();
                prop_assert!(!container.distinct_gpus || different.len() == gpus.len(), "{container:?} on {gpus:?}");
            }
        }
    }
}
