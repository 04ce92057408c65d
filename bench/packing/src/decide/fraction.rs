//! Times a decision about a share of a GPU over 5,000 nodes: a fleet of four models in a steady state, in which pods
//! come and go. `packing --data` times the trace's own requests.

use std::time::Instant;

use anyhow::Context as _;
use kerf_core::packing::fraction::{
    CpuMilli, GpuDemand, GpuMilli, ModelSet, Models, Node, Nodes, Part, Placement, Request, Sharing,
};
use kerf_core::units::MemoryMib;

use crate::random::Random;
use crate::report::{Bar, as_f64, print};

const NODES: usize = 5_000;
const GPUS: usize = 8;
/// Different requests. Real clusters have dozens (Alibaba's trace of 2023: 35 of them are 95 % of its pods).
const KINDS: usize = 64;
const DECISIONS: usize = 4_000;

pub fn run() -> anyhow::Result<Bar> {
    eprintln!("# decide: shares on {NODES} nodes");
    let mut random = Random::new(1);
    let (mut nodes, requests) = fleet(&mut random)?;
    let mut running: Vec<(Placement, Request)> = Vec::new();
    // Four of five GPUs are in use, as in a busy cluster. The mean share is a third of a GPU.
    for _ in 0..NODES * GPUS * 12 / 5 {
        arrive(&mut nodes, requests[random.below(KINDS)], &mut running);
    }
    let mut spent = 0.0;
    for _ in 0..DECISIONS {
        let (place, request) = running.swap_remove(random.below(running.len()));
        nodes.release(place.node, &request, place.gpus)?;
        let request = requests[random.below(KINDS)];
        let begun = Instant::now();
        arrive(&mut nodes, request, &mut running);
        spent += begun.elapsed().as_secs_f64();
    }
    let mean = spent * 1e6 / as_f64(DECISIONS);
    print("");
    print(&format!(
        "One decision about a share over {NODES} nodes with {} pods: {mean:.1} µs on the mean",
        running.len()
    ));
    Ok(Bar::at_most("one decision about a share, 5,000 nodes, mean, µs", mean, 100.0, 30.0))
}

fn fleet(random: &mut Random) -> anyhow::Result<(Nodes, Vec<Request>)> {
    let mut models = Models::default();
    let mut nodes = Nodes::default();
    let names = ["T4", "A10", "V100", "P100"].map(|name| models.intern(name));
    for number in 0..NODES {
        let model = names[number * names.len() / NODES].context("too many models")?;
        nodes.add(Node::new(CpuMilli(96_000), MemoryMib(524_288), model, GPUS));
    }
    let request = |_| {
        let share = GpuMilli(u16::try_from(50 + 10 * random.below(60)).unwrap_or(500));
        let cpu = CpuMilli(u32::try_from(500 + 500 * random.below(8)).unwrap_or(500));
        let gpus = Part::new(share, Sharing::Mps).map_or(GpuDemand::whole(1), GpuDemand::Part);
        Request { cpu, memory: MemoryMib(4096), gpus, models: ModelSet::ANY }
    };
    Ok((nodes, (0..KINDS).map(request).collect()))
}

fn arrive(nodes: &mut Nodes, request: Request, running: &mut Vec<(Placement, Request)>) {
    nodes.learn(&request);
    let Some(place) = nodes.place(&request) else { return };
    if nodes.take(place.node, &request, place.gpus).is_ok() {
        running.push((place, request));
    }
}
