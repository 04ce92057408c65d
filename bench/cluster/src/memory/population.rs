//! The cluster that is measured. Everything follows from numbers, so nothing of it is stored.

use kerf_core::contract::{Condition, GpuNodeSpec, NodePolicy, Reservation, WantedSlice};
use kerf_core::ledger::{Limits, Moment, NodeState, Saved};
use kerf_core::names::{PodUid, SliceId};
use kerf_core::resource::ResourceName;
use kerf_core::testing::{SimulatedNode, h100_shape};

use crate::scheduler::side;

/// The name under which each pod has its slice.
pub const RESOURCE: &str = "nvidia.com/mig-1g.10gb";
/// The container of each pod.
pub const CONTAINER: &str = "main";
/// Slices of [`RESOURCE`] on a GPU.
const PER_GPU: usize = 7;
const GPUS: usize = 8;
const NAMESPACES: usize = 50;

#[derive(Debug, Clone, Copy)]
pub struct Population {
    pub nodes: usize,
    pub pods_per_node: usize,
    pub others_per_node: usize,
}

/// A bound pod: the number of its node, and its own on that node.
#[derive(Debug, Clone, Copy)]
pub struct PodNumber {
    pub node: usize,
    pub slot: usize,
}

impl Population {
    /// The pods with slices.
    pub fn pods(self) -> usize {
        self.nodes * self.pods_per_node
    }

    /// The GPUs of each node on which nothing is cut.
    pub fn whole_gpus(self) -> usize {
        GPUS - self.pods_per_node.div_ceil(PER_GPU)
    }
}

/// The namespaces of all pods.
pub fn namespaces() -> impl Iterator<Item = String> {
    (0..NAMESPACES).map(namespace)
}

fn namespace(number: usize) -> String {
    format!("team-{number:02}")
}

/// The name of a node.
pub fn node_name(node: usize) -> String {
    format!("gpu-h100-{node:05}.example.internal")
}

impl PodNumber {
    /// The pod with this number among all pods of so many on each node.
    pub fn new(number: usize, per_node: usize) -> Self {
        Self { node: number / per_node, slot: number % per_node }
    }

    pub fn namespace(self) -> String {
        namespace(self.node % NAMESPACES)
    }

    pub fn name(self) -> String {
        format!("inference-server-7d9f8b6c5d-{:05}-{:02}", self.node, self.slot)
    }

    pub fn uid(self) -> String {
        format!("5f0f9d2e-{:04x}-4c1a-9d52-{:012x}", self.slot, self.node)
    }

    /// The index of its GPU.
    pub fn gpu(self) -> u32 {
        u32::try_from(self.slot / PER_GPU).unwrap_or_default()
    }

    /// The first memory slice of its GPU instance.
    pub fn start(self) -> u8 {
        u8::try_from(self.slot % PER_GPU).unwrap_or_default()
    }

    pub fn slice(self) -> SliceId {
        SliceId::new(format!("s{}", self.slot + 1))
    }
}

/// What a node's agent reports: every pod holds its slice.
pub fn node_state(node: usize, pods: usize) -> anyhow::Result<NodeState> {
    let mut status = side::status(&node_name(node));
    let ready = status.conditions.pop();
    let of_kind = |kind: &str| ready.clone().map(|ready| Condition { kind: kind.to_owned(), ..ready });
    status.conditions = Condition::ALL.iter().filter_map(|kind| of_kind(kind)).collect();
    let resource: ResourceName = RESOURCE.parse()?;
    let pods: Vec<PodNumber> = (0..pods).map(|slot| PodNumber { node, slot }).collect();
    let wanted = pods.iter().map(|pod| {
        let reservation = Reservation {
            uid: PodUid::new(pod.uid()),
            namespace: pod.namespace(),
            pod: pod.name(),
            container: CONTAINER.to_owned(),
            resource,
            alone: false,
            epoch: 1,
        };
        WantedSlice {
            id: pod.slice(),
            gpu: side::gpu_uuid(&node_name(node), pod.gpu()),
            shape: h100_shape("1g.10gb", pod.start()),
            reservation: Some(reservation),
        }
    });
    let next_slice = u64::try_from(pods.len())?;
    let ledger = GpuNodeSpec { next_slice, slices: wanted.collect(), ..GpuNodeSpec::default() };
    let mut node = SimulatedNode::from_status(status, NodePolicy::default(), Limits::default());
    node.restart(Saved::from(ledger), Moment::default());
    node.cut();
    for pod in &pods {
        node.allocate(&PodUid::new(pod.uid()));
    }
    Ok(node.state())
}

#[cfg(test)]
mod tests {
    use super::*;
    use kerf_core::contract::SliceState;

    #[test]
    fn each_pod_of_a_node_holds_its_slice() {
        let state = node_state(7, 20).unwrap();
        assert!(state.status.is_ready());
        assert_eq!(state.status.slices.len(), 20);
        for (slot, slice) in state.status.slices.iter().enumerate() {
            let pod = PodNumber { node: 7, slot };
            assert_eq!(slice.state, SliceState::Held, "{slice:?}");
            assert_eq!(slice.holder.as_ref().map(|holder| &holder.pod), Some(&pod.name()));
        }
        let population = Population { nodes: 1, pods_per_node: 20, others_per_node: 0 };
        assert_eq!(population.whole_gpus(), 5);
    }
}
