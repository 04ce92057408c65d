//! All GPUs that can be cut by MIG, by model and by how they are cut: what a place costs in this fleet, and where one
//! more request costs least.

use super::mig::{Choice, Cut, Groups, Model, Order, PlaceId, Way};
use super::{Cost, Terms};
use crate::contract::ContainerRequest;
use crate::mig::{Instance, MigTable};
use std::borrow::Cow;

/// What a slice of a model costs more where all of the model is in use than where all is free, for a request that another
/// model could serve as well.
const SCARCE_SLICE: u64 = 200_000;

/// How many ways of making room are tried to the end, the cheapest by themselves first.
const WAYS_TRIED: usize = 24;

/// A GPU of a fleet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FleetGpu {
    model: usize,
    gpu: u32,
}

/// A move that makes room: what leaves its place on `gpu` comes up at `new` on `to`, after which `choice` can be taken on
/// `gpu`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Move {
    /// Where room is made.
    pub gpu: FleetGpu,
    /// The place that is left there.
    pub moved: PlaceId,
    /// Where the moved instance goes; it may be the same GPU.
    pub to: FleetGpu,
    /// Its new place.
    pub new: Choice,
    /// The place of the request for which room is made.
    pub choice: Choice,
}

/// Requests that are alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClassId(usize);

/// Requests that are alike, and the order of places for them in each model.
#[derive(Debug, Clone)]
struct Class {
    request: ContainerRequest,
    orders: Vec<Order>,
}

/// A fleet.
#[derive(Debug, Clone, Default)]
pub struct Fleet {
    terms: Terms,
    models: Vec<Groups>,
    classes: Vec<Class>,
}

impl Fleet {
    /// A fleet without GPUs.
    #[must_use]
    pub fn new(terms: Terms) -> Self {
        Self { terms, ..Self::default() }
    }

    /// Adds a GPU of the model with this table; `None` if it cannot be cut, or its instances cannot exist together.
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

    /// Says how a GPU is cut now, which is `known` to the fleet or new to it; `None` as for [`add`](Self::add).
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

    /// Takes a GPU out.
    pub fn remove(&mut self, gpu: FleetGpu) {
        self.models[gpu.model].remove(gpu.gpu);
    }

    /// How a GPU is cut.
    #[must_use]
    pub fn cut(&self, gpu: FleetGpu) -> Option<Cut> {
        self.models[gpu.model].cut(gpu.gpu)
    }

    /// Says how a GPU is cut now.
    pub fn set(&mut self, gpu: FleetGpu, cut: Cut) {
        self.models[gpu.model].set(gpu.gpu, cut);
    }

    /// Takes a place: idle instances in its way are gone.
    pub fn take(&mut self, gpu: FleetGpu, choice: Choice) {
        if let Some(cut) = self.cut(gpu) {
            let idle = cut.idle.without(choice.destroyed).without(choice.place.into());
            self.set(gpu, Cut { held: cut.held.with(choice.place), idle });
        }
    }

    /// Gives a place back: it stays as an idle instance.
    pub fn release(&mut self, gpu: FleetGpu, place: PlaceId) {
        if let Some(cut) = self.cut(gpu) {
            self.set(gpu, Cut { held: cut.held.without(place.into()), idle: cut.idle.with(place) });
        }
    }

    /// What lies at a GPU's place.
    #[must_use]
    pub fn instance(&self, gpu: FleetGpu, place: PlaceId) -> Instance {
        self.models[gpu.model].model.instance(place)
    }

    /// The place of an instance on a GPU.
    #[must_use]
    pub fn place(&self, gpu: FleetGpu, instance: Instance) -> Option<PlaceId> {
        self.models[gpu.model].model.place(instance)
    }

    /// The class of a request.
    pub fn class(&mut self, request: &ContainerRequest) -> ClassId {
        let sort = |r: &ContainerRequest| (r.profile, r.resource, r.size_gb, r.memory, r.compute);
        let alike = |class: &Class| sort(&class.request) == sort(request);
        let known = self.classes.iter().position(alike);
        ClassId(known.unwrap_or_else(|| {
            let orders = self.models.iter().map(|groups| Order::of(groups.model.wanted(request))).collect();
            self.classes.push(Class { request: request.clone(), orders });
            self.classes.len() - 1
        }))
    }

    /// Where one more request of a class costs least. The time that this takes does not grow with the fleet.
    pub fn best(&mut self, class: ClassId) -> Option<(FleetGpu, Choice)> {
        self.best_by(class, |_, groups, order| groups.best(order))
    }

    /// The same among those GPUs alone that `admits` lets through.
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
        of_model: impl Fn(usize, &Groups, &mut Order) -> Option<(u32, Choice)>,
    ) -> Option<(FleetGpu, Choice)> {
        let class = &mut self.classes[class.0];
        let mut best: Option<(FleetGpu, Choice)> = None;
        for (model, (groups, order)) in self.models.iter().zip(&mut class.orders).enumerate() {
            let Some((gpu, choice)) = of_model(model, groups, order) else { continue };
            let cost = choice.cost + premium(groups, choice.place, &class.request);
            if best.is_none_or(|(_, b)| cost < b.cost) {
                best = Some((FleetGpu { model, gpu }, Choice { cost, ..choice }));
            }
        }
        best
    }

    /// The cheapest place for a request on one GPU of a model with this table, were the GPU cut so.
    pub(super) fn choose(
        &self,
        table: &MigTable,
        held: impl IntoIterator<Item = Instance>,
        idle: impl IntoIterator<Item = Instance>,
        request: &ContainerRequest,
    ) -> Option<(Instance, Choice, Vec<Instance>)> {
        let groups = match self.known(table) {
            Some(known) => Cow::Borrowed(&self.models[known]),
            None => Cow::Owned(Groups::new(Model::of(table, &self.terms)?)),
        };
        let model = &groups.model;
        let held = model.cut(held, [])?.held;
        // An idle instance that cannot be there beside the others is no obstacle either.
        let cut = idle
            .into_iter()
            .fold(Cut { held, ..Cut::default() }, |cut, instance| model.beside(cut, instance).unwrap_or(cut));
        let choice = model.choose(cut, &model.wanted(request))?;
        let cost = choice.cost + premium(&groups, choice.place, request);
        let destroyed = choice.destroyed.iter().map(|place| model.instance(place)).collect();
        Some((model.instance(choice.place), Choice { cost, ..choice }, destroyed))
    }

    /// The one move that makes room for one more request of a class: a smaller instance leaves its place, and comes up at
    /// another, so that the request costs least. `movable` tells which held places may be moved, and `may_come` to which GPUs
    /// what lies there may come.
    pub fn best_move(
        &mut self,
        class: ClassId,
        movable: impl Fn(FleetGpu, PlaceId) -> bool,
        may_come: impl Fn((FleetGpu, PlaceId), FleetGpu) -> bool,
    ) -> Option<Move> {
        let mut ways: Vec<(usize, Way)> = Vec::new();
        for (model, groups) in self.models.iter().enumerate() {
            let wanted = self.classes[class.0].orders[model].wanted();
            let may = |gpu: u32, place| movable(FleetGpu { model, gpu }, place);
            ways.extend(groups.ways(wanted, may).into_iter().map(|way| (model, way)));
        }
        ways.sort_by_key(|(_, way)| way.cost);
        let moves = ways.into_iter().take(WAYS_TRIED).filter_map(|(model, way)| {
            let from = (FleetGpu { model, gpu: way.gpu }, way.moved);
            self.try_way(model, &way, |to| may_come(from, to))
        });
        moves.min_by_key(|(cost, _)| *cost).map(|(_, found)| found)
    }

    /// What a way costs together with the moved instance's new place. The fleet is left as it was.
    fn try_way(
        &mut self,
        model: usize,
        way: &Way,
        may_come: impl Fn(FleetGpu) -> bool,
    ) -> Option<(Cost, Move)> {
        let gpu = FleetGpu { model, gpu: way.gpu };
        let before = self.cut(gpu)?;
        let moved = self.instance(gpu, way.moved).profile;
        let class = self.class(&ContainerRequest::exact(moved));
        self.release(gpu, way.moved);
        let choice = self.models[model].model.at(self.cut(gpu)?, way.place);
        let found = choice.and_then(|choice| {
            self.take(gpu, choice);
            let (to, new) = self.best_among(class, may_come)?;
            Some((way.cost + new.cost, Move { gpu, moved: way.moved, to, new, choice }))
        });
        self.set(gpu, before);
        found
    }

    /// The part of the free memory slices that the plain profiles cannot use, on the mean of the profiles: FGD's
    /// fragmentation rate.
    #[must_use]
    pub fn fragmentation(&self) -> f64 {
        let parts = self.models.iter().map(|groups| groups.model.fragments());
        let (lost, free) = parts.fold((0.0, 0.0), |(lost, free), (l, f)| (lost + l, free + f));
        if free > 0.0 { lost / free } else { 0.0 }
    }

    /// Rises whenever a place's cost may have changed by what happened on other GPUs.
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
        let model = Model::of(table, &self.terms)?;
        for class in &mut self.classes {
            class.orders.push(Order::of(model.wanted(&class.request)));
        }
        self.models.push(Groups::new(model));
        Some(self.models.len() - 1)
    }
}

/// What a place costs beside its state: what it wastes, and how much of its model is in use. Only a request by size can go
/// to another model.
fn premium(groups: &Groups, place: PlaceId, request: &ContainerRequest) -> Cost {
    if request.profile.is_some() {
        return Cost::default();
    }
    groups.model.waste(place, request) + Cost(groups.model.scarcity(place, SCARCE_SLICE))
}

#[cfg(test)]
#[path = "fleet_tests.rs"]
mod tests;
