//! `kubectl logs` of pods whose commands the stand-in kubelet runs.

use std::process::Stdio;

use kerf_tests::binaries;
use kube::Client;
use kube::api::PostParams;
use serde_json::json;
use tokio::io::AsyncReadExt as _;
use tokio::process::Command;

use super::pods::Cluster;

/// What `kubectl logs` prints, or its error.
async fn logs(cluster: &Cluster, arguments: &[&str]) -> Result<String, String> {
    let arguments = [&["logs", "--namespace=team"], arguments].concat();
    let output = cluster.plane.kubectl_output(&arguments, "").await.unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) }
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_shows_what_a_container_printed_while_it_runs_and_after_its_end() {
    let cluster = Cluster::start().await;
    cluster.served().await;
    cluster.create("runs", 0, "echo one; echo two >&2; echo three; exec sleep 1000", "Always").await;
    cluster.phase("runs", "Running").await;
    cluster.log_until("runs", "three").await;
    assert_eq!(logs(&cluster, &["runs"]).await.unwrap(), "one\ntwo\nthree\n");
    assert_eq!(logs(&cluster, &["runs", "--tail=2"]).await.unwrap(), "two\nthree\n");

    cluster.create("ended", 0, "echo done", "Never").await;
    cluster.phase("ended", "Succeeded").await;
    assert_eq!(logs(&cluster, &["ended"]).await.unwrap(), "done\n");
    assert_eq!(
        logs(&cluster, &["ended", "--follow"]).await.unwrap(),
        "done\n",
        "there is nothing to wait for"
    );
    cluster.delete("ended").await;
    cluster.create("ended", 0, "echo again", "Never").await;
    cluster.phase("ended", "Succeeded").await;
    assert_eq!(logs(&cluster, &["ended"]).await.unwrap(), "again\n", "another pod of the same name");

    let refused = logs(&cluster, &["runs", "--timestamps"]).await.unwrap_err();
    assert!(refused.contains("keeps no times of lines"), "{refused}");
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_followed_log_goes_on_until_the_container_ends() {
    let cluster = Cluster::start().await;
    cluster.served().await;
    let gate = cluster.folder.path().join("gate");
    let script = format!("echo first; while [ ! -e {} ]; do sleep 0.02; done; echo last", gate.display());
    cluster.create("waits", 0, &script, "Never").await;
    cluster.log_until("waits", "first").await;
    let mut follower = Command::new(binaries::tool("kubectl").unwrap())
        .args(["logs", "--namespace=team", "--follow", "waits"])
        .env("KUBECONFIG", cluster.plane.kubeconfig())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut output = follower.stdout.take().unwrap();
    let mut first = [0; 6];
    output.read_exact(&mut first).await.unwrap();
    assert_eq!(&first, b"first\n", "it is sent while the container runs");
    assert_eq!(follower.try_wait().unwrap(), None);
    std::fs::write(gate, "").unwrap();
    let mut rest = String::new();
    output.read_to_string(&mut rest).await.unwrap();
    assert_eq!(rest, "last\n");
    assert!(follower.wait().await.unwrap().success());
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_container_and_each_run_of_it_has_a_log_of_its_own() {
    let cluster = Cluster::start().await;
    cluster.served().await;
    let count = cluster.folder.path().join("count").display().to_string();
    let counts = format!(
        "echo x >> {count}; echo run $(wc -l < {count}); [ $(wc -l < {count}) = 2 ] && sleep 1000; exit 1"
    );
    let container = |name: &str, script: &str| json!({"name": name, "image": "none", "command": ["/bin/sh", "-c", script]});
    let pod = json!({
        "metadata": {"name": "three"},
        "spec": {
            "nodeName": "node-1",
            "initContainers": [container("load", "echo loaded")],
            "containers": [container("quiet", "exec sleep 1000"), container("again", &counts)],
        },
    });
    cluster.pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
    cluster
        .pod_until("three", |pod| {
            let statuses =
                pod.status.iter().filter_map(|status| status.container_statuses.as_ref()).flatten();
            statuses.clone().any(|status| status.restart_count == 1)
        })
        .await;
    assert_eq!(logs(&cluster, &["three", "-c", "load"]).await.unwrap(), "loaded\n");
    assert_eq!(logs(&cluster, &["three", "-c", "quiet"]).await.unwrap(), "");
    cluster.log_of("three", "again", "run 2").await;
    assert_eq!(logs(&cluster, &["three", "-c", "again"]).await.unwrap(), "run 2\n");
    assert_eq!(logs(&cluster, &["three", "-c", "again", "--previous"]).await.unwrap(), "run 1\n");
    let refused = logs(&cluster, &["three", "-c", "quiet", "--previous"]).await.unwrap_err();
    assert!(
        refused.contains(r#"previous terminated container "quiet" in pod "three" not found"#),
        "{refused}"
    );
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_clients_with_a_certificate_of_the_cluster_read_logs() {
    let cluster = Cluster::start().await;
    let port = cluster.served().await;
    let mut config = kube::Config::new(format!("https://127.0.0.1:{port}").parse().unwrap());
    config.accept_invalid_certs = true;
    let request = http::Request::get("/containerLogs/team/none/main").body(Vec::new()).unwrap();
    let refused = Client::try_from(config).unwrap().request_text(request).await.unwrap_err();
    assert!(!matches!(refused, kube::Error::Api(_)), "it was answered: {refused}");
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn logs_are_served_again_after_a_restart_of_the_kubelet() {
    let cluster = Cluster::start().await;
    let before = cluster.served().await;
    cluster.create("one", 0, "echo here; exec sleep 1000", "Always").await;
    cluster.log_until("one", "here").await;
    cluster.kubelet.restart().await.unwrap();
    cluster.served_elsewhere_than(before).await;
    assert_eq!(logs(&cluster, &["one"]).await.unwrap(), "here\n");
    cluster.end().await;
}
