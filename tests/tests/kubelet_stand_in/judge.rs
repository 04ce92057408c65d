//! The stand-in follows the rules that the real kubelet is checked against too (`gpu_node judge`).

use std::path::PathBuf;
use std::time::Duration;

use kerf_tests::control_plane::{ControlPlane, ControlPlaneOptions};
use kerf_tests::kubelet::{KubeletOptions, NodeTemplate, StandInKubelet};
use kerf_tests::kubelet_rules::{JudgedKubelet, judge};

const SYNC_INTERVAL: Duration = Duration::from_secs(1);

struct StandIn {
    client: kube::Client,
    kubelet: StandInKubelet,
}

#[tonic::async_trait(?Send)]
impl JudgedKubelet for StandIn {
    fn node(&self) -> &str {
        self.kubelet.node_name()
    }

    fn client(&self) -> kube::Client {
        self.client.clone()
    }

    fn device_plugins(&self) -> PathBuf {
        self.kubelet.device_plugin_dir()
    }

    fn pod_resources(&self) -> PathBuf {
        self.kubelet.pod_resources_socket()
    }

    fn tick(&self) -> Duration {
        SYNC_INTERVAL
    }

    async fn restart(&self) -> anyhow::Result<()> {
        Ok(self.kubelet.restart().await?)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_stand_in_keeps_the_real_kubelets_rules() {
    let options =
        ControlPlaneOptions { scheduler: false, ..ControlPlaneOptions::without_controller_manager() };
    let plane = ControlPlane::start(options).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut options = KubeletOptions::new("node-1", plane.client(), folder.path());
    options.status_period = SYNC_INTERVAL;
    options.register_node = Some(NodeTemplate::default());
    options.run_commands = true;
    options.serving = Some(plane.kubelet_serving().unwrap());
    let kubelet = StandInKubelet::start(options).await.unwrap();
    let stand_in = StandIn { client: plane.client(), kubelet };
    // The variable limits the run to some rules.
    let only = std::env::var("KERF_RULES").unwrap_or_default();
    let broken = judge(&stand_in, &only, |text| println!("{text}")).await.unwrap();
    assert_eq!(broken, Vec::<&str>::new());
    stand_in.kubelet.stop().await;
    plane.stop().await.unwrap();
}
