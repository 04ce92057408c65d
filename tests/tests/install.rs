//! kerf is installed by its own manifests: the test starts none of its programs by hand.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kerf_nvml_mock::Model;
use kerf_tests::cluster::{BareCluster, BareOptions, NAMESPACE, NodeSpec, root, sized_pod, wait};
use kerf_tests::kubelet::PodKey;
use kerf_tests::oracle::Truth;
use kerf_tests::pods::phase_of;
use kube::Api;
use kube::api::{DeleteParams, ListParams};

/// The timeout of everything that an admin waits for.
const TIMEOUT: Duration = Duration::from_mins(2);

async fn sound(cluster: &BareCluster) -> anyhow::Result<()> {
    let nodes = [cluster.node("h100")?, cluster.node("t4")?];
    Truth::of_nodes(cluster.plane().client(), nodes).await?.ensure_no_violations()
}

async fn detectors_run(cluster: &BareCluster) -> anyhow::Result<()> {
    let pods = cluster.pods();
    let run = async || {
        let found = pods.api().list(&ListParams::default().labels("app=detector")).await?.items;
        Ok(found.iter().filter(|pod| phase_of(pod) == "Running").count() == 7)
    };
    wait(TIMEOUT, "seven detectors to run", run).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_manifests_alone_install_kerf_and_detectors_get_slices() -> anyhow::Result<()> {
    let nodes = vec![
        NodeSpec::without_gpus("cpu"),
        NodeSpec::new("h100", Model::H100, 1).with_gpu_operator_labels().with_gpu_taint(),
        NodeSpec::new("t4", Model::T4, 1).with_gpu_operator_labels(),
    ];
    let cluster = BareCluster::start(BareOptions::new(nodes)).await?;
    cluster.apply("deploy/base").await?;
    cluster.plane().kubectl(&["label", "node", "h100", "t4", "kerf.dev/managed=true"]).await?;
    cluster.kerf_is_up(2, TIMEOUT).await?;

    let detectors = root().join("deploy/examples/detectors.yaml").display().to_string();
    cluster.plane().kubectl(&["apply", "-f", &detectors]).await?;
    detectors_run(&cluster).await?;
    let slices = cluster.node("h100")?.gpus()?.slices();
    assert_eq!(slices.len(), 7, "{slices:?}");
    // The agent starts the MPS daemon from its container, so a share tests that container, too.
    let share = sized_pod("share", "4Gi", "memory");
    cluster.pods().create(&share).await?;
    let share = cluster.pods().running("share").await?;
    assert_eq!(share.spec.and_then(|spec| spec.node_name).as_deref(), Some("t4"));
    let grant =
        cluster.node("t4")?.kubelet().grant(&PodKey::new("default", "share"), "main").unwrap_or_default();
    assert!(grant.environment.contains_key("CUDA_MPS_PIPE_DIRECTORY"), "{grant:?}");
    sound(&cluster).await?;

    let system = Api::<Pod>::namespaced(cluster.plane().client(), NAMESPACE);
    let webhooks = ListParams::default().labels("app.kubernetes.io/name=kerf-webhook");
    for webhook in system.list(&webhooks).await?.items {
        let name = webhook.metadata.name.unwrap_or_default();
        system.delete(&name, &DeleteParams::default()).await?;
        let gone = async || Ok(system.get_opt(&name).await?.is_none());
        wait(TIMEOUT, &format!("{name} to go"), gone).await?;
        cluster.kerf_is_up(2, TIMEOUT).await?;
    }
    cluster.plane().kubectl(&["rollout", "restart", "deployment/detector"]).await?;
    cluster.plane().kubectl(&["rollout", "status", "--timeout=90s", "deployment/detector"]).await?;
    sound(&cluster).await?;
    cluster.stop().await
}
