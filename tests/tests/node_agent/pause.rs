//! DCGM holds what is to be cut, so the agent pauses it by its label, as GPU Operator's MIG manager does.

use std::sync::{Arc, Mutex};

use anyhow::ensure;
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Node;
use kerf_core::contract::SliceState;
use kerf_nvml_mock::{MockState, Process, ProcessKind};
use kerf_tests::cluster::wait;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::runtime::{WatchStreamExt as _, watcher};
use serde_json::json;

use crate::node_agent::scene::{NODE, Scene, TIMEOUT, h100, mig};

const LABEL: &str = "nvidia.com/gpu.deploy.dcgm";
const EXPORTER: &str = "nvidia.com/gpu.deploy.dcgm-exporter";
const PAUSED: &str = "paused-for-mig-change";

/// GPU Operator's DCGM: a pod while its label is `true`, and a process that holds a GPU instance without being in
/// NVML's lists.
struct Dcgm {
    /// The values that its label has had.
    seen: Arc<Mutex<Vec<String>>>,
    watching: tokio::task::JoinHandle<()>,
}

impl Dcgm {
    async fn start(scene: &Scene) -> anyhow::Result<Self> {
        let nodes = Api::<Node>::all(scene.plane.client());
        let labels = json!({"metadata": {"labels": {LABEL: "true", EXPORTER: "false"}}});
        nodes.patch(NODE, &PatchParams::default(), &Patch::Merge(labels)).await?;
        let pod = json!({
            "metadata": {"name": "nvidia-dcgm-x", "labels": {"app": "nvidia-dcgm"}},
            "spec": {
                "nodeName": NODE, "terminationGracePeriodSeconds": 0,
                "containers": [{"name": "dcgm", "image": "none"}],
            },
        });
        scene.pods().create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
        let gi = MockState::load(&scene.files.state)?.slices()[0].gi;
        let process = Process { kind: ProcessKind::Holder, ..Process::on_instance(77, 0, gi, 0) };
        scene.happen(|control| control.process(process))?;
        let seen = Arc::<Mutex<Vec<String>>>::default();
        let noted = Arc::clone(&seen);
        let config = watcher::Config::default().fields(&format!("metadata.name={NODE}"));
        let changes = watcher(nodes, config).default_backoff().applied_objects();
        let watching = tokio::spawn(changes.for_each(move |node| {
            let value = node.ok().and_then(|node| node.metadata.labels?.remove(LABEL));
            let mut noted = noted.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            if let Some(value) = value.filter(|value| noted.last() != Some(value)) {
                noted.push(value);
            }
            std::future::ready(())
        }));
        Ok(Self { seen, watching })
    }

    /// Waits until its label has had these values.
    async fn until(&self, values: &[&str]) -> anyhow::Result<()> {
        let seen = || self.seen.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
        let waiting = wait(TIMEOUT, "the label's values", async || Ok(seen().len() >= values.len()));
        waiting.await.map_err(|error| error.context(format!("{:?}", seen())))?;
        ensure!(seen() == values, "{:?}", seen());
        Ok(())
    }
}

impl Drop for Dcgm {
    fn drop(&mut self) {
        self.watching.abort();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn dcgm_is_paused_for_a_cut_and_resumed_even_after_the_agent_was_killed() -> anyhow::Result<()> {
    let mut scene = Scene::start(h100()).await?;
    scene.want(vec![scene.wanted("s1", mig("1g.10gb", 0, 1)?, None).await?]).await?;
    scene.slice_until("s1", SliceState::Idle).await?;
    let dcgm = Dcgm::start(&scene).await?;
    dcgm.until(&["true"]).await?;

    let big = "nvidia.com/mig-3g.40gb";
    let pod = scene.create("a", big).await?;
    scene.want(vec![scene.wanted("s2", mig("3g.40gb", 0, 4)?, Some((&pod, big))).await?]).await?;
    dcgm.until(&["true", PAUSED]).await?;
    scene.agent.kill()?;
    let read = |name: &str| std::fs::read(scene.dir.join("state").join(name)).unwrap_or_default();
    let records = String::from_utf8_lossy(&[read("ledger.0"), read("ledger.1")].concat()).into_owned();
    assert!(records.contains(&format!("\"paused\":[\"{LABEL}\"]")), "{records}");

    // A killed agent cannot restore the label, so the next one must, and then needs the pause again.
    scene.start_agent().await?;
    dcgm.until(&["true", PAUSED, "true", PAUSED]).await?;
    assert_eq!(scene.cut()?, ["1g.10gb at 0"], "DCGM holds it");
    scene.happen(|mut control| {
        control.processes.retain(|process| process.pid != 77);
        control
    })?;
    scene.pods().delete("nvidia-dcgm-x", &DeleteParams::default()).await?;
    scene.slice_until("s2", SliceState::Ready).await?;
    assert_eq!(scene.cut()?, ["3g.40gb at 0"]);
    scene.run("a").await?;
    dcgm.until(&["true", PAUSED, "true", PAUSED, "true"]).await?;
    let node = Api::<Node>::all(scene.plane.client()).get(NODE).await?;
    assert_eq!(node.metadata.labels.unwrap_or_default().get(EXPORTER).map(String::as_str), Some("false"));
    scene.stop().await
}
