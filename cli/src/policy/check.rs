//! `kerf policy check`: every mistake, with file, line and column.

use anyhow::bail;
use kerf_core::kind::IsolationClass;
use kerf_core::policy::{NodeRule, NodeRules, Policy, Weight};
use kerf_runtime::policy_file::{self, Content};
use std::io::Write;
use std::path::PathBuf;

/// Checks each path by itself.
pub(super) fn run(paths: &[PathBuf], out: &mut impl Write) -> anyhow::Result<()> {
    let mut bad = 0;
    for path in paths {
        match policy_file::check(path) {
            Ok(contents) => {
                for (content, pods) in contents.files() {
                    write!(out, "{}", summary(content, pods))?;
                }
                let mut fails = false;
                for (finding, place) in contents.findings() {
                    let weight = finding.fault.weight();
                    fails |= weight >= Weight::CheckFails;
                    let word = if weight >= Weight::CheckFails { "" } else { "warning: " };
                    writeln!(out, "{place}: {word}{finding}")?;
                }
                bad += usize::from(fails);
            }
            Err(errors) => {
                bad += 1;
                for error in errors {
                    writeln!(out, "{error}")?;
                }
            }
        }
    }
    if bad > 0 {
        bail!("{bad} of {} paths are bad", paths.len());
    }
    Ok(())
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
