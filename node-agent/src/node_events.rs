//! Turns what the node reports into Kubernetes Events about a pod or about the Node.

use crate::node::NodeEvent;
use crate::recorder::{About, AgentEvent, Recorder};
use kerf_core::names::{PodKey, PodUid};

/// Sends the Event. `uid_of` returns the UIDs of the node's pods.
pub fn publish(
    recorder: &Recorder,
    reported: NodeEvent,
    evicts: bool,
    uid_of: impl Fn(&PodKey) -> Option<PodUid>,
) {
    let pod = |key: PodKey| {
        let uid = uid_of(&key);
        About::Pod { key, uid }
    };
    let (about, event) = match reported {
        NodeEvent::MpsRestarted { gpu, pod: key, how } => (pod(key), AgentEvent::MpsRestarted { gpu, how }),
        NodeEvent::OverUse { gpu, pod: key, used, given } => {
            (pod(key), AgentEvent::GpuMemoryOverUse { gpu, used, given, evicted: evicts })
        }
        NodeEvent::NoSlice { pod: key } => (pod(key), AgentEvent::NoSliceForPod),
        NodeEvent::Mismatch { device, pod: key } => (pod(key), AgentEvent::SliceMismatch { device }),
        NodeEvent::Outside { gpu, used, processes } => {
            (About::Node, AgentEvent::OutsideMemory { gpu, memory: used, processes })
        }
        NodeEvent::GpuUnhealthy { gpu, text } => (About::Node, AgentEvent::GpuUnhealthy { gpu, why: text }),
        NodeEvent::GpuRecovered { gpu } => (About::Node, AgentEvent::GpuRecovered { gpu }),
        NodeEvent::ModeChanged { gpu, mig } => (About::Node, AgentEvent::ModeChanged { gpu, mig }),
        NodeEvent::Adopted { device } => (About::Node, AgentEvent::SliceAdopted { device }),
        NodeEvent::DriverUpgrade { text } => (About::Node, AgentEvent::DriverUpgrade { text }),
        NodeEvent::Contested { text } => (About::Node, AgentEvent::ForeignManager { text }),
    };
    recorder.record(about, event);
}
