//! Namespaces' quotas on a real control plane: many pods at once never exceed one, a pod that is held back gets an
//! Event, and the end of one pod lets the next in; also after the extender has died.

use anyhow::Context as _;
use k8s_openapi::api::core::v1::{Event, Namespace, Pod};
use kerf_nvml_mock::Model;
use kerf_tests::cluster::{Cluster, ClusterOptions, NodeSpec, root, sized_pod, wait};
use kerf_tests::oracle::Truth;
use kerf_tests::pods::phase_of;
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use std::path::PathBuf;
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(30);
const TEAM: &str = "team";
/// Two H100 serve 14 of these; the quota allows three.
const QUOTA: usize = 3;

/// The shipped policy with a quota of memory for each namespace.
fn policy() -> anyhow::Result<(tempfile::TempDir, PathBuf)> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("policy.yaml");
    let shipped = std::fs::read_to_string(root().join("policies/default.yaml"))?;
    let with_quota = shipped.replacen("\nspec:\n", "\nspec:\n  quota: {memoryGb: 30}\n", 1);
    anyhow::ensure!(with_quota != shipped, "the shipped policy has no spec");
    std::fs::write(&path, with_quota)?;
    Ok((folder, path))
}

struct Team(Api<Pod>, Api<Event>);

impl Team {
    async fn new(cluster: &Cluster) -> anyhow::Result<Self> {
        let client = cluster.plane().client();
        let mut namespace = Namespace::default();
        namespace.metadata.name = Some(TEAM.to_owned());
        Api::<Namespace>::all(client.clone()).create(&PostParams::default(), &namespace).await?;
        Ok(Self(Api::namespaced(client.clone(), TEAM), Api::namespaced(client, TEAM)))
    }

    async fn create(&self, name: &str) -> anyhow::Result<()> {
        let mut pod = sized_pod(name, "10Gi", "hardware");
        pod.metadata.namespace = Some(TEAM.to_owned());
        self.0.create(&PostParams::default(), &pod).await?;
        Ok(())
    }

    /// The names of the running pods.
    async fn running(&self) -> anyhow::Result<Vec<String>> {
        let pods = self.0.list(&ListParams::default()).await?.items;
        Ok(pods
            .into_iter()
            .filter(|pod| phase_of(pod) == "Running")
            .filter_map(|pod| pod.metadata.name)
            .collect())
    }

    async fn reported(&self, reason: &str) -> anyhow::Result<Vec<String>> {
        let events = self.1.list(&ListParams::default()).await?.items;
        let of = events.into_iter().filter(|event| event.reason.as_deref() == Some(reason));
        Ok(of.filter_map(|event| event.message).collect())
    }
}

/// Waits until as many run as may, and then for a while, in case more of them start.
async fn full(team: &Team) -> anyhow::Result<Vec<String>> {
    wait(TIMEOUT, "the quota to be used", async || Ok(team.running().await?.len() >= QUOTA)).await?;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let running = team.running().await?;
    assert_eq!(running.len(), QUOTA, "{running:?} run");
    Ok(running)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_uses_its_whole_quota_and_never_exceeds_it() -> anyhow::Result<()> {
    let (_folder, policy) = policy()?;
    let nodes = vec![NodeSpec::new("n1", Model::H100, 1), NodeSpec::new("n2", Model::H100, 1)];
    let mut options = ClusterOptions::without_controller_manager(nodes);
    options.policy = Some(policy);
    let mut cluster = Cluster::start(options, |_| ()).await?;
    let team = Team::new(&cluster).await?;
    for number in 0..6 {
        team.create(&format!("p{number}")).await?;
    }
    full(&team).await?;
    let quota_full = async || Ok(!team.reported("QuotaFull").await?.is_empty());
    wait(TIMEOUT, "an Event about the quota", quota_full).await?;
    let reported = team.reported("QuotaFull").await?;
    let text = "namespace team holds 30 of 30 GB under policy default, the pod asks 10";
    assert!(reported.iter().any(|reported| reported == text), "{reported:?}");
    cluster.create(&sized_pod("other", "10Gi", "hardware")).await?;
    cluster.running("other").await?;

    cluster.extender().kill()?;
    cluster.extender().restart()?;
    for _ in 0..2 {
        let first = team.running().await?.into_iter().next().context("none runs")?;
        team.0.delete(&first, &DeleteParams::default().grace_period(0)).await?;
        wait(TIMEOUT, "the pod to go", async || Ok(team.0.get_opt(&first).await?.is_none())).await?;
        full(&team).await?;
    }
    Truth::ensure_sound(&cluster).await?;
    cluster.stop().await
}
