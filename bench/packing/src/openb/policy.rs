//! The rules that are compared on the trace.

use kerf_core::packing::fraction::{
    CpuMilli, GpuDemand, GpuMilli, ModelSet, Models, Node as KerfNode, Nodes, Part, Request, Sharing,
    Workload,
};
use kerf_core::units::MemoryMib;

use super::fgd::Fgd;
use super::replay::{Decider, Left, Place};
use super::trace::{Node, Pod};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// The first node that has room, and its first GPUs.
    FirstFit,
    /// The node with the smallest part left, and the GPU with the least left.
    BestFit,
    /// A copy of FGD, which has the usual pods in advance. Ties go to the first node.
    Fgd,
    /// kerf, which learns what is usual.
    Kerf,
    /// kerf, which has the usual pods in advance.
    KerfKnown,
}

impl Policy {
    /// All rules, in the order of the table.
    pub const ALL: [Self; 5] = [Self::FirstFit, Self::BestFit, Self::Fgd, Self::KerfKnown, Self::Kerf];

    /// The rule's name in the table.
    pub fn name(self) -> &'static str {
        match self {
            Self::FirstFit => "first-fit",
            Self::BestFit => "best-fit",
            Self::Fgd => "FGD",
            Self::Kerf => "kerf",
            Self::KerfKnown => "kerf, knowing",
        }
    }

    /// The rule on empty nodes, for a workload of these pods.
    pub fn decider(self, nodes: &[Node], pods: &[Pod]) -> Box<dyn Decider> {
        match self {
            Self::FirstFit => Box::new(FirstFit),
            Self::BestFit => Box::new(BestFit { empty: nodes.to_vec() }),
            Self::Fgd => Box::new(Fgd::new(nodes, pods)),
            Self::Kerf => Box::new(Kerf::new(nodes, None)),
            Self::KerfKnown => Box::new(Kerf::new(nodes, Some(pods))),
        }
    }
}

/// The first GPUs in this order on which the pod has room; `None` if they are too few.
fn gpus_in_order(left: &Left, pod: &Pod, order: impl Iterator<Item = usize>) -> Option<Vec<usize>> {
    let room = order.filter(|gpu| left.gpus[*gpu] >= pod.milli);
    let gpus: Vec<usize> = room.take(usize::from(pod.gpus)).collect();
    (left.may_take(pod) && gpus.len() == usize::from(pod.gpus)).then_some(gpus)
}

struct FirstFit;

impl Decider for FirstFit {
    fn decide(&mut self, left: &[Left], pod: &Pod) -> Option<Place> {
        let place = |(node, left): (usize, &Left)| {
            gpus_in_order(left, pod, 0..left.gpus.len()).map(|gpus| Place { node, gpus })
        };
        left.iter().enumerate().find_map(place)
    }
}

struct BestFit {
    empty: Vec<Node>,
}

impl Decider for BestFit {
    fn decide(&mut self, left: &[Left], pod: &Pod) -> Option<Place> {
        let part_left = |node: usize| {
            let (left, empty) = (&left[node], &self.empty[node]);
            let gpus: f64 = left.gpus.iter().map(|gpu| f64::from(*gpu)).sum();
            let all: f64 = left.gpus.iter().map(|_| 1000.0).sum();
            f64::from(left.cpu) / f64::from(empty.cpu).max(1.0) + gpus / all.max(1.0)
        };
        let place = |node: usize| {
            let mut order: Vec<usize> = (0..left[node].gpus.len()).collect();
            order.sort_by_key(|gpu| left[node].gpus[*gpu]);
            gpus_in_order(&left[node], pod, order.into_iter()).map(|gpus| Place { node, gpus })
        };
        let places = (0..left.len()).filter_map(place);
        places.min_by(|a, b| part_left(a.node).total_cmp(&part_left(b.node)))
    }
}

struct Kerf {
    nodes: Nodes,
    models: Models,
}

impl Kerf {
    fn new(nodes: &[Node], known: Option<&[Pod]>) -> Self {
        let mut models = Models::default();
        let requests: Option<Vec<Request>> =
            known.map(|pods| pods.iter().map(|pod| request(&mut models, pod)).collect());
        let mut fleet = Nodes::new(requests.map_or_else(Workload::default, |known| Workload::known(&known)));
        for node in nodes {
            let model = models.intern(&node.model).expect("a trace has few models");
            let memory = MemoryMib(u64::from(node.memory));
            fleet.add(KerfNode::new(CpuMilli(node.cpu), memory, model, node.gpus));
        }
        Self { nodes: fleet, models }
    }
}

fn request(models: &mut Models, pod: &Pod) -> Request {
    let part = Part::new(GpuMilli(pod.milli), Sharing::Mps).filter(|_| pod.gpus == 1);
    let allowed = pod.models.iter().filter_map(|name| models.intern(name).ok());
    Request {
        cpu: CpuMilli(pod.cpu),
        memory: MemoryMib(u64::from(pod.memory)),
        gpus: part.map_or(GpuDemand::whole(pod.gpus), GpuDemand::Part),
        models: if pod.models.is_empty() { ModelSet::ANY } else { allowed.collect() },
    }
}

impl Decider for Kerf {
    fn decide(&mut self, _: &[Left], pod: &Pod) -> Option<Place> {
        let request = request(&mut self.models, pod);
        self.nodes.learn(&request);
        let place = self.nodes.place(&request)?;
        // What kerf itself refuses counts as dropped. The replay finds what kerf wrongly accepts.
        self.nodes.take(place.node, &request, place.gpus).ok()?;
        Some(Place { node: place.node.index(), gpus: place.gpus.iter().collect() })
    }
}
