//! The rules that must hold after each event, and those that must hold at rest.

use crate::agent::{Agent, Taken, owner};
use crate::api::{self, Phase};
use crate::world::World;
use kerf_core::contract::{MigPart, Shape};
use kerf_core::inventory::NodeInventory;
use kerf_core::kind::Kind;
use kerf_core::ledger::{Answer, NodeState, Order, OrderKind, difference, reserved};
use kerf_core::names::{GpuUuid, PodUid, SliceId};
use kerf_core::packing::fit;
use kerf_core::units::MemoryMib;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// The rule that was violated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// No two pods have reserved, or hold, the same part of a GPU.
    Overlap,
    /// A pod has all the slices that it asks for, or none.
    Whole,
    /// A slice that containers hold exists, and is in the ledger.
    Held,
    /// A pod that is bound and lives has its reservation.
    Bound,
    /// A pod that may still be bound has its reservation, and it is marked.
    Open,
    /// What was answered is on the disk.
    Disk,
    /// An order of a lower epoch changes nothing.
    Epoch,
    /// A reservation whose release was answered is gone.
    Released,
    /// A bind sends nothing after its leader's Lease has ended.
    Lease,
    /// A Binding is sent only once the slices exist.
    Ready,
    /// No bind waits for a connection that has ended.
    Disconnected,
    /// At rest no reservation is left whose pod is not bound.
    Left,
    /// At rest every pod that fits is bound.
    Pending,
    /// At rest copies, disks and ledgers are equal.
    Equal,
    /// The world comes to rest at last.
    Rest,
}

/// A violation of a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    pub rule: Rule,
    text: String,
}

impl Violation {
    pub fn new(rule: Rule, text: String) -> Self {
        Self { rule, text }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.rule, self.text)
    }
}

fn fails<T>(rule: Rule, text: String) -> Result<T, Violation> {
    Err(Violation::new(rule, text))
}

/// Checks what must hold after each event.
pub fn after_each(world: &World<'_>) -> Result<(), Violation> {
    for agent in &world.agents {
        overlaps(world, agent)?;
        held(agent)?;
        whole(world, agent)?;
        on_disk(agent)?;
    }
    bound(world)?;
    open(world)
}

/// Finds overlaps by its own accounts, which use neither core's planner nor its geometry.
fn overlaps(world: &World<'_>, agent: &Agent) -> Result<(), Violation> {
    let desired = &agent.node.ledger.desired().slices;
    let mut gpus: BTreeMap<&GpuUuid, BTreeMap<(&SliceId, Shape), BTreeSet<usize>>> = BTreeMap::new();
    for slice in desired {
        let Some(reservation) = &slice.reservation else { continue };
        let owners = gpus.entry(&slice.gpu).or_default().entry((&slice.id, slice.shape)).or_default();
        // A gone pod's reservation may cover what its namesake holds, until the agent has seen both.
        owners.extend(Some(api::place(&reservation.uid)).filter(|pod| world.pods[*pod].phase != Phase::Gone));
    }
    for (pod, taken) in &agent.running {
        for Taken { id, gpu, shape } in taken {
            let owners = gpus.entry(gpu).or_default().entry((id, *shape)).or_default();
            owners.insert(*pod);
        }
    }
    for (gpu, slices) in gpus {
        if let Some(((id, _), pods)) = slices.iter().find(|(_, pods)| pods.len() > 1) {
            return fails(Rule::Overlap, format!("slice {id} of N{} is for the pods {pods:?}", agent.place));
        }
        let there = agent.report.status.gpus.iter().find(|there| there.uuid == *gpu);
        let shapes: Vec<Shape> = slices.keys().map(|(_, shape)| *shape).collect();
        if let Some(why) = conflict(there.map_or(MemoryMib(0), |gpu| gpu.memory), &shapes) {
            return fails(Rule::Overlap, format!("{gpu} of N{}: {why}", agent.place));
        }
    }
    Ok(())
}

/// Why these shapes cannot exist beside each other on a GPU.
pub fn conflict(memory: MemoryMib, shapes: &[Shape]) -> Option<String> {
    let kinds: BTreeSet<Kind> = shapes.iter().map(|shape| shape.kind()).collect();
    let beside = shapes.iter().filter(|shape| shape.instance().is_none());
    if kinds.len() > 1 || beside.map(|share| share.memory_of(memory).0).sum::<u64>() > memory.0 {
        return Some(format!("{shapes:?}"));
    }
    let mut pairs =
        shapes.iter().enumerate().flat_map(|(n, one)| shapes[..n].iter().map(move |two| (one, two)));
    if let Some((one, two)) = pairs.find(|(one, two)| !apart(one, two)) {
        return Some(format!("{one} and {two}"));
    }
    let instances: BTreeSet<_> = shapes.iter().filter_map(|shape| shape.instance()).collect();
    let compute: u32 = instances.iter().map(|it| u32::from(it.profile.compute())).sum();
    (compute > 7).then(|| format!("{shapes:?}"))
}

fn apart(one: &Shape, two: &Shape) -> bool {
    let (Some(a), Some(b)) = (one.instance(), two.instance()) else { return true };
    if a != b {
        let (a, b) = (a.placement, b.placement);
        return a.start + a.size <= b.start || b.start + b.size <= a.start;
    }
    match (one.mig_part(), two.mig_part()) {
        (MigPart::Compute(a), MigPart::Compute(b)) => {
            a.start + a.compute <= b.start || b.start + b.compute <= a.start
        }
        (MigPart::Replica { replica: a }, MigPart::Replica { replica: b }) => a != b,
        _ => false,
    }
}

fn held(agent: &Agent) -> Result<(), Violation> {
    let desired = &agent.node.ledger.desired().slices;
    let is_desired = |taken: &Taken| desired.iter().any(|slice| slice.id == taken.id);
    let lost = |(_, taken): &(&usize, &Taken)| !agent.exists(&taken.id) || !is_desired(taken);
    let mut all = agent.running.iter().flat_map(|(pod, taken)| taken.iter().map(move |taken| (pod, taken)));
    match all.find(lost) {
        Some((pod, taken)) => {
            fails(Rule::Held, format!("slice {} of N{}, which pod {pod} has, is gone", taken.id, agent.place))
        }
        None => Ok(()),
    }
}

fn whole(world: &World<'_>, agent: &Agent) -> Result<(), Violation> {
    let mut counts: BTreeMap<&PodUid, usize> = BTreeMap::new();
    let reservations =
        agent.node.ledger.desired().slices.iter().filter_map(|slice| slice.reservation.as_ref());
    reservations.for_each(|reservation| *counts.entry(&reservation.uid).or_default() += 1);
    for (uid, count) in counts {
        let Some(pod) = world.pods.get(api::place(uid)) else { continue };
        let asked = asked(world, pod.request);
        if count != asked {
            let text = format!("{uid} has {count} slices of N{} and asks for {asked}", agent.place);
            return fails(Rule::Whole, text);
        }
    }
    Ok(())
}

fn asked(world: &World<'_>, request: usize) -> usize {
    world.setting.pods[request].containers.iter().map(|container| container.count as usize).sum()
}

fn on_disk(agent: &Agent) -> Result<(), Violation> {
    let has = |uid: &&PodUid| reserved(&agent.disk.desired, uid).next().is_some();
    match agent.answered.iter().find(|uid| !has(uid)) {
        Some(uid) => fails(
            Rule::Disk,
            format!("the reservation of {uid} was answered and is not on the disk of N{}", agent.place),
        ),
        None => Ok(()),
    }
}

fn bound(world: &World<'_>) -> Result<(), Violation> {
    for (place, pod) in world.pods.iter().enumerate() {
        let Phase::Bound(node) = pod.phase else { continue };
        if reserved(world.agents[node].node.ledger.desired(), &pod.owner.uid).next().is_none() {
            return fails(
                Rule::Bound,
                format!("pod {place} is bound to N{node} and has no reservation there"),
            );
        }
    }
    Ok(())
}

fn open(world: &World<'_>) -> Result<(), Violation> {
    let unknown = world.bindings.iter().filter(|binding| binding.bound.is_none());
    for binding in unknown.filter(|binding| world.pods[binding.pod].phase == Phase::Pending) {
        let ledger = &world.agents[binding.node].node.ledger;
        let slices: Vec<_> = reserved(ledger.desired(), &world.pods[binding.pod].owner.uid).collect();
        let is_marked = |id: &SliceId| ledger.reservation(id).is_some_and(|reservation| reservation.binding);
        if slices.is_empty() || !slices.iter().all(|slice| is_marked(&slice.id)) {
            let text = format!(
                "pod {} may be bound to N{} by a Binding that is not marked there",
                binding.pod, binding.node
            );
            return fails(Rule::Open, text);
        }
    }
    Ok(())
}

/// Checks what must hold once faults have ended and time has passed.
pub fn at_rest(world: &World<'_>) -> Result<(), Violation> {
    for agent in &world.agents {
        let reservations =
            agent.node.ledger.desired().slices.iter().filter_map(|slice| slice.reservation.as_ref());
        for uid in reservations.map(|reservation| &reservation.uid) {
            let phase = world.pods.get(api::place(uid)).map(|pod| pod.phase);
            if phase != Some(Phase::Bound(agent.place)) {
                return fails(
                    Rule::Left,
                    format!("N{} keeps the reservation of {uid}, which is {phase:?}", agent.place),
                );
            }
        }
        if !agent.is_on_disk() {
            return fails(Rule::Equal, format!("the disk of N{} is behind its ledger", agent.place));
        }
        fits(world, agent)?;
    }
    for (leader, it) in world.leaders.iter().enumerate() {
        for agent in &world.agents {
            let copy = it.copies.0.get(&agent.place).map_or(NodeState::default(), |copy| copy.state.clone());
            if !difference(&copy, &agent.report).is_empty() {
                return fails(Rule::Equal, format!("L{leader} has another copy of N{}", agent.place));
            }
        }
    }
    Ok(())
}

fn fits(world: &World<'_>, agent: &Agent) -> Result<(), Violation> {
    let inventory = NodeInventory::from_spec(agent.node.ledger.desired(), &agent.report.status);
    for (place, pod) in world.pods.iter().enumerate().filter(|(_, pod)| pod.phase == Phase::Pending) {
        if fit(&inventory, &world.setting.pods[pod.request], &world.setting.fleet).is_ok() {
            return fails(
                Rule::Pending,
                format!("pod {place} is pending, and N{} has room for it", agent.place),
            );
        }
    }
    Ok(())
}

/// The text of an order in a trace.
pub fn name(order: &Order) -> String {
    let (uid, epoch) = (owner(&order.kind), order.epoch);
    match &order.kind {
        OrderKind::Reserve(proposal) => {
            let places: Vec<_> =
                proposal.places.iter().map(|place| format!("{} {:?}", place.shape, place.source)).collect();
            format!("Reserve of {uid} in epoch {epoch}: {}", places.join(", "))
        }
        OrderKind::Mark { attempt, .. } => format!("Mark {attempt} of {uid} in epoch {epoch}"),
        OrderKind::Outcome { attempt, bound, .. } => {
            format!(
                "Outcome {attempt} of {uid} in epoch {epoch}: {}",
                if *bound { "bound" } else { "not bound" }
            )
        }
        OrderKind::Release { .. } => format!("Release of {uid} in epoch {epoch}"),
    }
}

/// The text of an order and its answer in a trace.
pub fn said(order: &Order, answer: &Answer) -> String {
    let answer = answer.as_ref().map_or_else(ToString::to_string, |_| "done".to_owned());
    let kind = match &order.kind {
        OrderKind::Reserve(_) => "Reserve",
        OrderKind::Mark { .. } => "Mark",
        OrderKind::Outcome { .. } => "Outcome",
        OrderKind::Release { .. } => "Release",
    };
    format!("{kind} of {}: {answer}", owner(&order.kind))
}
