//! `GpuNode.status`: what a node's agent observes. Written by that agent only.

use super::status_wire::StatusWire;
use super::{Peer, Reservation, Shape};
use crate::accounting::beside_shares;
use crate::kind::Kind;
use crate::mig::MigTable;
use crate::names::{DeviceId, GpuUuid, PciBusId, PodKey, PodUid, SliceId};
use crate::resource::ResourceName;
use crate::units::{MemoryMib, SizeGb};
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// What one node has.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(from = "StatusWire", into = "StatusWire")]
pub struct GpuNodeStatus {
    /// The largest size of which the kubelet has taken the neutral name, with those of all smaller sizes; absent from agents of
    /// earlier versions, which know no neutral names, and while the kubelet has not.
    pub neutral_up_to: Option<SizeGb>,
    /// The node's GPUs by index.
    pub gpus: Vec<GpuStatus>,
    /// The slices that exist or are being made.
    pub slices: Vec<SliceStatus>,
    /// `Ready` and others: see [`Condition`]'s constants.
    pub conditions: Vec<Condition>,
    /// For the columns of `kubectl get gpunodes`.
    pub summary: Summary,
}

/// Why a status cannot be read. Such a node counts as full.
#[derive(Debug, Error)]
#[error("failed to read GpuNode.status: {0}; is the node's agent of another version?")]
pub struct UnreadableStatus(#[from] serde_json::Error);

impl GpuNodeStatus {
    /// Reads the status of a GpuNode.
    pub fn parse(value: serde_json::Value) -> Result<Self, UnreadableStatus> {
        Ok(serde_json::from_value(value)?)
    }

    /// Whether the agent serves the node.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.condition(Condition::READY).is_some_and(|ready| ready.status == ConditionStatus::True)
    }

    /// The condition of this type, if the agent has set it.
    #[must_use]
    pub fn condition(&self, kind: &str) -> Option<&Condition> {
        self.conditions.iter().find(|condition| condition.kind == kind)
    }

    /// The slice of this id.
    #[must_use]
    pub fn slice(&self, id: &SliceId) -> Option<&SliceStatus> {
        self.slices.iter().find(|s| s.id.as_ref() == Some(id))
    }
}

/// One GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GpuStatus {
    /// Its UUID.
    pub uuid: GpuUuid,
    /// Its NVML index.
    pub index: u32,
    /// The short model name.
    pub model: String,
    /// Its address on the PCI bus; absent where the driver does not say it, and from agents of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pci_bus_id: Option<PciBusId>,
    /// The NUMA node it is nearest to; absent on machines with one, and where it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numa_node: Option<u32>,
    /// What lies between it and GPUs of higher indexes, where that tells pairs of the node apart.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub peers: Vec<Peer>,
    /// Total memory.
    #[serde(rename = "memoryMib")]
    pub memory: MemoryMib,
    /// The part of the total memory that the driver reserves and no process can have (NVML's `nvmlMemory_v2_t.reserved`); absent
    /// from agents of earlier versions.
    #[serde(rename = "reservedMib", default, skip_serializing_if = "Option::is_none")]
    pub reserved: Option<MemoryMib>,
    /// The kinds of slice that can be cut now, by the GPU's mode and the node's policy: `[mig]` while MIG mode is on, else the
    /// others.
    pub kinds: Vec<Kind>,
    /// Memory that processes use which kerf knows no slice of; it is not offered.
    #[serde(rename = "outsideMib", default, skip_serializing_if = "MemoryMib::is_zero")]
    pub outside: MemoryMib,
    /// How many MPS shares may be beside each other on it; absent where it has no MPS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mps_shares: Option<u32>,
    /// What is wrong with it. Nothing new is cut from it then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// What NVML offers under MIG; empty while MIG mode is off.
    #[serde(default, skip_serializing_if = "MigTable::is_empty")]
    pub profiles: MigTable,
}

impl GpuStatus {
    /// The memory of the GPU that no share may have.
    #[must_use]
    pub fn beside_shares(&self) -> MemoryMib {
        beside_shares(self.memory, self.reserved)
    }
}

/// One slice as the agent sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SliceStatus {
    /// Its name in the spec; absent for a slice that nobody asked kerf for, which counts as occupied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<SliceId>,
    /// Its GPU.
    pub gpu: GpuUuid,
    /// What was cut.
    pub shape: Shape,
    /// Where it stands.
    pub state: SliceState,
    /// The memory that it really has.
    #[serde(rename = "memoryMib")]
    pub memory: MemoryMib,
    /// The id under which the kubelet knows it, once it exists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<DeviceId>,
    /// The resource name under which it is offered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource: Option<ResourceName>,
    /// The pod for which it is ready: the kubelet has acknowledged the device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_for: Option<PodUid>,
    /// Who holds it, by the kubelet's account.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holder: Option<Holder>,
    /// Why it is not ready, in an operator's words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Whose it is to be. Absent from agents that do not keep their node's ledger: there the spec says it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reservation: Option<SliceReservation>,
    /// Whether it has a name in the ledger no more, and goes as soon as it can.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub leaving: bool,
}

/// The reservation of a slice, as the agent reports it that keeps its node's ledger.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SliceReservation {
    /// The pod's UID.
    pub uid: PodUid,
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub pod: String,
    /// The container that holds the slice in the end.
    pub container: String,
    /// The name under which the kubelet must offer the slice.
    pub resource: ResourceName,
    /// As in [`Reservation`].
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub alone: bool,
    /// Whether a Binding of the pod to this node may have been made, or may be made yet.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub binding: bool,
}

impl SliceReservation {
    /// A reservation, and whether a Binding of its pod may have been made.
    #[must_use]
    pub fn of(reservation: &Reservation, binding: bool) -> Self {
        let Reservation { uid, namespace, pod, container, resource, alone, epoch: _ } = reservation.clone();
        Self { uid, namespace, pod, container, resource, alone, binding }
    }

    /// The pod's namespace and name.
    #[must_use]
    pub fn key(&self) -> PodKey {
        PodKey::new(&self.namespace, &self.pod)
    }
}

/// Where a slice stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub enum SliceState {
    /// It is being made, or the kubelet has not acknowledged it yet.
    Preparing,
    /// It exists but waits: another reservation of the same name must be allocated first.
    Waiting,
    /// The kubelet offers it to the pod that it is reserved for.
    Ready,
    /// A pod holds it.
    Held,
    /// It exists and nobody holds it or was promised it.
    Idle,
    /// It could not be made.
    Failed,
}

/// The container that holds a slice.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Holder {
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub pod: String,
    /// The container.
    pub container: String,
}

impl Holder {
    /// The pod's namespace and name.
    #[must_use]
    pub fn key(&self) -> PodKey {
        PodKey::new(&self.namespace, &self.pod)
    }
}

/// A condition in the form that Kubernetes' own have.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// Its type.
    #[serde(rename = "type")]
    pub kind: String,
    /// Whether it holds.
    pub status: ConditionStatus,
    /// One word for programs.
    pub reason: String,
    /// A sentence for people: what, and what to do.
    pub message: String,
    /// When it last changed (RFC 3339).
    pub last_transition_time: String,
}

impl Condition {
    /// The agent serves the node.
    pub const READY: &'static str = "Ready";
    /// Every GPU answers and has no error that it must recover from.
    pub const GPUS_HEALTHY: &'static str = "GpusHealthy";
    /// Every wanted slice exists or can be made.
    pub const SPEC_REACHED: &'static str = "SpecReached";
    /// Nobody else cuts or serves the node's GPUs.
    pub const UNCONTESTED: &'static str = "Uncontested";
    /// The kubelet's checkpoint, which has what init containers hold, can be read.
    pub const ALLOCATIONS_KNOWN: &'static str = "AllocationsKnown";
    /// The extender's leader has a connection to the agent, and orders.
    pub const CONNECTED: &'static str = "Connected";
    /// All types.
    pub const ALL: [&'static str; 6] = [
        Self::READY,
        Self::GPUS_HEALTHY,
        Self::SPEC_REACHED,
        Self::UNCONTESTED,
        Self::ALLOCATIONS_KNOWN,
        Self::CONNECTED,
    ];
}

/// Whether a condition holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ConditionStatus {
    /// It holds.
    True,
    /// It does not.
    False,
    /// Nobody knows.
    Unknown,
}

impl ConditionStatus {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::True, Self::False, Self::Unknown];

    /// As Kubernetes writes it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

/// The columns of `kubectl get gpunodes`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Summary {
    /// `2x H100-80GB`.
    pub gpus: String,
    /// The kinds that can be cut now: `mig`, `mps,time-slicing`.
    pub mode: String,
    /// Slices that a pod holds.
    pub held: u32,
    /// Slices that nobody holds or was promised.
    pub idle: u32,
    /// Memory in no held or promised slice, without what no share may have on GPUs that are shared.
    pub free: String,
}
