//! How much of a name's room is spoken for by pods that wait already.

use super::{Alike, Asked, Supply};
use crate::kind::Kind;
use crate::request::GpuSelection;
use crate::resource::ResourceName;
use crate::units::{ComputePercent, SizeGb};

/// How many slices of a name there is room for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Room {
    /// How many more slices there is room for now, were nobody to wait for any.
    pub room: u32,
    /// How many of those pods that wait already will take.
    pub pending: u32,
}

impl Room {
    /// How many are left for those who come now.
    #[must_use]
    pub fn left(self) -> u32 {
        self.room.saturating_sub(self.pending)
    }
}

impl Supply {
    /// How many more slices of this name, for a request of `size`, the GPUs hold that a pod may have, and how many of them
    /// pods that wait already will take. The size matters to whole GPUs alone.
    ///
    /// It is a sound guess and no reservation: what is left may be less than this tells only where pods want more slices than
    /// one on one node, or GPUs of other models than the pod does. Those who wait are taken to get what there is room for,
    /// on the GPUs that this pod may have, and no more: who does not fit is in nobody's way. What they take of another name's
    /// room, see [`taken_by`].
    #[must_use]
    pub fn room(&self, name: ResourceName, size: SizeGb, gpus: &GpuSelection) -> Room {
        self.room_for(name, size, None, gpus)
    }

    /// The same for slices with so much compute. Those who wait are taken to want what goes with their size.
    #[must_use]
    pub fn room_for(
        &self,
        name: ResourceName,
        size: SizeGb,
        compute: Option<ComputePercent>,
        gpus: &GpuSelection,
    ) -> Room {
        self.room_of(name, &Asked { compute, ..Asked::of(size) }, gpus)
    }

    /// The same for slices with so much real memory as well. What static nodes have is as it is: only who waits for the same
    /// is in the way.
    #[must_use]
    pub fn room_of(&self, name: ResourceName, asked: &Asked, gpus: &GpuSelection) -> Room {
        let admitted = self.admitted(gpus);
        let worth = |(gpu, _): &&Alike| asked.is_worth(name, gpu.size);
        let rooms = admitted.iter().filter(worth).map(|alike| (alike, alike.0.room_for(name, asked.compute)));
        let serving: Vec<Serving> = rooms.filter(|(_, room)| *room > 0).collect();
        let room = in_all(serving.iter().copied());
        let taken =
            |(other, count): (&ResourceName, &u32)| taken_by(*other, *count, name, &admitted, &serving);
        let is_same = |(other, _): &(&ResourceName, &u32)| is_same(**other, name);
        let others = self.pending.iter().filter(|pending| !is_same(pending)).map(taken);
        let others = others.fold(0, u32::saturating_add).min(room);
        let same = self.pending.iter().filter(is_same).map(|(_, count)| *count);
        let room = room.saturating_add(self.fixed_room(name, asked, gpus));
        Room { room, pending: same.fold(others, u32::saturating_add).min(room) }
    }
}

/// Whether the two are given of the same devices.
fn is_same(a: ResourceName, b: ResourceName) -> bool {
    a == b || a.plugin_name().is_some() && a.plugin_name() == b.plugin_name() && a.kind() == b.kind()
}

/// GPUs that are alike, and the room of each of them for what is asked.
type Serving<'a> = (&'a Alike, u32);

/// How many slices of `name`, which `serving` have room for, are lost to pods that wait for `count` of `other`.
///
/// Of one name: as many. Of one kind: they fill that part of the GPUs with room for `other` which is `count` of this room, and the same part of
/// the room for what is asked on those GPUs is gone. Of two kinds: only a GPU of which nobody has anything has room for both, and
/// the first slice of one kind takes it from the other. MPS shares fill a GPU before they begin the next; of the others each
/// may begin one.
fn taken_by(other: ResourceName, count: u32, name: ResourceName, all: &[Alike], serving: &[Serving]) -> u32 {
    if other == name {
        return count;
    }
    let room_for_other = total(all.iter(), other);
    let taken = u64::from(count.min(room_for_other));
    if taken == 0 {
        return 0;
    }
    let both = || serving.iter().copied().filter(|((gpu, _), _)| gpu.room(other) > 0);
    let lost = u64::from(in_all(both()));
    let part = |of: u64, all: u64| u32::try_from((lost * of).div_ceil(all.max(1))).unwrap_or(u32::MAX);
    if other.kind() == name.kind() {
        return part(taken, u64::from(room_for_other));
    }
    let gpus: u64 = both().map(|((_, count), _)| u64::from(*count)).sum();
    let on_both = u64::from(total(both().map(|(alike, _)| alike), other));
    let begun = match other.kind() {
        Some(Kind::Mps) => {
            let beyond = taken.saturating_sub(u64::from(room_for_other) - on_both);
            (beyond * gpus).div_ceil(on_both.max(1))
        }
        _ => taken.min(gpus),
    };
    part(begun, gpus)
}

fn in_all<'a>(serving: impl Iterator<Item = Serving<'a>>) -> u32 {
    serving.map(|((_, count), room)| room.saturating_mul(*count)).fold(0, u32::saturating_add)
}

fn total<'a>(gpus: impl Iterator<Item = &'a Alike>, name: ResourceName) -> u32 {
    gpus.map(|(gpu, count)| gpu.room(name).saturating_mul(*count)).fold(0, u32::saturating_add)
}
