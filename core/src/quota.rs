//! Charges of pods against a quota, and the check whether one more pod stays within it.

use crate::contract::{GpuNodeSpec, RequestDocument, Shape};
use crate::ledger;
use crate::names::PodUid;
use crate::resource::ResourceName;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The most that a pod or a namespace may have. An absent field sets no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Cap {
    /// The nominal GPU memory of all slices together, in GB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_gb: Option<u32>,
    /// The number of slices.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slices: Option<u32>,
}

/// Nominal GPU memory and a number of slices, of one pod or of many.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Charge {
    /// Nominal memory of all slices together, in GB.
    pub memory_gb: u64,
    /// The number of slices of any kind.
    pub slices: u64,
}

impl Charge {
    /// The charge for a slice that is given under a name. It is the size of the name, so that a namespace does not pay
    /// for an idle slice that happened to be larger. A name without a size is charged by the slice's own size.
    #[must_use]
    pub fn for_slice(name: ResourceName, shape: Shape) -> Self {
        let size = name.size().unwrap_or_else(|| shape.size());
        Self { memory_gb: size.0.into(), slices: 1 }
    }

    /// The least charge for a pod, wherever it is placed. The charge for a name without a size depends on the GPU.
    #[must_use]
    pub fn least(request: &RequestDocument) -> Self {
        let holding = |c: &crate::contract::ContainerRequest| {
            let size = c.resource.size().unwrap_or(c.size_gb);
            Self { memory_gb: u64::from(size.0) * u64::from(c.count), slices: c.count.into() }
        };
        request.holdings().iter().map(holding).sum()
    }

    /// The charge for the slices that a node's spec reserves for a pod.
    #[must_use]
    pub fn for_pod(spec: &GpuNodeSpec, uid: &PodUid) -> Self {
        let slices = ledger::reserved(spec, uid);
        slices.filter_map(|s| Some(Self::for_slice(s.reservation.as_ref()?.resource, s.shape))).sum()
    }

    /// The sum of both charges, saturating.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            memory_gb: self.memory_gb.saturating_add(other.memory_gb),
            slices: self.slices.saturating_add(other.slices),
        }
    }

    /// This charge without the other's, at least zero.
    #[must_use]
    pub fn minus(self, other: Self) -> Self {
        Self {
            memory_gb: self.memory_gb.saturating_sub(other.memory_gb),
            slices: self.slices.saturating_sub(other.slices),
        }
    }
}

impl std::iter::Sum for Charge {
    fn sum<I: Iterator<Item = Self>>(charges: I) -> Self {
        charges.fold(Self::default(), Self::plus)
    }
}

/// Whether the charge for a request depends on the GPU that serves it.
#[must_use]
pub fn depends_on_place(request: &RequestDocument) -> bool {
    request.containers.iter().any(|c| c.resource.size().is_none())
}

impl Cap {
    /// Whether the cap limits neither memory nor slices.
    #[must_use]
    pub fn is_unlimited(&self) -> bool {
        *self == Self::default()
    }

    /// Whether a total charge stays within the cap.
    #[must_use]
    pub fn admits(&self, all: Charge) -> bool {
        self.memory_gb.is_none_or(|most| all.memory_gb <= most.into())
            && self.slices.is_none_or(|most| all.slices <= most.into())
    }
}

/// A quota that one more pod would exceed. Its text goes into the pod's Event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OverQuota {
    /// The namespace that the quota limits.
    pub namespace: String,
    /// Name of the policy that has the quota.
    pub policy: String,
    /// The policy's `spec.quota` for one namespace.
    pub cap: Cap,
    /// The charge of the namespace's pods that hold slices or have reservations under the policy.
    pub held: Charge,
    /// The charge of the pod that does not fit.
    pub asked: Charge,
}

impl OverQuota {
    /// Whether the pod alone asks for more than the whole quota. Such a pod can never be scheduled, so pending is of no
    /// use.
    #[must_use]
    pub fn is_for_ever(&self) -> bool {
        !self.cap.admits(self.asked)
    }
}

impl fmt::Display for OverQuota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { namespace, policy, cap, held, asked } = self;
        let all = held.plus(*asked);
        let over_memory = cap.memory_gb.filter(|most| all.memory_gb > u64::from(*most));
        let (held, most, unit, asked) = match (over_memory, cap.slices) {
            (Some(most), _) => (held.memory_gb, most, "GB", asked.memory_gb),
            (None, most) => (held.slices, most.unwrap_or(u32::MAX), "slices", asked.slices),
        };
        write!(
            f,
            "namespace {namespace} holds {held} of {most} {unit} under policy {policy}, the pod asks {asked}"
        )?;
        if self.is_for_ever() {
            f.write_str(": more than the whole quota, so it will never be served")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{h100_shape, request, request_sized};
    use crate::units::SizeGb;

    fn over(cap: (Option<u32>, Option<u32>), held: (u64, u64), asked: (u64, u64)) -> OverQuota {
        let charge = |(memory_gb, slices)| Charge { memory_gb, slices };
        OverQuota {
            namespace: "team-a".to_owned(),
            policy: "shared".to_owned(),
            cap: Cap { memory_gb: cap.0, slices: cap.1 },
            held: charge(held),
            asked: charge(asked),
        }
    }

    #[test]
    fn a_slice_is_charged_by_the_size_of_its_name() {
        let (small, whole) = ("nvidia.com/mig-1g.10gb".parse().unwrap(), "nvidia.com/gpu".parse().unwrap());
        let large = h100_shape("3g.40gb", 0);
        assert_eq!(Charge::for_slice(small, large), Charge { memory_gb: 10, slices: 1 });
        let neutral = ResourceName::Neutral(SizeGb(14));
        assert_eq!(Charge::for_slice(neutral, large), Charge { memory_gb: 14, slices: 1 });
        let gpu = Shape::Whole { size_gb: SizeGb(80) };
        assert_eq!(Charge::for_slice(whole, gpu), Charge { memory_gb: 80, slices: 1 });
    }

    #[test]
    fn a_request_is_charged_for_its_holdings() {
        assert_eq!(Charge::least(&request("nvidia.com/mig-1g.10gb", 3)), Charge { memory_gb: 30, slices: 3 });
        let whole = request_sized(ResourceName::Whole, SizeGb(20), 2);
        assert_eq!(Charge::least(&whole), Charge { memory_gb: 40, slices: 2 });
        let neutral = request_sized(ResourceName::Neutral(SizeGb(14)), SizeGb(13), 2);
        assert_eq!(Charge::least(&neutral), Charge { memory_gb: 28, slices: 2 }, "whatever serves it");
        assert!(!depends_on_place(&neutral));
        assert!(depends_on_place(&whole) && !depends_on_place(&request("nvidia.com/gpu-8gb", 1)));
        let mut both = neutral;
        both.containers.extend(whole.containers);
        assert!(depends_on_place(&both), "one of two names has no size");
    }

    #[test]
    fn a_cap_limits_what_it_names() {
        let charge = Charge { memory_gb: 20, slices: 2 };
        for (cap, admits) in [
            ((None, None), true),
            ((Some(20), Some(2)), true),
            ((Some(19), None), false),
            ((None, Some(1)), false),
        ] {
            let (memory_gb, slices) = cap;
            let cap = Cap { memory_gb, slices };
            assert_eq!(cap.admits(charge), admits, "{cap:?}");
            assert_eq!(cap.is_unlimited(), (memory_gb, slices) == (None, None), "{cap:?}");
        }
    }

    #[test]
    fn an_exceeded_quota_is_reported_with_its_unit() {
        for (over, text) in [
            (
                over((Some(100), Some(10)), (90, 9), (20, 2)),
                "namespace team-a holds 90 of 100 GB under policy shared, the pod asks 20",
            ),
            (
                over((Some(100), Some(10)), (50, 10), (20, 1)),
                "namespace team-a holds 10 of 10 slices under policy shared, the pod asks 1",
            ),
            (
                over((Some(100), None), (0, 0), (120, 1)),
                "namespace team-a holds 0 of 100 GB under policy shared, the pod asks 120: more than the whole quota, so it will never be served",
            ),
        ] {
            assert_eq!(over.to_string(), text);
        }
    }
}
