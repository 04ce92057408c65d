//! Decides what to measure, and on which GPU, from the cluster's `GpuNodes`. No I/O.

use super::{LeftOut, Technology};
use crate::counted::counted;
use kerf_core::contract::{GpuNodeSpec, GpuNodeStatus};
use kerf_core::inventory::{GpuInventory, NodeInventory};
use kerf_core::kind::Kind;
use kerf_core::units::{ComputePercent, SizeGb};
use thiserror::Error;

#[derive(Debug, Clone)]
pub struct Node {
    pub name: String,
    pub spec: GpuNodeSpec,
    pub status: GpuNodeStatus,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Target {
    pub node: String,
    pub gpu: GpuInventory,
}

#[derive(Debug, Clone, Copy)]
pub struct Wanted<'w> {
    /// The technologies; empty for all that the GPUs offer.
    pub technologies: &'w [Technology],
    pub copies: &'w [u32],
    pub size: SizeGb,
    pub threads: ComputePercent,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Planned {
    pub technology: Technology,
    pub copies: u32,
    /// The part of the compute that each copy asks for; `None` without limits, and for other kinds than MPS.
    pub threads: Option<ComputePercent>,
    pub size: SizeGb,
    pub target: Target,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Plan {
    pub points: Vec<Planned>,
    /// What cannot be measured, with the reason.
    pub left_out: Vec<LeftOut>,
}

#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PlanError {
    #[error("no node is served by kerf's agent; kubectl get gpunodes shows what is in the way")]
    NoNode,
    #[error("--gpu {0}: no node has this GPU and is served; there are {1}")]
    UnknownGpu(String, String),
    #[error(
        "every GPU is used or sick, and what is measured beside others is worth nothing: {0}; wait, or name another by --gpu"
    )]
    NoneFree(String),
    #[error("--technologies {technology}: {reason}")]
    NotOffered { technology: Technology, reason: String },
}

/// The free GPUs of ready nodes. A GPU in use is never measured, because its pods would change the figures.
pub fn free(nodes: &[Node], named: Option<&str>) -> Result<Vec<Target>, PlanError> {
    let served: Vec<&Node> = nodes.iter().filter(|node| node.status.is_ready()).collect();
    let (mut free, mut used, mut all) = (Vec::new(), Vec::new(), Vec::new());
    for node in &served {
        for (gpu, status) in
            NodeInventory::from_spec(&node.spec, &node.status).gpus.into_iter().zip(&node.status.gpus)
        {
            let uuid = gpu.uuid.to_string();
            all.push(uuid.clone());
            if named.is_some_and(|named| named != uuid) {
                continue;
            }
            match trouble(&gpu, status.message.as_deref()) {
                None => free.push(Target { node: node.name.clone(), gpu }),
                Some(trouble) => used.push(format!("{uuid} on {} {trouble}", node.name)),
            }
        }
    }
    match named {
        _ if served.is_empty() => Err(PlanError::NoNode),
        Some(named) if !all.iter().any(|uuid| uuid == named) => {
            Err(PlanError::UnknownGpu(named.to_owned(), all.join(", ")))
        }
        _ if free.is_empty() => Err(PlanError::NoneFree(used.join("; "))),
        _ => Ok(free),
    }
}

fn trouble(gpu: &GpuInventory, message: Option<&str>) -> Option<String> {
    if let Some(message) = message {
        return Some(format!("is sick: {message}"));
    }
    if let Some(taken) = gpu.taken().next() {
        return Some(format!("has a slice that is a pod's ({taken})"));
    }
    if !gpu.undivided {
        return Some("is used by processes that kerf did not place".to_owned());
    }
    gpu.layout.is_some().then(|| "has a fixed layout by its node's policy".to_owned())
}

/// Plans the points. All shares and the whole GPU are on one GPU, so that their figures compare; MIG may be on another.
pub fn plan(wanted: Wanted, free: &[Target]) -> Result<Plan, PlanError> {
    let asked = if wanted.technologies.is_empty() { &Technology::ALL[..] } else { wanted.technologies };
    let offers = |target: &Target| {
        let has = |technology: &&Technology| {
            technology.kind() != Kind::Mig && offered(**technology, target).is_ok()
        };
        asked.iter().filter(has).count()
    };
    // `max_by_key` returns the last of equal GPUs. The order is reversed so that it is the first.
    let shares = free.iter().rev().max_by_key(|target| offers(target));
    let mig = free.iter().find(|target| offered(Technology::Mig, target).is_ok());
    let mut plan = Plan::default();
    for technology in asked {
        let target = if technology.kind() == Kind::Mig { mig.or(shares) } else { shares };
        let Some(target) = target else { continue };
        if let Err(reason) = offered(*technology, target) {
            if !wanted.technologies.is_empty() {
                return Err(PlanError::NotOffered { technology: *technology, reason });
            }
            plan.left_out.push(LeftOut { technology: *technology, copies: None, reason });
            continue;
        }
        // A whole GPU has room for one copy only, so other numbers are not planned.
        let alone = [1];
        let copies = if *technology == Technology::Whole { &alone[..] } else { wanted.copies };
        for copies in copies {
            match point(wanted, *technology, *copies, target) {
                Ok(point) => plan.points.push(point),
                Err(reason) => {
                    plan.left_out.push(LeftOut { technology: *technology, copies: Some(*copies), reason });
                }
            }
        }
    }
    Ok(plan)
}

/// Whether the GPU offers the technology now; the error is the reason for the user.
fn offered(technology: Technology, target: &Target) -> Result<(), String> {
    let Target { node, gpu } = target;
    let kind = technology.kind();
    if !gpu.kinds.contains(&kind) {
        let kinds: Vec<&str> = gpu.kinds.iter().map(|kind| kind.as_str()).collect();
        let has = if kinds.is_empty() { "nothing".to_owned() } else { kinds.join(", ") };
        return Err(format!(
            "no free GPU offers {kind} now; {} on {node} offers {has}, by its MIG mode and its node's policy",
            gpu.uuid
        ));
    }
    match gpu.rule.replicas(kind) {
        Some(_) => Err(format!(
            "{node}'s policy has {} in equal replicas, which are not asked for by size",
            gpu.uuid
        )),
        _ if technology == Technology::MpsLimited && !gpu.rule.mps.limits_compute() => Err(format!(
            "{node}'s policy lets the shares of {} use what the others leave (mps.computeLimit: none)",
            gpu.uuid
        )),
        _ => Ok(()),
    }
}

fn point(wanted: Wanted, technology: Technology, copies: u32, target: &Target) -> Result<Planned, String> {
    let Wanted { size, .. } = wanted;
    let gpu = &target.gpu;
    let point = |size, threads| Planned { technology, copies, threads, size, target: target.clone() };
    if technology == Technology::Whole {
        return Ok(point(gpu.memory.nominal(), None));
    }
    if technology == Technology::Mig {
        return Ok(point(size, None));
    }
    let memory = match technology.kind() {
        Kind::Mps => gpu.rule.mps.memory_percent.limit_for(gpu.for_shares()),
        _ => gpu.for_shares(),
    };
    let room = memory.0 / size.share_memory().0.max(1);
    if u64::from(copies) > room {
        return Err(format!("the GPU has room for {room} of {size} each; ask for less by --memory"));
    }
    if technology == Technology::TimeSlicing {
        return Ok(point(size, None));
    }
    // This comes after the memory, because an MPS server has a limit of clients besides it.
    if let Some(most) = gpu.mps_shares.filter(|most| copies > *most) {
        return Err(format!("the GPU's MPS server takes {}", counted(most, "client")));
    }
    let percent = gpu.rule.mps.memory_percent.percent();
    let threads = threads(percent, copies);
    if technology == Technology::Mps {
        return Ok(point(size, threads.filter(|_| gpu.rule.mps.limits_compute())));
    }
    if u64::from(wanted.threads.get()) * u64::from(copies) > percent {
        let most = threads.map_or(0, ComputePercent::get);
        return Err(format!(
            "together they would have more than the {percent} % of the threads that the node's policy lets shares come to; ask for {most} or less by --threads"
        ));
    }
    Ok(point(size, Some(wanted.threads)))
}

pub fn threads(percent: u64, copies: u32) -> Option<ComputePercent> {
    let each = percent / u64::from(copies.max(1));
    ComputePercent::new(u8::try_from(each.min(100)).unwrap_or(100))
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
