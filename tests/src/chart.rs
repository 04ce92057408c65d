//! The objects of the chart and of the kustomize manifests, rendered by Helm and kustomize themselves.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Output};

use anyhow::{Context as _, bail};
use serde_json::Value;

use crate::binaries;
use crate::cluster::root;
use crate::control_plane::ControlPlane;

#[must_use]
pub fn folder() -> String {
    root().join("deploy/chart").display().to_string()
}

/// Runs Helm with caches and settings below `home`, and with this kubeconfig if any.
pub fn helm_in(home: &Path, kubeconfig: Option<&Path>, arguments: &[&str]) -> anyhow::Result<Output> {
    let mut helm = Command::new(binaries::admin_tool("helm")?);
    helm.args(arguments);
    for variable in ["HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME", "HOME"] {
        helm.env(variable, home);
    }
    match kubeconfig {
        Some(path) => helm.env("KUBECONFIG", path),
        // Helm must not reach the cluster of a developer who runs the tests.
        None => helm.env_remove("KUBECONFIG"),
    };
    helm.output().context("failed to start helm")
}

/// Runs Helm as an admin of this control plane. It runs on a blocking thread, because Helm waits for tasks of
/// this process.
pub async fn helm_on(plane: &ControlPlane, arguments: &[&str]) -> anyhow::Result<Output> {
    let (home, kubeconfig) = (plane.dir().join("helm"), plane.kubeconfig().to_owned());
    let arguments: Vec<String> = arguments.iter().map(|&argument| argument.to_owned()).collect();
    let run = move || {
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        helm_in(&home, Some(&kubeconfig), &arguments)
    };
    tokio::task::spawn_blocking(run).await?
}

/// Helm's standard output; the error has its standard error.
pub fn helm(arguments: &[&str]) -> anyhow::Result<String> {
    said(&helm_in(&std::env::temp_dir(), None, arguments)?)
}

/// A program's standard output, or an error with its standard error.
pub fn said(output: &Output) -> anyhow::Result<String> {
    if !output.status.success() {
        bail!("{}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Runs `helm template` in a namespace with further arguments, for a cluster of Kubernetes 1.36.
pub fn template(namespace: &str, arguments: &[&str]) -> anyhow::Result<String> {
    let chart = folder();
    let first = ["template", "kerf", &chart, "--namespace", namespace, "--kube-version", "v1.36.4"];
    helm(&[&first, arguments].concat())
}

pub fn template_with(namespace: &str, values: &Value) -> anyhow::Result<String> {
    let file = tempfile::NamedTempFile::new().context("failed to make a file")?;
    std::fs::write(file.path(), values.to_string()).context("failed to write the values")?;
    template(namespace, &["--values", &file.path().display().to_string()])
}

/// Runs `kustomize build` on a folder of the checkout.
pub fn kustomize(path: &str) -> anyhow::Result<String> {
    let mut kustomize = Command::new(binaries::admin_tool("kustomize")?);
    kustomize.arg("build").arg(root().join(path));
    said(&kustomize.output().context("failed to start kustomize")?)
        .with_context(|| format!("kustomize build {path} failed"))
}

/// The objects of a stream of YAML documents.
pub fn objects(yaml: &str) -> anyhow::Result<Vec<Value>> {
    let documents: Vec<Value> =
        serde_saphyr::from_multiple(yaml).context("failed to parse what was written")?;
    Ok(documents.into_iter().filter(|document| !document.is_null()).collect())
}

/// The objects by [`name_of`]. If two namespaces have an object of one name, the last one counts.
pub fn by_name(yaml: &str) -> anyhow::Result<BTreeMap<String, Value>> {
    Ok(objects(yaml)?.into_iter().map(|object| (name_of(&object), object)).collect())
}

/// A name like `apps/v1 Deployment kerf-webhook`.
#[must_use]
pub fn name_of(object: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    format!("{} {} {}", text(&object["apiVersion"]), text(&object["kind"]), text(&object["metadata"]["name"]))
}
