//! What the agent knows of its node, and what follows from it: the plan, the offer, the status. It has no I/O and no
//! clock: events come in with the time, and a [`Decision`] comes out.

mod advertise;
mod blocked;
mod daemons;
mod decide;
mod events;
mod foreign;
mod gfd;
mod health;
mod holders;
mod illness;
mod lists;
mod names;
mod offering;
mod orders;
mod orphaned;
mod outcomes;
mod pause;
mod pods;
mod reach;
mod replica;
mod restore;
mod retry;
mod rules;
mod share;
mod status;
mod takeover;
mod topology;
mod under_way;
mod unresponsive;
mod upgrade;
mod usage;
mod view;
mod xids;

#[cfg(test)]
mod bad_spec_tests;
#[cfg(test)]
mod churn_tests;
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

pub use advertise::{Allocatable, DevicesByName};
pub use daemons::{Daemon, Daemons, WantedDaemon};
pub use decide::{Decision, Grant, Kept, ListedDevice, ShareGrant};
pub use events::NodeEvent;
pub use foreign::Foreign;
pub use holders::{Held, Holders, Recorded};
pub use illness::Ill;
pub use orders::Reply;
pub use pause::Pause;
pub use pods::{NodePod, NodePods};
pub use restore::{Profiles, Restored};
pub(crate) use share::{Shares, device_id as share_device, gpu_of as share_gpu};
pub(crate) use status::unserved;
pub use takeover::Predecessor;
pub use unresponsive::Spared;
pub use upgrade::LetGo;
pub use xids::{XidList, Xids};

use crate::access::AccessGrant;
use crate::gpu::{Gpu, GpuError, GpuInstance, Silent};
use crate::processes::Usage;
use advertise::Advertised;
use health::{Health, Neighbour};
use holders::Account;
use kerf_core::closeness::Closeness;
use kerf_core::contract::NodePolicy;
use kerf_core::gfd_labels::GfdLabels;
use kerf_core::ledger::{Ledger, Limits};
use kerf_core::mig::{ComputeInstance, Instance};
use kerf_core::names::{DeviceId, GpuUuid, PodKey, PodUid, SliceId};
use kerf_core::offer::Bindings;
use kerf_core::resource::ResourceName;
use retry::Retries;
use share::Share;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use under_way::UnderWay;

/// The agent's settings for decisions, from its flags.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The folder of the MPS daemons. Without it no daemon runs, and MPS shares are only accounted for.
    pub mps: Option<PathBuf>,
    /// Whether device nodes and CDI specifications are made.
    pub access: bool,
    /// Whether the agent detects conflicting managers of the node's GPUs.
    pub others: bool,
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
        let (mps, access, others, pause_clients) = (None, false, false, true);
        Self { mps, access, others, pause_clients, recover_after, xids, probe, limits }
    }
}

/// A step whose failures are counted for its retries.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Task {
    Switch(GpuUuid),
    Create(SliceId),
    Destroy(GpuUuid, Instance, Option<ComputeInstance>),
}

/// Why no legal step can reach a wanted slice.
#[derive(Debug, Clone)]
struct Obstruction {
    text: String,
    /// Whether the slice has failed, because this has lasted too long.
    is_final: bool,
}

/// Everything that the agent knows of its node.
#[derive(Debug, Default)]
pub struct Node {
    ledger: Ledger,
    housekeeping: orders::Housekeeping,
    takeover: takeover::TakeOver,
    gpus: Vec<Gpu>,
    /// How close the GPUs are to each other.
    closeness: Closeness,
    shares: BTreeMap<DeviceId, Share>,
    /// The slices of MIG devices, now or earlier. They distinguish a slice that is being removed from an unknown one.
    origins: BTreeMap<DeviceId, SliceId>,
    account: Account,
    /// Bound pods that request names of kerf; `None` until the API server has listed them.
    pods: Option<NodePods>,
    /// Pods that were deleted while their containers may have run, and that the kubelet still lists.
    cut_off: BTreeMap<PodKey, PodUid>,
    /// Devices of such pods, and of pods whose end was not seen.
    lingered: orphaned::Lingered,
    /// Devices that this process has made while the kubelet's checkpoint was never read: no pod held them before.
    made: BTreeSet<DeviceId>,
    advertised: Advertised,
    bindings: Bindings,
    retries: Retries<Task>,
    under_way: UnderWay,
    attempts: Vec<under_way::Attempt>,
    obstacles: BTreeMap<SliceId, Obstruction>,
    /// Failures to serve slices that exist.
    serving: Retries<SliceId>,
    unserved: BTreeMap<SliceId, Obstruction>,
    health: Health,
    settings: Settings,
    ills: Vec<illness::Illness>,
    daemons: Daemons,
    generations: BTreeMap<GpuUuid, u64>,
    /// What was last wrong with each MPS daemon; removed once it serves.
    daemon_ills: BTreeMap<GpuUuid, String>,
    /// GPUs whose pods got an Event for their MPS server; removed once its daemon serves again.
    told_lost: BTreeSet<GpuUuid>,
    reachable: BTreeMap<DeviceId, Result<AccessGrant, String>>,
    usage: Usage,
    /// The pods that held something of each GPU when the usage was measured.
    served: BTreeMap<GpuUuid, BTreeSet<PodUid>>,
    /// Conflicting managers of the GPUs; `None` until they were looked for, and meanwhile nothing new is cut or
    /// offered.
    others: Option<Vec<String>>,
    /// The evidence for a driver upgrade; `None` if there is none.
    upgrade: Option<String>,
    pausing: pause::Pausing,
    /// When the last conflicting manager disappeared.
    alone_since: Option<Instant>,
    /// Whether the holders were ever known.
    knew: bool,
    /// Whether everything that an offer needs was ever known. Before that, listed devices go to their holders only.
    grants: bool,
    /// Whether names were ever registered.
    named: bool,
    /// The names that the kubelet has accepted since its last start.
    registered: BTreeSet<ResourceName>,
    restored: Restored,
    recovering: Option<Instant>,
    /// Why the checkpoint could not be written, and when the next try is.
    unrecorded: Option<(String, Instant)>,
    notes: Vec<NodeEvent>,
    told: Vec<NodeEvent>,
    /// The GPUs that the node had when an earlier process ended, until they are seen or given up.
    awaited: Profiles,
    /// How long the agent waits for them.
    silent_until: Option<Instant>,
    /// GPUs that have never answered this process, by index.
    silent: Silent,
    /// All GPUs that were ever seen, also by an earlier process.
    had: BTreeSet<GpuUuid>,
}

impl Node {
    /// A node of which nothing is known yet.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self { settings, ..Self::default() }
    }

    /// Takes the policy in the GpuNode. If it cannot be read, the last one stays in force.
    pub fn on_policy(&mut self, policy: Result<NodePolicy, String>) {
        match policy {
            Ok(policy) => {
                self.health.policy = Neighbour::Well;
                self.follow_policy(policy);
            }
            Err(error) => {
                tracing::error!(%error, "the GpuNode's policy cannot be read; the last one stays in force");
                self.health.policy = Neighbour::Ill(format!("the policy cannot be read: {error}"));
            }
        }
    }

    /// Takes an observation of the GPUs.
    pub fn on_observed(&mut self, observed: Result<Vec<Gpu>, GpuError>) {
        match observed {
            Ok(mut gpus) => {
                // A GPU that does not answer keeps its known state, which has what was made since it was last seen.
                for gpu in gpus.iter_mut().filter(|gpu| gpu.fault.is_some()) {
                    if let Some(known) = self.gpus.iter().find(|known| known.uuid == gpu.uuid) {
                        *gpu = Gpu { fault: gpu.fault.take(), ..known.clone() };
                    }
                }
                self.gpus = gpus;
                self.closeness = Closeness::of(&self.gpu_statuses());
                self.look_at_instances();
                self.look_at_attempts();
                self.had.extend(self.gpus.iter().map(|gpu| gpu.uuid.clone()));
                self.forget_ills_of_gone();
                self.health.nvml = Neighbour::Well;
                self.under_way.see();
                self.note_modes();
                self.advertised.serve(&self.resource_names());
            }
            Err(error) => self.health.nvml = Neighbour::Ill(error.to_string()),
        }
    }

    /// Takes the kubelet's list of holders.
    pub fn on_holders(&mut self, holders: Result<Holders, String>) {
        match holders {
            Ok(holders) => {
                let before = self.held_devices();
                self.account.take(holders, self.pods.as_ref());
                self.health.pod_resources = Neighbour::Well;
                self.forget_processes(before);
            }
            // The last list stays in force, because a failed request says nothing about holders.
            Err(error) => self.health.pod_resources = Neighbour::Ill(error),
        }
    }

    pub fn on_allocatable(&mut self, allocatable: Allocatable) {
        self.advertised.saw(allocatable);
    }

    /// Notes that a container is being given these devices.
    pub fn on_allocated(&mut self, name: ResourceName, devices: Vec<DeviceId>, now: Instant) {
        self.account.allocated(name, devices, now);
    }

    /// Takes the bound pods that request names of kerf.
    pub fn on_pods(&mut self, pods: NodePods) {
        // On the first list no pod counts as just ended: pods of an earlier process ended unobserved, or hold nothing
        // any more.
        let before = if self.pods.is_some() { self.held_devices() } else { Vec::new() };
        self.account.take_pods(Some(&pods));
        self.pods = Some(pods);
        self.health.pods = Neighbour::Well;
        self.forget_processes(before);
    }

    /// Notes that a pod of this node is gone or finished.
    pub fn on_pod_left(&mut self, pod: PodKey, uid: PodUid, now: Instant) {
        self.housekeeping.ended.insert(uid.clone());
        self.account.left(pod, uid, now);
    }

    /// Takes the conflicting managers of the node's GPUs.
    pub fn on_others(&mut self, others: Vec<String>, now: Instant) {
        // The last list of holders may lack what they have allocated until now, so a newer one is needed.
        if others.is_empty() && self.others_manage() {
            self.alone_since = Some(now);
        }
        let contested = others.iter().map(|text| NodeEvent::Contested { text: text.clone() }).take(1);
        self.tell_lasting(contested.collect(), |note| matches!(note, NodeEvent::Contested { .. }));
        self.others = Some(others);
    }

    /// Takes the names that are registered with the kubelet once all are, or why not all are.
    pub fn on_registration(&mut self, result: Result<BTreeSet<ResourceName>, String>) {
        self.advertised.forget_acknowledgements();
        (self.registered, self.health.registration) = match result {
            Ok(names) => (names, Neighbour::Well),
            Err(error) => (BTreeSet::new(), Neighbour::Ill(error)),
        };
    }

    /// The names that must be registered; empty until NVML has been read. No name is removed while the agent runs.
    #[must_use]
    pub fn resource_names(&self) -> BTreeSet<ResourceName> {
        let rules = self.gpus.iter().map(|gpu| (gpu, self.rule(gpu)));
        // Pods have these names from before the node's GPUs or kerf's version changed.
        let held = self.account.devices().map(|(_, held)| held.name);
        let here = self.desired().iter().filter(|wanted| self.gpu(&wanted.gpu).is_some());
        let reserved = here.filter_map(|wanted| Some((wanted.reservation.as_ref()?.resource, wanted.shape)));
        let reserved =
            reserved.filter(|(name, shape)| names::is_kept_by(*name, *shape)).map(|(name, _)| name);
        names::resource_names(rules).into_iter().chain(held).chain(reserved).collect()
    }

    /// The node labels that the agent owns; `None` removes a label. Empty until NVML has been read, because pending
    /// pods need the labels of an earlier process, and an earlier status does not show the current mode.
    #[must_use]
    pub fn labels(&self) -> BTreeMap<String, Option<String>> {
        if self.gpus.is_empty() {
            return BTreeMap::new();
        }
        names::labels(self.gpus.iter().map(|gpu| (gpu, rules::kinds(gpu, &self.rule(gpu)))))
    }

    /// The values of NVIDIA's labels. Empty until it is known that no other manager serves the GPUs, because that one
    /// labels the node.
    #[must_use]
    pub fn gfd_labels(&self) -> GfdLabels {
        if self.is_contested() { GfdLabels::new() } else { self.told_as_gfd_does() }
    }

    #[must_use]
    pub fn find(&self, gpu: &GpuUuid, instance: Instance) -> Option<&GpuInstance> {
        self.gpu(gpu)?.instances.iter().find(|i| i.instance == instance)
    }

    /// What `/readyz` shows: NVML, the kubelet, the GpuNode.
    #[must_use]
    pub fn readiness(&self) -> [(&'static str, bool); 3] {
        let kubelet = self.health.registration.is_well() && self.health.pod_resources.is_well();
        [("nvml", self.health.nvml.is_well()), ("kubelet", kubelet), ("spec", self.health.policy.is_well())]
    }
}
