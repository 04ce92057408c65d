//! One GPU model under MIG: its places, its states, and what they are worth now.

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

/// What a GB costs that the request did not ask for, so that a small request does not take a large GPU's slice.
const WASTED_GB: i64 = 20_000;

/// One model.
#[derive(Debug, Clone)]
pub(crate) struct Model {
    table: MigTable,
    pub(super) places: Places,
    pub(super) states: States,
    pub(super) prices: Prices,
    /// GB of the whole GPU, by its largest profile.
    size: SizeGb,
}

impl Model {
    /// The model with this table; `None` for one that cannot be cut.
    pub(crate) fn of(table: &MigTable, terms: &Terms) -> Option<Self> {
        let places = Places::of(table)?;
        let states = States::of(&places)?;
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
            self.places.has_room(set, place).then(|| set.with(place))
        })
    }

    /// The cut with one more idle instance; `None` where there is no room for it.
    pub(crate) fn beside(&self, cut: Cut, idle: Instance) -> Option<Cut> {
        let both = self.set([idle], cut.held.or(cut.idle))?;
        Some(Cut { idle: both.without(cut.held), ..cut })
    }

    /// The profiles and their placements.
    pub(crate) fn table(&self) -> &MigTable {
        &self.table
    }

    /// Rises whenever a place's cost may have changed by what happened on other GPUs.
    pub(crate) fn version(&self) -> u64 {
        self.prices.version()
    }

    /// The state of a GPU that is cut so.
    pub(super) fn state(&self, cut: Cut) -> StateId {
        // Every set of places without overlaps is in the list.
        self.states.find(&self.places, cut.held).unwrap_or(StateId::EMPTY)
    }

    /// The places that serve a request.
    pub(crate) fn wanted(&self, request: &ContainerRequest) -> Vec<PlaceId> {
        wanted(&self.places, &self.table, request)
    }

    /// What a place costs on a GPU in a state, before idle instances are looked at.
    pub(super) fn state_cost(&self, state: StateId, place: PlaceId) -> Option<Cost> {
        let cost = state_cost(&self.states, &self.prices, self.places.axis(), state, place)?;
        let slice = i64::from(self.size.0) * 1000 / i64::from(self.places.axis().max(1));
        Some(Cost(cost.0 * slice / (USUAL_SLICE_GB * 1000)))
    }

    /// What serving a request of `asked` at a place wastes: a request by size may get more than it asked for.
    pub(crate) fn waste(&self, place: PlaceId, asked: &ContainerRequest) -> Cost {
        let size = self.places.instance(place).profile.size().0;
        Cost(WASTED_GB * i64::from(size.saturating_sub(asked.size_gb.0)))
    }

    /// What the slices of a place cost more because this much of the model is in use: all of `most` for each of its
    /// slices if all of the model is.
    pub(crate) fn scarcity(&self, place: PlaceId, most: u64) -> i64 {
        let slices = u64::from(self.places.instance(place).placement.size);
        let (held, all) = self.prices.use_of_slices();
        i64::try_from(most * slices * held / all.max(1)).unwrap_or(i64::MAX)
    }

    /// The cheapest of the places on one GPU; of equal ones the first.
    pub(crate) fn choose(&self, cut: Cut, wanted: &[PlaceId]) -> Option<Choice> {
        let state = self.state(cut);
        let choices = wanted.iter().filter_map(|place| {
            let cost = self.state_cost(state, *place)?;
            with_idle(&self.places, cut, *place, cost)
        });
        choices.min_by_key(|choice| choice.cost)
    }

    /// The choice of this very place on one GPU.
    pub(crate) fn at(&self, cut: Cut, place: PlaceId) -> Option<Choice> {
        self.choose(cut, &[place])
    }

    /// The held places that open one of `wanted` when left, each with the one that it opens: smaller ones than that.
    pub(crate) fn openings(&self, held: PlaceSet, wanted: &[PlaceId]) -> Vec<(PlaceId, PlaceId)> {
        let size = |place| self.places.instance(place).placement.size;
        let pairs = held.iter().flat_map(|moved| wanted.iter().map(move |place| (moved, *place)));
        let opens = |(moved, place): &(PlaceId, PlaceId)| {
            size(*moved) < size(*place) && self.places.has_room(held.without((*moved).into()), *place)
        };
        pairs.filter(opens).collect()
    }

    /// Free memory slices that plain profiles cannot use, on their mean, and all free ones.
    pub(crate) fn fragments(&self) -> (f64, f64) {
        self.prices.fragments()
    }

    /// The place of an instance.
    pub(crate) fn place(&self, instance: Instance) -> Option<PlaceId> {
        self.places.find(instance)
    }

    /// What lies at a place.
    pub(crate) fn instance(&self, place: PlaceId) -> Instance {
        self.places.instance(place)
    }
}
