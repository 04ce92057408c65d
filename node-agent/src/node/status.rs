//! Builds GpuNode.status from what the agent has observed.

use super::retry::Retries;
use super::rules::mps_shares;
use super::{Daemon, Node, topology};
use crate::gpu::Gpu;
use kerf_core::accounting::beside_shares;
use kerf_core::contract::{
    Condition, ConditionStatus, GpuNodeStatus, GpuStatus, Peer, Shape, SliceState, SliceStatus, Summary,
    WantedSlice,
};
use kerf_core::kind::Kind;
use kerf_core::mig::catalog;
use kerf_core::names::{DeviceId, GpuUuid, SliceId};
use kerf_core::units::MemoryMib;
use std::collections::{BTreeMap, BTreeSet};

/// How many slices a condition lists by name.
const NAMED: usize = 3;

impl Node {
    /// Builds the status. The publisher fills in the conditions' times.
    pub(super) fn status(&self, waiting: &BTreeSet<SliceId>) -> GpuNodeStatus {
        let wanted = self.desired().iter().map(|w| self.wanted_status(w, waiting));
        let unwanted = self
            .unwanted()
            .into_iter()
            .map(|(gpu, shape, device, id)| self.unwanted_status(gpu, shape, device, id));
        let slices: Vec<_> = wanted.chain(unwanted).collect();
        GpuNodeStatus {
            neutral_up_to: super::names::neutral_up_to(&self.registered),
            gpus: self.gpu_statuses(),
            conditions: self.conditions(),
            summary: self.summary(&slices),
            slices,
        }
    }

    fn wanted_status(&self, wanted: &WantedSlice, waiting: &BTreeSet<SliceId>) -> SliceStatus {
        let mut status = SliceStatus {
            id: Some(wanted.id.clone()),
            gpu: wanted.gpu.clone(),
            shape: wanted.shape,
            state: SliceState::Preparing,
            memory: self.memory_of(&wanted.gpu, wanted.shape),
            device: self.device_of(wanted),
            resource: wanted.reservation.as_ref().map(|r| r.resource),
            ready_for: None,
            holder: None,
            message: None,
            reservation: self.ledger.reservation(&wanted.id),
            leaving: false,
        };
        if let Some(device) = status.device.clone() {
            self.describe_existing(&mut status, wanted, &device, waiting);
        } else {
            (status.state, status.message) = self.absence(wanted);
        }
        status
    }

    fn describe_existing(
        &self,
        status: &mut SliceStatus,
        wanted: &WantedSlice,
        device: &DeviceId,
        waiting: &BTreeSet<SliceId>,
    ) {
        // Use the known holder only: a device in doubt would take its pod's reservation along.
        let held = self.account.holder(device);
        status.holder = held.map(|h| h.holder.clone());
        let Some(reservation) = &wanted.reservation else {
            status.resource = self.account.held_as(device);
            let lingers = self.is_lingered_on(wanted);
            status.message = lingers.then(|| super::orphaned::TEXT.to_owned());
            let is_held = lingers || self.account.is_held(device);
            status.state = if is_held { SliceState::Held } else { SliceState::Idle };
            return;
        };
        let name = reservation.resource;
        // Acknowledgements count only once the kubelet has accepted all names, because before that it may still forget
        // them.
        let registered = self.health.registration.is_well();
        let acknowledged = registered && self.advertised.is_acknowledged(name, device);
        // The kubelet chooses which of the pod's containers gets the device.
        let by_others = held.is_some_and(|h| h.name != name || h.holder.key() != reservation.key());
        // A restarted agent treats the pods of ready slices as possibly bound.
        let ready = acknowledged && !by_others && !self.bindings.is_over(&reservation.uid);
        status.ready_for = ready.then(|| reservation.uid.clone());
        status.state = match held {
            Some(_) => SliceState::Held,
            None if self.is_lingered_on(wanted) => SliceState::Held,
            None if waiting.contains(&wanted.id) => SliceState::Waiting,
            None if ready => SliceState::Ready,
            None => SliceState::Preparing,
        };
        if let Some(obstruction) = self.unserved.get(&wanted.id) {
            status.message = Some(obstruction.text.clone());
            if obstruction.is_final {
                status.state = SliceState::Failed;
            }
        }
    }

    /// The state of a wanted slice that does not exist, and the reason.
    fn absence(&self, wanted: &WantedSlice) -> (SliceState, Option<String>) {
        if self.is_spared(wanted) {
            return (SliceState::Held, Some(super::unresponsive::TEXT.to_owned()));
        }
        if let Some(obstacle) = self.obstacles.get(&wanted.id) {
            let state = if obstacle.is_final { SliceState::Failed } else { SliceState::Preparing };
            return (state, Some(obstacle.text.clone()));
        }
        if self.instance_of(wanted).is_some_and(|i| i.compute == crate::gpu::Compute::Foreign) {
            let text = "the GPU instance at its place has compute instances that kerf did not make";
            return (SliceState::Failed, Some(text.to_owned()));
        }
        match Retries::error(&self.retries, &super::Task::Create(wanted.id.clone())) {
            Some((error, true)) => (SliceState::Failed, Some(error.to_string())),
            Some((error, false)) => (SliceState::Preparing, Some(format!("{error}; it is tried again"))),
            None => (SliceState::Preparing, None),
        }
    }

    fn unwanted_status(
        &self,
        gpu: GpuUuid,
        shape: Shape,
        device: DeviceId,
        id: Option<SliceId>,
    ) -> SliceStatus {
        let instances = self.gpu(&gpu).into_iter().flat_map(|g| &g.instances);
        let mut same = instances.filter(|i| shape.instance() == Some(i.instance));
        let busy = same.any(|i| self.is_instance_held(i)) || self.is_lingered(&device);
        let strange = shape.instance().is_some() && id.is_none();
        let message = strange.then(|| "kerf did not make it, and leaves it alone".to_owned());
        let lingers = || self.is_lingered(&device).then(|| super::orphaned::TEXT.to_owned());
        let message = message.or_else(lingers);
        let resource = self.account.held_as(&device);
        SliceStatus {
            id,
            memory: self.memory_of(&gpu, shape),
            gpu,
            shape,
            state: if busy || self.account.is_held(&device) { SliceState::Held } else { SliceState::Idle },
            resource,
            holder: self.account.possible_holder(&device).map(|h| h.holder.clone()),
            device: Some(device).filter(|d| !d.as_str().contains("/gi")),
            ready_for: None,
            message,
            reservation: None,
            leaving: true,
        }
    }

    fn memory_of(&self, gpu: &GpuUuid, shape: Shape) -> MemoryMib {
        let Some(instance) = shape.instance() else {
            return self
                .gpu(gpu)
                .map_or_else(|| shape.size().share_memory(), |gpu| shape.memory_of(gpu.memory));
        };
        let table = self.gpu(gpu).and_then(|g| g.table.as_ref());
        let entry = table.and_then(|t| t.entry(instance.profile));
        entry.map_or_else(|| shape.size().share_memory(), |e| e.memory)
    }

    fn condition(&self) -> Condition {
        let contested = self.contest().map(|text| ("Contested".to_owned(), text));
        let trouble = self.upgrade_trouble().or(contested).or_else(|| self.health.trouble());
        let lost = || self.takeover_trouble().map(|text| ("LedgerLost".to_owned(), text));
        let trouble = trouble.or_else(lost);
        condition(Condition::READY, trouble, ("Serving", "all resource names are registered"))
    }

    /// Which conflicting managers serve the node's GPUs.
    pub(super) fn contest(&self) -> Option<String> {
        let others = self.others.as_deref().unwrap_or_default();
        let unknown = if self.others_manage() {
            "who else manages the node's GPUs is being looked at"
        } else {
            "what others gave of the node's GPUs is being asked for"
        };
        if others.is_empty() {
            self.is_contested().then(|| unknown.to_owned())
        } else {
            Some(others.join("; "))
        }
    }

    fn conditions(&self) -> Vec<Condition> {
        let ill =
            self.gpus.iter().filter_map(|gpu| Some(format!("GPU {}: {}", gpu.index, self.message(gpu)?)));
        let silent =
            self.silent.iter().map(|(index, e)| format!("GPU {index}: it has not answered yet: {e}"));
        let ill: Vec<_> = ill.chain(silent).collect();
        let ill = (!ill.is_empty()).then(|| ("GpuUnhealthy".to_owned(), ill.join("; ")));
        let missed = self.obstacles.iter().chain(&self.unserved).map(|(id, o)| format!("{id}: {}", o.text));
        let unrecorded = self.unrecorded.iter().map(|(text, _)| text.clone());
        let missed: Vec<_> = unrecorded.chain(missed).take(NAMED).collect();
        let missed = (!missed.is_empty()).then(|| ("OutOfReach".to_owned(), missed.join("; ")));
        let contest = self.contest().map(|text| ("Contested".to_owned(), text));
        let mut uncontested =
            condition(Condition::UNCONTESTED, contest, ("Alone", "nobody else manages the node's GPUs"));
        if self.others.as_ref().is_none_or(Vec::is_empty) && self.is_contested() {
            uncontested.status = ConditionStatus::Unknown;
        }
        let unread = self.account.unread().map(|error| ("CheckpointUnreadable".to_owned(), error.to_owned()));
        vec![
            self.condition(),
            condition(Condition::GPUS_HEALTHY, ill, ("Healthy", "every GPU answers")),
            condition(
                Condition::SPEC_REACHED,
                missed,
                ("Reached", "every wanted slice is there or being made"),
            ),
            uncontested,
            condition(
                Condition::ALLOCATIONS_KNOWN,
                unread,
                ("CheckpointRead", "the kubelet's checkpoint tells who holds what"),
            ),
            condition(
                Condition::CONNECTED,
                self.health.leader_trouble(),
                ("LeaderConnected", "the extender's leader is connected"),
            ),
        ]
    }

    /// What an operator should know about a GPU.
    fn message(&self, gpu: &Gpu) -> Option<String> {
        let daemon = || match self.daemons.get(&gpu.uuid) {
            Some(Daemon::Ill(text)) => Some(format!("its MPS daemon does not serve: {text}")),
            _ => None,
        };
        let trouble = self.trouble_of(gpu).or_else(|| self.mode_trouble(gpu));
        let trouble = trouble.or_else(|| self.layout_trouble(gpu)).or_else(daemon);
        trouble.or_else(|| self.switch_trouble(&gpu.uuid)).or_else(|| self.closed_to(gpu))
    }

    pub(super) fn gpu_statuses(&self) -> Vec<GpuStatus> {
        let peers = topology::peers(&self.gpus);
        self.gpus.iter().zip(peers).map(|(gpu, peers)| self.gpu_status(gpu, peers)).collect()
    }

    fn gpu_status(&self, gpu: &Gpu, peers: Vec<Peer>) -> GpuStatus {
        GpuStatus {
            uuid: gpu.uuid.clone(),
            index: gpu.index,
            model: catalog::short_name(&gpu.product, gpu.memory),
            pci_bus_id: gpu.pci_bus_id.clone(),
            numa_node: gpu.topology.numa,
            peers,
            memory: gpu.memory,
            reserved: Some(gpu.reserved),
            kinds: self.kinds(gpu),
            outside: self.outside(gpu),
            mps_shares: mps_shares(gpu),
            message: self.message(gpu),
            profiles: gpu.table.clone().unwrap_or_default(),
        }
    }

    fn summary(&self, slices: &[SliceStatus]) -> Summary {
        let count = |state| slices.iter().filter(|s| s.state == state).count().try_into().unwrap_or(u32::MAX);
        let reserved = |id: &SliceId| self.desired().iter().any(|w| w.id == *id && w.reservation.is_some());
        let promised = |s: &&SliceStatus| {
            s.state == SliceState::Held || s.id.as_ref().is_some_and(reserved) || s.id.is_none()
        };
        let total: MemoryMib = self.gpus.iter().map(|gpu| gpu.memory).sum();
        // A part of a GPU instance, or a replica of it, has no memory of its own, so count each instance once.
        let by_place = |s: &SliceStatus| ((s.gpu.clone(), s.shape.instance()), s.memory);
        let (of_mig, others): (Vec<_>, Vec<_>) =
            slices.iter().filter(promised).partition(|s| s.shape.instance().is_some());
        let of_mig: BTreeMap<_, _> = of_mig.into_iter().map(by_place).collect();
        let used: MemoryMib = others.iter().map(|s| s.memory).chain(of_mig.into_values()).sum();
        let is_share = |shape: Shape| matches!(shape.kind(), Kind::Mps | Kind::TimeSlicing);
        let is_shared = |gpu: &&Gpu| self.shares.values().any(|s| s.gpu == gpu.uuid && is_share(s.shape));
        let beside = self.gpus.iter().filter(is_shared);
        let beside: MemoryMib = beside.map(|gpu| beside_shares(gpu.memory, Some(gpu.reserved))).sum();
        let kinds: BTreeSet<_> = self.gpus.iter().flat_map(|gpu| self.kinds(gpu)).collect();
        let kinds: Vec<_> = kinds.into_iter().map(Kind::as_str).collect();
        Summary {
            gpus: models(&self.gpus),
            mode: kinds.join(","),
            held: count(SliceState::Held),
            idle: count(SliceState::Idle),
            free: format!("{}Gi", total.saturating_sub(used).saturating_sub(beside).0 / 1024),
        }
    }
}

/// The last status without service: no slice is ready and no name is registered; everything else is unchanged.
pub(crate) fn unserved(mut status: GpuNodeStatus, condition: Condition) -> GpuNodeStatus {
    status.neutral_up_to = None;
    for slice in &mut status.slices {
        slice.ready_for = None;
        if slice.state == SliceState::Ready {
            slice.state = SliceState::Preparing;
        }
    }
    status.conditions.retain(|c| c.kind != condition.kind);
    status.conditions.insert(0, condition);
    status
}

/// A text like `2x H100-80GB, 1x T4-16GB`.
fn models(gpus: &[Gpu]) -> String {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for gpu in gpus {
        *counts.entry(catalog::short_name(&gpu.product, gpu.memory)).or_default() += 1;
    }
    let texts: Vec<_> = counts.into_iter().map(|(model, count)| format!("{count}x {model}")).collect();
    texts.join(", ")
}

/// Builds a condition that has `well`'s reason and message, or those of the trouble.
fn condition(kind: &str, trouble: Option<(String, String)>, well: (&str, &str)) -> Condition {
    let status = if trouble.is_some() { ConditionStatus::False } else { ConditionStatus::True };
    let (reason, message) = trouble.unwrap_or_else(|| (well.0.to_owned(), well.1.to_owned()));
    Condition { kind: kind.to_owned(), status, reason, message, last_transition_time: String::new() }
}
