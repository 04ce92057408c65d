use super::demand::Demand;
use super::*;
use crate::units::MemoryMib;
use proptest::prelude::*;

const GIB: u64 = 1024;

fn models() -> [ModelId; 2] {
    let mut models = Models::default();
    [models.intern("T4").unwrap(), models.intern("A100").unwrap()]
}

fn pod(cores: u32, gpus: GpuDemand) -> Request {
    Request { cpu: CpuMilli(1000 * cores), memory: MemoryMib(GIB), gpus, models: ModelSet::ANY }
}

fn part(share: u16) -> GpuDemand {
    GpuDemand::Part(mps(share))
}

fn mps(share: u16) -> Part {
    Part::new(GpuMilli(share), Sharing::Mps).unwrap()
}

fn of_model(request: Request, model: ModelId) -> Request {
    Request { models: [model].into_iter().collect(), ..request }
}

fn node(cores: u32, gpus: usize) -> Node {
    Node::new(CpuMilli(1000 * cores), MemoryMib(1024 * GIB), models()[0], gpus)
}

/// A workload with each request this many times.
fn workload(requests: &[(Request, usize)]) -> Workload {
    Workload::known(requests.iter().flat_map(|(request, times)| std::iter::repeat_n(request, *times)))
}

/// Nodes for a workload, with these requests already taken on each.
fn fleet(workload: Workload, nodes: &[(Node, &[(Request, usize)])]) -> (Nodes, Vec<NodeId>) {
    let mut fleet = Nodes::new(workload);
    let ids = nodes.iter().map(|(node, _)| fleet.add(node.clone())).collect::<Vec<_>>();
    for (id, (_, taken)) in ids.iter().zip(nodes) {
        for (request, gpu) in *taken {
            let on = if request.gpus == GpuDemand::None {
                GpuSet::default()
            } else {
                [*gpu].into_iter().collect()
            };
            fleet.take(*id, request, on).unwrap();
        }
    }
    (fleet, ids)
}

#[track_caller]
fn goes_to(fleet: &mut Nodes, request: &Request, node: usize, gpus: &[usize]) {
    let place = fleet.place(request).unwrap();
    assert_eq!((place.node.index(), place.gpus.iter().collect::<Vec<_>>()), (node, gpus.to_vec()));
}

#[test]
fn a_set_has_the_gpus_that_a_node_may_have() {
    let set = |gpus: &[usize]| gpus.iter().copied().collect::<GpuSet>();
    assert!(set(&[]).is_empty() && set(&[GPUS_LIMIT]).is_empty());
    assert!(!set(&[0]).is_empty() && !set(&[GPUS_LIMIT - 1]).is_empty());
    assert_eq!(set(&[GPUS_LIMIT - 1, 0, 2]).iter().collect::<Vec<_>>(), [0, 2, GPUS_LIMIT - 1]);
    assert_eq!(set(&[1, 2]).len(), 2);
}

#[test]
fn a_node_has_at_most_its_size_left() {
    let node = node(16, 1);
    let left = |cores: u32, gib: u64| {
        let node = node.clone().with_left(CpuMilli(1000 * cores), MemoryMib(gib * GIB));
        (node.cpu().0 / 1000, node.memory().0 / GIB)
    };
    assert_eq!((left(3, 5), left(20, 5), left(3, 2000)), ((3, 5), (16, 5), (3, 1024)));
}

/// A replaced node counts with its new size and model at once.
#[test]
fn a_fleet_is_valued_anew_when_a_node_is_replaced_by_another_sort() {
    let [t4, a100] = models();
    let request = of_model(pod(1, GpuDemand::whole(1)), a100);
    let with =
        |cores: u32, model, gpus| Node::new(CpuMilli(1000 * cores), MemoryMib(1024 * GIB), model, gpus);
    let sort = |cores, model| with(cores, model, 4);
    let known = || workload(&[(request, 1), (pod(8, GpuDemand::whole(1)), 3)]);
    for other in [sort(16, a100), sort(64, a100), sort(16, t4), with(64, t4, 8)] {
        let mut fresh = Nodes::new(known());
        let same = [sort(64, a100), other.clone()].map(|node| fresh.add(node));
        for is_removed_before in [false, true] {
            let mut replaced = Nodes::new(known());
            let ids = [sort(64, a100), sort(64, t4)].map(|node| replaced.add(node));
            replaced.costs(&request);
            if is_removed_before {
                replaced.remove(ids[1]);
            }
            replaced.set(ids[1], other.clone());
            assert_eq!(replaced.costs(&request).on_node(ids[0]), fresh.costs(&request).on_node(same[0]));
        }
    }
}

#[test]
fn usable_parts_are_counted_as_in_fgd() {
    let requests =
        [(pod(2, part(500)), 3), (pod(8, GpuDemand::whole(1)), 2), (pod(8, GpuDemand::whole(2)), 1)];
    let mut supply = Supply::default();
    supply.add(&node(16, 2));
    let market = Market::for_workload(&workload(&requests), &supply);
    let usable = |cores: u32, left: [u16; 2]| {
        let uses = market.uses(&node(16, 2), CpuMilli(1000 * cores));
        let free = left.iter().filter(|left| **left == 1000).count();
        left.iter().map(|left| uses.for_one(GpuMilli(*left))).sum::<f64>() + uses.for_several(free)
    };
    for (cores, left, expected) in [
        // Of six requests three find room on both GPUs, two use both one by one, and the last takes both.
        (8, [1000, 1000], 2000.0 * 3.0 / 6.0 + 2000.0 * 2.0 / 6.0 + 2000.0 / 6.0),
        // A GPU with 500 left suits the parts only.
        (8, [500, 1000], 1500.0 * 3.0 / 6.0 + 1000.0 * 2.0 / 6.0),
        // A GPU with 400 left suits no request.
        (8, [400, 1000], 1000.0 * 3.0 / 6.0 + 1000.0 * 2.0 / 6.0),
        // Beside 7 cores no whole GPU can be used, and beside 1 core nothing.
        (7, [1000, 1000], 2000.0 * 3.0 / 6.0),
        (1, [1000, 1000], 0.0),
    ] {
        let found = usable(cores, left);
        assert!((found - expected).abs() < 1e-9, "{cores} cores, {left:?}: {found}, not {expected}");
    }
}

#[test]
fn the_cost_is_the_sum_of_its_terms() {
    // One node has two GPUs, 16 cores and 1024 GiB; whole GPUs with 8 cores and 1 GiB are usual.
    let usual = pod(8, GpuDemand::whole(1));
    let empty = node(16, 2);
    let mut supply = Supply::default();
    supply.add(&empty);
    let found = cost(&empty, &usual, &Market::for_workload(&workload(&[(usual, 1)]), &supply)).unwrap();
    // 1000 of the 2000 usable thousandths are gone. CPU is just enough, 8 cores to a GPU, so that of 2000 thousandths
    // beside 16 cores 2000 / √2 can be used. 8 cores and one GPU are left. A GiB of memory in 512 is negligible.
    let expected = 0.5 * 1000.0 + 0.7 * 1000.0 / 2.0_f64.sqrt() + 0.25 * 8.0 + 1000.0 / 256.0;
    let milli = f64::from(i32::try_from(found.cost.0 / 1000).unwrap()) / 8.0;
    assert!((milli - expected).abs() < 0.01, "{milli}, not {expected}");
}

#[test]
fn a_known_workload_without_gpus_gets_assumed_requests() {
    let mut supply = Supply::default();
    supply.add(&node(16, 2));
    let counted =
        |requests: &[(Request, usize)]| Demand::from_workload(&workload(requests), &supply).requests.len();
    let (without, with) = (pod(1, GpuDemand::None), pod(1, GpuDemand::whole(1)));
    assert_eq!(counted(&[(without, 1), (with, 1)]), 2);
    assert_eq!(counted(&[(without, 1)]), 5);
}

#[test]
fn the_assumed_workload_asks_for_seven_tenths_of_the_nodes() {
    let mut supply = Supply::default();
    supply.add(&node(16, 2));
    let demand = Demand::from_workload(&Workload::default(), &supply);
    let (cpu, memory) = demand.beside_gpus();
    // A GPU has 8 cores and 512 GiB beside it.
    assert!((cpu - 0.7 * 8.0).abs() < 0.01, "{cpu}");
    assert!((memory - 0.7 * 524.288).abs() < 0.01, "{memory}");
    assert_eq!(demand.parts().into_keys().collect::<Vec<_>>(), [GpuMilli(250), GpuMilli(500)]);
    assert_eq!(demand.requests.len(), 4);
}

#[test]
fn what_no_node_has_is_neither_scarce_nor_tight() {
    let [t4, a100] = models();
    let mut supply = Supply::default();
    supply.add(&Node::new(CpuMilli(0), MemoryMib(GIB), t4, 2));
    let demand =
        Demand::from_workload(&workload(&[(of_model(pod(1, GpuDemand::whole(1)), a100), 1)]), &supply);
    assert!(demand.scarcity(&supply)[a100.index()].abs() < 1e-9);
    assert!(demand.tightness(&supply).abs() < 1e-9);
}

#[test]
fn a_model_is_as_scarce_as_the_square_of_the_part_that_is_asked_for_by_name() {
    let [t4, a100] = models();
    let mut supply = Supply::default();
    supply.add(&node(16, 2));
    supply.add(&Node::new(CpuMilli(16_000), MemoryMib(GIB), a100, 6));
    let (any, one) = (pod(1, GpuDemand::whole(1)), of_model(pod(1, GpuDemand::whole(1)), t4));
    // Two of eight GPUs are T4. If one of sixteen requests asks for them, a quarter of them is wanted.
    for (by_name, others, scarcity) in
        [(0, 16, 0.0), (1, 15, 1.0 / 16.0), (4, 12, 1.0), (8, 8, 4.0), (16, 0, 4.0)]
    {
        let found =
            Demand::from_workload(&workload(&[(one, by_name), (any, others)]), &supply).scarcity(&supply);
        assert!(
            (found[t4.index()] - scarcity).abs() < 1e-9,
            "{by_name}: {}, not {scarcity}",
            found[t4.index()]
        );
        assert!(found[a100.index()].abs() < 1e-9);
    }
}

#[test]
fn shares_that_fill_a_gpu_up_meet_on_it() {
    let usual = workload(&[(pod(1, part(470)), 5), (pod(1, part(320)), 3), (pod(1, part(650)), 2)]);
    // GPU 0 has 530 left, GPU 1 has 350, GPU 2 has 680, and GPU 3 is free.
    let taken = [(pod(1, part(470)), 0), (pod(1, part(650)), 1), (pod(1, part(320)), 2)];
    let (mut fleet, _) = fleet(usual, &[(node(64, 4), &taken)]);
    for (share, gpu) in [(470, 0), (320, 1), (650, 2)] {
        goes_to(&mut fleet, &pod(1, part(share)), 0, &[gpu]);
    }
}

#[test]
fn the_fuller_of_two_nodes_is_filled_first() {
    let usual = workload(&[(pod(4, GpuDemand::whole(1)), 1)]);
    let taken = [(pod(4, GpuDemand::whole(1)), 0)];
    let (mut fleet, _) = fleet(usual, &[(node(64, 8), &[]), (node(64, 8), &taken), (node(64, 8), &[])]);
    goes_to(&mut fleet, &pod(4, GpuDemand::whole(1)), 1, &[1]);
}

#[test]
fn the_first_of_equal_nodes_is_taken() {
    let (mut fleet, _) = fleet(Workload::default(), &[(node(64, 8), &[]), (node(64, 8), &[])]);
    goes_to(&mut fleet, &pod(4, GpuDemand::whole(1)), 0, &[0]);
}

#[test]
fn pods_go_where_cpu_and_gpus_stay_in_balance() {
    let light = pod(3, GpuDemand::whole(1));
    let heavy = pod(20, GpuDemand::whole(1));
    let usual = || workload(&[(light, 1), (heavy, 1)]);
    let (mut fleet, _) = fleet(usual(), &[(node(80, 8), &[]), (node(208, 8), &[])]);
    goes_to(&mut fleet, &light, 0, &[0]);
    goes_to(&mut fleet, &heavy, 1, &[0]);
    goes_to(&mut fleet, &pod(12, GpuDemand::None), 1, &[]);
}

#[test]
fn a_model_that_other_pods_require_is_left_to_them() {
    let [t4, a100] = models();
    let any = pod(4, GpuDemand::whole(1));
    let nodes = || [t4, a100].map(|m| Node::new(CpuMilli(64_000), MemoryMib(1024 * GIB), m, 8));
    for (scarce, node) in [(t4, 1), (a100, 0)] {
        let usual = workload(&[(any, 1), (of_model(any, scarce), 1)]);
        let (mut fleet, _) = fleet(usual, &nodes().map(|n| (n, &[][..])));
        goes_to(&mut fleet, &any, node, &[0]);
        goes_to(&mut fleet, &of_model(any, scarce), 1 - node, &[0]);
        goes_to(&mut fleet, &pod(4, GpuDemand::None), node, &[]);
    }
}

#[test]
fn several_gpus_come_from_one_node_and_are_free() {
    let usual = workload(&[(pod(4, GpuDemand::whole(2)), 1)]);
    let (mut fleet, ids) =
        fleet(usual, &[(node(64, 2), &[(pod(1, part(10)), 1)]), (node(64, 4), &[(pod(1, part(10)), 1)])]);
    let two = pod(4, GpuDemand::whole(2));
    goes_to(&mut fleet, &two, 1, &[0, 2]);
    fleet.take(ids[1], &two, [0, 2].into_iter().collect()).unwrap();
    assert_eq!(fleet.place(&two), None, "one free GPU on each node");
}

#[test]
fn a_model_that_no_node_has_is_never_placed() {
    let (mut fleet, _) = fleet(Workload::default(), &[(node(64, 8), &[])]);
    assert_eq!(fleet.place(&of_model(pod(1, part(100)), models()[1])), None);
}

#[test]
fn mps_packs_and_time_slices_spread_unless_asked_otherwise() {
    let slice = |order: Option<Order>| {
        let part = Part::new(GpuMilli(200), Sharing::TimeSlicing).unwrap();
        pod(1, GpuDemand::Part(order.map_or(part, |order| part.ordered(order))))
    };
    let taken = [(slice(None), 0)];
    let (mut slices, _) = fleet(Workload::default(), &[(node(64, 2), &taken)]);
    goes_to(&mut slices, &slice(None), 0, &[1]);
    goes_to(&mut slices, &slice(Some(Order::Pack)), 0, &[0]);
    let (mut shares, _) = fleet(Workload::default(), &[(node(64, 2), &[(pod(1, part(200)), 1)])]);
    goes_to(&mut shares, &pod(1, part(200)), 0, &[1]);
    goes_to(&mut shares, &pod(1, GpuDemand::Part(mps(200).ordered(Order::Spread))), 0, &[0]);
}

#[test]
fn a_gpu_is_shared_in_one_way_until_it_is_free_again() {
    let (mut fleet, ids) = fleet(Workload::default(), &[(node(64, 1), &[(pod(1, part(200)), 0)])]);
    let slice = pod(1, GpuDemand::Part(Part::new(GpuMilli(200), Sharing::TimeSlicing).unwrap()));
    assert_eq!(fleet.place(&slice), None);
    fleet.release(ids[0], &pod(1, part(200)), [0].into_iter().collect()).unwrap();
    goes_to(&mut fleet, &slice, 0, &[0]);
}

#[test]
fn tenants_beyond_the_busy_limit_do_not_share_a_gpu() {
    let busy = |busy: u16| pod(1, GpuDemand::Part(mps(100).with_busy(Busy(busy))));
    let (mut fleet, _) = fleet(Workload::default(), &[(node(64, 1), &[(busy(400), 0)])]);
    goes_to(&mut fleet, &busy(300), 0, &[0]);
    assert_eq!(fleet.place(&busy(301)), None);
    let slice = |busy: u16| {
        let part = Part::new(GpuMilli(100), Sharing::TimeSlicing).unwrap();
        pod(1, GpuDemand::Part(part.with_busy(Busy(busy))))
    };
    let taken = [(slice(400), 0)];
    let (mut slices, _) = self::fleet(Workload::default(), &[(node(64, 1), &taken)]);
    assert!(slices.place(&slice(200)).is_some() && slices.place(&slice(201)).is_none());
    goes_to(&mut fleet, &pod(1, part(600)), 0, &[0]);
}

#[test]
fn a_part_is_neither_nothing_nor_a_whole_gpu() {
    for (share, good) in [(0, false), (1, true), (999, true), (1000, false)] {
        assert_eq!(Part::new(GpuMilli(share), Sharing::Mps).is_some(), good, "{share}");
    }
}

#[test]
fn a_request_that_does_not_fit_is_not_taken() {
    let set = |gpus: &[usize]| gpus.iter().copied().collect::<GpuSet>();
    let mut node = node(8, 2);
    node.take(&pod(1, part(600)), set(&[0])).unwrap();
    for (request, gpus, error) in [
        (pod(8, part(10)), set(&[0]), TakeError::Cpu),
        (Request { memory: MemoryMib(1024 * GIB), ..pod(1, part(10)) }, set(&[0]), TakeError::Memory),
        (of_model(pod(1, part(10)), models()[1]), set(&[0]), TakeError::Model),
        (pod(1, part(10)), set(&[0, 1]), TakeError::Count),
        (pod(1, GpuDemand::None), set(&[1]), TakeError::Count),
        (pod(1, part(401)), set(&[0]), TakeError::Gpu(0)),
        (pod(1, GpuDemand::whole(1)), set(&[0]), TakeError::Gpu(0)),
        (pod(1, part(10)), set(&[2]), TakeError::Gpu(2)),
    ] {
        assert_eq!(node.take(&request, gpus), Err(error), "{request:?}");
    }
    let rest = Request { memory: MemoryMib(1023 * GIB), ..pod(7, part(400)) };
    assert_eq!(node.take(&rest, set(&[0])), Ok(()));
}

#[test]
fn only_taken_resources_can_be_released() {
    let zero = || [0].into_iter().collect::<GpuSet>();
    let mut taken = node(8, 1);
    for (request, on) in [
        (pod(1, GpuDemand::None), GpuSet::default()),
        (pod(0, GpuDemand::None), GpuSet::default()),
        (Request { memory: MemoryMib(0), ..pod(1, GpuDemand::None) }, GpuSet::default()),
        (pod(0, part(10)), zero()),
        (pod(0, GpuDemand::whole(1)), zero()),
    ] {
        assert_eq!(taken.release(&request, on), Err(ReleaseError), "{request:?}");
    }
    taken.take(&pod(1, part(400)), zero()).unwrap();
    let slice = GpuDemand::Part(Part::new(GpuMilli(400), Sharing::TimeSlicing).unwrap());
    for other in [part(500), slice] {
        assert_eq!(taken.release(&pod(1, other), zero()), Err(ReleaseError), "{other:?}");
    }
    // Parts that fill a GPU cannot be released as a whole GPU.
    taken.take(&pod(1, part(600)), zero()).unwrap();
    assert_eq!(taken.release(&pod(2, GpuDemand::whole(1)), zero()), Err(ReleaseError));
}

#[test]
fn a_removed_or_added_node_counts_at_once() {
    let (mut fleet, ids) = fleet(Workload::default(), &[(node(64, 8), &[])]);
    let request = pod(4, GpuDemand::whole(1));
    goes_to(&mut fleet, &request, 0, &[0]);
    fleet.remove(ids[0]);
    assert_eq!((fleet.place(&request), fleet.choice(ids[0], &request)), (None, None));
    assert_eq!(fleet.take(ids[0], &request, [0].into_iter().collect()), Err(ChangeError::Gone));
    fleet.add(node(64, 8));
    goes_to(&mut fleet, &request, 1, &[0]);
    fleet.set(ids[0], node(8, 1));
    assert!(fleet.choice(ids[0], &request).is_some());
}

#[test]
fn empty_nodes_do_not_disturb() {
    let (mut fleet, _) = fleet(Workload::default(), &[(node(0, 0), &[]), (node(64, 0), &[])]);
    goes_to(&mut fleet, &pod(4, GpuDemand::None), 1, &[]);
    assert_eq!(fleet.place(&pod(4, part(10))), None);
}

fn any_request() -> impl Strategy<Value = Request> {
    let share = prop::sample::select(vec![50_u16, 125, 250, 320, 470, 500, 650, 810, 999]);
    let busy = prop::sample::select(vec![0_u16, 100, 400]);
    let sharing = prop::sample::select(vec![Sharing::Mps, Sharing::Mps, Sharing::TimeSlicing]);
    let shared = (share, sharing, busy).prop_map(|(share, sharing, busy)| {
        GpuDemand::Part(Part::new(GpuMilli(share), sharing).unwrap().with_busy(Busy(busy)))
    });
    let gpus =
        prop_oneof![1 => Just(GpuDemand::None), 4 => shared, 3 => (1_u8..5).prop_map(GpuDemand::whole)];
    let models = prop_oneof![
        3 => Just(ModelSet::ANY),
        1 => (0..2_usize).prop_map(|model| [models()[model]].into_iter().collect())
    ];
    (prop::sample::select(vec![0_u32, 1, 3, 8, 20]), gpus, models)
        .prop_map(|(cores, gpus, models)| Request { models, ..pod(cores, gpus) })
}

/// One event in the history of a fleet.
#[derive(Debug, Clone)]
enum Event {
    Come(Request),
    /// One of the running requests ends.
    Go(prop::sample::Index),
    /// A node is removed and comes back empty.
    Restart(prop::sample::Index),
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        6 => any_request().prop_map(Event::Come),
        3 => any::<prop::sample::Index>().prop_map(Event::Go),
        1 => any::<prop::sample::Index>().prop_map(Event::Restart),
    ];
    prop::collection::vec(event, 1..80)
}

fn empty_nodes() -> Vec<Node> {
    let [t4, a100] = models();
    [(t4, 20, 2), (a100, 32, 4), (a100, 32, 4), (t4, 12, 1), (t4, 8, 0)]
        .map(|(model, cores, gpus)| Node::new(CpuMilli(1000 * cores), MemoryMib(64 * GIB), model, gpus))
        .to_vec()
}

/// Whether a node's running requests fit in it, computed without the node's own accounts.
fn fits(empty: &Node, running: &[&(Request, NodeId, GpuSet)]) -> bool {
    let cpu: u32 = running.iter().map(|(request, ..)| request.cpu.0).sum();
    let share = |gpu: usize| {
        let here = running.iter().filter(|(_, _, gpus)| gpus.iter().any(|g| g == gpu));
        here.map(|(request, _, gpus)| request.gpus.volume() / u32::try_from(gpus.len()).unwrap()).sum::<u32>()
    };
    cpu <= empty.cpu().0 && (0..64).all(|gpu| share(gpu) <= if gpu < empty.gpus().len() { 1000 } else { 0 })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn nothing_is_taken_twice_and_stored_costs_equal_fresh_ones(events in events(), probe in any_request()) {
        let mut fleet = Nodes::default();
        let empty = empty_nodes();
        let ids: Vec<NodeId> = empty.iter().map(|node| fleet.add(node.clone())).collect();
        let mut running: Vec<(Request, NodeId, GpuSet)> = Vec::new();
        for event in events {
            match event {
                Event::Come(request) => {
                    fleet.learn(&request);
                    if let Some(place) = fleet.place(&request) {
                        fleet.take(place.node, &request, place.gpus).unwrap();
                        running.push((request, place.node, place.gpus));
                    }
                }
                Event::Go(index) if !running.is_empty() => {
                    let (request, node, gpus) = running.remove(index.index(running.len()));
                    fleet.release(node, &request, gpus).unwrap();
                }
                Event::Go(_) => {}
                Event::Restart(index) => {
                    let node = index.index(ids.len());
                    running.retain(|(_, at, _)| *at != ids[node]);
                    fleet.remove(ids[node]);
                    fleet.set(ids[node], empty[node].clone());
                }
            }
            let fresh: Vec<Option<Choice>> = ids.iter().map(|id| fleet.choice(*id, &probe)).collect();
            let kept = fleet.costs(&probe);
            for (id, fresh) in ids.iter().zip(&fresh) {
                prop_assert_eq!(kept.on_node(*id), fresh.map(|choice| choice.cost));
            }
            let best = ids.iter().zip(fresh).filter_map(|(id, c)| Some((c?.cost, *id))).min();
            prop_assert_eq!(fleet.place(&probe).map(|place| (place.cost, place.node)), best);
        }
        for (id, empty) in ids.iter().zip(&empty) {
            let here: Vec<_> = running.iter().filter(|(_, node, _)| node == id).collect();
            prop_assert!(fits(empty, &here), "{id:?}: {here:?}");
        }
        for (request, node, gpus) in running {
            fleet.release(node, &request, gpus).unwrap();
        }
        for (id, empty) in ids.iter().zip(&empty) {
            prop_assert_eq!(fleet.node(*id), Some(empty));
        }
    }
}
