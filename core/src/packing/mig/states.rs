//! The states of a GPU, which decide its value: the memory slices that are taken, and the number of pieces.
//!
//! GPUs whose instances lie on the same memory slices have the same value, whatever the compute of the profiles.
//! Therefore the few hundred states of a model are listed once, each with the room that it still has.

use super::places::{PlaceId, PlaceSet, Places};
use crate::mig::{Placement, Profile};
use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};

/// The number of a state in the model's list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StateId(u32);

impl StateId {
    /// The state of the uncut GPU.
    pub const EMPTY: Self = Self(0);

    /// The number as an index into the model's list.
    #[must_use]
    pub fn index(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }
}

/// The taken memory slices, and those of them at which an instance starts. Together they give the extents of all
/// instances.
type Key = (u32, u32);

/// Real models have up to 417 states. A table that leads to more than this is not of a GPU.
const STATES_LIMIT: usize = 20_000;

/// The room that one state still has.
#[derive(Debug, Clone)]
struct State {
    key: Key,
    /// For each plain profile, the free memory slices that it could use in one way or another.
    covered: Vec<u8>,
    /// The same after the eviction of the worst placed instance that is smaller than the profile.
    covered_by_a_move: Vec<u8>,
    /// The state after an instance at each place; the same state if there is no room.
    after: Vec<StateId>,
}

/// All states of one GPU model.
#[derive(Debug, Clone)]
pub struct States {
    all: Vec<State>,
    index: HashMap<Key, StateId>,
    profiles: usize,
}

impl States {
    /// The states of a model with these places; `None` if there are too many.
    #[must_use]
    pub fn from_places(places: &Places) -> Option<Self> {
        let shapes = plain_shapes(places);
        let spans: BTreeSet<Placement> = places.iter().map(|p| places.instance(p).placement).collect();
        let mut keys: Vec<Key> = vec![(0, 0)];
        let mut index = HashMap::from([((0, 0), StateId::EMPTY)]);
        let mut next = 0;
        while let Some(key) = keys.get(next).copied() {
            for span in spans.iter().filter(|span| span.mask() & key.0 == 0) {
                let after = taken(key, *span);
                if let Entry::Vacant(unknown) = index.entry(after) {
                    unknown.insert(StateId(u32::try_from(keys.len()).ok()?));
                    keys.push(after);
                }
            }
            if keys.len() > STATES_LIMIT {
                return None;
            }
            next += 1;
        }
        let after = |key: Key, here: StateId, place: PlaceId| {
            let span = places.instance(place).placement;
            let free = span.mask() & key.0 == 0;
            if free { index.get(&taken(key, span)).copied().unwrap_or(here) } else { here }
        };
        let state = |key: &Key| {
            let here = index.get(key).copied().unwrap_or(StateId::EMPTY);
            State {
                key: *key,
                covered: shapes.iter().map(|(_, shape)| covered(key.0, shape)).collect(),
                covered_by_a_move: shapes
                    .iter()
                    .map(|(size, shape)| covered_by_a_move(*key, *size, shape))
                    .collect(),
                after: places.iter().map(|place| after(*key, here, place)).collect(),
            }
        };
        let all = keys.iter().map(state).collect();
        Some(Self { all, index, profiles: shapes.len() })
    }

    /// The number of states in the list.
    #[must_use]
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// All states in the order of their numbers.
    pub fn iter(&self) -> impl Iterator<Item = StateId> {
        (0..u32::try_from(self.all.len()).unwrap_or(u32::MAX)).map(StateId)
    }

    /// The number of plain profiles of the model.
    #[must_use]
    pub fn profiles(&self) -> usize {
        self.profiles
    }

    /// The state of a GPU with these instances.
    #[must_use]
    pub fn find(&self, places: &Places, held: PlaceSet) -> Option<StateId> {
        let spans = held.iter().map(|place| places.instance(place).placement);
        self.index.get(&spans.fold((0, 0), taken)).copied()
    }

    /// The state after one more instance; `None` if its memory slices are taken.
    #[must_use]
    pub fn after(&self, state: StateId, place: PlaceId) -> Option<StateId> {
        let next = self.all[state.index()].after[place.index()];
        (next != state).then_some(next)
    }

    /// The number of instances on a GPU in this state.
    #[must_use]
    pub fn instances(&self, state: StateId) -> u32 {
        self.all[state.index()].key.1.count_ones()
    }

    /// The number of taken memory slices in this state.
    #[must_use]
    pub fn taken(&self, state: StateId) -> u32 {
        self.all[state.index()].key.0.count_ones()
    }

    /// For each plain profile, the free memory slices that it could use in one way or another.
    #[must_use]
    pub fn covered(&self, state: StateId) -> &[u8] {
        &self.all[state.index()].covered
    }

    /// The same after the eviction of one smaller instance.
    #[must_use]
    pub fn covered_by_a_move(&self, state: StateId) -> &[u8] {
        &self.all[state.index()].covered_by_a_move
    }
}

fn taken((mask, starts): Key, span: Placement) -> Key {
    (mask | span.mask(), starts | 1 << span.start)
}

/// The memory slices of each plain profile, and its places.
fn plain_shapes(places: &Places) -> Vec<(u32, Vec<Placement>)> {
    let mut shapes: Vec<(Profile, (u32, Vec<Placement>))> = Vec::new();
    for instance in places.iter().map(|p| places.instance(p)).filter(|i| i.profile.is_plain()) {
        let known = shapes.iter_mut().find(|(profile, _)| *profile == instance.profile);
        if let Some((_, (_, placements))) = known {
            placements.push(instance.placement);
        } else {
            let size = u32::from(instance.placement.size);
            shapes.push((instance.profile, (size, vec![instance.placement])));
        }
    }
    shapes.into_iter().map(|(_, shape)| shape).collect()
}

fn covered(mask: u32, shape: &[Placement]) -> u8 {
    let open = shape.iter().map(|p| p.mask()).filter(|m| m & mask == 0);
    u8::try_from(open.fold(0, |all, m| all | m).count_ones()).unwrap_or(u8::MAX)
}

fn covered_by_a_move((mask, starts): Key, size: u32, shape: &[Placement]) -> u8 {
    let smaller = extents(mask, starts).filter(|extent| extent.count_ones() < size);
    let best = smaller.map(|extent| covered(mask & !extent, shape)).max();
    best.unwrap_or(0).max(covered(mask, shape))
}

/// The memory slices of each instance, as bits.
fn extents(mask: u32, starts: u32) -> impl Iterator<Item = u32> {
    (0..u32::BITS).filter(move |start| starts >> start & 1 == 1).map(move |start| {
        let later = starts >> start & !1;
        let length = (mask >> start).trailing_ones().min(later.trailing_zeros());
        (u32::MAX >> (u32::BITS - length)) << start
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{h100_shape, mig_table};

    /// The room on an H100 with these instances: each plain profile with what it can use, and after a move.
    fn room(held: &[(&str, u8)]) -> (u32, u32, Vec<(String, u8, u8)>) {
        let table = mig_table("H100-80GB");
        let places = Places::from_table(&table).unwrap();
        let states = States::from_places(&places).unwrap();
        let place = |(profile, start): &(&str, u8)| {
            places.find(h100_shape(profile, *start).instance().unwrap()).unwrap()
        };
        let held = held.iter().map(place).fold(PlaceSet::default(), PlaceSet::with_place);
        let state = states.find(&places, held).unwrap();
        let plain = table.entries().iter().map(|entry| entry.profile).filter(|profile| profile.is_plain());
        let now = states.covered(state).iter().zip(states.covered_by_a_move(state));
        let mut room: Vec<_> =
            plain.zip(now).map(|(profile, (now, moved))| (profile.to_string(), *now, *moved)).collect();
        room.sort_unstable();
        (states.instances(state), states.taken(state), room)
    }

    #[test]
    fn a_state_knows_the_room_of_each_profile() {
        let of = |counts: [(u8, u8); 6]| -> Vec<(String, u8, u8)> {
            let names = ["1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"];
            names.into_iter().zip(counts).map(|(name, (now, moved))| (name.to_owned(), now, moved)).collect()
        };
        assert_eq!(room(&[]), (0, 0, of([(7, 7), (8, 8), (6, 6), (8, 8), (4, 4), (8, 8)])));
        let one = of([(6, 6), (6, 8), (4, 6), (4, 8), (0, 4), (0, 8)]);
        assert_eq!(room(&[("1g.10gb", 0)]), (1, 1, one));
        let apart = of([(4, 4), (4, 6), (2, 4), (0, 4), (0, 4), (0, 0)]);
        assert_eq!(room(&[("1g.10gb", 0), ("2g.20gb", 4)]), (2, 3, apart));
        let adjacent = of([(5, 5), (6, 6), (4, 4), (4, 4), (0, 0), (0, 0)]);
        assert_eq!(room(&[("1g.10gb", 0), ("1g.10gb", 1)]), (2, 2, adjacent), "one of them moves, not both");
        assert_eq!(room(&[("7g.80gb", 0)]), (1, 8, of([(0, 0); 6])));
    }

    #[test]
    fn an_instance_is_added_only_where_there_is_room() {
        let places = Places::from_table(&mig_table("H100-80GB")).unwrap();
        let states = States::from_places(&places).unwrap();
        let place = |profile, start| places.find(h100_shape(profile, start).instance().unwrap()).unwrap();
        let half = states.after(StateId::EMPTY, place("3g.40gb", 4)).unwrap();
        assert_eq!(states.find(&places, place("3g.40gb", 4).into()), Some(half));
        assert_eq!(states.after(half, place("1g.10gb", 6)), None);
        assert!(states.after(half, place("1g.10gb", 3)).is_some_and(|full| states.taken(full) == 5));
    }
}
