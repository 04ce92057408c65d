//! Pods whose images the stand-in kubelet can run, and what their containers see.

use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use k8s_openapi::api::core::v1::{ConfigMap, Event, Pod, Secret, ServiceAccount};
use kube::Api;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use super::pods::Cluster;

/// A pod with one container of the image `shell` that runs this script, with additional fields of the container and of
/// the pod.
pub(super) fn shell(name: &str, script: &str, container: &Value, spec: &Value) -> Pod {
    let mut pod = json!({
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {
            "nodeName": "node-1",
            "terminationGracePeriodSeconds": 1,
            "containers": [{"name": "main", "image": "registry.local/team/shell:v1", "args": ["-c", script]}],
        },
    });
    for (key, value) in container.as_object().unwrap() {
        pod["spec"]["containers"][0][key] = value.clone();
    }
    for (key, value) in spec.as_object().unwrap() {
        pod["spec"][key] = value.clone();
    }
    serde_json::from_value(pod).unwrap()
}

pub(super) async fn create(cluster: &Cluster, pod: &Pod) {
    cluster.pods.create(&PostParams::default(), pod).await.unwrap();
}

async fn secret(cluster: &Cluster, name: &str, key: &str, text: &str) {
    let api: Api<Secret> = Api::namespaced(cluster.plane.client(), "team");
    let document = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": {key: text, "other": "o"},
    });
    api.patch(name, &PatchParams::apply("test"), &Patch::Apply(&document)).await.unwrap();
}

async fn config_map(cluster: &Cluster, name: &str, data: &Value) {
    let api: Api<ConfigMap> = Api::namespaced(cluster.plane.client(), "team");
    let map = serde_json::from_value(json!({"metadata": {"name": name}, "data": data})).unwrap();
    api.create(&PostParams::default(), &map).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn variables_come_from_all_sources_that_a_pod_may_name() {
    let cluster = Cluster::start().await;
    secret(&cluster, "secret", "key", "of-secret").await;
    config_map(&cluster, "map", &json!({"one": "of-map", "two": "2"})).await;
    let field = |path: &str| json!({"fieldRef": {"fieldPath": path}});
    let main = json!({
        "env": [
            {"name": "NAME", "valueFrom": field("metadata.name")},
            {"name": "NODE", "valueFrom": field("spec.nodeName")},
            {"name": "IP", "valueFrom": field("status.podIP")},
            {"name": "LABEL", "valueFrom": field("metadata.labels['app']")},
            {"name": "CPU", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}},
            {"name": "SECRET", "valueFrom": {"secretKeyRef": {"name": "secret", "key": "key"}}},
            {"name": "ABSENT", "valueFrom": {"configMapKeyRef": {"name": "none", "key": "k", "optional": true}}},
            {"name": "JOINED", "value": "$(NAME)/$(MAP_one)/$(LATER)/$$(NAME)"},
            {"name": "LATER", "value": "late"},
            {"name": "LISTEN", "value": "0.0.0.0:80"},
        ],
        "envFrom": [{"prefix": "MAP_", "configMapRef": {"name": "map"}}],
        "resources": {"limits": {"cpu": "1500m"}},
        "args": ["-c", "env; echo argument $(SECRET) $0 $1; exec sleep 1000", "zero", "$(NAME)"],
    });
    create(&cluster, &shell("told", "", &main, &json!({}))).await;
    let log = cluster.log_until("told", "argument").await;
    let address = cluster.phase("told", "Running").await.status.unwrap().pod_ip.unwrap();
    let server = cluster.plane.url().trim_start_matches("https://").split_once(':').unwrap();
    let mut lines: Vec<&str> = log.lines().filter(|line| !line.starts_with("PWD=")).collect();
    lines.sort_unstable();
    let expected = [
        "CPU=2".to_owned(),
        "HOSTNAME=told".to_owned(),
        format!("IP={address}"),
        "JOINED=told/of-map/$(LATER)/$(NAME)".to_owned(),
        format!("KUBERNETES_SERVICE_HOST={}", server.0),
        format!("KUBERNETES_SERVICE_PORT={}", server.1),
        "LABEL=told".to_owned(),
        "LATER=late".to_owned(),
        format!("LISTEN={address}:80"),
        "MAP_one=of-map".to_owned(),
        "MAP_two=2".to_owned(),
        "NAME=told".to_owned(),
        "NODE=node-1".to_owned(),
        "OF_IMAGE=image".to_owned(),
        "PATH=/opt/image/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_owned(),
        "SECRET=of-secret".to_owned(),
        "argument of-secret zero told".to_owned(),
    ];
    assert_eq!(lines, expected);
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_sees_only_its_volumes_of_the_machine() {
    let cluster = Cluster::start().await;
    secret(&cluster, "secret", "key", "of-secret").await;
    config_map(&cluster, "map", &json!({"a.yaml": "of-map", "b.yaml": "b"})).await;
    let outside = cluster.folder.path().join("outside");
    std::fs::write(&outside, "").unwrap();
    let mounts = json!([
        {"name": "secret", "mountPath": "/etc/secret"},
        {"name": "map", "mountPath": "/etc/app/only.yaml", "subPath": "a.yaml"},
        {"name": "shared", "mountPath": "/shared"},
        {"name": "host", "mountPath": "/host"},
    ]);
    let volumes = json!([
        {"name": "secret", "secret": {"secretName": "secret", "items": [{"key": "key", "path": "deep/renamed"}]}},
        {"name": "map", "configMap": {"name": "map"}},
        {"name": "shared", "emptyDir": {}},
        {"name": "host", "hostPath": {"path": "/var/lib/thing", "type": "DirectoryOrCreate"}},
    ]);
    let init = json!([{
        "name": "init", "image": "shell", "args": ["-c", "echo handed on > /shared/file"],
        "volumeMounts": [{"name": "shared", "mountPath": "/shared"}],
    }]);
    let script = format!(
        "echo $(ls /etc/secret/) $(cat /etc/secret/deep/renamed) $(ls /etc/app) $(cat /etc/app/only.yaml) $(cat /shared/file)
        echo kept > /host/kept; [ -e {} ] || echo hidden; ls -A /tmp | wc -l
        touch /etc/secret/new 2>/dev/null || echo secrets are read only
        touch /new 2>/dev/null || echo so is the root
        echo end; exec sleep 1000",
        outside.display()
    );
    let main = json!({"volumeMounts": mounts, "securityContext": {"readOnlyRootFilesystem": true}});
    create(&cluster, &shell("sees", &script, &main, &json!({"volumes": volumes, "initContainers": init})))
        .await;
    let log = cluster.log_until("sees", "end").await;
    let expected =
        "deep of-secret only.yaml of-map handed on\nhidden\n0\nsecrets are read only\nso is the root\nend\n";
    assert_eq!(log, expected);
    let kept = cluster.kubelet.locate(Path::new("/var/lib/thing/kept"));
    assert!(kept.starts_with(cluster.folder.path()), "each node has its own: {}", kept.display());
    assert_eq!(std::fs::read_to_string(kept).unwrap(), "kept\n");
    let pods = cluster.folder.path().join("pods");
    assert_eq!(std::fs::read_dir(&pods).unwrap().count(), 1);
    cluster.delete("sees").await;
    assert_eq!(std::fs::read_dir(&pods).unwrap().count(), 0, "its volumes go with a pod");
    cluster.end().await;
}

fn claims(token: &str) -> Value {
    let payload = token.split('.').nth(1).unwrap();
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(payload).unwrap()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_names_its_pod_and_node() {
    let cluster = Cluster::start().await;
    let account: ServiceAccount = serde_json::from_value(json!({"metadata": {"name": "app"}})).unwrap();
    let accounts: Api<ServiceAccount> = Api::namespaced(cluster.plane.client(), "team");
    accounts.create(&PostParams::default(), &account).await.unwrap();
    let sources = json!([
        {"serviceAccountToken": {"path": "token", "expirationSeconds": 1200}},
        {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]}},
    ]);
    let spec = json!({
        "serviceAccountName": "app",
        "volumes": [{"name": "account", "projected": {"sources": sources}}],
    });
    let at = "/var/run/secrets/kubernetes.io/serviceaccount";
    let main = json!({"volumeMounts": [{"name": "account", "mountPath": at}]});
    let script = format!("cat {at}/namespace; echo; cat {at}/token; echo; echo end; exec sleep 1000");
    create(&cluster, &shell("speaks", &script, &main, &spec)).await;
    let log = cluster.log_until("speaks", "end").await;
    let mut lines = log.lines();
    assert_eq!(lines.next(), Some("team"));
    let token = lines.next().unwrap();
    let claims = claims(token);
    assert_eq!(claims["sub"], "system:serviceaccount:team:app");
    assert_eq!(claims["kubernetes.io"]["pod"]["name"], "speaks");
    assert_eq!(claims["kubernetes.io"]["node"]["name"], "node-1");
    let seconds = claims["exp"].as_i64().unwrap() - claims["iat"].as_i64().unwrap();
    assert_eq!(seconds, 1200);
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_waits_for_missing_volumes_and_sees_their_changes() {
    let cluster = Cluster::start().await;
    let script =
        "cat /s/key; echo; until grep -q second /s/key; do sleep 0.02; done; echo renewed; exec sleep 1000";
    let main = json!({"volumeMounts": [{"name": "s", "mountPath": "/s"}]});
    let volumes = json!([{"name": "s", "secret": {"secretName": "late"}}]);
    create(&cluster, &shell("waits", script, &main, &json!({"volumes": volumes}))).await;
    let reason = |pod: &Pod| {
        let status = pod.status.as_ref()?.container_statuses.as_ref()?.first()?;
        status.state.as_ref()?.waiting.as_ref()?.reason.clone()
    };
    cluster.pod_until("waits", |pod| reason(pod).as_deref() == Some("ContainerCreating")).await;
    let events: Api<Event> = Api::namespaced(cluster.plane.client(), "team");
    let reported = async || {
        let events = events.list(&ListParams::default()).await.unwrap().items;
        events.into_iter().find(|event| event.reason.as_deref() == Some("FailedMount"))?.message
    };
    let mut message = None;
    while message.is_none() {
        message = reported().await;
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    let expected = "MountVolume.SetUp failed for volume \"s\" : secret \"late\" not found";
    assert_eq!(message.as_deref(), Some(expected));

    secret(&cluster, "late", "key", "first").await;
    cluster.log_until("waits", "first").await;
    cluster.phase("waits", "Running").await;
    secret(&cluster, "late", "key", "second").await;
    cluster.log_until("waits", "renewed").await;

    let main =
        json!({"env": [{"name": "V", "valueFrom": {"configMapKeyRef": {"name": "later", "key": "k"}}}]});
    create(&cluster, &shell("needs", "echo got $V; exec sleep 1000", &main, &json!({}))).await;
    cluster.pod_until("needs", |pod| reason(pod).as_deref() == Some("CreateContainerConfigError")).await;
    config_map(&cluster, "later", &json!({"k": "value"})).await;
    cluster.log_until("needs", "got value").await;
    cluster.end().await;
}
