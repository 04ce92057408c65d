//! `kerf policy explain`: which policy matches a pod, and what the pod would get.

use super::decide::{Decision, Verdict, decide};
use super::manifest::{Found, Namespaces, no_pod, pods};
use crate::input::{self, InputError};
use crate::output::{Format, Report, lines, render};
use crate::placement::{Choice, Nodes, Placement};
use crate::snapshot;
use anyhow::Context as _;
use kerf_core::contract::RequestDocument;
use kerf_core::packing::Terms;
use kerf_core::policy::{Mismatch, Policies, Policy, Supply};
use kerf_runtime::policy_file;
use serde::Serialize;
use serde_json::Value;
use std::io::Write;
use std::path::{Path, PathBuf};

const EXAMPLES: &str = "\
Examples:
  # Which policy is for the pods of a manifest, and what they would get
  kerf policy explain -f deploy/examples/mig-small.yaml --policy policies -n web

  # The same for the GPUs of a cluster, and where they would go now
  kubectl get gpunodes,nodes -o json > cluster.json
  kerf policy explain -f deploy/examples/mig-small.yaml --policy policies --gpunodes cluster.json";

/// What is explained.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A manifest with pods, or with objects of any kind that have pod templates; `-` for standard input. Namespaces in
    /// it give their labels.
    #[arg(short, long, value_name = "FILE")]
    filename: PathBuf,
    /// Policy file, or a folder of them.
    #[arg(long, alias = "policies", value_name = "PATH", default_value = "policies")]
    policy: PathBuf,
    /// The namespace of objects that name none.
    #[arg(short, long, default_value = "default")]
    namespace: String,
    /// The cluster's GPUs, by `kubectl get gpunodes,nodes -o json`. With it the command says on which node a pod would
    /// get which kind now, and why no other; without it the policy's order decides alone.
    #[arg(long, value_name = "FILE")]
    gpunodes: Option<PathBuf>,
    /// The form.
    #[arg(short, long, value_name = "FORMAT", default_value = "text", hide_default_value = true,
        value_parser = Format::parser(&[]))]
    output: Format,
}

#[derive(Debug, Serialize)]
struct Explained {
    pods: Vec<ExplainedPod>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ExplainedPod {
    object: String,
    template: Option<String>,
    notes: Vec<String>,
    not: Vec<NotThis>,
    policy: Option<String>,
    undecided: Option<String>,
    extends: Vec<String>,
    fields: Vec<Field>,
    #[serde(flatten)]
    outcome: Outcome,
}

#[derive(Debug, Serialize)]
struct NotThis {
    policy: String,
    why: String,
}

#[derive(Debug, Serialize)]
struct Field {
    name: String,
    value: Option<Value>,
    policy: String,
}

#[derive(Debug, Serialize)]
#[serde(tag = "outcome", rename_all = "lowercase")]
enum Outcome {
    Untouched,
    Refused {
        refusal: String,
    },
    Served {
        request: Box<RequestDocument>,
        warnings: Vec<String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        placement: Option<Placement>,
    },
}

pub(super) fn run(args: &Args, out: &mut impl Write) -> anyhow::Result<()> {
    let policies = policy_file::read(&args.policy).context("--policy")?;
    let cluster = args.gpunodes.as_deref().map(|path| Cluster::read(path, &policies)).transpose()?;
    let supply = cluster.as_ref().map(|cluster| cluster.supply.clone()).unwrap_or_default();
    let documents = input::documents(&args.filename)?;
    let found: Vec<Found> = documents.iter().flat_map(|d| pods(d, &args.namespace)).collect();
    if found.is_empty() {
        let (place, why) = (input::place(&args.filename), no_pod(&documents, &args.namespace));
        return Err(InputError::Bad(format!("{place}: {why}")).into());
    }
    let namespaces = Namespaces::from_documents(&documents);
    let explained = found.into_iter().map(|found| {
        let decision = decide(&found.pod, namespaces.get(&found.namespace), &policies, &supply);
        let decision = decision.with_context(|| format!("{found}: failed to read the pod"))?;
        Ok(ExplainedPod::new(found, &policies, decision, cluster.as_ref()))
    });
    let pods = explained.collect::<anyhow::Result<_>>()?;
    Ok(write!(out, "{}", render(&Explained { pods }, args.output)?)?)
}

/// What the cluster's GPUs can serve, from a file of `GpuNodes`. Without a file nothing counts as missing.
pub(super) fn supply(gpunodes: Option<&Path>) -> anyhow::Result<Supply> {
    let Some(path) = gpunodes else { return Ok(Supply::default()) };
    let place = |error| InputError::Bad(format!("{}: {error}", input::place(path)));
    Ok(snapshot::supply(&input::read(path)?).map_err(place)?)
}

struct Cluster {
    supply: Supply,
    nodes: Nodes,
}

impl Cluster {
    fn read(path: &Path, policies: &Policies) -> anyhow::Result<Self> {
        let text = input::read(path)?;
        let place = |error| InputError::Bad(format!("{}: {error}", input::place(path)));
        let terms = Terms { weights: policies.weights(), ..Terms::default() };
        let (supply, nodes) = (snapshot::supply(&text), snapshot::nodes(&text, terms));
        Ok(Self { supply: supply.map_err(place)?, nodes: nodes.map_err(place)? })
    }
}

impl ExplainedPod {
    fn new(
        found: Found,
        policies: &Policies,
        Decision { facts, verdict }: Decision,
        cluster: Option<&Cluster>,
    ) -> Self {
        let passed = policies.passed(&facts).into_iter();
        let passed = passed.take_while(|(_, mismatch)| !matches!(mismatch, Mismatch::UnknownNamespace(_)));
        let not =
            passed.map(|(policy, why)| NotThis { policy: policy.name().to_owned(), why: why.to_string() });
        let (policy, undecided) = match policies.decided(&facts) {
            Ok(policy) => (policy, None),
            Err(undecided) => {
                let (policy, namespace) = (undecided.policy, undecided.namespace);
                let why = format!(
                    "policy {policy} selects namespaces by label; write the Namespace {namespace} with its labels into the manifest"
                );
                (None, Some(why))
            }
        };
        Self {
            object: found.object,
            template: found.path,
            notes: found.notes,
            not: not.collect(),
            policy: policy.map(|policy| policy.name().to_owned()),
            undecided,
            extends: policy.map(|policy| policy.lineage().bases.clone()).unwrap_or_default(),
            fields: policy.map(fields).unwrap_or_default(),
            outcome: match verdict {
                Verdict::Untouched => Outcome::Untouched,
                Verdict::Refused(refusal) => Outcome::Refused { refusal },
                Verdict::Served { document, warnings, destinations } => {
                    let choice = cluster.map(|it| Choice::new(&it.nodes, &destinations, &document));
                    let placement = choice.map(|choice| choice.placement());
                    Outcome::Served { request: document, warnings, placement }
                }
            },
        }
    }

    fn lines(&self) -> Vec<String> {
        let path = self.template.as_ref().map(|path| format!(": {path}")).unwrap_or_default();
        let mut lines = vec![format!("{}{path}", self.object)];
        lines.extend(self.notes.iter().map(|note| format!("  note: {note}")));
        lines.extend(self.not.iter().map(|NotThis { policy, why }| format!("  not {policy}: {why}")));
        lines.push(match (&self.policy, &self.undecided) {
            (Some(policy), _) => format!("  policy {policy}"),
            (None, Some(why)) => format!("  {why}"),
            (None, None) => "  no policy matches".to_owned(),
        });
        if !self.extends.is_empty() {
            lines.push(format!("    extends {}", self.extends.join(", which extends ")));
        }
        lines.extend(self.fields.iter().map(|Field { name, value, policy }| {
            let value = value.as_ref().map_or_else(|| "not set".to_owned(), ToString::to_string);
            format!("    {name}: {value}  # {policy}")
        }));
        lines.extend(self.outcome.lines());
        lines
    }
}

impl Outcome {
    fn lines(&self) -> Vec<String> {
        let (request, warnings, placement) = match self {
            Self::Untouched => return vec!["  asks for no slice and is left as it is".to_owned()],
            Self::Refused { refusal } => return vec![format!("  refused: {refusal}")],
            Self::Served { request, warnings, placement } => (request, warnings, placement),
        };
        let mut lines = vec![format!("  isolation {}", request.isolation)];
        let dialect = request.chosen.iter().flat_map(|chosen| &chosen.dialect);
        lines.extend(dialect.map(|dialect| format!("  asked in the dialect {dialect}")));
        let containers = request.containers.iter();
        lines.extend(containers.map(|c| format!("  container {} gets {}x {}", c.name, c.count, c.resource)));
        let several = request.containers.iter().filter(|container| !container.kinds.is_empty());
        lines.extend(several.map(|container| {
            let kinds: Vec<&str> = container.kinds.iter().map(|kind| kind.as_str()).collect();
            format!("    of {} the first kind that is free: {}", container.name, kinds.join(", "))
        }));
        lines.extend(warnings.iter().map(|warning| format!("  warning: {warning}")));
        lines.extend(placement.iter().flat_map(placed));
        lines
    }
}

fn placed(Placement { node, taken, passed, nodes }: &Placement) -> Vec<String> {
    let place = match (node, taken) {
        (Some(node), Some(taken)) => format!("  on these nodes: {taken} of node {node}"),
        _ => "  on these nodes: none serves it now".to_owned(),
    };
    let passed = passed.iter().map(|passed| format!("    {passed}"));
    let nodes = nodes.iter().map(|line| format!("    {line}"));
    std::iter::once(place).chain(passed).chain(nodes).collect()
}

fn fields(policy: &Policy) -> Vec<Field> {
    let lineage = policy.lineage();
    if lineage.bases.is_empty() {
        return Vec::new();
    }
    // The default never applies, because a policy that was parsed can always be serialized.
    let spec = serde_json::to_value(policy.spec()).unwrap_or_default();
    let fields = lineage.origins.iter().filter(|(field, _)| *field != "extends");
    let field = |(field, origin): (&String, &String)| Field {
        name: field.clone(),
        value: spec.get(field).cloned(),
        policy: origin.clone(),
    };
    fields.map(field).collect()
}

impl Report for Explained {
    fn text(&self, _format: Format) -> String {
        lines(self.pods.iter().flat_map(ExplainedPod::lines))
    }
}
