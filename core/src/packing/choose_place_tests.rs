//! The kind and the node that a pod gets if several can serve it.

use super::*;
use crate::contract::{ContainerRequest, GpuNodeSpec, RequestDocument, Shape};
use crate::inventory::{NodeInventory, Occupancy, PlacedSlice};
use crate::kind::Kind;
use crate::names::NodeName;
use crate::packing::{Fleet, fit};
use crate::resource::{ResourceName, share_size};
use crate::testing::{choose_among, h100_shape, node_status, request, request_sized};
use crate::units::{ComputePercent, MemoryMib, SizeGb};
use Kind::{Mig, Mps, TimeSlicing, Whole};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// A node with GPUs of these models, each serving these kinds. Its kubelet has registered all neutral names.
fn node(gpus: &[(&str, &[Kind])]) -> NodeInventory {
    let models: Vec<&str> = gpus.iter().map(|(model, _)| *model).collect();
    let mut node = NodeInventory::from_spec(&GpuNodeSpec::default(), &node_status(&models));
    for (gpu, (_, kinds)) in node.gpus.iter_mut().zip(gpus) {
        gpu.kinds = kinds.to_vec();
    }
    node.neutral_up_to = Some(SizeGb(278));
    node
}

fn h100() -> NodeInventory {
    node(&[("H100-80GB", &[Mig])])
}

fn taken(mut node: NodeInventory, gpu: usize, shape: Shape) -> NodeInventory {
    node.gpus[gpu].slices.push(PlacedSlice { shape, occupancy: Occupancy::Taken });
    node
}

/// A pod with one slice of this size in one container, requested by the neutral name of `step`.
fn neutral(step: u32, size: u32, kinds: &[Kind]) -> RequestDocument {
    let mut pod = request_sized(ResourceName::Neutral(SizeGb(step)), SizeGb(size), 1);
    pod.containers[0].kinds = kinds.to_vec();
    pod
}

/// One pod with the containers of all these pods.
fn together(pods: &[RequestDocument]) -> RequestDocument {
    let containers = pods.iter().flat_map(|pod| pod.containers.clone());
    let named = containers.zip(0..).map(|(c, n)| ContainerRequest { name: format!("c{n}"), ..c });
    RequestDocument { containers: named.collect(), ..pods[0].clone() }
}

/// A selection without the costs.
struct Chosen<'n> {
    best: Option<(&'n str, Place)>,
    equal: Vec<&'n str>,
    outranked: Vec<&'n str>,
    refused: Vec<(&'n str, Refusal)>,
}

fn choose<'n>(request: &RequestDocument, nodes: &'n [(NodeName, NodeInventory)]) -> Chosen<'n> {
    let of = choose_among(request, nodes.iter().map(|(name, node)| (name, node)), &Fleet::default());
    Chosen {
        best: of.best.map(|(name, place)| (name.as_str(), place)),
        equal: of.equal.into_iter().map(|(name, _)| name.as_str()).collect(),
        outranked: of.outranked.into_iter().map(NodeName::as_str).collect(),
        refused: of.refused.into_iter().map(|(name, refusal)| (name.as_str(), refusal)).collect(),
    }
}

fn named(nodes: Vec<(&str, NodeInventory)>) -> Vec<(NodeName, NodeInventory)> {
    nodes.into_iter().map(|(name, node)| (NodeName::new(name), node)).collect()
}

fn best(request: &RequestDocument, nodes: &[(NodeName, NodeInventory)]) -> Option<String> {
    choose(request, nodes).best.map(|(name, _)| name.to_owned())
}

fn shape(node: &NodeInventory, request: &RequestDocument) -> Result<String, Refusal> {
    Ok(fit(node, request, &Fleet::default())?.slices[0].shape.to_string())
}

#[test]
fn the_first_kind_that_some_node_has_room_for_is_taken() {
    let mut nodes = named(vec![
        ("m", h100()),
        ("s", node(&[("L40S-48GB", &[Mps])])),
        ("t", node(&[("L40S-48GB", &[TimeSlicing])])),
        ("w", node(&[("T4-16GB", &[Whole])])),
    ]);
    let pod = neutral(10, 10, &[Mig, Mps, Whole]);
    let all = choose(&pod, &nodes);
    assert_eq!(all.best.map(|(name, place)| (name, place.rank)), Some(("m", Rank::BEST)));
    assert_eq!((all.equal, all.outranked), (vec!["m"], vec!["s", "w"]));
    assert_eq!(all.refused, [("t", Refusal::NeverFits)]);
    assert_eq!(best(&neutral(10, 10, &[TimeSlicing, Mig]), &nodes).as_deref(), Some("t"));
    assert_eq!(best(&neutral(10, 10, &[Whole, Mig]), &nodes).as_deref(), Some("w"));
    nodes[0].1 = taken(nodes[0].1.clone(), 0, h100_shape("7g.80gb", 0));
    let full = choose(&pod, &nodes);
    let (name, place) = full.best.unwrap();
    assert_eq!((name, place.rank.plan(&pod).unwrap().kind(pod.containers[0].resource)), ("s", Some(Mps)));
    assert_eq!((full.equal, full.outranked), (vec!["s"], vec!["w"]));
    assert_eq!(full.refused, [("m", Refusal::NoRoom), ("t", Refusal::NeverFits)]);
}

#[test]
fn a_node_of_several_kinds_takes_the_first_that_fits_there() {
    let mixed = node(&[("H100-80GB", &[Mig]), ("L40S-48GB", &[Mps, TimeSlicing])]);
    let pod = neutral(10, 10, &[Mig, TimeSlicing, Mps]);
    let places = |node: &NodeInventory| fit(node, &pod, &Fleet::default()).map(|fit| (fit.rank, fit.slices));
    let (rank, slices) = places(&mixed).unwrap();
    assert_eq!((rank, slices[0].shape.kind()), (Rank::BEST, Mig));
    assert_eq!(slices[0].resource, ResourceName::Neutral(SizeGb(10)), "the pod keeps its name");
    let full = taken(mixed, 0, h100_shape("7g.80gb", 0));
    let (rank, slices) = places(&full).unwrap();
    assert_eq!((rank, slices[0].shape), (Rank::from_position(1), Shape::TimeSlicing { size_gb: SizeGb(10) }));
    let shared = taken(full, 1, Shape::mps(SizeGb(4)));
    assert_eq!(places(&shared).unwrap().1[0].shape, Shape::mps(SizeGb(10)), "it is shared by MPS already");
}

#[test]
fn the_first_node_by_name_wins_among_equal_places() {
    let pod = neutral(10, 10, &[Mig, Mps]);
    let cut = taken(h100(), 0, h100_shape("1g.10gb", 6));
    for order in [["a", "b", "c"], ["c", "b", "a"]] {
        let all = named(order.into_iter().map(|name| (name, h100())).collect());
        let chosen = choose(&pod, &all);
        assert_eq!((chosen.best.unwrap().0, chosen.equal), ("a", vec!["a", "b", "c"]));
    }
    let one_is_cut = named(vec![("a", h100()), ("b", cut)]);
    let chosen = choose(&pod, &one_is_cut);
    assert_eq!(
        (chosen.best.unwrap().0, chosen.equal),
        ("b", vec!["a", "b"]),
        "the dearer one is of its rank"
    );
}

#[test]
fn costs_decide_among_places_of_one_rank_only() {
    let place = |(rank, cost)| Ok(Place { rank: Rank::from_position(rank), cost: Cost(cost) });
    let of = |places: &[(usize, i64)]| choose_place(0..places.len(), |node| place(places[node]));
    let chosen = of(&[(1, 0), (0, 9), (0, 5), (0, 5), (2, -7)]);
    assert_eq!(chosen.best.map(|(node, _)| node), Some(2));
    let equal = vec![(1, Cost(9)), (2, Cost(5)), (3, Cost(5))];
    assert_eq!((chosen.equal, chosen.outranked, chosen.refused), (equal, vec![0, 4], vec![]));
    let none = choose_place([3, 1], |_| Err(Refusal::NoRoom));
    assert_eq!((none.best, none.refused), (None, vec![(3, Refusal::NoRoom), (1, Refusal::NoRoom)]));
}

#[test]
fn the_shortlist_has_the_cheapest_nodes_and_spreads_equal_ones() {
    let list = |costs: &[i64], most| {
        let place = |node: usize| Ok(Place { rank: Rank::BEST, cost: Cost(costs[node]) });
        choose_place(0..costs.len(), place).shortlist(most)
    };
    assert_eq!(list(&[3, 1, 2], 3), [0, 1, 2], "no more than may be: as they came");
    let mut two_of_three_costs = list(&[7, 1, 9, 3, 3], 3);
    two_of_three_costs.sort_unstable();
    assert_eq!(two_of_three_costs, [1, 3, 4]);
    assert_eq!(list(&[0; 41], 5), [0, 1, 11, 21, 31]);
    assert_eq!(list(&[5, 0, 0, 0, 5, 0, 0], 4), [1, 2, 3, 5]);
    assert_eq!(list(&[0, 5, 0, 0], 3), [0, 2, 3], "there are as many as may be");
    assert_eq!(list(&[2, 2, 1], 1), [2]);
    assert_eq!(list(&[], 8), [0_usize; 0]);
}

#[test]
fn a_policy_rules_kinds_out_by_model() {
    let nodes = named(vec![("h", h100()), ("l", node(&[("L40S-48GB", &[Mps, TimeSlicing])]))]);
    let pod = |rules: &[(&str, &[Kind])]| RequestDocument {
        kinds_by_model: rules.iter().map(|(model, kinds)| ((*model).to_owned(), kinds.to_vec())).collect(),
        ..neutral(10, 10, &[Mig, Mps, TimeSlicing])
    };
    assert_eq!(best(&pod(&[("L40S-48GB", &[TimeSlicing])]), &nodes).as_deref(), Some("h"));
    let no_mig = pod(&[("H100-80GB", &[Mps]), ("L40S-48GB", &[TimeSlicing])]);
    assert_eq!(best(&no_mig, &nodes).as_deref(), Some("l"));
    assert_eq!(shape(&nodes[1].1, &no_mig).unwrap(), "10gb time slice");
    assert_eq!(shape(&nodes[0].1, &no_mig), Err(Refusal::NeverFits));
    let mixed = node(&[("L40S-48GB", &[Mps]), ("L4-24GB", &[Mps])]);
    let on = fit(&mixed, &pod(&[("L40S-48GB", &[Mig])]), &Fleet::default()).unwrap();
    assert_eq!(on.slices[0].gpu, mixed.gpus[1].uuid);
}

#[test]
fn each_name_has_its_kind_and_all_containers_of_a_name_have_the_same() {
    let pod = together(&[neutral(10, 10, &[Mig, Mps]), neutral(20, 20, &[Mps, Mig])]);
    let mixed = node(&[("H100-80GB", &[Mig]), ("L40S-48GB", &[Mps])]);
    let kinds = |pod: &RequestDocument, node: &NodeInventory| {
        let fit = fit(node, pod, &Fleet::default()).unwrap();
        fit.slices.iter().map(|slice| slice.shape.kind()).collect::<Vec<_>>()
    };
    assert_eq!(kinds(&pod, &mixed), [Mig, Mps]);
    assert_eq!(kinds(&pod, &h100()), [Mig, Mig]);
    let beside_a_profile = together(&[neutral(10, 10, &[Mps, Mig]), request("nvidia.com/mig-1g.10gb", 1)]);
    assert_eq!(kinds(&beside_a_profile, &h100()), [Mig, Mig]);
    // One name must not be half MIG and half MPS, because the kubelet could exchange the slices.
    let six = (0..6).fold(mixed, |node, start| taken(node, 0, h100_shape("1g.10gb", start)));
    let two = together(&[neutral(10, 10, &[Mig, Mps]), neutral(10, 10, &[Mig, Mps])]);
    assert_eq!(kinds(&two, &six), [Mps, Mps]);
    let unlike = together(&[neutral(10, 10, &[Mig, Mps]), neutral(10, 10, &[Mps])]);
    assert_eq!(kinds(&unlike, &six), [Mps, Mps]);
    assert_eq!(shape(&h100(), &unlike), Err(Refusal::NeverFits));
    let apart = together(&[neutral(10, 10, &[Mig]), neutral(10, 10, &[Mps])]);
    assert_eq!(shape(&six, &apart), Err(Refusal::NeverFits), "no kind serves both");
}

#[test]
fn slices_of_a_bucket_are_as_large_as_the_largest_request_of_the_pod() {
    let pod = |sizes: [u32; 2]| together(&sizes.map(|size| neutral(40, size, &[Mig, Mps])));
    let sizes = |node: &NodeInventory, asked| {
        let fit = fit(node, &pod(asked), &Fleet::default()).unwrap();
        fit.slices.iter().map(|slice| slice.shape.size().0).collect::<Vec<_>>()
    };
    let mig = node(&[("H200-141GB", &[Mig])]);
    assert_eq!(sizes(&mig, [33, 34]), [35, 35]);
    assert_eq!(
        sizes(&mig, [33, 40]),
        [71, 71],
        "the kubelet may give the container with 40 GB the other's slice"
    );
    assert_eq!(sizes(&node(&[("H200-141GB", &[Mps])]), [33, 34]), [40, 40]);
}

#[test]
fn a_neutral_request_may_ask_for_memory_compute_and_a_profile() {
    let mut exact = neutral(20, 20, &[Mig]);
    exact.containers[0].profile = "1g.20gb".parse().ok();
    let busy = taken(h100(), 0, h100_shape("1g.10gb", 6));
    assert_eq!(shape(&busy, &neutral(20, 20, &[Mig])).unwrap(), "2g.20gb at 4:2");
    assert_eq!(shape(&busy, &exact).unwrap(), "1g.20gb at 4:2");
    exact.containers[0].size_gb = SizeGb(21);
    assert_eq!(shape(&busy, &exact), Err(Refusal::NeverFits), "another container of the name needs more");
    let mut strict = neutral(14, 13, &[Mig, Mps]);
    strict.containers[0].memory = Some(MemoryMib(14 * 1024 + 1));
    assert_eq!(shape(&node(&[("L40S-48GB", &[Mps])]), &strict).unwrap(), "16gb MPS share");
    let mut compute = neutral(10, 10, &[Mps, Mig]);
    compute.containers[0].compute = ComputePercent::new(40);
    assert_eq!(shape(&h100(), &compute).unwrap(), "3g.40gb at 4:4");
}

#[test]
fn a_whole_gpu_serves_a_neutral_name_for_more_than_half_of_it() {
    let t4 = node(&[("T4-16GB", &[Whole, Mps]), ("T4-16GB", &[Whole])]);
    assert_eq!(shape(&t4, &neutral(10, 10, &[Whole, Mps])).unwrap(), "whole GPU of 15 GB");
    assert_eq!(shape(&t4, &neutral(7, 7, &[Whole, Mps])).unwrap(), "7gb MPS share");
    let mut two = neutral(10, 10, &[Whole]);
    (two.containers[0].count, two.containers[0].distinct_gpus) = (2, true);
    let fit = fit(&t4, &two, &Fleet::default()).unwrap();
    assert!(fit.slices.iter().all(|slice| !slice.alone), "whole GPUs are different ones anyway");
    assert_eq!(fit.slices.iter().map(|slice| &slice.gpu).collect::<BTreeSet<_>>().len(), 2);
}

#[test]
fn several_mps_shares_of_a_neutral_name_are_on_one_gpu() {
    let pod = |kinds: &[Kind]| {
        let mut pod = neutral(7, 7, kinds);
        pod.containers[0].count = 2;
        pod
    };
    let two = taken(node(&[("T4-16GB", &[Mps, TimeSlicing][..]); 2]), 0, Shape::mps(SizeGb(4)));
    let gpus = |kinds: &[Kind]| {
        let fit = fit(&two, &pod(kinds), &Fleet::default()).unwrap();
        fit.slices.iter().map(|slice| (slice.gpu.to_string(), slice.alone)).collect::<Vec<_>>()
    };
    assert_eq!(gpus(&[Mps, TimeSlicing]), [("GPU-1".into(), true), ("GPU-1".into(), true)]);
    assert_eq!(gpus(&[TimeSlicing, Mps]), [("GPU-1".into(), false), ("GPU-1".into(), false)]);
}

#[test]
fn a_node_must_have_registered_the_name_and_have_user_namespaces_if_needed() {
    let pod = together(&[neutral(10, 10, &[Mig]), neutral(20, 20, &[Mig])]);
    for (up_to, registered) in [(None, false), (Some(10), false), (Some(20), true), (Some(48), true)] {
        let node = NodeInventory { neutral_up_to: up_to.map(SizeGb), ..h100() };
        let expected = if registered { Ok("1g.10gb at 6:1".into()) } else { Err(Refusal::NameNotRegistered) };
        assert_eq!(shape(&node, &pod), expected, "{up_to:?}");
        assert!(shape(&node, &request("nvidia.com/mig-1g.10gb", 1)).is_ok(), "its own names are known");
    }
    let isolated = RequestDocument { user_namespace: true, ..pod };
    for (known, expected) in
        [(None, None), (Some(true), None), (Some(false), Some(Refusal::NoUserNamespaces))]
    {
        let node = NodeInventory { user_namespaces: known, ..h100() };
        assert_eq!(shape(&node, &isolated).err(), expected);
    }
    let neither = NodeInventory { neutral_up_to: None, user_namespaces: Some(false), ..h100() };
    assert_eq!(shape(&neither, &isolated), Err(Refusal::NameNotRegistered));
}

#[test]
fn a_node_that_is_full_by_any_plan_is_full() {
    let full = taken(node(&[("H100-80GB", &[Mig]), ("T4-16GB", &[Mps])]), 0, h100_shape("7g.80gb", 0));
    for kinds in [[Mig, Mps], [Mps, Mig]] {
        assert_eq!(shape(&full, &neutral(40, 40, &kinds)), Err(Refusal::NoRoom), "{kinds:?}");
    }
    let mut many = neutral(10, 10, &[TimeSlicing, Mps, Mig]);
    many.containers[0].count = 9;
    assert_eq!(shape(&full, &many), Err(Refusal::CountNeverFits), "no GPU shares by time");
}

/// Nodes for the properties: each has one or two GPUs, and on some GPUs a slice is taken.
fn nodes() -> impl Strategy<Value = Vec<(NodeName, NodeInventory)>> {
    let gpu = (0_usize..5, 0_usize..6);
    let node = prop::collection::vec(gpu, 1..3).prop_map(|gpus| {
        let of = [
            ("H100-80GB", &[Mig][..]),
            ("A30-24GB", &[Mig]),
            ("L40S-48GB", &[Mps, TimeSlicing]),
            ("T4-16GB", &[Whole, Mps]),
            ("L4-24GB", &[TimeSlicing, Whole]),
        ];
        let models: Vec<_> = gpus.iter().map(|(model, _)| of[*model]).collect();
        let shapes = |model: usize| match model {
            0 => ["7g.80gb", "4g.40gb", "3g.40gb", "1g.10gb"].map(|profile| h100_shape(profile, 0)).to_vec(),
            1 => vec![],
            2 => vec![Shape::mps(SizeGb(40)), Shape::TimeSlicing { size_gb: SizeGb(32) }],
            3 => vec![Shape::Whole { size_gb: SizeGb(15) }, Shape::mps(SizeGb(8))],
            _ => vec![Shape::TimeSlicing { size_gb: SizeGb(18) }],
        };
        let used =
            gpus.iter().enumerate().filter_map(|(at, (model, used))| Some((at, *shapes(*model).get(*used)?)));
        used.fold(node(&models), |node, (at, shape)| taken(node, at, shape))
    });
    prop::collection::vec(node, 1..7).prop_map(|nodes| {
        nodes.into_iter().zip(0..).map(|(node, number)| (NodeName::new(format!("n{number}")), node)).collect()
    })
}

fn kinds() -> impl Strategy<Value = Vec<Kind>> {
    let shuffled = Just(Kind::ALL.to_vec()).prop_shuffle();
    (shuffled, 1_usize..5).prop_map(|(kinds, count)| kinds[..count].to_vec())
}

/// Pods of one to three containers with neutral names and names of one kind.
fn pods() -> impl Strategy<Value = RequestDocument> {
    let sizes = prop::sample::select(vec![(6_u32, 5_u32), (6, 6), (10, 10), (14, 13), (24, 24), (40, 40)]);
    let neutral = (sizes, kinds()).prop_map(|((step, size), kinds)| neutral(step, size, &kinds));
    let own = prop::sample::select(vec!["nvidia.com/mig-1g.10gb", "nvidia.com/gpu-6gb"]);
    let own = own.prop_map(|name| request(name, 1));
    let container = prop_oneof![4 => neutral, 1 => own];
    let rules =
        prop::collection::btree_map(prop::sample::select(vec!["H100-80GB", "L40S-48GB"]), kinds(), 0..2);
    (prop::collection::vec(container, 1..4), rules).prop_map(|(pods, rules)| RequestDocument {
        kinds_by_model: rules.into_iter().map(|(model, kinds)| (model.to_owned(), kinds)).collect(),
        ..together(&pods)
    })
}

/// Every combination of the kinds of all names, counted like the digits of a number: the first name's first kind comes
/// first.
fn every_plan(pod: &RequestDocument) -> Vec<RequestDocument> {
    let mut all = vec![pod.clone()];
    for container in &pod.containers {
        let name = container.resource;
        all = all
            .into_iter()
            .flat_map(|pod| {
                let first = pod.containers.iter().find(|c| c.resource == name).unwrap().kinds.clone();
                let same = pod.containers.iter().filter(|c| c.resource == name);
                let done = !name.is_neutral() || same.clone().all(|c| c.kinds.len() == 1 && c.kinds == first);
                let common = first.into_iter().filter(|kind| same.clone().all(|c| c.kinds.contains(kind)));
                let narrowed = common.map(|kind| {
                    let mut narrowed = pod.clone();
                    narrowed
                        .containers
                        .iter_mut()
                        .filter(|c| c.resource == name)
                        .for_each(|c| c.kinds = vec![kind]);
                    narrowed
                });
                if done { vec![pod.clone()] } else { narrowed.collect() }
            })
            .collect();
    }
    all
}

/// The pod's request by the name of its planned kind on this model; `None` if the model has no such name.
fn by_own_name(pod: &RequestDocument, node: &NodeInventory) -> Option<RequestDocument> {
    let mut own = pod.clone();
    for container in &mut own.containers {
        let size = container.size_gb;
        container.resource = match (container.resource, container.kinds.as_slice()) {
            (ResourceName::Neutral(_), [Mig]) => {
                let entries = node.gpus[0].table.entries().iter().map(|entry| entry.profile);
                let serving = entries.filter(|profile| profile.is_plain() && profile.size() >= size);
                ResourceName::Mig(serving.min_by_key(|profile| (profile.compute(), profile.size()))?)
            }
            (ResourceName::Neutral(_), [Mps]) => ResourceName::Mps(share_size(size)?),
            (ResourceName::Neutral(_), [TimeSlicing]) => ResourceName::TimeSlicing(share_size(size)?),
            (ResourceName::Neutral(_), _) => ResourceName::Whole,
            (own, _) => own,
        };
    }
    Some(own)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]
    #[test]
    fn the_best_of_all_nodes_and_plans_is_found(nodes in nodes(), pod in pods()) {
        let plans = every_plan(&pod);
        prop_assert_eq!(crate::packing::plans(&pod).len(), plans.len());
        let mut best: Option<(usize, Cost, &NodeName)> = None;
        let mut ranks: BTreeMap<&str, Option<usize>> = BTreeMap::new();
        for (name, node) in &nodes {
            let of_node = plans.iter().enumerate()
                .filter_map(|(rank, plan)| Some((rank, fit(node, plan, &Fleet::default()).ok()?.cost, name)));
            let of_node: Vec<_> = of_node.collect();
            ranks.insert(name.as_str(), of_node.first().map(|(rank, ..)| *rank));
            best = best.into_iter().chain(of_node).min();
        }
        let chosen = choose(&pod, &nodes);
        let expected = best.map(|(rank, cost, name)| (name.as_str(), Place { rank: Rank::from_position(rank), cost }));
        prop_assert_eq!(chosen.best, expected);
        let of = |test: &dyn Fn(Option<usize>) -> bool| -> Vec<&str> {
            ranks.iter().filter(|(_, rank)| test(**rank)).map(|(name, _)| *name).collect()
        };
        let least = best.map(|(rank, ..)| rank);
        prop_assert_eq!(chosen.equal, of(&|rank| rank.is_some() && rank == least));
        prop_assert_eq!(chosen.outranked, of(&|rank| rank.is_some() && rank != least));
        prop_assert_eq!(chosen.refused.iter().map(|(name, _)| *name).collect::<Vec<_>>(), of(&|rank| rank.is_none()));
    }

    #[test]
    fn a_planned_kind_is_placed_as_its_own_name_is(nodes in nodes(), size in 1_u32..80, kind in 0_usize..4) {
        let step = crate::resource::neutral_size(SizeGb(size)).unwrap();
        let pod = neutral(step.0, size, &[Kind::ALL[kind]]);
        for (_, node) in nodes.iter().filter(|(_, node)| node.gpus.len() == 1) {
            let placed = |pod: &RequestDocument| fit(node, pod, &Fleet::default());
            let own = by_own_name(&pod, node).ok_or(Refusal::NeverFits).and_then(|own| placed(&own));
            let own = own.map(|mut own| {
                own.slices[0].resource = pod.containers[0].resource;
                own
            });
            prop_assert_eq!(placed(&pod), own);
        }
    }
}
