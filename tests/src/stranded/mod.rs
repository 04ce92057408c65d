//! Small random clusters with one pod each, and by which kinds the pod may have its slice on which node.
//!
//! The account shares no code with kerf-core: places of GPU instances are counted by the simulated NVML's rules, memory by GPUs'
//! totals and what the docs say is kept free, and what kube-scheduler checks by the pod's and the nodes' fields.

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

/// A cluster and its pod.
#[derive(Debug, Clone)]
pub struct Case {
    /// The nodes.
    pub nodes: Vec<CaseNode>,
    /// The pod.
    pub pod: CasePod,
}

/// A node.
#[derive(Debug, Clone)]
pub struct CaseNode {
    /// Its GPUs.
    pub gpus: Vec<CaseGpu>,
    /// Whether it has a taint.
    pub tainted: bool,
    /// Its CPUs.
    pub cpu: u32,
    /// Its zone.
    pub zone: &'static str,
    /// Whether a pod is there of which others may want to be apart.
    pub has_neighbour: bool,
    /// Whether its agent has registered neutral names.
    pub knows_neutral_names: bool,
}

/// A GPU: as the simulated NVML has it, where all instances are in use, and the shares in use.
#[derive(Debug, Clone)]
pub struct CaseGpu {
    /// Mode and instances.
    pub state: GpuState,
    /// Kind and size in GB of each share; a whole GPU is one of them.
    pub shares: Vec<(Kind, u32)>,
}

/// A pod that asks for one slice.
#[derive(Debug, Clone)]
pub struct CasePod {
    /// The size, in GB.
    pub gb: u32,
    /// Its class.
    pub isolation: IsolationClass,
    /// The kinds that may serve it, the preferred one first.
    pub kinds: Vec<Kind>,
    /// The CPUs that it needs.
    pub cpu: u32,
    /// The zone of its volume.
    pub zone: Option<&'static str>,
    /// Whether it wants to be apart from the neighbour.
    pub apart: bool,
    /// Whether it tolerates the taint.
    pub tolerates: bool,
}

impl CasePod {
    /// Its neutral name.
    #[must_use]
    pub fn name(&self) -> ResourceName {
        let size = SizeGb(self.gb);
        ResourceName::Neutral(neutral_size(size).unwrap_or(size))
    }

    /// Its request document.
    #[must_use]
    pub fn request(&self) -> RequestDocument {
        let mut document = request_sized(self.name(), SizeGb(self.gb), 1);
        document.isolation = self.isolation;
        document.containers[0].kinds.clone_from(&self.kinds);
        document
    }
}

/// What became of a pod, beside what the account says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It has the best kind that there is room for where it may go.
    Served(Kind),
    /// It waits, and nothing has room.
    Waits,
    /// It waits though this kind has room where it may go.
    Stranded(Kind),
    /// It has this kind, which the account says has no room there, or the node may not have it.
    Impossible(Kind),
    /// It has the first kind, and the second is better and has room.
    Worse(Kind, Kind),
}

impl Verdict {
    /// Whether it must never be.
    #[must_use]
    pub fn is_wrong(self) -> bool {
        !matches!(self, Self::Served(_) | Self::Waits)
    }
}

impl Case {
    /// The verdict on a pod that was given this kind on the node of this place, or that waits.
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
