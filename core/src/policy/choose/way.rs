//! A name that could serve a container, and whether there is room for what the pod wants of it.

use crate::contract::{ContainerRequest, Reason};
use crate::packing::Spread;
use crate::policy::{Asked, Room, Several, Supply};
use crate::request::{Claim, GpuSelection, held};
use crate::resource::ResourceName;

/// How many slices of the claim's name a pod holds with it, after the containers `before` it, and how they lie on GPUs. Those of
/// an init container go on to the containers after it. The claim is `distinct` where its container needs several GPUs.
pub(in crate::policy) fn needed<'c>(
    before: impl IntoIterator<Item = &'c ContainerRequest>,
    claim: Claim,
    distinct: bool,
) -> Several {
    let same = before.into_iter().filter(|request| request.resource == claim.resource);
    let before = same.map(|request| {
        let claim = Claim { role: request.role, resource: request.resource, count: request.count };
        (claim, request.distinct_gpus)
    });
    let (claims, distinct): (Vec<Claim>, Vec<bool>) = before.chain([(claim, distinct)]).unzip();
    let spread = Spread::of(claim.resource.kind(), claims.iter().map(|claim| claim.count).zip(distinct));
    Several { count: held(&claims).into_iter().fold(0, u32::saturating_add), spread }
}

/// A name, with how much there is of it and how much is needed.
#[derive(Debug, Clone, Copy)]
pub(in crate::policy) struct Way {
    pub resource: ResourceName,
    pub room: Room,
    needed: Several,
    /// How many there are together, where all nodes have enough and one may not.
    together: Option<u32>,
}

impl Way {
    /// What there is of `resource` for a pod that needs so many.
    pub fn of(
        supply: &Supply,
        resource: ResourceName,
        asked: &Asked,
        gpus: &GpuSelection,
        needed: Several,
    ) -> Self {
        let room = supply.room_of(resource, asked, gpus);
        let is_asked = needed.count > 1 && room.room >= needed.count;
        let together = is_asked.then(|| supply.together(resource, asked, gpus, needed));
        Self { resource, room, needed, together }
    }

    /// Whether what `there_is` of the room is enough, and enough of it together.
    pub fn is_enough(&self, there_is: impl Fn(Room) -> u32) -> bool {
        there_is(self.room) >= self.needed.count && self.too_few().is_none()
    }

    /// Whether a node could ever have as many.
    pub fn is_ever_enough(&self, supply: &Supply, asked: &Asked, gpus: &GpuSelection) -> bool {
        let needed = self.needed;
        needed.count <= 1 || supply.ever_together(self.resource, asked, gpus, needed) >= needed.count
    }

    /// Why it is passed over.
    pub fn full(&self) -> Reason {
        let Self { resource, room: Room { room, pending }, .. } = *self;
        Reason::Full { resource, room, pending, together: self.too_few() }
    }

    fn too_few(&self) -> Option<u32> {
        self.together.filter(|together| *together < self.needed.count)
    }
}
