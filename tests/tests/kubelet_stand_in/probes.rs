//! Probes of containers, and the effects of their results.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use kerf_tests::pods::is_ready;
use serde_json::json;

use super::images::{create, shell};
use super::pods::Cluster;

fn main(pod: &Pod) -> Option<&ContainerStatus> {
    pod.status.as_ref()?.container_statuses.as_ref()?.first()
}

/// A server whose answer to `/healthz` follows the flag.
async fn server(healthy: Arc<AtomicBool>) -> SocketAddr {
    let answer = move || {
        let healthy = healthy.load(Ordering::Relaxed);
        async move { if healthy { StatusCode::OK } else { StatusCode::INTERNAL_SERVER_ERROR } }
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, Router::new().route("/healthz", get(answer))).await });
    address
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_is_ready_while_its_readiness_probe_is_answered() {
    let cluster = Cluster::start().await;
    let healthy = Arc::new(AtomicBool::new(false));
    let address = server(Arc::clone(&healthy)).await;
    let probe = json!({"httpGet": {"path": "/healthz", "host": "127.0.0.1", "port": "web"}, "periodSeconds": 1, "failureThreshold": 1});
    let ports = json!([{"name": "web", "containerPort": address.port()}]);
    create(
        &cluster,
        &shell("asked", "exec sleep 1000", &json!({"readinessProbe": probe, "ports": ports}), &json!({})),
    )
    .await;
    let running = cluster.phase("asked", "Running").await;
    assert!(!is_ready(&running), "it has not been answered yet");
    assert_eq!(main(&running).map(|status| (status.ready, status.started)), Some((false, Some(true))));
    healthy.store(true, Ordering::Relaxed);
    cluster.pod_until("asked", |pod| is_ready(pod) && main(pod).is_some_and(|status| status.ready)).await;
    healthy.store(false, Ordering::Relaxed);
    let down = cluster.pod_until("asked", |pod| !is_ready(pod)).await;
    assert_eq!(main(&down).map(|status| status.restart_count), Some(0), "that is no reason to end it");
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_that_fails_its_liveness_probe_is_restarted() {
    let cluster = Cluster::start().await;
    let probe = json!({"exec": {"command": ["test", "!", "-e", "/state/sick"]}, "periodSeconds": 1, "failureThreshold": 1});
    let script =
        "echo run; trap 'echo got SIGTERM; rm /state/sick; exit 0' TERM; while :; do sleep 0.02; done";
    let container =
        json!({"livenessProbe": probe, "volumeMounts": [{"name": "state", "mountPath": "/state"}]});
    let volumes = json!([{"name": "state", "hostPath": {"path": "/run/state", "type": "DirectoryOrCreate"}}]);
    create(&cluster, &shell("lives", script, &container, &json!({"volumes": volumes}))).await;
    cluster.pod_until("lives", is_ready).await;
    let sick = cluster.kubelet.locate(std::path::Path::new("/run/state/sick"));
    std::fs::write(&sick, "").unwrap();
    cluster.log_until("lives", "got SIGTERM").await;
    let again =
        cluster.pod_until("lives", |pod| main(pod).is_some_and(|s| s.restart_count == 1 && s.ready)).await;
    let last = main(&again).and_then(|status| status.last_state.clone()?.terminated).unwrap();
    assert_eq!(last.exit_code, 0);
    assert!(!sick.exists());
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn other_probes_wait_for_the_startup_probe() {
    let cluster = Cluster::start().await;
    let probe = |file: &str| json!({"exec": {"command": ["test", "-e", format!("/state/{file}")]}, "periodSeconds": 1, "failureThreshold": 100});
    // Without a startup probe this probe would end the container at once.
    let lives =
        json!({"exec": {"command": ["test", "-e", "/state/up"]}, "periodSeconds": 1, "failureThreshold": 1});
    let container = json!({
        "startupProbe": probe("up"), "readinessProbe": probe("ready"), "livenessProbe": lives,
        "volumeMounts": [{"name": "state", "mountPath": "/state"}],
    });
    let volumes = json!([{"name": "state", "hostPath": {"path": "/run/state", "type": "DirectoryOrCreate"}}]);
    create(&cluster, &shell("slow", "exec sleep 1000", &container, &json!({"volumes": volumes}))).await;
    let state = |file: &str| cluster.kubelet.locate(std::path::Path::new("/run/state")).join(file);
    cluster.phase("slow", "Running").await;
    std::fs::write(state("ready"), "").unwrap();
    let coming = cluster.pods.get("slow").await.unwrap();
    assert_eq!(main(&coming).map(|status| (status.ready, status.started)), Some((false, Some(false))));
    std::fs::write(state("up"), "").unwrap();
    let up = cluster.pod_until("slow", is_ready).await;
    assert_eq!(main(&up).map(|status| (status.started, status.restart_count)), Some((Some(true), 0)));
    cluster.end().await;
}
