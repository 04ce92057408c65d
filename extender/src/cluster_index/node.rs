//! One node in the index: what its agent reports, what is proposed to it, and what fits on it.

use super::leaving::charge;
use crate::ask::Ask;
use crate::compute::Compute;
use crate::tentative::Tentatives;
use kerf_core::contract::{GpuNodeSpec, GpuNodeStatus, NodePolicy, Shape};
use kerf_core::inventory::{GpuInventory, NodeInventory};
use kerf_core::keys;
use kerf_core::kind::Kind;
use kerf_core::ledger;
use kerf_core::names::{GpuUuid, NodeName, PodKey, PodUid};
use kerf_core::packing::{Fit, Fleet, FleetGpu, KindPlan, Place, Refusal, fit};
use kerf_core::quota::Charge;
use kerf_runtime::gpu_node::GpuNode;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// For how many different requests a node's results are kept. A burst of pods comes from few templates.
const KEPT_RESULTS: usize = 16;

/// A managed node as the index has it.
#[derive(Debug)]
pub struct IndexedNode {
    /// The GpuNode's UID. A recreated GpuNode has another one and starts from nothing.
    pub object: Option<String>,
    /// The slices that the node should have and the policy in force: as its agent reports them, with all proposals
    /// added.
    pub spec: GpuNodeSpec,
    /// What the agent reports; empty while it is not connected.
    pub status: GpuNodeStatus,
    /// Whether the agent accepts reservations, whatever the status says.
    pub agent: Result<(), Refusal>,
    /// The pods that have slices in `spec`, except for those whose release is ordered.
    pub promised: BTreeSet<PodUid>,
    /// What these pods use of the node's CPU and memory, as far as they are known.
    pub compute: Compute,
    /// Pods that have ended or are gone, but still have slices in the agent's report.
    pub left: BTreeMap<PodUid, PodKey>,
    /// The admins' document that the GpuNode's policy was copied from.
    pub filled_by: Option<String>,
    /// The GpuNode's policy; `None` while it cannot be read.
    pub written_policy: Option<NodePolicy>,
    /// The node's GPUs in the fleet.
    pub fleet_gpus: Vec<(GpuUuid, FleetGpu)>,
    /// Whether pods may run in user namespaces there; `None` while its Node is not known.
    pub user_namespaces: Option<bool>,
    view: View,
}

/// A pod's place on a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found {
    pub place: Place,
    /// The shape of the pod's slice, if it gets only one and asks for it by size.
    pub only: Option<Shape>,
}

impl From<Fit> for Found {
    fn from(fit: Fit) -> Self {
        let only = match fit.slices.as_slice() {
            [slice] if slice.resource.size().is_some() => Some(slice.shape),
            _ => None,
        };
        Self { place: fit.place(), only }
    }
}

/// The inventory that filters read, with cached results.
#[derive(Debug, Default)]
struct View {
    stale: bool,
    inventory: NodeInventory,
    /// The results of the last requests, as of this version of the fleet.
    results: Vec<(Arc<str>, Result<Found, Refusal>)>,
    version: u64,
    /// Whether a plan of one of the last requests fits, at whatever cost.
    plans: Vec<(Arc<str>, KindPlan, Result<(), Refusal>)>,
    /// Rises with every change of the inventory.
    seen: u64,
}

impl IndexedNode {
    /// A node whose GpuNode is seen for the first time.
    #[must_use]
    pub fn of(node: &GpuNode) -> Self {
        Self {
            object: node.metadata.uid.clone(),
            spec: GpuNodeSpec::default(),
            status: GpuNodeStatus::default(),
            agent: Err(Refusal::NotConnected),
            promised: BTreeSet::new(),
            compute: Compute::default(),
            left: BTreeMap::new(),
            filled_by: None,
            written_policy: None,
            fleet_gpus: Vec::new(),
            user_namespaces: None,
            view: View { stale: true, ..View::default() },
        }
    }

    /// Reads the parts of the GpuNode that its agent does not write.
    pub fn show(&mut self, node: &GpuNode) {
        self.filled_by =
            node.metadata.annotations.as_ref().and_then(|all| all.get(keys::NODE_POLICY).cloned());
        self.written_policy = node
            .read_spec()
            .inspect_err(|error| tracing::error!(node = %node.name(), %error, "unreadable GpuNode spec"))
            .ok()
            .map(|spec| spec.policy);
    }

    /// The kind of a pod's first slice.
    #[must_use]
    pub fn kind_of(&self, uid: &PodUid) -> Option<Kind> {
        let first = ledger::reserved(&self.spec, uid).next()?;
        Some(first.shape.kind())
    }

    /// The pods that have slices in `spec` now.
    #[must_use]
    pub fn promised_now(&self) -> BTreeSet<PodUid> {
        self.spec.slices.iter().filter_map(|s| Some(s.reservation.as_ref()?.uid.clone())).collect()
    }

    /// Whether the node serves pods at all.
    pub fn serving(&self) -> Result<(), Refusal> {
        self.agent?;
        if self.status.is_ready() { Ok(()) } else { Err(Refusal::AgentNotReady) }
    }

    /// Whether its agent reports a reservation of the pod.
    pub(super) fn reports_reservation(&self, uid: &PodUid) -> bool {
        let mut reservations = self.status.slices.iter().filter_map(|slice| slice.reservation.as_ref());
        reservations.any(|reservation| reservation.uid == *uid)
    }

    /// Marks the inventory as stale, because spec, status or the overlay changed.
    pub fn touch(&mut self) {
        self.view.stale = true;
    }

    /// Forgets the pods that left and no longer have anything here.
    pub(super) fn forget_left(&mut self, promised: &BTreeSet<PodUid>) {
        let holders = self.status.slices.iter().filter_map(|slice| Some(slice.holder.as_ref()?.key()));
        let holders: BTreeSet<PodKey> = holders.collect();
        self.left.retain(|uid, pod| promised.contains(uid) || holders.contains(pod));
    }

    /// The best place for `ask` here, beside all reservations and assumed pods. Returns a cached result while the
    /// node's inventory and the fleet's prices are unchanged.
    pub fn place(
        &mut self,
        name: &NodeName,
        ask: &Ask,
        tentatives: &Tentatives,
        fleet: &Fleet,
    ) -> Result<Found, Refusal> {
        self.bring_up_to_date(name, tentatives, fleet)?;
        if std::mem::replace(&mut self.view.version, fleet.version()) != fleet.version() {
            // What does not fit does not fit at any price, so refusals stay valid.
            self.view.results.retain(|(_, result)| result.is_err());
        }
        if let Some((_, known)) = self.view.results.iter().find(|(text, _)| *text == ask.text) {
            return *known;
        }
        let result = fit(&self.view.inventory, &ask.document, fleet).map(Found::from);
        keep(&mut self.view.results, (ask.text.clone(), result));
        result
    }

    /// Whether this one of its plans can serve `ask` here.
    pub fn place_by(
        &mut self,
        name: &NodeName,
        ask: &Ask,
        plan: &KindPlan,
        tentatives: &Tentatives,
        fleet: &Fleet,
    ) -> Result<(), Refusal> {
        self.bring_up_to_date(name, tentatives, fleet)?;
        let is_same = |(text, known, _): &&(_, KindPlan, _)| *text == ask.text && known == plan;
        if let Some((_, _, known)) = self.view.plans.iter().find(is_same) {
            return *known;
        }
        let result = fit(&self.view.inventory, &ask.document.planned(plan), fleet).map(drop);
        keep(&mut self.view.plans, (ask.text.clone(), plan.clone(), result));
        result
    }

    /// How a request fits by what the agent reported last, even if the node does not serve.
    pub fn shown_fit(&self, ask: &Ask, fleet: &Fleet) -> Result<Fit, Refusal> {
        fit(&self.shown_inventory(), &ask.document, fleet)
    }

    /// What a pod would be charged for its place here, by the inventory of the last `place`.
    pub fn charge(&self, ask: &Ask, fleet: &Fleet) -> Result<Charge, Refusal> {
        Ok(charge(&fit(&self.view.inventory, &ask.document, fleet)?))
    }

    /// The GPUs with all reservations and assumed pods, as of the last `place`.
    #[must_use]
    pub fn inventory(&self) -> &NodeInventory {
        &self.view.inventory
    }

    /// Rises whenever the inventory changes.
    #[must_use]
    pub fn seen(&self) -> u64 {
        self.view.seen
    }

    /// Updates the node's GPUs in the fleet to their current reservations; removes them while the node does not serve.
    pub fn join(&mut self, fleet: &mut Fleet) {
        let mut known: BTreeMap<GpuUuid, FleetGpu> =
            std::mem::take(&mut self.fleet_gpus).into_iter().collect();
        if self.serving().is_ok() {
            let inventory = NodeInventory::of(&self.spec, &self.status);
            let join =
                |gpu: &GpuInventory| Some((gpu.uuid.clone(), gpu.join(fleet, known.remove(&gpu.uuid))?));
            self.fleet_gpus = inventory.gpus.iter().filter_map(join).collect();
        }
        for gone in known.into_values() {
            fleet.remove(gone);
        }
    }

    /// The GPUs as they are reserved and reported, without assumed pods.
    pub(super) fn shown_inventory(&self) -> NodeInventory {
        self.inventory_of(&self.spec, &self.status)
    }

    /// The GPUs by a spec and a status.
    #[must_use]
    pub fn inventory_of(&self, spec: &GpuNodeSpec, status: &GpuNodeStatus) -> NodeInventory {
        NodeInventory { user_namespaces: self.user_namespaces, ..NodeInventory::of(spec, status) }
    }

    fn bring_up_to_date(
        &mut self,
        name: &NodeName,
        tentatives: &Tentatives,
        fleet: &Fleet,
    ) -> Result<(), Refusal> {
        self.serving()?;
        if std::mem::take(&mut self.view.stale) {
            self.refresh(name, tentatives, fleet);
        }
        Ok(())
    }

    fn refresh(&mut self, name: &NodeName, tentatives: &Tentatives, fleet: &Fleet) {
        let view = tentatives.laid_over(name, &self.spec, &self.status, fleet);
        let inventory = self.inventory_of(&view, &self.status);
        if inventory != self.view.inventory {
            self.view = View { inventory, seen: self.view.seen + 1, ..View::default() };
        }
    }
}

/// Appends a result. The oldest is dropped, so that at most [`KEPT_RESULTS`] are kept.
fn keep<T>(results: &mut Vec<T>, result: T) {
    if results.len() == KEPT_RESULTS {
        results.drain(..1);
    }
    results.push(result);
}
