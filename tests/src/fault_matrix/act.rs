//! What is asked of a node: at random for the churn, and on purpose so that the agent makes a certain call.

use kerf_core::contract::{Shape, WantedSlice};
use kerf_core::names::SliceId;
use kerf_core::resource::ResourceName;
use kerf_nvml_mock::GpuState;

use super::node::{AMPERE, CUT, SHARED, SWITCHED};
use super::places;
use super::scene::Scene;

/// Pods on a node at most.
const MOST_TENANTS: usize = 9;

/// Something that makes the agent call NVML.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Act {
    /// Nothing: the agent looks at its GPUs by itself.
    Rest,
    /// The agent is killed and starts again.
    Start,
    /// A GPU instance is cut, where idle ones have to go for it if there are any.
    Cut,
    /// A compute instance of a shared GPU instance is cut.
    Part,
    /// A pod gets a share of a GPU.
    Share,
    /// A GPU's MIG mode is switched.
    Switch,
}

impl Act {
    /// All of them.
    pub(super) const ALL: [Self; 6] =
        [Self::Rest, Self::Start, Self::Cut, Self::Part, Self::Share, Self::Switch];
}

impl Scene {
    /// Asks for it.
    pub(super) async fn act(&mut self, act: Act) -> anyhow::Result<()> {
        match act {
            Act::Rest => Ok(()),
            Act::Start => self.node.restart_agent(),
            Act::Cut => {
                let gpus = [CUT, AMPERE];
                let gpu = gpus[self.dice.below(gpus.len())];
                self.rent_on(gpu, false).await
            }
            Act::Part => self.rent_on(CUT, true).await,
            Act::Share => self.rent_on(SHARED, false).await,
            Act::Switch => {
                self.switch_due = true;
                self.clear(SWITCHED).await
            }
        }
    }

    /// A random demand.
    pub(super) async fn demand(&mut self) -> anyhow::Result<()> {
        let full = self.leader.tenants().count() >= MOST_TENANTS;
        match self.dice.below(10) {
            0..=3 if !full => {
                let gpus = [CUT, SWITCHED, AMPERE, SHARED];
                let gpu = gpus[self.dice.below(gpus.len())];
                let part = gpu == CUT && self.dice.below(3) == 0;
                self.rent_on(gpu, part).await
            }
            4 => self.want_idle().await,
            5 if !full => self.rent_idle().await,
            6 => {
                self.forget_idle();
                Ok(())
            }
            _ => self.evict_one(None).await,
        }
    }

    /// Makes a pod that gets something new of the GPU; makes room if there is none.
    async fn rent_on(&mut self, gpu: u32, part: bool) -> anyhow::Result<()> {
        if gpu == SWITCHED && self.switch_due {
            return Ok(());
        }
        let (uuid, state) = (self.uuid(gpu)?, self.gpu(gpu)?);
        let taken = places::taken(&state, &self.leader.spec, &self.status());
        let found = match (state.mig.current, part) {
            (true, true) => places::part(&state, &taken, &mut self.dice),
            (true, false) => places::instance(&state, &taken, &mut self.dice),
            (false, _) if gpu == SHARED => places::share(&state, &taken, &mut self.dice),
            (false, _) => return Ok(()),
        };
        let Some((shape, name)) = found else { return self.evict_one(Some(gpu)).await };
        self.make_way(&state, shape);
        self.leader.rent(&uuid, shape, &name).await.map(drop)
    }

    async fn want_idle(&mut self) -> anyhow::Result<()> {
        let gpus = [CUT, AMPERE];
        let gpu = gpus[self.dice.below(gpus.len())];
        let (uuid, state) = (self.uuid(gpu)?, self.gpu(gpu)?);
        let taken = places::taken(&state, &self.leader.spec, &self.status());
        if let Some((shape, _)) = places::instance(&state, &taken, &mut self.dice) {
            self.make_way(&state, shape);
            self.leader.want(&uuid, shape);
        }
        Ok(())
    }

    fn make_way(&mut self, gpu: &GpuState, shape: Shape) {
        let gone = places::in_the_way(gpu, &self.leader.spec, shape);
        self.leader.spec.slices.retain(|s| !gone.contains(&s.id));
    }

    fn idle(&self) -> Vec<WantedSlice> {
        let status = self.status();
        let is_held = |id: &SliceId| status.slice(id).is_some_and(|s| s.holder.is_some());
        let idle = self.leader.spec.slices.iter().filter(|s| s.reservation.is_none() && !is_held(&s.id));
        idle.cloned().collect()
    }

    async fn rent_idle(&mut self) -> anyhow::Result<()> {
        let idle = self.idle();
        let Some(slice) = self.dice.pick(&idle) else { return Ok(()) };
        let instance = slice.shape.instance().filter(|_| slice.shape.part().is_none());
        let Some(instance) = instance.filter(|_| !self.switch_due) else { return Ok(()) };
        let name = ResourceName::Mig(instance.profile).to_string();
        self.leader.rent_idle(&slice.id, &name).await
    }

    fn forget_idle(&mut self) {
        let idle = self.idle();
        if let Some(slice) = self.dice.pick(&idle) {
            self.leader.spec.slices.retain(|s| s.id != slice.id);
        }
    }

    /// Deletes a pod, of this GPU or any.
    async fn evict_one(&mut self, gpu: Option<u32>) -> anyhow::Result<()> {
        let all = self.tenants_of(gpu)?;
        match self.dice.pick(&all).cloned() {
            Some(name) => self.leader.evict(&name).await,
            None => Ok(()),
        }
    }

    /// Deletes all pods of a GPU.
    async fn clear(&mut self, gpu: u32) -> anyhow::Result<()> {
        for name in self.tenants_of(Some(gpu))? {
            self.leader.evict(&name).await?;
        }
        Ok(())
    }

    fn tenants_of(&self, gpu: Option<u32>) -> anyhow::Result<Vec<String>> {
        let Some(gpu) = gpu else { return Ok(self.leader.tenants().cloned().collect()) };
        let uuid = self.uuid(gpu)?;
        let here = self.leader.spec.slices.iter().filter(|s| s.gpu == uuid);
        Ok(here.filter_map(super::leader::Leader::tenant_of).map(str::to_owned).collect())
    }

    fn gpu(&self, gpu: u32) -> anyhow::Result<GpuState> {
        let state = self.node.state()?;
        anyhow::Context::context(state.gpus.into_iter().find(|g| g.index == gpu), "no such GPU")
    }
}
