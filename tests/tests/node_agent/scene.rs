//! One node with its agent as a process and its API server.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::events::v1::Event;
use kerf_core::contract::{
    Condition, ConditionStatus, GpuNodeStatus, MigPart, NodePolicy, Shape, SliceState, SliceStatus,
    WantedSlice,
};
use kerf_core::names::{GpuUuid, PodUid, SliceId};
use kerf_nvml_mock::{MigMode, MockConfig, MockControl, MockFiles, MockState, Model};
use kerf_runtime::gpu_node::GpuNode;
use kerf_tests::cluster::{agent_program, unguarded, unscheduled_pod, wait};
use kerf_tests::control_plane::{ControlPlane, ControlPlaneOptions};
use kerf_tests::kubelet::{KubeletOptions, NodeTemplate, PodKey, StandInKubelet};
use kerf_tests::pods::bind;
use kerf_tests::process::Child;
use kerf_tests::stand_in_leader::{StandInLeader, reservation};
use kube::Api;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use serde_json::json;

pub(crate) const NODE: &str = "n";
pub(crate) const TIMEOUT: Duration = Duration::from_secs(20);
pub(crate) const ONE: &str = "nvidia.com/mig-1g.10gb";

pub(crate) struct Scene {
    pub(crate) plane: ControlPlane,
    pub(crate) kubelet: StandInKubelet,
    pub(crate) files: MockFiles,
    pub(crate) dir: PathBuf,
    pub(crate) leader: StandInLeader,
    pub(crate) agent: Child,
    pub(crate) gpu_nodes: Api<GpuNode>,
}

impl Scene {
    pub(crate) async fn start(gpus: MockConfig) -> anyhow::Result<Self> {
        let scene = Self::prepare(gpus, |_| Ok(())).await?;
        scene.until("the agent to serve", GpuNodeStatus::is_ready).await?;
        Ok(scene)
    }

    /// Starts everything; `before` changes the node's folder before the agent starts.
    pub(crate) async fn prepare(
        gpus: MockConfig,
        before: impl FnOnce(&std::path::Path) -> anyhow::Result<()>,
    ) -> anyhow::Result<Self> {
        let plane = unguarded(ControlPlaneOptions::without_controller_manager()).await?;
        let dir = plane.dir().join(NODE);
        std::fs::create_dir_all(&dir)?;
        let files = MockFiles::in_folder(&dir);
        gpus.write(&files.config)?;
        name_boot(&dir, "boot-1")?;
        let kubelet = StandInKubelet::start(KubeletOptions {
            register_node: Some(NodeTemplate::default()),
            ..KubeletOptions::new(NODE, plane.client(), &dir)
        });
        let kubelet = kubelet.await?;
        before(&dir)?;
        let leader = StandInLeader::start(&plane).await?;
        let agent = run(&plane, &dir, &files, leader.agent_flags()).await?;
        let gpu_nodes = Api::all(plane.client());
        Ok(Self { plane, kubelet, files, dir, leader, agent, gpu_nodes })
    }

    /// Starts the agent again after it has ended.
    pub(crate) async fn start_agent(&mut self) -> anyhow::Result<()> {
        self.agent = run(&self.plane, &self.dir, &self.files, self.leader.agent_flags()).await?;
        Ok(())
    }

    /// Sets the node's policy as an admin does.
    pub(crate) async fn set_policy(&self, policy: &serde_json::Value) -> anyhow::Result<()> {
        let parsed: NodePolicy = serde_json::from_value(policy.clone())?;
        let patch = Patch::Merge(json!({"spec": {"policy": parsed}}));
        self.gpu_nodes.patch(NODE, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    /// Waits until a condition is false, and returns its message.
    pub(crate) async fn complaint(&self, kind: &str) -> anyhow::Result<String> {
        self.complaint_with(kind, "").await
    }

    /// Waits until a condition is false with this text in its message, and returns the message.
    pub(crate) async fn complaint_with(&self, kind: &str, text: &str) -> anyhow::Result<String> {
        let find = |status: &GpuNodeStatus| {
            let mut all = status.conditions.clone().into_iter();
            let is_it = |c: &Condition| c.kind == kind && c.status == ConditionStatus::False;
            all.find(is_it).map(|c| c.message).filter(|message| message.contains(text))
        };
        let what = format!("{kind} to be false for {text:?}");
        let status = self.until(&what, |status| find(status).is_some()).await?;
        find(&status).context("the condition holds again")
    }

    /// Waits until a condition holds.
    pub(crate) async fn holds(&self, kind: &str) -> anyhow::Result<GpuNodeStatus> {
        let holds = |s: &GpuNodeStatus| {
            s.conditions.iter().any(|c| c.kind == kind && c.status == ConditionStatus::True)
        };
        self.until(&format!("{kind} to hold"), holds).await
    }

    pub(crate) fn happen(&self, change: impl FnOnce(MockControl) -> MockControl) -> anyhow::Result<()> {
        MockControl::edit(&self.files.control, |control| *control = change(std::mem::take(control)))?;
        Ok(())
    }

    /// Makes a pod run on a slice of this shape.
    pub(crate) async fn hold(
        &self,
        others: &[WantedSlice],
        (id, shape): (&str, Shape),
        (pod, resource): (&str, &str),
    ) -> anyhow::Result<(Pod, WantedSlice)> {
        let created = self.create(pod, resource).await?;
        let wanted = self.wanted(id, shape, Some((&created, resource))).await?;
        self.want(others.iter().cloned().chain([wanted.clone()]).collect()).await?;
        self.slice_until(id, SliceState::Ready).await?;
        self.run(pod).await?;
        self.slice_until(id, SliceState::Held).await?;
        Ok((created, wanted))
    }

    /// Makes the host's `/proc` show a process of a pod.
    pub(crate) fn show_process(&self, pid: u32, name: &str, pod: Option<&Pod>) -> anyhow::Result<()> {
        let folder = self.dir.join("proc").join(pid.to_string());
        std::fs::create_dir_all(&folder)?;
        std::fs::write(folder.join("comm"), format!("{name}\n"))?;
        let uid = pod.and_then(|pod| pod.metadata.uid.clone());
        let cgroup = match uid {
            Some(uid) => format!("0::/kubepods/besteffort/pod{uid}/0123456789abcdef\n"),
            None => "0::/system.slice/other.service\n".to_owned(),
        };
        std::fs::write(folder.join("cgroup"), cgroup)?;
        Ok(())
    }

    /// The status; an empty one while there is no GpuNode.
    pub(crate) async fn status(&self) -> anyhow::Result<GpuNodeStatus> {
        let object = self.gpu_nodes.get_opt(NODE).await?.unwrap_or_default();
        Ok(object.read_status()?.unwrap_or_default())
    }

    pub(crate) async fn until(
        &self,
        what: &str,
        done: impl Fn(&GpuNodeStatus) -> bool,
    ) -> anyhow::Result<GpuNodeStatus> {
        let mut last = GpuNodeStatus::default();
        let waiting = wait(TIMEOUT, what, async || {
            last = self.status().await?;
            Ok(done(&last))
        });
        match waiting.await {
            Ok(()) => Ok(last),
            Err(error) => Err(error.context(format!("{last:#?}\n{}", self.agent.log_tail()))),
        }
    }

    /// Waits until the agent serves a restarted kubelet. The status may never show the moment between, so that the
    /// kubelet has to show the devices of all slices.
    pub(crate) async fn serves_again(&self) -> anyhow::Result<()> {
        let is_served = |status: &GpuNodeStatus| {
            let healthy: BTreeSet<String> = self.kubelet.healthy_devices().into_values().flatten().collect();
            let served = |s: &&SliceStatus| matches!(s.state, SliceState::Ready | SliceState::Held);
            let mut devices = status.slices.iter().filter(served).filter_map(|slice| slice.device.as_ref());
            status.is_ready() && !healthy.is_empty() && devices.all(|d| healthy.contains(d.as_str()))
        };
        self.until("the agent to serve again", is_served).await.map(drop)
    }

    pub(crate) async fn slice_until(&self, id: &str, state: SliceState) -> anyhow::Result<SliceStatus> {
        let found =
            |status: &GpuNodeStatus| status.slice(&SliceId::new(id)).filter(|s| s.state == state).cloned();
        let status = self.until(&format!("{id} to be {state:?}"), |status| found(status).is_some()).await?;
        found(&status).with_context(|| format!("{id} is not {state:?} any more"))
    }

    /// Orders these slices as the extender's leader does.
    pub(crate) async fn want(&self, slices: Vec<WantedSlice>) -> anyhow::Result<()> {
        self.leader.want(&slices).await.with_context(|| self.agent.log_tail())
    }

    /// Waits until the agent has dropped a slice that it could not make, and returns its log line.
    pub(crate) async fn given_up(&self, id: &str) -> anyhow::Result<String> {
        let line = || {
            let log = self.agent.log_tail();
            log.lines().find(|line| line.contains(&format!("slice {id} ("))).map(str::to_owned)
        };
        wait(TIMEOUT, &format!("{id} to be given up"), async || Ok(line().is_some())).await?;
        line().context("the log has the line")
    }

    pub(crate) async fn gpu(&self) -> anyhow::Result<GpuUuid> {
        Ok(self.status().await?.gpus.first().context("no GPU is reported")?.uuid.clone())
    }

    pub(crate) async fn wanted(
        &self,
        id: &str,
        shape: Shape,
        pod: Option<(&Pod, &str)>,
    ) -> anyhow::Result<WantedSlice> {
        let reservation = pod.map(|(pod, resource)| reservation(pod, resource)).transpose()?;
        Ok(WantedSlice { id: SliceId::new(id), gpu: self.gpu().await?, shape, reservation })
    }

    pub(crate) fn pods(&self) -> Api<Pod> {
        Api::default_namespaced(self.plane.client())
    }

    /// A pod that is not bound to a node yet.
    pub(crate) async fn create(&self, name: &str, resource: &str) -> anyhow::Result<Pod> {
        Ok(self.pods().create(&PostParams::default(), &unscheduled_pod(name, resource)).await?)
    }

    /// Binds the pod to the node and waits until it runs.
    pub(crate) async fn run(&self, name: &str) -> anyhow::Result<()> {
        let uid = PodUid::new(self.pods().get(name).await?.metadata.uid.context("the pod has no UID")?);
        let is_reserved = self.leader.has_reserved(&uid);
        if is_reserved {
            self.leader.mark(&uid).await?;
        }
        bind(&self.pods(), name, NODE).await?;
        if is_reserved {
            self.leader.bound(&uid).await?;
        }
        wait(TIMEOUT, &format!("{name} to run"), async || {
            let status = self.pods().get(name).await?.status.unwrap_or_default();
            let phase = status.phase.unwrap_or_default();
            anyhow::ensure!(phase != "Failed", "{name} failed: {:?}", status.message);
            Ok(phase == "Running")
        })
        .await
        .with_context(|| self.agent.log_tail())
    }

    pub(crate) fn visible(&self, pod: &str) -> Option<String> {
        let grant = self.kubelet.grant(&PodKey::new("default", pod), "main")?;
        grant.environment.get("NVIDIA_VISIBLE_DEVICES").cloned()
    }

    pub(crate) fn cut(&self) -> anyhow::Result<Vec<String>> {
        let slices = MockState::load(&self.files.state)?.slices();
        Ok(slices.iter().map(|s| format!("{} at {}", s.profile, s.placement.start)).collect())
    }

    /// Waits for an Event with this reason about an object of this name.
    pub(crate) async fn event(&self, reason: &str, about: &str) -> anyhow::Result<String> {
        let events = Api::<Event>::all(self.plane.client());
        let mut note = None;
        wait(TIMEOUT, &format!("the Event {reason} about {about}"), async || {
            let all = events.list(&ListParams::default()).await?;
            let named = |e: &Event| e.regarding.as_ref().and_then(|r| r.name.as_deref()) == Some(about);
            let mut found = all.into_iter().filter(|e| e.reason.as_deref() == Some(reason) && named(e));
            note = found.next().map(|e| e.note.unwrap_or_default());
            Ok(note.is_some())
        })
        .await
        .with_context(|| self.agent.log_tail())?;
        Ok(note.unwrap_or_default())
    }

    pub(crate) async fn stop(mut self) -> anyhow::Result<()> {
        self.agent.terminate(Duration::from_secs(5))?;
        self.kubelet.stop().await;
        self.plane.stop().await
    }
}

/// Starts the agent's program with these additional arguments.
pub(crate) async fn run(
    plane: &ControlPlane,
    dir: &std::path::Path,
    files: &MockFiles,
    arguments: Vec<OsString>,
) -> anyhow::Result<Child> {
    let program = agent_program(plane, NODE, dir, files)
        .await?
        .args(["--resync=2s", "--uncontested-after=1s", "--recover-after=2s"])
        .arg("--log=info,kerf_node_agent=debug")
        .args(arguments)
        .arg("--proc-dir")
        .arg(dir.join("proc"))
        .arg("--sys-dir")
        .arg(dir.join("sys"))
        .arg("--cgroup-dir")
        .arg(dir.join("cgroup"));
    Ok(program.spawn()?)
}

/// Sets the boot id in the host's `/proc`.
pub(crate) fn name_boot(dir: &std::path::Path, boot: &str) -> anyhow::Result<()> {
    let folder = dir.join("proc/sys/kernel/random");
    std::fs::create_dir_all(&folder)?;
    std::fs::write(folder.join("boot_id"), format!("{boot}\n"))?;
    Ok(())
}

pub(crate) fn mig(profile: &str, start: u8, size: u8) -> anyhow::Result<Shape> {
    Ok(Shape::Mig { profile: profile.parse()?, start, size, part: MigPart::Whole })
}

pub(crate) fn h100() -> MockConfig {
    MockConfig::new().seed(NODE).gpus(Model::H100, 1, MigMode::Enabled)
}
