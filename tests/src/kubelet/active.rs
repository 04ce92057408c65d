//! The active pods of the node: those whose containers run or will run.

use super::demand::PodKey;

/// A pod that may hold devices and that pod-resources lists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ActivePod {
    pub key: PodKey,
    pub uid: String,
    /// Names of its containers and sidecars, in the spec's order.
    pub containers: Vec<String>,
}

/// The source of the node's pods. It is called with the device manager's lock held, so it must not call back.
pub trait ActivePods: Send + Sync {
    fn active(&self) -> Vec<ActivePod>;

    /// Whether the pods are known yet. A restarted kubelet lists none at first, and must not free their
    /// devices.
    fn are_known(&self) -> bool {
        true
    }
}
