//! What the agent does next: the lists for the kubelet, one step, the desired state, the status.

use super::advertise::DevicesByName;
use super::{LetGo, NodeEvent, Pause, Report, Restored, Spared, WantedDaemon};
use crate::access::{Access, AccessGrant};
use crate::gpu::limits::Limits;
use kerf_core::closeness::Closeness;
use kerf_core::contract::{GpuNodeStatus, SliceLength};
use kerf_core::kind::Kind;
use kerf_core::names::{DeviceId, GpuUuid, PodKey, PodUid};
use kerf_core::planner::Step;
use kerf_core::resource::ResourceName;
use kerf_core::units::{ComputePercent, MemoryMib};
use std::collections::BTreeMap;
use std::time::Instant;

#[derive(Debug)]
pub struct Decision {
    pub lists: BTreeMap<ResourceName, Vec<ListedDevice>>,
    /// The devices that the kubelet should show as allocatable once it has processed the lists.
    pub healthy: DevicesByName,
    /// Set if the agent may release the driver for its upgrade.
    pub let_go: Option<LetGo>,
    /// The step to run now. Once it is under way there may be another, on another GPU.
    pub step: Option<Step>,
    /// What must be recorded on the node's disk before the step runs.
    pub record: Restored,
    /// Desired state for the slices that exist. `None` until these are known, so that no holder loses anything before.
    pub slices: Option<DesiredSlices>,
    pub gpus: GpuSettings,
    pub events: Vec<NodeEvent>,
    pub pods: PodActions,
    pub next: Next,
    pub status: GpuNodeStatus,
    pub report: Report,
}

/// Desired state of the GPUs, whatever slices they have.
#[derive(Debug)]
pub struct GpuSettings {
    pub lengths: BTreeMap<GpuUuid, SliceLength>,
    pub pause: Pause,
}

#[derive(Debug)]
pub struct PodActions {
    /// Whether pods that the kubelet has rejected are removed.
    pub remove_rejected: bool,
    /// Pods that the policy has evicted.
    pub evict: Vec<(PodKey, PodUid)>,
    /// Pods with reservations for which a look-up must find out whether they are bound, and where.
    pub look_up: BTreeMap<PodUid, PodKey>,
}

/// What the next decision needs, and when it is due.
#[derive(Debug)]
pub struct Next {
    /// Whether a new list of holders is needed now.
    pub wants_holders: bool,
    /// Whether GPUs and holders should be observed soon, because the known state may be out of date.
    pub wants_observation: bool,
    /// When the next decision is due if no event comes before.
    pub due_at: Option<Instant>,
}

/// Desired state on the node for the slices that exist.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DesiredSlices {
    pub daemons: BTreeMap<GpuUuid, WantedDaemon>,
    /// What each device needs so that containers can open it.
    pub reach: BTreeMap<DeviceId, Access>,
    /// The limits that the driver should set on pods' GPU memory.
    pub limits: Limits,
    /// Devices, daemons and limits that stay as they are besides the desired ones.
    pub spared: Spared,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedDevice {
    pub id: DeviceId,
    pub healthy: bool,
    /// Whether a pod has it, as far as is known. A kubelet that has freed it already may allocate it before the agent
    /// learns that.
    pub held: bool,
    /// What a container gets with it; `None` if no container gets it. A kubelet with an older list may still pick an
    /// unhealthy device.
    pub grant: Option<Grant>,
    /// The pod that has reserved it, if any.
    pub reserved_for: Option<PodUid>,
    /// The NUMA node that its GPU is close to; `None` if there is none.
    pub numa: Option<u32>,
    pub closeness: Closeness,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    pub gpu: GpuUuid,
    /// The slice's name, for people.
    pub slice: String,
    /// How it is shared; `None` if it is not a share.
    pub share: Option<ShareGrant>,
    pub access: AccessGrant,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShareGrant {
    pub kind: Kind,
    pub memory: MemoryMib,
    /// The memory of the whole GPU.
    pub of: MemoryMib,
    /// The compute part, if it was requested by itself or if compute is not limited. Otherwise it is the same part as
    /// the memory.
    pub compute: Option<ComputePercent>,
}
