//! The facts about the node, and what follows from them: the plan, the offer, the status. It has no I/O and no
//! clock: events come in with the time, and a [`Decision`] comes out.
//!
//! Each part owns its fields. [`Node`] only orders the calls that touch several parts.
//!
//! ```text
//! facts:  inventory  reservations  slices  account  pods  orphans  measured
//!             │ read by views: placement, occupancy, pod shares, rules, offering, use of GPUs
//!             ▼
//! decide: planning ─▶ steps   lists ─▶ advertised   service ─▶ mps, access   status, report, record
//! ```

mod acceptance;
mod advertise;
mod checkpoint;
mod conflicts;
mod daemons;
mod decide;
mod decision;
mod device_access;
mod device_ids;
mod events;
mod facts;
mod foreign;
mod gfd;
mod gpu_rule;
mod health;
mod holders;
mod illness;
mod inputs;
mod inventory;
mod lists;
mod names;
mod observed;
mod occupancy;
mod occupied;
mod offering;
mod orphaned;
mod pausing;
mod placement;
mod planning;
mod pod_shares;
mod pods;
mod recovery;
mod report;
mod reservations;
mod rules;
mod service;
mod slices;
mod spared;
mod status;
mod steps;
mod topology;
mod unresponsive;
mod usage;
mod xids;

#[cfg(test)]
mod bad_spec_tests;
#[cfg(test)]
mod churn_tests;
#[cfg(test)]
mod for_tests;
#[cfg(test)]
mod gfd_tests;
#[cfg(test)]
mod illness_tests;
#[cfg(test)]
mod init_tests;
#[cfg(test)]
mod offering_tests;
#[cfg(test)]
mod orders_tests;
#[cfg(test)]
mod orphaned_tests;
#[cfg(test)]
mod parts_tests;
#[cfg(test)]
mod pause_tests;
#[cfg(test)]
mod policy_tests;
#[cfg(test)]
mod reboot_churn_tests;
#[cfg(test)]
mod reboot_tests;
#[cfg(test)]
mod shares_tests;
#[cfg(test)]
mod takeover_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod under_way_tests;
#[cfg(test)]
mod upgrade_tests;
#[cfg(test)]
mod usage_tests;
#[cfg(test)]
mod withdrawn_tests;

pub use advertise::{Allocatable, DevicesByName};
pub(crate) use checkpoint::Shares;
pub use checkpoint::{Profiles, Restored};
pub use conflicts::LetGo;
pub use daemons::{Daemon, Daemons, WantedDaemon};
pub use decision::{Decision, DesiredSlices, Grant, ListedDevice, ShareGrant};
pub(crate) use device_ids::{share_device, share_gpu};
pub use events::NodeEvent;
pub use foreign::Foreign;
pub use holders::{Held, Holders, Recorded};
pub use illness::Ill;
pub use inputs::Call;
pub use pausing::Pause;
pub use pods::{NodePod, NodePods};
pub use report::Report;
pub use reservations::{Predecessor, Reply};
pub use spared::Spared;
pub(crate) use status::unserved;
pub use usage::GpuUse;
pub use xids::{XidList, Xids};

use advertise::Advertised;
use conflicts::Conflicts;
use daemons::MpsDaemons;
use device_access::DeviceAccess;
use events::NodeEvents;
use facts::Facts;
use health::Health;
use kerf_core::contract::GpuNodeStatus;
use kerf_core::ledger::{Limits, Saved};
use kerf_core::names::{PodUid, SliceId};
use kerf_core::offer::Bindings;
use pausing::Pausing;
use recovery::Recovery;
use status::StatusBuilder;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use steps::Steps;

/// The agent's settings for decisions, from its flags.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The folder of the MPS daemons. Without it no daemon runs, and MPS shares are only accounted for.
    pub mps: Option<PathBuf>,
    /// Whether device nodes and CDI specifications are made.
    pub access: bool,
    /// Whether the agent detects conflicting managers of the node's GPUs.
    pub detect_conflicts: bool,
    /// Whether DCGM and similar programs are paused if they hold what a step changes.
    pub pause_clients: bool,
    /// How long a GPU must have been quiet after an error before it is used again.
    pub recover_after: Duration,
    pub xids: Xids,
    /// How often everything is observed without an event.
    pub probe: Duration,
    /// How long reservations and requests live.
    pub limits: Limits,
}

impl Default for Settings {
    fn default() -> Self {
        let (recover_after, probe) = (Duration::from_mins(5), Duration::from_secs(30));
        let (xids, limits) = (Xids::default(), Limits::default());
        let (mps, access, detect_conflicts, pause_clients) = (None, false, false, true);
        Self { mps, access, detect_conflicts, pause_clients, recover_after, xids, probe, limits }
    }
}

/// The state of the node, in parts. It orders the calls between them.
#[derive(Debug)]
pub struct Node {
    facts: Facts,
    health: Health,
    conflicts: Conflicts,
    advertised: Advertised,
    /// The pods for which the kubelet may be about to allocate.
    bindings: Bindings,
    steps: Steps,
    recovery: Recovery,
    pausing: Pausing,
    mps: MpsDaemons,
    access: DeviceAccess,
    events: NodeEvents,
    settings: Settings,
}

impl Node {
    /// A node without facts yet.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self {
            facts: Facts::new(settings.limits),
            health: Health::default(),
            conflicts: Conflicts::new(settings.detect_conflicts),
            advertised: Advertised::default(),
            bindings: Bindings::default(),
            steps: Steps::default(),
            recovery: Recovery::default(),
            pausing: Pausing::new(settings.pause_clients),
            mps: MpsDaemons::new(settings.mps.clone()),
            access: DeviceAccess::new(settings.access),
            events: NodeEvents::default(),
            settings,
        }
    }

    /// Takes the checkpoint of an earlier process.
    pub fn restore(&mut self, restored: &Restored, now: Instant) {
        self.recovery.restore(restored, now);
        self.facts.restore(restored, now);
        // Any of the pods may be bound by now, because the checkpoint does not have the marks of Bindings.
        self.bindings.take_status(self.facts.reservations.all().map(|r| (&r.uid, true)));
        self.conflicts.restore(restored);
        self.mps.restore(restored);
        self.pausing.restore(restored);
    }

    /// Whether a checkpoint has the pod's reservation in its current form.
    #[must_use]
    pub fn is_reservation_in(&self, saved: &Saved, uid: &PodUid) -> bool {
        self.facts.reservations.is_in(saved, uid)
    }

    /// The measured use of the GPUs.
    #[must_use]
    pub fn gpu_use(&self) -> GpuUse<'_> {
        self.facts.gpu_use()
    }

    /// The status. `waiting` are slices that are offered once others of their name are allocated.
    fn status(&self, waiting: &BTreeSet<SliceId>) -> GpuNodeStatus {
        let Self { facts, health, advertised, bindings, steps, conflicts, recovery, mps, access, .. } = self;
        StatusBuilder { facts, health, advertised, bindings, steps, conflicts, recovery, mps, access }
            .build(waiting)
    }
}

/// Handles a change of the desired slices: earlier failures of others no longer count, and new slices may need new
/// names.
fn desired_changed(facts: &Facts, steps: &mut Steps, advertised: &mut Advertised) {
    steps.retain(facts.reservations.desired());
    advertised.serve(&facts.resource_names());
}
