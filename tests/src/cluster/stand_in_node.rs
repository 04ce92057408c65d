//! A node with simulated GPUs and a stand-in kubelet. Its agent or device plugin is started elsewhere.

use std::path::PathBuf;

use anyhow::Context as _;
use kerf_core::contract::WantedSlice;
use kerf_nvml_mock::{MockControl, MockFiles, MockState};

use super::NodeSpec;
use crate::agent_checkpoint::{epoch, wanted_slices};
use crate::control_plane::ControlPlane;
use crate::kubelet::{KubeletOptions, NodeTemplate, PodProcesses, StandInKubelet};

pub struct StandInNode {
    name: String,
    folder: PathBuf,
    files: MockFiles,
    kubelet: StandInKubelet,
}

/// The folder of a node, which its kubelet uses too.
pub(super) fn folder(plane: &ControlPlane, node: &str) -> PathBuf {
    plane.dir().join("n").join(node)
}

/// The files of a node's simulated NVML.
pub(super) fn gpu_files(plane: &ControlPlane, node: &str) -> MockFiles {
    MockFiles::in_folder(folder(plane, node).join("nvml"))
}

impl StandInNode {
    /// Registers the node and starts its kubelet.
    pub(super) async fn start(
        plane: &ControlPlane,
        spec: NodeSpec,
        processes: PodProcesses,
    ) -> anyhow::Result<Self> {
        let dir = folder(plane, &spec.name);
        let files = gpu_files(plane, &spec.name);
        std::fs::create_dir_all(dir.join("nvml")).context("failed to create the node's folder")?;
        spec.gpus.write(&files.config)?;
        let template = NodeTemplate { labels: spec.labels, taints: spec.taints, ..NodeTemplate::default() };
        let kubelet = StandInKubelet::start(KubeletOptions {
            status_period: spec.status_period,
            run_commands: spec.run_commands,
            processes,
            serving: Some(plane.kubelet_serving()?),
            register_node: Some(template),
            ..KubeletOptions::new(&spec.name, plane.client(), &dir)
        })
        .await?;
        Ok(Self { name: spec.name, folder: dir, files, kubelet })
    }

    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The files of its simulated NVML. A program needs them in its environment to open it.
    #[must_use]
    pub fn files(&self) -> &MockFiles {
        &self.files
    }

    /// The slices on the node's GPUs, as the simulated NVML reports them.
    pub fn gpus(&self) -> anyhow::Result<MockState> {
        Ok(MockState::load(&self.files.state)?)
    }

    /// The desired slices in its agent's checkpoint, whether the agent is a process or a pod.
    pub fn wanted_slices(&self) -> anyhow::Result<Vec<WantedSlice>> {
        let mut slices = wanted_slices(&self.record_folder())?;
        slices.extend(wanted_slices(&self.folder.join("host/var/lib/kerf"))?);
        Ok(slices)
    }

    /// The highest epoch in the newest checkpoint of its agent, which is a process.
    pub fn recorded_epoch(&self) -> anyhow::Result<u64> {
        epoch(&self.record_folder())
    }

    /// The folder of its agent's checkpoint. The agent is a process.
    #[must_use]
    pub fn record_folder(&self) -> PathBuf {
        self.folder.join("state")
    }

    /// Lets faults, delays or processes happen to the node's GPUs.
    pub fn control(&self, control: &MockControl) -> anyhow::Result<()> {
        Ok(control.write(&self.files.control)?)
    }

    #[must_use]
    pub fn kubelet(&self) -> &StandInKubelet {
        &self.kubelet
    }

    /// Stops the kubelet, as if the machine were gone.
    pub(super) async fn stop(self) {
        self.kubelet.stop().await;
    }
}
