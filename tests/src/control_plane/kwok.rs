//! Nodes and pods without kubelets, by kwok: for runs with thousands of nodes.

use std::fs;

use anyhow::Context as _;

use super::readiness::Probe;
use super::{ControlPlane, ports, programs};
use crate::binaries;

/// Our stages: a node becomes Ready with the capacity it was created with, a pod on it Running, a deleted pod goes.
const STAGES: &str = include_str!("kwok-stages.yaml");

/// Which nodes kwok acts for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KwokNodes {
    /// Every node; then no stand-in kubelet may run.
    All,
    /// Nodes that a label selector chooses, for example `kerf.dev/simulated=kwok`.
    Selected(String),
}

impl ControlPlane {
    /// Starts kwok. `more_stages` are further `Stage` documents (delays, failures), an empty text for none.
    pub async fn start_kwok(&mut self, nodes: &KwokNodes, more_stages: &str) -> anyhow::Result<()> {
        let stages = self.folder.documents().join("kwok-stages.yaml");
        fs::write(&stages, format!("{STAGES}\n---\n{more_stages}"))
            .context("failed to write kwok's stages")?;
        let [port] = ports::free()?;
        let chosen = match nodes {
            KwokNodes::All => programs::flag("manage-all-nodes", true),
            KwokNodes::Selected(selector) => programs::flag("manage-nodes-with-label-selector", selector),
        };
        let program = self
            .program("kwok", binaries::tool("kwok")?)
            .arg(programs::flag("kubeconfig", self.kubeconfig().display()))
            .arg(programs::flag("config", stages.display()))
            .arg(programs::flag("server-address", format_args!("127.0.0.1:{port}")))
            // No node lifecycle controller runs here, so nobody reads leases.
            .arg("--node-lease-duration-seconds=0")
            .arg(chosen);
        self.servers.spawn(program, Probe::Connects(port))?;
        self.servers.ready().await
    }
}
