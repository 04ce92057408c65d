//! An evictable pod restarts elsewhere to make room for a bigger one; a pod that is not evictable stays where it is.

use k8s_openapi::api::core::v1::Pod;
use kerf_core::keys;
use kerf_nvml_mock::Model;
use kerf_tests::cluster::{Cluster, ClusterOptions, NodeSpec, owned, sized_pod, wait};
use kerf_tests::oracle::Truth;
use std::collections::BTreeMap;
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(30);

fn asking(name: &str, memory: &str, node: Option<&str>) -> Pod {
    let mut pod = sized_pod(name, memory, "hardware");
    if let (Some(spec), Some(node)) = (&mut pod.spec, node) {
        let selector = BTreeMap::from([("kubernetes.io/hostname".to_owned(), node.to_owned())]);
        spec.node_selector = Some(selector);
    }
    pod
}

/// The pod as a controller creates it, marked by its owner.
fn movable(mut pod: Pod) -> Pod {
    pod = owned(pod);
    pod.metadata.annotations.get_or_insert_default().insert(keys::MOVABLE.to_owned(), "true".to_owned());
    pod
}

async fn node_of(cluster: &Cluster, name: &str) -> anyhow::Result<Option<String>> {
    Ok(cluster.pods().get(name).await?.spec.and_then(|spec| spec.node_name))
}

#[tokio::test(flavor = "multi_thread")]
async fn one_evictable_pod_is_evicted_and_runs_again_on_another_node() -> anyhow::Result<()> {
    let nodes = vec![NodeSpec::new("n1", Model::H100, 1), NodeSpec::new("n2", Model::H100, 1)];
    let cluster = Cluster::start(ClusterOptions::without_controller_manager(nodes), |_| ()).await?;
    cluster.create(&asking("half", "40Gi", Some("n2"))).await?;
    cluster.running("half").await?;
    // A cordon leads the pod to n1, because a node selector would keep its successor there, too.
    cluster.cordon("n2", true).await?;
    cluster.create(&movable(asking("small", "10Gi", None))).await?;
    cluster.running("small").await?;
    assert_eq!(node_of(&cluster, "small").await?.as_deref(), Some("n1"));
    cluster.cordon("n2", false).await?;

    cluster.create(&asking("whole", "80Gi", None)).await?;
    let gone = async || Ok(cluster.pods().get_opt("small").await?.is_none());
    wait(TIMEOUT, "small to be evicted", gone).await?;
    cluster.event("small", "evicted from n1 so that default/whole finds room").await?;
    // No controller runs here, so the test recreates the evicted pod.
    cluster.create(&movable(asking("small-again", "10Gi", None))).await?;
    cluster.running("whole").await?;
    cluster.running("small-again").await?;
    assert_eq!(node_of(&cluster, "whole").await?.as_deref(), Some("n1"));
    assert_eq!(node_of(&cluster, "small-again").await?.as_deref(), Some("n2"));
    assert_eq!(cluster.phase("half").await?, "Running", "who may not be moved stays");

    cluster.create(&asking("another", "80Gi", None)).await?;
    cluster.event("another", "GPU slices in use").await?;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(cluster.phase("small-again").await?, "Running");
    Truth::ensure_sound(&cluster).await?;
    cluster.stop().await
}
