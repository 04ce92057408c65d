//! How a pod's slices of one name lie on a node's GPUs.

use crate::kind::Kind;

/// How a pod's slices of one name lie on a node's GPUs.
///
/// The kubelet gives any slice of a name to any of the pod's containers that asks by this name, and asks the agent for its
/// preference only where no NUMA node has decided already. So what one container needs holds for all slices of the name:
/// whichever the kubelet picks, the container has what it needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spread {
    /// On whichever GPUs.
    Any,
    /// All on one: MPS shares do where a container wants several, for a process talks to one daemon.
    OneGpu,
    /// Each on another: where a container needs several GPUs.
    DistinctGpus,
}

impl Spread {
    /// Of the slices of one name, which are of this kind, by the containers that want them: how many each wants, and whether of
    /// different GPUs.
    #[must_use]
    pub fn of(kind: Option<Kind>, containers: impl IntoIterator<Item = (u32, bool)>) -> Self {
        let several = containers.into_iter().filter(|(count, _)| *count > 1);
        let spreads = several.map(|(_, distinct)| match kind {
            _ if distinct => Self::DistinctGpus,
            Some(Kind::Mps) => Self::OneGpu,
            _ => Self::Any,
        });
        let stricter =
            |one: Self, other| if one == Self::Any || other == Self::DistinctGpus { other } else { one };
        spreads.fold(Self::Any, stricter)
    }

    /// How many of the slices a node can have whose GPUs have room for so many each.
    #[must_use]
    pub fn sum(self, rooms: impl Iterator<Item = u32>) -> u32 {
        match self {
            Self::Any => rooms.fold(0, u32::saturating_add),
            Self::OneGpu => rooms.max().unwrap_or(0),
            Self::DistinctGpus => rooms.map(|room| room.min(1)).sum(),
        }
    }

    /// Whether another slice may be on `gpu` beside those on the GPUs `others`.
    pub(super) fn admits(self, gpu: usize, mut others: impl Iterator<Item = usize>) -> bool {
        match self {
            Self::Any => true,
            Self::OneGpu => others.all(|other| other == gpu),
            Self::DistinctGpus => others.all(|other| other != gpu),
        }
    }
}
