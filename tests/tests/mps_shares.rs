//! MPS shares as pods get them: equal ones if the policy fixes their number, and shares of pods whose processes may be
//! root.

use anyhow::{Context as _, ensure};
use k8s_openapi::api::core::v1::{Event, Pod};
use kerf_core::kind::Kind;
use kerf_nvml_mock::Model;
use kerf_tests::cluster::{
    Cluster, ClusterOptions, NodeSpec, limited_pod, resource_of, root, sized_pod, wait,
};
use kerf_tests::kubelet::PodKey;
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

const NODE: &str = "t4";
const TIMEOUT: Duration = Duration::from_secs(30);

const REPLICAS: usize = 3;

/// A node whose only GPU has a fixed number of shares, and pods that ask for it as on a node of NVIDIA's plugin.
const SHARED_BY_THREE: &str = "
apiVersion: kerf.dev/v1alpha1
kind: GpuNodePolicy
metadata: {name: shared-by-three}
spec:
  match: {names: [t4]}
  gpus:
  - kinds: [mps]
    mps: {replicas: 3}
---
apiVersion: kerf.dev/v1alpha1
kind: GpuPolicy
metadata: {name: as-with-nvidias-plugin}
spec:
  extends: default
  dialects: [mig, nvidia]
";

/// A policy for pods that may be root beside an MPS daemon. The others have the shipped policy.
const OPEN: &str = "
apiVersion: kerf.dev/v1alpha1
kind: GpuPolicy
metadata: {name: open}
spec:
  match: {labels: {example.com/root: allowed}}
  extends: default
  mps: {rootContainers: allow}
";

/// A cluster of one node with a T4, with this document before the shipped policy.
async fn cluster(document: &str) -> anyhow::Result<Cluster> {
    let policies = tempfile::tempdir()?;
    std::fs::copy(root().join("policies/default.yaml"), policies.path().join("90-default.yaml"))?;
    std::fs::write(policies.path().join("10-own.yaml"), document)?;
    let mut options = ClusterOptions::without_controller_manager(vec![NodeSpec::new(NODE, Model::T4, 1)]);
    options.policy = Some(policies.path().to_owned());
    Cluster::start(options, |_| ()).await
}

/// The variables of the pod's container that limit an MPS client.
fn limits(cluster: &Cluster, pod: &str) -> anyhow::Result<[String; 2]> {
    let grant = cluster.nodes()[0].kubelet().grant(&PodKey::new("default", pod), "main");
    let environment = grant.with_context(|| format!("{pod} got nothing"))?.environment;
    let variable =
        |name: &str| environment.get(name).cloned().with_context(|| format!("{pod} has no {name}"));
    Ok([variable("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT")?, variable("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE")?])
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_asks_for_a_gpu_gets_one_of_its_equal_mps_shares() -> anyhow::Result<()> {
    let cluster = cluster(SHARED_BY_THREE).await?;
    let served = async || {
        let status = cluster.gpu_node(NODE).await?.read_status()?.context("no status")?;
        Ok(status.gpus.iter().all(|gpu| gpu.kinds == [Kind::Mps]))
    };
    wait(TIMEOUT, "the GPU to be shared", served).await?;
    // The webhook reads the node's status through a watch, so it has the shares a moment later.
    let known = async || {
        let dry_run = PostParams { dry_run: true, ..PostParams::default() };
        let admitted = cluster.pods().create(&dry_run, &limited_pod("probe", "nvidia.com/gpu", 1)).await?;
        Ok(resource_of(&admitted)? == "nvidia.com/gpu.mps")
    };
    wait(TIMEOUT, "the webhook to read the shares", known).await?;

    let names: Vec<String> = (0..=REPLICAS).map(|number| format!("share-{number}")).collect();
    let (fit, late) = (&names[..REPLICAS], &names[REPLICAS]);
    for name in fit {
        cluster.create(&limited_pod(name, "nvidia.com/gpu", 1)).await?;
    }
    for name in fit {
        let pod = cluster.running(name).await?;
        assert_eq!(resource_of(&pod)?, "nvidia.com/gpu.mps");
        let resources = pod.spec.context("no spec")?.containers[0].resources.clone().unwrap_or_default();
        let limits: Vec<String> = resources.limits.unwrap_or_default().into_keys().collect();
        assert_eq!(limits, ["nvidia.com/gpu.mps"], "the kubelet gives no share for a whole GPU");
    }
    let held = async || Ok(held(&cluster).await? == fit.iter().cloned().collect());
    wait(TIMEOUT, "each to hold a share of its own", held).await?;
    // A T4 has 15,360 MiB, some of which the driver needs: four whole GiB for each of three.
    for name in fit {
        assert_eq!(limits(&cluster, name)?, ["0=4096M", "33"], "{name}");
    }

    cluster.create(&limited_pod(late, "nvidia.com/gpu", 1)).await?;
    cluster.event(late, "nodes are available").await?;
    assert_eq!(cluster.phase(late).await?, "Pending");
    cluster.pods().delete(&fit[0], &DeleteParams::default()).await?;
    cluster.running(late).await?;
    assert_eq!(limits(&cluster, late)?, limits(&cluster, &fit[1])?);

    let refusal = cluster.refusal(&limited_pod("two", "nvidia.com/gpu.mps", 2)).await?;
    ensure!(refusal.contains("give no more than one"), "{refusal}");
    cluster.stop().await
}

/// The pods that hold a device in the agent's status; each must have its own.
async fn held(cluster: &Cluster) -> anyhow::Result<BTreeSet<String>> {
    let slices = cluster.gpu_node(NODE).await?.read_status()?.context("no status")?.slices;
    let held = slices.into_iter().filter_map(|slice| Some((slice.device?, slice.holder?.pod)));
    Ok(held.collect::<BTreeMap<_, _>>().into_values().collect())
}

/// A pod that asks for a share with isolated memory, with this security context and this label.
fn sharing(name: &str, context: &Value, label: Option<&str>) -> anyhow::Result<Pod> {
    let mut pod = sized_pod(name, "4Gi", "memory");
    let container = pod.spec.as_mut().and_then(|spec| spec.containers.first_mut()).context("no container")?;
    container.security_context = Some(serde_json::from_value(context.clone())?);
    let label = label.map(|value| ("example.com/root".to_owned(), value.to_owned()));
    pod.metadata.labels = Some(label.into_iter().collect());
    Ok(pod)
}

/// The reasons of the pod's Events.
async fn reasons(cluster: &Cluster, pod: &str) -> anyhow::Result<BTreeSet<String>> {
    let events = Api::<Event>::default_namespaced(cluster.plane().client());
    let about = ListParams::default().fields(&format!("involvedObject.name={pod}"));
    Ok(events.list(&about).await?.items.into_iter().filter_map(|event| event.reason).collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_root_container_beside_an_mps_daemon_is_isolated_or_reported() -> anyhow::Result<()> {
    let cluster = cluster(OPEN).await?;
    let (root, user) = (json!({}), json!({"runAsUser": 1000, "allowPrivilegeEscalation": false}));
    // A pod and its policy's label; whether it is put into a user namespace, and whether it may command the daemon.
    for (name, context, label, separated, warned) in [
        ("allowed", &root, Some("allowed"), None, true),
        ("allowed-user", &user, Some("allowed"), None, false),
        ("isolated", &root, None, Some(false), false),
        ("isolated-user", &user, None, None, false),
    ] {
        cluster.create(&sharing(name, context, label)?).await?;
        let pod = cluster.running(name).await?;
        assert_eq!(resource_of(&pod)?, "nvidia.com/gpu-4gb", "{name}");
        assert_eq!(pod.spec.context("no spec")?.host_users, separated, "{name}");
        // This Event is written beside the other.
        cluster.event(name, "on node t4: slice").await?;
        if warned {
            cluster.event(name, "mps.rootContainers of its policy is allow").await?;
        }
        let reasons = reasons(&cluster, name).await?;
        assert_eq!(reasons.contains("MayCommandMps"), warned, "{name}: {reasons:?}");
        debug(&cluster, name, separated.is_some(), warned).await?;
        cluster.delete(name).await?;
    }
    let mut gated = sharing("gated", &root, None)?;
    let later = json!([{"name": "example.com/later"}]);
    gated.spec.as_mut().context("no spec")?.scheduling_gates = Some(serde_json::from_value(later)?);
    cluster.create(&gated).await?;
    debug(&cluster, "gated", true, false).await?;
    cluster.stop().await
}

/// Adds containers to a running pod by a dry run. The result depends on whether the pod has a user namespace, and on
/// whether its own containers may already command the daemon.
async fn debug(cluster: &Cluster, pod: &str, separated: bool, allowed: bool) -> anyhow::Result<()> {
    let fenced = json!({"runAsUser": 1000, "allowPrivilegeEscalation": false});
    let escalating = json!({"runAsNonRoot": true});
    let tracing = json!({"runAsUser": 1000, "allowPrivilegeEscalation": false, "capabilities": {"add": ["SYS_PTRACE"]}});
    let mounting = json!({"capabilities": {"add": ["NET_ADMIN", "cap_sys_admin"]}});
    let user_alone = json!({"runAsUser": 0, "runAsNonRoot": true, "allowPrivilegeEscalation": false});
    for (context, in_namespace, outside) in [
        (json!({}), true, false),
        (fenced, true, true),
        (json!({"runAsNonRoot": true, "allowPrivilegeEscalation": false}), true, true),
        (user_alone, true, false),
        (escalating, true, false),
        (tracing, true, false),
        (mounting, false, false),
        (json!({"privileged": true}), false, false),
    ] {
        let container = json!({"name": "debug", "image": "none", "securityContext": context});
        let patch = json!({"spec": {"ephemeralContainers": [container]}}).to_string();
        let subresource = "--subresource=ephemeralcontainers";
        let arguments = ["patch", "pod", pod, subresource, "--dry-run=server", "-p", &patch];
        let output = cluster.plane().kubectl_output(&arguments, "").await?;
        let text = String::from_utf8_lossy(&output.stderr);
        let taken = allowed || if separated { in_namespace } else { outside };
        ensure!(output.status.success() == taken, "{pod}, {context}: {text}");
        ensure!(
            taken || text.contains("ephemeral container debug: its processes could command the MPS daemon"),
            "{text}"
        );
    }
    Ok(())
}
