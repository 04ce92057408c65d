//! What is asked of a node: at random for the churn, and on purpose so that the agent makes a certain call.

use kerf_core::contract::Shape;
use kerf_core::kind::Kind;
use kerf_core::packing::Source;
use kerf_core::resource::ResourceName;
use kerf_nvml_mock::GpuState;

use super::node::{AMPERE, CUT, SHARED, SWITCHED};
use super::places;
use super::scene::Scene;

/// What a pod gets.
#[derive(Debug, Clone, Copy)]
enum What {
    Instance,
    Part,
    Share(Kind),
}

/// Pods on a node at most.
const MOST_TENANTS: usize = 9;

/// Something that makes the agent call NVML, or say words to an MPS daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Act {
    /// A GPU instance is cut, where idle ones have to go for it if there are any.
    Cut,
    /// A compute instance of a shared GPU instance is cut.
    Part,
    /// A pod gets an MPS share of a GPU.
    Share,
    /// The servers of the MPS daemon get into fault.
    Break,
    /// A pod gets a time slice of a GPU.
    Slice,
    /// Nothing: the agent looks at its GPUs by itself.
    Rest,
    /// The agent is killed and starts again.
    Start,
    /// A GPU's MIG mode is switched.
    Switch,
}

impl Act {
    /// Those of the GPUs that MIG cuts, in such an order that at the look and at the start there is something to see.
    pub(super) const OF_CUTS: [Self; 5] = [Self::Cut, Self::Part, Self::Rest, Self::Start, Self::Switch];

    /// Those of the GPU that is shared, so that MPS ends.
    pub(super) const OF_SHARES: [Self; 3] = [Self::Share, Self::Break, Self::Slice];
}

impl Scene {
    /// Asks for it. It is done as soon as it can be.
    pub(super) fn ask(&mut self, act: Act) {
        self.due.push(act);
    }

    /// Whether all that was asked for is done.
    pub(super) fn asks_nothing(&self) -> bool {
        self.due.is_empty()
    }

    /// Does what is asked for and can be done, and makes way for the rest.
    pub(super) async fn do_what_is_due(&mut self) -> anyhow::Result<()> {
        for act in std::mem::take(&mut self.due) {
            if !self.try_to(act).await? {
                self.due.push(act);
            }
        }
        Ok(())
    }

    /// Does it, or makes way for it. Whether it is done.
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

    /// A random demand.
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
                // What is asked for on purpose is not to be kept from its GPU.
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

    /// Where it could go on the GPU, and its resource name.
    fn find(&mut self, gpu: u32, what: What) -> anyhow::Result<Option<(GpuState, Shape, String)>> {
        let state = self.gpu(gpu)?;
        let taken = places::taken(&state, self.leader.promised(&state.uuid), &self.status());
        let found = match what {
            // Its policy goes ahead of its mode.
            What::Instance if gpu == SWITCHED && !self.wants_mig() => None,
            What::Instance if state.mig.current => places::instance(&state, &taken, &mut self.dice),
            What::Part if state.mig.current => places::part(&state, &taken, &mut self.dice),
            What::Share(kind) if !state.mig.current => places::share(&state, &taken, kind, &mut self.dice),
            _ => None,
        };
        Ok(found.map(|(shape, name)| (state, shape, name)))
    }

    /// Makes a pod that gets something new of the GPU, or makes room for it. Whether it is done.
    async fn rent_on(&mut self, gpu: u32, what: What) -> anyhow::Result<bool> {
        let uuid = self.uuid(gpu)?;
        if let Some((state, shape, name)) = self.find(gpu, what)? {
            let (idle, promised) = (self.leader.idle(), self.leader.promised(&state.uuid));
            let replaced = places::in_the_way(&state, &idle, &promised, shape);
            self.leader.rent(&uuid, shape, &name, Source::Cut(replaced)).await?;
            return Ok(true);
        }
        match what {
            // All of the other kind have to go.
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
        // Its policy goes ahead of its mode.
        let is_allowed = self.wants_mig() || slice.gpu != self.uuid(SWITCHED)?;
        let instance = instance.filter(|_| is_allowed);
        let Some(instance) = instance.filter(|_| !self.due.contains(&Act::Switch)) else { return Ok(()) };
        let name = ResourceName::Mig(instance.profile).to_string();
        self.leader.rent(&slice.gpu, slice.shape, &name, Source::Idle(slice.id)).await
    }

    /// Deletes a pod, of this GPU or any.
    pub(super) fn evict_one(&mut self, gpu: Option<u32>) -> anyhow::Result<()> {
        let all = self.tenants_of(gpu)?;
        if let Some(name) = self.dice.pick(&all) {
            self.leader.evict(name);
        }
        Ok(())
    }

    /// Deletes all pods of a GPU. Whether there are none.
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
