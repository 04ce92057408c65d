//! `kerf policy test`: pods and what is expected of them, so that admins test their policies before a cluster has them.

use super::decide::{Verdict, decide};
use super::explain::supply;
use super::manifest::{Found, Namespaces, documents, no_pod, pods};
use anyhow::{Context as _, bail, ensure};
use kerf_core::policy::{Policies, Supply};
use kerf_runtime::policy_file;
use serde::Deserialize;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::{Path, PathBuf};

/// The end of the names of files that only say what is expected.
const EXPECTED: &str = ".expected.yaml";

/// What is tested.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A folder of files `*.yaml`, each with one pod, or one object of any kind with pod templates. What is expected of it stands under
    /// `expect` in another document of the file, or in `<name>.expected.yaml`. A Namespace beside the pod tells its labels.
    folder: PathBuf,
    /// The policies: a file, or a folder of files.
    #[arg(long, value_name = "PATH", default_value = "policies")]
    policies: PathBuf,
    /// The cluster's GPUs, by `kubectl get gpunodes,nodes -o json`. Without it the policy's order decides alone.
    #[arg(long, value_name = "FILE")]
    gpunodes: Option<PathBuf>,
}

/// What is expected of a pod. What is absent may be anything.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
struct Expected {
    /// Where the pod's template is in its object, if there are several: `spec.pytorchReplicaSpecs.Worker.template`.
    template: Option<String>,
    /// The policy that matches the pod; an empty name for none.
    policy: Option<String>,
    /// What each container that asks gets, as in `2x nvidia.com/mig-1g.10gb`; one slice without the number.
    containers: Option<BTreeMap<String, String>>,
    /// A part of the text by which the pod is refused.
    refused: Option<String>,
    /// A part of a warning.
    warning: Option<String>,
    /// That the pod asks for no slice.
    untouched: bool,
}

/// A document that says what is expected of the pod beside it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ExpectDocument {
    expect: Expected,
}

/// Runs all cases of a folder.
pub(super) fn run(args: &Args, out: &mut impl Write) -> anyhow::Result<()> {
    let policies = policy_file::read(&args.policies).context("--policies")?;
    let supply = supply(args.gpunodes.as_deref())?;
    let files = files(&args.folder)?;
    ensure!(!files.is_empty(), "{}: there is no file *.yaml with a pod", args.folder.display());
    let (mut bad, mut all) = (0, 0);
    for file in &files {
        let name = file.strip_prefix(&args.folder).unwrap_or(file).display();
        let outcomes = match case(file, &policies, &supply) {
            Ok(outcomes) => outcomes,
            Err(error) => {
                (bad, all) = (bad + 1, all + 1);
                writeln!(out, "BAD     {name}: {error:#}")?;
                continue;
            }
        };
        for Outcome { template, notes, got, differences } in outcomes {
            all += 1;
            bad += usize::from(!differences.is_empty());
            let word = if differences.is_empty() { "ok     " } else { "DIFFERS" };
            let template = template.map(|path| format!(" {path}")).unwrap_or_default();
            writeln!(out, "{word} {name}{template}: {got}")?;
            for line in notes.iter().map(|note| format!("note: {note}")).chain(differences) {
                writeln!(out, "        {line}")?;
            }
        }
    }
    if bad > 0 {
        bail!("{bad} of {all} pods are not decided as expected");
    }
    Ok(())
}

/// The files with pods, by name.
fn files(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let entries =
        std::fs::read_dir(folder).with_context(|| format!("failed to read {}", folder.display()))?;
    let mut files = Vec::new();
    for entry in entries {
        let path = entry.with_context(|| format!("failed to read {}", folder.display()))?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if path.extension().is_some_and(|extension| extension == "yaml")
            && !name.ends_with(EXPECTED)
            && !name.starts_with('.')
        {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// What became of a pod.
struct Outcome {
    /// Where its template is, if the object has several.
    template: Option<String>,
    /// What is not known of the pod.
    notes: Vec<String>,
    /// What it got.
    got: String,
    /// Where that is not what was expected.
    differences: Vec<String>,
}

/// Decides on a file's pod, or on each pod that its object makes.
fn case(file: &Path, policies: &Policies, supply: &Supply) -> anyhow::Result<Vec<Outcome>> {
    let (expectations, manifests): (Vec<Value>, Vec<Value>) =
        documents(file)?.into_iter().partition(|document| document.get("expect").is_some());
    let found: Vec<Found> = manifests.iter().flat_map(|manifest| pods(manifest, "default")).collect();
    let objects: BTreeSet<&str> = found.iter().map(|found| found.object.as_str()).collect();
    ensure!(!found.is_empty(), "{}", no_pod(&manifests, "default"));
    ensure!(objects.len() == 1, "there are {} objects with pods; write one for each case", objects.len());
    let namespaces = Namespaces::of(&manifests);
    let pairs = pairs(&found, expected(file, &expectations)?)?;
    let outcome = |(found, expected): (&Found, Expected)| {
        let decision = decide(&found.pod, namespaces.get(&found.namespace), policies, supply)
            .with_context(|| format!("failed to read the pod of {found}"))?;
        let policy = policies.of_pod(&decision.facts).map_or("", |policy| policy.name());
        Ok(Outcome {
            template: found.path.clone(),
            notes: found.notes.clone(),
            got: got(policy, &decision.verdict),
            differences: differences(&expected, policy, &decision.verdict),
        })
    };
    pairs.into_iter().map(outcome).collect()
}

/// What is expected: by documents of the file, or by the file beside it.
fn expected(file: &Path, expectations: &[Value]) -> anyhow::Result<Vec<Expected>> {
    let beside = file.with_extension("expected.yaml");
    match (expectations.is_empty(), beside.exists()) {
        (false, false) => {
            let read = |one: &Value| Ok(ExpectDocument::deserialize(one).context("expect")?.expect);
            expectations.iter().map(read).collect()
        }
        (true, true) => {
            let documents = documents(&beside)?;
            ensure!(!documents.is_empty(), "{}: write a document", beside.display());
            let read = |one: &Value| Expected::deserialize(one).with_context(|| beside.display().to_string());
            documents.iter().map(read).collect()
        }
        (true, false) => {
            bail!("nothing is expected; write a document with expect, or {}", beside.display())
        }
        (false, true) => {
            bail!("what is expected stands in the file and in {}; write one of them", beside.display())
        }
    }
}

/// Each pod with what is expected of it. Several templates are told apart by their paths.
fn pairs(found: &[Found], expected: Vec<Expected>) -> anyhow::Result<Vec<(&Found, Expected)>> {
    let paths = || found.iter().filter_map(|found| found.path.as_deref()).collect::<Vec<_>>().join(", ");
    let mut pairs: Vec<(&Found, Expected)> = Vec::new();
    for expected in expected {
        let mut meant =
            found.iter().filter(|found| expected.template.is_none() || found.path == expected.template);
        let (Some(one), None) = (meant.next(), meant.next()) else {
            bail!("expect.template: write one of {}", paths());
        };
        ensure!(
            pairs.iter().all(|(other, _)| !std::ptr::eq(*other, one)),
            "what is expected of {one} stands there twice"
        );
        pairs.push((one, expected));
    }
    let left = found.iter().find(|found| pairs.iter().all(|(other, _)| !std::ptr::eq(*other, *found)));
    match left {
        Some(left) => bail!("nothing is expected of {left}; write a document with expect.template"),
        None => Ok(pairs),
    }
}

fn containers(verdict: &Verdict) -> BTreeMap<String, String> {
    let Verdict::Served { document, .. } = verdict else { return BTreeMap::new() };
    let gets = document.containers.iter().map(|c| (c.name.clone(), format!("{}x {}", c.count, c.resource)));
    gets.collect()
}

fn got(policy: &str, verdict: &Verdict) -> String {
    let policy = if policy.is_empty() { "no policy" } else { policy };
    let what = match verdict {
        Verdict::Untouched => "asks for no slice".to_owned(),
        Verdict::Refused(reason) => format!("refused: {reason}"),
        Verdict::Served { .. } => {
            let gets = containers(verdict).into_iter().map(|(name, gets)| format!("{name} gets {gets}"));
            gets.collect::<Vec<_>>().join(", ")
        }
    };
    format!("{policy}; {what}")
}

fn differences(expected: &Expected, policy: &str, verdict: &Verdict) -> Vec<String> {
    let mut differences = Vec::new();
    let mut differ = |what: &str, wanted: &str| differences.push(format!("expected {what}: {wanted}"));
    if let Some(wanted) = expected.policy.as_ref().filter(|wanted| *wanted != policy) {
        differ("policy", wanted);
    }
    if let Some(wanted) = &expected.containers {
        let with_count = |text: &String| match text.split_once("x ") {
            Some((count, _)) if count.parse::<u32>().is_ok() => text.clone(),
            _ => format!("1x {text}"),
        };
        let wanted: BTreeMap<_, _> =
            wanted.iter().map(|(name, text)| (name.clone(), with_count(text))).collect();
        if wanted != containers(verdict) {
            let wanted = wanted.into_iter().map(|(name, gets)| format!("{name} gets {gets}"));
            differ("containers", &wanted.collect::<Vec<_>>().join(", "));
        }
    }
    let refused = matches!(verdict, Verdict::Refused(_));
    match (&expected.refused, verdict) {
        (Some(wanted), Verdict::Refused(reason)) if reason.contains(wanted) => {}
        (Some(wanted), _) => differ("refused", wanted),
        // What is refused is served as nobody expects, unless it was said.
        (None, _) if refused => differ("refused", "not"),
        (None, _) => {}
    }
    if let Some(wanted) = &expected.warning {
        let told = matches!(verdict, Verdict::Served { warnings, .. } if warnings.iter().any(|w| w.contains(wanted)));
        if !told {
            differ("warning", wanted);
        }
    }
    if expected.untouched != matches!(verdict, Verdict::Untouched) {
        differ("untouched", if expected.untouched { "yes" } else { "no" });
    }
    differences
}
