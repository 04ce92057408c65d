//! What a stand-in kubelet has observed, for tests to assert on.

use super::demand::PodKey;

/// A pod that the kubelet rejected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailedAdmission {
    pub pod: PodKey,
    pub uid: String,
    /// The value of `status.reason`, for example `UnexpectedAdmissionError`.
    pub reason: String,
    /// The full value of `status.message`.
    pub message: String,
}

/// Counts and lists since the start. A restart of the kubelet does not reset them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Observed {
    pub admitted: u64,
    /// The rejected pods, in order of rejection. A pod that was deleted by force before it was rejected is none.
    pub failed_admissions: Vec<FailedAdmission>,
    /// Pods that requested a name without a registered plugin and run **without** a device.
    pub started_without_device: Vec<PodKey>,
}
