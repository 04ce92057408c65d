//! `kerf nodes`: each GPU drawn as its slices, with who holds them.

pub mod draw;
mod offered;
mod show;

use crate::check::connect;
use crate::plugin_nodes;
use anyhow::{Context, bail};
use clap::{Args as ClapArgs, ValueEnum};
use kerf_runtime::args::ContextArgs;
use kerf_runtime::gpu_node::GpuNode;
use kerf_runtime::machine::Machine;
use kube::Client;
use kube::api::{Api, ListParams};
use show::{Managed, Shown};
use std::collections::BTreeSet;
use std::io::{IsTerminal, Write};
use std::ops::RangeInclusive;
use std::time::Duration;

/// How often is looked again under `--watch`.
const LOOK: Duration = Duration::from_secs(2);

/// Between these a drawing is legible, and a terminal as wide.
const WIDTHS: RangeInclusive<usize> = 40..=240;

/// Which nodes, and how they are shown.
#[derive(Debug, ClapArgs)]
pub struct Args {
    /// The nodes; without a name all that have GPUs.
    names: Vec<String>,
    /// `wide` is a table with a row a slice.
    #[arg(short, long, value_enum, default_value_t = Output::Drawing)]
    output: Output,
    /// The width of a GPU in characters; without it that of the terminal, or 88.
    #[arg(long)]
    width: Option<usize>,
    /// Look again every two seconds and draw anew what has changed.
    #[arg(short, long)]
    watch: bool,
    #[command(flatten)]
    client: ContextArgs,
}

/// How nodes are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// As pictures.
    Drawing,
    /// As a table.
    Wide,
    /// As JSON.
    Json,
    /// As YAML.
    Yaml,
}

/// Prints them.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(print(args))
}

async fn print(args: &Args) -> anyhow::Result<()> {
    let client = connect::reach(&args.client).await?;
    let terminal = std::io::stdout().is_terminal();
    let width = args.width.unwrap_or_else(terminal_width).clamp(*WIDTHS.start(), *WIDTHS.end());
    let colour = terminal && std::env::var_os("NO_COLOR").is_none();
    let paint: draw::Paint<'_> = if colour { &draw::coloured } else { &draw::plain };
    let mut last = String::new();
    loop {
        let text = show::render(&fetch(&client, &args.names).await?, args.output, width, paint)?;
        if text != last {
            let mut out = std::io::stdout().lock();
            if args.watch && terminal {
                // The cursor goes home, and what was there is taken away.
                write!(out, "\x1b[H\x1b[2J")?;
            }
            out.write_all(text.as_bytes())?;
            out.flush()?;
            last = text;
        }
        if !args.watch {
            return Ok(());
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// The terminal's columns, less the frame's.
fn terminal_width() -> usize {
    let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok();
    size.map(|size| usize::from(size.ws_col))
        .filter(|columns| *columns > 0)
        .map_or(draw::WIDTH, |columns| columns - 1)
}

async fn fetch(client: &Client, names: &[String]) -> anyhow::Result<Shown> {
    let all = ListParams::default();
    let objects = Api::<GpuNode>::all(client.clone()).list(&all).await;
    let objects =
        objects.context("failed to list GpuNodes; kerf check says whether kerf is installed")?.items;
    let nodes = Api::<Machine>::all(client.clone()).list(&all).await.context("failed to list Nodes")?.items;
    let managed: BTreeSet<String> = objects.iter().map(|object| object.name().to_string()).collect();
    let is_wanted = |name: &str| names.is_empty() || names.iter().any(|wanted| wanted == name);
    let others = nodes.iter().filter(|machine| !managed.contains(machine.name().as_str()));
    let plugins = plugin_nodes::read(client, others.filter(|machine| is_wanted(machine.name().as_str())));
    let plugins = plugins.await.context("failed to list the pods that NVIDIA's device plugin serves")?;
    let known: BTreeSet<String> = managed.iter().chain(plugins.keys()).cloned().collect();
    if let Some(strange) = names.iter().find(|name| !known.contains(*name)) {
        bail!(
            "node {strange} has no GPUs that kerf or NVIDIA's device plugin serves; there are: {}",
            join(&known)
        );
    }
    Ok(Shown {
        managed: objects.iter().map(of_object).filter(|node| is_wanted(&node.name)).collect(),
        offered: plugins.iter().flat_map(|(name, node)| offered::offered(name, node)).collect(),
    })
}

fn join(names: &BTreeSet<String>) -> String {
    if names.is_empty() { "none".to_owned() } else { names.iter().cloned().collect::<Vec<_>>().join(", ") }
}

fn of_object(object: &GpuNode) -> Managed {
    let spec = object.read_spec().map_err(|error| format!("GpuNode.spec cannot be read: {error}"));
    let status = object.read_status().map_err(|error| error.to_string());
    let read = spec.and_then(|spec| Ok((spec, status?.unwrap_or_default())));
    Managed { name: object.name().to_string(), read }
}

/// A Deployment's pod by its Deployment's name and the last letters that tell it from its sisters. A pod of anybody else's keeps its
/// name.
fn short_name(pod: &str) -> String {
    match pod.rsplitn(3, '-').collect::<Vec<_>>()[..] {
        [last, hash, name] if is_random(last, 5..=5) && is_random(hash, 8..=10) => format!("{name}-{last}"),
        _ => pod.to_owned(),
    }
}

/// Whether a part of a name is of so many of the letters that Kubernetes draws from (apimachinery's `rand.String`), which make no words.
fn is_random(part: &str, lengths: RangeInclusive<usize>) -> bool {
    lengths.contains(&part.len()) && part.chars().all(|letter| "bcdfghjklmnpqrstvwxz2456789".contains(letter))
}

#[cfg(test)]
mod tests;
