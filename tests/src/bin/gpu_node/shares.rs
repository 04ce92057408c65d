//! `test`: pods on shares of one GPU, made through the API server and started by the kubelet, tell what they see.

use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use k8s_openapi::api::core::v1::Pod;
use kerf_runtime::gpu_node::GpuNode;
use kerf_tests::cluster::{resource_of, wait};
use kerf_tests::control_plane;
use kube::{Api, Client};
use tokio::time::timeout;

use crate::args::Args;
use crate::pods::{Pods, standing};
use crate::seen::{Expected, Seen};
use crate::standing::Standing;
use crate::{container_log, job};

/// What each pod asks for.
const MEMORY: &str = "10Gi";
const RESOURCE: &str = "nvidia.com/gpu-10gb";
const MEMORY_MIB: u64 = 10 * 1024;
const PODS: u32 = 3;

/// How long a container may take to tell: the first one reads `PyTorch` from the disk.
const PATIENCE: Duration = Duration::from_secs(90);

/// How long all pods may take together.
const ALL: Duration = Duration::from_secs(150);

/// Of what a pod printed that told nothing.
const LINES: usize = 20;

/// Runs the pods side by side, and fails with all that is not as it should be.
pub async fn test(args: &Args) -> anyhow::Result<()> {
    let client = control_plane::client(&Standing::read(args)?.kubeconfig).await?;
    let pods = Pods::new(client.clone());
    let names: Vec<String> = (1..=PODS).map(|number| format!("share-{number}")).collect();
    job::write_script(args)?;
    let wrong = timeout(ALL, run(args, &client, &pods, &names)).await;
    pods.delete(&names).await?;
    let wrong = wrong.with_context(|| format!("the pods have not told all within {ALL:?}"))??;
    ensure!(wrong.is_empty(), "{} checks failed:\n{}", wrong.len(), wrong.join("\n"));
    freed(args, &client).await?;
    println!("test: {PODS} pods on shares of one GPU, each fenced to its {MEMORY}; all given back");
    Ok(())
}

async fn run(args: &Args, client: &Client, pods: &Pods, names: &[String]) -> anyhow::Result<Vec<String>> {
    let begun = Instant::now();
    for name in names {
        pods.create(&job::pod(args, name, MEMORY)?).await?;
    }
    let mut running = Vec::new();
    for name in names {
        let (pod, took) = pods.running(name, begun).await?;
        println!("pod {name} runs after {:.2} s", took.as_secs_f64());
        running.push(pod);
    }
    let expected =
        Expected { memory_mib: MEMORY_MIB, gpu: !args.simulated, of_mib: gpu_memory(args, client).await? };
    let mut wrong = Vec::new();
    for pod in &running {
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        let resource = resource_of(pod)?;
        if resource != RESOURCE {
            wrong.push(format!("pod {name}: expected the resource {RESOURCE}, saw {resource}"));
        }
        let seen = seen(args, pods, pod).await?;
        println!("pod {name} sees {seen}");
        wrong.extend(expected.compare(&seen).into_iter().map(|text| format!("pod {name}: {text}")));
    }
    wrong.extend(held(args, client, names).await?);
    Ok(wrong)
}

/// What the pod's container tells, once it has.
async fn seen(args: &Args, pods: &Pods, pod: &Pod) -> anyhow::Result<Seen> {
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    let places = args.places();
    let begun = Instant::now();
    loop {
        let lines = container_log::lines(&places, pod, job::CONTAINER);
        if let Some(text) = lines.iter().find_map(|line| line.strip_prefix("SEES ")) {
            return serde_json::from_str(text).with_context(|| format!("pod {name} told {text}"));
        }
        let pod = pods.get(name).await?;
        let runs = pod.status.as_ref().is_some_and(|status| status.phase.as_deref() == Some("Running"));
        if !runs || begun.elapsed() > PATIENCE {
            let last = lines.get(lines.len().saturating_sub(LINES)..).unwrap_or_default().join("\n");
            bail!("pod {name} told nothing: {}; it printed:\n{last}", standing(&pod));
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// What is wrong with the agent's account of who holds what.
async fn held(args: &Args, client: &Client, names: &[String]) -> anyhow::Result<Vec<String>> {
    let all = async || Ok(holders(args, client).await? == names);
    let reported = wait(Duration::from_secs(20), "the agent to report all holders", all).await;
    let seen = holders(args, client).await?;
    let wrong = reported.err().map(|_| format!("the GpuNode: expected {names:?} as holders, saw {seen:?}"));
    Ok(wrong.into_iter().collect())
}

/// Waits until the agent knows that nobody holds anything any more.
async fn freed(args: &Args, client: &Client) -> anyhow::Result<()> {
    let none = async || Ok(holders(args, client).await?.is_empty());
    wait(Duration::from_secs(30), "the agent to report that the shares are given back", none).await
}

/// The pods that hold a slice by the agent's account.
async fn holders(args: &Args, client: &Client) -> anyhow::Result<Vec<String>> {
    let node = Api::<GpuNode>::all(client.clone()).get(&args.name).await?;
    let slices = node.read_status()?.unwrap_or_default().slices;
    let mut holders: Vec<String> = slices.into_iter().filter_map(|slice| Some(slice.holder?.pod)).collect();
    holders.sort();
    Ok(holders)
}

/// The memory of the node's first GPU, of which shares are parts.
async fn gpu_memory(args: &Args, client: &Client) -> anyhow::Result<u64> {
    let node = Api::<GpuNode>::all(client.clone()).get(&args.name).await?;
    let gpus = node.read_status()?.unwrap_or_default().gpus;
    Ok(gpus.first().context("the node has no GPU")?.memory.0)
}
