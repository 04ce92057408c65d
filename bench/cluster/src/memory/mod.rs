//! The extender's memory for a large cluster: 5,000 nodes of eight H100, their agents' streams, and their pods.
//!
//! The extender is a real process. The API server is a stand-in in this process, because a real one would need
//! gigabytes and hours to be filled. The agents are in this process too. They speak the real protocol over TLS,
//! and their tokens are reviewed.

mod agents;
mod api;
mod check;
mod extender;
mod fields;
mod filters;
mod nodes;
mod pages;
mod pods;
mod population;
mod stored;
mod tokens;

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use clap::Args as ClapArgs;
use kerf_tests::cluster::wait;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use self::agents::Agents;
use self::api::{Api, Shows};
use self::extender::Extender;
use self::population::Population;
use crate::process::{peak_mib, resident_mib};
use crate::report::{Figure, print, print_figures};

const RESIDENT_MIB: f64 = 192.0;
const FILTER_MS: f64 = 1.0;
const TIMEOUT: Duration = Duration::from_mins(5);
/// Memory is read this long after the last event. Two rounds of pings on every stream are within it.
const SETTLE_DELAY: Duration = Duration::from_secs(12);

/// What to measure.
#[derive(Debug, ClapArgs)]
pub struct Args {
    /// Nodes of eight H100, each with an agent.
    #[arg(long, default_value_t = 5000)]
    nodes: usize,
    /// Bound pods of a node, each with a slice of 10 GB: at most 56.
    #[arg(long, default_value_t = 20)]
    pods_per_node: usize,
    /// Bound pods of a node that ask nothing of kerf.
    #[arg(long, default_value_t = 0)]
    others_per_node: usize,
    /// Write the extender's log to the end of the output.
    #[arg(long)]
    log: bool,
}

pub async fn run(args: &Args) -> anyhow::Result<()> {
    let &Args { nodes, pods_per_node, others_per_node, log } = args;
    ensure!(nodes > 0 && pods_per_node <= 56, "eight H100 have 56 slices of 10 GB, and a cluster has nodes");
    allow_files(u64::try_from(nodes)?)?;
    let population = Population { nodes, pods_per_node, others_per_node };
    let api = Api::start(population).await?;
    let extender = Extender::start(&api).await?;
    let measured = measure(population, &api, &extender).await;
    if log {
        print(&std::fs::read_to_string(extender.log())?);
    }
    print_figures(&measured.with_context(|| extender.log_tail())?);
    Ok(())
}

async fn measure(population: Population, api: &Api, extender: &Extender) -> anyhow::Result<Vec<Figure>> {
    let (nodes, pods) = (population.nodes, population.pods());
    let mut stages = Stages { extender, begun: Instant::now() };
    let empty = stages.settled("nothing is listed").await?;
    api.show(Shows::Nodes);
    api.until_watched(&["nodes", "gpunodes"], TIMEOUT).await?;
    let with_nodes = stages.settled(&format!("{nodes} Nodes and GpuNodes are listed")).await?;
    api.show(Shows::All);
    wait(TIMEOUT, "the extender to answer", async || extender.leads().await).await?;
    let with_pods = stages.settled(&format!("{pods} pods are listed too")).await?;
    check::pods_are_known(extender, population).await?;
    let agents = Agents::connect(population, api, extender).await?;
    let with_streams = stages.settled(&format!("{nodes} agents are connected and have said Hello")).await?;
    check::nodes_are_known(extender, population, api).await?;
    let in_use = stages.settled("every node was asked for in filters").await?;
    ensure!(agents.are_undisturbed(), "agents did more than to report: {agents:?}");
    ensure!(api.unknown().is_empty(), "the extender asked for what the stand-in lacks: {:?}", api.unknown());
    let each = |what: &str, before: f64, after: f64, count: usize| {
        if count > 0 {
            let count = u32::try_from(count).map_or(f64::NAN, f64::from);
            print(&format!("{what:<52} {:>10.2} KiB", (after - before) * 1024.0 / count));
        }
    };
    each("a Node with its GpuNode", empty, with_nodes, nodes);
    each("a pod", with_nodes, with_pods, pods);
    each("a stream with its node's state", with_pods, with_streams, nodes);
    each("a node that is asked for", with_streams, in_use, nodes);
    let bar = |name: &str, mib| {
        Figure::at_most(&format!("{name}, {nodes} streams, {pods} pods, MiB"), mib, RESIDENT_MIB)
    };
    let filter = filters::measure(extender, population, api).await?;
    Ok(vec![
        bar("resident", with_streams.max(in_use)),
        bar("peak", peak_mib(extender.process())?),
        Figure::at_most(&format!("a filter of {nodes} names, p99, ms"), filter, FILTER_MS),
    ])
}

/// Reads the extender's memory at each stage of the measurement.
struct Stages<'a> {
    extender: &'a Extender,
    begun: Instant,
}

impl Stages<'_> {
    /// The resident memory once nothing has happened for a while.
    async fn settled(&mut self, stage: &str) -> anyhow::Result<f64> {
        let reached = self.begun.elapsed().as_secs_f64();
        tokio::time::sleep(SETTLE_DELAY).await;
        let process = self.extender.process();
        let (resident, peak) = (resident_mib(process)?, peak_mib(process)?);
        print(&format!("# {reached:>5.0} s  resident {resident:>6.1} MiB, peak {peak:>6.1}: {stage}"));
        Ok(resident)
    }
}

/// Raises the limit of open files, of which each stream needs one. The extender inherits it.
fn allow_files(streams: u64) -> anyhow::Result<()> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let needed = streams + 500;
    if current.is_some_and(|current| current < needed) {
        let raised = Rlimit { current: maximum.or(Some(needed)), maximum };
        setrlimit(Resource::Nofile, raised).context("failed to raise the limit of open files")?;
        ensure!(
            maximum.is_none_or(|most| most >= needed),
            "a process may open {maximum:?} files: run ulimit -n {needed}"
        );
    }
    Ok(())
}
