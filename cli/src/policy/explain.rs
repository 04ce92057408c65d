//! `kerf policy explain`: which policy is for a pod, and what it would get.

use super::decide::{Decision, Verdict, decide};
use super::manifest::{Found, Namespaces, documents, no_pod, pods};
use crate::simulate::snapshot;
use anyhow::{Context as _, bail};
use kerf_core::policy::{Mismatch, Policies, Policy, Supply};
use kerf_runtime::policy_file;
use std::io::Write;
use std::path::{Path, PathBuf};

/// What is explained.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A manifest with pods, or with objects of any kind that have pod templates; `-` for standard input. Namespaces in it tell their
    /// labels.
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
        bail!("{}: {}", args.file.display(), no_pod(&documents, &args.namespace));
    }
    let namespaces = Namespaces::of(&documents);
    for found in &found {
        let decision = decide(&found.pod, namespaces.get(&found.namespace), &policies, &supply);
        let decision = decision.with_context(|| format!("{found}: failed to read the pod"))?;
        write!(out, "{}", text(found, &policies, &decision))?;
    }
    Ok(())
}

/// What the cluster can serve, of a file of `GpuNodes`; nothing is known without one.
pub(super) fn supply(gpunodes: Option<&Path>) -> anyhow::Result<Supply> {
    let Some(path) = gpunodes else { return Ok(Supply::default()) };
    let text = std::fs::read_to_string(path).with_context(|| format!("failed to read {}", path.display()))?;
    snapshot::supply(&text).with_context(|| path.display().to_string())
}

/// The fields of a policy that extends another, each with the policy that has it.
fn inherited(policy: &Policy) -> Vec<String> {
    let lineage = policy.lineage();
    if lineage.bases.is_empty() {
        return Vec::new();
    }
    // A policy that was read is written without an error.
    let spec = serde_json::to_value(policy.spec()).unwrap_or_default();
    let field = |(field, origin): (&String, &String)| {
        let value = spec.get(field).map_or_else(|| "not set".to_owned(), ToString::to_string);
        format!("    {field}: {value}  # {origin}")
    };
    let fields = lineage.origins.iter().filter(|(field, _)| *field != "extends").map(field);
    [format!("    extends {}", lineage.bases.join(", which extends "))].into_iter().chain(fields).collect()
}

fn text(found: &Found, policies: &Policies, decision: &Decision) -> String {
    let mut lines = vec![found.to_string()];
    lines.extend(found.notes.iter().map(|note| format!("  note: {note}")));
    let passed = policies.passed(&decision.facts).into_iter();
    for (policy, mismatch) in passed.take_while(|(_, m)| !matches!(m, Mismatch::UnknownNamespace(_))) {
        lines.push(format!("  not {}: {mismatch}", policy.name()));
    }
    match policies.decided(&decision.facts) {
        Ok(Some(policy)) => {
            lines.push(format!("  policy {}", policy.name()));
            lines.extend(inherited(policy));
        }
        Ok(None) => lines.push("  no policy matches".to_owned()),
        Err(undecided) => {
            let (policy, namespace) = (undecided.policy, undecided.namespace);
            lines.push(format!(
                "  policy {policy} selects namespaces by label; write the Namespace {namespace} with its labels into the manifest"
            ));
        }
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
