//! One node in the index: what its agent reports, what is proposed to it, and what fits on it.

use super::fractions::sharing;
use crate::assumed::AssumedPods;
use crate::objects::ask::Ask;
use crate::objects::compute::Compute;
use kerf_core::contract::{GpuNodeSpec, GpuNodeStatus, NodePolicy, Shape, SliceReservation, Wanted};
use kerf_core::inventory::{GpuInventory, NodeInventory};
use kerf_core::keys;
use kerf_core::kind::Kind;
use kerf_core::ledger::desired;
use kerf_core::names::{GpuUuid, NodeName, PodKey, PodUid};
use kerf_core::packing::{Fit, Fleet, FleetGpu, KindPlan, Place, Refusal, fit};
use kerf_core::quota::Charge;
use kerf_runtime::gpu_node::GpuNode;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// For how many different plans a node's results are kept.
const KEPT_PLANS: usize = 16;

/// A managed node as the index has it.
#[derive(Debug)]
pub struct IndexedNode {
    /// The GpuNode's UID. A recreated GpuNode has another one and starts from nothing.
    pub(super) object: Option<String>,
    /// The policy in force, as its agent reports it.
    pub(super) policy: NodePolicy,
    /// The slices that the node should have and the policy in force, with all proposals added. `None` if there is no
    /// proposal: then the agent's report has them, and a copy would waste memory.
    pub(super) proposed: Option<GpuNodeSpec>,
    /// What the agent reports; empty while it is not connected.
    pub(super) status: GpuNodeStatus,
    /// Whether the agent accepts reservations, whatever the status says.
    pub(super) agent: Result<(), Refusal>,
    /// The pods that have slices here, except for those whose release is ordered.
    pub(super) reserved_pods: BTreeSet<PodUid>,
    /// What these pods use of the node's CPU and memory, as far as they are known.
    pub(super) compute: Compute,
    /// Pods that have ended or are gone, but still have slices in the agent's report.
    pub(super) left: BTreeMap<PodUid, PodKey>,
    pub(super) written: WrittenPolicy,
    /// The node's GPUs in the fleet.
    pub(super) fleet_gpus: Vec<(GpuUuid, FleetGpu)>,
    /// Whether pods may run in user namespaces there; `None` while its Node is not known.
    pub(super) user_namespaces: Option<bool>,
    view: View,
}

/// What the GpuNode itself says of its policy.
#[derive(Debug, Default)]
pub struct WrittenPolicy {
    /// The admins' document that the policy was copied from.
    pub filled_by: Option<String>,
    /// `None` while it cannot be read.
    pub policy: Option<NodePolicy>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found {
    pub place: Place,
    /// The shape of the pod's slice, if it gets only one, a share that it asks for by size.
    pub share: Option<Shape>,
}

impl From<Fit> for Found {
    fn from(fit: Fit) -> Self {
        let share = match fit.slices.as_slice() {
            [slice] if slice.resource.size().is_some() => Some(slice.shape),
            _ => None,
        };
        let share = share.filter(|shape| sharing(shape.kind()).is_some());
        Self { place: fit.place(), share }
    }
}

/// What filters read, as of the last refresh.
#[derive(Debug, Default)]
struct View {
    /// Why the node serves no pods, if it does not. A filter asks every node, and conditions have to be searched.
    refusal: Option<Refusal>,
    inventory: NodeInventory,
    /// Whether a plan of one of the last requests fits, at whatever cost.
    plans: Vec<(Arc<str>, KindPlan, Result<(), Refusal>)>,
    /// Rises with every change of the inventory.
    seen: u64,
}

impl IndexedNode {
    /// A node whose GpuNode is seen for the first time.
    #[must_use]
    pub fn from_gpu_node(node: &GpuNode) -> Self {
        Self {
            object: node.metadata.uid.clone(),
            policy: NodePolicy::default(),
            proposed: None,
            status: GpuNodeStatus::default(),
            agent: Err(Refusal::NotConnected),
            reserved_pods: BTreeSet::new(),
            compute: Compute::default(),
            left: BTreeMap::new(),
            written: WrittenPolicy::default(),
            fleet_gpus: Vec::new(),
            user_namespaces: None,
            view: View::default(),
        }
    }

    /// Reads the parts of the GpuNode that its agent does not write.
    pub fn show(&mut self, node: &GpuNode) {
        self.written.filled_by =
            node.metadata.annotations.as_ref().and_then(|all| all.get(keys::NODE_POLICY).cloned());
        self.written.policy = node
            .read_spec()
            .inspect_err(|error| tracing::error!(node = %node.name(), %error, "unreadable GpuNode spec"))
            .ok()
            .map(|spec| spec.policy);
    }

    /// What the agent reports; empty while it is not connected.
    #[must_use]
    pub fn status(&self) -> &GpuNodeStatus {
        &self.status
    }

    /// What the GpuNode itself says of its policy.
    #[must_use]
    pub fn written(&self) -> &WrittenPolicy {
        &self.written
    }

    /// What pods with slices here use of the node's CPU and memory, as far as they are known.
    #[must_use]
    pub fn compute(&self) -> Compute {
        self.compute
    }

    /// The pods that have slices here, except for those whose release is ordered.
    #[must_use]
    pub fn reserved_pods(&self) -> &BTreeSet<PodUid> {
        &self.reserved_pods
    }

    /// Pods that have ended or are gone, but still have slices in the agent's report.
    #[must_use]
    pub fn left(&self) -> &BTreeMap<PodUid, PodKey> {
        &self.left
    }

    /// One of its GPUs in the fleet.
    #[must_use]
    pub fn fleet_gpu(&self, gpu: &GpuUuid) -> Option<FleetGpu> {
        self.fleet_gpus.iter().find(|(uuid, _)| uuid == gpu).map(|(_, gpu)| *gpu)
    }

    /// The slices that the node should have, with all proposals added.
    pub fn wanted(&self) -> impl Iterator<Item = Wanted<'_>> {
        let reported = self.status.slices.iter().take_while(|_| self.proposed.is_none());
        let proposed = self.proposed.iter().flat_map(|spec| &spec.slices);
        reported.filter_map(Wanted::reported).chain(proposed.map(Wanted::from))
    }

    /// The same as a spec, with the policy in force.
    #[must_use]
    pub fn spec(&self) -> Cow<'_, GpuNodeSpec> {
        match &self.proposed {
            Some(spec) => Cow::Borrowed(spec),
            None => Cow::Owned(desired(&self.status, &self.policy)),
        }
    }

    /// The slices that are reserved for a pod.
    pub fn reserved<'s>(&'s self, uid: &'s PodUid) -> impl Iterator<Item = Wanted<'s>> {
        self.wanted().filter(|slice| slice.is_reserved_for(uid))
    }

    /// The kind of a pod's first slice.
    #[must_use]
    pub fn kind_of(&self, uid: &PodUid) -> Option<Kind> {
        self.reserved(uid).next().map(|first| first.shape.kind())
    }

    /// The pods that have reserved slices now.
    #[must_use]
    pub fn reserved_pods_now(&self) -> BTreeSet<PodUid> {
        self.wanted().filter_map(|slice| Some(slice.reservation?.uid.clone())).collect()
    }

    /// Whether the node serves pods at all.
    pub fn serving(&self) -> Result<(), Refusal> {
        self.agent?;
        if self.status.is_ready() { Ok(()) } else { Err(Refusal::AgentNotReady) }
    }

    /// Whether its agent reports a reservation of the pod.
    #[must_use]
    pub fn reports_reservation(&self, uid: &PodUid) -> bool {
        self.reported_reservations(uid).next().is_some()
    }

    /// Whether its agent reports a reservation of the pod, and that no Binding of it can have been made.
    pub(super) fn reports_unmarked(&self, uid: &PodUid) -> bool {
        self.reports_reservation(uid)
            && self.reported_reservations(uid).all(|reservation| !reservation.binding)
    }

    fn reported_reservations(&self, uid: &PodUid) -> impl Iterator<Item = &SliceReservation> {
        let reservations = self.status.slices.iter().filter_map(|slice| slice.reservation.as_ref());
        reservations.filter(move |reservation| reservation.uid == *uid)
    }

    /// Forgets the pods that left and no longer have anything here.
    pub(super) fn forget_left(&mut self, reserved_pods: &BTreeSet<PodUid>) {
        let holders = self.status.slices.iter().filter_map(|slice| Some(slice.holder.as_ref()?.key()));
        let holders: BTreeSet<PodKey> = holders.collect();
        self.left.retain(|uid, pod| reserved_pods.contains(uid) || holders.contains(pod));
    }

    /// The best place for `ask` here, beside all reservations and assumed pods.
    pub fn found(&self, ask: &Ask, fleet: &Fleet) -> Result<Found, Refusal> {
        self.view.refusal.map_or(Ok(()), Err)?;
        fit(&self.view.inventory, &ask.document, fleet).map(Found::from)
    }

    /// Whether this one of its plans can serve `ask` here.
    pub fn place_by(&mut self, ask: &Ask, plan: &KindPlan, fleet: &Fleet) -> Result<(), Refusal> {
        self.view.refusal.map_or(Ok(()), Err)?;
        let is_same = |(text, known, _): &&(_, KindPlan, _)| *text == ask.text && known == plan;
        if let Some((_, _, known)) = self.view.plans.iter().find(is_same) {
            return *known;
        }
        let result = fit(&self.view.inventory, &ask.document.planned(plan), fleet).map(drop);
        if self.view.plans.len() == KEPT_PLANS {
            self.view.plans.drain(..1);
        }
        self.view.plans.push((ask.text.clone(), plan.clone(), result));
        result
    }

    /// How a request fits by what the agent reported last, even if the node does not serve.
    pub fn shown_fit(&self, ask: &Ask, fleet: &Fleet) -> Result<Fit, Refusal> {
        fit(&self.shown_inventory(), &ask.document, fleet)
    }

    /// What a pod would be charged for its place here, by the inventory of the last refresh.
    pub fn charge(&self, ask: &Ask, fleet: &Fleet) -> Result<Charge, Refusal> {
        Ok(charge(&fit(&self.view.inventory, &ask.document, fleet)?))
    }

    /// The GPUs with all reservations and assumed pods, as of the last refresh.
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
            let inventory = self.shown_inventory();
            let join =
                |gpu: &GpuInventory| Some((gpu.uuid.clone(), gpu.join(fleet, known.remove(&gpu.uuid))?));
            self.fleet_gpus = inventory.gpus.iter().filter_map(join).collect();
        }
        for gone in known.into_values() {
            fleet.remove(gone);
        }
    }

    /// The GPUs as they are reserved and reported, without assumed pods.
    #[must_use]
    pub fn shown_inventory(&self) -> NodeInventory {
        let wanted: Vec<_> = self.wanted().collect();
        let user_namespaces = self.user_namespaces;
        NodeInventory { user_namespaces, ..NodeInventory::from_wanted(&wanted, &self.policy, &self.status) }
    }

    /// The GPUs by a spec and a status.
    #[must_use]
    pub fn inventory_of(&self, spec: &GpuNodeSpec, status: &GpuNodeStatus) -> NodeInventory {
        NodeInventory { user_namespaces: self.user_namespaces, ..NodeInventory::from_spec(spec, status) }
    }

    /// Reads again what filters read. Returns whether it has changed.
    pub(super) fn refresh(&mut self, name: &NodeName, assumed: &AssumedPods, fleet: &Fleet) -> bool {
        let refusal = self.serving().err();
        let has_turned = std::mem::replace(&mut self.view.refusal, refusal) != refusal;
        let inventory = if assumed.are_none_on(name.as_str()) {
            self.shown_inventory()
        } else {
            let spec = self.spec();
            self.inventory_of(&assumed.laid_over(name, &spec, &self.status, fleet), &self.status)
        };
        if inventory == self.view.inventory {
            return has_turned;
        }
        self.view = View { refusal, inventory, plans: Vec::new(), seen: self.view.seen + 1 };
        true
    }
}

/// What a pod is charged for a place.
pub(crate) fn charge(fit: &Fit) -> Charge {
    fit.slices.iter().map(|slice| Charge::for_slice(slice.resource, slice.shape)).sum()
}
