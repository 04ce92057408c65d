//! `cargo xtask manifests`: derives files from the chart, so that there is one source of what is installed. Files from
//! elsewhere are copied into the chart, and `deploy/base`, for kustomize, is Helm's output with the defaults.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail, ensure};

use crate::tools::Purpose;
use crate::workspace::Workspace;
use crate::{cargo, chart_values, tools};

const NAMESPACE: &str = "kerf-system";

/// Files that kustomize generates itself: policies and the scheduler's configuration, whose names get a hash of the
/// content.
const KUSTOMIZE_FILES: [&str; 2] = ["policies.yaml", "scheduler/configuration.yaml"];

const HELM_FILES: [&str; 2] = ["uninstall/", "tests/"];

const HELM_MARKS: [&str; 3] = ["helm.sh/", "checksum/", "app.kubernetes.io/managed-by: Helm"];

const HEADER: &str = "# Written by `cargo xtask manifests` from deploy/chart/templates: change it there.\n";

type Files = BTreeMap<PathBuf, String>;

pub fn run(workspace: &Workspace, check: bool) -> anyhow::Result<()> {
    if !check {
        cargo::run(workspace, "building kerf", &["build", "--package", "kerf", "--locked"])?;
        tools::ensure(workspace, Purpose::Tests)?;
    }
    // The copies come first, because Helm's output in the next step contains them.
    put(workspace, &copies(workspace)?, check)?;
    put(workspace, &base(workspace)?, check)?;
    put(workspace, &rights(workspace)?, check)
}

/// The files that the chart takes from elsewhere, because Helm reads nothing outside of a chart's folder.
fn copies(workspace: &Workspace) -> anyhow::Result<Files> {
    let files = Path::new("deploy/chart/files");
    let scheduler = scheduler_configuration(workspace)?;
    let mut copies = Files::from([
        (files.join("policies/default.yaml"), read(&workspace.root().join("policies/default.yaml"))?),
        (
            files.join("policies/partitioning.yaml"),
            read(&workspace.root().join("policies/partitioning.yaml"))?,
        ),
        (files.join("scheduler.yaml"), scheduler.clone()),
        (PathBuf::from("deploy/base/scheduler/config.yaml"), scheduler),
    ]);
    let chart = Path::new("deploy/chart");
    let [readme, about, values] =
        ["README.md", "Chart.yaml", "values.yaml"].map(|name| read(&workspace.root().join(chart).join(name)));
    copies.insert(chart.join("README.md"), chart_values::readme(&readme?, &about?, &values?)?);
    for path in files_in(&workspace.root().join("deploy/monitoring"))? {
        let name = path.file_name().unwrap_or_default();
        let ours =
            path.extension().is_some_and(|e| e == "yaml" || e == "json") && name != "kustomization.yaml";
        if ours {
            copies.insert(files.join("monitoring").join(name), read(&path)?);
        }
    }
    Ok(copies)
}

fn scheduler_configuration(workspace: &Workspace) -> anyhow::Result<String> {
    let mut kerf = Command::new(workspace.beside("kerf"));
    output_of(kerf.args(["scheduler-config", "--leader-elect"]), "kerf scheduler-config")
}

fn base(workspace: &Workspace) -> anyhow::Result<Files> {
    Ok(split(&template(workspace, &[])?))
}

fn rights(workspace: &Workspace) -> anyhow::Result<Files> {
    let made = split(&template(workspace, &["--set", "extender.layouts=true"])?);
    let rights = made.get(Path::new("deploy/base/extender/layouts.yaml"));
    let rights = rights.context("the chart has no extender/layouts.yaml")?;
    Ok([(PathBuf::from("deploy/components/extender-layouts/rights.yaml"), rights.clone())].into())
}

fn template(workspace: &Workspace, arguments: &[&str]) -> anyhow::Result<String> {
    let mut helm = Command::new(tools::admin(workspace, "helm")?);
    helm.args(["template", "kerf"]).arg(workspace.root().join("deploy/chart"));
    helm.args(["--namespace", NAMESPACE, "--kube-version", tools::KUBERNETES_VERSION]).args(arguments);
    output_of(&mut helm, "helm template")
}

/// Splits Helm's output by template. The documents keep their order, because Helm applies them in it.
fn split(output: &str) -> Files {
    let mut files = Files::new();
    for document in output.split("---\n# Source: kerf/templates/").skip(1) {
        let Some((path, text)) = document.split_once('\n') else { continue };
        let left_out =
            KUSTOMIZE_FILES.contains(&path) || HELM_FILES.iter().any(|folder| path.starts_with(folder));
        if !left_out {
            let file = files.entry(Path::new("deploy/base").join(path)).or_default();
            file.push_str(if file.is_empty() { HEADER } else { "---\n" });
            file.push_str(&without_helm(text));
        }
    }
    files
}

fn without_helm(text: &str) -> String {
    let lines = text.trim_end().lines().filter(|line| !HELM_MARKS.iter().any(|mark| line.contains(mark)));
    lines.flat_map(|line| [line.trim_end(), "\n"]).collect()
}

fn put(workspace: &Workspace, files: &Files, check: bool) -> anyhow::Result<()> {
    let mut differ = Vec::new();
    for (path, text) in files {
        let full = workspace.root().join(path);
        if fs::read_to_string(&full).is_ok_and(|found| found == *text) {
            continue;
        }
        differ.push(path.display().to_string());
        if !check {
            fs::create_dir_all(full.parent().unwrap_or(&full)).context("failed to make a folder")?;
            fs::write(&full, text).with_context(|| format!("failed to write {}", full.display()))?;
        }
    }
    if check && !differ.is_empty() {
        bail!(
            "not as the chart has it: {}\nchange deploy/chart (policies: policies/default.yaml), then run `cargo xtask manifests`",
            differ.join(", ")
        );
    }
    for path in &differ {
        eprintln!("manifests: wrote {path}");
    }
    Ok(())
}

fn output_of(command: &mut Command, what: &str) -> anyhow::Result<String> {
    let output = command.output().with_context(|| format!("failed to start {what}"))?;
    ensure!(output.status.success(), "{what} failed: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).with_context(|| format!("{what} wrote no text"))
}

fn read(path: &Path) -> anyhow::Result<String> {
    fs::read_to_string(path).with_context(|| format!("failed to read {}", path.display()))
}

fn files_in(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    if !folder.exists() {
        return Ok(Vec::new());
    }
    let entries = fs::read_dir(folder).with_context(|| format!("failed to read {}", folder.display()))?;
    let paths = entries.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<_>>>()?;
    Ok(paths.into_iter().filter(|path| path.is_file()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_becomes_one_file_without_helms_lines() {
        let output = "---\n# Source: kerf/templates/webhook/a.yaml\n# Why.\nkind: A\nmetadata:\n  labels:\n    \
                      app.kubernetes.io/managed-by: Helm\n    helm.sh/chart: kerf-1\n    x: y\n\
                      ---\n# Source: kerf/templates/uninstall/b.yaml\nkind: B\n\
                      ---\n# Source: kerf/templates/webhook/a.yaml\nkind: C\n\n";
        let files = split(output);
        let expected = format!("{HEADER}# Why.\nkind: A\nmetadata:\n  labels:\n    x: y\n---\nkind: C\n");
        assert_eq!(files, Files::from([(PathBuf::from("deploy/base/webhook/a.yaml"), expected)]));
    }
}
