//! All GPUs that MIG can cut, by model and by how they are cut. The fleet returns the cost of a place, and the cheapest
//! place for one more request.

use super::mig::{Choice, Cut, Groups, Model, Order, PlaceId, Way};
use super::{Cost, Terms};
use crate::contract::ContainerRequest;
use crate::mig::{Instance, MigTable};
use std::borrow::Cow;

/// The extra cost of a memory slice of a fully used model against an unused one, for requests that another model could
/// serve as well.
const SCARCE_SLICE: u64 = 200_000;

/// The number of ways of making room that are computed to the end, the cheapest ones first, because each searches the
/// fleet for the victim's new place.
const WAYS_LIMIT: usize = 24;

/// The handle of a GPU in a fleet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FleetGpu {
    model: usize,
    gpu: u32,
}

/// An eviction that makes room: the instance at `victim` on `gpu` ends, a new one is placed at `new` on `to`, and then
/// `choice` is free on `gpu`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Eviction {
    /// The GPU on which room is made.
    pub gpu: FleetGpu,
    /// The place that becomes free there.
    pub victim: PlaceId,
    /// The GPU for the victim's next instance; it may be the same GPU.
    pub to: FleetGpu,
    /// The place of the victim's next instance.
    pub new: Choice,
    /// The place of the request for which room is made.
    pub choice: Choice,
}

/// The handle of a class of requests that are alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClassId(usize);

/// Requests that are alike, with the order of places for them in each model.
#[derive(Debug, Clone)]
struct Class {
    request: ContainerRequest,
    orders: Vec<Order>,
}

/// The MIG GPUs of a cluster with their places and prices.
#[derive(Debug, Clone, Default)]
pub struct Fleet {
    terms: Terms,
    models: Vec<Groups>,
    classes: Vec<Class>,
}

impl Fleet {
    /// A fleet without GPUs, valued by these terms.
    #[must_use]
    pub fn new(terms: Terms) -> Self {
        Self { terms, ..Self::default() }
    }

    /// Adds a GPU with this table; `None` if MIG cannot cut it, or if its instances cannot exist together.
    pub fn add(
        &mut self,
        table: &MigTable,
        held: impl IntoIterator<Item = Instance>,
        idle: impl IntoIterator<Item = Instance>,
    ) -> Option<FleetGpu> {
        let model = self.intern(table)?;
        let cut = self.models[model].model.cut(held, idle)?;
        Some(FleetGpu { model, gpu: self.models[model].add(cut) })
    }

    /// Updates the cut of a GPU, which is `known` to the fleet or new to it. `None` for the same reasons as in
    /// [`add`](Self::add).
    pub fn show(
        &mut self,
        known: Option<FleetGpu>,
        table: &MigTable,
        held: impl IntoIterator<Item = Instance>,
        idle: impl IntoIterator<Item = Instance>,
    ) -> Option<FleetGpu> {
        let Some(gpu) = known.filter(|gpu| self.models[gpu.model].model.table() == table) else {
            if let Some(other) = known {
                self.remove(other);
            }
            return self.add(table, held, idle);
        };
        let Some(cut) = self.models[gpu.model].model.cut(held, idle) else {
            self.remove(gpu);
            return None;
        };
        self.set(gpu, cut);
        Some(gpu)
    }

    /// Removes a GPU from the fleet and its prices.
    pub fn remove(&mut self, gpu: FleetGpu) {
        self.models[gpu.model].remove(gpu.gpu);
    }

    /// The present cut of a GPU; `None` after its removal.
    #[must_use]
    pub fn cut(&self, gpu: FleetGpu) -> Option<Cut> {
        self.models[gpu.model].cut(gpu.gpu)
    }

    /// Replaces the cut of a GPU.
    pub fn set(&mut self, gpu: FleetGpu, cut: Cut) {
        self.models[gpu.model].set(gpu.gpu, cut);
    }

    /// Takes a place. The idle instances in its way are removed.
    pub fn take(&mut self, gpu: FleetGpu, choice: Choice) {
        if let Some(cut) = self.cut(gpu) {
            let idle = cut.idle.without(choice.destroyed).without(choice.place.into());
            self.set(gpu, Cut { held: cut.held.with_place(choice.place), idle });
        }
    }

    /// Releases a place. Its instance stays as an idle one.
    pub fn release(&mut self, gpu: FleetGpu, place: PlaceId) {
        if let Some(cut) = self.cut(gpu) {
            self.set(gpu, Cut { held: cut.held.without(place.into()), idle: cut.idle.with_place(place) });
        }
    }

    /// The instance that a place of the GPU's model means.
    #[must_use]
    pub fn instance(&self, gpu: FleetGpu, place: PlaceId) -> Instance {
        self.models[gpu.model].model.instance(place)
    }

    /// The place of an instance on a GPU; `None` if the model has no such place.
    #[must_use]
    pub fn place(&self, gpu: FleetGpu, instance: Instance) -> Option<PlaceId> {
        self.models[gpu.model].model.place(instance)
    }

    /// The class of a request, which is new or already known.
    pub fn class(&mut self, request: &ContainerRequest) -> ClassId {
        let sort = |r: &ContainerRequest| (r.profile, r.resource, r.size_gb, r.memory, r.compute);
        let alike = |class: &Class| sort(&class.request) == sort(request);
        let known = self.classes.iter().position(alike);
        ClassId(known.unwrap_or_else(|| {
            let orders =
                self.models.iter().map(|groups| Order::for_places(groups.model.wanted(request))).collect();
            self.classes.push(Class { request: request.clone(), orders });
            self.classes.len() - 1
        }))
    }

    /// The cheapest place for one more request of a class. The time for this does not grow with the fleet.
    pub fn best(&mut self, class: ClassId) -> Option<(FleetGpu, Choice)> {
        self.best_by(class, |_, groups, order| groups.best(order))
    }

    /// The same among only those GPUs that `admits` accepts.
    fn best_among(
        &mut self,
        class: ClassId,
        admits: impl Fn(FleetGpu) -> bool,
    ) -> Option<(FleetGpu, Choice)> {
        self.best_by(class, |model, groups, order| {
            groups.best_among(order.wanted(), |gpu| admits(FleetGpu { model, gpu }))
        })
    }

    fn best_by(
        &mut self,
        class: ClassId,
        best_in_model: impl Fn(usize, &Groups, &mut Order) -> Option<(u32, Choice)>,
    ) -> Option<(FleetGpu, Choice)> {
        let class = &mut self.classes[class.0];
        let mut best: Option<(FleetGpu, Choice)> = None;
        for (model, (groups, order)) in self.models.iter().zip(&mut class.orders).enumerate() {
            let Some((gpu, choice)) = best_in_model(model, groups, order) else { continue };
            let cost = choice.cost + premium(groups, choice.place, &class.request);
            if best.is_none_or(|(_, b)| cost < b.cost) {
                best = Some((FleetGpu { model, gpu }, Choice { cost, ..choice }));
            }
        }
        best
    }

    /// The cheapest place for a request on a GPU with this table and these instances.
    pub(super) fn choose(
        &self,
        table: &MigTable,
        held: impl IntoIterator<Item = Instance>,
        idle: impl IntoIterator<Item = Instance>,
        request: &ContainerRequest,
    ) -> Option<(Instance, Choice, Vec<Instance>)> {
        let groups = match self.known(table) {
            Some(known) => Cow::Borrowed(&self.models[known]),
            None => Cow::Owned(Groups::new(Model::from_table(table, &self.terms)?)),
        };
        let model = &groups.model;
        let held = model.cut(held, [])?.held;
        // An idle instance that cannot exist beside the others blocks nothing, so it is left out.
        let cut = idle
            .into_iter()
            .fold(Cut { held, ..Cut::default() }, |cut, instance| model.beside(cut, instance).unwrap_or(cut));
        let choice = model.choose(cut, &model.wanted(request))?;
        let cost = choice.cost + premium(&groups, choice.place, request);
        let destroyed = choice.destroyed.iter().map(|place| model.instance(place)).collect();
        Some((model.instance(choice.place), Choice { cost, ..choice }, destroyed))
    }

    /// The one eviction that makes room for one more request of a class at the lowest cost. The victim is an instance
    /// smaller than the request, and gets another place. `is_evictable` returns whether a held place may be evicted,
    /// and `may_come` whether its instance may go to a GPU.
    pub fn best_eviction(
        &mut self,
        class: ClassId,
        is_evictable: impl Fn(FleetGpu, PlaceId) -> bool,
        may_come: impl Fn((FleetGpu, PlaceId), FleetGpu) -> bool,
    ) -> Option<Eviction> {
        let mut ways: Vec<(usize, Way)> = Vec::new();
        for (model, groups) in self.models.iter().enumerate() {
            let wanted = self.classes[class.0].orders[model].wanted();
            let may = |gpu: u32, place| is_evictable(FleetGpu { model, gpu }, place);
            ways.extend(groups.ways(wanted, may).into_iter().map(|way| (model, way)));
        }
        ways.sort_by_key(|(_, way)| way.cost);
        let evictions = ways.into_iter().take(WAYS_LIMIT).filter_map(|(model, way)| {
            let from = (FleetGpu { model, gpu: way.gpu }, way.victim);
            self.try_way(model, &way, |to| may_come(from, to))
        });
        evictions.min_by_key(|(cost, _)| *cost).map(|(_, found)| found)
    }

    /// The cost of a way together with the victim's new place. The fleet is unchanged afterwards.
    fn try_way(
        &mut self,
        model: usize,
        way: &Way,
        may_come: impl Fn(FleetGpu) -> bool,
    ) -> Option<(Cost, Eviction)> {
        let gpu = FleetGpu { model, gpu: way.gpu };
        let before = self.cut(gpu)?;
        let profile = self.instance(gpu, way.victim).profile;
        let class = self.class(&ContainerRequest::exact(profile));
        self.release(gpu, way.victim);
        let choice = self.models[model].model.choice_at(self.cut(gpu)?, way.place);
        let found = choice.and_then(|choice| {
            self.take(gpu, choice);
            let (to, new) = self.best_among(class, may_come)?;
            Some((way.cost + new.cost, Eviction { gpu, victim: way.victim, to, new, choice }))
        });
        self.set(gpu, before);
        found
    }

    /// The part of the free memory slices that plain profiles cannot use, as the mean over the profiles: FGD's
    /// fragmentation rate.
    #[must_use]
    pub fn fragmentation(&self) -> f64 {
        let parts = self.models.iter().map(|groups| groups.model.fragments());
        let (lost, free) = parts.fold((0.0, 0.0), |(lost, free), (l, f)| (lost + l, free + f));
        if free > 0.0 { lost / free } else { 0.0 }
    }

    /// A number that rises when events on other GPUs may have changed the cost of a place.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.models.iter().map(|groups| groups.model.version()).sum()
    }

    fn known(&self, table: &MigTable) -> Option<usize> {
        self.models.iter().position(|groups| groups.model.table() == table)
    }

    fn intern(&mut self, table: &MigTable) -> Option<usize> {
        if let Some(known) = self.known(table) {
            return Some(known);
        }
        let model = Model::from_table(table, &self.terms)?;
        for class in &mut self.classes {
            class.orders.push(Order::for_places(model.wanted(&class.request)));
        }
        self.models.push(Groups::new(model));
        Some(self.models.len() - 1)
    }
}

/// The part of a place's cost that is not in its state: unused memory, and how much of the model is in use. It is zero
/// for a request by profile, because only a request by size can go to another model.
fn premium(groups: &Groups, place: PlaceId, request: &ContainerRequest) -> Cost {
    if request.profile.is_some() {
        return Cost::default();
    }
    groups.model.waste(place, request) + Cost(groups.model.scarcity(place, SCARCE_SLICE))
}

#[cfg(test)]
#[path = "fleet_tests.rs"]
mod tests;
