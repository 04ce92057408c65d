//! A desired slice without a copy of its texts.

use super::{Shape, SliceStatus, WantedSlice};
use crate::names::{GpuUuid, PodKey, PodUid, SliceId};
use crate::resource::ResourceName;

/// A desired slice of a spec, or of an agent's report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wanted<'a> {
    /// The slice's id, unique on its node.
    pub id: &'a SliceId,
    /// UUID of the GPU that has the slice.
    pub gpu: &'a GpuUuid,
    /// The shape of the slice, and for MIG its position.
    pub shape: Shape,
    /// The reservation of the slice; absent for an idle slice.
    pub reservation: Option<Reserved<'a>>,
}

/// The reservation of a slice for a container of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reserved<'a> {
    /// UID of the pod that owns the reservation.
    pub uid: &'a PodUid,
    /// Namespace of the pod that owns the reservation.
    pub namespace: &'a str,
    /// Name of the pod that owns the reservation.
    pub pod: &'a str,
    /// The container that holds the slice in the end.
    pub container: &'a str,
    /// The resource name under which the kubelet must offer the slice.
    pub resource: ResourceName,
}

impl Reserved<'_> {
    /// Namespace and name of the pod that owns the reservation.
    #[must_use]
    pub fn key(self) -> PodKey {
        PodKey::new(self.namespace, self.pod)
    }
}

impl<'a> From<&'a WantedSlice> for Wanted<'a> {
    fn from(slice: &'a WantedSlice) -> Self {
        let reservation = slice.reservation.as_ref().map(|reservation| Reserved {
            uid: &reservation.uid,
            namespace: &reservation.namespace,
            pod: &reservation.pod,
            container: &reservation.container,
            resource: reservation.resource,
        });
        Self { id: &slice.id, gpu: &slice.gpu, shape: slice.shape, reservation }
    }
}

impl<'a> Wanted<'a> {
    /// The desired slice that an agent reports by this one; `None` if it is destroyed as soon as possible, or kerf did
    /// not make it.
    #[must_use]
    pub fn reported(slice: &'a SliceStatus) -> Option<Self> {
        let id = slice.id.as_ref().filter(|_| !slice.leaving)?;
        let reservation = slice.reservation.as_ref().map(|reservation| Reserved {
            uid: &reservation.uid,
            namespace: &reservation.namespace,
            pod: &reservation.pod,
            container: &reservation.container,
            resource: reservation.resource,
        });
        Some(Self { id, gpu: &slice.gpu, shape: slice.shape, reservation })
    }

    /// Whether the slice is reserved for this pod.
    #[must_use]
    pub fn is_reserved_for(&self, uid: &PodUid) -> bool {
        self.reservation.is_some_and(|reservation| reservation.uid == uid)
    }
}
