//! Pods of several kinds that ask by the same neutral names, on one node with GPUs in MIG mode and others. It is the
//! scene `mixed` of `gpu_node test`, with the stand-in kubelet in place of the real one.

use anyhow::{Context as _, ensure};
use k8s_openapi::api::core::v1::Pod;
use kerf_nvml_mock::{MigMode, MockConfig, MockState, Model};
use kerf_tests::cluster::{Cluster, ClusterOptions, GpuServer, NodeSpec};
use kerf_tests::kubelet::PodKey;
use kerf_tests::mixed_kinds::{Ask, MAIN, MixedNode, play};
use kube::Client;
use rustix::process::Signal;
use serde_json::json;
use std::path::PathBuf;

const NODE: &str = "mixed";
const PODS: usize = 30;
const SEED: u64 = 1;

struct StandInMixedNode(Cluster);

impl StandInMixedNode {
    fn node(&self) -> &GpuServer {
        &self.0.nodes()[0]
    }
}

#[tonic::async_trait(?Send)]
impl MixedNode for StandInMixedNode {
    fn name(&self) -> &str {
        NODE
    }

    fn client(&self) -> Client {
        self.0.plane().client()
    }

    fn pod_resources(&self) -> PathBuf {
        self.node().kubelet().pod_resources_socket()
    }

    fn nvml(&self) -> anyhow::Result<MockState> {
        self.node().gpus()
    }

    fn pod(&self, ask: &Ask) -> anyhow::Result<Pod> {
        ask.pod(&json!({}), &json!({"image": "none"}))
    }

    /// The stand-in writes all runs of a container into one file, one after the other.
    fn output(&self, pod: &Pod, container: &str, run: i32) -> String {
        let key = PodKey::new("default", pod.metadata.name.as_deref().unwrap_or_default());
        let path = self.node().kubelet().container_log(&key, container);
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let runs = text.split_inclusive("END ENVIRONMENT\n");
        runs.skip(usize::try_from(run).unwrap_or(0)).take(1).collect()
    }

    fn kill(&self, pod: &str) -> anyhow::Result<()> {
        let killed = self.node().kubelet().signal(&PodKey::new("default", pod), MAIN, Signal::KILL);
        ensure!(killed, "no process of {pod} is found");
        Ok(())
    }

    async fn restart_agent(&mut self) -> anyhow::Result<()> {
        let node = self.0.nodes_mut().first_mut().context("the cluster has a node")?;
        Ok(node.agent().restart()?)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_pod_holds_what_it_was_assigned() -> anyhow::Result<()> {
    let gpus = MockConfig::new().seed(NODE).gpus(Model::H200, 2, MigMode::Enabled).gpus(
        Model::H200,
        3,
        MigMode::Disabled,
    );
    let node = NodeSpec { gpus, ..NodeSpec::new(NODE, Model::T4, 0).running_commands() };
    let options = ClusterOptions::without_controller_manager(vec![node]);
    let mut node = StandInMixedNode(Cluster::start(options, |_| ()).await?);

    let account = play(&mut node, PODS, SEED).await.with_context(|| node.node().agent_log())?;
    account.is_sound()?;
    node.0.stop().await
}
