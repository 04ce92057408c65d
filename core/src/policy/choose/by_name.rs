//! Containers that name what they want.

use super::names::{Need, largest};
use super::{Choosing, Named, check_size};
use crate::kind::Kind;
use crate::policy::{Asked, Denied, Room};
use crate::request::{ContainerAsk, Want};
use crate::resource::{ResourceName, share_size};
use crate::static_node::PluginName;
use crate::units::SizeGb;

impl Choosing<'_> {
    /// A container that names what it wants.
    pub(super) fn by_name(&mut self, container: &ContainerAsk) -> Result<Named, Denied> {
        let (supply, gpus) = (self.supply, &self.ask.gpus);
        let named = match container.want {
            Want::Profile(profile) => Named {
                size: profile.size(),
                resource: ResourceName::Mig(profile),
                served: supply.has_profile(profile, gpus),
            },
            Want::Compute(profile) => Named {
                size: profile.of().size(),
                resource: ResourceName::Compute(profile),
                served: supply.without_static().has_profile(profile.of(), gpus),
            },
            Want::Share(kind, size) => {
                let resource = share_size(size).and_then(|size| ResourceName::share(kind, size));
                let denied = || Denied::Size {
                    container: container.name.clone(),
                    size,
                    kinds: kind.to_string(),
                    most: largest(&[kind]),
                };
                let resource = resource.ok_or_else(denied)?;
                Named { size, resource, served: supply.has_share(kind, size, container.compute, gpus) }
            }
            Want::Whole => {
                // A whole GPU of whatever size would be past the largest size that is allowed.
                let size = self.policy.spec().sizes.max_gb.unwrap_or(SizeGb::ANY);
                let served = supply.has_whole(size, gpus);
                let whole = Named { size, resource: ResourceName::Whole, served };
                self.by_plugins_name(container, PluginName::Gpu, whole)?
            }
            Want::Replica => {
                let (resource, any) = (ResourceName::Replica, Asked::of(SizeGb::ANY));
                let fixed = supply.fixed(Kind::TimeSlicing, &any, container.count, gpus);
                let is_fixed = fixed.iter().any(|name| name.plugin_name() == Some(PluginName::Shared));
                let served = is_fixed || supply.without_static().room(resource, SizeGb::ANY, gpus).room > 0;
                let replica = Named { size: SizeGb::ANY, resource, served };
                self.by_plugins_name(container, PluginName::Shared, replica)?
            }
            Want::Size(_) => return self.by_size(container, SizeGb::ANY),
        };
        if named.size != SizeGb::ANY {
            check_size(self.policy, &container.name, named.size)?;
        }
        self.made.short |= !(named.served && self.has_room(container, &named));
        Ok(named)
    }

    /// What static nodes offer under a plugin's name, where what kerf means by it is not served, or is full: the first kind of
    /// the policy's order that has room.
    fn by_plugins_name(
        &self,
        container: &ContainerAsk,
        name: PluginName,
        plain: Named,
    ) -> Result<Named, Denied> {
        let carries = |named: &Named| container.carried == Some(named.resource);
        let is_served = plain.served && self.kinds.contains(&plain.resource.kind());
        if is_served && (carries(&plain) || container.carried.is_none() && self.has_room(container, &plain)) {
            return Ok(plain);
        }
        let most = self.policy.spec().sizes.max_gb;
        let offered = |kind: &Kind| {
            let resource = ResourceName::Plugin(name, *kind);
            let gpus = &self.ask.gpus;
            // As large as some node has it, but not past the largest size that is allowed.
            let size = match most {
                Some(most) => self.supply.fixed_largest(resource, most, gpus)?,
                None => SizeGb::ANY,
            };
            let served = self.supply.fixed_least(resource, &Asked::of(size), gpus).is_some();
            served.then_some(Named { size, resource, served })
        };
        let others = self.kinds.iter().filter(|kind| **kind != plain.resource.kind());
        let offered: Vec<Named> = others.filter_map(offered).collect();
        let is_for_one = |named: &&Named| {
            let gives = self.supply.fixed(
                named.resource.kind(),
                &Asked::of(named.size),
                container.count,
                &self.ask.gpus,
            );
            gives.contains(&named.resource)
        };
        let fitting = || offered.iter().filter(is_for_one);
        let has_room = |named: &Named| self.has_room(container, named);
        let found = fitting().find(|named| carries(named));
        let found = found.or_else(|| Some(&plain).filter(|plain| is_served && has_room(plain)));
        let found = found.or_else(|| fitting().find(|named| has_room(named)));
        let found = found.or(Some(&plain).filter(|plain| plain.served)).or_else(|| fitting().next());
        match (found, offered.first()) {
            (Some(found), _) => Ok(*found),
            (None, Some(replica)) => Err(one_replica(container, replica.resource)),
            (None, None) => Ok(plain),
        }
    }

    /// Who wants several of what only replicas would be large enough for is told so: more of them give no more.
    pub(super) fn want_one_replica(
        &self,
        kinds: &[Kind],
        container: &ContainerAsk,
        need: &Need,
    ) -> Result<(), Denied> {
        let one = |kind: &Kind| self.supply.fixed(*kind, &need.asked(), 1, need.gpus).into_iter().next();
        let replica = kinds.iter().find_map(one).filter(|_| container.count > 1);
        replica.map_or(Ok(()), |replica| Err(one_replica(container, replica)))
    }

    fn has_room(&self, container: &ContainerAsk, named: &Named) -> bool {
        let asked = Asked { size: named.size, memory: container.memory, compute: container.compute };
        self.way(container, named.resource, &asked).is_enough(Room::left)
    }
}

fn one_replica(container: &ContainerAsk, resource: ResourceName) -> Denied {
    let (container, count) = (container.name.clone(), container.count);
    Denied::Replicas { container, count, resource, kind: resource.kind() }
}
