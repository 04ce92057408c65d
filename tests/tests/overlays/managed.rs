//! The layouts of managed nodes, one after the other on one node: the node follows the policy, and the workload of each
//! layout reaches the state that the demo's text describes.

use super::{built, policies};
use k8s_openapi::api::core::v1::{Node, Pod};
use kerf_nvml_mock::Model;
use kerf_tests::cluster::{Cluster, ClusterOptions, NodeSpec, root, wait};
use kerf_tests::overlays::{Layout, MANAGED};
use kerf_tests::pods::phase_of;
use kube::Api;
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_mins(1);

#[tokio::test(flavor = "multi_thread")]
async fn each_layout_applies_to_a_gpu_without_mig() -> anyhow::Result<()> {
    each_in_turn(Model::A10G).await
}

#[tokio::test(flavor = "multi_thread")]
async fn each_layout_applies_to_a_gpu_with_mig() -> anyhow::Result<()> {
    each_in_turn(Model::A100Gb80).await
}

async fn each_in_turn(gpu: Model) -> anyhow::Result<()> {
    let shipped = tempfile::tempdir()?;
    std::fs::copy(root().join("policies/default.yaml"), shipped.path().join("default.yaml"))?;
    let mut options = ClusterOptions::new(vec![NodeSpec::new("g", gpu, 1)]);
    options.policy = Some(shipped.path().to_owned());
    let cluster = Cluster::start(options, |_| ()).await?;
    for layout in MANAGED.iter().filter(|layout| layout.gpu == gpu) {
        shows(&cluster, layout).await?;
    }
    cluster.stop().await
}

async fn shows(cluster: &Cluster, layout: &Layout) -> anyhow::Result<()> {
    let Layout { overlay, workload, running, pending, labels, .. } = layout;
    let policy = &policies(&built(&format!("overlays/{overlay}"))?)?[&format!("node-layout-{overlay}.yaml")];
    // Replaces the file as a ConfigMap volume does: as a whole, never half.
    let whole = cluster.policy_file().with_extension("new");
    std::fs::write(&whole, policy)?;
    std::fs::rename(whole, cluster.policy_file().join("node-layout.yaml"))?;
    let name = overlay;
    let filled = async || {
        let node = cluster.gpu_node("g").await?;
        let from = node.metadata.annotations.and_then(|all| all.get(kerf_core::keys::NODE_POLICY).cloned());
        Ok(from.as_deref() == Some(*name))
    };
    wait(TIMEOUT, &format!("{overlay} to reach the node"), filled).await?;

    let folder = root().join("deploy/examples/validation").join(workload).display().to_string();
    cluster.plane().kubectl(&["apply", "--server-side", "-k", &folder]).await?;
    let pods = Api::<Pod>::namespaced(cluster.plane().client(), "demo");
    let nodes = Api::<Node>::all(cluster.plane().client());
    let settled = async || {
        let phases: Vec<_> = pods.list(&kube::api::ListParams::default()).await?.items;
        let in_phase = |phase: &str| phases.iter().filter(|pod| phase_of(pod) == phase).count();
        let present = nodes.get("g").await?.metadata.labels.unwrap_or_default();
        let wrong: Vec<_> = labels
            .iter()
            .filter(|(key, value)| {
                present.get(&format!("nvidia.com/{key}")).map(String::as_str) != Some(*value)
            })
            .collect();
        let found = (in_phase("Running"), in_phase("Pending"));
        anyhow::ensure!(
            found == (*running, *pending) && wrong.is_empty(),
            "{found:?} {wrong:?} of {present:?}"
        );
        Ok(true)
    };
    wait(TIMEOUT, &format!("{overlay} to show {workload}"), settled).await?;

    cluster.plane().kubectl(&["delete", "deployment", "--all", "-n", "demo"]).await?;
    let gone = async || Ok(pods.list(&kube::api::ListParams::default()).await?.items.is_empty());
    wait(TIMEOUT, &format!("the pods of {workload} to go"), gone).await
}
