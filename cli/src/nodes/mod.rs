//! `kerf nodes`: draws each GPU as its slices, with the pods that hold them.

pub mod draw;
mod offered;
mod show;

use crate::connection::{Connection, candidates};
use crate::failure::NotFound;
use crate::output::{self, Format};
use crate::plugin_nodes;
use anyhow::Context;
use clap::Args as ClapArgs;
use clap_complete::ArgValueCandidates;
use kerf_runtime::gpu_node::GpuNode;
use kerf_runtime::machine::Machine;
use kube::Client;
use kube::api::{Api, ListParams};
use show::{Managed, Shown};
use std::collections::BTreeSet;
use std::io::IsTerminal;
use std::ops::RangeInclusive;
use std::time::Duration;

const POLL_INTERVAL: Duration = Duration::from_secs(2);

/// A narrower drawing is not legible, and a wider one fits no terminal.
const WIDTHS: RangeInclusive<usize> = 40..=240;

const EXAMPLES: &str = "\
Examples:
  # All nodes, drawn
  kerf nodes

  # One node, drawn anew when something changes
  kerf nodes gpu-1 --watch

  # A row a slice, of the nodes with a label
  kerf nodes -l nvidia.com/gpu.product=NVIDIA-H100-80GB-HBM3 -o wide

  # The pods that hold slices
  kerf nodes -o json | jq -r '.managed[].gpus[].slices[].pod'";

/// Which nodes, and how they are shown.
#[derive(Debug, ClapArgs)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The nodes. The default is all that have GPUs.
    #[arg(value_name = "NODE", add = ArgValueCandidates::new(candidates::nodes))]
    names: Vec<String>,
    /// Only nodes with these labels, like `zone=a,tier!=test`.
    #[arg(short = 'l', long, value_name = "LABELS", conflicts_with = "names")]
    selector: Option<String>,
    /// The form: `wide` is a table with a row a slice.
    #[arg(short, long, value_name = "FORMAT", default_value = "text", hide_default_value = true,
        value_parser = Format::parser(&[Format::Wide]))]
    output: Format,
    /// The width of a GPU in characters. The default is that of the terminal, or 88.
    #[arg(long)]
    width: Option<usize>,
    /// Look again every two seconds, and draw anew what has changed.
    #[arg(short, long)]
    watch: bool,
    #[command(flatten)]
    connection: Connection,
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(print(args))
}

async fn print(args: &Args) -> anyhow::Result<()> {
    let client = args.connection.client().await?;
    let width = args.width.unwrap_or_else(terminal_width).clamp(*WIDTHS.start(), *WIDTHS.end());
    // The terminal is cleared, so that a new drawing replaces the old one.
    let home = if args.watch && std::io::stdout().is_terminal() { "\x1b[H\x1b[2J" } else { "" };
    let mut last = String::new();
    loop {
        let text = output::render(&Shown { width, ..fetch(&client, args).await? }, args.output)?;
        if text != last {
            output::write(&format!("{home}{text}"))?;
            last = text;
        }
        if !args.watch {
            return Ok(());
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

fn terminal_width() -> usize {
    let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok();
    size.map(|size| usize::from(size.ws_col))
        .filter(|columns| *columns > 0)
        .map_or(draw::WIDTH, |columns| columns - 1)
}

async fn fetch(client: &Client, args: &Args) -> anyhow::Result<Shown> {
    let all = ListParams::default();
    let objects = Api::<GpuNode>::all(client.clone()).list(&all).await;
    let objects =
        objects.context("failed to list GpuNodes; kerf check says whether kerf is installed")?.items;
    let selected = ListParams { label_selector: args.selector.clone(), ..all };
    let nodes =
        Api::<Machine>::all(client.clone()).list(&selected).await.context("failed to list Nodes")?.items;
    let managed: BTreeSet<String> = objects.iter().map(|object| object.name().to_string()).collect();
    let is_wanted = |name: &str| match &args.selector {
        None => args.names.is_empty() || args.names.iter().any(|wanted| wanted == name),
        Some(_) => nodes.iter().any(|node| node.name().as_str() == name),
    };
    let unmanaged = nodes.iter().filter(|machine| !managed.contains(machine.name().as_str()));
    let plugins = plugin_nodes::read(client, unmanaged.filter(|machine| is_wanted(machine.name().as_str())));
    let plugins = plugins.await.context("failed to list the pods that NVIDIA's device plugin serves")?;
    let known: BTreeSet<String> = managed.iter().chain(plugins.keys()).cloned().collect();
    if let Some(strange) = args.names.iter().find(|name| !known.contains(*name)) {
        let what = format!("node {strange} has no GPUs that kerf or NVIDIA's device plugin serves");
        return Err(NotFound::new(what, format!("there are: {}", join(&known))).into());
    }
    Ok(Shown {
        managed: objects.iter().map(from_object).filter(|node| is_wanted(&node.name)).collect(),
        device_plugin: plugins.iter().flat_map(|(name, node)| offered::offered(name, node)).collect(),
        ..Shown::default()
    })
}

fn join(names: &BTreeSet<String>) -> String {
    if names.is_empty() { "none".to_owned() } else { names.iter().cloned().collect::<Vec<_>>().join(", ") }
}

fn from_object(object: &GpuNode) -> Managed {
    let spec = object.read_desired().map_err(|error| format!("GpuNode.spec cannot be read: {error}"));
    let status = object.read_status().map_err(|error| error.to_string());
    let read = spec.and_then(|spec| Ok((spec, status?.unwrap_or_default())));
    Managed { name: object.name().to_string(), read }
}

/// Shortens the name of a Deployment's pod to its Deployment's name and the last random letters, because a block has
/// little space. Other pods keep their names.
fn short_name(pod: &str) -> String {
    match pod.rsplitn(3, '-').collect::<Vec<_>>()[..] {
        [last, hash, name] if is_random(last, 5..=5) && is_random(hash, 8..=10) => format!("{name}-{last}"),
        _ => pod.to_owned(),
    }
}

/// Whether a part of a name consists of this many of the letters that Kubernetes uses for random names (apimachinery's
/// `rand.String`). They form no words, so a user's name hardly matches.
fn is_random(part: &str, lengths: RangeInclusive<usize>) -> bool {
    lengths.contains(&part.len()) && part.chars().all(|letter| "bcdfghjklmnpqrstvwxz2456789".contains(letter))
}

#[cfg(test)]
mod tests;
