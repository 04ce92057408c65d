//! Turns what the node reports into Kubernetes Events about a pod or about the Node.

use crate::node::Note;
use crate::recorder::{About, News, Recorder};
use kerf_core::names::{PodKey, PodUid};

/// Sends the Event. `uid_of` returns the UIDs of the node's pods.
pub fn tell(recorder: &Recorder, note: Note, evicts: bool, uid_of: impl Fn(&PodKey) -> Option<PodUid>) {
    let pod = |key: PodKey| {
        let uid = uid_of(&key);
        About::Pod { key, uid }
    };
    let (about, news) = match note {
        Note::MpsRestarted { gpu, pod: key, how } => (pod(key), News::MpsRestarted { gpu, how }),
        Note::OverUse { gpu, pod: key, used, given } => {
            (pod(key), News::GpuMemoryOverUse { gpu, used, given, evicted: evicts })
        }
        Note::NoSlice { pod: key } => (pod(key), News::NoSliceForPod),
        Note::Mismatch { device, pod: key } => (pod(key), News::SliceMismatch { device }),
        Note::Outside { gpu, used, processes } => {
            (About::Node, News::OutsideMemory { gpu, memory: used, processes })
        }
        Note::GpuUnhealthy { gpu, text } => (About::Node, News::GpuUnhealthy { gpu, why: text }),
        Note::GpuRecovered { gpu } => (About::Node, News::GpuRecovered { gpu }),
        Note::ModeChanged { gpu, mig } => (About::Node, News::ModeChanged { gpu, mig }),
        Note::Adopted { device } => (About::Node, News::SliceAdopted { device }),
        Note::DriverUpgrade { text } => (About::Node, News::DriverUpgrade { text }),
        Note::Contested { text } => (About::Node, News::ForeignManager { text }),
    };
    recorder.tell(about, news);
}
