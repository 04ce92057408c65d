//! Runs the real kubectl against this control plane, with a user's commands and error messages.

use std::process::{Output, Stdio};

use anyhow::{Context as _, bail};
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;

use super::ControlPlane;
use crate::binaries;

impl ControlPlane {
    /// Runs kubectl as the administrator and returns its output even if it fails, for tests of denied
    /// requests.
    pub async fn kubectl_output(&self, arguments: &[&str], stdin: &str) -> anyhow::Result<Output> {
        let mut command = Command::new(binaries::tool("kubectl")?);
        command.args(arguments).env("KUBECONFIG", self.kubeconfig());
        // kubectl's cache of API resources must not be shared with another cluster.
        command.env("KUBECACHEDIR", self.dir().join("kubectl-cache"));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().context("failed to start kubectl")?;
        let mut input = child.stdin.take().context("kubectl has no stdin")?;
        // A kubectl that reads no input closes the pipe early, which is not an error.
        let _ = input.write_all(stdin.as_bytes()).await;
        drop(input);
        child.wait_with_output().await.context("failed to wait for kubectl")
    }

    /// Runs kubectl as the administrator and returns its standard output; the error has its standard error.
    pub async fn kubectl(&self, arguments: &[&str]) -> anyhow::Result<String> {
        let output = self.kubectl_output(arguments, "").await?;
        stdout_of(arguments, &output)
    }

    /// Runs `kubectl apply --server-side` on YAML documents.
    pub async fn apply(&self, yaml: &str) -> anyhow::Result<String> {
        let arguments = ["apply", "--server-side", "--field-manager=kerf-tests", "--filename=-"];
        let output = self.kubectl_output(&arguments, yaml).await?;
        stdout_of(&arguments, &output)
    }
}

fn stdout_of(arguments: &[&str], output: &Output) -> anyhow::Result<String> {
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("kubectl {} failed ({}): {}", arguments.join(" "), output.status, said.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
