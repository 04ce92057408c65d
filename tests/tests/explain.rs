//! `kerf explain` as a user reads it: for a running pod, a pending pod, pods for which a preferred kind was passed
//! over, and a pod that kerf never saw.

use anyhow::{Context as _, ensure};
use k8s_openapi::api::core::v1::{Pod, Taint};
use kerf_core::keys;
use kerf_nvml_mock::Model;
use kerf_runtime::gpu_node::GpuNode;
use kerf_tests::binaries;
use kerf_tests::cluster::{Cluster, ClusterOptions, NodeSpec, pod, sized_pod, wait};
use kube::Api;
use kube::api::ListParams;
use serde_json::json;
use std::process::Command;
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(30);

/// An H100, which MIG cuts into seven parts.
async fn cluster() -> anyhow::Result<Cluster> {
    let options = ClusterOptions::without_controller_manager(vec![NodeSpec::new("h", Model::H100, 1)]);
    Cluster::start(options, |_| ()).await
}

fn fenced(name: &str, count: &str) -> Pod {
    pod(name, &[(keys::GPU_MEMORY, "10Gi"), (keys::GPU_COUNT, count), (keys::ISOLATION, "hardware")])
}

/// Whether `kerf nodes` with these arguments fails, and its output.
fn nodes(cluster: &Cluster, words: &[&str]) -> anyhow::Result<(bool, String)> {
    let mut kerf = Command::new(binaries::ours("kerf")?);
    let output =
        kerf.arg("nodes").args(words).arg("--kubeconfig").arg(cluster.plane().kubeconfig()).output()?;
    let text = format!("{}{}", String::from_utf8(output.stdout)?, String::from_utf8_lossy(&output.stderr));
    Ok((output.status.success(), text))
}

/// The output of `kerf explain` for a pod, without what differs from run to run.
async fn explained(cluster: &Cluster, name: &str) -> anyhow::Result<Vec<String>> {
    let uid = cluster.pods().get(name).await?.metadata.uid.context("no uid")?;
    let output = Command::new(binaries::ours("kerf")?)
        .args(["explain", name, "--kubeconfig"])
        .arg(cluster.plane().kubeconfig())
        .output()?;
    let text = String::from_utf8(output.stdout)?;
    ensure!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let mut masked = text.replace(&uid, "UID");
    for node in Api::<GpuNode>::all(cluster.plane().client()).list(&ListParams::default()).await? {
        let gpus = node.read_status()?.context("no status")?.gpus;
        masked = gpus.iter().fold(masked, |text, gpu| text.replace(gpu.uuid.as_str(), "GPU"));
    }
    Ok(masked.lines().map(without_place).collect())
}

/// The line without the place of a slice on its GPU, because any place is as good.
fn without_place(line: &str) -> String {
    match (line.find(" at "), line.find(") on GPU")) {
        (Some(from), Some(to)) if from < to => format!("{}{}", &line[..from], &line[to..]),
        _ => line.to_owned(),
    }
}

/// Checks that these line ends occur in this order. Only the ends are compared, because lines start with their times.
#[track_caller]
fn tells(said: &[String], expected: &[&str]) {
    let mut left = said.iter();
    for line in expected {
        let found = left.any(|said| said.ends_with(line));
        assert!(found, "{line:?} is not where it belongs in:\n{}", said.join("\n"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn explain_shows_a_pod_from_its_request_to_its_slice_or_its_pending_reason() -> anyhow::Result<()> {
    let cluster = cluster().await?;
    cluster.create(&fenced("runs", "7")).await?;
    cluster.running("runs").await?;
    let held = async || {
        let said = explained(&cluster, "runs").await?;
        Ok(said.iter().filter(|line| line.contains("the agent says it is held")).count() == 7)
    };
    wait(TIMEOUT, "the agent to report who holds the slices", held).await?;
    let said = explained(&cluster, "runs").await?;
    tells(
        &said,
        &[
            "Pod default/runs, uid UID",
            "Z  Created. The webhook chose for the pod, by policy default and with isolation hardware:",
            "  container main: 7 slices of nvidia.com/mig-1g.10gb, for 10 GB asked",
            "Z  Scheduled (kerf-scheduler): Successfully assigned default/runs to h",
            "  Assigned with the Binding:",
            "  container main: mig slice s1 (1g.10gb) on GPU",
            "  container main: mig slice s7 (1g.10gb) on GPU",
            "  Reserved on node h:",
            "  container main: slice s1 (1g.10gb) on GPU; the agent says it is held by container main of default/runs",
            "  container main: slice s7 (1g.10gb) on GPU; the agent says it is held by container main of default/runs",
            "  Now Running on node h.",
        ],
    );
    let assigned =
        |line: &String| line.contains("  SlicesAssigned (kerf.dev/extender): on node h: slice s1 (1g.10gb");
    assert!(said.iter().any(assigned), "{}", said.join("\n"));
    assert!(!said.iter().any(|line| line.contains("Not re")), "it is all recorded:\n{}", said.join("\n"));

    let (good, drawn) = nodes(&cluster, &["h"])?;
    assert!(good && drawn.starts_with("h GPU 0  H100-80GB\n┌"), "{drawn}");
    assert_eq!((drawn.matches("1g.10gb").count(), drawn.matches(" runs ").count()), (7, 7), "{drawn}");
    let (good, refused) = nodes(&cluster, &["x"])?;
    assert!(!good && refused.contains("node x has no GPUs") && refused.contains("there are: h"), "{refused}");

    cluster.create(&fenced("waits", "1")).await?;
    cluster.event("waits", "in use").await?;
    tells(
        &explained(&cluster, "waits").await?,
        &[
            "Z  Created. The webhook chose for the pod, by policy default and with isolation hardware:",
            "  container main: 1 slice of nvidia.com/mig-1g.10gb, for 10 GB asked",
            "  Not recorded: an assignment. The extender has not bound the pod.",
            "  Not recorded: a reservation. No GpuNode has a reservation of the pod now.",
            "  By node, not recorded but decided anew by what the nodes say now:",
            "  h: GPU slices in use",
            "  Now Pending.",
        ],
    );
    let reason = "(kerf-scheduler): 0/1 nodes are available: 1 GPU slices in use.";
    let said = explained(&cluster, "waits").await?;
    let failed = |line: &String| line.contains("  FailedScheduling ") && line.contains(reason);
    assert!(said.iter().any(failed), "{}", said.join("\n"));

    let mut strange = pod("strange", &[]);
    let limits = json!([{"name": "main", "image": "none", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]);
    strange.spec.as_mut().context("no spec")?.containers = serde_json::from_value(limits)?;
    cluster.create(&strange).await?;
    tells(
        &explained(&cluster, "strange").await?,
        &[
            "Z  Created.",
            "  Not recorded: a request. kerf's webhook has not admitted the pod, so kerf decides nothing about it.",
            "  container main asks by nvidia.com/gpu, which is kerf's only where a policy for the pod has nvidia in spec.dialects",
            "  Not recorded: an assignment. The extender has not bound the pod.",
            "  Not recorded: a reservation. No GpuNode has a reservation of the pod now.",
            "  Now Pending.",
        ],
    );
    cluster.stop().await
}

/// A T4 by MPS, and an A100 with MIG that a taint keeps from pods.
async fn cluster_with_a_taint() -> anyhow::Result<Cluster> {
    let mut tainted = NodeSpec::new("h", Model::A100Gb40, 1);
    let (key, value, effect) = ("team".to_owned(), Some("ml".to_owned()), "NoSchedule".to_owned());
    tainted.taints.push(Taint { key, value, effect, time_added: None });
    let options = ClusterOptions::without_controller_manager(vec![tainted, NodeSpec::new("t", Model::T4, 1)]);
    Cluster::start(options, |_| ()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn explain_shows_skipped_kinds_and_excluded_nodes() -> anyhow::Result<()> {
    let cluster = cluster_with_a_taint().await?;
    let share = |name: &str| sized_pod(name, "8Gi", "memory");
    cluster.create(&share("shares")).await?;
    cluster.running("shares").await?;
    let said = explained(&cluster, "shares").await?;
    tells(&said, &["  Assigned with the Binding:", "  container main: mps slice s1 (8gb MPS share) on GPU"]);
    for part in [
        "1 slice of kerf.dev/gpu-8gb, for 8 GB asked, by the first of these kinds that is free: mig, mps",
        "  mig was preferred: 1 node with free capacity is excluded by taints",
    ] {
        assert!(said.iter().any(|line| line.contains(part)), "{part:?} is not in:\n{}", said.join("\n"));
    }
    let (good, table) = nodes(&cluster, &["t", "-o", "wide"])?;
    assert!(good && table.contains("kerf.dev/gpu-8gb (mps)"), "{table}");

    cluster.create(&sized_pod("waits", "12Gi", "hardware")).await?;
    cluster.event("waits", "untolerated taint").await?;
    tells(
        &explained(&cluster, "waits").await?,
        &[
            "  By node, not recorded but decided anew by what the nodes say now:",
            "  h: left out: the pod does not tolerate its taint team=ml:NoSchedule",
            "  (CPU, volumes, quotas and the pods before it in the queue are the scheduler's part: see FailedScheduling)",
            "  Now Pending.",
        ],
    );
    cluster.stop().await
}
