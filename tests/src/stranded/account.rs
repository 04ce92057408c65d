//! Computes where a case's pod may go, and which GPUs have capacity there.

use kerf_core::kind::Kind;
use kerf_nvml_mock::GpuState;

use super::{Case, CaseGpu, CaseNode, CasePod};

/// The sizes of shares that have names, in GB (docs/reference/requests.md).
const SHARES: [u32; 24] =
    [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 14, 16, 18, 20, 22, 24, 32, 40, 48, 64, 80, 96];

impl Case {
    /// The nodes, by index, that the pod may use and that have capacity of this kind.
    pub(super) fn nodes_with(&self, kind: Kind) -> Vec<usize> {
        let may = self.nodes.iter().enumerate().filter(|(_, node)| node.may_have(&self.pod));
        let has = may.filter(|(_, node)| node.gpus.iter().any(|gpu| gpu.has_room(kind, self.pod.gb)));
        has.map(|(place, _)| place).collect()
    }
}

impl CaseNode {
    /// Whether the pod may be bound to the node, apart from the capacity of its GPUs.
    pub(super) fn may_have(&self, pod: &CasePod) -> bool {
        self.is_offered(pod) && self.knows_neutral_names
    }

    /// Whether kube-scheduler offers the node to the extender.
    pub(super) fn is_offered(&self, pod: &CasePod) -> bool {
        (pod.tolerates || !self.tainted)
            && pod.cpu <= self.cpu
            && pod.zone.is_none_or(|zone| zone == self.zone)
            && !(pod.apart && self.has_neighbour)
    }
}

impl CaseGpu {
    fn has_room(&self, kind: Kind, gb: u32) -> bool {
        match kind {
            Kind::Mig => self.state.mig.current && has_place(&self.state, gb),
            Kind::Whole => {
                let all = gigabytes_of(self.total_mib());
                !self.state.mig.current && self.shares.is_empty() && gb <= all && 2 * gb > all
            }
            Kind::Mps | Kind::TimeSlicing => {
                let share = SHARES.into_iter().find(|size| *size >= gb);
                share.is_some_and(|share| !self.state.mig.current && self.has_memory(kind, share))
            }
        }
    }

    /// Whether a share of this size fits beside the existing ones, which must be of its kind.
    fn has_memory(&self, kind: Kind, gb: u32) -> bool {
        let used: u64 = self.shares.iter().map(|(_, gb)| u64::from(*gb) * 1024).sum();
        self.shares.iter().all(|(there, _)| *there == kind)
            && used + u64::from(gb) * 1024 + self.kept_free_mib() <= self.total_mib()
    }

    fn total_mib(&self) -> u64 {
        self.state.model.total_mib()
    }

    /// Memory that no share may have if the driver does not report what it reserves: the largest reservation
    /// ever seen, and the MPS server's memory (docs/limits.md).
    fn kept_free_mib(&self) -> u64 {
        (self.total_mib() / 128).max(640) + 256
    }
}

fn gigabytes_of(mib: u64) -> u32 {
    u32::try_from(mib.div_ceil(1024)).unwrap_or(u32::MAX)
}

/// Whether an instance of a profile whose name has at least this size could be created beside those in use.
fn has_place(gpu: &GpuState, gb: u32) -> bool {
    let plain = gpu.model.profiles().iter().filter(|profile| !profile.media_extension);
    let large = plain.filter(|profile| named_gigabytes(&profile.name).is_some_and(|size| size >= gb));
    large.into_iter().any(|profile| !gpu.free_places(profile.id).is_empty())
}

/// The 10 in a profile's name like `1g.10gb`.
fn named_gigabytes(profile: &str) -> Option<u32> {
    profile.split_once('.')?.1.split("gb").next()?.parse().ok()
}
