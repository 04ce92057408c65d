//! kerf by its chart, with its own pods: one command installs it, one removes it, and running pods are not disturbed.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use k8s_openapi::api::core::v1::{Node, Pod};
use kerf_core::keys;
use kerf_nvml_mock::Model;
use kerf_runtime::gpu_node::GpuNode;
use kerf_tests::binaries;
use kerf_tests::chart::{folder, helm_on, said, template};
use kerf_tests::cluster::{BareCluster, BareOptions, NAMESPACE, NodeSpec, pod, root, sized_pod, wait};
use kerf_tests::kubelet::PodKey;
use kerf_tests::oracle::Truth;
use kube::Api;
use tokio::process::Command;

const TIMEOUT: Duration = Duration::from_mins(2);

fn nodes() -> Vec<NodeSpec> {
    vec![NodeSpec::without_gpus("cpu"), NodeSpec::new("h100", Model::H100, 1).left_to_kerf()]
}

/// The device that the kubelet gave to a pod's container.
fn device(cluster: &BareCluster, pod: &str) -> anyhow::Result<String> {
    let grant = cluster.node("h100")?.kubelet().grant(&PodKey::new("default", pod), "main");
    let grant = grant.context("the kubelet gave the pod nothing")?;
    grant.environment.get("NVIDIA_VISIBLE_DEVICES").cloned().context("the pod has no device")
}

/// kerf's labels on the node.
async fn labels(cluster: &BareCluster) -> anyhow::Result<Vec<String>> {
    let node = Api::<Node>::all(cluster.plane().client()).get("h100").await?;
    let labels = node.metadata.labels.unwrap_or_default();
    Ok(labels.into_keys().filter(|key| key.starts_with(keys::GROUP)).collect())
}

/// A pod that asks for a MIG instance.
fn hardware(name: &str) -> Pod {
    sized_pod(name, "10Gi", "hardware")
}

/// `helm test` runs `kerf check`, with rights that are removed afterwards.
async fn the_test_passes(cluster: &BareCluster) -> anyhow::Result<()> {
    let test = ["test", "kerf", "--namespace", NAMESPACE, "--timeout", "3m"];
    let said = said(&helm_on(cluster.plane(), &test).await?)?;
    ensure!(said.contains("Succeeded"), "{said}");
    let all = "pods,serviceaccounts,clusterroles,clusterrolebindings,roles,rolebindings";
    let left = ["get", all, "--all-namespaces", "-l", "app.kubernetes.io/name=kerf-test", "-o", "name"];
    let left = cluster.plane().kubectl(&left).await?;
    ensure!(left.is_empty(), "the test left {left}");
    Ok(())
}

/// With the rights of the test `kerf check` can read everything.
async fn its_rights_suffice(cluster: &BareCluster) -> anyhow::Result<()> {
    let plane = cluster.plane();
    let rights = template(NAMESPACE, &["--show-only", "templates/tests/rbac.yaml"])?;
    plane.apply(&rights).await?;
    let kubeconfig = plane.kubeconfig_for_service_account(NAMESPACE, "kerf-test").await?;
    let mut kerf = Command::new(binaries::ours("kerf")?);
    let output = kerf.arg("check").env("KUBECONFIG", kubeconfig).kill_on_drop(true).output().await?;
    let said = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success() && said.contains("it admits a pod that asks for GPU memory"), "{said}");
    ensure!(!said.contains("could not be"), "{said}");
    let deleted = plane.kubectl_output(&["delete", "-f", "-"], &rights).await?;
    ensure!(deleted.status.success(), "{}", String::from_utf8_lossy(&deleted.stderr));
    Ok(())
}

/// Flux searches for drift in this way.
async fn an_upgrade_to_the_same_writes_nothing(cluster: &BareCluster) -> anyhow::Result<()> {
    // Some objects are compared by their generation, because controllers write their status.
    let kinds = [
        ("deployments,daemonsets,validatingadmissionpolicies,customresourcedefinitions", "generation"),
        (
            "services,configmaps,serviceaccounts,clusterroles,clusterrolebindings,roles,rolebindings",
            "resourceVersion",
        ),
        (
            "mutatingwebhookconfigurations,validatingadmissionpolicybindings,poddisruptionbudgets",
            "generation",
        ),
    ];
    let versions = async || {
        let mut all = String::new();
        for (kinds, version) in kinds {
            let format = format!(
                "jsonpath={{range .items[*]}}{{.kind}} {{.metadata.name}} {{.metadata.{version}}}{{'\\n'}}{{end}}"
            );
            let ours = [
                "get",
                kinds,
                "--namespace",
                NAMESPACE,
                "-l",
                "app.kubernetes.io/part-of=kerf",
                "-o",
                &format,
            ];
            all += &cluster.plane().kubectl(&ours).await?;
        }
        anyhow::Ok(all)
    };
    let before = versions().await?;
    cluster.helm(&["upgrade", "kerf", &folder()]).await?;
    let after = versions().await?;
    ensure!(before.lines().count() > 30, "{before}");
    let changed: Vec<_> = after.lines().filter(|line| !before.contains(*line)).collect();
    ensure!(changed.is_empty(), "an upgrade that changes nothing has written {changed:?}");
    Ok(())
}

async fn sound(cluster: &BareCluster) -> anyhow::Result<()> {
    Truth::of_nodes(cluster.plane().client(), [cluster.node("h100")?]).await?.ensure_no_violations()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_keeps_its_slice_over_install_upgrade_uninstall_and_reinstall() -> anyhow::Result<()> {
    let cluster = BareCluster::start(BareOptions::new(nodes())).await?;
    let notes = cluster.install().await?;
    ensure!(notes.contains("1 node is kerf's"), "NOTES do not say that a node is kerf's:\n{notes}");
    cluster.pods().create(&hardware("first")).await?;
    let first = cluster.pods().running("first").await?;
    let held = device(&cluster, "first")?;
    its_rights_suffice(&cluster).await?;
    the_test_passes(&cluster).await?;
    an_upgrade_to_the_same_writes_nothing(&cluster).await?;

    cluster.helm(&["upgrade", "kerf", &folder(), "--set", "log.format=json"]).await?;
    ensure!(device(&cluster, "first")? == held, "the upgrade took the slice");
    sound(&cluster).await?;

    cluster.helm(&["uninstall", "kerf"]).await?;
    let all = ["get", "mutatingwebhookconfigurations,pods", "--namespace", NAMESPACE, "--ignore-not-found"];
    let gone = async || Ok(cluster.plane().kubectl(&all).await?.trim().is_empty());
    wait(TIMEOUT, "kerf's configuration and pods to go", gone).await?;
    let labels = labels(&cluster).await?;
    ensure!(labels.is_empty(), "the uninstall left {labels:?}");
    ensure!(device(&cluster, "first")? == held, "the uninstall took the slice");
    ensure!(cluster.node("h100")?.gpus()?.slices().len() == 1, "a slice that is held, and no other, stays");
    cluster.pods().create(&pod("plain", &[])).await?;
    cluster.pods().running("plain").await?;

    cluster.helm(&["install", "kerf", &folder()]).await?;
    let gpu_nodes = Api::<GpuNode>::all(cluster.plane().client());
    let found = async || {
        let status = gpu_nodes.get_opt("h100").await?.map(|node| node.read_status()).transpose()?.flatten();
        let holds = |status: kerf_core::contract::GpuNodeStatus| {
            status
                .slices
                .iter()
                .any(|slice| slice.holder.as_ref().is_some_and(|holder| holder.pod == "first"))
        };
        // The uninstall deleted the ledger, so the new agent accepts no pods until no Binding can be made that the old
        // ledger had marked.
        Ok(status.is_some_and(|status| status.is_ready() && holds(status)))
    };
    wait(TIMEOUT, "the new agent to report the slice's holder and to be ready", found).await?;
    cluster.pods().create(&hardware("second")).await?;
    cluster.pods().running("second").await?;
    ensure!(device(&cluster, "second")? != held, "the slice was given out twice");
    let now = cluster.pods().running("first").await?;
    ensure!(now.metadata.uid == first.metadata.uid, "the pod was made anew");
    sound(&cluster).await?;
    cluster.stop().await
}

/// The first chart that worked (`deploy/chart` of commit f17a3ad, packed by `helm package`). It has one extender, and
/// no role in the Service's selector.
fn first_chart() -> String {
    root().join("tests/charts/first.tgz").display().to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_working_chart_can_be_upgraded_to_this_one() -> anyhow::Result<()> {
    let cluster = BareCluster::start(BareOptions::new(nodes())).await?;
    // The programs are today's. Their agent needs the extender's address, which the first chart does not set.
    cluster.helm_now(&["install", "kerf", &first_chart(), "--create-namespace"]).await?;
    cluster.helm(&["upgrade", "kerf", &folder()]).await?;
    cluster.kerf_is_up(1, TIMEOUT).await?;
    cluster.pods().create(&hardware("first")).await?;
    let first = cluster.pods().running("first").await?;
    let held = device(&cluster, "first")?;

    cluster.helm_now(&["rollback", "kerf", "1"]).await?;
    cluster.helm(&["upgrade", "kerf", &folder()]).await?;
    cluster.kerf_is_up(1, TIMEOUT).await?;
    cluster.pods().create(&hardware("second")).await?;
    cluster.pods().running("second").await?;
    ensure!(device(&cluster, "second")? != held, "the slice was given out twice");
    let now = cluster.pods().running("first").await?;
    ensure!(now.metadata.uid == first.metadata.uid, "the pod was made anew");
    ensure!(device(&cluster, "first")? == held, "the rollback took the slice");
    sound(&cluster).await?;
    cluster.stop().await
}
