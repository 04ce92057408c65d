//! `kerf policy check`: every mistake, with file, line and column, and every file that is skipped.

use super::files::Files;
use anyhow::{bail, ensure};
use kerf_core::kind::IsolationClass;
use kerf_core::policy::{NodeRule, NodeRules, Policy, Weight};
use kerf_runtime::policy_file::{self, Content, Contents, PolicyFileError};
use std::io::Write;
use std::path::{Path, PathBuf};

/// Checks each path by itself: a file, or a folder of files that are in force together.
pub(super) fn run(paths: &[PathBuf], out: &mut impl Write) -> anyhow::Result<()> {
    let (mut bad, mut checked) = (0, 0);
    for path in paths {
        let Files { texts, skipped, errors } = Files::read(path);
        checked += texts.len();
        for (skipped, why) in skipped {
            writeln!(out, "{}: skipped: {why}", skipped.display())?;
        }
        let is_good = match policies(path, texts, errors) {
            Ok(Some(contents)) => tell(&contents, out)?,
            Ok(None) => true,
            Err(errors) => {
                errors.iter().try_for_each(|error| writeln!(out, "{error}"))?;
                false
            }
        };
        bad += usize::from(!is_good);
    }
    if bad > 0 {
        bail!("{bad} of {} paths are bad", paths.len());
    }
    ensure!(
        checked > 0,
        "no policy was checked: every file was skipped; name a policy file, or a folder that has some"
    );
    Ok(())
}

/// The policies of a path's files; `None` for a file that was skipped. A folder has at least one.
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
        // That there is no policy is no news where files could not be read.
        Err(found) if errors.is_empty() || !matches!(found.as_slice(), [PolicyFileError::Empty(_)]) => {
            errors.extend(found);
            Err(errors)
        }
        Ok(_) | Err(_) => Err(errors),
    }
}

/// Says what was found of good files, and whether nothing of it is an error.
fn tell(contents: &Contents, out: &mut impl Write) -> std::io::Result<bool> {
    for (content, pods) in contents.files() {
        write!(out, "{}", summary(content, pods))?;
    }
    let mut is_good = true;
    for (finding, place) in contents.findings() {
        let fails = finding.fault.weight() >= Weight::CheckFails;
        is_good &= !fails;
        let word = if fails { "" } else { "warning: " };
        writeln!(out, "{place}: {word}{finding}")?;
    }
    Ok(is_good)
}

/// A line for each policy of a good file.
fn summary(content: &Content, pods: &[Policy]) -> String {
    let path = content.path.display();
    let pods = pods.iter().map(of_pods);
    let nodes = content.nodes.iter().map(|written| of_nodes(&written.policy));
    pods.chain(nodes).fold(String::new(), |lines, policy| lines + &format!("{path}: good; {policy}\n"))
}

fn of_pods(policy: &Policy) -> String {
    if policy.deny().is_some() {
        return format!("GpuPolicy {}: denies", policy.name());
    }
    let classes = IsolationClass::ALL.into_iter().filter_map(|class| {
        let kinds: Vec<_> = policy.kinds(class)?.iter().map(ToString::to_string).collect();
        Some(format!("{class}: {}", kinds.join(", then ")))
    });
    format!("GpuPolicy {}: {}", policy.name(), classes.collect::<Vec<_>>().join("; "))
}

fn of_nodes(rules: &NodeRules) -> String {
    let name = &rules.name;
    match &rules.rule {
        NodeRule::Managed(policy) => {
            let (rules_of_gpus, warm) = (policy.gpus.len(), policy.warm.len());
            format!("GpuNodePolicy {name}: {rules_of_gpus} rules for GPUs, {warm} names kept ready")
        }
        NodeRule::Plugin(layout) => format!("GpuNodePolicy {name}: NVIDIA's device plugin, {layout}"),
    }
}
