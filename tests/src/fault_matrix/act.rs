//! Acts on a node: random ones for the churn, and chosen ones that make the agent call a certain function.

use kerf_core::contract::Shape;
use kerf_core::kind::Kind;
use kerf_core::packing::Source;
use kerf_core::resource::ResourceName;
use kerf_nvml_mock::GpuState;

use super::node::{AMPERE, CUT, SHARED, SWITCHED};
use super::places;
use super::scene::Scene;

/// The kind of slice that a pod gets.
#[derive(Debug, Clone, Copy)]
enum What {
    Instance,
    Part,
    Share(Kind),
}

/// The largest number of pods on a node.
const MOST_TENANTS: usize = 9;

/// An act that makes the agent call NVML or send commands to an MPS daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Act {
    /// Cuts a GPU instance, in place of idle ones if there are any.
    Cut,
    /// Cuts a compute instance of a shared GPU instance.
    Part,
    /// Gives a pod an MPS share of a GPU.
    Share,
    /// Puts the servers of the MPS daemon into fault.
    Break,
    /// Gives a pod a time slice of a GPU.
    Slice,
    /// Does nothing; the agent probes its GPUs by itself.
    Rest,
    /// Kills the agent and starts it again.
    Start,
    /// Switches a GPU's MIG mode.
    Switch,
}

impl Act {
    /// Acts on the GPUs with MIG. Slices come first, so that the probe and the start find some.
    pub(super) const OF_CUTS: [Self; 5] = [Self::Cut, Self::Part, Self::Rest, Self::Start, Self::Switch];

    /// Acts on the shared GPU. The time slice comes last, so that MPS ends.
    pub(super) const OF_SHARES: [Self; 3] = [Self::Share, Self::Break, Self::Slice];
}

impl Scene {
    /// Queues an act. It is done as soon as it can be.
    pub(super) fn ask(&mut self, act: Act) {
        self.due.push(act);
    }

    pub(super) fn asks_nothing(&self) -> bool {
        self.due.is_empty()
    }

    /// Does every queued act that can be done, and frees slices for the rest.
    pub(super) async fn act_when_due(&mut self) -> anyhow::Result<()> {
        for act in std::mem::take(&mut self.due) {
            if !self.try_to(act).await? {
                self.due.push(act);
            }
        }
        Ok(())
    }

    /// Does the act, or frees slices for it. Returns whether it is done.
    async fn try_to(&mut self, act: Act) -> anyhow::Result<bool> {
        match act {
            Act::Rest => Ok(true),
            Act::Start => self.node.restart_agent().map(|()| true),
            Act::Cut => {
                let gpus = [CUT, AMPERE];
                let gpu = gpus[self.dice.below(gpus.len())];
                self.rent_on(gpu, What::Instance).await
            }
            Act::Part => self.rent_on(CUT, What::Part).await,
            Act::Share => self.rent_on(SHARED, What::Share(Kind::Mps)).await,
            Act::Slice => self.rent_on(SHARED, What::Share(Kind::TimeSlicing)).await,
            Act::Break if self.mps_holders().is_empty() => {
                if !self.due.contains(&Act::Share) {
                    self.ask(Act::Share);
                }
                Ok(false)
            }
            Act::Break => self.break_servers().map(|()| true),
            Act::Switch if self.clear(SWITCHED)? => {
                self.switch_mode();
                Ok(true)
            }
            Act::Switch => Ok(false),
        }
    }

    /// Creates or deletes a random pod.
    pub(super) async fn demand(&mut self) -> anyhow::Result<()> {
        let full = self.leader.tenants().count() >= MOST_TENANTS;
        match self.dice.below(10) {
            0..=3 if !full => {
                let gpus = [CUT, SWITCHED, AMPERE, SHARED];
                let gpu = gpus[self.dice.below(gpus.len())];
                let kinds = [Kind::Mps, Kind::TimeSlicing, Kind::Whole];
                let what = match gpu {
                    SHARED => What::Share(kinds[self.dice.below(kinds.len())]),
                    CUT if self.dice.below(3) == 0 => What::Part,
                    _ => What::Instance,
                };
                // A random pod must not occupy the GPU of a queued act.
                let is_wanted = match gpu {
                    SHARED => self.due.iter().any(|act| matches!(act, Act::Share | Act::Slice | Act::Break)),
                    SWITCHED => self.due.contains(&Act::Switch),
                    _ => false,
                };
                if !is_wanted && self.find(gpu, what)?.is_some() {
                    self.rent_on(gpu, what).await?;
                }
                Ok(())
            }
            4..=5 if !full => self.rent_idle().await,
            _ => self.evict_one(None),
        }
    }

    /// A place on the GPU for this kind of slice, and its resource name.
    fn find(&mut self, gpu: u32, what: What) -> anyhow::Result<Option<(GpuState, Shape, String)>> {
        let state = self.gpu(gpu)?;
        let taken = places::taken(&state, self.leader.reserved_on(&state.uuid), &self.status());
        let found = match what {
            // The policy changes before the mode does, so the GPU may still be in MIG mode although the policy
            // disables it.
            What::Instance if gpu == SWITCHED && !self.wants_mig() => None,
            What::Instance if state.mig.current => places::instance(&state, &taken, &mut self.dice),
            What::Part if state.mig.current => places::part(&state, &taken, &mut self.dice),
            What::Share(kind) if !state.mig.current => places::share(&state, &taken, kind, &mut self.dice),
            _ => None,
        };
        Ok(found.map(|(shape, name)| (state, shape, name)))
    }

    /// Creates a pod with a new slice on the GPU, or frees a place for it. Returns whether it is done.
    async fn rent_on(&mut self, gpu: u32, what: What) -> anyhow::Result<bool> {
        let uuid = self.uuid(gpu)?;
        if let Some((state, shape, name)) = self.find(gpu, what)? {
            let (idle, reserved) = (self.leader.idle(), self.leader.reserved_on(&state.uuid));
            let replaced = places::in_the_way(&state, &idle, &reserved, shape);
            self.leader.rent(&uuid, shape, &name, Source::Cut(replaced)).await?;
            return Ok(true);
        }
        match what {
            // All slices of another kind must go first.
            What::Share(_) => drop(self.clear(gpu)?),
            _ if self.tenants_of(Some(gpu))?.iter().any(|name| self.leader.is_leaving(name)) => {}
            _ => self.evict_one(Some(gpu))?,
        }
        Ok(false)
    }

    async fn rent_idle(&mut self) -> anyhow::Result<()> {
        let idle = self.leader.idle();
        let Some(slice) = self.dice.pick(&idle).cloned() else { return Ok(()) };
        let instance = slice.shape.instance().filter(|_| slice.shape.part().is_none());
        // The policy changes before the mode does, so the GPU may still be in MIG mode although the policy
        // disables it.
        let is_allowed = self.wants_mig() || slice.gpu != self.uuid(SWITCHED)?;
        let instance = instance.filter(|_| is_allowed);
        let Some(instance) = instance.filter(|_| !self.due.contains(&Act::Switch)) else { return Ok(()) };
        let name = ResourceName::Mig(instance.profile).to_string();
        self.leader.rent(&slice.gpu, slice.shape, &name, Source::Idle(slice.id)).await
    }

    /// Deletes a random pod of this GPU, or of any.
    pub(super) fn evict_one(&mut self, gpu: Option<u32>) -> anyhow::Result<()> {
        let all = self.tenants_of(gpu)?;
        if let Some(name) = self.dice.pick(&all) {
            self.leader.evict(name);
        }
        Ok(())
    }

    /// Deletes all pods of a GPU. Returns whether there are none.
    fn clear(&mut self, gpu: u32) -> anyhow::Result<bool> {
        let all = self.tenants_of(Some(gpu))?;
        for name in &all {
            self.leader.evict(name);
        }
        Ok(all.is_empty())
    }

    fn tenants_of(&self, gpu: Option<u32>) -> anyhow::Result<Vec<String>> {
        let Some(gpu) = gpu else { return Ok(self.leader.tenants().cloned().collect()) };
        Ok(self.leader.tenants_of(&self.uuid(gpu)?))
    }

    fn gpu(&self, gpu: u32) -> anyhow::Result<GpuState> {
        let state = self.node.state()?;
        anyhow::Context::context(state.gpus.into_iter().find(|g| g.index == gpu), "no such GPU")
    }
}
