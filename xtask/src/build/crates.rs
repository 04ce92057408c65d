//! The Rust part of a build: the crates, their number, and cargo's progress.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader};
use std::process::Stdio;

use anyhow::{Context as _, bail};

use super::progress::{Lane, Progress};
use crate::cargo;
use crate::workspace::Workspace;

const ARTIFACT: &str = r#"{"reason":"compiler-artifact","package_id":""#;

#[derive(Debug)]
pub struct Crates {
    packages: &'static [&'static str],
    flags: Vec<&'static str>,
    environment: &'static [(&'static str, &'static str)],
}

impl Crates {
    /// Builds these packages, or the whole workspace if there are none, with these flags of `cargo build`.
    pub fn new(packages: &'static [&'static str], flags: Vec<&'static str>) -> Self {
        Self { packages, flags, environment: &[] }
    }

    pub fn with_environment(mut self, environment: &'static [(&'static str, &'static str)]) -> Self {
        self.environment = environment;
        self
    }

    fn selection(&self) -> Vec<&'static str> {
        if self.packages.is_empty() {
            return vec!["--locked", "--workspace"];
        }
        ["--locked"].into_iter().chain(self.packages.iter().flat_map(|name| ["--package", name])).collect()
    }

    /// The number of crates, including all dependencies. It downloads the missing ones.
    pub fn count(&self, workspace: &Workspace) -> anyhow::Result<usize> {
        let edges = if self.flags.contains(&"--all-targets") { "normal,build,dev" } else { "normal,build" };
        let mut tree = cargo::command(workspace);
        tree.arg("tree")
            .args(self.selection())
            .args(["--edges", edges, "--prefix", "none", "--format", "{p}"]);
        let output = tree.stderr(Stdio::inherit()).output().context("failed to start `cargo tree`")?;
        if !output.status.success() {
            bail!("cargo cannot find the crates ({})", output.status);
        }
        let text = String::from_utf8_lossy(&output.stdout);
        Ok(text.lines().map(|line| line.trim_end_matches(" (*)")).collect::<BTreeSet<_>>().len())
    }

    pub fn build(&self, workspace: &Workspace, progress: &Progress) -> anyhow::Result<()> {
        let mut build = cargo::command(workspace);
        build.arg("build").args(self.selection()).args(&self.flags).envs(self.environment.iter().copied());
        // Diagnostics must stay readable, so cargo prints them to stderr as text.
        build.args(["--quiet", "--message-format=json-render-diagnostics"]).stdout(Stdio::piped());
        let mut child = build.spawn().context("failed to start cargo")?;
        let messages = child.stdout.take().context("cargo has no stdout")?;
        let mut compiled = BTreeSet::new();
        for line in BufReader::new(messages).lines() {
            let line = line.context("failed to read what cargo has built")?;
            if package(&line).is_some_and(|package| compiled.insert(package.to_owned())) {
                progress.step(Lane::Rust);
            }
        }
        let status = child.wait().context("failed to wait for cargo")?;
        if !status.success() {
            bail!("cargo build failed ({status})");
        }
        Ok(())
    }
}

fn package(message: &str) -> Option<&str> {
    message.strip_prefix(ARTIFACT)?.split('"').next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cargos_messages_name_the_package() {
        let message =
            r#"{"reason":"compiler-artifact","package_id":"registry+x#itoa@1.0.15","manifest_path":"/x"}"#;
        assert_eq!(package(message), Some("registry+x#itoa@1.0.15"));
        assert_eq!(package(r#"{"reason":"build-finished","success":true}"#), None);
    }
}
