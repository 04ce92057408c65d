//! What the node's policy allows on a GPU: the kinds of slices, and the MIG mode that they need.

use super::inventory::Inventory;
use super::reservations::Reservations;
use crate::gpu::{Gpu, MigMode};
use crate::mps;
use kerf_core::accounting::beside_shares;
use kerf_core::capacity::laid_out;
use kerf_core::contract::{GpuRule, MigReplicas, ModeChange, SliceLength, WantedSlice};
use kerf_core::kind::Kind;
use kerf_core::mig::MigTable;
use kerf_core::names::GpuUuid;
use kerf_core::planner::Allowed;
use kerf_core::units::MemoryMib;
use std::borrow::Cow;
use std::collections::BTreeMap;

/// The policy's rules for the node's GPUs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rules<'a> {
    pub(super) inventory: &'a Inventory,
    pub(super) reservations: &'a Reservations,
}

impl<'a> Rules<'a> {
    pub(super) fn rule(self, gpu: &Gpu) -> GpuRule {
        self.reservations.rule(gpu)
    }

    /// The GPUs with their rules.
    pub(super) fn all(self) -> impl Iterator<Item = (&'a Gpu, GpuRule)> {
        self.inventory.gpus().iter().map(move |gpu| (gpu, self.rule(gpu)))
    }

    /// What the planner may make of the GPU while processes outside of kerf use this much of its memory.
    pub(super) fn allowed(self, gpu: &Gpu, outside: MemoryMib) -> Allowed {
        let rule = self.rule(gpu);
        if self.inventory.trouble(gpu).is_some() {
            return Allowed { kinds: Vec::new(), ..Allowed::default() };
        }
        // A GPU as a whole needs all its memory, so it is not allowed while processes outside of kerf use some.
        let kinds = rule.kinds.iter().filter(|kind| **kind != Kind::Whole || outside.is_zero());
        Allowed {
            kinds: kinds.copied().collect(),
            one_size: rule.mps.is_one_size(),
            mps_memory: rule.mps.memory_percent,
            mps_shares: mps_shares(gpu),
            mig_replicas: rule.mig.time_slicing.map(MigReplicas::get),
            switch_to: self.switch_to(gpu, &rule),
        }
    }

    /// Whether the policy and the mode allow the GPU as a whole.
    pub(super) fn allows_whole(self, gpu: &Gpu) -> bool {
        gpu.table.is_none() && self.rule(gpu).kinds.contains(&Kind::Whole)
    }

    /// The MIG mode that the GPU must get. After a reboot this is the mode that it had.
    fn switch_to(self, gpu: &Gpu, rule: &GpuRule) -> Option<bool> {
        let MigMode::Settled(on) = gpu.mig else { return None };
        let wanted = wanted_mode(rule)?;
        let is_lost = self.inventory.has_lost_mig_mode(&gpu.uuid);
        let lost = !on && is_lost && rule.kinds.contains(&Kind::Mig);
        let may = rule.mode_change != ModeChange::Never || lost;
        (wanted.unwrap_or(lost || on) != on && may).then_some(!on)
    }

    /// The desired slices, in the planner's form. Reservations that need the GPU's next mode do not count against its
    /// switch.
    pub(super) fn to_plan(self) -> Cow<'a, [WantedSlice]> {
        let switching = self.all().filter_map(|(gpu, rule)| Some((&gpu.uuid, self.switch_to(gpu, &rule)?)));
        let switching: BTreeMap<&GpuUuid, bool> = switching.collect();
        let mut wanted = Cow::Borrowed(self.reservations.desired());
        if !switching.is_empty() {
            let waits = |w: &WantedSlice| switching.get(&w.gpu) == Some(&(w.shape.kind() == Kind::Mig));
            wanted.to_mut().iter_mut().filter(|w| waits(w)).for_each(|w| w.reservation = None);
        }
        wanted
    }

    /// The length of time slices for each GPU without MIG.
    pub(super) fn lengths(self) -> BTreeMap<GpuUuid, SliceLength> {
        let shared = self.all().filter(|(gpu, _)| gpu.table.is_none() && gpu.fault.is_none());
        shared.map(|(gpu, rule)| (gpu.uuid.clone(), rule.time_slicing.length)).collect()
    }

    /// Whether the GPU's MIG mode is about to be switched.
    pub(super) fn is_switching(self, gpu: &GpuUuid) -> bool {
        let gpu = self.inventory.gpu(gpu);
        gpu.is_some_and(|gpu| {
            self.switch_to(gpu, &self.rule(gpu)).is_some() || matches!(gpu.mig, MigMode::Pending(_))
        })
    }

    /// Whether a switch of the MIG mode may reset the GPU, by the policy.
    pub(super) fn may_reset(self, gpu: &GpuUuid) -> bool {
        let gpu = self.inventory.gpu(gpu);
        gpu.is_some_and(|gpu| self.rule(gpu).mode_change == ModeChange::WithReset)
    }

    /// Why the GPU cannot have the layout of the policy. Then it gets no slice at all.
    pub(super) fn layout_trouble(self, gpu: &Gpu) -> Option<String> {
        let rule = self.rule(gpu);
        // In the other mode it is unknown what the GPU could have; then the mode is the trouble.
        if (rule.layout.kind()? == Kind::Mig) != gpu.table.is_some() {
            return None;
        }
        let none = MigTable::default();
        let table = gpu.table.as_ref().unwrap_or(&none);
        let beside = beside_shares(gpu.memory, Some(gpu.reserved));
        if laid_out(&rule, table, gpu.memory, beside, mps_shares(gpu)).is_some() {
            return None;
        }
        let (layout, model) = (&rule.layout, &gpu.model);
        Some(format!(
            "the layout in the node's policy ({layout}) cannot be placed on this model, {model}; correct it"
        ))
    }

    /// How the GPU's mode violates the policy.
    pub(super) fn mode_trouble(self, gpu: &Gpu) -> Option<String> {
        let rule = self.rule(gpu);
        let wanted = wanted_mode(&rule)??;
        let (name, kinds) = (if wanted { "on" } else { "off" }, join(&rule.kinds));
        match gpu.mig {
            MigMode::Settled(on) if on != wanted && rule.mode_change == ModeChange::Never => Some(format!(
                "policy allows {kinds}, which takes MIG mode {name}; switch it, or set modeChange in the policy"
            )),
            MigMode::Pending(on) if on != wanted => Some(format!(
                "MIG mode {name} is pending; drain the node and reset the GPU: nvidia-smi --gpu-reset -i {}",
                gpu.index
            )),
            MigMode::Unsupported if wanted => {
                Some(format!("policy allows {kinds} only, and this model has no MIG mode"))
            }
            MigMode::Unsupported | MigMode::Settled(_) | MigMode::Pending(_) => None,
        }
    }
}

/// How many MPS shares a GPU may have: each has one client at least, and the number of clients is limited.
pub(super) fn mps_shares(gpu: &Gpu) -> Option<u32> {
    gpu.table.is_none().then(|| mps::max_clients(gpu.capability, gpu.driver.cuda))
}

/// The kinds that the GPU's current mode and the policy both allow.
pub(super) fn kinds(gpu: &Gpu, rule: &GpuRule) -> Vec<Kind> {
    let mig = gpu.table.is_some();
    Kind::ALL.into_iter().filter(|kind| (*kind == Kind::Mig) == mig && rule.kinds.contains(kind)).collect()
}

/// The mode that all allowed kinds need: `None` if no kind is allowed, `Some(None)` if there are kinds for either mode.
#[expect(clippy::option_option, reason = "no kind at all is another thing than kinds of both modes")]
fn wanted_mode(rule: &GpuRule) -> Option<Option<bool>> {
    let mig = rule.kinds.contains(&Kind::Mig);
    let other = rule.kinds.iter().any(|kind| *kind != Kind::Mig);
    match (mig, other) {
        (false, false) => None,
        (true, true) => Some(None),
        (mig, _) => Some(Some(mig)),
    }
}

fn join(kinds: &[Kind]) -> String {
    kinds.iter().map(|kind| kind.as_str()).collect::<Vec<_>>().join(", ")
}
