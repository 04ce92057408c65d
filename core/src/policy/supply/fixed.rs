//! The offers of static nodes: slices that NVIDIA's device plugin has configured.

use super::Supply;
use crate::contract::{ContainerRequest, RequestDocument};
use crate::kind::Kind;
use crate::names::NodeName;
use crate::packing::Asked;
use crate::request::GpuSelection;
use crate::resource::ResourceName;
use crate::static_node::{Devices, StaticNode, StaticOffer, admits, is_conceivable, place, suits};
use crate::units::SizeGb;
use std::collections::BTreeMap;
use std::sync::Arc;

pub(super) type StaticNodes = BTreeMap<NodeName, Arc<StaticNode>>;

impl Supply {
    /// The same supply without static nodes.
    #[must_use]
    pub fn without_static(&self) -> Self {
        Self { statics: Arc::default(), ..self.clone() }
    }

    /// The static nodes, in groups that offer the same. Each group is a supply without managed nodes. They are apart,
    /// because all of a pod's slices must be on one node.
    #[must_use]
    pub fn static_groups(&self) -> Vec<Self> {
        let alike = |a: &StaticNode, b: &StaticNode| {
            // The count is ignored, because nodes with more or fewer devices still serve the same names.
            let any_count = |offer: &StaticOffer| StaticOffer { count: 0, ..offer.clone() };
            a.model == b.model && a.offers.iter().map(any_count).eq(b.offers.iter().map(any_count))
        };
        let mut groups: Vec<(&StaticNode, StaticNodes)> = Vec::new();
        for (name, node) in &*self.statics {
            match groups.iter_mut().find(|(first, _)| alike(first, node)) {
                Some((_, group)) => drop(group.insert(name.clone(), node.clone())),
                None => groups.push((&**node, [(name.clone(), node.clone())].into())),
            }
        }
        let only = |(_, statics)| Self { gpus: Arc::default(), statics: Arc::new(statics), ..self.clone() };
        groups.into_iter().map(only).collect()
    }

    /// Whether the cluster has static nodes.
    #[must_use]
    pub fn has_static(&self) -> bool {
        !self.statics.is_empty()
    }

    /// The offers of the static nodes that the pod may be on.
    fn offers(&self, gpus: &GpuSelection) -> impl Iterator<Item = &StaticOffer> {
        let nodes = self.statics.values().filter(|node| admits(gpus, &node.model));
        nodes.flat_map(|node| &node.offers)
    }

    /// The names by which static nodes serve the request by `kind`, the smallest slices first. Replicas count only for
    /// a request of one, because several of them give the same as one.
    #[must_use]
    pub fn fixed(&self, kind: Kind, asked: &Asked, count: u32, gpus: &GpuSelection) -> Vec<ResourceName> {
        let serves = |offer: &&StaticOffer| {
            offer.kind == kind && offer.suffices(asked) && (count == 1 || !offer.replicas)
        };
        let offers = self.offers(gpus).filter(serves);
        let offers = offers.map(|offer| (offer.size, offer.resource()));
        // A name that a `DeviceClass` maps is left out, because kube-scheduler may serve it by DRA, past kerf.
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

    /// Whether some static node has `count` slices of this name that meet the request, in use or not. A node without a
    /// healthy device counts as having enough, because its devices may recover.
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

    /// The smallest offer of static nodes under this name that meets the request.
    #[must_use]
    pub fn fixed_least(
        &self,
        name: ResourceName,
        asked: &Asked,
        gpus: &GpuSelection,
    ) -> Option<&StaticOffer> {
        self.fixed_offers(name, asked, gpus).min_by_key(|offer| (offer.size, offer.memory))
    }

    /// The largest size that static nodes offer under this name, up to `most`.
    #[must_use]
    pub fn fixed_largest(&self, name: ResourceName, most: SizeGb, gpus: &GpuSelection) -> Option<SizeGb> {
        let offers = self.offers(gpus).filter(|offer| offer.is_of(name));
        offers.filter_map(|offer| offer.size).filter(|size| *size <= most).max()
    }

    /// Whether some static node has enough healthy devices for the whole pod, if no other pod used them.
    #[must_use]
    pub fn holds_statically(&self, document: &RequestDocument) -> bool {
        self.statics.values().any(|node| place(node, &Devices::new(), document).is_ok())
    }

    /// Whether some static node offers all devices of the pod, however many devices are healthy now.
    #[must_use]
    pub fn serves_statically(&self, document: &RequestDocument) -> bool {
        self.statics.values().any(|node| suits(node, document).is_ok())
    }

    /// Whether a static node may serve the pod, now or later. A pod's affinity is set once, at creation, so later nodes
    /// count too.
    ///
    /// Unlabelled nodes offer equal time slices too, but affinity cannot select them among nodes without GPUs. So for
    /// time slices there must be a static node that offers them now.
    #[must_use]
    pub fn may_serve_statically(&self, document: &RequestDocument) -> bool {
        let any = Asked::for_size(SizeGb::ANY);
        let is_found = |container: &ContainerRequest| {
            container.resource != ResourceName::Replica
                || self.fixed_least(container.resource, &any, &document.gpus).is_some()
        };
        is_conceivable(document) && document.containers.iter().all(is_found)
    }
}
