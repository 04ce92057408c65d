//! Times the joint choice of kind and node among 1,000 nodes of three kinds, and compares it with a fit on each node by
//! itself.
//!
//! Pods come and go. Rules of the bench's own judge each decision: whether the GPU may hold what is on it afterwards,
//! and whether the choice is the best of the single nodes' fits.

use std::time::Instant;

use anyhow::Context as _;
use kerf_core::contract::{GpuNodeSpec, RequestDocument, Shape};
use kerf_core::inventory::{GpuInventory, NodeInventory, Occupancy, PlacedSlice};
use kerf_core::kind::Kind;
use kerf_core::names::NodeName;
use kerf_core::packing::{Fit, Fleet, FleetGpu, Place, Terms, fit};
use kerf_core::resource::{NEUTRAL_SIZES, ResourceName};
use kerf_core::testing::{choose_among, node_status, request_sized};
use kerf_core::units::SizeGb;

use super::legality::fault;
use crate::random::Random;
use crate::report::{Bar, as_f64, print};

const NODES: usize = 1_000;
const GPUS: usize = 8;
const DECISIONS: usize = 200;

/// The nodes' GPU models, and the kind that their GPUs are cut by.
const OF_KINDS: [(&str, Kind); 3] =
    [("H100-80GB", Kind::Mig), ("L40S-48GB", Kind::Mps), ("L40S-48GB", Kind::TimeSlicing)];

/// What pods ask for: the size in the name, and the exact size, in GB.
const ASKED: [(u32, u32); 5] = [(4, 4), (10, 10), (14, 13), (20, 20), (40, 40)];

#[derive(Debug, Default)]
pub struct Found {
    /// Seconds of all joint choices.
    choosing: f64,
    /// Seconds of as many rounds of fits on each node.
    fitting: f64,
    pub illegal: Vec<String>,
}

pub fn run() -> anyhow::Result<(Bar, Found)> {
    eprintln!("# decide: kind and node among {NODES} nodes");
    let found = decide(NODES, DECISIONS)?;
    let mean = |seconds: f64| seconds * 1e3 / as_f64(DECISIONS);
    print("");
    print(&format!(
        "Kind and node among {NODES} nodes of {GPUS} GPUs: {:.2} ms on the mean, {:.2} ms by each node alone; {} illegal",
        mean(found.choosing),
        mean(found.fitting),
        found.illegal.len()
    ));
    let ratio = found.choosing / found.fitting;
    Ok((Bar::at_most("kind and node among 1,000 nodes, over each node by itself", ratio, 1.1, 1.0), found))
}

fn decide(nodes: usize, decisions: usize) -> anyhow::Result<Found> {
    let mut site = Site::new(nodes)?;
    let mut found = Found::default();
    for _ in 0..decisions {
        site.end();
        site.begin(&mut found)?;
    }
    Ok(found)
}

struct Site {
    names: Vec<NodeName>,
    nodes: Vec<NodeInventory>,
    fleet: Fleet,
    known: Vec<Vec<Option<FleetGpu>>>,
    random: Random,
    /// The node, the GPU's number there, and the slice.
    running: Vec<(usize, usize, Shape)>,
}

impl Site {
    /// Nodes of the three kinds in turn, each with some running pods. Some nodes are full.
    fn new(count: usize) -> anyhow::Result<Self> {
        let nodes = (0..count).map(|number| {
            let (model, kind) = OF_KINDS[number % OF_KINDS.len()];
            let mut node = NodeInventory::from_spec(&GpuNodeSpec::default(), &node_status(&[model; GPUS]));
            node.gpus.iter_mut().for_each(|gpu| gpu.kinds = vec![kind]);
            node.neutral_up_to = NEUTRAL_SIZES.last().copied();
            node
        });
        let mut site = Self {
            names: (0..count).map(|number| NodeName::new(format!("n{number:04}"))).collect(),
            nodes: nodes.collect(),
            fleet: Fleet::new(Terms::default()),
            known: vec![vec![None; GPUS]; count],
            random: Random::new(1),
            running: Vec::new(),
        };
        for node in 0..count {
            (0..GPUS).for_each(|gpu| site.show(node, gpu));
            for _ in 0..site.random.below(GPUS * 8) {
                let pod = site.pod();
                let Ok(fit) = fit(&site.nodes[node], &pod, &site.fleet) else { continue };
                site.take(node, &fit)?;
            }
        }
        Ok(site)
    }

    fn pod(&mut self) -> RequestDocument {
        let orders: [&[Kind]; 4] = [
            &[Kind::Mig, Kind::Mps],
            &[Kind::Mig, Kind::Mps, Kind::TimeSlicing],
            &[Kind::TimeSlicing, Kind::Mps, Kind::Mig],
            &[Kind::Mps, Kind::Mig],
        ];
        let (step, size) = ASKED[self.random.below(ASKED.len())];
        let mut pod = request_sized(ResourceName::Neutral(SizeGb(step)), SizeGb(size), 1);
        pod.containers[0].kinds = orders[self.random.below(orders.len())].to_vec();
        pod
    }

    /// Updates a GPU in the fleet to its present slices.
    fn show(&mut self, node: usize, gpu: usize) {
        let known = &mut self.known[node][gpu];
        *known = self.nodes[node].gpus[gpu].join(&mut self.fleet, *known);
    }

    fn take(&mut self, node: usize, fit: &Fit) -> anyhow::Result<usize> {
        let [placed] = fit.slices.as_slice() else { anyhow::bail!("a pod asks for one slice") };
        let gpus = &mut self.nodes[node].gpus;
        let gpu = gpus.iter().position(|gpu| gpu.uuid == placed.gpu).context("no such GPU")?;
        gpus[gpu].slices.push(PlacedSlice { shape: placed.shape, occupancy: Occupancy::Taken });
        self.running.push((node, gpu, placed.shape));
        self.show(node, gpu);
        Ok(gpu)
    }

    /// Ends a pod, whose slice vanishes.
    fn end(&mut self) {
        let (node, gpu, shape) = self.running.swap_remove(self.random.below(self.running.len()));
        let slices = &mut self.nodes[node].gpus[gpu].slices;
        if let Some(place) = slices.iter().position(|slice| slice.shape == shape) {
            slices.swap_remove(place);
        }
        self.show(node, gpu);
    }

    /// Creates a pod, and places it.
    fn begin(&mut self, found: &mut Found) -> anyhow::Result<()> {
        let pod = self.pod();
        let begun = Instant::now();
        let chosen = choose_among(&pod, self.names.iter().zip(&self.nodes), &self.fleet);
        found.choosing += begun.elapsed().as_secs_f64();
        let begun = Instant::now();
        let each: Vec<Option<Place>> =
            self.nodes.iter().map(|node| fit(node, &pod, &self.fleet).ok().map(|fit| fit.place())).collect();
        found.fitting += begun.elapsed().as_secs_f64();
        let chosen = chosen.best.map(|(name, place)| (place, name));
        let best = each.iter().zip(&self.names).filter_map(|(place, name)| Some(((*place)?, name))).min();
        if chosen != best {
            found.illegal.push(format!("chosen {chosen:?}, the best is {best:?}"));
        }
        let Some((_, name)) = chosen else { return Ok(()) };
        let node = self.names.iter().position(|other| other == name).context("no such node")?;
        let placed = fit(&self.nodes[node], &pod, &self.fleet)?;
        let gpu = self.take(node, &placed)?;
        found.illegal.extend(wrong(&self.nodes[node].gpus[gpu], &pod, placed.slices[0].shape));
        Ok(())
    }
}

/// What is wrong with a GPU after a pod got this slice of it.
fn wrong(gpu: &GpuInventory, pod: &RequestDocument, given: Shape) -> Option<String> {
    let asked = &pod.containers[0];
    let shapes: Vec<Shape> = gpu.taken().collect();
    let why = if !asked.kinds.contains(&given.kind()) || !gpu.kinds.contains(&given.kind()) {
        Some("of a kind that the pod or the GPU may not have")
    } else if given.size() < asked.size_gb {
        Some("too small")
    } else if shapes.iter().any(|shape| shape.kind() != given.kind()) {
        Some("beside another kind")
    } else if given.kind() == Kind::Mig {
        fault(&gpu.table, &shapes.iter().filter_map(|shape| shape.instance()).collect::<Vec<_>>())
    } else {
        let together: u64 = shapes.iter().map(|shape| shape.size().share_memory().0).sum();
        (together > gpu.memory.0).then_some("more than the GPU's memory")
    };
    why.map(|why| format!("{given} on a {}: {why}", gpu.model))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_choice_is_the_best_and_legal() {
        let found = decide(30, 100).unwrap();
        assert_eq!(found.illegal, Vec::<String>::new());
    }

    #[test]
    fn a_forbidden_choice_is_found() {
        let mut site = Site::new(3).unwrap();
        let mut pod = site.pod();
        (pod.containers[0].kinds, pod.containers[0].size_gb) = (vec![Kind::Mps], SizeGb(10));
        let mut on = |shapes: &[Shape]| {
            let gpu = &mut site.nodes[1].gpus[0];
            let slice = |shape: &Shape| PlacedSlice { shape: *shape, occupancy: Occupancy::Taken };
            gpu.slices = shapes.iter().map(slice).collect();
            wrong(gpu, &pod, shapes[0]).map(|text| text.rsplit(": ").next().unwrap().to_owned())
        };
        let (ten, slice) = (Shape::mps(SizeGb(10)), Shape::TimeSlicing { size_gb: SizeGb(10) });
        assert_eq!(on(&[ten; 4]), None);
        assert_eq!(on(&[ten; 5]).as_deref(), Some("more than the GPU's memory"));
        assert_eq!(on(&[ten, slice]).as_deref(), Some("beside another kind"));
        assert_eq!(on(&[Shape::mps(SizeGb(9))]).as_deref(), Some("too small"));
        assert_eq!(on(&[slice]).as_deref(), Some("of a kind that the pod or the GPU may not have"));
    }
}
