//! Parts of the cluster end and come back while pods run and arrive.

use std::time::Duration;

use anyhow::Context as _;
use k8s_openapi::api::core::v1::{Pod, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kerf_core::contract::{Condition, ConditionStatus};
use kerf_core::keys;
use kerf_nvml_mock::Model;
use kerf_tests::cluster::{Cluster, ClusterOptions, NodeSpec, pod, sized_pod, wait};
use kerf_tests::oracle::Truth;
use rustix::process::Signal;
use serde_json::Value;

const TIMEOUT: Duration = Duration::from_secs(30);

async fn cluster() -> anyhow::Result<Cluster> {
    let nodes = vec![NodeSpec::new("h", Model::H100, 1), NodeSpec::new("t", Model::T4, 1)];
    let cluster = Cluster::start(ClusterOptions::without_controller_manager(nodes), |_| ()).await?;
    for (name, memory, class) in [("cut", "10Gi", "hardware"), ("share", "4Gi", "none")] {
        cluster.create(&sized_pod(name, memory, class)).await?;
        cluster.running(name).await?;
    }
    Ok(cluster)
}

/// A pod with this limit of a resource name.
fn with_limit(name: &str, limit: &str, amount: &str) -> Pod {
    let mut pod = pod(name, &[]);
    for container in pod.spec.iter_mut().flat_map(|spec| &mut spec.containers) {
        let limits = [(limit.to_owned(), Quantity(amount.to_owned()))].into();
        container.resources = Some(ResourceRequirements { limits: Some(limits), ..Default::default() });
    }
    pod
}

/// Checks that new pods of both kinds run, that the old ones still do, and that every invariant holds.
async fn goes_on(cluster: &Cluster) -> anyhow::Result<()> {
    for (name, memory, class) in [("cut-2", "10Gi", "hardware"), ("share-2", "4Gi", "none")] {
        cluster.create(&sized_pod(name, memory, class)).await?;
    }
    for name in ["cut", "share", "cut-2", "share-2"] {
        cluster.running(name).await?;
    }
    let truth = Truth::observe(cluster).await?;
    let problems = [truth.violations(), truth.unexplained()].concat();
    anyhow::ensure!(problems.is_empty(), "{}", problems.join("\n"));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_agent_restores_its_state() -> anyhow::Result<()> {
    let mut cluster = cluster().await?;
    let before = cluster.nodes()[0].gpus()?.slices();
    for node in cluster.nodes_mut() {
        node.agent().kill()?;
        node.agent().restart()?;
    }
    goes_on(&cluster).await?;
    let after = cluster.nodes()[0].gpus()?.slices();
    assert!(before.iter().all(|slice| after.contains(slice)), "{before:?} is not all in {after:?}");
    cluster.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_agent_delays_no_pod() -> anyhow::Result<()> {
    let nodes = vec![NodeSpec::new("n1", Model::H100, 1), NodeSpec::new("n2", Model::H100, 1)];
    let mut cluster = Cluster::start(ClusterOptions::without_controller_manager(nodes), |_| ()).await?;
    // The frozen node is still a candidate: its connection stays open for a while, and of equal nodes the first by name
    // is chosen.
    cluster.nodes_mut()[0].agent().signal(Signal::STOP)?;
    cluster.create(&sized_pod("a", "10Gi", "hardware")).await?;
    let bound = async || {
        let spec = cluster.pods().get("a").await?.spec.unwrap_or_default();
        Ok(spec.node_name.as_deref() == Some("n2"))
    };
    wait(TIMEOUT * 3, "the pod to be placed on n2", bound).await?;
    cluster.running("a").await?;

    cluster.nodes_mut()[0].agent().kill()?;
    cluster.nodes_mut()[0].agent().restart()?;
    cluster.create(&sized_pod("whole", "80Gi", "hardware")).await?;
    let whole = cluster.running("whole").await?;
    assert_eq!(whole.spec.and_then(|spec| spec.node_name).as_deref(), Some("n1"));
    Truth::ensure_sound(&cluster).await?;
    cluster.stop().await
}

/// The file that agents without a ledger read and write, and the mark of one that an agent with a ledger has written.
const OLD_RECORD: &str = "checkpoint.json";
const MIRROR: &str = "mirrorsLedger";

/// The pods of a node's slices by the record that agents without a ledger read.
fn pods_of_the_old_record(record: &Value) -> Vec<&str> {
    let slices = record["spec"]["slices"].as_array().into_iter().flatten();
    slices.filter_map(|slice| slice["reservation"]["pod"].as_str()).collect()
}

/// An agent without a ledger does not connect to the extender, and drops unknown fields when it writes its record. The
/// test plays such an agent: it stops the agent and removes a field from the record.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_is_rolled_back_and_upgraded_again_while_pods_run_and_are_pending() -> anyhow::Result<()> {
    let mut cluster = cluster().await?;
    let node = &mut cluster.nodes_mut()[0];
    let before = node.gpus()?.slices();
    let file = node.node().record_folder().join(OLD_RECORD);
    let record = || anyhow::Ok(serde_json::from_slice::<Value>(&std::fs::read(&file)?)?);
    node.agent().terminate(TIMEOUT)?;
    let mut old = record()?;
    assert_eq!(pods_of_the_old_record(&old), ["cut"]);
    let marked = old.as_object_mut().and_then(|fields| fields.remove(MIRROR));
    assert_eq!(marked, Some(true.into()));
    std::fs::write(&file, serde_json::to_vec(&old)?)?;

    cluster.create(&sized_pod("pending", "10Gi", "hardware")).await?;
    cluster.event("pending", "kerf agent not connected to the extender").await?;
    cluster.create(&sized_pod("beside", "4Gi", "none")).await?;
    cluster.running("beside").await?;
    assert_eq!(cluster.phase("cut").await?, "Running");

    cluster.nodes_mut()[0].agent().restart()?;
    cluster.running("pending").await?;
    goes_on(&cluster).await?;
    let node = &mut cluster.nodes_mut()[0];
    let after = node.gpus()?.slices();
    assert!(before.iter().all(|slice| after.contains(slice)), "{before:?} is not all in {after:?}");

    node.agent().terminate(TIMEOUT)?;
    let last = record()?;
    assert_eq!(last[MIRROR], true);
    let mut pods = pods_of_the_old_record(&last);
    pods.sort_unstable();
    assert_eq!(pods, ["cut", "cut-2", "pending"]);
    assert!(last["spec"]["epoch"].as_u64() >= old["spec"]["epoch"].as_u64(), "{last}");
    cluster.stop().await
}

/// The API server reaches the agent all the while.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_whose_agent_is_disconnected_keeps_its_pods_and_gets_no_others() -> anyhow::Result<()> {
    let nodes = vec![NodeSpec::new("n1", Model::H100, 1), NodeSpec::new("n2", Model::H100, 1)];
    let mut cluster = Cluster::start(ClusterOptions::without_controller_manager(nodes), |_| ()).await?;
    cluster.create(&sized_pod("before", "10Gi", "hardware")).await?;
    let before = cluster.running("before").await?;
    let name = before.spec.and_then(|spec| spec.node_name).unwrap_or_default();
    let node = cluster.nodes_mut().iter_mut().find(|node| node.name() == name).context("it is on a node")?;
    let (file, token) = (node.token().to_owned(), std::fs::read_to_string(node.token())?);
    std::fs::write(&file, "a.forged.token")?;
    node.agent().kill()?;
    node.agent().restart()?;
    let is_cut_off = async || {
        let status = cluster.gpu_node(&name).await?.read_status()?.unwrap_or_default();
        let connected = status.condition(Condition::CONNECTED);
        Ok(connected.is_some_and(|condition| condition.status == ConditionStatus::False))
    };
    wait(TIMEOUT, "the node to say that it is not connected", is_cut_off).await?;

    cluster.create(&sized_pod("whole", "80Gi", "hardware")).await?;
    let whole = cluster.running("whole").await?.spec.and_then(|spec| spec.node_name);
    anyhow::ensure!(whole.is_some_and(|other| other != name), "it is on the node that is cut off");
    cluster.create(&sized_pod("after", "10Gi", "hardware")).await?;
    cluster.event("after", "kerf agent not connected to the extender").await?;
    assert_eq!(cluster.phase("before").await?, "Running");

    std::fs::write(&file, token)?;
    let after = cluster.running("after").await?.spec.and_then(|spec| spec.node_name);
    assert_eq!(after.as_deref(), Some(name.as_str()));
    Truth::ensure_sound(&cluster).await?;
    cluster.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_registers_every_name_again_after_a_kubelet_restart() -> anyhow::Result<()> {
    let cluster = cluster().await?;
    for node in cluster.nodes() {
        node.kubelet().restart().await?;
    }
    let healthy = async || {
        Ok(cluster.nodes().iter().all(|n| {
            n.kubelet().healthy_devices().values().map(std::collections::BTreeSet::len).sum::<usize>() == 1
        }))
    };
    wait(TIMEOUT, "held devices to be offered again", healthy).await?;
    goes_on(&cluster).await?;
    cluster.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_extender_keeps_every_reservation() -> anyhow::Result<()> {
    let mut cluster = cluster().await?;
    let before = cluster.gpu_node("h").await?.read_desired()?;
    cluster.extender().kill()?;
    cluster.extender().restart()?;
    goes_on(&cluster).await?;
    let after = cluster.gpu_node("h").await?.read_desired()?;
    assert!(before.slices.iter().all(|s| after.slices.contains(s)), "{before:?} is not all in {after:?}");
    cluster.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scheduler_that_restarts_finds_reserved_pods_again() -> anyhow::Result<()> {
    let mut cluster = cluster().await?;
    cluster.plane_mut().restart("kerf-scheduler").await?;
    goes_on(&cluster).await?;
    cluster.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_without_a_gpu_do_not_need_kerf() -> anyhow::Result<()> {
    let mut cluster = cluster().await?;
    cluster.webhook().kill()?;
    cluster.extender().kill()?;
    // A pod that writes 0 GPUs asks for none, and so does one that is marked movable, as some clusters mark all pods.
    for (name, plain) in
        [("plain", pod("plain", &[])), ("movable", pod("movable", &[(keys::MOVABLE, "true")]))]
    {
        cluster.create(&plain).await?;
        let plain = cluster.running(name).await?;
        assert_eq!(plain.spec.and_then(|s| s.scheduler_name).as_deref(), Some("default-scheduler"), "{name}");
    }
    // Whether they run is up to the kubelet: it rejects an amount of 0 of a name for which a node's agent has no
    // healthy device (`docs/troubleshooting.md`).
    for (name, limit) in [("no-gpu", "nvidia.com/gpu"), ("no-slice", "nvidia.com/mig-1g.10gb")] {
        cluster.create(&with_limit(name, limit, "0")).await?;
        wait(TIMEOUT, &format!("{name} to be bound"), async || {
            let spec = cluster.pods().get(name).await?.spec.unwrap_or_default();
            Ok(spec.node_name.is_some() && spec.scheduler_name.as_deref() == Some("default-scheduler"))
        })
        .await?;
    }
    let one = cluster.refusal(&with_limit("one", "nvidia.com/mig-1g.10gb", "1")).await?;
    assert!(one.contains("pods.kerf.dev"), "{one}");
    let refusal = cluster.refusal(&sized_pod("late", "4Gi", "none")).await?;
    assert!(refusal.contains("pods.kerf.dev"), "{refusal}");
    cluster.stop().await
}
