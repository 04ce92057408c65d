//! The closed lists of label values of the metrics. The index counts by them, so they are below both.

use prometheus_client::encoding::{EncodeLabelValue, LabelValueEncoder};
use std::fmt;

macro_rules! label {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $name { $($(#[$variant_doc])* $variant,)* }

        impl $name {
            /// Every value: each has a series from the start.
            #[allow(dead_code, reason = "labels that are counted anew at each scrape have no series from the start")]
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
    /// What the scheduler asks for.
    Verb {
        /// Which nodes can serve a pod.
        Filter = "filter",
        /// Which of the feasible nodes is best.
        Prioritize = "prioritize",
        /// On which nodes pods may be evicted for the pod.
        Preempt = "preempt",
        Bind = "bind",
    }
);

label!(
    /// How a request ended.
    Outcome {
        /// The request succeeded: some node fits or may be preempted, or the pod is bound.
        Ok = "ok",
        /// No node can serve the pod, or the chosen one cannot.
        Refused = "refused",
        /// The slice was not ready in time.
        TimedOut = "timed-out",
        /// This replica does not lead.
        NotLeader = "not-leader",
        /// The request could not be read.
        BadRequest = "bad-request",
        Error = "error",
    }
);

label!(
    /// How far a reservation is.
    ReservationState {
        /// A filter expects the pod on a node; no agent has an order yet.
        Assumed = "tentative",
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
        /// Until the node's agent has accepted the reservation.
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
        /// A node has room for it now, but kube-scheduler, or something else that the pod asks for, holds it back.
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
        /// It has no GpuNode, so its agent never started.
        NoAgent = "no-agent",
        /// Its agent reports that it is not ready.
        NotReady = "not-ready",
        /// Its agent is not connected to this leader.
        NotConnected = "not-connected",
        /// The agent's report cannot be read.
        Unreadable = "unreadable",
    }
);
