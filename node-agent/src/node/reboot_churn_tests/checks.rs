//! The invariants, derived from the world alone where possible.

use super::World;
use super::leader::TURNS;
use crate::node::device_ids::{mig_device, replica_of, share_slice};
use crate::node::{Daemon, Decision, ShareGrant};
use kerf_core::contract::{GpuNodeStatus, Shape, SliceState};
use kerf_core::kind::Kind;
use kerf_core::names::{DeviceId, GpuUuid};
use kerf_core::planner::Step;
use std::collections::{BTreeMap, BTreeSet};

impl World {
    /// No pod loses what it has, and no GPU is allocated twice.
    pub(super) fn check(&self) {
        let gpus = self.gpus.gpus();
        let there: BTreeSet<&DeviceId> =
            gpus.iter().flat_map(|g| &g.instances).flat_map(|i| i.devices().map(|(.., d)| d)).collect();
        let mut shares: BTreeMap<GpuUuid, Vec<&ShareGrant>> = BTreeMap::new();
        for (device, pod) in self.kubelet.pods.iter().filter(|(_, pod)| !pod.stale) {
            if let Some((gpu, _)) = share_slice(device) {
                let share = pod.share.as_ref().unwrap();
                assert!(pod.name.kind().is_none_or(|kind| kind == share.kind), "{pod:?}");
                shares.entry(gpu).or_default().push(share);
            } else {
                assert!(there.contains(&mig_device(device)), "{device} went from under {}", pod.key);
            }
            let names = self.kubelet.taken.iter().filter(|(_, list)| list.get(device) == Some(&true));
            let others: Vec<_> = names.map(|(name, _)| *name).filter(|name| *name != pod.name).collect();
            assert!(others.is_empty(), "{device} of {} is offered as {others:?}", pod.key);
        }
        if let Some(foreign) = &self.upset.foreign {
            assert!(there.contains(foreign), "what somebody else has made was destroyed");
        }
        self.check_turns();
        for (uuid, shares) in shares {
            let gpu = gpus.iter().find(|g| g.uuid == uuid).unwrap();
            let kinds: BTreeSet<Kind> = shares.iter().map(|share| share.kind).collect();
            assert!(!gpu.mig.is_on(), "{shares:?} are served on {uuid} in MIG mode");
            assert_eq!(kinds.len(), 1, "{shares:?} of {uuid} are held at once");
            let sum: u64 = shares.iter().map(|share| share.memory.0).sum();
            assert!(sum <= gpu.memory.0, "{shares:?} of {uuid} are too much");
        }
    }

    /// A MIG device belongs to one pod, or to as many pods by turns as the policy allows.
    fn check_turns(&self) {
        let held = || self.kubelet.pods.iter().filter(|(_, pod)| !pod.stale).map(|(device, _)| device);
        let mut turns: BTreeMap<DeviceId, usize> = BTreeMap::new();
        for (of, _) in held().filter_map(replica_of) {
            *turns.entry(of).or_default() += 1;
        }
        for (of, count) in turns {
            assert!(held().all(|device| *device != of), "{of} is held as a whole and by turns");
            assert!(count <= usize::from(TURNS), "{count} pods take turns on {of}");
        }
    }

    /// No step takes what a pod has or may be getting.
    pub(super) fn check_step(&self, step: &Step) {
        let Step::Destroy { gpu, instance, part } = step else { return };
        let found = self.node.facts.inventory.find(gpu, *instance).unwrap();
        for (_, _, device) in found.devices().filter(|(at, ..)| part.is_none() || at == part) {
            let is_of_it = |other: &DeviceId| mig_device(other) == *device;
            let mut held = self.kubelet.pods.iter().filter(|(_, pod)| !pod.stale);
            let holder = held.find(|(device, _)| is_of_it(device));
            assert!(holder.is_none(), "{device} is destroyed under {holder:?}");
            let listed = self.kubelet.taken.values().flat_map(BTreeMap::keys).filter(|other| is_of_it(other));
            for listed in listed {
                assert!(
                    !self.kubelet.may_hand_out(listed),
                    "{device} is destroyed while {listed} is offered"
                );
            }
        }
    }

    /// What the agent offers to new pods is reserved under that name, and can be used.
    pub(super) fn check_decision(&mut self, decision: &Decision) {
        if !decision.lists.is_empty() {
            self.check_recovery();
        }
        // If this status has changed the ledger, the next decision handles that.
        if !decision.status.is_ready() || decision.next.due_at == Some(self.now) {
            return;
        }
        for (name, device, _) in self.kubelet.sends().filter(|(_, _, healthy)| *healthy) {
            if self.kubelet.pods.contains_key(device) || self.node.facts.account.is_held(device) {
                continue;
            }
            let mut wanted = self.node.desired().iter();
            let slice = wanted.find(|w| {
                w.reservation.as_ref().is_some_and(|r| r.resource == name)
                    && self.node.facts.placement().device_of(w).as_ref() == Some(device)
            });
            let slice = slice.unwrap_or_else(|| panic!("{device} is offered as {name} and not reserved"));
            assert!(self.reconcilers.can_be_opened(device), "{device} is offered and cannot be opened");
            let gpu = self.gpus.gpus().into_iter().find(|g| g.uuid == slice.gpu).unwrap();
            assert!(
                gpu.fault.is_none() || self.node.facts.inventory.gpu(&slice.gpu).unwrap().fault.is_none()
            );
            match (slice.shape, self.reconcilers.daemon(&slice.gpu)) {
                (Shape::Mig { .. }, _) | (Shape::Whole { .. } | Shape::TimeSlicing { .. }, None) => {}
                (Shape::Mps { size_gb, .. }, Some(Daemon::Serving { limit, .. })) => {
                    assert!(*limit >= size_gb.share_memory(), "{device} is offered within {limit}");
                }
                (shape, daemon) => panic!("{shape} {device} is offered beside {daemon:?}"),
            }
        }
    }

    /// The first names since the boot: what was recorded exists, if nothing was in its way.
    fn check_recovery(&mut self) {
        if std::mem::replace(&mut self.upset.hindered, true) {
            return;
        }
        let recorded = self.node.desired().iter().filter(|w| self.upset.recorded.contains(w));
        for wanted in recorded.filter(|w| w.shape.kind() == Kind::Mig) {
            let there = self.node.facts.placement().device_of(wanted).is_some();
            let cannot = self.node.steps.obstacle(&wanted.id).is_some()
                || self.node.facts.rules().is_switching(&wanted.gpu);
            assert!(there || cannot, "{wanted:?} was not made anew");
        }
    }

    /// Where the GPUs, the status, the kubelet, the MPS daemons and the leader's desired state disagree.
    pub(super) fn disagreement(&self) -> Option<String> {
        let status = self.published.as_ref().unwrap();
        if !status.is_ready() {
            return Some(format!("{:?}", status.conditions));
        }
        let cuts = || self.differing_cuts(status);
        let holders = || self.differing_holders(status);
        cuts().or_else(holders).or_else(|| self.differing_wants(status))
    }

    fn differing_cuts(&self, status: &GpuNodeStatus) -> Option<String> {
        let mut cut: Vec<(GpuUuid, Shape, Option<DeviceId>)> = Vec::new();
        for gpu in self.gpus.gpus() {
            for instance in gpu.instances {
                let Shape::Mig { profile, start, size, .. } = Shape::mig(instance.instance) else { continue };
                let shape = |part: Option<_>| Shape::Mig { profile, start, size, part: part.into() };
                let devices: Vec<_> = instance
                    .devices()
                    .map(|(part, _, d)| (gpu.uuid.clone(), shape(part), Some(d.clone())))
                    .collect();
                if devices.is_empty() {
                    cut.push((gpu.uuid.clone(), shape(None), None));
                }
                cut.extend(devices);
            }
        }
        let reported = status.slices.iter().filter(|s| s.shape.kind() == Kind::Mig);
        let place =
            |shape: Shape| if shape.replica().is_some() { shape.instance().map(Shape::mig) } else { None };
        let reported = reported.map(|s| {
            let device = s.device.as_ref().map(mig_device);
            (s.gpu.clone(), place(s.shape).unwrap_or(s.shape), device)
        });
        let mut reported: Vec<_> = reported.collect();
        cut.sort();
        reported.sort();
        // The replicas of one instance count once.
        reported.dedup();
        (cut != reported).then(|| format!("the GPUs have {cut:?}, the status lists {reported:?}"))
    }

    fn differing_holders(&self, status: &GpuNodeStatus) -> Option<String> {
        let holders = self.kubelet.pods.iter().map(|(device, pod)| (device.clone(), pod.key.clone()));
        let reported =
            status.slices.iter().filter_map(|s| Some((s.device.clone()?, s.holder.as_ref()?.key())));
        let (holders, reported): (BTreeMap<_, _>, BTreeMap<_, _>) = (holders.collect(), reported.collect());
        (holders != reported).then(|| format!("the kubelet lists {holders:?}, the status {reported:?}"))
    }

    fn differing_wants(&self, status: &GpuNodeStatus) -> Option<String> {
        for wanted in self.node.desired() {
            let slice = status.slice(&wanted.id).unwrap();
            let well = matches!(
                slice.state,
                SliceState::Ready | SliceState::Held | SliceState::Idle | SliceState::Waiting
            );
            if !well || slice.device.is_none() {
                return Some(format!("{slice:?}"));
            }
        }
        let mps = status.slices.iter().filter(|s| s.shape.kind() == Kind::Mps);
        let mps: BTreeSet<_> = mps.map(|s| s.gpu.clone()).collect();
        let daemons: BTreeSet<_> = self.reconcilers.daemons().into_keys().collect();
        (daemons != mps).then(|| format!("MPS daemons are on {daemons:?}, shares on {mps:?}"))
    }
}
