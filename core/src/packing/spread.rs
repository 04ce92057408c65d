//! The spread of a pod's slices of one name over a node's GPUs.

use crate::kind::Kind;

/// How a pod's slices of one name are spread over a node's GPUs.
///
/// The kubelet gives any slice of a name to any of the pod's containers that request the name. It asks the agent for a
/// preference only if no NUMA node has decided before. Therefore the requirement of one container holds for all slices
/// of the name: the container has what it needs whatever the kubelet picks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spread {
    /// Any GPUs, in any combination.
    Any,
    /// One GPU for all: needed for several MPS shares of one container, because a process talks to one daemon.
    OneGpu,
    /// A different GPU for each: needed if a container asks for several GPUs.
    DistinctGpus,
}

impl Spread {
    /// The spread for slices of one name and kind. Each item is a container: the number of its slices, and whether they
    /// must be on different GPUs.
    #[must_use]
    pub fn for_slices(kind: Option<Kind>, containers: impl IntoIterator<Item = (u32, bool)>) -> Self {
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

    /// The number of slices that a node can have, from the number that each of its GPUs has room for.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_has_the_slices_that_its_gpus_have_room_for() {
        let of = |spread: Spread| [spread.sum([3, 0, 2].into_iter()), spread.sum([].into_iter())];
        assert_eq!([of(Spread::Any), of(Spread::OneGpu), of(Spread::DistinctGpus)], [[5, 0], [3, 0], [2, 0]]);
        assert_eq!(Spread::Any.sum([u32::MAX, 2].into_iter()), u32::MAX);
    }

    #[test]
    fn the_strictest_container_decides() {
        let mps =
            |containers: &[(u32, bool)]| Spread::for_slices(Some(Kind::Mps), containers.iter().copied());
        assert_eq!(mps(&[(1, true), (1, false)]), Spread::Any, "one slice is on one GPU anyway");
        assert_eq!(mps(&[(2, false), (1, true)]), Spread::OneGpu);
        for both in [[(2, false), (2, true)], [(2, true), (2, false)]] {
            assert_eq!(mps(&both), Spread::DistinctGpus);
        }
        assert_eq!(Spread::for_slices(Some(Kind::Mig), [(2, false)]), Spread::Any);
    }
}
