//! What a stand-in kubelet has seen: for tests to assert on.

use super::demand::PodKey;

/// A pod that the kubelet refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailedAdmission {
    /// The pod.
    pub pod: PodKey,
    /// Its UID.
    pub uid: String,
    /// `status.reason`, for example `UnexpectedAdmissionError`.
    pub reason: String,
    /// `status.message` in full.
    pub message: String,
}

/// Counts and lists since the start; a restart of the kubelet does not empty them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Observed {
    /// Pods admitted.
    pub admitted: u64,
    /// Pods refused, in order.
    pub failed_admissions: Vec<FailedAdmission>,
    /// Pods that asked for a name nobody had registered and run **without** it.
    pub started_without_device: Vec<PodKey>,
}
