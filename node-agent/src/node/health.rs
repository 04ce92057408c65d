//! What keeps the node from being served: the reasons of the condition `Ready`.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// How long the extender may be without a leader before the node reports that it accepts no new pods.
const LEADER_TIMEOUT: Duration = Duration::from_mins(1);

/// What the agent depends on, in the order in which its troubles are reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Neighbour {
    /// Ill if the last call of NVML failed.
    Nvml,
    /// Whether the kubelet has accepted all resource names.
    Registration,
    /// The pod-resources API, which lists the holders.
    PodResources,
    /// The watch of the pods that are bound to the node.
    Pods,
    /// The policy in the GpuNode.
    Policy,
    /// The connection to the extender's leader.
    Leader,
}

impl Neighbour {
    /// The reason for programs, and the message while it has not answered yet.
    fn texts(self) -> (&'static str, &'static str) {
        match self {
            Self::Nvml => ("NvmlUnavailable", "NVML has not answered yet"),
            Self::Registration => ("KubeletUnavailable", "resource names are being registered"),
            Self::PodResources => ("KubeletUnavailable", "pod-resources has not answered yet"),
            Self::Pods => ("PodsUnknown", "the node's pods have not been listed yet"),
            Self::Policy => ("SpecUnreadable", "the GpuNode has not been read yet"),
            Self::Leader => (
                "NotConnected",
                "the extender's leader has not been reached yet (port 9445 of its pods, extender.agentsPort)",
            ),
        }
    }
}

/// The agent's neighbours, and what is wrong with each.
#[derive(Debug, Clone, Default)]
pub(super) struct Health {
    /// Those that have answered, and why others failed.
    neighbours: BTreeMap<Neighbour, Result<(), String>>,
    /// Why the disk accepts no reservation; `None` if it does.
    disk: Option<String>,
    /// When the connection to the last leader was lost.
    leaderless_since: Option<Instant>,
    /// Whether the GPUs, their holders and the policy were ever known.
    was_complete: bool,
}

impl Health {
    pub(super) fn set(&mut self, neighbour: Neighbour, state: Result<(), String>) {
        self.neighbours.insert(neighbour, state);
    }

    /// Takes why the disk accepts no reservation now.
    pub(super) fn set_disk(&mut self, trouble: Option<String>) {
        self.disk = trouble;
    }

    /// Takes whether a leader is connected.
    pub(super) fn set_leader(&mut self, is_connected: bool, now: Instant) {
        if is_connected {
            self.set(Neighbour::Leader, Ok(()));
            self.leaderless_since = None;
        } else {
            self.leaderless_since.get_or_insert(now);
        }
    }

    /// Reports the lack of a leader once it has lasted too long. Otherwise returns when that will be.
    pub(super) fn await_leader(&mut self, now: Instant) -> Option<Instant> {
        let until = self.leaderless_since? + LEADER_TIMEOUT;
        if until > now {
            return Some(until);
        }
        let text = "no leader of the extender is connected, so the node takes no new pods: the agents must reach \
                    port 9445 of its pods (extender.agentsPort, NetworkPolicies)";
        self.set(Neighbour::Leader, Err(text.to_owned()));
        None
    }

    pub(super) fn is_well(&self, neighbour: Neighbour) -> bool {
        self.neighbours.get(&neighbour) == Some(&Ok(()))
    }

    /// Whether the neighbour has answered, if only with an error.
    pub(super) fn has_answered(&self, neighbour: Neighbour) -> bool {
        self.neighbours.contains_key(&neighbour)
    }

    /// Records whether the GPUs, their holders and the policy are known.
    pub(super) fn observe_complete(&mut self, is_complete: bool) {
        self.was_complete |= is_complete;
    }

    pub(super) fn was_complete(&self) -> bool {
        self.was_complete
    }

    /// Why no leader sends orders.
    pub(super) fn leader_trouble(&self) -> Option<(String, String)> {
        self.trouble_of(Neighbour::Leader)
    }

    /// The first trouble: a reason for programs and a message for people.
    pub(super) fn trouble(&self) -> Option<(String, String)> {
        use Neighbour::{Leader, Nvml, PodResources, Pods, Policy, Registration};
        let disk = || self.disk.clone().map(|text| ("RecordNotWritten".to_owned(), text));
        let others = [Registration, PodResources, Pods, Policy, Leader];
        let of_others = || others.into_iter().find_map(|neighbour| self.trouble_of(neighbour));
        self.trouble_of(Nvml).or_else(disk).or_else(of_others)
    }

    fn trouble_of(&self, neighbour: Neighbour) -> Option<(String, String)> {
        let (reason, unanswered) = neighbour.texts();
        let text = match self.neighbours.get(&neighbour) {
            Some(Ok(())) => return None,
            Some(Err(text)) => text.as_str(),
            None => unanswered,
        };
        Some((reason.to_owned(), text.to_owned()))
    }

    /// What `/readyz` shows: NVML, the kubelet, the GpuNode.
    pub(super) fn readiness(&self) -> [(&'static str, bool); 3] {
        let kubelet = self.is_well(Neighbour::Registration) && self.is_well(Neighbour::PodResources);
        let nvml = self.is_well(Neighbour::Nvml);
        [("nvml", nvml), ("kubelet", kubelet), ("spec", self.is_well(Neighbour::Policy))]
    }
}

#[cfg(test)]
impl Health {
    pub(super) fn forget_leader(&mut self) {
        self.neighbours.remove(&Neighbour::Leader);
    }
}
