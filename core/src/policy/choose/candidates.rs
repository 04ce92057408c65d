//! The resource name of a container that asks by size.
//!
//! If a single kind can serve it under a single name, the container gets that name, because NVIDIA's monitoring,
//! existing quotas and static nodes use it. Otherwise it gets a neutral name, and the extender takes the first kind
//! with free capacity on the pod's nodes. The present use of GPUs does not count here, because it changes until the pod
//! is scheduled.

use super::names::{self, Need, conceivable, served};
use super::{Choosing, Named, check_size, join};
use crate::kind::Kind;
use crate::packing::Asked;
use crate::policy::{Denied, Policy};
use crate::request::{ContainerAsk, GpuSelection, Want};
use crate::resource::ResourceName;
use crate::units::SizeGb;

/// Kinds that a policy allows, in its order, each with the GPUs that may serve it.
type Allowed = [(Kind, GpuSelection)];

impl Choosing<'_> {
    /// Chooses by what managed nodes serve, else by what static nodes serve, else by what GPUs of the catalog could
    /// serve.
    pub(super) fn by_size(&mut self, container: &ContainerAsk, size: SizeGb) -> Result<Named, Denied> {
        check_size(self.policy, &container.name, size)?;
        let size = self.stepped(&container.name, size);
        let kinds = self.kinds_for(container)?;
        let gpus = |kind: &Kind| Some((*kind, self.policy.gpus_for(*kind, &self.gpus)?));
        let allowed: Vec<(Kind, GpuSelection)> = kinds.iter().filter_map(gpus).collect();
        if allowed.is_empty() {
            return Err(self.no_model(container, &join(&kinds)));
        }
        let asked = names::asked(container, size);
        let managed = self.supply.without_static();
        let mut found = named(&allowed, &asked, true, |kind, need| served(&managed, kind, need));
        if found.is_empty() {
            found.extend(self.fixed(&allowed, &asked, container.count));
        }
        let could_be = named(&allowed, &asked, false, conceivable);
        if found.is_empty() {
            self.want_one_replica(container, &allowed, &asked)?;
            found.clone_from(&could_be);
        }
        let Some(first) = found.first() else {
            return Err(self.no_slice(&kinds, container, &Need { asked, gpus: &self.gpus }));
        };
        // Kinds that no GPU serves now are listed too, so that a node that comes later can serve the pending pod by
        // them.
        let may_be =
            |kind: &Kind| found.iter().chain(&could_be).any(|name| name.resource.kind() == Some(*kind));
        let neutral = || {
            let resource = Need { asked, gpus: &self.gpus }.neutral()?;
            let kinds = kinds.iter().copied().filter(may_be).collect();
            Some(Named { resource, kinds, gpus: self.gpus.clone(), ..first.clone() })
        };
        // A neutral name needs an agent that registers it with its kubelet, and static nodes have no agent.
        let is_open = found.len() > 1 && self.supply.has_neutral_names() && !self.supply.is_static();
        Ok(is_open.then(neutral).flatten().unwrap_or_else(|| first.clone()))
    }

    /// The first name by which static nodes serve it; names of which some node has enough devices come first.
    fn fixed(&self, allowed: &Allowed, asked: &Asked, count: u32) -> Option<Named> {
        let offered =
            named(allowed, asked, true, |kind, need| self.supply.fixed(kind, asked, count, need.gpus));
        let is_enough = |name: &&Named| self.supply.holds_fixed(name.resource, asked, count, &name.gpus);
        offered.iter().find(is_enough).or(offered.first()).cloned()
    }

    /// The same need by a name that no `DeviceClass` maps to DRA. kube-scheduler serves a mapped name by the class, and
    /// does not call kerf.
    pub(super) fn unmapped(&self, container: &ContainerAsk, named: Named) -> Result<Named, Denied> {
        let Some(class) = self.supply.mapping(named.resource) else { return Ok(named) };
        let has_size = match named.resource {
            ResourceName::Mig(_) | ResourceName::Mps(_) | ResourceName::TimeSlicing(_) => true,
            ResourceName::Whole => matches!(container.want, Want::Size(_)),
            _ => false,
        };
        let need = Need { asked: names::asked(container, named.size), gpus: &named.gpus };
        let neutral = need.neutral().filter(|name| {
            has_size && self.supply.has_neutral_names() && self.supply.mapping(*name).is_none()
        });
        let Some(resource) = neutral else {
            let (container, class) = (container.name.clone(), class.to_owned());
            return Err(Denied::Mapped { container, resource: named.resource, class });
        };
        Ok(Named { resource, kinds: named.resource.kind().into_iter().collect(), ..named })
    }
}

/// Whether one of these kinds could serve `size` on a GPU that the policy allows.
pub(in crate::policy) fn may_serve(policy: &Policy, kinds: &[Kind], size: SizeGb) -> bool {
    let all = GpuSelection::default();
    kinds.iter().any(|kind| {
        let gpus = policy.gpus_for(*kind, &all);
        gpus.is_some_and(|gpus| {
            !conceivable(*kind, &Need { asked: Asked::for_size(size), gpus: &gpus }).is_empty()
        })
    })
}

/// The names that `names` returns for the allowed kinds, in their order.
fn named(
    allowed: &Allowed,
    asked: &Asked,
    served: bool,
    names: impl Fn(Kind, &Need) -> Vec<ResourceName>,
) -> Vec<Named> {
    let by_kind = |(kind, gpus): &(Kind, GpuSelection)| {
        let with_name =
            |resource| Named { size: asked.size, resource, kinds: Vec::new(), served, gpus: gpus.clone() };
        names(*kind, &Need { asked: *asked, gpus }).into_iter().map(with_name).collect::<Vec<_>>()
    };
    allowed.iter().flat_map(by_kind).collect()
}

#[cfg(test)]
#[path = "candidates_tests.rs"]
mod tests;
