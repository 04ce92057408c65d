//! Pods of several kinds that use the same neutral names, on a node with GPUs in MIG mode and others.

use std::path::PathBuf;

use crate::real_node::Process;
use anyhow::Context as _;
use k8s_openapi::api::core::v1::Pod;
use kerf_nvml_mock::{MockFiles, MockState};
use kerf_tests::control_plane;
use kerf_tests::kubelet_rules::IMAGE;
use kerf_tests::mixed_kinds::{Ask, MixedNode, POD_VARIABLE, play};
use kube::Client;
use serde_json::json;

use super::scene::Scene;
use crate::args::Args;
use crate::order::Order;
use crate::running_node::RunningNode;
use crate::{container_log, lent};

const NO_MIG: &str = "not played: it takes simulated GPUs, of which some are in MIG mode (--mig)";

pub async fn each_holds_what_it_was_assigned(scene: &Scene<'_>) -> anyhow::Result<String> {
    let args = scene.args;
    if args.mig == 0 {
        return Ok(NO_MIG.to_owned());
    }
    let client = control_plane::client(&RunningNode::read(args)?.kubeconfig).await?;
    let played = play(&mut RealMixedNode { args, client }, args.pods.try_into()?, args.seed).await;
    let account = played.with_context(|| format!("with --seed {}", args.seed))?;
    account.is_sound().with_context(|| format!("with --seed {}", args.seed))?;
    Ok(format!("with --seed {}: {account}", args.seed))
}

struct RealMixedNode<'a> {
    args: &'a Args,
    client: Client,
}

#[tonic::async_trait(?Send)]
impl MixedNode for RealMixedNode<'_> {
    fn name(&self) -> &str {
        &self.args.name
    }

    fn client(&self) -> Client {
        self.client.clone()
    }

    fn pod_resources(&self) -> PathBuf {
        self.args.places().kubelet().join("pod-resources/kubelet.sock")
    }

    fn nvml(&self) -> anyhow::Result<MockState> {
        Ok(MockState::load(&MockFiles::in_folder(self.args.places().nvml()).state)?)
    }

    fn pod(&self, ask: &Ask) -> anyhow::Result<Pod> {
        let of_spec = json!({"hostNetwork": true, "volumes": lent::volumes()});
        let of_container =
            json!({"image": IMAGE, "imagePullPolicy": "Never", "volumeMounts": lent::mounts()});
        ask.pod(&of_spec, &of_container)
    }

    fn output(&self, pod: &Pod, container: &str, run: i32) -> String {
        container_log::lines(&self.args.places(), pod, container, run).join("\n")
    }

    fn kill(&self, pod: &str) -> anyhow::Result<()> {
        let variable = format!("{POD_VARIABLE}={pod}\0");
        let of_pod = Process::all().into_values().filter(|process| process.environment.contains(&variable));
        let shell = of_pod.min_by_key(|process| process.id);
        shell.with_context(|| format!("no process of {pod} is found"))?.kill()
    }

    async fn restart_agent(&mut self) -> anyhow::Result<()> {
        Order::RestartAgent.give(self.args).await
    }
}
