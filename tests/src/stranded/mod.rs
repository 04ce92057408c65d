//! Small random clusters with one pod each, and which kinds can serve the pod on which node.
//!
//! The account shares no code with kerf-core. It counts places of GPU instances by the simulated NVML's
//! rules, and memory by the GPUs' totals and what the docs say is kept free. It applies kube-scheduler's
//! checks to the fields of the pod and the nodes.

mod account;
mod decided;
mod random_case;
mod scheduled;

use kerf_core::contract::RequestDocument;
use kerf_core::kind::{IsolationClass, Kind};
use kerf_core::resource::{ResourceName, neutral_size};
use kerf_core::testing::request_sized;
use kerf_core::units::SizeGb;
use kerf_nvml_mock::GpuState;

pub use decided::decide;
pub use scheduled::Scene;

#[derive(Debug, Clone)]
pub struct Case {
    pub nodes: Vec<CaseNode>,
    pub pod: CasePod,
}

#[derive(Debug, Clone)]
pub struct CaseNode {
    pub gpus: Vec<CaseGpu>,
    pub tainted: bool,
    pub cpu: u32,
    pub zone: &'static str,
    /// Whether it has the pod that others may avoid by anti-affinity.
    pub has_neighbour: bool,
    /// Whether its agent has registered neutral names.
    pub knows_neutral_names: bool,
}

/// A GPU as the simulated NVML has it, and the shares on it. All instances and shares are in use.
#[derive(Debug, Clone)]
pub struct CaseGpu {
    pub state: GpuState,
    /// Kind and size in GB of each share. A whole GPU is one of them.
    pub shares: Vec<(Kind, u32)>,
}

/// A pod that asks for one slice.
#[derive(Debug, Clone)]
pub struct CasePod {
    pub gb: u32,
    pub isolation: IsolationClass,
    /// The kinds that may serve it, the preferred one first.
    pub kinds: Vec<Kind>,
    pub cpu: u32,
    /// The zone of its volume.
    pub zone: Option<&'static str>,
    /// Whether it avoids the neighbour by anti-affinity.
    pub apart: bool,
    /// Whether it tolerates the taint.
    pub tolerates: bool,
}

impl CasePod {
    #[must_use]
    pub fn name(&self) -> ResourceName {
        let size = SizeGb(self.gb);
        ResourceName::Neutral(neutral_size(size).unwrap_or(size))
    }

    #[must_use]
    pub fn request(&self) -> RequestDocument {
        let mut document = request_sized(self.name(), SizeGb(self.gb), 1);
        document.isolation = self.isolation;
        document.containers[0].kinds.clone_from(&self.kinds);
        document
    }
}

/// How a pod fared, compared with the account.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It has the best kind with capacity on a node that it may use.
    Served(Kind),
    /// It is pending, and no kind has capacity for it.
    Waits,
    /// It is pending although this kind has capacity on a node that it may use.
    Stranded(Kind),
    /// It has this kind, although the account finds no capacity there, or the pod may not use the node.
    Impossible(Kind),
    /// It has the first kind, although the second is better and has capacity.
    Worse(Kind, Kind),
}

impl Verdict {
    /// Whether the verdict is a fault of kerf.
    #[must_use]
    pub fn is_wrong(self) -> bool {
        !matches!(self, Self::Served(_) | Self::Waits)
    }
}

impl Case {
    /// The verdict on a pod with this kind on the node of this index, or on a pending one.
    #[must_use]
    pub fn judge(&self, given: Option<(usize, Kind)>) -> Verdict {
        let best = self.pod.kinds.iter().copied().find(|kind| !self.nodes_with(*kind).is_empty());
        match (given, best) {
            (None, None) => Verdict::Waits,
            (None, Some(best)) => Verdict::Stranded(best),
            (Some((node, kind)), _) if !self.nodes_with(kind).contains(&node) => Verdict::Impossible(kind),
            (Some((_, kind)), Some(best)) if kind != best => Verdict::Worse(kind, best),
            (Some((_, kind)), _) => Verdict::Served(kind),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_goes_by_what_has_room_where_the_pod_may_go() {
        let mut case = Case::random(1);
        case.nodes.truncate(1);
        let node = &mut case.nodes[0];
        let state = kerf_nvml_mock::MockState::first_boot(&kerf_nvml_mock::MockConfig::new().gpus(
            kerf_nvml_mock::Model::H100,
            1,
            kerf_nvml_mock::MigMode::Enabled,
        ));
        node.gpus = vec![CaseGpu { state: state.unwrap().gpus.remove(0), shares: Vec::new() }];
        (node.tainted, node.cpu, node.has_neighbour, node.knows_neutral_names) = (false, 8, true, true);
        let pod = CasePod {
            gb: 10,
            isolation: IsolationClass::Memory,
            kinds: vec![Kind::Mps, Kind::Mig],
            cpu: 8,
            zone: None,
            apart: false,
            tolerates: false,
        };
        let judged = |pod: &CasePod, given| Case { pod: pod.clone(), nodes: case.nodes.clone() }.judge(given);
        assert_eq!(judged(&pod, None), Verdict::Stranded(Kind::Mig));
        assert_eq!(judged(&pod, Some((0, Kind::Mig))), Verdict::Served(Kind::Mig));
        assert_eq!(judged(&pod, Some((0, Kind::Mps))), Verdict::Impossible(Kind::Mps));
        assert_eq!(judged(&CasePod { cpu: 9, ..pod.clone() }, None), Verdict::Waits);
        assert_eq!(judged(&CasePod { apart: true, ..pod.clone() }, None), Verdict::Waits);
        assert_eq!(judged(&CasePod { gb: 81, ..pod }, None), Verdict::Waits);
    }
}
