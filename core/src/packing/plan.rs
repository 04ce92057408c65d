//! The kinds of a pod's slices if its resource names do not fix them, and the order in which they are tried.

use crate::contract::{ContainerRequest, RequestDocument};
use crate::kind::Kind;
use crate::mig::Profile;
use crate::resource::{ResourceName, share_size};
use std::borrow::Cow;
use std::collections::BTreeSet;

/// Only this many neutral names of a pod are combined with each other: four kinds each make 64 plans. Pods hardly ever
/// have more names, and each plan may be tried on each node.
const COMBINED_NAMES_LIMIT: usize = 3;

/// One kind for each neutral name of a pod, in the order of its containers; empty if all its names fix their kind.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct KindPlan(Vec<(ResourceName, Kind)>);

impl KindPlan {
    /// The kind for a neutral name; `None` for a name that is not neutral, or not in the pod.
    #[must_use]
    pub fn kind(&self, name: ResourceName) -> Option<Kind> {
        self.0.iter().find(|(planned, _)| *planned == name).map(|(_, kind)| *kind)
    }

    /// The neutral names with their kinds, in the order of the containers.
    pub fn kinds(&self) -> impl Iterator<Item = (ResourceName, Kind)> + '_ {
        self.0.iter().copied()
    }
}

/// The position of a plan in [`plans`]; lower is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Rank(u16);

impl Rank {
    /// The rank of the first plan.
    pub const BEST: Self = Self(0);

    /// The rank of the plan at this position of [`plans`].
    pub(super) fn from_position(place: usize) -> Self {
        Self(u16::try_from(place).unwrap_or(u16::MAX))
    }

    /// The plan of this rank; `None` if the request has fewer plans.
    #[must_use]
    pub fn plan(self, request: &RequestDocument) -> Option<KindPlan> {
        plans(request).into_iter().nth(usize::from(self.0))
    }
}

/// The plans of a request, best first: every combination of the kinds that may serve its neutral names, beginning with
/// the first kind of the first name. It is one empty plan if no name is neutral, and no plan if no kind may serve all
/// containers of a name.
#[must_use]
pub fn plans(request: &RequestDocument) -> Vec<KindPlan> {
    let mut plans = vec![KindPlan::default()];
    let mut names: Vec<ResourceName> = Vec::new();
    for name in request.containers.iter().map(|container| container.resource) {
        if !name.is_neutral() || names.contains(&name) {
            continue;
        }
        names.push(name);
        let kinds = common_kinds(request, name);
        plans = plans.into_iter().flat_map(|plan| extended(&plan, name, &kinds)).collect();
    }
    plans
}

/// A plan extended by each kind that one more name may have.
fn extended(plan: &KindPlan, name: ResourceName, kinds: &[Kind]) -> Vec<KindPlan> {
    // Names beyond the limit multiply no plans: they take the kind of the last combined name, or else their first kind.
    let follows = plan.0.get(COMBINED_NAMES_LIMIT - 1).map(|(_, kind)| *kind);
    let kinds = match follows.filter(|kind| kinds.contains(kind)) {
        Some(kind) => vec![kind],
        None if follows.is_some() => kinds.iter().copied().take(1).collect(),
        None => kinds.to_vec(),
    };
    let with = |kind| KindPlan(plan.0.iter().copied().chain([(name, kind)]).collect());
    kinds.into_iter().map(with).collect()
}

/// The kinds that may serve all containers of a neutral name, in the order of the first container, because the kubelet
/// gives any device of a name to any of them. Empty if the containers ask for different profiles.
fn common_kinds(request: &RequestDocument, name: ResourceName) -> Vec<Kind> {
    let containers = || request.containers.iter().filter(|container| container.resource == name);
    let profiles: BTreeSet<Profile> = containers().filter_map(|container| container.profile).collect();
    let may = |kind: &Kind| profiles.len() < 2 && containers().all(|container| container.may_be(*kind));
    let mut kinds: Vec<Kind> = Kind::ALL.into_iter().filter(may).collect();
    let order = containers().next().map(|container| container.kinds.as_slice()).unwrap_or_default();
    kinds.sort_by_key(|kind| order.iter().position(|ordered| ordered == kind));
    kinds
}

impl RequestDocument {
    /// The request under a plan: only the planned kind may serve each neutral name.
    #[must_use]
    pub fn planned(&self, plan: &KindPlan) -> Cow<'_, Self> {
        let is_planned = |container: &ContainerRequest| {
            plan.kind(container.resource).is_none_or(|kind| container.kinds == [kind])
        };
        if self.containers.iter().all(is_planned) {
            return Cow::Borrowed(self);
        }
        let mut planned = self.clone();
        for container in &mut planned.containers {
            if let Some(kind) = plan.kind(container.resource) {
                container.kinds = vec![kind];
            }
        }
        Cow::Owned(planned)
    }

    /// Whether the pod's policy allows slices of `kind` on GPUs of this model.
    #[must_use]
    pub fn allows(&self, kind: Kind, model: &str) -> bool {
        self.kinds_by_model.get(model).is_none_or(|kinds| kinds.contains(&kind))
    }
}

/// The resource name of the planned kind for a request by neutral name. A share has as many GiB as the name says. The
/// name stays neutral for a GPU instance, because its profile depends on the GPU.
pub(super) fn own_name(request: &ContainerRequest) -> Option<ResourceName> {
    match (request.resource, request.only_kind()?) {
        (ResourceName::Neutral(_), Kind::Whole) => Some(ResourceName::Whole),
        (ResourceName::Neutral(_), kind @ (Kind::Mps | Kind::TimeSlicing)) => {
            let memory = request.memory.map(crate::units::MemoryMib::nominal);
            ResourceName::share(kind, share_size(request.size_gb.max(memory.unwrap_or(request.size_gb)))?)
        }
        (name, _) => Some(name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::request;
    use Kind::{Mig, Mps, TimeSlicing, Whole};

    fn pod(containers: &[(u32, &[Kind])]) -> RequestDocument {
        let mut pod = request("nvidia.com/mig-1g.10gb", 1);
        let own = pod.containers[0].clone();
        let neutral = |(size, kinds): &(u32, &[Kind])| ContainerRequest {
            resource: ResourceName::Neutral(crate::units::SizeGb(*size)),
            kinds: kinds.to_vec(),
            ..own.clone()
        };
        pod.containers.extend(containers.iter().map(neutral));
        pod
    }

    fn kinds(pod: &RequestDocument) -> Vec<Vec<Kind>> {
        plans(pod).iter().map(|plan| plan.kinds().map(|(_, kind)| kind).collect()).collect()
    }

    #[test]
    fn a_pod_without_neutral_names_has_one_plan_which_changes_nothing() {
        let pod = pod(&[]);
        assert_eq!(plans(&pod), [KindPlan::default()]);
        assert!(matches!(pod.planned(&plans(&pod)[0]), Cow::Borrowed(_)));
    }

    #[test]
    fn the_kinds_of_the_first_name_change_last() {
        let two = pod(&[(10, &[Mps, Mig]), (20, &[Mig, Whole]), (10, &[Mig, Mps])]);
        assert_eq!(kinds(&two), [[Mps, Mig], [Mps, Whole], [Mig, Mig], [Mig, Whole]]);
        let planned = two.planned(&plans(&two)[1]).into_owned();
        let kinds: Vec<_> = planned.containers.iter().map(ContainerRequest::only_kind).collect();
        assert_eq!(kinds, [Some(Mig), Some(Mps), Some(Whole), Some(Mps)]);
        assert_eq!(Rank::from_position(1).plan(&two), Some(plans(&two).remove(1)));
        assert_eq!(Rank::from_position(4).plan(&two), None);
        assert_eq!(plans(&planned), [plans(&two).remove(1)], "a planned request has this plan only");
        assert!(matches!(planned.planned(&plans(&planned)[0]), Cow::Borrowed(_)));
    }

    #[test]
    fn a_kind_listed_twice_counts_once_and_a_kind_that_serves_nothing_makes_no_plan() {
        assert_eq!(kinds(&pod(&[(10, &[Mps, Mig, Mps])])), [[Mps], [Mig]]);
        assert!(plans(&pod(&[(10, &[])])).is_empty());
        let mut unlike = pod(&[(20, &[Mig]), (20, &[Mig])]);
        unlike.containers[1].profile = "1g.20gb".parse().ok();
        assert_eq!(kinds(&unlike), [[Mig]]);
        unlike.containers[2].profile = "2g.20gb".parse().ok();
        assert!(plans(&unlike).is_empty(), "no instance is of two profiles");
    }

    #[test]
    fn the_fourth_name_takes_the_kind_of_the_third_if_it_may() {
        let all: &[Kind] = &Kind::ALL;
        let five = pod(&[(1, all), (2, all), (3, all), (4, all), (5, &[TimeSlicing, Mps])]);
        let kinds = kinds(&five);
        assert_eq!(kinds.len(), 64);
        assert_eq!(kinds[0], [Mig, Mig, Mig, Mig, TimeSlicing]);
        assert_eq!(kinds[2], [Mig, Mig, Mps, Mps, Mps]);
        assert_eq!(kinds[63], [TimeSlicing; 5]);
    }
}
