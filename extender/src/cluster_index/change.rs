//! What can happen to a node's spec. A change is a wish and no result: it is applied to whatever spec turns out to be
//! the newest, and applying it twice is applying it once.

use crate::ask::Ask;
use kerf_core::contract::{GpuNodeSpec, GpuNodeStatus};
use kerf_core::ledger::{self, Promisee};
use kerf_core::names::{GpuUuid, PodUid};
use kerf_core::packing::{Fleet, KindPlan, Refusal};
use std::collections::BTreeSet;

/// One change of a node's spec.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Promise slices to a pod.
    Reserve {
        /// The pod.
        pod: Promisee,
        /// What it asks for.
        ask: Ask,
        /// By which kinds it is served, and no others.
        plan: KindPlan,
    },
    /// Give a pod's slices back.
    Release(PodUid),
    /// Follow what the kubelet did.
    FollowHolders {
        /// The pods that are bound to the node.
        bound: BTreeSet<PodUid>,
    },
    /// Take out the slices that could not be made.
    DropFailed,
    /// Take out idle slices that the node's policy does not allow any more.
    DropDisallowed,
    /// Add the idle slices that the node's policy wants kept ready, but not on these GPUs.
    KeepWarm {
        /// GPUs on which such a slice could not be made lately.
        resting: BTreeSet<GpuUuid>,
    },
}

impl Change {
    /// The spec after this change; `None` if nothing changes. `status` is `None` where it cannot be read: then nothing
    /// can be promised, and nothing is concluded from it. Places are chosen for a node of `fleet`.
    pub fn apply(
        &self,
        spec: &GpuNodeSpec,
        status: Option<&GpuNodeStatus>,
        fleet: &Fleet,
    ) -> Result<Option<GpuNodeSpec>, Refusal> {
        match (self, status) {
            (Self::Reserve { pod, ask, .. }, _) if ledger::reserved(spec, &pod.uid).next().is_some() => {
                tracing::trace!(pod = %pod.key, request = %ask.text, "reserved already");
                Ok(None)
            }
            (Self::Reserve { pod, ask, plan }, Some(status)) => {
                ledger::reserve(spec, status, &ask.document.planned(plan), pod, fleet).map(Some)
            }
            (Self::Reserve { .. }, None) => Err(Refusal::UnreadableStatus),
            (Self::Release(uid), _) => Ok(ledger::release(spec, uid)),
            (Self::FollowHolders { bound }, Some(status)) => {
                Ok(ledger::follow_holders(spec, status, |uid| bound.contains(uid)))
            }
            (Self::DropFailed, Some(status)) => Ok(ledger::drop_failed(spec, status)),
            (Self::DropDisallowed, Some(status)) => Ok(ledger::drop_disallowed(spec, status)),
            (Self::KeepWarm { resting }, Some(status)) => Ok(ledger::keep_warm(spec, status, resting, fleet)),
            (
                Self::FollowHolders { .. } | Self::DropFailed | Self::DropDisallowed | Self::KeepWarm { .. },
                None,
            ) => Ok(None),
        }
    }
}
