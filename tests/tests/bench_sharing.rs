//! `kerf bench` on a local cluster: the real program, Deployments, pods that run the client as processes, logs through
//! the API server. The workload is `sleep`, so these tests say nothing about speed.

use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kerf_cli::bench::{NeighbourResults, ProfileResults, Results, Technology};
use kerf_core::inventory::NodeInventory;
use kerf_nvml_mock::{MigMode, MockConfig, Model};
use kerf_tests::binaries;
use kerf_tests::cluster::{Cluster, ClusterOptions, NodeSpec, root, wait};
use kube::api::{Api, ListParams};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use tempfile::TempDir;
use tokio::process::Command;

const TIMEOUT: Duration = Duration::from_mins(1);

/// A node with one GPU in MIG mode and one without MIG.
async fn cluster() -> anyhow::Result<Cluster> {
    let gpus = MockConfig::new().seed("b").gpus(Model::H100, 1, MigMode::Enabled).gpus(
        Model::L4,
        1,
        MigMode::Disabled,
    );
    let node = NodeSpec { gpus, ..NodeSpec::new("b", Model::L4, 0) };
    Cluster::start(ClusterOptions::new(vec![node.running_commands()]), |_| ()).await
}

/// The client's path on this machine, because the containers are processes of it.
fn client() -> String {
    root().join("deploy/examples/sharing/client").display().to_string()
}

/// Calls of `kerf bench` with a folder of their own.
struct Bench {
    folder: TempDir,
    kubeconfig: PathBuf,
    /// How long a run measures.
    measure: &'static str,
}

impl Bench {
    fn new(cluster: &Cluster) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir()?;
        let template = json!({"spec": {
            "terminationGracePeriodSeconds": 2,
            "containers": [{
                "name": "client", "image": "none", "command": ["/usr/bin/python3"],
                "env": [{"name": "PORT", "value": "0"}, {"name": "PYTHONDONTWRITEBYTECODE", "value": "1"}],
            }],
        }});
        std::fs::write(folder.path().join("template.yaml"), template.to_string())?;
        Ok(Self { folder, kubeconfig: cluster.plane().kubeconfig().to_owned(), measure: "2s" })
    }

    /// A turn of this many seconds, one copy after another. With several copies each surely takes longer, however busy
    /// the machine is, as the bench expects of a GPU.
    fn turn(&self, seconds: &str) -> [String; 4] {
        let lock = self.folder.path().join("gpu").display().to_string();
        ["flock".to_owned(), lock, "sleep".to_owned(), seconds.to_owned()]
    }

    fn out(&self) -> PathBuf {
        self.folder.path().join("out")
    }

    fn command(&self, what: &str, flags: &[&str]) -> anyhow::Result<Command> {
        let mut command = Command::new(binaries::ours("kerf")?);
        command.args(["bench", what, "--warm-up", "1s", "--start-within", "1m", "--measure", self.measure]);
        command.arg("--kubeconfig").arg(&self.kubeconfig).arg("--out").arg(self.out()).args(flags);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        Ok(command)
    }

    /// A command whose pods run the client.
    fn of_client(&self, what: &str, flags: &[&str]) -> anyhow::Result<Command> {
        let (template, client) = (self.folder.path().join("template.yaml"), client());
        let pods = [
            "--workload",
            "command",
            "--client-path",
            &client,
            "--template",
            &template.display().to_string(),
        ];
        self.command(what, &[&pods[..], flags].concat())
    }

    fn read<T: serde::de::DeserializeOwned>(&self, name: &str) -> anyhow::Result<T> {
        let text = std::fs::read(self.out().join(name)).with_context(|| format!("{name} was not written"))?;
        Ok(serde_json::from_slice(&text)?)
    }
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Checks that nothing of a run is left.
async fn nothing_left(cluster: &Cluster) -> anyhow::Result<()> {
    let mine = ListParams::default().labels("app.kubernetes.io/name=kerf-bench");
    let client = cluster.plane().client();
    let deployments = Api::<Deployment>::default_namespaced(client.clone()).list(&mine).await?.items.len();
    let config_maps = Api::<ConfigMap>::default_namespaced(client.clone()).list(&mine).await?.items.len();
    let pods = Api::<Pod>::default_namespaced(client).list(&mine).await?.items.len();
    ensure!(
        (deployments, config_maps, pods) == (0, 0, 0),
        "{deployments} deployments, {config_maps} config maps and {pods} pods are left"
    );
    wait(TIMEOUT, "the slices to be given back", async || {
        let object = cluster.gpu_node("b").await?;
        let inventory =
            NodeInventory::from_spec(&object.read_desired()?, &object.read_status()?.unwrap_or_default());
        Ok(inventory.gpus.iter().all(|gpu| gpu.taken().next().is_none()))
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn copies_are_measured_under_every_technology_that_the_node_has() -> anyhow::Result<()> {
    let cluster = cluster().await?;
    let bench = Bench::new(&cluster)?;
    let flags = ["--copies", "1,2", "--memory", "6Gi", "--threads", "30", "--"];
    let turn = bench.turn("0.02");
    let turn: Vec<&str> = turn.iter().map(String::as_str).collect();
    let output = bench.of_client("sharing", &[&flags[..], &turn].concat())?.output().await?;
    ensure!(output.status.success(), "{}", text(&output));
    let results: Results = bench.read("results.json")?;
    let reported: Vec<_> = results
        .points
        .iter()
        .map(|point| {
            format!("{} {} {} {:?}", point.copies, point.technology, point.slice, point.threads_percent)
        })
        .collect();
    assert_eq!(
        reported,
        [
            "1 time-slicing 6gb time slice None",
            "2 time-slicing 6gb time slice None",
            "1 mps 6gb MPS share with 100 % of the compute Some(100)",
            "2 mps 6gb MPS share with 50 % of the compute Some(50)",
            "1 mps-limited 6gb MPS share with 30 % of the compute Some(30)",
            "2 mps-limited 6gb MPS share with 30 % of the compute Some(30)",
            "1 whole whole GPU of 23 GB None",
            "1 mig 1g.10gb None",
            "2 mig 1g.10gb None",
        ]
    );
    for point in &results.points {
        let figures = &point.figures;
        ensure!(figures.mean_seconds >= 0.02 && figures.window_seconds >= 2.0, "{point:?}");
        ensure!(figures.p50_seconds <= figures.p99_seconds && figures.turns > 0, "{point:?}");
    }
    assert_eq!((results.failed.len(), results.gpus.len()), (0, 2));
    let printed = text(&output);
    let why = "no prediction: the 2 copies under MPS had 50 % of the threads each";
    ensure!(printed.contains("mps-limited") && printed.contains(why), "{printed}");
    for file in ["results.md", "sensors.csv", "sharing.svg"] {
        ensure!(bench.out().join(file).metadata()?.len() > 100, "{file} is empty");
    }
    nothing_left(&cluster).await?;
    cluster.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failure_is_reported_with_the_pods_output_and_the_benchmark_cleans_up() -> anyhow::Result<()> {
    let cluster = cluster().await?;
    let bench = Bench::new(&cluster)?;
    let mps = ["--technologies", "mps", "--copies", "1", "--memory", "6Gi"];
    let failing = [&mps[..], &["--", "false"]].concat();
    let output = bench.of_client("sharing", &failing)?.output().await?;
    assert_eq!(output.status.code(), Some(1));
    let results: Results = bench.read("results.json")?;
    assert_eq!((results.points.len(), results.failed[0].technology), (0, Technology::Mps));
    let reason = &results.failed[0].reason;
    ensure!(reason.contains("its container ended") && reason.contains("CalledProcessError"), "{reason}");
    nothing_left(&cluster).await?;

    // A run that is stopped in the middle must clean up, too.
    let sleeping = [&mps[..], &["--", "sleep", "0.01"]].concat();
    let long = Bench { measure: "10m", ..bench };
    let running = long.of_client("sharing", &sleeping)?.spawn()?;
    let pods = cluster.pods();
    let mine = ListParams::default().labels("app.kubernetes.io/name=kerf-bench");
    let runs =
        |pod: &Pod| pod.status.as_ref().is_some_and(|status| status.phase.as_deref() == Some("Running"));
    wait(TIMEOUT, "a copy to run", async || Ok(pods.list(&mine).await?.items.iter().any(runs))).await?;
    let id = i32::try_from(running.id().context("it has ended")?)?;
    kill_process(Pid::from_raw(id).context("it has no id")?, Signal::INT)?;
    let output = tokio::time::timeout(TIMEOUT, running.wait_with_output()).await??;
    ensure!(!output.status.success() && text(&output).contains("stopped by a signal"), "{}", text(&output));
    nothing_left(&cluster).await?;
    cluster.stop().await
}

/// A user's own pod that writes the same lines as the client.
fn manifest(folder: &Path, turn: &[String]) -> anyhow::Result<PathBuf> {
    let client = format!("{}/client.py", client());
    let command =
        ["/usr/bin/python3", "-B", &client, "--workload", "command", "--port", "0", "--warm-up", "1", "--"];
    let command: Vec<&str> = command.into_iter().chain(turn.iter().map(String::as_str)).collect();
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "serving", "annotations": {"kerf.dev/gpu-memory": "6Gi"}},
        "spec": {"containers": [{"name": "main", "image": "none", "command": command}], "terminationGracePeriodSeconds": 2},
    });
    let path = folder.join("pod.yaml");
    std::fs::write(&path, pod.to_string())?;
    Ok(path)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_is_profiled_and_neighbours_are_measured_if_mig_is_on() -> anyhow::Result<()> {
    let cluster = cluster().await?;
    let bench = Bench::new(&cluster)?;
    let pod = manifest(bench.folder.path(), &bench.turn("0.2"))?.display().to_string();
    // If each copy had half of the threads, its limit could be what slows it down.
    let policy = json!([{"op": "add", "path": "/spec/policy", "value": {"gpus": [{"mps": {"computeLimit": "none"}}]}}]);
    cluster
        .plane()
        .kubectl(&["patch", "gpunode", "b", "--type=json", "--patch", &policy.to_string()])
        .await?;
    let output = bench.command("profile", &["-f", &pod, "--copies", "2"])?.output().await?;
    ensure!(output.status.success(), "{}", text(&output));
    let profile: ProfileResults = bench.read("profile.json")?;
    assert_eq!(profile.points.iter().map(|point| point.copies).collect::<Vec<_>>(), [1, 2]);
    ensure!(profile.points.iter().all(|point| point.slice == "6gb MPS share"), "{profile:?}");
    ensure!(profile.workload.alone().seconds() >= 0.2 && profile.advice.is_some(), "{profile:?}");
    nothing_left(&cluster).await?;

    let flags = ["--profiles", "1g.10gb", "--neighbour", "command", "--", "sleep", "0.01"];
    let output = bench.of_client("neighbours", &flags)?.output().await?;
    ensure!(output.status.success(), "{}", text(&output));
    let neighbours: NeighbourResults = bench.read("neighbours.json")?;
    let row = neighbours.rows.first().context("no row")?;
    assert_eq!(row.profile, "1g.10gb");
    ensure!(
        row.neighbour.starts_with("command in 1g.10gb at") && !row.neighbour.ends_with(&row.slice),
        "{row:?}"
    );
    nothing_left(&cluster).await?;

    let refused =
        bench.of_client("neighbours", &["--profiles", "1c.3g.40gb", "--", "sleep", "1"])?.output().await?;
    ensure!(text(&refused).contains("computeInstances"), "{}", text(&refused));
    cluster.stop().await
}
