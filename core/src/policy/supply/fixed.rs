//! What static nodes have: slices that NVIDIA's device plugin has fixed.

use super::Supply;
use crate::contract::{ContainerRequest, RequestDocument};
use crate::kind::Kind;
use crate::names::NodeName;
use crate::packing::is_worth_whole;
use crate::request::GpuSelection;
use crate::resource::ResourceName;
use crate::static_node::{Devices, StaticNode, StaticOffer, admits, is_conceivable, place, suits};
use crate::units::{ComputePercent, MemoryMib, SizeGb};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The static nodes of a cluster.
pub(super) type StaticNodes = BTreeMap<NodeName, Arc<StaticNode>>;

/// What a slice must have.
#[derive(Debug, Clone, Copy)]
pub struct Asked {
    /// Its nominal size.
    pub size: SizeGb,
    /// Its real memory, where that is asked for.
    pub memory: Option<MemoryMib>,
    /// Its part of a GPU's compute.
    pub compute: Option<ComputePercent>,
    /// Whether each of several is of another GPU.
    pub distinct_gpus: bool,
}

impl Asked {
    /// Of so much memory, by name.
    #[must_use]
    pub fn of(size: SizeGb) -> Self {
        Self { size, memory: None, compute: None, distinct_gpus: false }
    }

    /// By this container of an admitted pod.
    #[must_use]
    pub fn by(request: &ContainerRequest) -> Self {
        let ContainerRequest { size_gb: size, memory, compute, distinct_gpus, .. } = *request;
        Self { size, memory, compute, distinct_gpus }
    }

    /// Whether a GPU of this size may be given for it by this name: only what is given as a whole must be worth it.
    pub(super) fn is_worth(&self, name: ResourceName, gpu: SizeGb) -> bool {
        name != ResourceName::Whole || is_worth_whole(self.size, gpu, self.distinct_gpus)
    }
}

impl Supply {
    /// The managed nodes alone.
    #[must_use]
    pub fn without_static(&self) -> Self {
        Self { statics: Arc::default(), ..self.clone() }
    }

    /// Static nodes that offer the same, each such group by itself and without the managed nodes: all of a pod's slices are of
    /// one node.
    #[must_use]
    pub fn static_groups(&self) -> Vec<Self> {
        let alike = |a: &StaticNode, b: &StaticNode| {
            let any_count = |offer: &StaticOffer| StaticOffer { count: 0, ..offer.clone() };
            a.model == b.model && a.offers.iter().map(any_count).eq(b.offers.iter().map(any_count))
        };
        let mut groups: Vec<StaticNodes> = Vec::new();
        for (name, node) in &*self.statics {
            let is_here = |group: &StaticNodes| group.values().next().is_some_and(|first| alike(first, node));
            match groups.iter_mut().find(|group| is_here(group)) {
                Some(group) => drop(group.insert(name.clone(), node.clone())),
                None => groups.push([(name.clone(), node.clone())].into()),
            }
        }
        let only = |statics| Self { gpus: Arc::default(), statics: Arc::new(statics), ..self.clone() };
        groups.into_iter().map(only).collect()
    }

    /// Whether there are static nodes.
    #[must_use]
    pub fn has_static(&self) -> bool {
        !self.statics.is_empty()
    }

    /// What static nodes that the pod may have offer.
    fn offers(&self, gpus: &GpuSelection) -> impl Iterator<Item = &StaticOffer> {
        let nodes = self.statics.values().filter(|node| admits(gpus, &node.model));
        nodes.flat_map(|node| &node.offers)
    }

    /// The names by which static nodes serve what is asked by `kind`, the smallest slices first; replicas only for who wants
    /// one of them.
    #[must_use]
    pub fn fixed(&self, kind: Kind, asked: &Asked, count: u32, gpus: &GpuSelection) -> Vec<ResourceName> {
        let serves = |offer: &&StaticOffer| {
            offer.kind == kind && offer.suffices(asked) && (count == 1 || !offer.replicas)
        };
        let offers = self.offers(gpus).filter(serves);
        let offers = offers.map(|offer| (offer.size, offer.resource()));
        let mut names: Vec<_> = offers.filter(|(_, name)| self.mapping(*name).is_none()).collect();
        names.sort_unstable();
        let mut sorted: Vec<ResourceName> = Vec::new();
        for (_, name) in names {
            if !sorted.contains(&name) {
                sorted.push(name);
            }
        }
        sorted
    }

    /// Whether some static node has so many slices of this name that meet what is asked, in use or not. One of which no device is
    /// well may have any number.
    #[must_use]
    pub fn holds_fixed(&self, name: ResourceName, asked: &Asked, count: u32, gpus: &GpuSelection) -> bool {
        self.fixed_offers(name, asked, gpus).any(|offer| offer.count == 0 || offer.count >= count)
    }

    fn fixed_offers(
        &self,
        name: ResourceName,
        asked: &Asked,
        gpus: &GpuSelection,
    ) -> impl Iterator<Item = &StaticOffer> {
        self.offers(gpus).filter(move |offer| offer.is_of(name) && offer.suffices(asked))
    }

    /// The least that static nodes offer under this name that meets what is asked.
    #[must_use]
    pub fn fixed_least(
        &self,
        name: ResourceName,
        asked: &Asked,
        gpus: &GpuSelection,
    ) -> Option<&StaticOffer> {
        self.fixed_offers(name, asked, gpus).min_by_key(|offer| (offer.size, offer.memory))
    }

    /// The largest that static nodes offer under this name, up to `most`.
    #[must_use]
    pub fn fixed_largest(&self, name: ResourceName, most: SizeGb, gpus: &GpuSelection) -> Option<SizeGb> {
        let offers = self.offers(gpus).filter(|offer| offer.is_of(name));
        offers.filter_map(|offer| offer.size).filter(|size| *size <= most).max()
    }

    /// Whether some static node has enough devices for a whole pod now, were nobody else there.
    #[must_use]
    pub fn holds_statically(&self, document: &RequestDocument) -> bool {
        self.statics.values().any(|node| place(node, &Devices::new(), document).is_ok())
    }

    /// Whether some static node offers what a whole pod asks for, however much of it is well now.
    #[must_use]
    pub fn serves_statically(&self, document: &RequestDocument) -> bool {
        self.statics.values().any(|node| suits(node, document).is_ok())
    }

    /// Whether a static node may serve the pod, now or later: what a pod may have of nodes is said once, when it is created.
    ///
    /// Equal time slices are had of nodes without labels too, among which no affinity tells those with GPUs. So for these there must be
    /// a static node that offers them.
    #[must_use]
    pub fn may_serve_statically(&self, document: &RequestDocument) -> bool {
        let any = Asked::of(SizeGb::ANY);
        let is_found = |container: &ContainerRequest| {
            container.resource != ResourceName::Replica
                || self.fixed_least(container.resource, &any, &document.gpus).is_some()
        };
        is_conceivable(document) && document.containers.iter().all(is_found)
    }
}
