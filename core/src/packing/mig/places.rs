//! All places of one GPU model as bits: a profile at a start is one place, and a cut GPU is a set of places.

use crate::mig::{Instance, MigTable, Profile};

/// The number of a place in the model's list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PlaceId(u8);

impl PlaceId {
    /// The number as an index into the model's list.
    #[must_use]
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// A set of places, one bit each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct PlaceSet(u128);

impl PlaceSet {
    /// Whether the set contains the place.
    #[must_use]
    pub fn has(self, place: PlaceId) -> bool {
        self.0 >> place.0 & 1 == 1
    }

    /// The set with the place added.
    #[must_use]
    pub fn with_place(self, place: PlaceId) -> Self {
        Self(self.0 | 1 << place.0)
    }

    /// The set without the places of `others`.
    #[must_use]
    pub fn without(self, others: Self) -> Self {
        Self(self.0 & !others.0)
    }

    /// The places that are in both sets.
    #[must_use]
    pub fn intersection(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// The places that are in at least one of the sets.
    #[must_use]
    pub fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether the set contains no place.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The number of places in the set.
    #[must_use]
    pub fn len(self) -> u32 {
        self.0.count_ones()
    }

    /// The places in the order of their numbers.
    pub fn iter(self) -> impl Iterator<Item = PlaceId> {
        let mut rest = self.0;
        std::iter::from_fn(move || {
            let place = u8::try_from(rest.trailing_zeros()).ok().filter(|_| rest != 0)?;
            rest &= rest - 1;
            Some(PlaceId(place))
        })
    }
}

impl From<PlaceId> for PlaceSet {
    fn from(place: PlaceId) -> Self {
        Self::default().with_place(place)
    }
}

/// The requirements of an instance at one place.
#[derive(Debug, Clone)]
struct Place {
    instance: Instance,
    mask: u32,
    /// Places that cannot be used at the same time, including itself: they share a memory slice, or both have the media
    /// engines.
    excluded: PlaceSet,
    same: PlaceSet,
    /// The most instances of the profile on one GPU.
    max: u32,
}

/// The places of one GPU model.
#[derive(Debug, Clone)]
pub struct Places {
    all: Vec<Place>,
    compute: u32,
    axis: u8,
}

/// A set of places has 128 bits, so a model must not have more places. Known GPUs are far below both limits (RTX PRO
/// 6000: 12 slices; B200: 25 places).
const AXIS_LIMIT: u8 = 16;
const PLACES_LIMIT: usize = 128;

impl Places {
    /// The places of a model with this table; `None` if MIG cannot cut it, or if the table exceeds the limits. A table
    /// needs a plain profile, because the value of a GPU's room is what plain profiles can use of it.
    #[must_use]
    pub fn from_table(table: &MigTable) -> Option<Self> {
        let listed: Vec<(Instance, u8)> = table
            .entries()
            .iter()
            .flat_map(|e| e.placements().map(|placement| (Instance { profile: e.profile, placement }, e.max)))
            .collect();
        let fits = |(i, _): &(Instance, u8)| {
            i.placement.size > 0
                && i.placement.start.checked_add(i.placement.size).is_some_and(|end| end <= table.axis())
        };
        if !listed.iter().any(|(i, _)| i.profile.is_plain())
            || listed.len() > PLACES_LIMIT
            || table.axis() > AXIS_LIMIT
            || !listed.iter().all(fits)
        {
            return None;
        }
        let set = |holds: &dyn Fn(&Instance) -> bool| {
            let places = (0_u8..).map(PlaceId).zip(&listed).filter(|(_, (i, _))| holds(i));
            places.fold(PlaceSet::default(), |set, (place, _)| set.with_place(place))
        };
        let place = |(instance, max): &(Instance, u8)| Place {
            instance: *instance,
            mask: instance.placement.mask(),
            excluded: set(&|other| {
                other.placement.overlaps(instance.placement)
                    || (other.profile.claims_media() && instance.profile.claims_media())
            }),
            same: set(&|other| other.profile == instance.profile),
            max: u32::from(*max),
        };
        let all = listed.iter().map(place).collect();
        Some(Self { all, compute: u32::from(table.compute()), axis: table.axis() })
    }

    /// The number of memory slices of the whole GPU.
    #[must_use]
    pub fn axis(&self) -> u8 {
        self.axis
    }

    /// All places, in the order of the table and then by start.
    pub fn iter(&self) -> impl Iterator<Item = PlaceId> {
        (0..u8::try_from(self.all.len()).unwrap_or(u8::MAX)).map(PlaceId)
    }

    /// The instance that a place means.
    #[must_use]
    pub fn instance(&self, place: PlaceId) -> Instance {
        self.all[place.index()].instance
    }

    /// The place of an instance; `None` if the model has no such place.
    #[must_use]
    pub fn find(&self, instance: Instance) -> Option<PlaceId> {
        self.iter().find(|place| self.instance(*place) == instance)
    }

    /// All places of a profile; empty if the model does not have it.
    #[must_use]
    pub fn for_profile(&self, profile: Profile) -> PlaceSet {
        let same = self.iter().find(|place| self.instance(*place).profile == profile);
        same.map(|place| self.all[place.index()].same).unwrap_or_default()
    }

    /// The memory slices of a set of places, as bits.
    #[must_use]
    pub fn mask(&self, set: PlaceSet) -> u32 {
        set.iter().fold(0, |mask, place| mask | self.all[place.index()].mask)
    }

    /// The number of memory slices that a set of places takes.
    #[must_use]
    pub fn slices(&self, set: PlaceSet) -> u32 {
        self.mask(set).count_ones()
    }

    /// The places that must be free for an instance at this one, including itself.
    #[must_use]
    pub fn excluded(&self, place: PlaceId) -> PlaceSet {
        self.all[place.index()].excluded
    }

    /// Whether an instance can be created at the place beside `held`: memory slices, compute slices and the profile's
    /// maximum must suffice.
    #[must_use]
    pub fn has_room(&self, held: PlaceSet, place: PlaceId) -> bool {
        let this = &self.all[place.index()];
        held.intersection(this.excluded).is_empty()
            && self.compute(held) + u32::from(this.instance.profile.compute()) <= self.compute
            && held.intersection(this.same).len() < this.max
    }

    /// The instance of `idle` that blocks the place most, beside `held`: one of the same profile if there are too many
    /// of them, otherwise the one with the most compute slices.
    #[must_use]
    pub fn biggest_claim(&self, held: PlaceSet, idle: PlaceSet, place: PlaceId) -> Option<PlaceId> {
        let this = &self.all[place.index()];
        let too_many = held.union(idle).intersection(this.same).len() >= this.max;
        let claims = if too_many { idle.intersection(this.same) } else { idle };
        claims.iter().max_by_key(|place| self.instance(*place).profile.compute())
    }

    fn compute(&self, set: PlaceSet) -> u32 {
        set.iter().map(|place| u32::from(self.instance(place).profile.compute())).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mig::{Geometry, ProfileEntry, catalog};
    use crate::testing::mig_table;
    use proptest::prelude::*;

    /// The places of an H100 after a change of its table.
    fn h100_with(change: impl FnOnce(&mut Vec<ProfileEntry>)) -> Option<Places> {
        let mut entries = mig_table("H100-80GB").entries().to_vec();
        change(&mut entries);
        Places::from_table(&MigTable::new(entries))
    }

    proptest! {
        #[test]
        fn has_room_agrees_with_the_geometry(
            model in 0_usize..64, tries in prop::collection::vec(0_usize..128, 0..24)
        ) {
            let tables: Vec<_> = catalog::MODELS.iter().filter_map(catalog::GpuModel::mig_table).collect();
            let table = &tables[model % tables.len()];
            let places = Places::from_table(table).unwrap();
            let all: Vec<_> = places.iter().collect();
            let (mut held, mut geometry) = (PlaceSet::default(), Geometry::empty(table));
            for n in tries {
                let place = all[n % all.len()];
                let i = places.instance(place);
                let next = geometry.clone().place(i.profile, i.placement.start);
                prop_assert_eq!(places.has_room(held, place), next.is_ok());
                if let Ok(next) = next {
                    (held, geometry) = (held.with_place(place), next);
                }
                prop_assert_eq!(places.mask(held), geometry.mask());
            }
        }
    }

    #[test]
    fn the_idle_instance_with_the_most_compute_slices_blocks_a_place_most() {
        let places = Places::from_table(&mig_table("H100-80GB")).unwrap();
        let named = |name: &str| places.for_profile(name.parse().unwrap()).iter().next().unwrap();
        let idle = ["1g.10gb", "3g.40gb", "2g.20gb"].map(named);
        let all = idle.iter().fold(PlaceSet::default(), |set, place| set.with_place(*place));
        let claim = |idle| places.biggest_claim(PlaceSet::default(), idle, named("4g.40gb"));
        assert_eq!(claim(all), Some(idle[1]));
        assert_eq!(claim(PlaceSet::default()), None);
    }

    #[test]
    fn an_instance_of_the_same_profile_blocks_most_once_the_profile_has_its_maximum() {
        let places = Places::from_table(&mig_table("H100-80GB")).unwrap();
        let all = |name: &str| places.for_profile(name.parse().unwrap()).iter().collect::<Vec<_>>();
        let (media, large) = (all("1g.10gb+me"), all("3g.40gb"));
        let idle = PlaceSet::default().with_place(media[0]).with_place(large[1]);
        assert_eq!(places.biggest_claim(PlaceSet::default(), idle, media[1]), Some(media[0]));
    }

    #[test]
    fn a_table_beyond_the_limits_has_no_places() {
        assert!(h100_with(|_| {}).is_some());
        assert!(h100_with(|entries| entries[0].starts = vec![8]).is_none());
        assert!(h100_with(|entries| entries[0].starts = vec![255]).is_none());
        assert!(h100_with(|entries| entries[0].size = 0).is_none());
        let with_axis = |slices| h100_with(|entries| entries[6].size = slices);
        assert!(with_axis(16).is_some() && with_axis(17).is_none());
        // An H100 has 25 places, of which seven are of its first profile.
        let with_places = |places: usize| h100_with(|entries| entries[0].starts = vec![0; places - 18]);
        assert!(with_places(128).is_some() && with_places(129).is_none());
    }

    #[test]
    fn a_table_without_a_plain_profile_has_no_places() {
        assert!(h100_with(|entries| entries.retain(|entry| !entry.profile.is_plain())).is_none());
        assert!(Places::from_table(&MigTable::default()).is_none());
    }

    #[test]
    fn a_gpu_has_no_more_instances_of_a_profile_than_its_maximum() {
        let has_two = |max| {
            let places = h100_with(|entries| entries[4].max = max).unwrap();
            let halves: Vec<_> = places.for_profile("3g.40gb".parse().unwrap()).iter().collect();
            places.has_room(halves[0].into(), halves[1])
        };
        assert!(has_two(2) && !has_two(1));
    }
}
