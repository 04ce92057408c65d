//! The GPUs of a model in groups of equal cuts: a decision compares the ways of cutting and not each GPU.

use super::choose::{Choice, Cut, REUSE, with_idle};
use super::model::Model;
use super::places::PlaceId;
use super::states::StateId;
use crate::packing::Cost;
use std::collections::{BTreeSet, HashMap};

/// The most groups of one state, and GPUs of one group, that a decision compares. Without this limit the decision would
/// take longer with each GPU of the fleet.
const EXAMINED_LIMIT: usize = 128;

/// States are sorted for a class only after this many decisions at unchanged prices, because sorting costs more than
/// one scan.
const RESTED: u32 = 4;

#[derive(Debug, Clone)]
struct Group {
    cut: Cut,
    gpus: BTreeSet<u32>,
}

/// A way of making room: `victim` leaves the GPU, and `place` is taken there.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Way {
    pub(crate) gpu: u32,
    pub(crate) victim: PlaceId,
    pub(crate) place: PlaceId,
    pub(crate) cost: Cost,
}

#[derive(Debug, Clone)]
pub(crate) struct Groups {
    pub(crate) model: Model,
    cuts: Vec<Option<Cut>>,
    vacant: Vec<u32>,
    by_state: Vec<Vec<Group>>,
    /// The index of a cut's group among those of its state.
    group_index: HashMap<Cut, usize>,
    /// The states of at least one GPU.
    live: Vec<StateId>,
}

/// The places and states that can serve a class of requests, the cheapest first, at one version of the prices.
#[derive(Debug, Clone, Default)]
pub(crate) struct Order {
    wanted: Vec<PlaceId>,
    sorted: Vec<(Cost, StateId, usize)>,
    sorted_at: u64,
    seen_at: u64,
    rested: u32,
}

impl Order {
    /// The order for requests that these places serve.
    pub(crate) fn for_places(wanted: Vec<PlaceId>) -> Self {
        Self { wanted, ..Self::default() }
    }

    pub(crate) fn wanted(&self) -> &[PlaceId] {
        &self.wanted
    }
}

/// The best choice so far. Among equal costs the first GPU wins, and then the first place in the request's order.
#[derive(Debug, Clone, Copy)]
struct Best {
    choice: Choice,
    gpu: u32,
    rank: usize,
}

impl Best {
    fn key(&self) -> (Cost, u32, usize) {
        (self.choice.cost, self.gpu, self.rank)
    }
}

impl Groups {
    pub(crate) fn new(model: Model) -> Self {
        let by_state = vec![Vec::new(); model.states.len()];
        Self {
            model,
            cuts: Vec::new(),
            vacant: Vec::new(),
            by_state,
            group_index: HashMap::new(),
            live: Vec::new(),
        }
    }

    /// Adds a GPU and returns its number.
    pub(crate) fn add(&mut self, cut: Cut) -> u32 {
        let gpu = self.vacant.pop().unwrap_or_else(|| {
            self.cuts.push(None);
            u32::try_from(self.cuts.len() - 1).unwrap_or(u32::MAX)
        });
        self.join(gpu, cut);
        self.model.prices.refresh();
        gpu
    }

    pub(crate) fn cut(&self, gpu: u32) -> Option<Cut> {
        self.cuts.get(index(gpu)).copied().flatten()
    }

    pub(crate) fn set(&mut self, gpu: u32, cut: Cut) {
        if self.cut(gpu).is_some_and(|before| before != cut) {
            self.leave(gpu);
            self.join(gpu, cut);
            self.model.prices.refresh();
        }
    }

    pub(crate) fn remove(&mut self, gpu: u32) {
        if self.cut(gpu).is_some() {
            self.leave(gpu);
            self.vacant.push(gpu);
            self.model.prices.refresh();
        }
    }

    /// The ways in which a smaller instance makes room for one of the places when it leaves. There is one GPU for each
    /// kind of cut, and the cost is without the new place of the victim.
    pub(crate) fn ways(&self, wanted: &[PlaceId], is_evictable: impl Fn(u32, PlaceId) -> bool) -> Vec<Way> {
        let mut ways = Vec::new();
        for group in self.live.iter().flat_map(|state| &self.by_state[state.index()]) {
            let before = self.model.state(group.cut);
            for (victim, place) in self.model.openings(group.cut.held, wanted) {
                let Some(gpu) =
                    group.gpus.iter().copied().take(EXAMINED_LIMIT).find(|gpu| is_evictable(*gpu, victim))
                else {
                    continue;
                };
                let held = group.cut.held.without(victim.into()).with_place(place);
                let after = self.model.state(Cut { held, ..group.cut });
                let cost = Cost(self.model.prices.value(before).0 - self.model.prices.value(after).0);
                ways.push(Way { gpu, victim, place, cost });
            }
        }
        ways
    }

    fn join(&mut self, gpu: u32, cut: Cut) {
        let state = self.model.state(cut);
        let groups = &mut self.by_state[state.index()];
        let group_at = *self.group_index.entry(cut).or_insert_with(|| {
            if groups.is_empty() {
                self.live.push(state);
            }
            groups.push(Group { cut, gpus: BTreeSet::new() });
            groups.len() - 1
        });
        groups[group_at].gpus.insert(gpu);
        self.cuts[index(gpu)] = Some(cut);
        self.model.prices.add(&self.model.places, &self.model.states, state, cut.held);
    }

    fn leave(&mut self, gpu: u32) {
        let Some(cut) = self.cuts[index(gpu)].take() else { return };
        let state = self.model.state(cut);
        self.model.prices.remove(&self.model.places, &self.model.states, state, cut.held);
        let Some(group_at) = self.group_index.get(&cut).copied() else { return };
        let groups = &mut self.by_state[state.index()];
        groups[group_at].gpus.remove(&gpu);
        if groups[group_at].gpus.is_empty() {
            self.group_index.remove(&cut);
            groups.swap_remove(group_at);
            if let Some(moved) = groups.get(group_at) {
                self.group_index.insert(moved.cut, group_at);
            }
            if groups.is_empty() {
                self.live.retain(|live| *live != state);
            }
        }
    }

    /// The cheapest place among all GPUs.
    pub(crate) fn best(&self, order: &mut Order) -> Option<(u32, Choice)> {
        let version = self.model.prices.version();
        order.rested = if order.seen_at == version { order.rested + 1 } else { 0 };
        order.seen_at = version;
        if order.sorted_at != version && order.rested >= RESTED {
            self.sort(order);
        }
        let best =
            if order.sorted_at == version { self.walk(order) } else { self.scan(&order.wanted, |_| true) };
        best.map(|best| (best.gpu, best.choice))
    }

    /// The cheapest of these places among only those GPUs that `admits` accepts.
    pub(crate) fn best_among(
        &self,
        wanted: &[PlaceId],
        admits: impl Fn(u32) -> bool,
    ) -> Option<(u32, Choice)> {
        self.scan(wanted, admits).map(|best| (best.gpu, best.choice))
    }

    fn sort(&self, order: &mut Order) {
        let costs = self.model.states.iter().flat_map(|state| {
            let places = order.wanted.iter().enumerate();
            places.filter_map(move |(rank, place)| Some((self.model.state_cost(state, *place)?, state, rank)))
        });
        order.sorted = costs.collect();
        order.sorted.sort_by_key(|(cost, ..)| *cost);
        order.sorted_at = self.model.prices.version();
    }

    fn walk(&self, order: &Order) -> Option<Best> {
        let mut best: Option<Best> = None;
        for (cost, state, rank) in &order.sorted {
            // The list is sorted and an idle instance saves at most `REUSE`, so no later place can be cheaper.
            if best.is_some_and(|b| b.choice.cost.0 < cost.0 - REUSE) {
                break;
            }
            self.look(*state, (*rank, order.wanted[*rank]), *cost, &mut best, |_| true);
        }
        best
    }

    fn scan(&self, wanted: &[PlaceId], admits: impl Fn(u32) -> bool) -> Option<Best> {
        let mut best: Option<Best> = None;
        for state in &self.live {
            for (rank, place) in wanted.iter().enumerate() {
                let Some(cost) = self.model.state_cost(*state, *place) else { continue };
                self.look(*state, (rank, *place), cost, &mut best, &admits);
            }
        }
        best
    }

    /// Searches the groups of a state for one on which the place costs less than the best so far.
    fn look(
        &self,
        state: StateId,
        (rank, place): (usize, PlaceId),
        cost: Cost,
        best: &mut Option<Best>,
        admits: impl Fn(u32) -> bool,
    ) {
        for group in self.by_state[state.index()].iter().take(EXAMINED_LIMIT) {
            // Idle instances in the way only add to the cost, so a group whose least cost is too high is skipped.
            let bound = Cost(if group.cut.idle.has(place) { cost.0 - REUSE } else { cost.0 });
            if best.is_some_and(|b| b.choice.cost < bound) {
                continue;
            }
            let choice = with_idle(&self.model.places, group.cut, place, cost);
            let gpu = group.gpus.iter().copied().take(EXAMINED_LIMIT).find(|gpu| admits(*gpu));
            let (Some(choice), Some(gpu)) = (choice, gpu) else { continue };
            let found = Best { choice, gpu, rank };
            if best.is_none_or(|b| found.key() < b.key()) {
                *best = Some(found);
            }
        }
    }
}

fn index(gpu: u32) -> usize {
    usize::try_from(gpu).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::ContainerRequest;
    use crate::packing::Terms;
    use crate::testing::{h100_shape, mig_table};

    fn h100s() -> Groups {
        Groups::new(Model::from_table(&mig_table("H100-80GB"), &Terms::default()).unwrap())
    }

    fn place(groups: &Groups, profile: &str, start: u8) -> PlaceId {
        groups.model.place(h100_shape(profile, start).instance().unwrap()).unwrap()
    }

    #[test]
    fn places_are_sorted_only_after_some_decisions_at_unchanged_prices() {
        let mut groups = h100s();
        let gpu = groups.add(Cut::default());
        let whole = Cut { held: place(&groups, "7g.80gb", 0).into(), ..Cut::default() };
        let mut order =
            Order::for_places(groups.model.wanted(&ContainerRequest::exact("1g.10gb".parse().unwrap())));
        for cut in [whole, Cut::default()] {
            groups.set(gpu, cut);
            let sorted = [(); 6].map(|()| {
                groups.best(&mut order);
                order.sorted_at == groups.model.version()
            });
            assert_eq!(sorted, [false, false, false, false, true, true]);
        }
    }

    #[test]
    fn the_first_gpu_wins_if_an_idle_instance_makes_its_place_as_cheap() {
        let mut groups = h100s();
        let (left, right) = (place(&groups, "3g.40gb", 0), place(&groups, "3g.40gb", 4));
        let half = Cut { held: right.into(), idle: left.into() };
        let first = groups.add(half);
        groups.add(Cut::default());
        let sorted = vec![(Cost(0), StateId::EMPTY, 0), (Cost(REUSE), groups.model.state(half), 0)];
        let order = Order { wanted: vec![left], sorted, ..Order::default() };
        assert_eq!(groups.walk(&order).map(|best| best.gpu), Some(first));
    }
}
