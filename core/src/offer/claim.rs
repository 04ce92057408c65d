//! The worth of slices, and which slices suit which pods.

use crate::contract::{MigPart, Reservation, Shape};
use crate::kind::Kind;
use crate::mig::Profile;
use crate::names::PodUid;
use crate::resource::ResourceName;
use crate::units::{ComputePercent, SizeGb};
use std::collections::BTreeMap;

/// The properties that make two slices of one name equally good for any pod that asks by the name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Worth<'a> {
    model: &'a str,
    /// Slices of several kinds may be reserved under a neutral name.
    kind: Kind,
    profile: Option<Profile>,
    part: Part,
    size: SizeGb,
    compute: Option<ComputePercent>,
}

/// The part of its GPU instance that a slice is, wherever it lies there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Whole,
    Compute(u8),
    Replica,
}

impl<'a> Worth<'a> {
    fn from_shape(model: &'a str, shape: Shape) -> Self {
        let part = match shape.mig_part() {
            MigPart::Whole => Part::Whole,
            MigPart::Compute(instance) => Part::Compute(instance.compute),
            MigPart::Replica { .. } => Part::Replica,
        };
        let profile = shape.instance().map(|instance| instance.profile);
        let (kind, size, compute) = (shape.kind(), shape.size(), shape.compute());
        Self { model, kind, profile, part, size, compute }
    }
}

/// A slice, with the reservation of the pod that has not got it yet.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ware<'a> {
    worth: Worth<'a>,
    reservation: Option<&'a Reservation>,
}

impl<'a> Ware<'a> {
    pub(super) fn new(model: &'a str, shape: Shape, reservation: Option<&'a Reservation>) -> Self {
        Self { worth: Worth::from_shape(model, shape), reservation }
    }

    /// The pod that has reserved the slice, with its claim; `None` once the pod has got it.
    pub(super) fn claim(self) -> Option<(&'a PodUid, Claim<'a>)> {
        let reservation = self.reservation?;
        Some((&reservation.uid, Claim { name: reservation.resource, ware: self }))
    }

    /// The claim of an unknown pod that is being given the slice by this name.
    pub(super) fn claim_by(self, name: ResourceName) -> Claim<'a> {
        Claim { name, ware: Self { reservation: None, ..self } }
    }

    fn is_alone(&self) -> bool {
        self.reservation.is_some_and(|reservation| reservation.alone)
    }

    /// Whether either slice suits the pod of the other.
    fn suits(&self, other: &Ware<'_>) -> bool {
        let pod = |ware: &Ware<'a>| ware.reservation.map(|reservation| &reservation.uid);
        let same_pod =
            pod(self).is_some() && pod(self) == other.reservation.map(|reservation| &reservation.uid);
        same_pod || self.worth == other.worth && !self.is_alone() && !other.is_alone()
    }
}

/// A slice that a pod does not have yet, with the resource name that the pod requests.
#[derive(Debug, Clone, Copy)]
pub(super) struct Claim<'a> {
    pub(super) name: ResourceName,
    ware: Ware<'a>,
}

/// The open claims, by name.
#[derive(Debug, Default)]
pub(super) struct Open<'a>(BTreeMap<ResourceName, Vec<Ware<'a>>>);

impl<'a> Open<'a> {
    pub(super) fn add(&mut self, claim: Claim<'a>) {
        self.0.entry(claim.name).or_default().push(claim.ware);
    }

    pub(super) fn names(&self) -> impl Iterator<Item = ResourceName> {
        self.0.keys().copied()
    }

    /// Whether a slice suits every pod that may ask by the name.
    pub(super) fn suits(&self, name: ResourceName, ware: &Ware<'_>) -> bool {
        self.0.get(&name).into_iter().flatten().all(|claimed| ware.suits(claimed))
    }

    /// Whether the claimed slice may be free beside the others' claims.
    pub(super) fn allows(&self, claim: &Claim<'_>) -> bool {
        self.suits(claim.name, &claim.ware)
    }
}
