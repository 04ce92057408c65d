//! Plugins, the registration socket and pod-resources, with pods that only a list provides.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Pod;
use kerf_node_agent::kubelet_api::API_VERSION;
use kerf_node_agent::kubelet_api::podresources::pod_resources_lister_client::PodResourcesListerClient;
use kerf_node_agent::kubelet_api::podresources::{
    AllocatableResourcesRequest, GetPodResourcesRequest, ListPodResourcesRequest,
};
use kerf_tests::kubelet::{
    ActivePod, ActivePods, Allocated, DeviceManager, KubeletServers, PodDemand, Rejection, ResourceCount,
    SocketPaths,
};
use kerf_tests::kubelet_rules::plugin::{FakePlugin, channel, list, register};
use tonic::Status;
use tonic::transport::Channel;

use super::{NAME, ids, pod};

#[derive(Default)]
struct FakePods(Mutex<Vec<ActivePod>>);

impl ActivePods for FakePods {
    fn active(&self) -> Vec<ActivePod> {
        self.0.lock().unwrap().clone()
    }
}

/// A device manager with its sockets, in a folder of its own.
struct Node {
    folder: tempfile::TempDir,
    pods: Arc<FakePods>,
    devices: Arc<DeviceManager>,
    servers: Option<KubeletServers>,
}

impl Node {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let pods = Arc::new(FakePods::default());
        let paths = SocketPaths::below(folder.path());
        let known: Arc<FakePods> = Arc::clone(&pods);
        let devices = Arc::new(DeviceManager::new("node", &paths.device_plugin_dir(), known));
        let servers = KubeletServers::start(&paths, &devices, false).unwrap();
        Self { folder, pods, devices, servers: Some(servers) }
    }

    fn paths(&self) -> SocketPaths {
        SocketPaths::below(self.folder.path())
    }

    async fn restart(&mut self) {
        self.devices.go_down();
        self.servers.take().unwrap().stop().await;
        self.devices.restart(Instant::now());
        self.servers = Some(KubeletServers::start(&self.paths(), &self.devices, false).unwrap());
    }

    /// Serves a plugin on a socket of its own.
    fn serve(&self, socket: &str, healthy: &[&str]) -> Arc<FakePlugin> {
        FakePlugin::new(healthy).serve(&self.paths().device_plugin_dir().join(socket)).unwrap()
    }

    async fn register(&self, socket: &str, resource: &str, version: &str) -> Result<(), Status> {
        register(self.paths().registration(), socket, resource, version).await
    }

    async fn lister(&self) -> PodResourcesListerClient<Channel> {
        PodResourcesListerClient::new(channel(self.paths().pod_resources()).await.unwrap())
    }

    /// Waits until these are the kubelet's healthy devices of the test's name; `None` means an unregistered name.
    async fn wait_for(&self, expected: Option<&[&str]>) {
        let expected: Option<BTreeSet<String>> =
            expected.map(|ids| ids.iter().map(|id| (*id).to_owned()).collect());
        for _ in 0..1000 {
            if self.devices.healthy().get(NAME) == expected.as_ref() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("waited for {expected:?}, the kubelet has {:?}", self.devices.healthy());
    }

    async fn admit(&self, pod: &Pod) -> Result<Allocated, String> {
        let demand = PodDemand::from_pod(pod);
        let containers = demand.containers.iter().map(|container| container.name.clone()).collect();
        let active = ActivePod { key: demand.key.clone(), uid: demand.uid.clone(), containers };
        self.pods.0.lock().unwrap().push(active);
        self.devices.admit(&demand).await.map_err(|error| Rejection::of_devices(&error).message)
    }

    fn ended(&self, name: &str) {
        self.pods.0.lock().unwrap().retain(|pod| pod.key.name != name);
    }
}

#[tokio::test]
async fn a_registered_device_is_listed_allocated_held_and_freed() {
    let node = Node::start();
    let plugin = node.serve("one.sock", &["a", "b"]);
    node.register("one.sock", NAME, API_VERSION).await.unwrap();
    node.wait_for(Some(&["a", "b"])).await;

    let mut lister = node.lister().await;
    let answer = lister.get_allocatable_resources(AllocatableResourcesRequest {}).await.unwrap().into_inner();
    let entries: Vec<_> =
        answer.devices.iter().map(|entry| (entry.resource_name.as_str(), entry.device_ids.clone())).collect();
    assert_eq!(
        entries,
        [(NAME, vec!["a".to_owned()]), (NAME, vec!["b".to_owned()])],
        "one entry for each device"
    );

    node.admit(&pod("one", &[], &[("main", 1)])).await.unwrap();
    let allocated = plugin.allocated.lock().unwrap().clone();
    assert_eq!(allocated.len(), 1);
    let held = lister.list(ListPodResourcesRequest {}).await.unwrap().into_inner().pod_resources;
    assert_eq!((held.len(), held[0].name.as_str(), held[0].namespace.as_str()), (1, "one", "team"));
    assert_eq!(held[0].containers[0].devices[0].device_ids, allocated[0]);
    let grant = node.devices.grant("uid-of-one", "main").unwrap();
    assert_eq!(grant.environment["DEVICES"], allocated[0][0]);

    let by_name = GetPodResourcesRequest { pod_name: "one".to_owned(), pod_namespace: "team".to_owned() };
    let got = lister.get(by_name.clone()).await.unwrap().into_inner().pod_resources;
    assert_eq!(got.as_ref(), Some(&held[0]));

    node.ended("one");
    assert_eq!(lister.get(by_name).await.unwrap_err().message(), "pod one in namespace team not found");
    assert!(node.devices.grant("uid-of-one", "main").is_some(), "freed lazily, not at the pod's end");
    assert!(lister.list(ListPodResourcesRequest {}).await.unwrap().into_inner().pod_resources.is_empty());
    assert!(node.devices.grant("uid-of-one", "main").is_none(), "listing frees what inactive pods held");
}

#[tokio::test]
async fn a_rejected_pod_has_the_kubelets_message() {
    let node = Node::start();
    let plugin = node.serve("one.sock", &["a"]);
    node.register("one.sock", NAME, API_VERSION).await.unwrap();
    node.wait_for(Some(&["a"])).await;

    *plugin.refusal.lock().unwrap() = Some(Status::internal("the slice is not there"));
    let refused = node.admit(&pod("one", &[], &[("main", 1)])).await.unwrap_err();
    assert_eq!(
        refused,
        "Pod was rejected: Allocate failed due to rpc error: code = Internal desc = the slice is not there, which is unexpected"
    );
    *plugin.refusal.lock().unwrap() = None;
    node.admit(&pod("two", &[], &[("main", 1)])).await.expect("a refused device is free again");
    let refused = node.admit(&pod("three", &[], &[("main", 1)])).await.unwrap_err();
    assert_eq!(
        refused,
        "Pod was rejected: Allocate failed due to requested number of devices unavailable for nvidia.com/mig-1g.10gb. Requested: 1, Available: 0, which is unexpected"
    );
}

#[tokio::test]
async fn a_name_without_registration_is_skipped() {
    let node = Node::start();
    let allocated = node.admit(&pod("one", &[], &[("main", 1)])).await.unwrap();
    assert_eq!(allocated.unknown, ids([NAME]));
    assert!(node.devices.held_by_pod("uid-of-one").is_empty());

    node.serve("one.sock", &[]);
    node.register("one.sock", NAME, API_VERSION).await.unwrap();
    node.wait_for(Some(&[])).await;
    let refused = node.admit(&pod("two", &[], &[("main", 1)])).await.unwrap_err();
    assert!(refused.contains("no healthy devices present"), "an empty list is enough to be known: {refused}");
}

#[tokio::test]
async fn containers_reuse_the_devices_of_init_containers_but_not_of_sidecars() {
    let node = Node::start();
    node.serve("one.sock", &["a", "b"]);
    node.register("one.sock", NAME, API_VERSION).await.unwrap();
    node.wait_for(Some(&["a", "b"])).await;

    let pod = pod("one", &[("log", "Always", 1), ("load", "", 1)], &[("main", 1)]);
    node.admit(&pod).await.unwrap();
    let held = |container| node.devices.held("uid-of-one", container)[NAME].clone();
    assert_eq!(held("load"), held("main"));
    assert!(held("log").is_disjoint(&held("main")));
}

#[tokio::test]
async fn the_plugins_preference_decides() {
    let node = Node::start();
    let plugin = FakePlugin {
        preferred: vec!["c".to_owned(), "b".to_owned()],
        ..FakePlugin::new(&["a", "b", "c", "d"])
    };
    let plugin = plugin.serve(&node.paths().device_plugin_dir().join("one.sock")).unwrap();
    node.register("one.sock", NAME, API_VERSION).await.unwrap();
    node.wait_for(Some(&["a", "b", "c", "d"])).await;
    node.admit(&pod("one", &[], &[("main", 2)])).await.unwrap();
    assert_eq!(*plugin.allocated.lock().unwrap(), [["b", "c"]]);
}

#[tokio::test]
async fn pods_are_admitted_one_at_a_time() {
    let node = Node::start();
    let thinking = Duration::from_millis(150);
    let plugin = FakePlugin { thinking, ..FakePlugin::new(&["a", "b"]) };
    plugin.serve(&node.paths().device_plugin_dir().join("one.sock")).unwrap();
    node.register("one.sock", NAME, API_VERSION).await.unwrap();
    node.wait_for(Some(&["a", "b"])).await;
    let began = Instant::now();
    let (one, two) = (pod("one", &[], &[("main", 1)]), pod("two", &[], &[("main", 1)]));
    let (one, two) = tokio::join!(node.admit(&one), node.admit(&two));
    assert!(one.is_ok() && two.is_ok());
    assert!(began.elapsed() >= 2 * thinking, "two admissions overlapped");
}

#[tokio::test]
async fn changes_of_the_list_take_effect_after_the_delay() {
    let node = Node::start();
    let plugin = node.serve("one.sock", &["a"]);
    node.register("one.sock", NAME, API_VERSION).await.unwrap();
    node.wait_for(Some(&["a"])).await;
    let delay = Duration::from_millis(150);
    node.devices.set_delay(delay);
    let began = Instant::now();
    plugin.devices.send(list(&["b"], &["a"])).unwrap();
    node.wait_for(Some(&["b"])).await;
    assert!(began.elapsed() >= delay);
    let counts = node.devices.node_counts(Instant::now());
    assert_eq!(counts[NAME], ResourceCount { capacity: 2, allocatable: 1 });
}

#[tokio::test]
async fn a_vanished_plugin_keeps_its_capacity_for_five_minutes() {
    let node = Node::start();
    let plugin = node.serve("one.sock", &["a", "b"]);
    node.register("one.sock", NAME, API_VERSION).await.unwrap();
    node.wait_for(Some(&["a", "b"])).await;
    plugin.closed.cancel();
    node.wait_for(Some(&[])).await;

    let counts = |after: Duration| node.devices.node_counts(Instant::now() + after).get(NAME).copied();
    assert_eq!(counts(Duration::ZERO), Some(ResourceCount { capacity: 2, allocatable: 0 }));
    assert_eq!(counts(Duration::from_secs(301)), Some(ResourceCount { capacity: 0, allocatable: 0 }));
    assert_eq!(counts(Duration::from_secs(302)), None, "the name is forgotten");
}

#[tokio::test]
async fn the_end_of_an_old_stream_ends_the_new_registration() {
    let node = Node::start();
    let old = node.serve("old.sock", &["a"]);
    node.register("old.sock", NAME, API_VERSION).await.unwrap();
    node.wait_for(Some(&["a"])).await;
    let new = node.serve("new.sock", &["b"]);
    node.register("new.sock", NAME, API_VERSION).await.unwrap();
    node.wait_for(Some(&["b"])).await;
    node.admit(&pod("one", &[], &[("main", 1)])).await.unwrap();
    assert_eq!(*new.allocated.lock().unwrap(), [["b"]], "the newest registration is asked");

    old.closed.cancel();
    node.wait_for(Some(&[])).await;
    new.devices.send(list(&["b", "c"], &[])).unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    node.wait_for(Some(&[])).await;
    node.register("new.sock", NAME, API_VERSION).await.unwrap();
    node.wait_for(Some(&["b", "c"])).await;
}

#[tokio::test]
async fn a_restart_empties_the_folder_and_keeps_names_and_holders() {
    let mut node = Node::start();
    node.serve("one.sock", &["a"]);
    node.register("one.sock", NAME, API_VERSION).await.unwrap();
    node.wait_for(Some(&["a"])).await;
    node.admit(&pod("one", &[], &[("main", 1)])).await.unwrap();
    let grant = node.devices.grant("uid-of-one", "main").unwrap();

    node.restart().await;
    assert!(!node.paths().device_plugin_dir().join("one.sock").exists());
    assert!(node.paths().registration().exists());
    node.wait_for(Some(&[])).await;
    assert_eq!(node.devices.held("uid-of-one", "main")[NAME], ids(["a"]));
    assert_eq!(node.devices.grant("uid-of-one", "main"), Some(grant), "the answer of Allocate is kept");
    let refused = node.admit(&pod("two", &[], &[("main", 1)])).await.unwrap_err();
    assert!(refused.contains("no healthy devices present"), "{refused}");

    node.serve("one.sock", &["a", "b"]);
    node.register("one.sock", NAME, API_VERSION).await.unwrap();
    node.wait_for(Some(&["a", "b"])).await;
    node.admit(&pod("three", &[], &[("main", 1)])).await.unwrap();
    assert_eq!(node.devices.held("uid-of-three", "main")[NAME], ids(["b"]));
}

#[tokio::test]
async fn a_wrong_version_or_name_is_not_registered() {
    let node = Node::start();
    node.serve("one.sock", &["a"]);
    let error = node.register("one.sock", NAME, "v1alpha").await.unwrap_err();
    assert!(error.message().contains("requested API version \"v1alpha\" is not supported"), "{error}");
    let error = node.register("one.sock", "gpu-10gb", API_VERSION).await.unwrap_err();
    assert!(error.message().contains("\"gpu-10gb\" is invalid"), "{error}");
    node.wait_for(None).await;
}
