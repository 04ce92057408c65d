//! Pods through the whole of kerf under load, beside a control without it: rates, latencies, CPU and requests
//! per pod.
//!
//! Every cluster has a real etcd, API server and kube-scheduler; the one with kerf has the real webhook,
//! extender and guard. This process simulates the kubelets and agents. The clusters play each scene one after
//! the other, so that both have the whole machine.

mod bars;
mod kubelets;
mod measure;
mod result;
mod scene;
pub mod side;
mod workload;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use clap::Args as ClapArgs;
use kerf_tests::gpu_nodes::CutLanes;

use self::result::{Measured, Row};
use self::scene::{Load, Scene, Slices};
use self::side::{Kind, Sides};
use crate::report::{print, print_figures};

#[derive(Debug, ClapArgs)]
pub struct Args {
    /// Nodes of eight H100; several sizes are measured one after the other.
    #[arg(long, value_delimiter = ',', default_value = "200")]
    nodes: Vec<usize>,
    /// Pods of the bursts; the largest is also that of the other scenes.
    #[arg(long, value_delimiter = ',', default_value = "200,1000")]
    pods: Vec<usize>,
    /// Pods that come in turn.
    #[arg(long, default_value_t = 50)]
    in_turn: usize,
    /// Pods that fit nowhere, in the scene with a storm of them.
    #[arg(long, default_value_t = 2000)]
    storm: usize,
    /// How long a cut takes, as 0s or 2s; bursts on new slices are measured with each.
    #[arg(long, value_delimiter = ',', default_value = "0s", value_parser = duration)]
    cut: Vec<Duration>,
    /// Also play the bursts while a busy loop takes one core.
    #[arg(long)]
    busy: bool,
    /// GPUs of a node are cut side by side, and not one after the other.
    #[arg(long)]
    parallel_cuts: bool,
    /// Rounds, each with clusters of its own; medians are printed.
    #[arg(long, default_value_t = 3)]
    rounds: u32,
    /// Only scenes whose names contain one of these, as "burst 1000 new".
    #[arg(long = "scene")]
    scenes: Vec<String>,
    /// Write all rounds and medians to this file.
    #[arg(long)]
    json: Option<PathBuf>,
}

fn duration(text: &str) -> Result<Duration, String> {
    let seconds = text.strip_suffix('s').and_then(|number| number.parse().ok());
    let duration = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    duration.ok_or_else(|| format!("{text:?} is no time; write it like 2s"))
}

pub async fn run(args: &Args) -> anyhow::Result<()> {
    let scenes = scenes(args)?;
    let mut bench =
        Bench { args, begun: Instant::now(), number: 0, results: BTreeMap::new(), failed: Vec::new() };
    for round in 1..=args.rounds {
        for nodes in &args.nodes {
            bench.round(round, *nodes, &scenes).await?;
            bench.write(&bench.rows(&scenes))?;
        }
    }
    let rows = bench.rows(&scenes);
    rows.iter().for_each(Row::print);
    print("");
    print_figures(&bars::figures(&rows));
    ensure!(
        bench.failed.is_empty(),
        "these scenes were not played to their ends: {}",
        bench.failed.join("; ")
    );
    Ok(())
}

/// The scenes in order: those on new slices come first, while no slice is idle.
fn scenes(args: &Args) -> anyhow::Result<Vec<Scene>> {
    let most = args.pods.iter().copied().max().context("--pods has no number")?;
    let base = Scene {
        load: Load::Burst,
        slices: Slices::New,
        pods: most,
        cut: Duration::ZERO,
        busy: false,
        storm: args.storm,
    };
    let loads: &[bool] = if args.busy { &[false, true] } else { &[false] };
    let bursts = |slices, cut: Duration| {
        let pods = args.pods.clone();
        let base = base.clone();
        pods.into_iter().flat_map(move |pods| {
            let base = base.clone();
            loads.iter().map(move |busy| Scene { slices, pods, cut, busy: *busy, ..base.clone() })
        })
    };
    let in_turn = |slices| Scene { load: Load::InTurn, slices, pods: args.in_turn, ..base.clone() };
    let on_idle = |load| Scene { load, slices: Slices::Idle, ..base.clone() };
    let mut all = vec![in_turn(Slices::New)];
    all.extend(args.cut.iter().flat_map(|cut| bursts(Slices::New, *cut)));
    all.push(in_turn(Slices::Idle));
    all.extend(bursts(Slices::Idle, Duration::ZERO));
    all.extend([Load::Mixed, Load::Plain, Load::Storm].map(on_idle));
    all.retain(|scene| {
        args.scenes.is_empty() || args.scenes.iter().any(|part| scene.name().contains(part.as_str()))
    });
    ensure!(!all.is_empty(), "no scene has a name with one of {:?}", args.scenes);
    Ok(all)
}

struct Bench<'a> {
    args: &'a Args,
    begun: Instant,
    /// The number of the last scene, which makes its pods' names unique.
    number: usize,
    results: BTreeMap<(usize, String), Vec<(Kind, Measured)>>,
    failed: Vec<String>,
}

impl Bench<'_> {
    /// Plays each scene in both clusters. They are recreated if a scene needs uncut GPUs.
    async fn round(&mut self, round: u32, nodes: usize, scenes: &[Scene]) -> anyhow::Result<()> {
        self.say(&format!("round {round} of {}: starting the clusters of {nodes} nodes", self.args.rounds));
        let mut sides = self.start(nodes).await?;
        for scene in scenes {
            if !sides.all().all(|side| scene.can_follow(side)) {
                self.say(&format!("{}: needs uncut GPUs, starting the clusters anew", scene.name()));
                sides.stop().await?;
                sides = self.start(nodes).await?;
            }
            if let Err(error) = self.play(scene, nodes, &mut sides).await {
                self.say(&format!("{error:#}; starting the clusters anew"));
                self.failed.push(format!("{error:#}"));
                // A failed scene may leave pods behind, so both clusters are replaced.
                drop(sides);
                sides = self.start(nodes).await?;
            }
        }
        sides.stop().await
    }

    /// Plays a scene in both clusters. The order alternates.
    async fn play(&mut self, scene: &Scene, nodes: usize, sides: &mut Sides) -> anyhow::Result<()> {
        self.number += 1;
        let mut order: Vec<Kind> = sides.all().map(|side| side.kind).collect();
        let first = self.number % order.len();
        order.rotate_left(first);
        let prefix = format!("s{}", self.number);
        for kind in order {
            let played = scene.play(sides.side(kind)?, &prefix).await;
            let measured = played.with_context(|| format!("{}, {}", scene.name(), kind.name()))?;
            self.say(&format!("{:<22} {:<8}{}", scene.name(), kind.name(), measured.line()));
            self.results.entry((nodes, scene.name())).or_default().push((kind, measured));
        }
        Ok(())
    }

    async fn start(&self, nodes: usize) -> anyhow::Result<Sides> {
        let lanes = if self.args.parallel_cuts { CutLanes::PerGpu } else { CutLanes::PerNode };
        Sides::start(nodes, lanes).await
    }

    fn say(&self, text: &str) {
        print(&format!("# {:>5.0} s  {text}", self.begun.elapsed().as_secs_f64()));
    }

    fn rows(&self, scenes: &[Scene]) -> Vec<Row> {
        let rows = self.args.nodes.iter().flat_map(|nodes| {
            scenes.iter().filter_map(|scene| {
                let name = scene.name();
                Row::from_rounds(*nodes, &name, self.results.get(&(*nodes, name.clone()))?)
            })
        });
        rows.collect()
    }

    /// Writes the JSON after each round, because a long run may be ended early.
    fn write(&self, rows: &[Row]) -> anyhow::Result<()> {
        let Some(path) = &self.args.json else { return Ok(()) };
        let document = serde_json::json!({"rows": rows, "rounds": self.rounds(), "failed": self.failed});
        std::fs::write(path, format!("{document:#}\n"))
            .with_context(|| format!("failed to write {}", path.display()))
    }

    fn rounds(&self) -> Vec<serde_json::Value> {
        let each = self.results.iter().flat_map(|((nodes, scene), rounds)| {
            rounds.iter().map(move |(kind, measured)| {
                serde_json::json!({"nodes": nodes, "scene": scene, "cluster": kind.name(), "measured": measured})
            })
        });
        each.collect()
    }
}
