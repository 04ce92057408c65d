//! Pods bound to the node on a real API server: from created to running, refused, completed, restarted and deleted.

use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{ContainerStatus, Event, Node, Pod};
use kerf_node_agent::kubelet_api::API_VERSION;
use kerf_node_agent::kubelet_api::podresources::ListPodResourcesRequest;
use kerf_node_agent::kubelet_api::podresources::pod_resources_lister_client::PodResourcesListerClient;
use kerf_tests::control_plane::{ControlPlane, ControlPlaneOptions};
use kerf_tests::kubelet::{
    Image, Images, KubeletOptions, NodeTemplate, PodKey, PodProcesses, StandInKubelet,
};
use kerf_tests::kubelet_rules::plugin::{FakePlugin, channel, register};
use kerf_tests::pods::phase_of;
use kerf_tests::services::ServiceProxy;
use kube::Api;
use kube::api::{DeleteParams, ListParams, PostParams};
use serde_json::{Value, json};

use super::NAME;

const TIMEOUT: Duration = Duration::from_secs(20);

/// One node on a control plane, with a plugin that has the devices a and b.
pub(super) struct Cluster {
    pub(super) plane: ControlPlane,
    pub(super) folder: tempfile::TempDir,
    pub(super) kubelet: StandInKubelet,
    pub(super) plugin: Arc<FakePlugin>,
    pub(super) pods: Api<Pod>,
    pub(super) services: ServiceProxy,
}

impl Cluster {
    pub(super) async fn start() -> Self {
        let options =
            ControlPlaneOptions { scheduler: false, ..ControlPlaneOptions::without_controller_manager() };
        let plane = ControlPlane::start(options).await.unwrap();
        plane.create_namespace("team").await.unwrap();
        let folder = tempfile::tempdir().unwrap();
        let mut options = KubeletOptions::new("node-1", plane.client(), folder.path());
        options.status_period = Duration::from_millis(100);
        options.register_node = Some(NodeTemplate::default());
        options.run_commands = true;
        options.serving = Some(plane.kubelet_serving().unwrap());
        let services = ServiceProxy::start(&plane.client(), plane.dir()).unwrap();
        let mut images = Images::default();
        images.add("shell", Image::running("/bin/sh").with_variable("OF_IMAGE", "image"));
        options.processes = PodProcesses {
            images,
            api_server: plane.url().trim_start_matches("https://").parse().ok(),
            hosts: Some(services.hosts().to_owned()),
            volumes_period: Duration::from_millis(100),
        };
        let kubelet = StandInKubelet::start(options).await.unwrap();
        let plugin = plug_in(&kubelet).await;
        let pods = Api::namespaced(plane.client(), "team");
        Self { plane, folder, kubelet, plugin, pods, services }
    }

    pub(super) async fn create(&self, name: &str, count: u32, script: &str, policy: &str) {
        self.create_with(name, &json!({NAME: count.to_string()}), script, policy).await;
    }

    async fn create_with(&self, name: &str, limits: &Value, script: &str, policy: &str) {
        let pod = json!({
            "metadata": {"name": name},
            "spec": {
                "nodeName": "node-1",
                "restartPolicy": policy,
                "containers": [{
                    "name": "main",
                    "image": "none",
                    "command": ["/bin/sh", "-c"],
                    "args": [script],
                    "env": [{"name": "OWN", "value": "mine"}],
                    "resources": {"limits": limits},
                }],
            },
        });
        self.pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
    }

    /// Waits until a pod is in this phase, and returns it.
    pub(super) async fn phase(&self, name: &str, phase: &str) -> Pod {
        self.pod_until(name, |pod| phase_of(pod) == phase).await
    }

    pub(super) async fn pod_until(&self, name: &str, is_so: impl Fn(&Pod) -> bool) -> Pod {
        let began = Instant::now();
        loop {
            let pod = self.pods.get(name).await.unwrap();
            if is_so(&pod) {
                return pod;
            }
            assert!(began.elapsed() < TIMEOUT, "pod {name} is still {:#?}", pod.status);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    pub(super) async fn delete(&self, name: &str) {
        self.pods.delete(name, &DeleteParams::default()).await.unwrap();
        let began = Instant::now();
        while self.pods.get_opt(name).await.unwrap().is_some() {
            assert!(began.elapsed() < TIMEOUT, "pod {name} does not go");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    pub(super) async fn log_until(&self, name: &str, text: &str) -> String {
        self.log_of(name, "main", text).await
    }

    pub(super) async fn log_of(&self, name: &str, container: &str, text: &str) -> String {
        let path = self.kubelet.container_log(&PodKey::new("team", name), container);
        let began = Instant::now();
        loop {
            let log = std::fs::read_to_string(&path).unwrap_or_default();
            if log.contains(text) {
                return log;
            }
            assert!(began.elapsed() < TIMEOUT, "the log of {name} has no {text:?}: {log}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Waits until the node names its kubelet's port, and returns it.
    pub(super) async fn served(&self) -> i32 {
        self.served_elsewhere_than(0).await
    }

    /// The same for a port other than this one.
    pub(super) async fn served_elsewhere_than(&self, before: i32) -> i32 {
        let nodes: Api<Node> = Api::all(self.plane.client());
        let began = Instant::now();
        loop {
            let status = nodes.get("node-1").await.unwrap().status.unwrap();
            let endpoint = status.daemon_endpoints.and_then(|endpoints| endpoints.kubelet_endpoint);
            if let Some(endpoint) = endpoint.filter(|endpoint| endpoint.port != 0 && endpoint.port != before)
            {
                return endpoint.port;
            }
            assert!(began.elapsed() < TIMEOUT, "the node does not say where its kubelet is");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    pub(super) async fn end(self) {
        self.kubelet.stop().await;
        self.plane.stop().await.unwrap();
    }
}

async fn plug_in(kubelet: &StandInKubelet) -> Arc<FakePlugin> {
    let plugin = FakePlugin::new(&["a", "b"]).serve(&kubelet.device_plugin_dir().join("one.sock")).unwrap();
    register(kubelet.kubelet_socket(), "one.sock", NAME, API_VERSION).await.unwrap();
    let began = Instant::now();
    while kubelet.healthy_devices().get(NAME).is_none_or(|ids| ids.len() != 2) {
        assert!(began.elapsed() < TIMEOUT, "the devices do not appear");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    plugin
}

fn main_container(pod: &Pod) -> ContainerStatus {
    let statuses = pod.status.clone().unwrap_or_default().container_statuses.unwrap_or_default();
    statuses.into_iter().next().unwrap_or_default()
}

/// A process that has ended but was not waited for by its parent has no command line.
fn process_lives(id: &str) -> bool {
    std::fs::read(format!("/proc/{id}/cmdline")).is_ok_and(|line| !line.is_empty())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bound_pod_runs_with_its_devices_until_it_is_deleted() {
    let cluster = Cluster::start().await;
    let key = PodKey::new("team", "one");
    cluster.create("one", 1, "sleep 1000 & echo process $! with $DEVICES is $OWN; wait", "Always").await;
    let pod = cluster.phase("one", "Running").await;
    assert!(main_container(&pod).ready);
    let held = cluster.kubelet.allocations()[&key][NAME].clone();
    assert_eq!(held.len(), 1);
    let log = cluster.log_until("one", "is mine").await;
    assert!(log.contains(&format!("with {} is mine", held.first().unwrap())), "{log}");
    let process = log.split(' ').nth(1).unwrap();
    assert!(process_lives(process));
    assert_eq!(*cluster.plugin.allocated.lock().unwrap(), [held.into_iter().collect::<Vec<_>>()]);

    let nodes: Api<Node> = Api::all(cluster.plane.client());
    let began = Instant::now();
    loop {
        let status = nodes.get("node-1").await.unwrap().status.unwrap();
        let shown = |list: Option<std::collections::BTreeMap<String, _>>| {
            list.and_then(|list| list.get(NAME).cloned())
        };
        let quantity =
            |text: &str| Some(k8s_openapi::apimachinery::pkg::api::resource::Quantity(text.to_owned()));
        if shown(status.capacity) == quantity("2") && shown(status.allocatable) == quantity("2") {
            break;
        }
        assert!(began.elapsed() < TIMEOUT, "the node does not show its devices");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }

    cluster.delete("one").await;
    // It was killed with its group; the kernel takes a moment to end it.
    let began = Instant::now();
    while process_lives(process) {
        assert!(began.elapsed() < TIMEOUT, "the process outlived its pod");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(cluster.kubelet.allocations().is_empty());
    assert_eq!(cluster.kubelet.admitted(), 1);
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_are_rejected_or_started_without_devices_as_on_a_real_node() {
    let cluster = Cluster::start().await;
    cluster.create("greedy", 3, "sleep 1000", "Always").await;
    let refused = cluster.phase("greedy", "Failed").await.status.unwrap();
    let message = "Pod was rejected: Allocate failed due to requested number of devices unavailable for nvidia.com/mig-1g.10gb. Requested: 3, Available: 2, which is unexpected";
    assert_eq!(refused.reason.as_deref(), Some("UnexpectedAdmissionError"));
    assert_eq!(refused.message.as_deref(), Some(message));
    assert_eq!(cluster.kubelet.failed_admissions()[0].message, message);
    let events: Api<Event> = Api::namespaced(cluster.plane.client(), "team");
    let began = Instant::now();
    while events.list(&ListParams::default()).await.unwrap().items.is_empty() {
        assert!(began.elapsed() < TIMEOUT, "no Event reports the rejection");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }

    cluster.create_with("blind", &json!({"example.com/never-registered": "1"}), "sleep 1000", "Always").await;
    cluster.phase("blind", "Running").await;
    assert_eq!(cluster.kubelet.started_without_device(), [PodKey::new("team", "blind")]);
    cluster.delete("greedy").await;
    cluster.end().await;
}

/// What a plugin does not give to a pod that is gone harms nobody.
#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_is_deleted_by_force_during_its_admission_does_not_count_as_rejected() {
    let cluster = Cluster::start().await;
    let slow = FakePlugin { thinking: Duration::from_secs(1), ..FakePlugin::new(&["a"]) };
    slow.refuse(Some(tonic::Status::failed_precondition("its pod has ended")));
    let slow = slow.serve(&cluster.kubelet.device_plugin_dir().join("slow.sock")).unwrap();
    let name = "example.com/slow";
    register(cluster.kubelet.kubelet_socket(), "slow.sock", name, API_VERSION).await.unwrap();
    let began = Instant::now();
    while !cluster.kubelet.healthy_devices().contains_key(name) {
        assert!(began.elapsed() < TIMEOUT, "the device does not appear");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    cluster.create_with("deleted", &json!({name: "1"}), "sleep 1000", "Always").await;
    while slow.most_at_once() == 0 {
        assert!(began.elapsed() < TIMEOUT, "nothing is allocated");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    cluster.pods.delete("deleted", &DeleteParams::default().grace_period(0)).await.unwrap();
    // The Event follows the attempt to write the status.
    let events: Api<Event> = Api::namespaced(cluster.plane.client(), "team");
    while events.list(&ListParams::default()).await.unwrap().items.is_empty() {
        assert!(began.elapsed() < TIMEOUT, "no Event reports the rejection");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(cluster.kubelet.failed_admissions(), []);
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_restart_according_to_their_policy() {
    let cluster = Cluster::start().await;
    cluster.create("good", 1, "exit 0", "Never").await;
    cluster.phase("good", "Succeeded").await;
    cluster.create("bad", 1, "exit 3", "Never").await;
    let bad = cluster.phase("bad", "Failed").await;
    let ended = main_container(&bad).state.unwrap().terminated.unwrap();
    assert_eq!(ended.exit_code, 3);
    assert!(cluster.kubelet.allocations().is_empty(), "completed pods hold nothing");

    cluster.create("again", 2, "echo run; sleep 0.1; exit 1", "Always").await;
    cluster.pod_until("again", |pod| main_container(pod).restart_count >= 2).await;
    let log = cluster.log_until("again", "run\nrun\nrun\n").await;
    assert!(log.lines().all(|line| line == "run"), "{log}");
    assert_eq!(cluster.plugin.allocated.lock().unwrap().len(), 3, "restarts do not allocate again");
    for name in ["good", "bad", "again"] {
        cluster.delete(name).await;
    }
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_of_the_kubelet_leaves_pods_alone() {
    let cluster = Cluster::start().await;
    cluster.create("one", 1, "echo process $$ .; exec sleep 1000", "Always").await;
    cluster.phase("one", "Running").await;
    let process = cluster.log_until("one", ".").await.split(' ').nth(1).unwrap().to_owned();
    let held = cluster.kubelet.allocations();

    cluster.kubelet.go_down().await;
    cluster.create("two", 1, "exec sleep 1000", "Always").await;
    cluster.kubelet.come_up().await.unwrap();
    let refused = cluster.phase("two", "Failed").await.status.unwrap().message.unwrap();
    assert!(refused.contains("no healthy devices present"), "its plugin was not back: {refused}");

    plug_in(&cluster.kubelet).await;
    cluster.create("three", 1, "exec sleep 1000", "Always").await;
    cluster.phase("three", "Running").await;
    assert!(process_lives(&process));
    let now = cluster.kubelet.allocations();
    assert_eq!(now[&PodKey::new("team", "one")], held[&PodKey::new("team", "one")]);
    assert_ne!(now[&PodKey::new("team", "three")], now[&PodKey::new("team", "one")]);
    cluster.delete("one").await;
    assert!(!process_lives(&process));
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kubelet_that_has_not_listed_its_pods_reports_none_and_frees_nothing() {
    let cluster = Cluster::start().await;
    cluster.create("one", 1, "exec sleep 1000", "Always").await;
    cluster.phase("one", "Running").await;
    let held = cluster.kubelet.allocations();
    cluster.kubelet.hold_pods_back(true);
    cluster.kubelet.restart().await.unwrap();
    plug_in(&cluster.kubelet).await;
    let listed = async || {
        let mut lister =
            PodResourcesListerClient::new(channel(cluster.kubelet.pod_resources_socket()).await.unwrap());
        lister.list(ListPodResourcesRequest {}).await.unwrap().into_inner().pod_resources.len()
    };
    assert_eq!(listed().await, 0);
    assert_eq!(cluster.kubelet.allocations(), held);
    cluster.create("two", 1, "exec sleep 1000", "Always").await;
    cluster.kubelet.hold_pods_back(false);
    cluster.phase("two", "Running").await;
    assert_eq!(listed().await, 2);
    let (one, two) = (PodKey::new("team", "one"), PodKey::new("team", "two"));
    let now = cluster.kubelet.allocations();
    assert_eq!(now[&one], held[&one]);
    assert_ne!(now[&one], now[&two]);
    cluster.delete("one").await;
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn twenty_five_kubelets_in_one_process_run_two_hundred_pods() {
    let options =
        ControlPlaneOptions { scheduler: false, ..ControlPlaneOptions::without_controller_manager() };
    let plane = ControlPlane::start(options).await.unwrap();
    plane.create_namespace("team").await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let devices: Vec<String> = (0..8).map(|number| format!("device-{number}")).collect();
    let devices: Vec<&str> = devices.iter().map(String::as_str).collect();
    let mut kubelets = Vec::new();
    for number in 0..25 {
        let name = format!("node-{number}");
        let mut options = KubeletOptions::new(&name, plane.client(), folder.path().join(number.to_string()));
        options.register_node = Some(NodeTemplate::default());
        let kubelet = StandInKubelet::start(options).await.unwrap();
        FakePlugin::new(&devices).serve(&kubelet.device_plugin_dir().join("one.sock")).unwrap();
        register(kubelet.kubelet_socket(), "one.sock", NAME, API_VERSION).await.unwrap();
        kubelets.push(kubelet);
    }
    let began = Instant::now();
    while kubelets.iter().any(|kubelet| kubelet.healthy_devices().get(NAME).is_none_or(|ids| ids.len() != 8))
    {
        assert!(began.elapsed() < TIMEOUT, "the devices do not appear");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }

    let pods: Api<Pod> = Api::namespaced(plane.client(), "team");
    let began = Instant::now();
    let created =
        (0..200).map(|number| {
            let pod = json!({
                "metadata": {"name": format!("pod-{number}")},
                "spec": {
                    "nodeName": format!("node-{}", number % 25),
                    "containers": [{"name": "main", "image": "none", "resources": {"limits": {NAME: "1"}}}],
                },
            });
            let pods = pods.clone();
            async move {
                pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap()
            }
        });
    futures::future::join_all(created).await;
    let creating = began.elapsed();
    let running = ListParams::default().fields("status.phase=Running");
    while pods.list(&running).await.unwrap().items.len() != 200 {
        assert!(began.elapsed() < Duration::from_mins(1), "not all pods run");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    println!("200 pods on 25 kubelets: created after {creating:?}, running after {:?}", began.elapsed());
    for kubelet in &kubelets {
        let held: Vec<String> =
            kubelet.allocations().into_values().flat_map(|mut held| held.remove(NAME).unwrap()).collect();
        let different: std::collections::BTreeSet<&String> = held.iter().collect();
        assert_eq!((held.len(), different.len()), (8, 8), "on {}", kubelet.node_name());
        assert_eq!(kubelet.failed_admissions(), []);
        kubelet.stop().await;
    }
    plane.stop().await.unwrap();
}
