//! `bench`: measures what sharing costs through kerf, and the same clients started by hand in the same run.

mod by_hand;
mod compare;
mod template;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use kerf_cli::bench::Results;
use kerf_tests::binaries;

use crate::args::Args;
use crate::node_policy;
use crate::running_node::RunningNode;

/// With this technology, clients may use compute that others leave idle, so the node's policy sets no limit
/// meanwhile.
const UNLIMITED: &str = "mps";

/// The results of `mps`, from which kerf predicts the points of the other technologies.
fn fit(out: &Path, technology: &str) -> Option<PathBuf> {
    let measured = out.with_file_name(UNLIMITED).join("results.json");
    Some(measured).filter(|file| technology != UNLIMITED && file.is_file())
}

/// The programs reload a changed policy within two seconds; then the extender sends it to the node's agent.
const POLICY_DELAY: Duration = Duration::from_secs(4);

/// Measures one technology after the other, each both ways, so that the GPU is equally warm for both.
pub fn bench(args: &Args) -> anyhow::Result<()> {
    let running_node = RunningNode::read(args)?;
    let out = args.out.clone().unwrap_or_else(|| args.state.join("bench"));
    fs::create_dir_all(&out).with_context(|| format!("failed to create {}", out.display()))?;
    let template = args.state.join("client.yaml");
    fs::write(&template, template::text(args)).context("failed to write the client's pod template")?;
    let mut rows = Vec::new();
    for technology in &args.technologies {
        let out = out.join(technology);
        limit_compute(args, &running_node, technology != UNLIMITED)?;
        let results = by_kerf(args, &running_node, technology, &template, &out)?;
        if args.without_by_hand || args.simulated {
            continue;
        }
        let by_hand = by_hand::run(args, technology, &results, &out)?;
        rows.extend(compare::rows(technology, &results, &by_hand));
    }
    compare::print(&rows);
    let beyond = rows.iter().filter(|row| !row.is_met()).count();
    ensure!(beyond == 0, "{beyond} points are further from those by hand than the bar");
    Ok(())
}

/// Writes the node's policy, and waits until the agent has it.
fn limit_compute(args: &Args, running_node: &RunningNode, limits: bool) -> anyhow::Result<()> {
    let policies = running_node.policies.as_deref();
    let policies = policies
        .context("bench changes the node's policy in a file: run `single_node up` without --chart")?;
    node_policy::write(args, policies, limits)?;
    thread::sleep(POLICY_DELAY);
    Ok(())
}

/// Runs `kerf bench sharing` on this node, as an admin does.
fn by_kerf(
    args: &Args,
    running_node: &RunningNode,
    technology: &str,
    template: &Path,
    out: &Path,
) -> anyhow::Result<Results> {
    let mut command = Command::new(binaries::ours("kerf")?);
    command.args(["bench", "sharing", "--technologies", technology]);
    command.arg("--kubeconfig").arg(&running_node.kubeconfig).arg("--template").arg(template);
    command.arg("--out").arg(out).args(&args.flags);
    if let Some(file) = fit(out, technology) {
        command.arg("--fit").arg(file);
    }
    let status = command.status().context("failed to run kerf")?;
    ensure!(status.success(), "kerf bench sharing failed ({status})");
    let text = fs::read(out.join("results.json")).context("failed to read what kerf measured")?;
    let results: Results = serde_json::from_slice(&text).context("failed to read what kerf measured")?;
    let failed = results.failed.iter().map(|failed| format!("{} copies: {}", failed.copies, failed.reason));
    let failed: Vec<String> = failed.collect();
    ensure!(failed.is_empty(), "kerf did not measure all of {technology}: {}", failed.join("; "));
    Ok(results)
}
