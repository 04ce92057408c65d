//! Which pods count: those on the node whose containers run or will run.

use super::demand::PodKey;

/// A pod that may hold devices and that pod-resources lists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ActivePod {
    /// The pod.
    pub key: PodKey,
    /// Its UID.
    pub uid: String,
    /// Names of its containers and sidecars, in the spec's order.
    pub containers: Vec<String>,
}

/// Whoever knows the pods of the node. Called with the device manager's lock held: it must not call back.
pub trait ActivePods: Send + Sync {
    /// The active pods now.
    fn active(&self) -> Vec<ActivePod>;

    /// Whether the pods are known. A kubelet that has just been started lists none, and frees nothing.
    fn are_known(&self) -> bool {
        true
    }
}
