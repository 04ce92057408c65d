//! The value of room for each profile: high if the fleet has little of it left and pods use much of it.
//!
//! Without prices the value of a state is that of FGD's fragmentation gradient (Weng et al., ATC'23) over memory
//! slices, with equal weights. The price of a profile is the root of its part of what is held, divided by what is left
//! of its room. Both come from the present fleet, without a forecast and without history.

use super::places::{PlaceSet, Places};
use super::states::{StateId, States};
use crate::packing::{Cost, Terms};

/// The part of the fleet that always counts as left of every profile, so that no price is unbounded.
const ALWAYS_LEFT: f64 = 0.03;

/// The part of all held slices that always counts as held by every profile, so that no price is zero.
const ALWAYS_HELD: f64 = 0.1;

/// All states are valued again once a price has moved by this part.
const TOLERANCE: f64 = 0.02;

/// The weight of a memory slice that could be used after one eviction, if kerf may evict pods.
const AFTER_A_MOVE: f64 = 0.25;

/// The weight of a memory slice, in the unit of a cost.
pub(super) const SLICE: f64 = 1_000_000.0;

/// The free room and the held slices of one model, and the values of its states that follow from them.
#[derive(Debug, Clone, Default)]
pub(super) struct Prices {
    axis: u32,
    gpus: u32,
    /// The plain profile for which each place counts.
    profile_of: Vec<usize>,
    /// Memory slices of all GPUs that each profile could use.
    left: Vec<u64>,
    /// Memory slices that instances of each profile hold.
    held: Vec<u64>,
    weights: Vec<f64>,
    /// The price of a memory slice that each profile could use; the mean is one.
    each: Vec<f64>,
    /// The present prices, which replace `each` once one has moved far enough.
    fresh: Vec<f64>,
    /// The memory slices that count for each profile, state by state. It holds everything that a valuation reads,
    /// because a small fleet values its states after most decisions.
    rows: Vec<f64>,
    values: Vec<i64>,
    version: u64,
}

impl Prices {
    pub(super) fn new(places: &Places, states: &States, terms: &Terms) -> Self {
        let mut plain: Vec<_> = Vec::new();
        for profile in places.iter().map(|p| places.instance(p).profile).filter(|p| p.is_plain()) {
            if !plain.contains(&profile) {
                plain.push(profile);
            }
        }
        let profile_of: Vec<usize> = places
            .iter()
            .map(|place| {
                let profile = places.instance(place).profile;
                let like =
                    |p: &crate::mig::Profile| (p.compute(), p.size()) == (profile.compute(), profile.size());
                plain.iter().position(like).unwrap_or(0)
            })
            .collect();
        let mut prices = Self {
            axis: u32::from(places.axis()),
            profile_of,
            left: vec![0; states.profiles()],
            held: vec![0; states.profiles()],
            weights: plain.iter().map(|profile| weight(terms, *profile)).collect(),
            each: vec![1.0; states.profiles()],
            fresh: vec![1.0; states.profiles()],
            rows: states.iter().flat_map(|state| row(states, state, terms.moves)).collect(),
            ..Self::default()
        };
        prices.value_all();
        prices
    }

    pub(super) fn add(&mut self, places: &Places, states: &States, state: StateId, held: PlaceSet) {
        self.gpus += 1;
        for (left, covered) in self.left.iter_mut().zip(states.covered(state)) {
            *left += u64::from(*covered);
        }
        for place in held.iter() {
            self.held[self.profile_of[place.index()]] += u64::from(places.instance(place).placement.size);
        }
    }

    pub(super) fn remove(&mut self, places: &Places, states: &States, state: StateId, held: PlaceSet) {
        self.gpus = self.gpus.saturating_sub(1);
        for (left, covered) in self.left.iter_mut().zip(states.covered(state)) {
            *left = left.saturating_sub(u64::from(*covered));
        }
        for place in held.iter() {
            let held = &mut self.held[self.profile_of[place.index()]];
            *held = held.saturating_sub(u64::from(places.instance(place).placement.size));
        }
    }

    /// Values the states again, if a price has moved beyond the tolerance.
    pub(super) fn refresh(&mut self) {
        self.price();
        let moved = |(new, old): (&f64, &f64)| (new - old).abs() > TOLERANCE * old;
        if self.fresh.iter().zip(&self.each).any(moved) {
            self.each.copy_from_slice(&self.fresh);
            self.value_all();
        }
    }

    /// A number that rises with each valuation of the states.
    pub(super) fn version(&self) -> u64 {
        self.version
    }

    /// The held memory slices, and all of them.
    pub(super) fn use_of_slices(&self) -> (u64, u64) {
        (self.held.iter().sum(), u64::from(self.gpus) * u64::from(self.axis))
    }

    /// The free memory slices that the profiles cannot use, as their mean, and all free ones.
    pub(super) fn fragments(&self) -> (f64, f64) {
        let (held, all) = self.use_of_slices();
        let free = as_f64(all.saturating_sub(held));
        let usable: u64 = self.left.iter().sum();
        (free - as_f64(usable) / self.profiles(), free)
    }

    /// The number of plain profiles, which is never zero (see [`Places::from_table`]).
    #[expect(clippy::cast_precision_loss, reason = "a model has few profiles")]
    fn profiles(&self) -> f64 {
        self.each.len() as f64
    }

    /// The value of the room that a GPU in this state still has.
    pub(super) fn value(&self, state: StateId) -> Cost {
        Cost(self.values[state.index()])
    }

    /// Computes the present prices of the profiles; their mean is one.
    fn price(&mut self) {
        let slices = f64::from(self.axis) * f64::from(self.gpus.max(1));
        let all_held = as_f64(self.held.iter().sum()) + 1.0;
        let known = self.left.iter().zip(&self.held).zip(&self.weights);
        for (price, ((left, held), weight)) in self.fresh.iter_mut().zip(known) {
            let left = as_f64(*left) / slices + ALWAYS_LEFT;
            let held = as_f64(*held) / all_held + ALWAYS_HELD;
            *price = weight * held.sqrt() / left;
        }
        let mean = self.fresh.iter().sum::<f64>() / self.profiles();
        for price in &mut self.fresh {
            *price /= mean;
        }
    }

    fn value_all(&mut self) {
        let scale = SLICE / self.profiles();
        let values = self.rows.chunks_exact(self.each.len()).map(|row| {
            let worth: f64 = self.each.iter().zip(row).map(|(price, slices)| price * slices).sum();
            rounded(worth * scale)
        });
        self.values.clear();
        self.values.extend(values);
        self.version += 1;
    }
}

/// The memory slices that count in a state for each profile.
fn row(states: &States, state: StateId, moves: bool) -> impl Iterator<Item = f64> {
    let both = states.covered(state).iter().zip(states.covered_by_a_move(state));
    both.map(move |(now, moved)| f64::from(*now) + if moves { AFTER_A_MOVE * f64::from(*moved) } else { 0.0 })
}

fn weight(terms: &Terms, profile: crate::mig::Profile) -> f64 {
    terms.weights.get(&profile).map_or(1.0, |percent| f64::from(*percent) / 100.0)
}

#[expect(clippy::cast_precision_loss, reason = "counts of memory slices are far below 2^52")]
fn as_f64(count: u64) -> f64 {
    count as f64
}

/// Rounds to the nearest integer, halves away from zero. It replaces `f64::round`, which calls the mathematics library
/// if the build may not use the processor's instruction; that call took most of the time of a valuation.
#[expect(clippy::cast_possible_truncation, reason = "values are bounded by axis x price, far below 2^63")]
#[expect(clippy::cast_precision_loss, reason = "below 2^53 the whole part is exact")]
fn rounded(value: f64) -> i64 {
    let whole = value as i64;
    let rest = value - whole as f64;
    whole + i64::from(rest >= 0.5) - i64::from(rest <= -0.5)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mig::{MigTable, ProfileEntry};
    use crate::testing::mig_table;

    #[test]
    fn states_are_valued_again_only_once_a_price_has_moved_far_enough() {
        let places = Places::from_table(&mig_table("H100-80GB")).unwrap();
        let mut prices = Prices::new(&places, &States::from_places(&places).unwrap(), &Terms::default());
        let mut version_with = |held| {
            prices.held[0] = held;
            prices.refresh();
            prices.version()
        };
        let before = version_with(0);
        assert_eq!(version_with(0), before);
        let moved = version_with(100);
        assert_eq!(moved, before + 1);
        assert_eq!(version_with(101), moved, "the price has moved by less than the tolerance");
        assert!(version_with(0) > moved);
    }

    #[test]
    fn a_profile_without_weight_moves_no_price() {
        let places = Places::from_table(&mig_table("H100-80GB")).unwrap();
        let weights = [("1g.10gb".parse().unwrap(), 0)].into();
        let terms = Terms { weights, ..Terms::default() };
        let mut prices = Prices::new(&places, &States::from_places(&places).unwrap(), &terms);
        prices.refresh();
        let valued = prices.version();
        prices.refresh();
        assert_eq!(prices.version(), valued);
    }

    #[test]
    fn an_instance_counts_for_the_plain_profile_of_its_size_or_for_the_first() {
        let mut entries = mig_table("H100-80GB").entries().to_vec();
        entries.reverse();
        let media = entries.iter_mut().find(|entry| entry.profile.claims_media()).unwrap();
        let held = |places: &Places| {
            let states = States::from_places(places).unwrap();
            let mut prices = Prices::new(places, &states, &Terms::default());
            let media = places.iter().find(|place| places.instance(*place).profile.claims_media()).unwrap();
            prices.add(places, &states, StateId::EMPTY, media.into());
            prices.held
        };
        let twin = media.profile;
        media.profile = "1g.11gb+me".parse().unwrap();
        let table = |entries: &[ProfileEntry]| Places::from_table(&MigTable::new(entries.to_vec())).unwrap();
        assert_eq!(held(&table(&entries)), [1, 0, 0, 0, 0, 0]);
        entries.iter_mut().find(|entry| entry.profile.claims_media()).unwrap().profile = twin;
        assert_eq!(held(&table(&entries)), [0, 0, 0, 0, 0, 1], "`1g.10gb` is the last of the table now");
    }

    #[test]
    fn halves_are_rounded_away_from_zero() {
        let below_a_half = 0.5_f64.next_down();
        for (value, whole) in
            [(0.0, 0), (below_a_half, 0), (0.5, 1), (1.4, 1), (2.5, 3), (-0.5, -1), (-1.4, -1)]
        {
            assert_eq!(rounded(value), whole, "{value}");
        }
    }
}
