//! The agent's process and its calls to the GPUs: decisions, calls that take time, restarts and reboots.

use super::{Upset, World};
use crate::gpu::{Gpu, GpuBackend as _, GpuError, GpuEvent, GpuInstance, GpuTrouble, NvmlCode};
use crate::node::{Decision, Node, Predecessor, Restored};
use kerf_core::names::GpuUuid;
use kerf_core::planner::Step;
use std::time::Duration;

/// The agent's checkpoint, and the boot in which it was written.
#[derive(Default)]
pub(super) struct Disk {
    record: Restored,
    written_in: u64,
    boot: u64,
}

/// A call on a GPU, and its result once it has ended.
pub(super) struct Call {
    step: Step,
    found: Option<GpuInstance>,
    ended: Option<Ended>,
}

enum Ended {
    Created(Result<GpuInstance, GpuError>),
    Done(Result<(), GpuError>),
}

impl World {
    pub(super) fn start_agent(&mut self) {
        self.node = Node::new(self.settings.clone());
        let record = self.disk.record.clone();
        let is_new = self.disk.written_in != self.disk.boot;
        let record = if is_new { record.after_reload() } else { record };
        self.node.restore(&record, self.now);
        self.calls.clear();
        self.upset.unseen.clone_from(&self.upset.lost);
        self.kubelet.forget_agent();
        self.reconcilers.forget();
        self.node.on_daemons(self.reconcilers.daemons());
        self.look();
    }

    /// Events that reach the agent without a request; with the kubelet, also that it has accepted the names.
    pub(super) fn hear(&mut self, with_kubelet: bool) {
        if with_kubelet && !self.kubelet.registered {
            self.node.on_registration(Ok(self.node.resource_names()));
            self.kubelet.registered = true;
        }
        self.report_pods();
        self.node.on_predecessor(Predecessor::default(), self.now);
        self.node.on_policy(Ok(self.policy.clone()));
        self.node.on_leader(Some(1), self.now);
        let others = if self.upset.others { vec!["somebody".into()] } else { vec![] };
        self.node.on_conflicts(others, self.now);
    }

    /// The GPUs that the agent sees. A GPU that was lost before its start is not among them.
    fn seen(&self) -> Vec<Gpu> {
        let mut gpus = self.gpus.gpus();
        gpus.retain(|gpu| !self.upset.unseen.contains(&gpu.index));
        gpus
    }

    pub(super) fn look(&mut self) {
        if self.calls.is_empty() {
            self.node.on_gpus(Ok(self.seen()));
            let usage = self.usage();
            self.node.on_usage(usage);
        }
    }

    /// Decides, and hands out the decision.
    pub(super) fn decide(&mut self) -> Decision {
        let decision = self.node.decide(self.now);
        self.kubelet.send(&decision.lists);
        if decision.slices.is_some() {
            self.reconcilers.wanted.clone_from(&decision.slices);
        }
        self.published = Some(decision.status.clone());
        self.check_decision(&decision);
        self.look_up(decision.pods.look_up.keys().cloned());
        decision
    }

    /// One turn of the agent's loop.
    pub(super) fn tick(&mut self, choice: usize) {
        let decision = self.decide();
        match decision.step {
            _ if choice.is_multiple_of(5) => self.look(),
            None => {}
            Some(step @ (Step::Create { .. } | Step::Switch { .. })) if choice % 13 == 3 => {
                self.upset.hindered = true;
                self.node.on_unrecorded(None, &format!("no room on the disk for {step}"), self.now);
            }
            Some(step) => {
                if !matches!(step, Step::Destroy { .. }) {
                    self.record();
                }
                self.begin(step, choice);
            }
        }
    }

    /// Writes the node's record to the disk.
    pub(super) fn record(&mut self) {
        self.disk.record = self.node.to_record();
        self.disk.written_in = self.disk.boot;
    }

    fn begin(&mut self, step: Step, choice: usize) {
        self.check_step(&step);
        let found = match &step {
            Step::Destroy { gpu, instance, .. } => {
                Some(self.node.facts.inventory.find(gpu, *instance).unwrap().clone())
            }
            _ => None,
        };
        assert!(self.node.start(&step).is_some(), "{step} has a call");
        let gpu = step.gpu().clone();
        let before = self.calls.insert(gpu.clone(), Call { step, found, ended: None });
        assert!(before.is_none(), "a second call on {gpu}");
        if choice.is_multiple_of(2) {
            self.take_effect(&gpu, choice);
        }
    }

    /// Carries out the call that is under way on a GPU; the agent has not read the result yet.
    fn take_effect(&mut self, gpu: &GpuUuid, choice: usize) {
        let Some(call) = self.calls.get_mut(gpu).filter(|call| call.ended.is_none()) else { return };
        if choice / 8 % 11 == 5 {
            self.upset.hindered = true;
            let code = [NvmlCode::InsufficientResources, NvmlCode::Unknown][choice % 2];
            self.gpus.fail_next(GpuError::Call { call: "nvmlX", code });
        }
        let ended = match &call.step {
            Step::Create { gpu, instance, part, .. } => {
                Ended::Created(self.gpus.create(gpu, *instance, *part))
            }
            Step::Destroy { gpu, part, .. } => {
                let found = call.found.as_ref().unwrap();
                Ended::Done(self.gpus.destroy(gpu, found, *part))
            }
            Step::Switch { gpu, mig } => {
                Ended::Done(self.gpus.set_mig_mode(gpu, *mig, self.node.facts.rules().may_reset(gpu)))
            }
            other => panic!("{other} is no step on a GPU"),
        };
        self.tally.cuts += u64::from(matches!(ended, Ended::Created(Ok(_)) | Ended::Done(Ok(()))));
        call.ended = Some(ended);
    }

    /// Ends one of the calls, and reports the result to the agent.
    pub(super) fn finish(&mut self, choice: usize) {
        let Some(gpu) = self.calls.keys().nth(choice % self.calls.len().max(1)).cloned() else { return };
        self.take_effect(&gpu, choice);
        let Some(Call { step, ended: Some(ended), .. }) = self.calls.remove(&gpu) else { return };
        let failed = matches!(ended, Ended::Created(Err(_)) | Ended::Done(Err(_)));
        let switched = matches!(step, Step::Switch { .. });
        match (step, ended) {
            (Step::Create { gpu, id, .. }, Ended::Created(result)) => {
                self.node.on_created(&gpu, &id, result, self.now);
            }
            (Step::Destroy { gpu, instance, part }, Ended::Done(result)) => {
                self.node.on_destroyed(&gpu, (instance, part), result, self.now);
            }
            (Step::Switch { gpu, mig }, Ended::Done(result)) => {
                self.node.on_switched(&gpu, mig, result, self.now);
            }
            _ => {}
        }
        if failed || switched {
            self.decide();
            self.look();
        }
    }

    /// Ends the agent's process, perhaps in the middle of a call, and restarts it.
    pub(super) fn restart_agent(&mut self, choice: usize) {
        self.tally.restarts += 1;
        match choice % 3 {
            0 => {
                // A normal end: the agent leaves its checkpoint.
                while !self.calls.is_empty() {
                    self.finish(1);
                }
                self.record();
            }
            1 => {
                for gpu in self.calls.keys().cloned().collect::<Vec<_>>() {
                    self.take_effect(&gpu, 1);
                }
            }
            _ => {}
        }
        self.start_agent();
        self.hear(choice.is_multiple_of(2));
    }

    /// Reboots the node. The new agent has had no event yet.
    pub(super) fn reboot(&mut self, choice: usize) {
        if !choice.is_multiple_of(3) {
            return;
        }
        self.tally.reboots += 1;
        self.disk.boot += 1;
        self.gpus.reboot();
        let recorded = self.disk.record.ledger.desired.slices.clone();
        self.upset = Upset { others: self.upset.others, recorded, ..Upset::default() };
        (0..3).for_each(|index| self.gpus.set_lost(index, false));
        if choice.is_multiple_of(7) {
            self.lose(choice);
        }
        self.reconcilers.boot();
        self.kubelet.boot();
        self.start_agent();
        self.upset.hindered |= self.upset.others;
    }

    pub(super) fn trouble(&mut self, choice: usize) {
        self.upset.hindered = true;
        let gpu = &self.gpus.gpus()[choice % 3];
        let gi = gpu.instances.first().map(|i| i.gi).filter(|_| choice.is_multiple_of(2));
        let what = [GpuTrouble::Xid(79), GpuTrouble::DoubleBitEcc, GpuTrouble::Xid(13)][choice / 8 % 3];
        self.node.on_trouble(GpuEvent { gpu: Some(gpu.uuid.clone()), what, gi, ci: None }, self.now);
    }

    /// Loses a GPU, or brings it back.
    pub(super) fn lose(&mut self, choice: usize) {
        self.upset.hindered = true;
        let index = [0, 1, 2][choice % 3];
        let lost = !self.upset.lost.contains(&index);
        if lost {
            self.upset.lost.insert(index);
        } else {
            self.upset.lost.remove(&index);
            self.upset.unseen.remove(&index);
        }
        self.gpus.set_lost(index, lost);
    }

    /// A disturbance: NVML is away for a moment, a policy is unreadable, another manager appears, or somebody makes a
    /// slice.
    pub(super) fn disturb(&mut self, choice: usize) {
        match choice % 8 {
            0 => self.node.on_gpus(Err(GpuError::Hangs(3))),
            1 => self.node.on_policy(Err("no such field".into())),
            2 => self.node.on_holders(Err("pod-resources does not answer".into())),
            3 => {
                self.upset.others = !self.upset.others;
                self.upset.hindered = true;
                self.hear(false);
            }
            4 => self.make_foreign(),
            5 if (choice / 8).is_multiple_of(2) => self.look(),
            5 => self.kubelet.corrupt = !self.kubelet.corrupt,
            6 => self.order_late(),
            _ => self.reconcilers.outside = [0, 700, 5000][choice / 8 % 3],
        }
    }

    /// Somebody makes a slice without kerf, at a place that the leader never uses.
    fn make_foreign(&mut self) {
        let gpu = self.gpus.gpus().remove(0);
        let profile = "1g.10gb".parse().unwrap();
        let placement = kerf_core::mig::Placement { start: 3, size: 1 };
        let made = self.gpus.create(&gpu.uuid, kerf_core::mig::Instance { profile, placement }, None);
        if let Ok(made) = made {
            self.upset.hindered = true;
            self.upset.foreign = made.device().cloned();
        }
    }

    /// Ends all disturbances.
    pub(super) fn calm(&mut self) {
        for index in std::mem::take(&mut self.upset.lost) {
            self.gpus.set_lost(index, false);
        }
        self.upset.unseen.clear();
        (self.upset.others, self.kubelet.corrupt) = (false, false);
        self.reconcilers.outside = 0;
        self.finish(1);
        self.look();
        // After this time the pods that may be bound are looked up.
        self.now += Duration::from_secs(81);
        self.hear(true);
    }
}
