//! One node in the index: its spec on the way to the API server, its status, and what fits on it.

use super::change::Change;
use super::effects::{Released, Why};
use super::leaving::charge;
use super::spec_state::SpecState;
use crate::ask::Ask;
use crate::compute::Compute;
use crate::tentative::Tentatives;
use kerf_core::contract::{GpuNodeSpec, GpuNodeStatus, Shape, SliceState, SliceStatus, WantedSlice};
use kerf_core::inventory::{GpuInventory, NodeInventory};
use kerf_core::keys;
use kerf_core::kind::Kind;
use kerf_core::ledger;
use kerf_core::names::{GpuUuid, NodeName, PodKey, PodUid};
use kerf_core::packing::{Fit, Fleet, FleetGpu, KindPlan, Place, Refusal, fit};
use kerf_core::policy::Charge;
use kerf_runtime::gpu_node::GpuNode;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// How many different asks a node's results are kept for. A burst of pods comes from few templates.
const KEPT_RESULTS: usize = 16;

/// A node.
#[derive(Debug)]
pub struct IndexedNode {
    /// The GpuNode's UID: one made anew starts from nothing.
    pub object: Option<String>,
    /// The spec; `Err` while it cannot be read.
    pub spec: Result<SpecState, Refusal>,
    /// What the agent observes; `Err` while it cannot be read.
    pub status: Result<GpuNodeStatus, Refusal>,
    /// The pods that have slices in the working spec.
    pub promised: BTreeSet<PodUid>,
    /// What they take of the node's CPU and memory, as far as they are known.
    pub compute: Compute,
    /// Why pods lost their promise here, in an operator's words, until their bind has told it.
    pub failures: BTreeMap<PodUid, String>,
    /// Pods that are gone and hold slices yet, by the agent's word.
    pub left: BTreeSet<PodKey>,
    /// GPUs on which nothing is cut ahead of demand until everything is looked at anew: it failed there.
    pub resting: BTreeSet<GpuUuid>,
    /// Whether its agent has not followed the spec for too long.
    pub is_silent: bool,
    /// Whether its agent keeps its ledger. Then spec and status are what the agent reports over its connection, and what is
    /// proposed to it.
    pub keeps_ledger: bool,
    /// Whether its agent accepts no reservation now.
    pub is_closed: bool,
    /// The admins' document that the node's policy was copied from.
    pub filled_by: Option<String>,
    /// The node's GPUs in the fleet.
    pub fleet_gpus: Vec<(GpuUuid, FleetGpu)>,
    /// Whether pods may run in user namespaces there; `None` while its Node is not known.
    pub user_namespaces: Option<bool>,
    view: View,
}

/// A pod's place on a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found {
    /// How good it is.
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

/// What filters see of a node.
#[derive(Debug, Default)]
struct View {
    stale: bool,
    inventory: NodeInventory,
    /// What the last asks came to, as of this version of the fleet.
    results: Vec<(Arc<str>, Result<Found, Refusal>)>,
    version: u64,
    /// Whether a plan of one of the last asks fits, at whatever price.
    plans: Vec<(Arc<str>, KindPlan, Result<(), Refusal>)>,
    /// Rises with every inventory.
    seen: u64,
}

impl IndexedNode {
    /// The node of a GpuNode that is seen for the first time.
    #[must_use]
    pub fn of(node: &GpuNode) -> Self {
        Self {
            object: node.metadata.uid.clone(),
            spec: read_spec(node).map(SpecState::of),
            status: read_status(node),
            promised: BTreeSet::new(),
            compute: Compute::default(),
            failures: BTreeMap::new(),
            left: BTreeSet::new(),
            resting: BTreeSet::new(),
            is_silent: false,
            keeps_ledger: false,
            is_closed: false,
            filled_by: filled_by(node),
            fleet_gpus: Vec::new(),
            user_namespaces: None,
            view: View { stale: true, ..View::default() },
        }
    }

    /// The working spec, if the spec can be read.
    #[must_use]
    pub fn working(&self) -> Option<&GpuNodeSpec> {
        self.spec.as_ref().ok().map(SpecState::working)
    }

    /// The kind of a pod's first slice in the working spec.
    #[must_use]
    pub fn kind_of(&self, uid: &PodUid) -> Option<Kind> {
        let first = ledger::reserved(self.working()?, uid).next()?;
        Some(first.shape.kind())
    }

    /// The pods that have slices in the working spec now.
    #[must_use]
    pub fn promised_now(&self) -> BTreeSet<PodUid> {
        let slices = self.working().into_iter().flat_map(|spec| &spec.slices);
        slices.filter_map(|s| Some(s.reservation.as_ref()?.uid.clone())).collect()
    }

    /// The spec's state and the status, where both can be read.
    pub fn readable(&mut self) -> Result<(&mut SpecState, &GpuNodeStatus), Refusal> {
        match (&mut self.spec, &self.status) {
            (Ok(spec), Ok(status)) => Ok((spec, status)),
            (Err(refusal), _) => Err(*refusal),
            (_, Err(refusal)) => Err(*refusal),
        }
    }

    /// Whether pods may be sent here at all.
    pub fn serving(&self) -> Result<(), Refusal> {
        if let Err(refusal) = &self.spec {
            return Err(*refusal);
        }
        let status = self.status.as_ref().map_err(|refusal| *refusal)?;
        match (status.is_ready() && !self.is_closed, self.is_silent) {
            (false, _) => Err(Refusal::AgentNotReady),
            (true, true) => Err(Refusal::AgentSilent),
            (true, false) => Ok(()),
        }
    }

    /// Takes the status out for a moment.
    pub(super) fn take_status(&mut self) -> GpuNodeStatus {
        let empty = Ok(GpuNodeStatus::default());
        std::mem::replace(&mut self.status, empty).unwrap_or_default()
    }

    /// Says that spec, status or the overlay changed.
    pub fn touch(&mut self) {
        self.view.stale = true;
    }

    /// Notes who of those whose promises were given back is gone, and forgets those who hold nothing any more.
    pub fn note_left(&mut self, released: &[Released]) {
        let gone = released.iter().filter(|released| matches!(released.why, Why::Gone | Why::Ended));
        self.left.extend(gone.map(|released| released.pod.clone()));
        if let Ok(status) = &self.status {
            let holders: BTreeSet<PodKey> =
                status.slices.iter().filter_map(|slice| Some(slice.holder.as_ref()?.key())).collect();
            self.left.retain(|pod| holders.contains(pod));
        }
    }

    /// Takes the agent's word on a slice for what it was before its promise was given back, where the agent has not
    /// observed that yet.
    pub fn doubt(&mut self) {
        let (Ok(spec), Ok(status)) = (&self.spec, &mut self.status) else { return };
        for slice in spec.unsettled(status.observed_revision) {
            match status.slices.iter_mut().find(|s| s.id.as_ref() == Some(&slice.id)) {
                Some(known) if matches!(known.state, SliceState::Idle | SliceState::Preparing) => {
                    known.state = SliceState::Waiting;
                }
                Some(_) => {}
                None => status.slices.push(promised_before(slice)),
            }
        }
    }

    /// The best place for `ask` here, beside all promises and probable places. Answers from the last results while
    /// what is taken and idle here has not changed, nor what things cost in the fleet.
    pub fn place(
        &mut self,
        name: &NodeName,
        ask: &Ask,
        tentatives: &Tentatives,
        fleet: &Fleet,
    ) -> Result<Found, Refusal> {
        self.bring_up_to_date(name, tentatives, fleet)?;
        if std::mem::replace(&mut self.view.version, fleet.version()) != fleet.version() {
            // What does not fit does not fit at any price.
            self.view.results.retain(|(_, result)| result.is_err());
        }
        if let Some((_, known)) = self.view.results.iter().find(|(text, _)| *text == ask.text) {
            return *known;
        }
        let result = fit(&self.view.inventory, &ask.document, fleet).map(Found::from);
        keep(&mut self.view.results, (ask.text.clone(), result));
        result
    }

    /// Whether `ask` could be served here by this one of its plans.
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

    /// How an ask fits by what the agent has shown last, whether it serves or not.
    pub fn shown_fit(&self, ask: &Ask, fleet: &Fleet) -> Result<Fit, Refusal> {
        let spec = self.spec.as_ref().map_err(|refusal| *refusal)?;
        let status = self.status.as_ref().map_err(|refusal| *refusal)?;
        fit(&self.inventory_of(spec.working(), status), &ask.document, fleet)
    }

    /// What a pod would be charged for its place here, as of the last place.
    pub fn charge(&self, ask: &Ask, fleet: &Fleet) -> Result<Charge, Refusal> {
        Ok(charge(&fit(&self.view.inventory, &ask.document, fleet)?))
    }

    /// The working spec after a change; `None` if nothing changes.
    pub fn after(&self, change: &Change, fleet: &Fleet) -> Result<Option<GpuNodeSpec>, Refusal> {
        let spec = self.spec.as_ref().map_err(|refusal| *refusal)?;
        change.apply(spec.working(), self.status.as_ref().ok(), fleet)
    }

    /// The GPUs with all promises and probable places, as of the last place.
    #[must_use]
    pub fn inventory(&self) -> &NodeInventory {
        &self.view.inventory
    }

    /// Rises whenever the inventory changes.
    #[must_use]
    pub fn seen(&self) -> u64 {
        self.view.seen
    }

    /// Shows the node's GPUs to the fleet as they are promised now; none while pods may not be sent here.
    pub fn join(&mut self, fleet: &mut Fleet) {
        let mut known: BTreeMap<GpuUuid, FleetGpu> =
            std::mem::take(&mut self.fleet_gpus).into_iter().collect();
        let serving = self.serving();
        if let (Ok(()), Ok((spec, status))) = (serving, self.readable()) {
            let inventory = NodeInventory::of(spec.working(), status);
            let join =
                |gpu: &GpuInventory| Some((gpu.uuid.clone(), gpu.join(fleet, known.remove(&gpu.uuid))?));
            self.fleet_gpus = inventory.gpus.iter().filter_map(join).collect();
        }
        for gone in known.into_values() {
            fleet.remove(gone);
        }
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
            self.refresh(name, tentatives, fleet)?;
        }
        Ok(())
    }

    fn refresh(&mut self, name: &NodeName, tentatives: &Tentatives, fleet: &Fleet) -> Result<(), Refusal> {
        let (spec, status) = match (&self.spec, &self.status) {
            (Ok(spec), Ok(status)) => (spec, status),
            (Err(refusal), _) | (_, Err(refusal)) => return Err(*refusal),
        };
        let view = tentatives.laid_over(name, spec.working(), status, fleet);
        let inventory = self.inventory_of(&view, status);
        if inventory != self.view.inventory {
            self.view = View { inventory, seen: self.view.seen + 1, ..View::default() };
        }
        Ok(())
    }
}

/// Remembers one result more, and no more than [`KEPT_RESULTS`].
fn keep<T>(results: &mut Vec<T>, result: T) {
    if results.len() == KEPT_RESULTS {
        results.drain(..1);
    }
    results.push(result);
}

/// What may have become of a slice of which the agent has said nothing yet.
fn promised_before(slice: &WantedSlice) -> SliceStatus {
    SliceStatus {
        id: Some(slice.id.clone()),
        gpu: slice.gpu.clone(),
        shape: slice.shape,
        state: SliceState::Waiting,
        memory: slice.shape.size().share_memory(),
        device: None,
        resource: None,
        ready_for: None,
        holder: None,
        message: None,
        reservation: None,
        leaving: false,
    }
}

/// The document that a GpuNode's policy was copied from.
pub fn filled_by(node: &GpuNode) -> Option<String> {
    node.metadata.annotations.as_ref()?.get(keys::NODE_POLICY).cloned()
}

/// The spec of a GpuNode.
pub fn read_spec(node: &GpuNode) -> Result<GpuNodeSpec, Refusal> {
    node.read_spec().map_err(|error| {
        tracing::error!(node = %node.name(), %error, "unreadable GpuNode spec, the node counts as full");
        Refusal::UnreadableSpec
    })
}

/// The status of a GpuNode; that of a node which is not ready while there is none.
pub fn read_status(node: &GpuNode) -> Result<GpuNodeStatus, Refusal> {
    node.read_status().map(Option::unwrap_or_default).map_err(|error| {
        tracing::error!(node = %node.name(), %error, "unreadable GpuNode status, the node counts as full");
        Refusal::UnreadableStatus
    })
}
