//! `kerf policy test`: compares decisions with expectations, so that admins can test policies before a cluster uses
//! them.

use super::decide::{Verdict, decide};
use super::explain::supply;
use super::manifest::{Found, Namespaces, no_pod, pods};
use crate::counted::counted;
use crate::input::{self, InputError, documents};
use crate::output::{Format, Report, render};
use anyhow::{Context as _, bail, ensure};
use kerf_core::kind::Kind;
use kerf_core::policy::{Policies, Supply};
use kerf_runtime::policy_file;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::Write;
use std::path::{Path, PathBuf};

const EXPECTED: &str = ".expected.yaml";

const EXAMPLES: &str = "\
Examples:
  # The pods of a folder
  kerf policy test -f policies/tests/default --policy policies

  # The pods that are decided otherwise than expected
  kerf policy test -f policies/tests/default --policy policies -o json | jq '.cases[] | select(.result != \"ok\")'";

/// What is tested.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    folders: input::Files,
    /// Policy file, or a folder of them.
    #[arg(long, alias = "policies", value_name = "PATH", default_value = "policies")]
    policy: PathBuf,
    /// The cluster's GPUs, by `kubectl get gpunodes,nodes -o json`. Without it no kind is known to be missing.
    #[arg(long, value_name = "FILE")]
    gpunodes: Option<PathBuf>,
    /// The form.
    #[arg(short, long, value_name = "FORMAT", default_value = "text", hide_default_value = true,
        value_parser = Format::parser(&[]))]
    output: Format,
}

/// The expectation for a pod. An absent field may have any value, so that a case states only what it is about.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
struct Expected {
    /// The path of the pod's template in its object, if there are several: `spec.pytorchReplicaSpecs.Worker.template`.
    template: Option<String>,
    policy: Option<String>,
    /// What each container with a request gets, like `2x nvidia.com/mig-1g.10gb`. Without a number it is one slice.
    containers: Option<BTreeMap<String, String>>,
    kinds: Option<BTreeMap<String, Vec<Kind>>>,
    refused: Option<String>,
    warning: Option<String>,
    untouched: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ExpectDocument {
    expect: Expected,
}

#[derive(Debug, Serialize)]
struct Tested {
    good: bool,
    cases: Vec<Case>,
}

#[derive(Debug, Serialize)]
struct Case {
    file: String,
    result: CaseResult,
    #[serde(flatten)]
    outcome: Outcome,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum CaseResult {
    Ok,
    Differs,
    Bad,
}

pub(super) fn run(args: &Args, out: &mut impl Write) -> anyhow::Result<()> {
    let policies = policy_file::read(&args.policy).context("--policy")?;
    let supply = supply(args.gpunodes.as_deref())?;
    let mut cases = Vec::new();
    for folder in args.folders.paths() {
        for file in files(folder)? {
            let name = file.strip_prefix(folder).unwrap_or(&file).display().to_string();
            cases.extend(cases_of(&name, case(&file, &policies, &supply)));
        }
    }
    let (bad, all) = (cases.iter().filter(|case| case.result != CaseResult::Ok).count(), cases.len());
    write!(out, "{}", render(&Tested { good: bad == 0, cases }, args.output)?)?;
    if bad > 0 {
        let are = if bad == 1 { "is" } else { "are" };
        bail!("{bad} of {} {are} not decided as expected", counted(all, "pod"));
    }
    Ok(())
}

fn cases_of(file: &str, outcomes: anyhow::Result<Vec<Outcome>>) -> Vec<Case> {
    let case = |result, outcome| Case { file: file.to_owned(), result, outcome };
    match outcomes {
        Err(error) => {
            vec![case(CaseResult::Bad, Outcome { got: format!("{error:#}"), ..Outcome::default() })]
        }
        Ok(outcomes) => {
            let result = |outcome: &Outcome| {
                if outcome.differences.is_empty() { CaseResult::Ok } else { CaseResult::Differs }
            };
            outcomes.into_iter().map(|outcome| case(result(&outcome), outcome)).collect()
        }
    }
}

impl Report for Tested {
    fn text(&self, _format: Format) -> String {
        let mut text = String::new();
        for Case { file, result, outcome: Outcome { template, notes, got, differences } } in &self.cases {
            let word = match result {
                CaseResult::Ok => "ok     ",
                CaseResult::Differs => "DIFFERS",
                CaseResult::Bad => "BAD    ",
            };
            let template = template.as_ref().map(|path| format!(" {path}")).unwrap_or_default();
            let _infallible = writeln!(text, "{word} {file}{template}: {got}");
            let notes = notes.iter().map(|note| format!("note: {note}"));
            for line in notes.chain(differences.iter().cloned()) {
                let _infallible = writeln!(text, "        {line}");
            }
        }
        text
    }
}

fn files(folder: &Path) -> Result<Vec<PathBuf>, InputError> {
    let unreadable = |source| InputError::Read { place: folder.display().to_string(), source };
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(unreadable)? {
        let path = entry.map_err(unreadable)?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let is_yaml = path.extension().is_some_and(|extension| extension == "yaml");
        let is_case = is_yaml && !name.ends_with(EXPECTED) && !name.starts_with('.');
        files.extend(is_case.then(|| path.clone()));
    }
    files.sort();
    if files.is_empty() {
        return Err(InputError::Bad(format!("{}: there is no file *.yaml with a pod", folder.display())));
    }
    Ok(files)
}

#[derive(Debug, Default, Serialize)]
struct Outcome {
    template: Option<String>,
    notes: Vec<String>,
    got: String,
    differences: Vec<String>,
}

fn case(file: &Path, policies: &Policies, supply: &Supply) -> anyhow::Result<Vec<Outcome>> {
    let (expectations, manifests): (Vec<Value>, Vec<Value>) =
        documents(file)?.into_iter().partition(|document| document.get("expect").is_some());
    let found: Vec<Found> = manifests.iter().flat_map(|manifest| pods(manifest, "default")).collect();
    let objects: BTreeSet<&str> = found.iter().map(|found| found.object.as_str()).collect();
    ensure!(!found.is_empty(), "{}", no_pod(&manifests, "default"));
    // One file can have only one object, because an expectation names a template and not an object.
    ensure!(objects.len() == 1, "there are {} objects with pods; write one for each case", objects.len());
    let namespaces = Namespaces::from_documents(&manifests);
    let pairs = pairs(&found, expected(file, &expectations)?)?;
    let outcome = |(found, expected): (&Found, Expected)| {
        let decision = decide(&found.pod, namespaces.get(&found.namespace), policies, supply)
            .with_context(|| format!("failed to read the pod of {found}"))?;
        let policy = policies.for_pod(&decision.facts).map_or("", |policy| policy.name());
        Ok(Outcome {
            template: found.path.clone(),
            notes: found.notes.clone(),
            got: got(policy, &decision.verdict),
            differences: differences(&expected, policy, &decision.verdict),
        })
    };
    pairs.into_iter().map(outcome).collect()
}

/// The expectations: documents of the file itself, or of the file beside it. Both at once are an error, because it
/// would not be clear which counts.
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

/// Each pod with its expectation. Several templates of an object differ by their paths.
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

fn kinds(verdict: &Verdict) -> BTreeMap<String, Vec<Kind>> {
    let Verdict::Served { document, .. } = verdict else { return BTreeMap::new() };
    let open = document.containers.iter().filter(|container| !container.kinds.is_empty());
    open.map(|container| (container.name.clone(), container.kinds.clone())).collect()
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
    if let Some(wanted) = expected.kinds.as_ref().filter(|wanted| **wanted != kinds(verdict)) {
        let wanted = wanted.iter().map(|(name, kinds)| {
            let kinds: Vec<&str> = kinds.iter().map(|kind| kind.as_str()).collect();
            format!("{name} by {}", kinds.join(", "))
        });
        differ("kinds", &wanted.collect::<Vec<_>>().join("; "));
    }
    let refused = matches!(verdict, Verdict::Refused(_));
    match (&expected.refused, verdict) {
        (Some(wanted), Verdict::Refused(reason)) if reason.contains(wanted) => {}
        (Some(wanted), _) => differ("refused", wanted),
        // A refusal must be expected, because every other expectation describes a pod that is served.
        (None, _) if refused => differ("refused", "not"),
        (None, _) => {}
    }
    if let Some(wanted) = &expected.warning {
        let is_warned = matches!(verdict, Verdict::Served { warnings, .. } if warnings.iter().any(|w| w.contains(wanted)));
        if !is_warned {
            differ("warning", wanted);
        }
    }
    if expected.untouched != matches!(verdict, Verdict::Untouched) {
        differ("untouched", if expected.untouched { "yes" } else { "no" });
    }
    differences
}
