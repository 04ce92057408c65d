//! A fixed layout: the slices that a GPU has, always and no others.

use super::GpuRule;
use crate::kind::Kind;
use crate::resource::ResourceName;
use serde::{Deserialize, Serialize};
use std::fmt;
use thiserror::Error;

/// The slices of a GPU: of one kind, each name once. Empty for a GPU that is cut as pods come.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(try_from = "Vec<LaidOut>", into = "Vec<LaidOut>")]
pub struct Layout(Vec<LaidOut>);

/// Some of a layout's slices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LaidOut {
    /// The resource name that they are given under. For MIG it is the profile itself.
    #[serde(deserialize_with = "crate::resource::plain")]
    pub resource: ResourceName,
    /// How many.
    pub count: u32,
}

/// Why slices are no layout, or none for their GPU's rule.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum IllegalLayout {
    /// It says nothing.
    #[error("layout has count 0 of {0}; write 1 or more, or leave it out")]
    NoSlices(ResourceName),
    /// One GPU has one whole.
    #[error("layout has {0} times {whole}, and a GPU is one; write count 1", whole = ResourceName::Whole)]
    SeveralWholes(u32),
    /// A name stands there twice.
    #[error("layout has {0} twice; write it once, with the sum of the counts")]
    Twice(ResourceName),
    /// Slices of two kinds.
    #[error("layout has {0} and {1}, which one GPU cannot have together; lay out one kind")]
    TwoKinds(ResourceName, ResourceName),
    /// A part of a GPU instance.
    #[error("layout has {0}, a part of a GPU instance; lay out GPU instances")]
    Part(ResourceName),
    /// GPU instances of which nothing is shared out.
    #[error(
        "layout has {0} beside mig.timeSlicing, and laid out GPU instances are had as a whole; remove one of them"
    )]
    BesideTurns(ResourceName),
    /// The rule forbids the kind.
    #[error("layout has {0}, and kinds does not allow {kind}; add {kind} to kinds", kind = Kind::label(.0.kind()))]
    NotAllowed(ResourceName),
    /// Shares by size on a GPU that is shared in equal parts.
    #[error("layout has {0} beside {field}.replicas; lay out {1}, or take replicas out", field = field(*.0))]
    BesideReplicas(ResourceName, ResourceName),
    /// Equal parts of which policy does not say how many there are.
    #[error("layout has {0}, and {field}.replicas is not set; set it", field = field(*.0))]
    NoReplicas(ResourceName),
    /// More equal parts than there are.
    #[error("layout has {0} times {2}, and {field}.replicas is {1}; write at most {1}", field = field(*.2))]
    TooManyReplicas(u32, u32, ResourceName),
    /// Two sizes where policy wants one.
    #[error("layout has {0} and {1}, and mps.strict wants shares of one size; lay out one size")]
    TwoSizes(ResourceName, ResourceName),
}

/// The field of a rule that is about shares of this name.
fn field(resource: ResourceName) -> &'static str {
    if resource.kind() == Some(Kind::Mps) { "mps" } else { "timeSlicing" }
}

impl Layout {
    /// Whether it says nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The slices, by name.
    pub fn iter(&self) -> impl Iterator<Item = LaidOut> + '_ {
        self.0.iter().copied()
    }

    /// The kind of all slices; `None` for an empty one.
    #[must_use]
    pub fn kind(&self) -> Option<Kind> {
        self.0.first().and_then(|first| first.resource.kind())
    }

    /// Why a GPU of this rule cannot have it, whatever the GPU is.
    pub(super) fn check(&self, rule: &GpuRule) -> Result<(), IllegalLayout> {
        for LaidOut { resource, count } in self.iter() {
            let allowed = resource.kind().filter(|kind| rule.kinds.contains(kind));
            let Some(kind) = allowed else { return Err(IllegalLayout::NotAllowed(resource)) };
            if kind == Kind::Mig && rule.mig.time_slicing.is_some() {
                return Err(IllegalLayout::BesideTurns(resource));
            }
            let Some(replica) = ResourceName::replica(kind) else { continue };
            match rule.replicas(kind) {
                Some(_) if resource != replica => {
                    return Err(IllegalLayout::BesideReplicas(resource, replica));
                }
                None if resource == replica => return Err(IllegalLayout::NoReplicas(replica)),
                Some(most) if count > most => {
                    return Err(IllegalLayout::TooManyReplicas(count, most, replica));
                }
                Some(_) | None => {}
            }
        }
        match self.0.as_slice() {
            [first, second, ..] if rule.mps.strict && first.resource.kind() == Some(Kind::Mps) => {
                Err(IllegalLayout::TwoSizes(first.resource, second.resource))
            }
            _ => Ok(()),
        }
    }
}

impl TryFrom<Vec<LaidOut>> for Layout {
    type Error = IllegalLayout;

    fn try_from(slices: Vec<LaidOut>) -> Result<Self, IllegalLayout> {
        for (index, LaidOut { resource, count }) in slices.iter().copied().enumerate() {
            let before = &slices[..index];
            match (resource, count) {
                (_, 0) => return Err(IllegalLayout::NoSlices(resource)),
                (ResourceName::Whole, 2..) => return Err(IllegalLayout::SeveralWholes(count)),
                (ResourceName::Compute(_) | ResourceName::MigReplica(_), _) => {
                    return Err(IllegalLayout::Part(resource));
                }
                _ => {}
            }
            if before.iter().any(|other| other.resource == resource) {
                return Err(IllegalLayout::Twice(resource));
            }
            if let Some(other) = before.iter().find(|other| other.resource.kind() != resource.kind()) {
                return Err(IllegalLayout::TwoKinds(other.resource, resource));
            }
        }
        Ok(Self(slices))
    }
}

impl From<Layout> for Vec<LaidOut> {
    fn from(layout: Layout) -> Self {
        layout.0
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, LaidOut { resource, count }) in self.iter().enumerate() {
            write!(f, "{}{count} x {resource}", if index == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}
