//! A node with its churn: the leader's upkeep, random demands, and the check whether the node has settled.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use kerf_core::contract::{
    GpuNodeStatus, GpuRule, GpuSelector, ModeChange, MpsRule, NodePolicy, Shape, TimeSlicingRule,
};
use kerf_core::kind::Kind;
use kerf_core::names::GpuUuid;
use kerf_nvml_mock::{MockState, Process};
use kube::Client;

use super::Settings;
use super::act::Act;
use super::calls::Calls;
use super::daemon::Daemon;
use super::dice::Dice;
use super::guard::{self, Guard, Held};
use super::leader::Leader;
use super::node::{CUT, Node, SHARED, SWITCHED};
use super::rest::{self, Look};
use super::sight::Sight;
use crate::control_plane::ControlPlane;
use crate::mps::MpsStandIn;
use crate::stand_in_leader::StandInLeader;

/// Interval of the leader's rounds.
const ROUND_INTERVAL: Duration = Duration::from_millis(15);

const DEMAND_INTERVAL: Duration = Duration::from_millis(120);

/// GPU memory in MiB of a process of the churn, which is less than the smallest share.
const USED_MIB: u64 = 256;

/// The first process id of the churn.
const FIRST_PID: u32 = 100_000;

pub(super) struct Scene {
    pub(super) node: Node,
    pub(super) leader: Leader,
    pub(super) daemon: Daemon,
    pub(super) dice: Dice,
    pub(super) guard: Guard,
    pub(super) sight: Sight,
    /// The acts that make the agent call each function.
    pub(super) calls: Arc<Calls>,
    pub(super) period: Duration,
    pub(super) lenient: bool,
    /// Acts that cannot be done yet.
    pub(super) due: Vec<Act>,
    uuids: Vec<GpuUuid>,
    processes: BTreeMap<String, u32>,
    last_demand: Instant,
    /// How often the agent was found dead.
    pub(super) deaths: u32,
    number: u32,
    /// Faults of the agent: it exited by itself, or the node never settled.
    pub(super) faults: Vec<String>,
}

impl Scene {
    /// Starts a node of this name, and waits until its agent serves.
    pub(super) async fn start(
        plane: &ControlPlane,
        client: Client,
        name: &str,
        settings: &Settings,
        calls: Arc<Calls>,
        leader: StandInLeader,
    ) -> anyhow::Result<Self> {
        let period = settings.period;
        let node = Node::start(plane, name, period, &leader.agent_flags()).await?;
        let sight = Sight::new(&client, name);
        let mut status = sight.status.clone();
        let serving = status.wait_for(GpuNodeStatus::is_ready);
        let serving = tokio::time::timeout(Duration::from_mins(1), serving).await;
        serving
            .with_context(|| format!("the agent does not serve; see {}", node.agent_log().display()))??;
        let guard = Guard::over(Arc::clone(&node.kubelet), node.state_file());
        let uuids: Vec<_> = node.state()?.gpus.iter().map(|gpu| GpuUuid::new(&gpu.uuid)).collect();
        let shared = uuids.get(SHARED as usize).cloned().context("no such GPU")?;
        let daemon = Daemon::new(MpsStandIn::below(node.mps_dir()), shared);
        let leader = Leader::new(&client, name, Arc::new(leader), policy(true));
        let number: u64 = name.bytes().fold(0, |sum, byte| sum * 31 + u64::from(byte));
        Ok(Self {
            node,
            leader,
            daemon,
            dice: Dice::new(settings.seed.wrapping_add(number)),
            guard,
            sight,
            calls,
            period,
            lenient: settings.lenient,
            due: Vec::new(),
            uuids,
            processes: BTreeMap::new(),
            last_demand: Instant::now(),
            deaths: 0,
            number: 0,
            faults: Vec::new(),
        })
    }

    /// A new number for each call.
    pub(super) fn next_number(&mut self) -> u32 {
        self.number += 1;
        self.number
    }

    pub(super) fn uuid(&self, gpu: u32) -> anyhow::Result<GpuUuid> {
        self.uuids.get(gpu as usize).cloned().context("no such GPU")
    }

    /// The newest status that the agent published.
    pub(super) fn status(&self) -> GpuNodeStatus {
        self.sight.status.borrow().clone()
    }

    pub(super) async fn stop(self, say: &impl Fn(&str)) -> anyhow::Result<()> {
        let (name, refused) = (&self.node.name, self.leader.refused);
        say(&format!(
            "{name} ends; the agent died {} times, the kubelet refused {refused} pods",
            self.deaths
        ));
        self.node.stop().await
    }

    /// One round of the leader. A `busy` node also gets a random demand if it is time for one.
    pub(super) async fn tick(&mut self, busy: bool) -> anyhow::Result<()> {
        if busy && self.last_demand.elapsed() >= DEMAND_INTERVAL {
            self.last_demand = Instant::now();
            self.demand().await?;
        }
        self.act_when_due().await?;
        let pods = self.sight.pods.borrow().clone();
        self.leader.upkeep(&pods).await?;
        self.run_processes()?;
        tokio::time::sleep(ROUND_INTERVAL).await;
        Ok(())
    }

    /// Restarts the agent if it has ended. Returns whether it had.
    pub(super) fn revive(&mut self) -> anyhow::Result<bool> {
        let Some(end) = self.node.agent_ended()? else { return Ok(false) };
        self.deaths += 1;
        self.faults.extend(Some(end).filter(|end| !end.is_empty()));
        self.node.restart_agent()?;
        Ok(true)
    }

    /// Switches the MIG mode of its GPU by the policy. No pod may use the GPU.
    pub(super) fn switch_mode(&mut self) {
        self.leader.policy = policy(!self.wants_mig());
    }

    /// Whether the policy enables MIG mode on the switched GPU.
    pub(super) fn wants_mig(&self) -> bool {
        self.leader.policy == policy(true)
    }

    /// Gives each running pod with a time slice a process on the GPU.
    fn run_processes(&mut self) -> anyhow::Result<()> {
        let pods = self.sight.pods.borrow().clone();
        let desired = self.leader.desired();
        let sliced = desired.iter().filter(|w| matches!(w.shape, Shape::TimeSlicing { .. }));
        let running: BTreeMap<String, String> = sliced
            .filter_map(Leader::tenant_of)
            .filter_map(|name| Some((name.to_owned(), pods.get(name)?)))
            .filter(|(_, pod)| pod.phase == "Running")
            .map(|(name, pod)| (name, pod.uid.to_string()))
            .collect();
        let gone: Vec<String> =
            self.processes.keys().filter(|name| !running.contains_key(*name)).cloned().collect();
        let new: Vec<_> =
            running.into_iter().filter(|(name, _)| !self.processes.contains_key(name)).collect();
        if gone.is_empty() && new.is_empty() {
            return Ok(());
        }
        for (name, uid) in new {
            let pid = self.processes.values().max().map_or(FIRST_PID, |last| last + 1);
            self.node.show_process(pid, &uid)?;
            self.processes.insert(name, pid);
        }
        for name in gone {
            self.processes.remove(&name);
        }
        let processes = self.processes.values().map(|pid| Process::on_gpu(*pid, SHARED, USED_MIB));
        let processes = processes.collect();
        self.node.control(|control| control.processes = processes)
    }

    /// The differences to a settled node; empty if the node has settled.
    pub(super) fn complaints(&self) -> anyhow::Result<Vec<String>> {
        let (status, desired) = (self.status(), self.leader.desired());
        let state = self.node.state()?;
        let look = Look {
            desired: &desired,
            leader: &self.leader,
            status: &status,
            state: &state,
            held: guard::held(&self.node.kubelet),
            offered: self.node.kubelet.healthy_devices(),
            cdi: rest::specified(&self.node.cdi_dir()),
        };
        let mut complaints = look.complaints();
        complaints.extend(self.leader.unsettled(&self.sight.pods.borrow()));
        if !self.due.is_empty() {
            complaints.push(format!("{:?} is still to be done", self.due));
        }
        complaints.extend(self.wrong_mode(&state, &look.held));
        if complaints.is_empty() {
            complaints = self.daemon_complaints(&state)?;
        }
        Ok(complaints)
    }

    /// The mode cannot change while a pod holds a device of the GPU, even if the agent has not reported that
    /// yet: right before the agent was killed, the kubelet may have allocated the device of another slice of
    /// the same name.
    fn wrong_mode(&self, state: &MockState, held: &Held) -> Option<String> {
        let wanted = self.wants_mig();
        let gpu = state.gpus.iter().find(|gpu| gpu.index == SWITCHED)?;
        let mut devices = gpu.instances.iter().flat_map(|i| &i.compute).map(|c| c.uuid.as_str());
        let is_held = devices.any(|device| held.contains_key(device));
        (gpu.mig.current != wanted && !is_held)
            .then(|| format!("the MIG mode of {} should be {wanted}", gpu.uuid))
    }
}

/// The node's policy: one GPU also has compute instances, and `mig` sets the mode of another.
fn policy(mig: bool) -> NodePolicy {
    let select = |gpu: u32| GpuSelector { indexes: vec![gpu], ..GpuSelector::default() };
    let cut = GpuRule { select: select(CUT), compute_instances: true, ..GpuRule::default() };
    let kinds = vec![if mig { Kind::Mig } else { Kind::TimeSlicing }];
    let mode_change = ModeChange::WithoutReset;
    let switched = GpuRule { select: select(SWITCHED), kinds, mode_change, ..GpuRule::default() };
    let time_slicing = TimeSlicingRule { memory_limits: true, ..TimeSlicingRule::default() };
    let mps = MpsRule { exclusive: true, ..MpsRule::default() };
    let shared = GpuRule { select: select(SHARED), time_slicing, mps, ..GpuRule::default() };
    NodePolicy { gpus: vec![cut, switched, shared], ..NodePolicy::default() }
}
