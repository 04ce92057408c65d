//! Containers that ask by a resource name.

use super::names::{exists, largest};
use super::{Choosing, Named, check_size};
use crate::kind::Kind;
use crate::packing::Asked;
use crate::policy::Denied;
use crate::request::{ContainerAsk, GpuSelection, Want};
use crate::resource::{PluginName, ResourceName, share_size};
use crate::units::SizeGb;

impl Choosing<'_> {
    pub(super) fn by_name(&mut self, container: &ContainerAsk) -> Result<Named, Denied> {
        let named = match container.want {
            Want::Size(_) => return self.by_size(container, SizeGb::ANY),
            Want::MpsReplica if container.count > 1 => {
                return Err(one_replica(container, ResourceName::MpsReplica));
            }
            Want::MigReplica(profile) if container.count > 1 => {
                return Err(one_replica(container, ResourceName::MigReplica(profile)));
            }
            Want::Profile(_)
            | Want::Compute(_)
            | Want::MigReplica(_)
            | Want::Share(..)
            | Want::MpsReplica => {
                self.plain(container)?.ok_or_else(|| self.no_model(container, &container.by))?
            }
            Want::Whole => self.by_plugins_name(container, PluginName::Gpu)?,
            Want::Replica => self.by_plugins_name(container, PluginName::Shared)?,
        };
        if named.size != SizeGb::ANY {
            check_size(self.policy, &container.name, named.size)?;
        }
        Ok(named)
    }

    /// The name in kerf's own meaning. `None` if no model that the pod may have allows its kind or could serve it.
    fn plain(&self, container: &ContainerAsk) -> Result<Option<Named>, Denied> {
        let supply = self.supply;
        let kind = match container.want {
            Want::Profile(_) | Want::Compute(_) | Want::MigReplica(_) => Kind::Mig,
            Want::Share(kind, _) => kind,
            Want::Whole | Want::Size(_) => Kind::Whole,
            Want::Replica => Kind::TimeSlicing,
            Want::MpsReplica => Kind::Mps,
        };
        let Some(gpus) = self.policy.gpus_for(kind, &self.gpus) else { return Ok(None) };
        let (size, resource, served) = match container.want {
            Want::Profile(profile) => {
                (profile.size(), ResourceName::Mig(profile), supply.has_profile(profile, &gpus))
            }
            Want::Compute(profile) => {
                let served = supply.without_static().has_profile(profile.gpu_profile(), &gpus);
                (profile.gpu_profile().size(), ResourceName::Compute(profile), served)
            }
            Want::MigReplica(profile) => {
                let resource = ResourceName::MigReplica(profile);
                (profile.size(), resource, supply.has_managed(resource, &gpus))
            }
            Want::Share(kind, size) => {
                let resource = share_size(size).and_then(|size| ResourceName::share(kind, size));
                let denied = || Denied::Size {
                    container: container.name.clone(),
                    size,
                    kinds: kind.to_string(),
                    most: largest(kind, &GpuSelection::default()).unwrap_or(SizeGb(1)),
                };
                let resource = resource.ok_or_else(denied)?;
                (size, resource, supply.has_share(kind, size, container.compute, &gpus))
            }
            Want::Whole | Want::Size(_) => {
                // Without a bound, a whole GPU of any size could be larger than the policy's largest size.
                let size = self.policy.spec().sizes.max_gb.unwrap_or(SizeGb::ANY);
                (size, ResourceName::Whole, supply.has_whole(&Asked::for_size(size), &gpus))
            }
            Want::Replica => {
                let (resource, any) = (ResourceName::Replica, Asked::for_size(SizeGb::ANY));
                let fixed = supply.fixed(Kind::TimeSlicing, &any, container.count, &gpus);
                let is_fixed = fixed.iter().any(|name| name.plugin_name() == Some(PluginName::Shared));
                let served = is_fixed || supply.has_managed(resource, &gpus);
                (SizeGb::ANY, resource, served)
            }
            Want::MpsReplica => {
                // The size of an equal share depends on its GPU, so the largest that the pod may get must be within the
                // policy's sizes.
                if let Some(largest) = supply.at_most(ResourceName::MpsReplica, &gpus) {
                    check_size(self.policy, &container.name, largest)?;
                }
                let served = supply.has_mps_replica(container.compute, &gpus);
                (SizeGb::ANY, ResourceName::MpsReplica, served)
            }
        };
        let may_come = served || exists(resource, &gpus);
        Ok(may_come.then_some(Named { size, resource, kinds: Vec::new(), served, gpus }))
    }

    /// Resolves a name of NVIDIA's plugin. It takes kerf's own meaning if GPUs serve it by an allowed kind. Otherwise
    /// it takes the first kind in the policy's order that static nodes offer, or that managed nodes offer as equal MPS
    /// shares.
    fn by_plugins_name(&self, container: &ContainerAsk, name: PluginName) -> Result<Named, Denied> {
        let plain = self.plain(container)?;
        let own = if name == PluginName::Gpu { Kind::Whole } else { Kind::TimeSlicing };
        let is_allowed = |plain: &&Named| plain.served && self.kinds.contains(&own);
        if let Some(plain) = plain.as_ref().filter(is_allowed) {
            return Ok(plain.clone());
        }
        let most = self.policy.spec().sizes.max_gb;
        let offered = |kind: &Kind| {
            let resource = ResourceName::Plugin(name, *kind);
            let gpus = self.policy.gpus_for(*kind, &self.gpus)?;
            // The name has no size, so a device could be larger than the policy's largest size.
            let size = match most {
                Some(most) => self.supply.fixed_largest(resource, most, &gpus)?,
                None => SizeGb::ANY,
            };
            let served = self.supply.fixed_least(resource, &Asked::for_size(size), &gpus).is_some();
            served.then_some(Named { size, resource, kinds: Vec::new(), served, gpus })
        };
        let managed = |kind: &Kind| {
            let gpus = self.policy.gpus_for(*kind, &self.gpus)?;
            let resource = ResourceName::MpsReplica;
            let is_small = most.is_none_or(|most| self.supply.at_most(resource, &gpus) <= Some(most));
            let served =
                *kind == Kind::Mps && is_small && self.supply.has_mps_replica(container.compute, &gpus);
            served.then_some(Named { size: SizeGb::ANY, resource, kinds: Vec::new(), served, gpus })
        };
        // Several instances or replicas may be of one GPU, so they cannot serve a request for different GPUs.
        let others = self.kinds.iter().filter(|kind| **kind != own && !container.distinct_gpus);
        let offered: Vec<Named> =
            others.flat_map(|kind| managed(kind).into_iter().chain(offered(kind))).collect();
        let is_for_one = |named: &&Named| {
            let ResourceName::Plugin(_, kind) = named.resource else { return container.count == 1 };
            let asked = Asked::for_size(named.size);
            self.supply.fixed(kind, &asked, container.count, &named.gpus).contains(&named.resource)
        };
        let fitting = || offered.iter().find(is_for_one);
        let found = fitting().or(plain.as_ref().filter(|plain| plain.served));
        match (found, offered.first(), &plain) {
            (Some(found), _, _) => Ok(found.clone()),
            (None, Some(replica), _) => Err(one_replica(container, replica.resource)),
            (None, None, Some(plain)) => Ok(plain.clone()),
            (None, None, None) => Err(self.no_model(container, &container.by)),
        }
    }

    /// Refuses a request for several slices that no node serves, if one replica would be large enough: several replicas
    /// give no more than one.
    pub(super) fn want_one_replica(
        &self,
        container: &ContainerAsk,
        allowed: &[(Kind, GpuSelection)],
        asked: &Asked,
    ) -> Result<(), Denied> {
        let one =
            |(kind, gpus): &(Kind, GpuSelection)| self.supply.fixed(*kind, asked, 1, gpus).into_iter().next();
        allowed.iter().find_map(one).map_or(Ok(()), |replica| Err(one_replica(container, replica)))
    }
}

fn one_replica(container: &ContainerAsk, resource: ResourceName) -> Denied {
    let (container, count) = (container.name.clone(), container.count);
    Denied::Replicas { container, count, resource }
}
