//! kube-scheduler evicts pods for one that needs CPU and a slice only where that pod then has its slice.

use k8s_openapi::api::core::v1::{Pod, ResourceRequirements};
use k8s_openapi::api::scheduling::v1::PriorityClass;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kerf_nvml_mock::Model;
use kerf_tests::cluster::{Cluster, ClusterOptions, NodeSpec, pod, sized_pod, wait};
use kerf_tests::oracle::Truth;
use kube::Api;
use kube::api::{ListParams, PostParams};
use serde_json::json;
use std::collections::BTreeMap;
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(30);
/// How long the test watches for late evictions.
const WATCH_TIMEOUT: Duration = Duration::from_secs(3);
const URGENT: &str = "urgent";

/// The pod with this many CPUs, and with a priority class if one is given.
fn with_cpu(mut pod: Pod, cpu: u32, class: Option<&str>) -> Pod {
    let Some(spec) = &mut pod.spec else { return pod };
    spec.priority_class_name = class.map(str::to_owned);
    let requests = BTreeMap::from([("cpu".to_owned(), Quantity(cpu.to_string()))]);
    spec.containers[0].resources =
        Some(ResourceRequirements { requests: Some(requests), ..ResourceRequirements::default() });
    pod
}

/// A pod without a GPU on the node.
fn bystander(number: u32, cpu: u32) -> Pod {
    let mut pod = with_cpu(pod(&format!("bystander-{number}"), &[]), cpu, None);
    pod.spec.get_or_insert_default().node_name = Some("n1".to_owned());
    pod
}

fn whole_gpu(name: &str) -> Pod {
    sized_pod(name, "80Gi", "hardware")
}

/// The number of bystanders that run and are not being deleted.
async fn left_alone(cluster: &Cluster) -> anyhow::Result<usize> {
    let pods = cluster.pods().list(&ListParams::default()).await?.items;
    let pods = pods.into_iter().filter(|pod| pod.metadata.name.iter().any(|n| n.starts_with("bystander")));
    Ok(pods.filter(|pod| pod.metadata.deletion_timestamp.is_none()).count())
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_without_a_gpu_are_preempted_only_once_the_slice_is_free() -> anyhow::Result<()> {
    let options = ClusterOptions::without_controller_manager(vec![NodeSpec::new("n1", Model::H100, 1)]);
    let cluster = Cluster::start(options, |_| ()).await?;
    let client = cluster.plane().client();
    let class: PriorityClass = serde_json::from_value(json!({"metadata": {"name": URGENT}, "value": 1000}))?;
    Api::all(client.clone()).create(&PostParams::default(), &class).await?;
    let holder = with_cpu(whole_gpu("holder"), 0, Some(URGENT));
    let known = async || Ok(cluster.dry_run_refusal(&holder).await?.is_none());
    wait(TIMEOUT, "the API server to accept the priority class", known).await?;
    cluster.create(&holder).await?;
    cluster.running("holder").await?;
    let node = Api::<k8s_openapi::api::core::v1::Node>::all(client).get("n1").await?;
    let cpus = node.status.and_then(|status| status.allocatable?.get("cpu")?.0.parse::<u32>().ok());
    let quarter = cpus.unwrap_or_default() / 4;
    for number in 0..4 {
        cluster.create(&bystander(number, quarter)).await?;
        cluster.running(&format!("bystander-{number}")).await?;
    }

    cluster.create(&with_cpu(whole_gpu("urgent"), 2 * quarter, Some(URGENT))).await?;
    cluster.event("urgent", "no pod is preempted for it").await?;
    tokio::time::sleep(WATCH_TIMEOUT).await;
    assert_eq!(left_alone(&cluster).await?, 4, "somebody was evicted for a pod that waits for a slice");

    cluster.delete("holder").await?;
    cluster.running("urgent").await?;
    let two = async || Ok(left_alone(&cluster).await? == 2);
    wait(TIMEOUT, "as many to be evicted as it needs", two).await?;
    Truth::ensure_sound(&cluster).await?;
    cluster.stop().await
}
