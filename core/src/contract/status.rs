//! `GpuNode.status`: what a node's agent observes. Only that agent writes it.

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

/// The observed state of one node, with its ledger.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(from = "StatusWire", into = "StatusWire")]
pub struct GpuNodeStatus {
    /// The largest size whose neutral name the kubelet has registered, with those of all smaller sizes. Absent while
    /// the kubelet has not registered them, and from agents of earlier versions, which have no neutral names.
    pub neutral_up_to: Option<SizeGb>,
    /// The node's GPUs, ordered by NVML index.
    pub gpus: Vec<GpuStatus>,
    /// The slices that exist or are being made.
    pub slices: Vec<SliceStatus>,
    /// The node's conditions, `Ready` and others; see [`Condition`]'s constants.
    pub conditions: Vec<Condition>,
    /// The texts for the columns of `kubectl get gpunodes`.
    pub summary: Summary,
}

/// Why a status cannot be read. The extender counts such a node as full.
#[derive(Debug, Error)]
#[error("failed to read GpuNode.status: {0}; is the node's agent of another version?")]
pub struct UnreadableStatus(#[from] serde_json::Error);

impl GpuNodeStatus {
    /// Reads the `status` of a GpuNode object.
    pub fn parse(value: serde_json::Value) -> Result<Self, UnreadableStatus> {
        Ok(serde_json::from_value(value)?)
    }

    /// Whether the condition `Ready` is true, so that the agent serves the node.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.condition(Condition::READY).is_some_and(|ready| ready.status == ConditionStatus::True)
    }

    /// The condition of this type; `None` if the agent has not set it.
    #[must_use]
    pub fn condition(&self, kind: &str) -> Option<&Condition> {
        self.conditions.iter().find(|condition| condition.kind == kind)
    }

    /// The slice with this id; `None` if the node has none.
    #[must_use]
    pub fn slice(&self, id: &SliceId) -> Option<&SliceStatus> {
        self.slices.iter().find(|s| s.id.as_ref() == Some(id))
    }
}

/// The observed state of one GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GpuStatus {
    /// The GPU's UUID, as NVML reports it.
    pub uuid: GpuUuid,
    /// The GPU's NVML index, which shifts when a GPU is lost or the machine boots.
    pub index: u32,
    /// The short model name, as in `H100-80GB`.
    pub model: String,
    /// Its address on the PCI bus. Absent if the driver does not report it, and from agents of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pci_bus_id: Option<PciBusId>,
    /// The NUMA node that it is nearest to. Absent if unknown, and on machines with one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numa_node: Option<u32>,
    /// The connections to GPUs of higher indexes, where they differ between pairs of the node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub peers: Vec<Peer>,
    /// Total memory as NVML reports it, in MiB.
    #[serde(rename = "memoryMib")]
    pub memory: MemoryMib,
    /// The part of the total memory that the driver reserves and no process can use (NVML's
    /// `nvmlMemory_v2_t.reserved`). Absent from agents of earlier versions.
    #[serde(rename = "reservedMib", default, skip_serializing_if = "Option::is_none")]
    pub reserved: Option<MemoryMib>,
    /// The kinds of slice that can be cut now, by the GPU's mode and the node's policy: `[mig]` while MIG mode is on,
    /// else other kinds.
    pub kinds: Vec<Kind>,
    /// Memory used by processes that no slice of kerf's accounts for. It is not offered.
    #[serde(rename = "outsideMib", default, skip_serializing_if = "MemoryMib::is_zero")]
    pub outside: MemoryMib,
    /// The number of MPS shares that may exist on it together; absent if it has no MPS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mps_shares: Option<u32>,
    /// The GPU's fault, for an operator. While it is set, the agent cuts nothing new.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The MIG profiles that NVML lists; empty while MIG mode is off.
    #[serde(default, skip_serializing_if = "MigTable::is_empty")]
    pub profiles: MigTable,
}

impl GpuStatus {
    /// The memory of the GPU that no share can use.
    #[must_use]
    pub fn beside_shares(&self) -> MemoryMib {
        beside_shares(self.memory, self.reserved)
    }
}

/// The observed state of one slice.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SliceStatus {
    /// Its id in the ledger. Absent for a slice that kerf did not make; such a slice counts as occupied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<SliceId>,
    /// UUID of the GPU that has the slice.
    pub gpu: GpuUuid,
    /// The shape of the slice, and for MIG its position.
    pub shape: Shape,
    /// The slice's progress from cut to held.
    pub state: SliceState,
    /// The memory that the slice really has, in MiB.
    #[serde(rename = "memoryMib")]
    pub memory: MemoryMib,
    /// The id under which the kubelet lists it; absent until it exists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<DeviceId>,
    /// The resource name under which it is offered; absent until it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource: Option<ResourceName>,
    /// The pod for which it is ready, because the kubelet has acknowledged the device; absent until then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_for: Option<PodUid>,
    /// The container that holds it, as the kubelet reports; absent if none does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holder: Option<Holder>,
    /// Why it is not ready, for an operator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The reservation of the slice. Absent for an idle slice, and from agents of earlier versions, which left it in
    /// the spec.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reservation: Option<SliceReservation>,
    /// Whether it is no longer in the ledger, and is destroyed as soon as possible.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub leaving: bool,
}

/// The reservation of a slice, as the agent reports it from its ledger.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SliceReservation {
    /// UID of the pod that owns the reservation.
    pub uid: PodUid,
    /// Namespace of the pod that owns the reservation.
    pub namespace: String,
    /// Name of the pod that owns the reservation.
    pub pod: String,
    /// The container that holds the slice in the end.
    pub container: String,
    /// The resource name under which the kubelet must offer the slice.
    pub resource: ResourceName,
    /// Whether the pod needs its own slices; see [`Reservation::alone`].
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub alone: bool,
    /// Whether a Binding of the pod to this node may have been made, or may still be made.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub binding: bool,
}

impl SliceReservation {
    /// Reports a reservation; `binding` says whether a Binding of its pod may have been made.
    #[must_use]
    pub fn from_reservation(reservation: &Reservation, binding: bool) -> Self {
        let Reservation { uid, namespace, pod, container, resource, alone, epoch: _ } = reservation.clone();
        Self { uid, namespace, pod, container, resource, alone, binding }
    }

    /// Namespace and name of the pod that owns the reservation.
    #[must_use]
    pub fn key(&self) -> PodKey {
        PodKey::new(&self.namespace, &self.pod)
    }
}

/// The progress of a slice from cut to held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub enum SliceState {
    /// The agent is making it, or the kubelet has not acknowledged it yet.
    Preparing,
    /// It exists, but another reservation of the same name must be allocated first.
    Waiting,
    /// The kubelet offers it to the pod that it is reserved for.
    Ready,
    /// A container of a pod holds it.
    Held,
    /// It exists, and no pod holds it or has reserved it.
    Idle,
    /// The agent could not make it.
    Failed,
}

/// The container that holds a slice, as the kubelet reports it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Holder {
    /// Namespace of the container's pod.
    pub namespace: String,
    /// Name of the container's pod.
    pub pod: String,
    /// Name of the container in its pod.
    pub container: String,
}

impl Holder {
    /// Namespace and name of the container's pod.
    #[must_use]
    pub fn key(&self) -> PodKey {
        PodKey::new(&self.namespace, &self.pod)
    }
}

/// A condition in the form of Kubernetes' own conditions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// The condition's type, one of [`ALL`](Self::ALL).
    #[serde(rename = "type")]
    pub kind: String,
    /// Whether the condition holds at present.
    pub status: ConditionStatus,
    /// The reason in one word, for programs.
    pub reason: String,
    /// A sentence for people: what happens, and what to do.
    pub message: String,
    /// When the status last changed (RFC 3339).
    pub last_transition_time: String,
}

impl Condition {
    /// The agent serves the node.
    pub const READY: &'static str = "Ready";
    /// Every GPU responds and has no error that it must recover from.
    pub const GPUS_HEALTHY: &'static str = "GpusHealthy";
    /// Every desired slice exists or can be made.
    pub const SPEC_REACHED: &'static str = "SpecReached";
    /// No other program cuts or serves the node's GPUs.
    pub const UNCONTESTED: &'static str = "Uncontested";
    /// The kubelet's checkpoint can be read. It has what init containers hold.
    pub const ALLOCATIONS_KNOWN: &'static str = "AllocationsKnown";
    /// The extender's leader has a stream to the agent and sends orders.
    pub const CONNECTED: &'static str = "Connected";
    /// All types of conditions that agents set.
    pub const ALL: [&'static str; 6] = [
        Self::READY,
        Self::GPUS_HEALTHY,
        Self::SPEC_REACHED,
        Self::UNCONTESTED,
        Self::ALLOCATIONS_KNOWN,
        Self::CONNECTED,
    ];
}

/// Whether a condition holds, as in Kubernetes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ConditionStatus {
    /// The condition holds at present.
    True,
    /// The condition does not hold.
    False,
    /// The agent cannot determine whether the condition holds.
    Unknown,
}

impl ConditionStatus {
    /// All values of a condition's status.
    pub const ALL: [Self; 3] = [Self::True, Self::False, Self::Unknown];

    /// The text that Kubernetes uses in objects.
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
    /// The GPUs by model, as in `2x H100-80GB`.
    pub gpus: String,
    /// The kinds that can be cut now, as in `mig` or `mps,time-slicing`.
    pub mode: String,
    /// The number of slices that a pod holds.
    pub held: u32,
    /// The number of slices that no pod holds or has reserved.
    pub idle: u32,
    /// The memory that is in no held or reserved slice. On shared GPUs, memory that no share can use is left out.
    pub free: String,
}
