//! Checks decisions and plans for faults: jobs come and go on small nodes of every GPU model. Each decision is planned
//! and carried out step by step on instances of the bench's own.

use kerf_core::contract::{Shape, WantedSlice};
use kerf_core::mig::{Instance, MigTable, Placement, catalog};
use kerf_core::names::{GpuUuid, SliceId};
use kerf_core::packing::{ClassId, Fleet, FleetGpu, PlaceId, Terms};
use kerf_core::planner::{Allowed, Observed, ObservedGpu, ObservedInstance, Plan, Step, check, plan};
use kerf_core::units::MemoryMib;
use std::collections::HashMap;

use super::legality::fault;
use crate::random::Random;
use crate::report::as_f64;

const NODES: usize = 8;

const GPUS: usize = 2;

/// What was counted, and the faults.
#[derive(Debug, Default)]
pub struct Found {
    pub decisions: usize,
    pub plans: usize,
    pub models: usize,
    /// Descriptions of illegal decisions and plans.
    pub illegal: Vec<String>,
}

/// Makes this many decisions and plans in all, equally many for every GPU model of the catalog.
pub fn run(all: usize) -> anyhow::Result<Found> {
    let tables: Vec<(&str, MigTable)> =
        catalog::MODELS.iter().filter_map(|model| Some((model.name, model.mig_table()?))).collect();
    let mut found = Found { models: tables.len(), ..Found::default() };
    for (at, (name, table)) in (1..).zip(tables.iter()) {
        let mut site = Site::new(name, table, at)?;
        let goal = all * usize::try_from(at)? / tables.len();
        while found.decisions + found.plans < goal {
            site.step(&mut found);
        }
    }
    Ok(found)
}

struct Site<'t> {
    name: &'t str,
    table: &'t MigTable,
    fleet: Fleet,
    classes: Vec<ClassId>,
    places: Vec<Instance>,
    /// The node and the GPU's number there.
    at: HashMap<FleetGpu, (usize, usize)>,
    nodes: Vec<Node>,
    running: Vec<Running>,
    random: Random,
    slices: usize,
}

struct Node {
    observed: Observed,
    wanted: Vec<WantedSlice>,
}

struct Running {
    gpu: FleetGpu,
    place: PlaceId,
    id: SliceId,
}

impl<'t> Site<'t> {
    fn new(name: &'t str, table: &'t MigTable, seed: u64) -> anyhow::Result<Self> {
        let mut fleet = Fleet::new(Terms::default());
        let (mut at, mut nodes) = (HashMap::new(), Vec::new());
        for node in 0..NODES {
            let mut observed = Observed::default();
            for gpu in 0..GPUS {
                let added = fleet.add(table, [], []);
                let added = added.ok_or_else(|| anyhow::anyhow!("{name} cannot be cut"))?;
                at.insert(added, (node, gpu));
                observed.gpus.push(ObservedGpu {
                    uuid: GpuUuid::new(format!("GPU-{gpu}")),
                    allowed: Allowed::default(),
                    memory: MemoryMib(0),
                    table: Some(table.clone()),
                    instances: Vec::new(),
                    shares: Vec::new(),
                });
            }
            nodes.push(Node { observed, wanted: Vec::new() });
        }
        let profiles = table.entries().iter().map(|entry| entry.profile);
        let classes = profiles
            .map(|profile| fleet.class(&kerf_core::contract::ContainerRequest::exact(profile)))
            .collect();
        let instance = |(profile, placement): (_, Placement)| Instance { profile, placement };
        let places = table.entries().iter().flat_map(|e| e.placements().map(move |p| (e.profile, p)));
        let places = places.map(instance).collect();
        let random = Random::new(seed);
        Ok(Self { name, table, fleet, classes, places, at, nodes, running: Vec::new(), random, slices: 0 })
    }

    /// Ends or starts a job. Now and then a node also gets desired slices that it may not have.
    fn step(&mut self, found: &mut Found) {
        // Jobs arrive a little more often than they can be placed, so that most GPUs are nearly full.
        let capacity = as_f64(NODES * GPUS) * 4.0;
        if self.random.unit() * (capacity + as_f64(self.running.len())) < as_f64(self.running.len()) {
            self.end();
        } else {
            self.begin(found);
        }
        if self.random.below(4) == 0 {
            self.want_anything(found);
        }
    }

    fn end(&mut self) {
        let job = self.random.below(self.running.len());
        let Running { gpu, place, id } = self.running.swap_remove(job);
        let instance = self.fleet.instance(gpu, place);
        self.fleet.release(gpu, place);
        let (node, at) = self.at[&gpu];
        let node = &mut self.nodes[node];
        node.wanted.retain(|slice| slice.id != id);
        let left = node.observed.gpus[at].instances.iter_mut().find(|o| o.instance == instance);
        if let Some(left) = left {
            left.held = false;
        }
    }

    fn begin(&mut self, found: &mut Found) {
        let class = self.classes[self.random.below(self.classes.len())];
        found.decisions += 1;
        let Some((gpu, choice)) = self.fleet.best(class) else { return };
        self.fleet.take(gpu, choice);
        let instance = self.fleet.instance(gpu, choice.place);
        let (node, at) = self.at[&gpu];
        self.slices += 1;
        let id = SliceId::new(format!("s{}", self.slices));
        let uuid = self.nodes[node].observed.gpus[at].uuid.clone();
        let slice =
            WantedSlice { id: id.clone(), gpu: uuid.clone(), shape: Shape::mig(instance), reservation: None };
        self.nodes[node].wanted.push(slice);
        let wanted: Vec<Instance> = wanted_on(&self.nodes[node], &uuid).collect();
        let text = format!("{}: {} at {}", self.name, instance.profile, instance.placement);
        if let Some(fault) = fault(self.table, &wanted) {
            found.illegal.push(format!("decision {text}: {fault}"));
        }
        let plan = self.planned(node, found);
        if plan.refused.iter().any(|(refused, _)| *refused == id) {
            found.illegal.push(format!("decision {text}: the planner refuses it: {:?}", plan.refused));
        }
        // A slice is desired before it is held, and some pods never start.
        let held = self.random.below(4) > 0;
        let instances = &mut self.nodes[node].observed.gpus[at].instances;
        match instances.iter_mut().find(|o| o.instance == instance) {
            Some(made) => made.held = held,
            None => found.illegal.push(format!("decision {text}: no step made it")),
        }
        self.running.push(Running { gpu, place: choice.place, id });
    }

    /// Plans for a node, checks the plan and carries it out.
    fn planned(&mut self, node: usize, found: &mut Found) -> Plan {
        let node = &mut self.nodes[node];
        let plan = looked_at(self.name, self.table, &node.observed, &node.wanted, found);
        for step in &plan.steps {
            // The result is ignored, because `looked_at` has already counted the faults.
            let _ = carry_out(self.table, &mut node.observed, &node.wanted, step);
        }
        plan
    }

    /// Adds up to three desired slices to a node, at any place. What cannot be made must be refused, and what is in use
    /// must stay. The plan is not carried out.
    fn want_anything(&mut self, found: &mut Found) {
        let node = self.random.below(self.nodes.len());
        let mut wanted = self.nodes[node].wanted.clone();
        for n in 0..=self.random.below(3) {
            let instance = self.places[self.random.below(self.places.len())];
            let gpu = GpuUuid::new(format!("GPU-{}", self.random.below(GPUS)));
            let id = SliceId::new(format!("extra-{n}"));
            wanted.push(WantedSlice { id, gpu, shape: Shape::mig(instance), reservation: None });
        }
        looked_at(self.name, self.table, &self.nodes[node].observed, &wanted, found);
    }
}

/// Makes a plan, has core check it, and carries it out on a copy.
fn looked_at(
    name: &str,
    table: &MigTable,
    observed: &Observed,
    wanted: &[WantedSlice],
    found: &mut Found,
) -> Plan {
    let plan = plan(observed, wanted);
    found.plans += 1;
    if let Err(violation) = check(observed, wanted, &plan) {
        found.illegal.push(format!("plan, {name}: {violation}"));
    }
    let mut copy = observed.clone();
    for step in &plan.steps {
        if let Err(fault) = carry_out(table, &mut copy, wanted, step) {
            found.illegal.push(format!("plan, {name}, {step}: {fault}"));
        }
    }
    plan
}

/// Carries out a step as a GPU would. A step that the GPU refuses, or that destroys what is in use, is a fault.
fn carry_out(
    table: &MigTable,
    observed: &mut Observed,
    wanted: &[WantedSlice],
    step: &Step,
) -> Result<(), &'static str> {
    let (Step::Destroy { gpu, instance, .. } | Step::Create { gpu, instance, .. }) = step else {
        return Err("a share on a GPU in MIG mode");
    };
    let this = observed.gpus.iter_mut().find(|g| g.uuid == *gpu).ok_or("no such GPU")?;
    let found = this.instances.iter().position(|o| o.instance == *instance);
    if let Step::Create { .. } = step {
        this.instances.push(ObservedInstance {
            instance: *instance,
            held: false,
            parts: Vec::new(),
            replicas: Vec::new(),
        });
        let all: Vec<Instance> = this.instances.iter().map(|o| o.instance).collect();
        return fault(table, &all).map_or(Ok(()), Err);
    }
    let at = found.ok_or("it is not there")?;
    if this.instances[at].held {
        return Err("it is held");
    }
    if wanted.iter().any(|slice| slice.gpu == *gpu && slice.shape == Shape::mig(*instance)) {
        return Err("it is desired");
    }
    this.instances.remove(at);
    Ok(())
}

fn wanted_on(node: &Node, gpu: &GpuUuid) -> impl Iterator<Item = Instance> {
    node.wanted.iter().filter(move |slice| slice.gpu == *gpu).filter_map(|slice| slice.shape.instance())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_decision_and_no_plan_is_illegal_on_any_model() {
        let found = run(3000).unwrap();
        assert_eq!(found.illegal, Vec::<String>::new());
        assert!(found.decisions > 500 && found.plans > 500 && found.models > 10);
    }

    #[test]
    fn a_step_that_takes_what_is_in_use_is_found() {
        let table = crate::packing::table().unwrap();
        let instance =
            Instance { profile: "1g.10gb".parse().unwrap(), placement: Placement { start: 0, size: 1 } };
        let gpu = GpuUuid::new("GPU-0");
        let observed = |held| Observed {
            gpus: vec![ObservedGpu {
                uuid: gpu.clone(),
                allowed: Allowed::default(),
                memory: MemoryMib(0),
                table: Some(table.clone()),
                instances: vec![ObservedInstance { instance, held, parts: Vec::new(), replicas: Vec::new() }],
                shares: vec![],
            }],
        };
        let destroy = Step::Destroy { gpu: gpu.clone(), instance, part: None };
        let shape = Shape::mig(instance);
        let wanted = WantedSlice { id: SliceId::new("s"), gpu: gpu.clone(), shape, reservation: None };
        assert_eq!(carry_out(&table, &mut observed(true), &[], &destroy), Err("it is held"));
        assert_eq!(carry_out(&table, &mut observed(false), &[wanted], &destroy), Err("it is desired"));
        let create = Step::Create { gpu: gpu.clone(), instance, part: None, id: SliceId::new("s") };
        let twice = carry_out(&table, &mut observed(false), &[], &create);
        assert_eq!(twice, Err("a memory slice is used twice"));
    }
}
