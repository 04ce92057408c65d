//! Fixed layouts: the exact slices that a GPU always has.

use super::GpuRule;
use crate::kind::Kind;
use crate::resource::ResourceName;
use serde::{Deserialize, Serialize};
use std::fmt;
use thiserror::Error;

/// The slices of a GPU: of one kind, each name once. Empty for a GPU that is cut on demand.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(try_from = "Vec<LaidOut>", into = "Vec<LaidOut>")]
pub struct Layout(Vec<LaidOut>);

/// Some of a layout's slices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LaidOut {
    /// The resource name under which pods get them. For MIG it is the profile's name.
    #[serde(deserialize_with = "crate::resource::plain")]
    pub resource: ResourceName,
    /// The number of these slices.
    pub count: u32,
}

/// Why a list of slices is no layout, or does not fit its GPU's rule.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum IllegalLayout {
    /// The count of a resource name is zero.
    #[error("layout has count 0 of {0}; write 1 or more, or leave it out")]
    NoSlices(ResourceName),
    /// A whole GPU has a count above one, but a GPU can be given once only.
    #[error("layout has {0} times {whole}, and a GPU is one; write count 1", whole = ResourceName::Whole)]
    SeveralWholes(u32),
    /// The list has a resource name twice.
    #[error("layout has {0} twice; write it once, with the sum of the counts")]
    Twice(ResourceName),
    /// The list has slices of two kinds.
    #[error("layout has {0} and {1}, which one GPU cannot have together; lay out one kind")]
    TwoKinds(ResourceName, ResourceName),
    /// The list has a compute instance or replica, which is only a part of a GPU instance.
    #[error("layout has {0}, a part of a GPU instance; lay out GPU instances")]
    Part(ResourceName),
    /// The list has GPU instances, and the rule shares GPU instances by time slicing.
    #[error(
        "layout has {0} beside mig.timeSlicing, and a layout gives GPU instances as a whole; remove one of them"
    )]
    BesideTurns(ResourceName),
    /// The rule's `kinds` do not allow the slice's kind.
    #[error("layout has {0}, and kinds does not allow {kind}; add {kind} to kinds", kind = Kind::label(.0.kind()))]
    NotAllowed(ResourceName),
    /// The list has shares by size, and the rule divides the GPU into equal parts.
    #[error("layout has {0} beside {field}.replicas; lay out {1}, or take replicas out", field = field(*.0))]
    BesideReplicas(ResourceName, ResourceName),
    /// The list has equal parts, and the rule does not fix their number.
    #[error("layout has {0}, and {field}.replicas is not set; set it", field = field(*.0))]
    NoReplicas(ResourceName),
    /// The list has more equal parts than the rule divides the GPU into.
    #[error("layout has {0} times {2}, and {field}.replicas is {1}; write at most {1}", field = field(*.2))]
    TooManyReplicas(u32, u32, ResourceName),
    /// The list has shares of two sizes, and the rule's `mps.strict` requires one size.
    #[error("layout has {0} and {1}, and mps.strict requires shares of one size; lay out one size")]
    TwoSizes(ResourceName, ResourceName),
}

fn field(resource: ResourceName) -> &'static str {
    if resource.kind() == Some(Kind::Mps) { "mps" } else { "timeSlicing" }
}

impl Layout {
    /// Whether the layout has no slices, so that GPUs are cut on demand.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The slices, one entry for each resource name.
    pub fn iter(&self) -> impl Iterator<Item = LaidOut> + '_ {
        self.0.iter().copied()
    }

    /// The kind of all slices; `None` for an empty layout.
    #[must_use]
    pub fn kind(&self) -> Option<Kind> {
        self.0.first().and_then(|first| first.resource.kind())
    }

    /// Checks the layout against a rule, as far as that does not depend on the GPU.
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
