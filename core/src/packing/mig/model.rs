//! One GPU model under MIG: its places, its states, and their present values.

use super::choose::{Choice, Cut, state_cost, wanted, with_idle};
use super::places::{PlaceId, PlaceSet, Places};
use super::prices::Prices;
use super::states::{StateId, States};
use crate::contract::ContainerRequest;
use crate::mig::{Instance, MigTable};
use crate::packing::{Cost, Terms};
use crate::units::SizeGb;

/// The memory slice in which costs are counted: that of an 80 GB GPU.
const USUAL_SLICE_GB: i64 = 10;

/// The cost of a GB beyond the request, so that a small request does not take a large GPU's slice.
const WASTED_GB: i64 = 20_000;

#[derive(Debug, Clone)]
pub(crate) struct Model {
    table: MigTable,
    pub(super) places: Places,
    pub(super) states: States,
    pub(super) prices: Prices,
    /// The size of the whole GPU, from its largest profile.
    size: SizeGb,
}

impl Model {
    /// The model with this table; `None` if MIG cannot cut it.
    pub(crate) fn from_table(table: &MigTable, terms: &Terms) -> Option<Self> {
        let places = Places::from_table(table)?;
        let states = States::from_places(&places)?;
        let prices = Prices::new(&places, &states, terms);
        let size = table.entries().iter().map(|e| e.profile.size()).max()?;
        Some(Self { table: table.clone(), places, states, prices, size })
    }

    /// The cut of a GPU with these instances; `None` if they cannot exist together.
    pub(crate) fn cut(
        &self,
        held: impl IntoIterator<Item = Instance>,
        idle: impl IntoIterator<Item = Instance>,
    ) -> Option<Cut> {
        let held = self.set(held, PlaceSet::default())?;
        let both = self.set(idle, held)?;
        Some(Cut { held, idle: both.without(held) })
    }

    fn set(&self, instances: impl IntoIterator<Item = Instance>, beside: PlaceSet) -> Option<PlaceSet> {
        instances.into_iter().try_fold(beside, |set, instance| {
            let place = self.places.find(instance)?;
            self.places.has_room(set, place).then(|| set.with_place(place))
        })
    }

    /// The cut with one more idle instance; `None` if there is no room for it.
    pub(crate) fn beside(&self, cut: Cut, idle: Instance) -> Option<Cut> {
        let both = self.set([idle], cut.held.union(cut.idle))?;
        Some(Cut { idle: both.without(cut.held), ..cut })
    }

    pub(crate) fn table(&self) -> &MigTable {
        &self.table
    }

    /// A number that rises when events on other GPUs may have changed the cost of a place.
    pub(crate) fn version(&self) -> u64 {
        self.prices.version()
    }

    pub(super) fn state(&self, cut: Cut) -> StateId {
        // The fallback is never used, because every set of places without overlaps is in the list.
        self.states.find(&self.places, cut.held).unwrap_or(StateId::EMPTY)
    }

    pub(crate) fn wanted(&self, request: &ContainerRequest) -> Vec<PlaceId> {
        wanted(&self.places, &self.table, request)
    }

    /// The cost of a place on a GPU in a state, without idle instances.
    pub(super) fn state_cost(&self, state: StateId, place: PlaceId) -> Option<Cost> {
        let cost = state_cost(&self.states, &self.prices, self.places.axis(), state, place)?;
        let slice = i64::from(self.size.0) * 1000 / i64::from(self.places.axis());
        Some(Cost(cost.0 * slice / (USUAL_SLICE_GB * 1000)))
    }

    /// The cost of memory beyond the request. Only a request by size can get more than it asked for.
    pub(crate) fn waste(&self, place: PlaceId, asked: &ContainerRequest) -> Cost {
        let size = self.places.instance(place).profile.size().0;
        Cost(WASTED_GB * i64::from(size.saturating_sub(asked.size_gb.0)))
    }

    /// The extra cost of a place's slices by the use of the model: `most` for each slice if all of the model is in use.
    pub(crate) fn scarcity(&self, place: PlaceId, most: u64) -> i64 {
        let slices = u64::from(self.places.instance(place).placement.size);
        let (held, all) = self.prices.use_of_slices();
        i64::try_from((most * slices * held).checked_div(all).unwrap_or(0)).unwrap_or(i64::MAX)
    }

    /// The cheapest of the places on one GPU, and the first among equals.
    pub(crate) fn choose(&self, cut: Cut, wanted: &[PlaceId]) -> Option<Choice> {
        let state = self.state(cut);
        let choices = wanted.iter().filter_map(|place| {
            let cost = self.state_cost(state, *place)?;
            with_idle(&self.places, cut, *place, cost)
        });
        choices.min_by_key(|choice| choice.cost)
    }

    /// The choice of exactly this place on one GPU.
    pub(crate) fn choice_at(&self, cut: Cut, place: PlaceId) -> Option<Choice> {
        self.choose(cut, &[place])
    }

    /// Pairs of a held place and a larger place of `wanted` that becomes free when the held one is left.
    pub(crate) fn openings(&self, held: PlaceSet, wanted: &[PlaceId]) -> Vec<(PlaceId, PlaceId)> {
        let size = |place| self.places.instance(place).placement.size;
        let pairs = held.iter().flat_map(|moved| wanted.iter().map(move |place| (moved, *place)));
        let opens = |(moved, place): &(PlaceId, PlaceId)| {
            size(*moved) < size(*place) && self.places.has_room(held.without((*moved).into()), *place)
        };
        pairs.filter(opens).collect()
    }

    /// The free memory slices that plain profiles cannot use, as their mean, and all free ones.
    pub(crate) fn fragments(&self) -> (f64, f64) {
        self.prices.fragments()
    }

    pub(crate) fn place(&self, instance: Instance) -> Option<PlaceId> {
        self.places.find(instance)
    }

    pub(crate) fn instance(&self, place: PlaceId) -> Instance {
        self.places.instance(place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{h100_shape, mig_table, request_sized};

    fn h100() -> Model {
        Model::from_table(&mig_table("H100-80GB"), &Terms::default()).unwrap()
    }

    fn instance(profile: &str, start: u8) -> Instance {
        h100_shape(profile, start).instance().unwrap()
    }

    #[test]
    fn a_smaller_instance_leaves_for_a_larger_one() {
        let model = h100();
        let held = model.cut([instance("1g.10gb", 0), instance("3g.40gb", 4)], []).unwrap().held;
        let openings = |profile: &str, starts: &[u8]| -> Vec<(Instance, Instance)> {
            let wanted = starts.iter().map(|start| model.place(instance(profile, *start)).unwrap());
            let openings = model.openings(held, &wanted.collect::<Vec<_>>());
            openings.iter().map(|(moved, place)| (model.instance(*moved), model.instance(*place))).collect()
        };
        let small = instance("1g.10gb", 0);
        assert_eq!(openings("4g.40gb", &[0]), [(small, instance("4g.40gb", 0))]);
        assert_eq!(
            openings("3g.40gb", &[0, 4]),
            [(small, instance("3g.40gb", 0))],
            "not for one of its size"
        );
        assert_eq!(openings("7g.80gb", &[0]), [], "one move does not suffice");
    }

    #[test]
    fn what_is_held_makes_slices_scarce_and_leaves_fragments() {
        let mut model = h100();
        let cut = model.cut([instance("1g.10gb", 0), instance("3g.40gb", 4)], []).unwrap();
        let state = model.state(cut);
        let scarcity = |model: &Model, profile, start| {
            model.scarcity(model.place(instance(profile, start)).unwrap(), 80)
        };
        assert_eq!(scarcity(&model, "3g.40gb", 4), 0);
        model.prices.add(&model.places, &model.states, state, cut.held);
        assert_eq!(scarcity(&model, "3g.40gb", 4), 80 * 4 * 5 / 8);
        assert_eq!(scarcity(&model, "1g.10gb", 0), 80 * 5 / 8);
        // Of the three free slices `1g.10gb` can use all, and `1g.20gb` and `2g.20gb` two.
        let (fragments, free) = model.fragments();
        assert!((fragments - (3.0 - 7.0 / 6.0)).abs() < 1e-9 && (free - 3.0).abs() < 1e-9, "{fragments}");
        model.prices.remove(&model.places, &model.states, state, cut.held);
        assert_eq!(scarcity(&model, "3g.40gb", 4), 0);
        assert_eq!(model.fragments(), (0.0, 0.0));
    }

    #[test]
    fn costs_are_counted_in_slices_of_an_80_gb_gpu() {
        for (name, profile, tenths) in [("H100-80GB", "7g.80gb", 10), ("A30-24GB", "4g.24gb", 6)] {
            let model = Model::from_table(&mig_table(name), &Terms::default()).unwrap();
            let place = model.places.for_profile(profile.parse().unwrap()).iter().next().unwrap();
            let (states, prices) = (&model.states, &model.prices);
            let plain = state_cost(states, prices, model.places.axis(), StateId::EMPTY, place).unwrap();
            assert_eq!(model.state_cost(StateId::EMPTY, place), Some(Cost(plain.0 * tenths / 10)), "{name}");
        }
    }

    #[test]
    fn memory_beyond_the_request_costs() {
        let model = h100();
        let waste = |profile: &str, size| {
            let name = "nvidia.com/mig-3g.40gb".parse().unwrap();
            let asked = request_sized(name, SizeGb(size), 1);
            model.waste(model.place(instance(profile, 0)).unwrap(), &asked.containers[0]).0
        };
        assert_eq!([waste("3g.40gb", 40), waste("3g.40gb", 30)], [0, 10 * WASTED_GB]);
        assert_eq!(waste("1g.10gb", 40), 0);
    }

    #[test]
    fn instances_that_exclude_each_other_are_no_cut() {
        let model = h100();
        let (half, small) = (instance("3g.40gb", 4), instance("1g.10gb", 5));
        assert!(model.cut([half], [small]).is_none() && model.cut([half, small], []).is_none());
        let cut = model.cut([half], [instance("1g.10gb", 0)]).unwrap();
        assert_eq!((cut.held.len(), cut.idle.len()), (1, 1));
        assert_eq!(model.beside(cut, small), None);
        assert_eq!(
            model.beside(cut, instance("1g.10gb", 1)).map(|cut| (cut.held.len(), cut.idle.len())),
            Some((1, 2))
        );
    }
}
