//! The fault matrix: every NVML call of the agent returns each code that it may return, hangs, and has the
//! agent killed right before and right after it. Every command to an MPS daemon is rejected, hangs, and has
//! the daemon or the agent killed. Meanwhile slices are cut on nodes with five GPUs each. No slice ever has
//! two holders, and no held slice is destroyed. Soon after the fault's end all desired slices exist, and
//! NVML, the agent's ledger, `GpuNode.status` and the kubelet agree.
//!
//! Each node has its own agent, stand-in kubelet and leader; all share one API server.

mod act;
mod calls;
mod cell;
mod codes;
mod daemon;
mod dice;
mod guard;
mod harm;
mod leader;
mod node;
mod places;
mod rest;
mod scene;
mod sight;
mod strike;
mod table;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use futures::future::try_join_all;

pub use cell::{Blow, Call, Cell, Verdict};

use crate::cluster;
use crate::control_plane::{ControlPlane, ControlPlaneOptions};
use crate::stand_in_leader::StandInLeader;
use act::Act;
use calls::Calls;
use dice::Dice;
use scene::Scene;

/// How much of the matrix is played, and how.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The agent's probe period: the interval in which it checks everything.
    pub period: Duration,
    /// How many nodes play cells at the same time.
    pub nodes: usize,
    /// Seed of all random choices.
    pub seed: u64,
    /// How many cells to play; the first ones cover each call once. `None` plays all.
    pub sample: Option<usize>,
    /// Only calls whose names contain this.
    pub only: Option<String>,
    /// Whether a node may settle late, because times mean nothing on a busy machine.
    pub lenient: bool,
}

#[derive(Debug, Clone)]
pub struct Report {
    /// The calls that the agent makes.
    pub calls: Vec<Call>,
    /// The cells that were played.
    pub cells: BTreeMap<Cell, Verdict>,
    /// Calls that occurred during the cells but not in the count before, so they have no row.
    pub uncounted: BTreeSet<Call>,
}

impl Report {
    /// The broken cells, the empty cells, and the calls without a row, as texts.
    #[must_use]
    pub fn failures(&self) -> Vec<String> {
        let text = |(cell, verdict): (&Cell, &Verdict)| match verdict {
            Verdict::Sound(_) => None,
            Verdict::Broken(why) => Some(format!("{cell}: {}", why.join("; "))),
            Verdict::NotStruck => Some(format!("{cell}: the agent did not make the call")),
        };
        let uncounted = self.uncounted.iter().map(|call| format!("{call} has no row"));
        self.cells.iter().filter_map(text).chain(uncounted).collect()
    }

    /// The longest time that a node took to settle after a fault's end.
    #[must_use]
    pub fn slowest(&self) -> Duration {
        let times = self.cells.values().filter_map(|verdict| match verdict {
            Verdict::Sound(time) => Some(*time),
            Verdict::Broken(_) | Verdict::NotStruck => None,
        });
        times.max().unwrap_or_default()
    }

    #[must_use]
    pub fn table(&self) -> String {
        table::tables(self)
    }
}

/// Plays the matrix. `say` gets lines of progress.
///
/// # Errors
///
/// Fails if a part cannot be started, or if a node does not settle without a fault.
pub async fn run(settings: &Settings, say: impl Fn(&str)) -> anyhow::Result<Report> {
    say("starting a control plane");
    let plane = cluster::unguarded(ControlPlaneOptions::without_controller_manager()).await?;
    let played = play(&plane, settings, &say).await;
    match played {
        Ok(report) if report.failures().is_empty() => {
            plane.stop().await?;
            Ok(report)
        }
        // A failed run keeps its folder, because the logs in it explain the failure; dropping the control plane only
        // kills it.
        other => {
            say(&format!("the nodes' folders and the agents' logs are kept in {}", plane.dir().display()));
            other
        }
    }
}

async fn play(plane: &ControlPlane, settings: &Settings, say: &impl Fn(&str)) -> anyhow::Result<Report> {
    say("counting the agent's calls");
    let mut scenes = start_all(plane, settings).await?;
    let calls = Arc::new(count(&mut scenes).await?);
    for (call, acts) in calls.iter() {
        say(&format!("  {call}: {acts:?}"));
    }
    let chosen = choose(&calls, settings);
    say(&format!("the agent makes {} calls; {} cells are played", calls.len(), chosen.len()));
    let stage = Stage {
        plane,
        settings,
        calls: &calls,
        total: chosen.len(),
        queue: Mutex::new(chosen.into_iter().enumerate().collect()),
        played: Mutex::default(),
        made: Mutex::default(),
        scenes: Mutex::new(settings.nodes),
        begun: Instant::now(),
    };
    for scene in &mut scenes {
        scene.calls = Arc::clone(&calls);
    }
    // Only one node counts, because each call then costs a write.
    scenes.first_mut().map(Scene::count_all).transpose()?;
    try_join_all(scenes.into_iter().map(|scene| stage.work(scene, say))).await?;
    let played = stage.played.into_inner().unwrap_or_else(PoisonError::into_inner);
    let made = stage.made.into_inner().unwrap_or_else(PoisonError::into_inner);
    let uncounted = made.into_iter().filter(|call| !calls.contains_key(call)).collect();
    Ok(Report { calls: calls.keys().cloned().collect(), cells: played, uncounted })
}

async fn start_all(plane: &ControlPlane, settings: &Settings) -> anyhow::Result<Vec<Scene>> {
    let (none, mut leaders) = (Arc::default(), Vec::new());
    // They start one after the other, because the first creates the certificate that all serve.
    for _ in 0..settings.nodes.max(1) {
        leaders.push(StandInLeader::start(plane).await?);
    }
    let starting = leaders.into_iter().enumerate();
    try_join_all(starting.map(|(number, leader)| start(plane, settings, number, &none, leader))).await
}

/// Counts the agent's calls, on two nodes at the same time if there are two.
async fn count(scenes: &mut [Scene]) -> anyhow::Result<Calls> {
    let mut all = Calls::new();
    let counted = match scenes {
        [one, other, ..] => {
            let (one, other) = (one.count_calls(&Act::OF_CUTS), other.count_calls(&Act::OF_SHARES));
            let (one, other) = futures::future::try_join(one, other).await?;
            vec![one, other]
        }
        all => {
            let mut counted = Vec::new();
            for scene in all {
                counted.push(scene.count_calls(&Act::OF_SHARES).await?);
                counted.push(scene.count_calls(&Act::OF_CUTS).await?);
            }
            counted
        }
    };
    for (call, acts) in counted.into_iter().flatten() {
        all.entry(call).or_default().extend(acts);
    }
    Ok(all)
}

async fn start(
    plane: &ControlPlane,
    settings: &Settings,
    number: usize,
    calls: &Arc<Calls>,
    leader: StandInLeader,
) -> anyhow::Result<Scene> {
    Scene::start(plane, plane.client(), &format!("f{number}"), settings, Arc::clone(calls), leader).await
}

/// The cells to play in random order, so that consecutive cells on a node are unrelated.
fn choose(calls: &Calls, settings: &Settings) -> Vec<Cell> {
    let mut dice = Dice::new(settings.seed);
    let is_meant = |call: &&Call| settings.only.as_ref().is_none_or(|only| call.to_string().contains(only));
    let (mut first, mut rest) = (Vec::new(), Vec::new());
    for call in calls.keys().filter(is_meant) {
        let mut blows = call.blows();
        let cell = |blow| Cell { call: call.clone(), blow };
        first.push(cell(blows.swap_remove(dice.below(blows.len()))));
        rest.extend(blows.into_iter().map(cell));
    }
    shuffle(&mut first, &mut dice);
    shuffle(&mut rest, &mut dice);
    let all = first.into_iter().chain(rest);
    all.take(settings.sample.unwrap_or(usize::MAX)).collect()
}

fn shuffle<T>(all: &mut [T], dice: &mut Dice) {
    for n in (1..all.len()).rev() {
        all.swap(n, dice.below(n + 1));
    }
}

/// The state that the playing nodes share.
struct Stage<'a> {
    plane: &'a ControlPlane,
    settings: &'a Settings,
    calls: &'a Arc<Calls>,
    total: usize,
    queue: Mutex<VecDeque<(usize, Cell)>>,
    played: Mutex<BTreeMap<Cell, Verdict>>,
    made: Mutex<BTreeSet<Call>>,
    /// How many nodes were started so far.
    scenes: Mutex<usize>,
    begun: Instant,
}

impl Stage<'_> {
    /// Plays cells on one node until none is left. After a broken cell the node is ended for inspection, and
    /// a new one continues.
    async fn work(&self, mut scene: Scene, say: &impl Fn(&str)) -> anyhow::Result<()> {
        while let Some((turn, cell)) = self.next() {
            let verdict = scene.play(&cell, turn).await;
            let verdict = verdict.with_context(|| format!("{cell} on {}", scene.node.name))?;
            say(&self.line(turn, &cell, &verdict, &scene));
            let broken = matches!(verdict, Verdict::Broken(_));
            self.played.lock().unwrap_or_else(PoisonError::into_inner).insert(cell, verdict);
            if broken {
                self.end(scene, say).await?;
                let number = self.another();
                let leader = StandInLeader::start(self.plane).await?;
                scene = start(self.plane, self.settings, number, self.calls, leader).await?;
            }
        }
        self.end(scene, say).await
    }

    async fn end(&self, scene: Scene, say: &impl Fn(&str)) -> anyhow::Result<()> {
        let made = scene.counted()?;
        self.made.lock().unwrap_or_else(PoisonError::into_inner).extend(made);
        scene.stop(say).await
    }

    fn next(&self) -> Option<(usize, Cell)> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }

    /// The number of a new node.
    fn another(&self) -> usize {
        let mut scenes = self.scenes.lock().unwrap_or_else(PoisonError::into_inner);
        *scenes += 1;
        *scenes - 1
    }

    fn line(&self, turn: usize, cell: &Cell, verdict: &Verdict, scene: &Scene) -> String {
        let seconds = self.begun.elapsed().as_secs();
        let text = match verdict {
            Verdict::Sound(time) => format!("ok, settled within {:.1} s", time.as_secs_f64()),
            Verdict::NotStruck => "EMPTY: the agent did not make the call".to_owned(),
            Verdict::Broken(why) => {
                format!("BROKEN: {}; see {}", why.join("; "), scene.node.agent_log().display())
            }
        };
        format!("{seconds:>5} s  {:>4} of {}  {}  {cell}: {text}", turn + 1, self.total, scene.node.name)
    }
}
