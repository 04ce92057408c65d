//! `kerf policy check`: prints every mistake with file, line and column, and every file that is skipped.

use super::files::Files;
use crate::counted::counted;
use crate::input;
use crate::output::{Format, Report, lines, render};
use anyhow::{bail, ensure};
use kerf_core::kind::IsolationClass;
use kerf_core::policy::{NodeRule, NodeRules, Policy, Weight};
use kerf_runtime::policy_file::{self, Content, Contents, PolicyFileError};
use serde::Serialize;
use std::fmt::Write as _;
use std::io::Write;
use std::path::{Path, PathBuf};

const EXAMPLES: &str = "\
Examples:
  # A folder of policies, which are in force together
  kerf policy check -f policies

  # What another program has made
  kerf policy convert -f nodes.yaml | kerf policy check -f -

  # The mistakes, as programs read them
  kerf policy check -f policies -o json | jq -r '.paths[].problems[].text'";

/// What is checked.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    files: input::Files,
    /// The form.
    #[arg(short, long, value_name = "FORMAT", default_value = "text", hide_default_value = true,
        value_parser = Format::parser(&[]))]
    output: Format,
}

#[derive(Debug, Serialize)]
struct Checked {
    good: bool,
    paths: Vec<CheckedPath>,
}

#[derive(Debug, Default, Serialize)]
struct CheckedPath {
    path: String,
    good: bool,
    skipped: Vec<Skipped>,
    policies: Vec<Summary>,
    problems: Vec<Problem>,
    #[serde(skip)]
    files: usize,
}

#[derive(Debug, Serialize)]
struct Skipped {
    file: String,
    why: String,
}

#[derive(Debug, Serialize)]
struct Summary {
    file: String,
    kind: &'static str,
    name: String,
    what: String,
}

#[derive(Debug, Serialize)]
struct Problem {
    severity: Severity,
    /// The printed form with its place: `policy.yaml:5:20: ...`.
    text: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Severity {
    Error,
    Warning,
}

/// Checks each path on its own: a file, or a folder whose files are in force together.
pub(super) fn run(args: &Args, out: &mut impl Write) -> anyhow::Result<()> {
    let paths: Vec<CheckedPath> = args.files.paths().iter().map(|path| CheckedPath::read(path)).collect();
    let checked: usize = paths.iter().map(|path| path.files).sum();
    let bad = paths.iter().filter(|path| !path.good).count();
    let (all, good) = (paths.len(), bad == 0 && checked > 0);
    write!(out, "{}", render(&Checked { good, paths }, args.output)?)?;
    if bad > 0 {
        let are = if bad == 1 { "is" } else { "are" };
        bail!("{bad} of {} {are} bad", counted(all, "path"));
    }
    ensure!(
        checked > 0,
        "no policy was checked: every file was skipped; name a policy file, or a folder that has some"
    );
    Ok(())
}

impl CheckedPath {
    fn read(path: &Path) -> Self {
        let Files { texts, skipped, errors } = Files::read(path);
        let skipped =
            skipped.into_iter().map(|(file, why)| Skipped { file: file.display().to_string(), why });
        let mut checked = Self {
            path: input::place(path),
            skipped: skipped.collect(),
            files: texts.len(),
            ..Self::default()
        };
        match policies(path, texts, errors) {
            Ok(contents) => contents.iter().for_each(|contents| checked.take(contents)),
            Err(errors) => checked.problems.extend(
                errors.iter().map(|error| Problem { severity: Severity::Error, text: error.to_string() }),
            ),
        }
        checked.good = !checked.problems.iter().any(|problem| problem.severity == Severity::Error);
        checked
    }

    fn take(&mut self, contents: &Contents) {
        self.policies.extend(contents.files().flat_map(|(content, pods)| summaries(content, pods)));
        self.problems.extend(contents.findings().into_iter().map(|(finding, place)| {
            if finding.fault.weight() >= Weight::CheckFails {
                Problem { severity: Severity::Error, text: format!("{place}: {finding}") }
            } else {
                Problem { severity: Severity::Warning, text: format!("{place}: warning: {finding}") }
            }
        }));
    }
}

impl Report for Checked {
    fn text(&self, _format: Format) -> String {
        let mut text = String::new();
        for path in &self.paths {
            for Skipped { file, why } in &path.skipped {
                let _infallible = writeln!(text, "{file}: skipped: {why}");
            }
            for Summary { file, kind, name, what } in &path.policies {
                let _infallible = writeln!(text, "{file}: good; {kind} {name}: {what}");
            }
            text += &lines(path.problems.iter().map(|problem| &problem.text));
        }
        text
    }
}

/// The policies in a path's files; `None` for a single file that was skipped. A folder must have at least one policy.
fn policies(
    path: &Path,
    texts: Vec<(PathBuf, String)>,
    mut errors: Vec<PolicyFileError>,
) -> Result<Option<Contents>, Vec<PolicyFileError>> {
    if texts.is_empty() && errors.is_empty() && !path.is_dir() {
        return Ok(None);
    }
    match policy_file::check_texts(path, texts) {
        Ok(contents) if errors.is_empty() => Ok(Some(contents)),
        // No message if files could not be read, because the lack of policies is then only a consequence.
        Err(found) if errors.is_empty() || !matches!(found.as_slice(), [PolicyFileError::Empty(_)]) => {
            errors.extend(found);
            Err(errors)
        }
        Ok(_) | Err(_) => Err(errors),
    }
}

fn summaries<'c>(content: &'c Content, pods: &'c [Policy]) -> impl Iterator<Item = Summary> + 'c {
    let summary = move |kind, name: &str, what| Summary {
        file: content.path.display().to_string(),
        kind,
        name: name.to_owned(),
        what,
    };
    let pods = pods.iter().map(move |policy| summary("GpuPolicy", policy.name(), pod_policy_text(policy)));
    let nodes = content.nodes.iter().map(|written| &written.policy);
    pods.chain(nodes.map(move |rules| summary("GpuNodePolicy", &rules.name, node_rules_text(rules))))
}

fn pod_policy_text(policy: &Policy) -> String {
    if policy.deny().is_some() {
        return "denies".to_owned();
    }
    let classes = IsolationClass::ALL.into_iter().filter_map(|class| {
        let kinds: Vec<_> = policy.kinds(class)?.iter().map(ToString::to_string).collect();
        Some(format!("{class}: {}", kinds.join(", then ")))
    });
    classes.collect::<Vec<_>>().join("; ")
}

fn node_rules_text(rules: &NodeRules) -> String {
    match &rules.rule {
        NodeRule::Managed(policy) => {
            let (rules, names) = (counted(policy.gpus.len(), "rule"), counted(policy.warm.len(), "name"));
            format!("{rules} for GPUs, {names} kept ready")
        }
        NodeRule::Plugin(layout) => format!("NVIDIA's device plugin, {layout}"),
    }
}
