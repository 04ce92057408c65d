//! The setting of a world: its nodes, pods, policy and limits.

use kerf_core::contract::{GpuNodeStatus, GpuRule, NodePolicy, RequestDocument};
use kerf_core::packing::Fleet;
use kerf_core::testing::{MIXED_REQUESTS, node_status, request};
use std::time::Duration;

/// How long a leader that is awake may rely on its Lease after a renewal.
pub const LEADER_TIMEOUT: Duration = Duration::from_secs(10);

/// How long after a renewal another replica may take the Lease.
pub const LEASE_TIMEOUT: Duration = Duration::from_secs(15);

/// How long a bind is open.
pub const BIND_TIMEOUT: Duration = Duration::from_secs(9);

/// How long after the gate a leader waits for the answer to its Binding.
pub const POST_GRACE: Duration = Duration::from_millis(800);

/// A world before anything has happened.
#[derive(Debug, Clone)]
pub struct Setting {
    pub name: &'static str,
    pub nodes: Vec<GpuNodeStatus>,
    pub policy: NodePolicy,
    pub pods: Vec<RequestDocument>,
    pub leaders: usize,
    /// How many upsets there may be.
    pub upsets: u32,
    /// Whether gone pods are recreated.
    pub recreates: bool,
    /// A fleet without GPUs, which keeps what is computed once for each model.
    pub fleet: Fleet,
}

impl Setting {
    /// Worlds in which every sequence of events is tried.
    pub fn small() -> Vec<Self> {
        let small = |name, gpu: &str, nodes: usize, pods: &[(&str, u32)]| Self {
            name,
            nodes: vec![node_status(&[gpu]); nodes],
            policy: NodePolicy::default(),
            pods: pods.iter().map(|(name, count)| request(name, *count)).collect(),
            leaders: 2,
            upsets: 2,
            recreates: false,
            fleet: fleet(&[node_status(&[gpu])]),
        };
        vec![
            // A T4 has three places, and each pod asks for two.
            small("one T4", "T4-16GB", 1, &[("nvidia.com/gpu-4gb", 2), ("nvidia.com/gpu-4gb", 2)]),
            small("two T4", "T4-16GB", 2, &[("nvidia.com/gpu-4gb", 2), ("nvidia.com/gpu-4gb", 2)]),
            // An H100 has three places for the first pod and one for the second, which leaves room for one slice of the
            // first.
            small(
                "one H100",
                "H100-80GB",
                1,
                &[("nvidia.com/mig-2g.20gb", 2), ("nvidia.com/mig-4g.40gb", 1)],
            ),
        ]
    }

    /// A world in which random events happen.
    pub fn large(nodes: usize, pods: usize, leaders: usize) -> Self {
        const NODES: [&[&str]; 3] = [&["H100-80GB", "T4-16GB"], &["H100-80GB"], &["T4-16GB"]];
        let mut rule = GpuRule { compute_instances: true, ..GpuRule::default() };
        rule.mig.time_slicing = 3.try_into().ok();
        let nodes: Vec<_> = (0..nodes).map(|node| node_status(NODES[node % NODES.len()])).collect();
        Self {
            name: "large",
            fleet: fleet(&nodes),
            nodes,
            policy: NodePolicy { gpus: vec![rule], ..NodePolicy::default() },
            pods: (0..pods)
                .map(|pod| MIXED_REQUESTS[pod % MIXED_REQUESTS.len()])
                .map(|(name, n)| request(name, n))
                .collect(),
            leaders,
            upsets: u32::MAX,
            recreates: true,
        }
    }
}

fn fleet(nodes: &[GpuNodeStatus]) -> Fleet {
    let mut fleet = Fleet::default();
    for gpu in nodes.iter().flat_map(|node| &node.gpus) {
        if let Some(known) = fleet.add(&gpu.profiles, [], []) {
            fleet.remove(known);
        }
    }
    fleet
}
