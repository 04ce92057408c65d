//! Init containers and sidecars on a node: the order in which they run, and which devices pod-resources lists in each
//! phase.

use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use kerf_node_agent::kubelet_api::podresources::ListPodResourcesRequest;
use kerf_node_agent::kubelet_api::podresources::pod_resources_lister_client::PodResourcesListerClient;
use kerf_tests::kubelet::PodKey;
use kerf_tests::kubelet_rules::plugin::channel;
use kerf_tests::pods::has_condition;
use kube::api::PostParams;
use serde_json::{Value, json};

use super::NAME;
use super::pods::Cluster;

/// A container that runs until the file `<folder>/<name>` exists, or for ever.
fn container(cluster: &Cluster, name: &str, count: u32, ends: bool) -> Value {
    let gate = cluster.folder.path().join(name).display().to_string();
    let script = format!("while [ ! -e {gate} ]; do sleep 0.02; done");
    json!({
        "name": name,
        "image": "none",
        "command": if ends { json!(["/bin/sh", "-c", script]) } else { json!(["/bin/sleep", "1000"]) },
        "resources": {"limits": {NAME: count.to_string()}},
    })
}

fn open(cluster: &Cluster, name: &str) {
    std::fs::write(cluster.folder.path().join(name), "").unwrap();
}

/// Whether init containers are waiting, running or ended, in the pod's order.
fn inits(pod: &Pod) -> Vec<(String, &'static str)> {
    let state = |status: &ContainerStatus| match &status.state {
        Some(state) if state.running.is_some() => "running",
        Some(state) if state.terminated.is_some() => "ended",
        _ => "waiting",
    };
    let statuses = pod.status.iter().filter_map(|status| status.init_container_statuses.as_ref()).flatten();
    statuses.map(|status| (status.name.clone(), state(status))).collect()
}

/// The containers that pod-resources lists, with their numbers of devices.
async fn listed(cluster: &Cluster) -> Vec<(String, usize)> {
    let mut lister =
        PodResourcesListerClient::new(channel(cluster.kubelet.pod_resources_socket()).await.unwrap());
    let pods = lister.list(ListPodResourcesRequest {}).await.unwrap().into_inner().pod_resources;
    let containers = pods.into_iter().flat_map(|pod| pod.containers);
    containers.map(|container| (container.name, container.devices.len())).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn init_containers_run_in_turn_and_keep_their_devices_until_the_pod_ends() {
    let cluster = Cluster::start().await;
    let mut proxy = container(&cluster, "proxy", 0, false);
    proxy["restartPolicy"] = json!("Always");
    let first = container(&cluster, "first", 1, true);
    let second = container(&cluster, "second", 2, true);
    let staged = json!({
        "metadata": {"name": "staged"},
        "spec": {
            "nodeName": "node-1",
            "initContainers": [first, proxy, second],
            "containers": [container(&cluster, "main", 1, false)],
        },
    });
    cluster.pods.create(&PostParams::default(), &serde_json::from_value(staged).unwrap()).await.unwrap();
    let states = |states: [&'static str; 3]| -> Vec<_> {
        ["first", "proxy", "second"].map(str::to_owned).into_iter().zip(states).collect()
    };
    let pending =
        cluster.pod_until("staged", |pod| inits(pod) == states(["running", "waiting", "waiting"])).await;
    let shown = pending.status.clone().unwrap();
    assert_eq!(
        (shown.phase.as_deref(), has_condition(&pending, "Initialized", "True")),
        (Some("Pending"), false)
    );
    assert!(shown.start_time.is_some(), "the kubelet has taken it on");
    assert_eq!(listed(&cluster).await, [("proxy".to_owned(), 0), ("main".to_owned(), 1)]);

    open(&cluster, "first");
    cluster.pod_until("staged", |pod| inits(pod) == states(["ended", "running", "running"])).await;
    open(&cluster, "second");
    let running = cluster.phase("staged", "Running").await;
    assert!(has_condition(&running, "Initialized", "True"));
    assert_eq!(inits(&running), states(["ended", "running", "ended"]));

    let all = cluster.plugin.allocated.lock().unwrap().clone();
    assert_eq!(all.iter().map(Vec::len).collect::<Vec<_>>(), [1, 2, 1]);
    assert!(all[1].contains(&all[0][0]) && all[1].contains(&all[2][0]), "devices are handed on: {all:?}");
    assert_eq!(cluster.kubelet.allocations()[&PodKey::new("team", "staged")][NAME].len(), 2);
    cluster.create("other", 1, "sleep 1000", "Always").await;
    let refused = cluster.phase("other", "Failed").await.status.unwrap().message.unwrap();
    assert!(refused.contains("Requested: 1, Available: 0"), "nothing is free before the pod ends: {refused}");
    cluster.delete("staged").await;
    assert!(cluster.kubelet.allocations().is_empty());
    cluster.delete("other").await;
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_init_container_ends_its_pod_and_the_sidecars_with_it() {
    let cluster = Cluster::start().await;
    let mut proxy = container(&cluster, "proxy", 1, false);
    proxy["restartPolicy"] = json!("Always");
    let mut bad = container(&cluster, "bad", 1, true);
    bad["command"] = json!(["/bin/false"]);
    let pod = json!({
        "metadata": {"name": "broken"},
        "spec": {
            "nodeName": "node-1",
            "restartPolicy": "Never",
            "initContainers": [proxy, bad],
            "containers": [container(&cluster, "main", 1, false)],
        },
    });
    cluster.pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
    let failed = cluster.phase("broken", "Failed").await;
    assert_eq!(inits(&failed), [("proxy".to_owned(), "ended"), ("bad".to_owned(), "ended")]);
    assert!(cluster.kubelet.allocations().is_empty(), "a pod that has ended holds nothing");
    cluster.delete("broken").await;
    cluster.end().await;
}
