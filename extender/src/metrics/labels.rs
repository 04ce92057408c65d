//! The closed lists of label values.

use prometheus_client::encoding::{EncodeLabelValue, LabelValueEncoder};
use std::fmt;

macro_rules! label {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $name { $($(#[$variant_doc])* $variant,)* }

        impl $name {
            /// All of them: each has a series from the start.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];
        }

        impl EncodeLabelValue for $name {
            fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> fmt::Result {
                match self { $(Self::$variant => $text,)* }.encode(encoder)
            }
        }
    };
}

label!(
    /// What the scheduler asks.
    Verb {
        /// Which nodes can serve a pod.
        Filter = "filter",
        /// Which of them is best.
        Prioritize = "prioritize",
        /// On which nodes pods may be evicted for it.
        Preempt = "preempt",
        /// Bind it.
        Bind = "bind",
    }
);

label!(
    /// How a request ended.
    Outcome {
        /// As wished: some node fits or may be preempted, or the pod is bound.
        Ok = "ok",
        /// No node can serve the pod, or not the one that was chosen.
        Refused = "refused",
        /// The slice was not ready in time.
        TimedOut = "timed-out",
        /// This replica does not lead.
        NotLeader = "not-leader",
        /// The request could not be read.
        BadRequest = "bad-request",
        /// Something failed.
        Error = "error",
    }
);

label!(
    /// How far a promise is.
    PromiseState {
        /// Expected by a filter, not asked for yet.
        Tentative = "tentative",
        /// Proposed to the node's agent, which has not answered.
        Proposed = "proposed",
        /// The agent has accepted it.
        Accepted = "accepted",
    }
);

label!(
    /// A stage of a pod's way to its Binding. Each begins where the one before ends.
    Stage {
        /// From the pod's creation to its reservation.
        Reserved = "reserved",
        /// Until the node's agent has accepted it.
        Accepted = "accepted",
        /// Until the kubelet offers the slices to the pod.
        Ready = "ready",
        /// Until the Binding is made.
        Bound = "bound",
    }
);

label!(
    /// Why a pod is pending.
    PendingReason {
        /// A node has room for it now; kube-scheduler, or what the pod asks beside slices, keeps it.
        Room = "room",
        /// No node has room for it now.
        Full = "full",
        /// No node could ever serve it.
        Never = "never",
        /// Its namespace's quota is used up.
        Quota = "quota",
        /// It has scheduling gates.
        Gated = "gated",
        /// It has a reservation, and its slices or its Binding are being made.
        Reserved = "reserved",
    }
);

label!(
    /// Why a managed node serves no pods.
    Unserved {
        /// It has no GpuNode: its agent never started.
        NoAgent = "no-agent",
        /// Its agent says that it is not ready.
        NotReady = "not-ready",
        /// Its agent is not connected to this leader.
        NotConnected = "not-connected",
        /// What its agent reports cannot be read.
        Unreadable = "unreadable",
    }
);
