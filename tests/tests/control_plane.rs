//! The local control plane itself: that it schedules, controls and refuses as a cluster does, and how long that takes.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod, ServiceAccount};
use kerf_tests::control_plane::{ControlPlane, ControlPlaneOptions};
use kube::Api;
use kube::api::{ListParams, ObjectMeta, PostParams};
use serde_json::json;

const TIMEOUT: Duration = Duration::from_secs(30);

async fn create_node(plane: &ControlPlane, name: &str) -> anyhow::Result<()> {
    let nodes = Api::<Node>::all(plane.client());
    let room = json!({ "cpu": "8", "memory": "64Gi", "pods": "110" });
    let node = json!({
        "metadata": { "name": name, "labels": { "kubernetes.io/hostname": name } },
        "status": { "capacity": room, "allocatable": room },
    });
    nodes.create(&PostParams::default(), &serde_json::from_value(node)?).await?;
    Ok(())
}

fn pod(name: &str, scheduler: &str) -> serde_json::Result<Pod> {
    serde_json::from_value(json!({
        "metadata": { "name": name },
        "spec": { "schedulerName": scheduler, "containers": [{ "name": "c", "image": "i" }] },
    }))
}

/// Waits until `pick` finds something in the pod.
async fn pod_until<T>(pods: &Api<Pod>, name: &str, pick: impl Fn(Pod) -> Option<T>) -> anyhow::Result<T> {
    let began = Instant::now();
    loop {
        let pod = pods.get(name).await?;
        if let Some(found) = pick(pod.clone()) {
            return Ok(found);
        }
        anyhow::ensure!(began.elapsed() < TIMEOUT, "pod {name} is still {:#?}", pod.status);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn node_name(pod: Pod) -> Option<String> {
    pod.spec?.node_name
}

#[tokio::test]
async fn a_pod_gets_the_only_node_and_a_deployment_its_pods() -> anyhow::Result<()> {
    let began = Instant::now();
    let plane = ControlPlane::start(ControlPlaneOptions::default()).await?;
    println!("control plane with controller manager: usable after {:.1} s", began.elapsed().as_secs_f64());

    create_node(&plane, "node-1").await?;
    plane.create_namespace("team-a").await?;
    let pods = Api::<Pod>::namespaced(plane.client(), "team-a");
    pods.create(&PostParams::default(), &pod("one", "default-scheduler")?).await?;
    assert_eq!(pod_until(&pods, "one", node_name).await?, "node-1");

    let deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": "d", "namespace": "team-a" },
        "spec": {
            "replicas": 2, "selector": { "matchLabels": { "app": "d" } },
            "template": {
                "metadata": { "labels": { "app": "d" } },
                "spec": { "containers": [{ "name": "c", "image": "i" }] },
            },
        },
    });
    plane.apply(&deployment.to_string()).await?;
    let labelled = ListParams::default().labels("app=d");
    let began = Instant::now();
    while pods.list(&labelled).await?.items.len() != 2 {
        anyhow::ensure!(began.elapsed() < TIMEOUT, "the deployment has no two pods");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }

    let path = plane.dir().to_path_buf();
    let began = Instant::now();
    plane.stop().await?;
    println!("control plane: stopped after {:.1} s", began.elapsed().as_secs_f64());
    assert_eq!(path.exists(), std::env::var_os("KERF_KEEP").is_some());
    Ok(())
}

#[tokio::test]
async fn a_second_scheduler_binds_the_pods_that_name_it() -> anyhow::Result<()> {
    let options = ControlPlaneOptions {
        scheduler: false,
        priority_and_fairness: false,
        ..ControlPlaneOptions::without_controller_manager()
    };
    let began = Instant::now();
    let mut plane = ControlPlane::start(options).await?;
    println!("control plane, etcd and API server only: usable after {:.1} s", began.elapsed().as_secs_f64());
    let configuration = plane.dir().join("second.yaml");
    std::fs::write(
        &configuration,
        "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\nprofiles:\n- schedulerName: second\n",
    )?;
    plane.start_scheduler("second", &configuration).await?;
    println!("control plane, with a scheduler: usable after {:.1} s", began.elapsed().as_secs_f64());

    create_node(&plane, "node-1").await?;
    let pods = Api::<Pod>::default_namespaced(plane.client());
    pods.create(&PostParams::default(), &pod("mine", "second")?).await?;
    pods.create(&PostParams::default(), &pod("other", "default-scheduler")?).await?;
    assert_eq!(pod_until(&pods, "mine", node_name).await?, "node-1");
    assert_eq!(node_name(pods.get("other").await?), None);

    let metrics = plane.metrics("second").await?;
    assert!(metrics.contains("scheduler_schedule_attempts_total{profile=\"second\",result=\"scheduled\"} 1"));

    plane.child("second")?.kill()?;
    pods.create(&PostParams::default(), &pod("late", "second")?).await?;
    plane.restart("second").await?;
    assert_eq!(pod_until(&pods, "late", node_name).await?, "node-1");
    plane.stop().await
}

#[tokio::test]
async fn credentials_have_the_rights_of_their_user_and_no_more() -> anyhow::Result<()> {
    let options =
        ControlPlaneOptions { scheduler: false, ..ControlPlaneOptions::without_controller_manager() };
    let plane = ControlPlane::start(options).await?;
    create_node(&plane, "node-1").await?;
    let metadata = ObjectMeta { name: Some("agent".to_owned()), ..ObjectMeta::default() };
    let account = ServiceAccount { metadata, ..ServiceAccount::default() };
    Api::default_namespaced(plane.client()).create(&PostParams::default(), &account).await?;
    plane.kubectl(&["create", "role", "reader", "--verb=list", "--resource=configmaps"]).await?;
    let binding = ["create", "rolebinding", "reader", "--role=reader"];
    plane.kubectl(&[&binding[..], &["--serviceaccount=default:agent", "--user=jane"]].concat()).await?;

    let account = plane.kubeconfig_for_service_account("default", "agent").await?;
    let on_node = plane.kubeconfig_for_service_account_on_node("default", "agent", "node-1").await?;
    for kubeconfig in [&account, &on_node, &plane.kubeconfig_for("jane", None)?] {
        let client = plane.client_as(kubeconfig).await?;
        Api::<ConfigMap>::default_namespaced(client.clone()).list(&ListParams::default()).await?;
        let refused = Api::<Pod>::default_namespaced(client).list(&ListParams::default()).await.unwrap_err();
        assert!(refused.to_string().contains("forbidden"), "{refused}");
    }

    let on_node = on_node.to_str().context("the path is UTF-8")?;
    let who = plane.kubectl(&["--kubeconfig", on_node, "auth", "whoami", "--output=json"]).await?;
    let who: serde_json::Value = serde_json::from_str(&who)?;
    let user = &who["status"]["userInfo"];
    assert_eq!(user["username"], "system:serviceaccount:default:agent");
    assert_eq!(user["extra"]["authentication.kubernetes.io/node-name"], json!(["node-1"]));
    plane.stop().await
}

#[tokio::test]
async fn a_failed_start_shows_the_log_of_the_program_that_failed() {
    let options = ControlPlaneOptions {
        apiserver_flags: vec!["--no-such-flag".to_owned()],
        ..ControlPlaneOptions::without_controller_manager()
    };
    let error = ControlPlane::start(options).await.err().expect("it cannot start");
    let text = format!("{error:#}");
    assert!(text.contains("kube-apiserver ended") && text.contains("unknown flag: --no-such-flag"), "{text}");
    let kept = text.split_whitespace().find(|word| word.contains("kerf-control-plane-")).unwrap();
    std::fs::remove_dir_all(kept.trim_end_matches(':')).unwrap();
}
