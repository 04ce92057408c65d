//! The scenes, and how a cluster plays one.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use kerf_tests::cluster::wait;
use kerf_tests::process::Child;
use kube::api::PostParams;

use super::measure::{Counts, resident};
use super::result::Measured;
use super::side::{AT_ONCE, Side};
use super::workload::{Asks, DEVICES};
use crate::report::{Latency, print};

/// Timeout for a burst to be bound.
const TIMEOUT: Duration = Duration::from_mins(5);
/// Delay before the final count, because schedulers write their Events in the background.
const EVENTS_DELAY: Duration = Duration::from_secs(2);
/// Delay between two pods in turn, after the cluster has settled.
const POD_DELAY: Duration = Duration::from_millis(50);
/// In the mixed scene, one of this many pods asks for a slice.
const MIXED: usize = 10;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Slices {
    /// Nothing is cut, so each pod gets a new slice.
    New,
    /// Pods get slices that earlier pods have left idle.
    Idle,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Load {
    /// Each pod is created after the previous one has settled.
    InTurn,
    /// Pods are created as fast as the API server accepts them.
    Burst,
    /// A burst in which one pod in ten asks for a slice.
    Mixed,
    Plain,
    /// A burst while pods that fit nowhere are pending.
    Storm,
}

#[derive(Debug, Clone)]
pub struct Scene {
    pub load: Load,
    pub slices: Slices,
    pub pods: usize,
    pub cut: Duration,
    /// Whether a busy loop takes one core.
    pub busy: bool,
    /// Pods that fit nowhere, beside the others of [`Load::Storm`].
    pub storm: usize,
}

impl Scene {
    /// The name that is printed, and that `--scene` selects.
    pub fn name(&self) -> String {
        let slices = match self.slices {
            Slices::New => "new",
            Slices::Idle => "idle",
        };
        let name = match self.load {
            Load::InTurn => format!("in-turn {slices}"),
            Load::Burst => format!("burst {} {slices}", self.pods),
            Load::Mixed => format!("mixed {}", self.pods),
            Load::Plain => format!("plain {}", self.pods),
            Load::Storm => format!("storm {}", self.pods),
        };
        let cut = if self.cut.is_zero() { String::new() } else { format!(" cut {:?}", self.cut) };
        let busy = if self.busy { " busy" } else { "" };
        format!("{name}{cut}{busy}")
    }

    fn asks(&self, number: usize) -> Asks {
        match self.load {
            Load::Plain => Asks::NoGpu,
            Load::Mixed if !number.is_multiple_of(MIXED) => Asks::NoGpu,
            _ => Asks::Slice,
        }
    }

    fn slices_needed(&self) -> usize {
        (0..self.pods).filter(|number| self.asks(*number) == Asks::Slice).count()
    }

    /// Whether the cluster has the uncut or idle slices that the scene needs, or can get them without a new
    /// cluster.
    pub fn can_follow(&self, side: &Side) -> bool {
        let Some(census) = side.census() else { return true };
        let places = side.nodes * usize::try_from(DEVICES).unwrap_or(0);
        match self.slices {
            Slices::New => census.idle == 0 && places >= census.occupied() + self.pods,
            Slices::Idle => true,
        }
    }

    /// Plays the scene. `prefix` begins the pods' names, so it must be new in this cluster.
    pub async fn play(&self, side: &mut Side, prefix: &str) -> anyhow::Result<Measured> {
        self.prepare(side, prefix).await?;
        // Only the scene itself has slow cuts; preparation would only take longer.
        side.set_cut(self.cut);
        let busy = self.busy.then(|| busy_loop(side)).transpose()?;
        let before = Counts::before(side).await?;
        let (took, waits, unbound) = match self.load {
            Load::InTurn => self.in_turn(side, prefix).await?,
            _ => self.burst(side, prefix).await?,
        };
        tokio::time::sleep(EVENTS_DELAY).await;
        let counts = Counts::after(side).await?.since(&before, self.pods);
        drop(busy);
        side.set_cut(Duration::ZERO);
        let resident_mib = resident(side)?;
        if self.load == Load::Storm {
            side.clear().await?;
        }
        let bound = u32::try_from(waits.len())?;
        Ok(Measured {
            pods: self.pods,
            unbound,
            rate: f64::from(bound) / took.as_secs_f64(),
            latency: Latency::from_samples(waits),
            cpu_ms: counts.cpu_s.into_iter().map(|(name, s)| (name, s * 1000.0)).collect(),
            requests: counts.requests,
            resident_mib,
        })
    }

    /// Creates idle slices and the storm, if the scene needs them.
    async fn prepare(&self, side: &mut Side, prefix: &str) -> anyhow::Result<()> {
        if self.slices == Slices::Idle {
            side.clear().await?;
            let needed = self.slices_needed();
            if side.census().is_some_and(|census| census.idle < needed) {
                let make = Self { load: Load::Burst, pods: needed, ..self.clone() };
                make.burst(side, &format!("{prefix}-before")).await?;
                side.clear().await?;
            }
        }
        if self.load == Load::Storm {
            let create = |number| side.pod(&format!("{prefix}-storm-{number}"), Asks::TooMany);
            let pods = side.pods();
            let made = stream::iter((0..self.storm).map(create))
                .map(async |pod| pods.create(&PostParams::default(), &pod).await.map(drop));
            made.buffer_unordered(AT_ONCE).try_collect::<()>().await.context("the storm")?;
            let refused = async || Ok(side.known().refused.len() >= self.storm);
            wait(TIMEOUT, "the scheduler to reject each pod of the storm", refused).await?;
        }
        Ok(())
    }

    /// Returns the duration, each pod's time from created to bound, and the number of pods that were not
    /// bound.
    async fn burst(&self, side: &mut Side, prefix: &str) -> anyhow::Result<(Duration, Vec<Duration>, usize)> {
        let (begun, pods) = (Instant::now(), side.pods());
        let running = side.known().running.len();
        let each = (0..self.pods).map(|number| {
            let name = format!("{prefix}-{number}");
            (side.pod(&name, self.asks(number)), name)
        });
        let created = stream::iter(each).map(async |(pod, name)| {
            let created = pods.create(&PostParams::default(), &pod).await;
            let answered = Instant::now();
            created.inspect_err(|error| print(&format!("# {name} is not created: {error}"))).ok()?;
            Some((name, answered))
        });
        let created: Vec<_> = created.buffer_unordered(AT_ONCE).collect().await;
        let deadline = begun + TIMEOUT;
        let (mut waits, mut last) = (Vec::new(), begun);
        for (name, answered) in created.iter().flatten() {
            let Some(at) = side.bound.bound_before(name, deadline).await? else { continue };
            last = last.max(at);
            waits.push(at.saturating_duration_since(*answered));
        }
        side.settle(running + waits.len()).await?;
        let unbound = created.len() - waits.len();
        Ok((last - begun, waits, unbound))
    }

    async fn in_turn(
        &self,
        side: &mut Side,
        prefix: &str,
    ) -> anyhow::Result<(Duration, Vec<Duration>, usize)> {
        let (pods, begun) = (side.pods(), Instant::now());
        let mut waits = Vec::new();
        for number in 0..self.pods {
            let name = format!("{prefix}-{number}");
            let running = side.known().running.len();
            pods.create(&PostParams::default(), &side.pod(&name, self.asks(number))).await?;
            let answered = Instant::now();
            waits.push(side.bound.bound_at(&name).await?.saturating_duration_since(answered));
            side.settle(running + 1).await?;
            tokio::time::sleep(POD_DELAY).await;
        }
        Ok((begun.elapsed(), waits, 0))
    }
}

/// A process that takes as much of one core as it gets.
fn busy_loop(side: &Side) -> anyhow::Result<Child> {
    let program = side.plane().program("busy", "/bin/sh").args(["-c", "while :; do :; done"]);
    Ok(program.spawn()?)
}
