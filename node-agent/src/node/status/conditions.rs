//! The conditions in the status.

use crate::node::conflicts::Conflicts;
use crate::node::facts::Facts;
use crate::node::health::Health;
use crate::node::recovery::Recovery;
use crate::node::steps::Steps;
use kerf_core::contract::{Condition, ConditionStatus, GpuStatus};

/// How many slices a condition lists by name.
const NAMES_LIMIT: usize = 3;

pub(super) struct Conditions<'a> {
    pub(super) facts: &'a Facts,
    pub(super) health: &'a Health,
    pub(super) conflicts: &'a Conflicts,
    pub(super) recovery: &'a Recovery,
    pub(super) steps: &'a Steps,
}

impl Conditions<'_> {
    pub(super) fn all(&self, gpus: &[GpuStatus]) -> Vec<Condition> {
        vec![
            self.ready(),
            self.gpus_healthy(gpus),
            self.spec_reached(),
            self.uncontested(),
            self.allocations_known(),
            condition(
                Condition::CONNECTED,
                self.health.leader_trouble(),
                ("LeaderConnected", "the extender's leader is connected"),
            ),
        ]
    }

    fn ready(&self) -> Condition {
        let trouble = self.conflicts.upgrade_trouble().or_else(|| self.contested());
        let trouble = trouble.or_else(|| self.health.trouble());
        let lost = || self.facts.reservations.takeover_trouble().map(|text| ("LedgerLost".to_owned(), text));
        let trouble = trouble.or_else(lost);
        condition(Condition::READY, trouble, ("Serving", "all resource names are registered"))
    }

    fn gpus_healthy(&self, gpus: &[GpuStatus]) -> Condition {
        let ill = gpus.iter().filter_map(|gpu| Some(format!("GPU {}: {}", gpu.index, gpu.message.as_ref()?)));
        let unresponsive = self.facts.inventory.unresponsive().iter();
        let unresponsive =
            unresponsive.map(|(index, e)| format!("GPU {index}: it has not answered yet: {e}"));
        let ill: Vec<_> = ill.chain(unresponsive).collect();
        let ill = (!ill.is_empty()).then(|| ("GpuUnhealthy".to_owned(), ill.join("; ")));
        condition(Condition::GPUS_HEALTHY, ill, ("Healthy", "every GPU answers"))
    }

    fn spec_reached(&self) -> Condition {
        let unwritten = self.recovery.write_trouble().map(str::to_owned);
        let missed: Vec<_> = unwritten.into_iter().chain(self.steps.missed()).take(NAMES_LIMIT).collect();
        let missed = (!missed.is_empty()).then(|| ("OutOfReach".to_owned(), missed.join("; ")));
        let well = ("Reached", "every desired slice exists or is being made");
        condition(Condition::SPEC_REACHED, missed, well)
    }

    fn uncontested(&self) -> Condition {
        let well = ("Alone", "no other program manages the node's GPUs");
        let mut uncontested = condition(Condition::UNCONTESTED, self.contested(), well);
        if self.conflicts.is_unclear() {
            uncontested.status = ConditionStatus::Unknown;
        }
        uncontested
    }

    fn contested(&self) -> Option<(String, String)> {
        self.conflicts.text().map(|text| ("Contested".to_owned(), text))
    }

    fn allocations_known(&self) -> Condition {
        let unread = self.facts.account.unread();
        let unread = unread.map(|error| ("CheckpointUnreadable".to_owned(), error.to_owned()));
        let well = ("CheckpointRead", "the kubelet's checkpoint lists the holders");
        condition(Condition::ALLOCATIONS_KNOWN, unread, well)
    }
}

/// Builds a condition that has `well`'s reason and message, or those of the trouble.
fn condition(kind: &str, trouble: Option<(String, String)>, well: (&str, &str)) -> Condition {
    let status = if trouble.is_some() { ConditionStatus::False } else { ConditionStatus::True };
    let (reason, message) = trouble.unwrap_or_else(|| (well.0.to_owned(), well.1.to_owned()));
    Condition { kind: kind.to_owned(), status, reason, message, last_transition_time: String::new() }
}
