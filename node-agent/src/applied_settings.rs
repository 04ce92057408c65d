//! Tracks what the agent has set on GPUs and cgroups besides slices, and whether the checkpoint has it and everything
//! else that a restart needs.
//!
//! A process that is killed loses its memory, and the next one undoes only what the checkpoint lists. So a setting is
//! recorded before it is made, and stays recorded until the agent sees that it is undone, even if it is no longer
//! desired.

use crate::gpu::limits::Limits;
use crate::node::{Daemons, Ill, Profiles, Restored, Shares};
use kerf_core::contract::WantedSlice;
use kerf_core::names::GpuUuid;
use std::collections::BTreeSet;

/// Settings that may be made now, and those that the checkpoint has.
#[derive(Debug)]
pub struct AppliedSettings {
    exclusive: BTreeSet<GpuUuid>,
    limits: Limits,
    /// The GPUs whose MPS daemons are not gone for good, with their compute modes restored.
    daemons: BTreeSet<GpuUuid>,
    recorded: Needs,
}

/// What a restart cannot find out by itself, besides GPU instances. It is recorded before each cut.
#[derive(Debug, PartialEq, Eq)]
struct Needs {
    exclusive: BTreeSet<GpuUuid>,
    limits: Limits,
    lengths: BTreeSet<GpuUuid>,
    paused: BTreeSet<String>,
    wanted: Vec<WantedSlice>,
    shares: Shares,
    ills: Vec<Ill>,
    mig: [BTreeSet<GpuUuid>; 2],
    booted: bool,
    gpus: Profiles,
    plugin: bool,
}

impl Needs {
    fn from_checkpoint(record: &Restored) -> Self {
        // Slices of GPU instances are left out, because each cut records them itself.
        let wanted = record.ledger.desired.slices.iter().filter(|wanted| wanted.shape.instance().is_none());
        Self {
            exclusive: record.exclusive.clone(),
            limits: record.limits.clone(),
            lengths: record.lengths.clone(),
            paused: record.paused.clone(),
            wanted: wanted.cloned().collect(),
            shares: record.shares.clone().unwrap_or_default(),
            ills: record.ills.clone(),
            mig: [record.mig_on.clone(), record.mig_lost.clone()],
            booted: record.booted,
            gpus: record.gpus.clone(),
            plugin: record.plugin,
        }
    }
}

impl AppliedSettings {
    /// Starts with what an earlier process has recorded.
    #[must_use]
    pub fn from_checkpoint(restored: &Restored) -> Self {
        Self {
            exclusive: restored.exclusive.clone(),
            limits: restored.limits.clone(),
            daemons: BTreeSet::new(),
            recorded: Needs::from_checkpoint(restored),
        }
    }

    pub fn on_limits(&mut self, set: Limits) {
        self.limits = set;
    }

    /// Takes the state of the MPS daemons. A daemon that is gone for good has left its GPU in the `DEFAULT` mode.
    pub fn on_daemons(&mut self, daemons: &Daemons) {
        let gone = |gpu: &GpuUuid| self.daemons.contains(gpu) && !daemons.contains_key(gpu);
        self.exclusive.retain(|gpu| !gone(gpu));
        self.daemons = daemons.keys().cloned().collect();
    }

    /// Returns the desired checkpoint, extended by everything that may still be set.
    #[must_use]
    pub fn complete(&self, mut record: Restored) -> Restored {
        record.exclusive.extend(self.exclusive.iter().cloned());
        for (of, limit) in &self.limits {
            // A desired limit takes precedence, because it replaces the one that is set.
            record.limits.entry(of.clone()).or_insert(*limit);
        }
        record
    }

    /// Whether the checkpoint on the disk has what a restart needs of this one.
    #[must_use]
    pub fn is_recorded(&self, record: &Restored) -> bool {
        self.recorded == Needs::from_checkpoint(record)
    }

    /// Records that this checkpoint is on the disk: what it lists may be set from now on.
    pub fn set_recorded(&mut self, record: &Restored) {
        self.exclusive.clone_from(&record.exclusive);
        self.recorded = Needs::from_checkpoint(record);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::Daemon;
    use kerf_core::contract::Shape;
    use kerf_core::units::{MemoryMib, SizeGb};

    fn gpu() -> GpuUuid {
        GpuUuid::new("GPU-0")
    }

    /// A checkpoint with an exclusive GPU and a `limit` on a pod's cgroup.
    fn busy() -> Restored {
        let limits = Limits::from([((gpu(), "/pod1".to_owned()), MemoryMib(4096))]);
        Restored { exclusive: [gpu()].into(), limits, ..Restored::default() }
    }

    #[test]
    fn a_setting_stays_recorded_until_it_is_undone() {
        let mut applied = AppliedSettings::from_checkpoint(&Restored::default());
        applied.set_recorded(&busy());
        applied.on_daemons(&Daemons::from([(gpu(), Daemon::Changing)]));
        applied.on_limits(busy().limits);
        assert_eq!(applied.complete(Restored::default()), busy());
        applied.on_limits(Limits::new());
        assert_eq!(applied.complete(Restored::default()), Restored { limits: Limits::new(), ..busy() });
        applied.on_daemons(&Daemons::new());
        assert_eq!(applied.complete(Restored::default()), Restored::default());
    }

    #[test]
    fn settings_of_an_earlier_process_stay_recorded_before_the_first_report() {
        let mut applied = AppliedSettings::from_checkpoint(&busy());
        assert_eq!(applied.complete(Restored::default()), busy());
        applied.on_daemons(&Daemons::new());
        assert_eq!(applied.complete(Restored::default()), busy(), "the mode is not restored yet");
    }

    #[test]
    fn a_raised_limit_is_recorded_with_its_new_value() {
        let applied = AppliedSettings::from_checkpoint(&busy());
        let raised = Limits::from([((gpu(), "/pod1".to_owned()), MemoryMib(8192))]);
        let wanted = Restored { limits: raised.clone(), ..Restored::default() };
        assert_eq!(applied.complete(wanted).limits, raised);
    }

    #[test]
    fn settings_are_recorded_by_themselves_and_slices_with_their_cuts() {
        let mut applied = AppliedSettings::from_checkpoint(&Restored::default());
        let wanting = |shape: Shape| {
            let mut restored = Restored::default();
            restored.ledger.desired.slices.push(WantedSlice {
                id: "s1".into(),
                gpu: gpu(),
                shape,
                reservation: None,
            });
            restored
        };
        let shared = wanting(Shape::mps(SizeGb(4)));
        let ills = vec![Ill { gpu: gpu(), gi: None, text: "XID 79".to_owned() }];
        let ill = Restored { ills, ..Restored::default() };
        let on = Restored { mig_on: [gpu()].into(), ..Restored::default() };
        let lost = Restored { mig_lost: [gpu()].into(), ..Restored::default() };
        let longer = Restored { lengths: [gpu()].into(), ..Restored::default() };
        let paused = Restored { paused: ["a-label".to_owned()].into(), ..Restored::default() };
        for record in
            [busy(), shared, ill, on, lost, longer, paused, Restored { booted: true, ..Restored::default() }]
        {
            assert!(!applied.is_recorded(&record), "{record:?}");
            applied.set_recorded(&record);
            assert!(applied.is_recorded(&record), "{record:?}");
        }
        applied.set_recorded(&Restored::default());
        let cut = kerf_core::testing::h100_shape("1g.10gb", 0);
        assert!(applied.is_recorded(&wanting(cut)));
    }
}
