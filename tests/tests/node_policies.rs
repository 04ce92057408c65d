//! Policies for nodes as files: they reach the `GpuNodes` that they match, and the agents apply them. When a file is
//! removed, what it filled is the default again. What an admin wrote by hand stays if no file is for the node.

use anyhow::Context as _;
use kerf_core::keys;
use kerf_core::kind::Kind;
use kerf_nvml_mock::Model;
use kerf_tests::cluster::{Cluster, ClusterOptions, NodeSpec, root, wait};
use serde_json::{Value, json};
use std::path::Path;
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(30);

/// A policy for the nodes of this name that allows these kinds.
fn document(node: &str, kinds: &str) -> String {
    format!(
        "apiVersion: kerf.dev/v1alpha1\nkind: GpuNodePolicy\nmetadata: {{name: pool}}\nspec:\n  match: {{names: [{node}]}}\n  gpus:\n  - kinds: [{kinds}]\n"
    )
}

/// The GpuNode's policy, and the document that filled it.
async fn policy(cluster: &Cluster, node: &str) -> anyhow::Result<(Value, Option<String>)> {
    let found = cluster.gpu_node(node).await?;
    let policy = found.spec.context("no spec")?["policy"].clone();
    Ok((policy, found.metadata.annotations.and_then(|all| all.get(keys::NODE_POLICY).cloned())))
}

async fn kinds(cluster: &Cluster, node: &str, kinds: &[Kind]) -> anyhow::Result<()> {
    let are = async || {
        let status = cluster.gpu_node(node).await?.read_status()?.context("no status")?;
        Ok(status.gpus.iter().all(|gpu| gpu.kinds == kinds))
    };
    wait(TIMEOUT, &format!("the agent of {node} to serve {kinds:?}"), are).await
}

fn write(folder: &Path, text: &str) -> anyhow::Result<()> {
    // Replaces the file as a ConfigMap volume does: as a whole, never half.
    let whole = folder.with_extension("new");
    std::fs::write(&whole, text)?;
    Ok(std::fs::rename(whole, folder.join("50-pool.yaml"))?)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_policy_file_applies_to_matching_nodes_and_its_removal_reverts_them() -> anyhow::Result<()> {
    let shipped = tempfile::tempdir()?;
    std::fs::copy(root().join("policies/default.yaml"), shipped.path().join("90-default.yaml"))?;
    let nodes = vec![NodeSpec::new("pool-1", Model::T4, 1), NodeSpec::new("other", Model::T4, 1)];
    let mut options = ClusterOptions::without_controller_manager(nodes);
    options.policy = Some(shipped.path().to_owned());
    let cluster = Cluster::start(options, |_| ()).await?;
    let by_hand = json!({"gpus": [{"kinds": ["mps"]}]});
    let patch = json!([{"op": "add", "path": "/spec/policy", "value": by_hand}]).to_string();
    cluster.plane().kubectl(&["patch", "gpunode", "other", "--type=json", "--patch", &patch]).await?;

    let folder = cluster.policy_file();
    write(folder, &document("pool-*", "time-slicing"))?;
    kinds(&cluster, "pool-1", &[Kind::TimeSlicing]).await?;
    let filled = (json!({"gpus": [{"kinds": ["time-slicing"]}]}), Some("pool".to_owned()));
    assert_eq!(policy(&cluster, "pool-1").await?, filled);
    kinds(&cluster, "other", &[Kind::Mps]).await?;
    assert_eq!(policy(&cluster, "other").await?, (by_hand.clone(), None), "what is written by hand stays");

    write(folder, &document("pool-*", "whole"))?;
    kinds(&cluster, "pool-1", &[Kind::Whole]).await?;
    write(folder, "apiVersion: kerf.dev/v1alpha1\nkind: GpuNodePolicy\n")?;
    tokio::time::sleep(Duration::from_secs(3)).await;
    kinds(&cluster, "pool-1", &[Kind::Whole]).await?;

    std::fs::remove_file(folder.join("50-pool.yaml"))?;
    kinds(&cluster, "pool-1", &[Kind::Whole, Kind::Mps, Kind::TimeSlicing]).await?;
    assert_eq!(policy(&cluster, "pool-1").await?, (json!({}), None));
    assert_eq!(policy(&cluster, "other").await?, (by_hand, None));
    cluster.stop().await
}
