//! `kerf policy explain`: which policy is for a pod, and what it would get.

use super::decide::{Decision, Verdict, decide};
use super::manifest::{Found, documents, pods};
use crate::simulate::snapshot;
use anyhow::{Context as _, bail};
use kerf_core::policy::{Policies, Supply};
use kerf_runtime::policy_file;
use std::io::Write;
use std::path::{Path, PathBuf};

/// What is explained.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A manifest with pods, or with objects that make pods; `-` for standard input.
    #[arg(short = 'f', long = "filename", value_name = "FILE")]
    file: PathBuf,
    /// The policies: a file, or a folder of files.
    #[arg(long, value_name = "PATH", default_value = "policies")]
    policies: PathBuf,
    /// The namespace of objects that name none.
    #[arg(short, long, default_value = "default")]
    namespace: String,
    /// The cluster's GPUs, by `kubectl get gpunodes,nodes -o json`. Without it the policy's order decides alone.
    #[arg(long, value_name = "FILE")]
    gpunodes: Option<PathBuf>,
}

/// Explains.
pub(super) fn run(args: &Args, out: &mut impl Write) -> anyhow::Result<()> {
    let policies = policy_file::read(&args.policies).context("--policies")?;
    let supply = supply(args.gpunodes.as_deref())?;
    let documents = documents(&args.file)?;
    let found: Vec<Found> = documents.iter().flat_map(|d| pods(d, &args.namespace)).collect();
    if found.is_empty() {
        bail!("{}: there is no pod, and nothing that makes pods", args.file.display());
    }
    for found in &found {
        let decision = decide(&found.pod, &found.namespace, &policies, &supply);
        let decision = decision.with_context(|| format!("{}: failed to read the pod", found.what))?;
        write!(out, "{}", text(&found.what, &policies, &decision))?;
    }
    Ok(())
}

/// What the cluster can serve, of a file of `GpuNodes`; nothing is known without one.
pub(super) fn supply(gpunodes: Option<&Path>) -> anyhow::Result<Supply> {
    let Some(path) = gpunodes else { return Ok(Supply::default()) };
    let text = std::fs::read_to_string(path).with_context(|| format!("failed to read {}", path.display()))?;
    snapshot::supply(&text).with_context(|| path.display().to_string())
}

fn text(what: &str, policies: &Policies, decision: &Decision) -> String {
    let mut lines = vec![what.to_owned()];
    for (policy, mismatch) in policies.passed(&decision.facts) {
        lines.push(format!("  not {}: {mismatch}", policy.name()));
    }
    match policies.of_pod(&decision.facts) {
        Some(policy) => lines.push(format!("  policy {}", policy.name())),
        None => lines.push("  no policy matches".to_owned()),
    }
    match &decision.verdict {
        Verdict::Untouched => lines.push("  asks for no slice and is left as it is".to_owned()),
        Verdict::Refused(reason) => lines.push(format!("  refused: {reason}")),
        Verdict::Served { document, warnings } => {
            lines.push(format!("  isolation {}", document.isolation));
            let chosen = document.chosen.iter();
            lines.extend(
                chosen
                    .clone()
                    .filter_map(|c| c.dialect.as_ref())
                    .map(|d| format!("  asked in the dialect {d}")),
            );
            lines.extend(chosen.flat_map(|c| &c.passed).map(|passed| format!("  passed over: {passed}")));
            let gets = |c: &kerf_core::contract::ContainerRequest| {
                format!("  container {} gets {}x {}", c.name, c.count, c.resource)
            };
            lines.extend(document.containers.iter().map(gets));
            lines.extend(warnings.iter().map(|warning| format!("  warning: {warning}")));
        }
    }
    lines.push(String::new());
    lines.join("\n")
}
