//! Golden lives: pods come and go by a seed, and each place with its cost is compared to a file. A change of packing
//! shows in the difference. `cargo xtask bench packing` shows whether it is better.

use super::fraction::{
    CpuMilli, GpuDemand, GpuMilli, ModelSet, Models, Node, Nodes, Part, Request, Sharing, Workload,
};
use super::{Fit, Fleet, Placed, Source, Terms, fit};
use crate::contract::{ContainerRequest, GpuRule, NodePolicy, RequestDocument};
use crate::inventory::NodeInventory;
use crate::kind::Kind;
use crate::ledger::{Limits, Moment, Order, OrderKind, Owner, Proposal};
use crate::names::{PodKey, PodUid};
use crate::testing::{
    MIXED_REQUESTS, Random, SimulatedNode, mig_table, node_status, request, with_neutral_names,
};
use crate::units::MemoryMib;
use std::fmt::Write as _;

fn exact(profile: &str) -> ContainerRequest {
    ContainerRequest::exact(profile.parse().unwrap())
}

/// Requests by profile, by size and by a neutral name on GPUs of three models.
#[test]
fn mig_instances_of_a_fleet() {
    let mut fleet = Fleet::new(Terms { moves: true, ..Terms::default() });
    let models = ["H100-80GB", "H100-80GB", "A100-40GB", "A30-24GB", "H200-141GB"];
    let gpus = models.map(|name| fleet.add(&mig_table(name), [], []).unwrap());
    let by_name = |name| request(name, 1).containers.remove(0);
    let neutral = ContainerRequest { kinds: vec![Kind::Mig], ..by_name("kerf.dev/gpu-14gb") };
    let profiles = ["1g.10gb", "1g.10gb+me", "2g.20gb", "3g.40gb", "7g.80gb", "1g.6gb", "2g.12gb", "3g.71gb"];
    let names = ["nvidia.com/mig-1g.10gb", "nvidia.com/mig-1g.20gb", "nvidia.com/mig-3g.20gb"];
    let mut asks: Vec<_> = profiles.map(exact).into_iter().chain(names.map(by_name)).collect();
    asks.push(neutral);
    let (mut random, mut running, mut life) = (Random::new(1), Vec::new(), String::new());
    for _ in 0..260 {
        if random.below(5) < 2 && !running.is_empty() {
            let (gpu, place) = running.swap_remove(random.below(running.len()));
            fleet.release(gpu, place);
            continue;
        }
        let ask = &asks[random.below(asks.len())];
        let class = fleet.class(ask);
        let index = |gpu| gpus.iter().position(|known| *known == gpu).unwrap();
        let name = ask.profile.map_or_else(|| ask.resource.to_string(), |profile| profile.to_string());
        if let Some((gpu, choice)) = fleet.best(class) {
            let gone: Vec<_> =
                choice.destroyed.iter().map(|p| fleet.instance(gpu, p).placement.to_string()).collect();
            let at = fleet.instance(gpu, choice.place);
            let (at, of) = (format!("{} at {}", at.profile, at.placement), index(gpu));
            writeln!(life, "{name}: {at} on {of}, cost {}, without {gone:?}", choice.cost.0).unwrap();
            fleet.take(gpu, choice);
            running.push((gpu, choice.place));
        } else if let Some(found) = fleet.best_eviction(class, |_, _| true, |_, _| true) {
            let moved = fleet.instance(found.gpu, found.victim);
            let (from, to) = (index(found.gpu), index(found.to));
            let new = fleet.instance(found.to, found.new.place).placement;
            writeln!(
                life,
                "{name}: if {} moves from {} on {from} to {new} on {to}",
                moved.profile, moved.placement
            )
            .unwrap();
        } else {
            writeln!(life, "{name}: no room").unwrap();
        }
    }
    writeln!(life, "fragmentation {:.6}", fleet.fragmentation()).unwrap();
    insta::assert_snapshot!(life);
}

/// Shares and whole GPUs on nodes of three models, with a workload that is learned.
#[test]
fn shares_of_a_fleet() {
    let mut models = Models::default();
    let [t4, a10, a100] = ["T4", "A10", "A100"].map(|name| models.intern(name).unwrap());
    let gib = |gib: u64| MemoryMib(gib * 1024);
    let sizes =
        [(16, 64, t4, 1), (32, 128, t4, 4), (48, 96, a10, 2), (96, 1024, a100, 8), (12, 512, a100, 2)];
    let mut nodes = Nodes::new(Workload::default());
    let ids = sizes.map(|(cores, memory, model, gpus)| {
        nodes.add(Node::new(CpuMilli(1000 * cores), gib(memory), model, gpus))
    });
    let part = |milli, sharing| GpuDemand::Part(Part::new(GpuMilli(milli), sharing).unwrap());
    let demands = [
        GpuDemand::None,
        GpuDemand::whole(1),
        GpuDemand::whole(2),
        part(500, Sharing::Mps),
        part(250, Sharing::Mps),
        part(330, Sharing::TimeSlicing),
        part(100, Sharing::Mps),
    ];
    let (mut random, mut running, mut life) = (Random::new(2), Vec::new(), String::new());
    for _ in 0..220 {
        if random.below(5) < 2 && !running.is_empty() {
            let (node, request, gpus) = running.swap_remove(random.below(running.len()));
            nodes.release(node, &request, gpus).unwrap();
            continue;
        }
        let sets =
            [ModelSet::ANY, ModelSet::ANY, [a100].into_iter().collect(), [t4, a10].into_iter().collect()];
        let request = Request {
            cpu: CpuMilli(500 * u32::try_from(1 + random.below(16)).unwrap()),
            memory: gib([1, 4, 16, 32][random.below(4)]),
            gpus: demands[random.below(demands.len())],
            models: sets[random.below(sets.len())],
        };
        nodes.learn(&request);
        let Some(place) = nodes.place(&request) else {
            writeln!(life, "{:?}: no room", request.gpus).unwrap();
            continue;
        };
        let costs = nodes.costs(&request);
        let costs: Vec<_> = ids.iter().map(|id| costs.on_node(*id).map_or(-1, |cost| cost.0)).collect();
        let gpus: Vec<usize> = place.gpus.iter().collect();
        writeln!(life, "{}: node {} {gpus:?} of {costs:?}", request.gpus.volume(), place.node.index())
            .unwrap();
        nodes.take(place.node, &request, place.gpus).unwrap();
        running.push((place.node, request, place.gpus));
    }
    insta::assert_snapshot!(life);
}

fn shown(Fit { slices, rank, cost }: &Fit) -> String {
    let placed = |placed: &Placed| {
        let source = match &placed.source {
            Source::Idle(id) => format!("idle {id}"),
            Source::Cut(gone) if gone.is_empty() => "cut".to_owned(),
            Source::Cut(gone) => {
                format!("cut without {}", gone.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "))
            }
        };
        let alone = if placed.alone { ", alone" } else { "" };
        format!("{} on {} ({source}{alone})", placed.shape, placed.gpu)
    };
    let slices: Vec<String> = slices.iter().map(placed).collect();
    format!("{} [{rank:?}, cost {}]", slices.join(", "), cost.0)
}

/// All kinds on one node, as its ledger reserves them and its planner cuts them.
#[test]
fn slices_of_a_node_of_all_kinds() {
    let mut rule = GpuRule { compute_instances: true, ..GpuRule::default() };
    rule.mig.time_slicing = Some(3.try_into().unwrap());
    let policy = NodePolicy { gpus: vec![rule], ..NodePolicy::default() };
    let gpus = with_neutral_names(node_status(&["H100-80GB", "A100-40GB", "T4-16GB", "L4-24GB"]));
    let mut node = SimulatedNode::from_status(gpus, policy, Limits::default());
    let more = [("nvidia.com/gpu-4gb", 2), ("nvidia.com/mig-2g.10gb", 2), ("nvidia.com/gpu-2gb.shared", 1)];
    let mut asks: Vec<RequestDocument> =
        MIXED_REQUESTS.into_iter().chain(more).map(|(name, count)| request(name, count)).collect();
    let mut neutral = request("kerf.dev/gpu-10gb", 1);
    neutral.containers[0].kinds = vec![Kind::Mig, Kind::Mps, Kind::TimeSlicing, Kind::Whole];
    asks.push(neutral.clone());
    neutral.containers[0].count = 2;
    neutral.containers[0].distinct_gpus = true;
    asks.push(neutral);
    let mut apart = request("nvidia.com/gpu-4gb", 2);
    apart.containers[0].distinct_gpus = true;
    asks.push(apart);
    let (mut random, mut running, mut life) = (Random::new(3), Vec::new(), String::new());
    for pod in 0..160 {
        if random.below(5) < 2 && !running.is_empty() {
            let (uid, name): (PodUid, String) = running.swap_remove(random.below(running.len()));
            node.free(&name);
            let release = OrderKind::Release { uid, why: String::new() };
            node.follow(&Order { epoch: 1, kind: release }, Moment::default()).unwrap();
            continue;
        }
        let ask = &asks[random.below(asks.len())];
        let (desired, status) = (node.ledger.desired().clone(), node.state().status);
        let container = &ask.containers[0];
        write!(life, "{}x {}: ", container.count, container.resource).unwrap();
        match fit(&NodeInventory::from_spec(&desired, &status), ask, &Fleet::default()) {
            Err(refusal) => writeln!(life, "{refusal:?}").unwrap(),
            Ok(found) => {
                writeln!(life, "{}", shown(&found)).unwrap();
                let name = format!("pod-{pod}");
                let uid = PodUid::new(format!("uid-{pod}"));
                let owner = Owner { uid: uid.clone(), key: PodKey::new("default", &name) };
                let reserve = OrderKind::Reserve(Proposal::from_fit(owner, found));
                node.follow(&Order { epoch: 1, kind: reserve }, Moment::default()).unwrap();
                node.cut();
                node.allocate(&uid);
                running.push((uid, name));
            }
        }
    }
    insta::assert_snapshot!(life);
}
