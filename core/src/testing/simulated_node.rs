//! A node with an agent's ledger, without GPUs, kubelet and disk, for tests of the code that sends orders.

use super::node_status;
use crate::contract::{
    GpuNodeStatus, GpuStatus, Holder, MigPart, MigReplicas, NodePolicy, SliceState, SliceStatus, WantedSlice,
};
use crate::ledger::{Answer, Ledger, Limits, Moment, NodeState, Order, Saved, Seen};
use crate::names::{DeviceId, GpuUuid, PodUid, SliceId};
use crate::planner::{
    Allowed, Observed, ObservedGpu, ObservedInstance, ObservedPart, ObservedReplica, ObservedShare, Step,
    plan,
};
use std::collections::{BTreeMap, BTreeSet};

/// A node that makes the slices of its ledger when the test [calls for it](Self::cut).
#[derive(Debug, Clone)]
pub struct SimulatedNode {
    /// The ledger of the node's agent.
    pub ledger: Ledger,
    /// Why the agent accepts no reservation; `None` while it does.
    pub closed: Option<String>,
    gpus: GpuNodeStatus,
    /// The slices that exist. None is held here, because `holders` has the pods.
    cuts: Observed,
    holders: BTreeMap<SliceId, Holder>,
    limits: Limits,
}

impl SimulatedNode {
    /// A node with these GPUs (short model names) and this policy, on which nothing is cut yet.
    ///
    /// # Panics
    /// If the catalog does not have a model.
    #[must_use]
    pub fn new(models: &[&str], policy: NodePolicy, limits: Limits) -> Self {
        Self::from_status(node_status(models), policy, limits)
    }

    /// The same for a node with the GPUs of this status.
    #[must_use]
    pub fn from_status(gpus: GpuNodeStatus, policy: NodePolicy, limits: Limits) -> Self {
        let mut saved = Saved::default();
        saved.desired.policy = policy;
        let cuts = Observed { gpus: gpus.gpus.iter().map(|gpu| uncut(gpu, &saved.desired.policy)).collect() };
        let ledger = Ledger::restore(saved, limits, Moment::default());
        Self { ledger, closed: None, gpus, cuts, holders: BTreeMap::new(), limits }
    }

    /// Executes an order as the node's agent would.
    pub fn follow(&mut self, order: &Order, now: Moment) -> Answer {
        let (observed, status) = (self.observed(), self.status());
        self.ledger.follow(
            order,
            Seen { closed: self.closed.as_deref(), observed: &observed, status: &status },
            now,
        )
    }

    /// Makes all desired slices that can be made.
    pub fn cut(&mut self) {
        for step in plan(&self.observed(), &self.ledger.desired().slices).steps {
            self.run(&step);
        }
    }

    /// The desired slices that do not exist yet, with their GPUs.
    #[must_use]
    pub fn missing(&self) -> Vec<(SliceId, GpuUuid)> {
        let missing = self.ledger.desired().slices.iter().filter(|slice| !self.exists(slice));
        missing.map(|slice| (slice.id.clone(), slice.gpu.clone())).collect()
    }

    /// Makes one of these slices, if it is still desired.
    pub fn cut_slice(&mut self, id: &SliceId) {
        let desired = &self.ledger.desired().slices;
        let Some(gpu) = desired.iter().find(|slice| slice.id == *id).map(|slice| slice.gpu.clone()) else {
            return;
        };
        let mut observed = self.observed();
        observed.gpus.retain(|observed| observed.uuid == gpu);
        let here: Vec<_> = desired.iter().filter(|slice| slice.gpu == gpu).cloned().collect();
        for step in plan(&observed, &here).steps {
            if !matches!(&step, Step::Create { id: other, .. } | Step::Start { id: other, .. } if other != id)
            {
                self.run(&step);
            }
        }
    }

    /// Puts another policy in force.
    pub fn follow_policy(&mut self, policy: NodePolicy, now: Moment) {
        for (cut, gpu) in self.cuts.gpus.iter_mut().zip(&self.gpus.gpus) {
            cut.allowed = uncut(gpu, &policy).allowed;
        }
        let mut saved = self.ledger.saved();
        saved.desired.policy = policy;
        self.restart(saved, now);
    }

    /// The pod's containers take those of its slices that exist.
    pub fn allocate(&mut self, uid: &PodUid) {
        for slice in &self.ledger.desired().slices {
            let Some(reservation) = slice.reservation.as_ref().filter(|r| r.uid == *uid) else { continue };
            let holder = Holder {
                namespace: reservation.namespace.clone(),
                pod: reservation.pod.clone(),
                container: reservation.container.clone(),
            };
            if self.exists(slice) {
                self.holders.entry(slice.id.clone()).or_insert(holder);
            }
        }
    }

    /// The pod of this name releases everything that it holds.
    pub fn free(&mut self, pod: &str) {
        self.holders.retain(|_, holder| holder.pod != pod);
    }

    /// The slices that any pod holds.
    #[must_use]
    pub fn held(&self) -> BTreeSet<SliceId> {
        self.holders.keys().cloned().collect()
    }

    /// Restarts the agent with the ledger that its disk has.
    pub fn restart(&mut self, disk: Saved, now: Moment) {
        self.ledger = Ledger::restore(disk, self.limits, now);
    }

    /// The report of the node's agent.
    #[must_use]
    pub fn state(&self) -> NodeState {
        let policy = self.ledger.desired().policy.clone();
        NodeState { status: self.status(), policy, closed: self.closed.clone() }
    }

    /// The input of the node's planner.
    #[must_use]
    pub fn observed(&self) -> Observed {
        let mut observed = self.cuts.clone();
        let is_held = |slice: &&WantedSlice| self.holders.contains_key(&slice.id);
        for slice in self.ledger.desired().slices.iter().filter(is_held) {
            let Some(gpu) = observed.gpus.iter_mut().find(|gpu| gpu.uuid == slice.gpu) else { continue };
            gpu.shares.iter_mut().filter(|s| s.id == slice.id).for_each(|s| s.held = true);
            let same = |o: &&mut ObservedInstance| slice.shape.instance() == Some(o.instance);
            for instance in gpu.instances.iter_mut().filter(same) {
                match slice.shape.mig_part() {
                    MigPart::Whole => instance.held = true,
                    MigPart::Compute(part) => {
                        instance.parts.iter_mut().filter(|p| p.part == part).for_each(|p| p.held = true);
                    }
                    MigPart::Replica { replica } => {
                        let mut replicas = instance.replicas.iter_mut();
                        replicas.find(|r| r.number == replica).into_iter().for_each(|r| r.held = true);
                    }
                }
            }
        }
        observed
    }

    fn status(&self) -> GpuNodeStatus {
        let slices = self.ledger.desired().slices.iter().map(|slice| self.slice(slice)).collect();
        GpuNodeStatus { slices, ..self.gpus.clone() }
    }

    fn slice(&self, slice: &WantedSlice) -> SliceStatus {
        let exists = self.exists(slice);
        let reservation = self.ledger.reservation(&slice.id);
        let holder = self.holders.get(&slice.id).cloned();
        let state = match (&holder, &reservation) {
            (Some(_), _) => SliceState::Held,
            _ if !exists => SliceState::Preparing,
            (None, Some(_)) => SliceState::Ready,
            (None, None) => SliceState::Idle,
        };
        SliceStatus {
            id: Some(slice.id.clone()),
            gpu: slice.gpu.clone(),
            shape: slice.shape,
            state,
            memory: slice.shape.size().share_memory(),
            device: exists.then(|| DeviceId::new(format!("device-{}", slice.id))),
            resource: reservation.as_ref().map(|r| r.resource),
            ready_for: reservation.as_ref().filter(|_| exists).map(|r| r.uid.clone()),
            holder,
            message: None,
            reservation,
            leaving: false,
        }
    }

    fn exists(&self, slice: &WantedSlice) -> bool {
        let Some(gpu) = self.cuts.gpus.iter().find(|gpu| gpu.uuid == slice.gpu) else { return false };
        let Some(instance) = slice.shape.instance() else {
            return gpu.shares.iter().any(|share| share.id == slice.id);
        };
        let mut same = gpu.instances.iter().filter(|o| o.instance == instance);
        same.any(|o| match slice.shape.mig_part() {
            MigPart::Whole => o.parts.is_empty() && o.replicas.is_empty(),
            MigPart::Compute(part) => o.parts.iter().any(|p| p.part == part),
            // A replica is identified by its number: the next slice of that number is served by it.
            MigPart::Replica { replica } => o.replicas.iter().any(|r| r.number == replica),
        })
    }

    fn run(&mut self, step: &Step) {
        let Some(gpu) = self.cuts.gpus.iter_mut().find(|gpu| gpu.uuid == *step.gpu()) else { return };
        match step {
            Step::Switch { .. } => {}
            Step::Destroy { instance, part: None, .. } => gpu.instances.retain(|o| o.instance != *instance),
            Step::Destroy { instance, part: Some(part), .. } => {
                let same = gpu.instances.iter_mut().filter(|o| o.instance == *instance);
                same.for_each(|o| o.parts.retain(|p| p.part != *part));
            }
            Step::Create { instance, part, .. } => {
                let parts = part.map(|part| ObservedPart { part, held: false });
                match gpu.instances.iter_mut().find(|o| o.instance == *instance) {
                    Some(there) => there.parts.extend(parts),
                    None => gpu.instances.push(ObservedInstance {
                        instance: *instance,
                        held: false,
                        parts: parts.into_iter().collect(),
                        replicas: Vec::new(),
                    }),
                }
            }
            Step::End { id, .. } => {
                gpu.shares.retain(|share| share.id != *id);
                gpu.instances.iter_mut().for_each(|o| o.replicas.retain(|r| r.id != *id));
            }
            Step::Start { id, shape, .. } => match (shape.instance(), shape.replica()) {
                (Some(instance), Some(number)) => {
                    let same = gpu.instances.iter_mut().filter(|o| o.instance == instance);
                    let replica = ObservedReplica { number, id: id.clone(), held: false };
                    same.for_each(|o| o.replicas.push(replica.clone()));
                }
                _ => gpu.shares.push(ObservedShare { id: id.clone(), shape: *shape, held: false }),
            },
        }
    }
}

fn uncut(gpu: &GpuStatus, policy: &NodePolicy) -> ObservedGpu {
    let rule = policy.rule(gpu.index, &gpu.uuid, gpu.pci_bus_id.as_ref(), &gpu.model);
    ObservedGpu {
        uuid: gpu.uuid.clone(),
        memory: gpu.memory,
        allowed: Allowed {
            kinds: rule.kinds.clone(),
            one_size: rule.mps.is_one_size(),
            mps_memory: rule.mps.memory_percent,
            mps_shares: gpu.mps_shares,
            mig_replicas: rule.mig.time_slicing.map(MigReplicas::get),
            switch_to: None,
        },
        table: Some(gpu.profiles.clone()).filter(|table| !table.is_empty()),
        instances: Vec::new(),
        shares: Vec::new(),
    }
}
