//! Services lead to the pods that are ready.

use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{Pod, Service};
use kube::Api;
use kube::api::PostParams;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::images::{create, shell};
use super::pods::Cluster;

/// The name that the server behind an address sends.
async fn ask(address: SocketAddr) -> io::Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    let mut said = String::new();
    stream.read_to_string(&mut said).await?;
    Ok(said)
}

/// Serves the pod's name at the pod's address. That works because all of 127.0.0.0/8 is this machine's.
async fn answer(pod: &Pod, port: u16) {
    let (name, ip) = (pod.metadata.name.clone().unwrap(), pod.status.clone().unwrap().pod_ip.unwrap());
    let listener = TcpListener::bind(format!("{ip}:{port}")).await.unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            stream.write_all(name.as_bytes()).await.unwrap();
        }
    });
}

/// Waits until eight connections are answered by exactly these pods.
async fn answered_by(address: SocketAddr, names: &[&str]) {
    let expected: BTreeSet<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let began = Instant::now();
    loop {
        let mut heard = BTreeSet::new();
        for _ in 0..8 {
            heard.extend(ask(address).await.ok());
        }
        if heard == expected {
            return;
        }
        assert!(began.elapsed() < Duration::from_secs(20), "{heard:?} answer, not {expected:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_go_to_ready_pods_in_turn_and_are_refused_without_any() {
    let cluster = Cluster::start().await;
    let services: Api<Service> = Api::namespaced(cluster.plane.client(), "team");
    let spec = json!({"selector": {"tier": "x"}, "ports": [{"port": 8443, "targetPort": "https"}]});
    let service = serde_json::from_value(json!({"metadata": {"name": "web"}, "spec": spec})).unwrap();
    let service = services.create(&PostParams::default(), &service).await.unwrap();
    let ip = service.spec.unwrap().cluster_ip.unwrap();
    let address: SocketAddr = format!("{ip}:8443").parse().unwrap();

    let probe = json!({"exec": {"command": ["test", "-e", "/state/ready"]}, "periodSeconds": 1, "failureThreshold": 1});
    let container = json!({
        "readinessProbe": probe, "ports": [{"name": "https", "containerPort": 9000}],
        "volumeMounts": [{"name": "state", "mountPath": "/state"}],
    });
    for name in ["one", "two"] {
        let path = format!("/run/{name}");
        let volumes = json!([{"name": "state", "hostPath": {"path": path, "type": "DirectoryOrCreate"}}]);
        let mut pod = shell(name, "exec sleep 1000", &container, &json!({"volumes": volumes}));
        pod.metadata.labels = Some([("tier".to_owned(), "x".to_owned())].into());
        create(&cluster, &pod).await;
        answer(&cluster.phase(name, "Running").await, 9000).await;
    }
    let refused = ask(address).await.unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused, "no pod is ready");

    let state = |name: &str| cluster.kubelet.locate(std::path::Path::new("/run")).join(name).join("ready");
    std::fs::write(state("one"), "").unwrap();
    answered_by(address, &["one"]).await;
    std::fs::write(state("two"), "").unwrap();
    answered_by(address, &["one", "two"]).await;
    cluster.delete("one").await;
    answered_by(address, &["two"]).await;
    std::fs::remove_file(state("two")).unwrap();
    answered_by(address, &[]).await;

    let names = std::fs::read_to_string(cluster.services.hosts()).unwrap();
    assert!(names.contains(&format!("{ip} web.team.svc.cluster.local web.team.svc web.team\n")), "{names}");
    cluster.end().await;
}
