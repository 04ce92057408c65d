//! A pod's life on the node after its admission: init containers, containers, restarts and the end.
//!
//! Each pod has one task. It writes the pod's status, and removes a pod that is being deleted once all its
//! containers have ended.

use std::convert::Infallible;
use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::StreamExt as _;
use futures::future::join_all;
use futures::stream::FuturesUnordered;
use k8s_openapi::api::core::v1::{Container, Pod};
use k8s_openapi::jiff::Timestamp;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::process::{Child, Program};

use super::demand::{ContainerRole, PodDemand, PodKey, init_role};
use super::devices::locked;
use super::grant::Grant;
use super::images::Image;
use super::parts::Core;
use super::pod_files::PodFiles;
use super::status::{self, ContainerStates};
use super::{api, container};

/// Backoff of a container's restarts: shorter than the kubelet's (10 s to 5 min), because tests wait for
/// them.
const FIRST_BACKOFF: Duration = Duration::from_millis(500);
const BACKOFF_LIMIT: Duration = Duration::from_secs(10);

/// The longest backoff of mounting a pod's volumes; the first is [`FIRST_BACKOFF`] (kubernetes v1.36,
/// `pkg/util/goroutinemap/exponentialbackoff`).
const MOUNT_BACKOFF_LIMIT: Duration = Duration::from_secs(122);

/// Exit code of a container that could not be started (the kubelet's `ContainerCannotRun`).
const CANNOT_RUN: i32 = 128;

/// The state of one pod's task.
pub(super) struct PodRun {
    pub(super) core: Arc<Core>,
    pub(super) pod: Arc<Pod>,
    pub(super) key: PodKey,
    uid: String,
    since: Timestamp,
    stop: CancellationToken,
    pub(super) states: Arc<Mutex<ContainerStates>>,
    /// Its files on the node, if one of its images is known here.
    pub(super) files: Option<PodFiles>,
    /// Held from composing a status to writing it, so that an older one is never written last.
    writing: tokio::sync::Mutex<()>,
    /// Whether all ordinary init containers have ended and all sidecars have started.
    initialized: AtomicBool,
    /// False for a pod that ran before this kubelet started: nothing is started, and its containers count as
    /// running.
    fresh: bool,
}

/// The run of a container.
enum Run {
    Process(Child),
    /// It counts as running without a process.
    Pretended,
    Failed,
    /// A file that it needs does not exist yet.
    Incomplete,
}

impl PodRun {
    /// A pod that was just admitted (`fresh`), or one that ran before this kubelet started.
    pub(super) fn new(core: Arc<Core>, pod: Arc<Pod>, stop: CancellationToken, fresh: bool) -> Self {
        let (key, uid) = (PodKey::from_pod(&pod), pod.metadata.uid.clone().unwrap_or_default());
        let (since, initialized) = (Timestamp::now(), AtomicBool::new(false));
        let states = core.pods.states(&uid);
        let (files, writing) = (None, tokio::sync::Mutex::default());
        Self { core, pod, key, uid, since, stop, states, files, writing, initialized, fresh }
    }

    /// Runs the pod to its end.
    pub(super) async fn run(mut self) {
        if self.fresh {
            self.files = PodFiles::for_pod(&self.core, &self.pod).await;
        }
        let failed = tokio::select! {
            failed = self.live() => failed,
            never = self.keep_volumes() => match never {},
        };
        if let Some(files) = &self.files {
            files.remove();
        }
        if let Some(refusal) = self.core.pods.refusal(&self.uid) {
            let status = if self.has_run() { self.ending(failed) } else { refusal.status() };
            api::write_status(&self.core.options.client, &self.key, &self.uid, status).await;
        }
        let completed = !self.stop.is_cancelled();
        let deleting = self.core.pods.ended(&self.uid);
        if completed {
            self.write(self.ending(failed)).await;
        }
        if deleting && !self.core.halted.is_cancelled() {
            api::remove(&self.core.options.client, &self.key, &self.uid).await;
        }
        if !completed {
            self.core.logs.forget(&self.uid);
        }
    }

    fn ending(&self, failed: bool) -> Value {
        let states = locked(&self.states).clone();
        self.located(status::completed(&self.pod, &states, self.since, failed))
    }

    fn located(&self, shown: Value) -> Value {
        status::located(shown, self.files.as_ref().map(|files| &files.whereabouts))
    }

    /// The image of a container, if it is known here.
    pub(super) fn image(&self, container: &Container) -> Option<&Image> {
        self.core.options.processes.images.find(container.image.as_deref().unwrap_or_default())
    }

    async fn keep_volumes(&self) -> Infallible {
        let Some(files) = &self.files else { return std::future::pending().await };
        loop {
            tokio::time::sleep(self.core.options.processes.volumes_period).await;
            files.refresh(&self.core, &self.pod).await;
        }
    }

    /// Waits until the volumes are mounted, or the pod must stop.
    async fn mount(&self, files: &PodFiles) {
        let mut pause = FIRST_BACKOFF;
        while let Err((volume, error)) = files.mount(&self.core, &self.pod).await {
            tracing::debug!(pod = %self.key, volume, %error, "a volume is not mounted");
            let reported = format!("MountVolume.SetUp failed for volume {volume:?} : {error}");
            self.warn("FailedMount", &reported).await;
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.stop.cancelled() => return,
            }
            pause = (pause * 2).min(MOUNT_BACKOFF_LIMIT);
        }
    }

    /// Whether each of the pod's containers has been started and has ended. A pod that is rejected after a
    /// kubelet restart then gets their exit codes as its status, without the reason of the rejection.
    fn has_run(&self) -> bool {
        let states = locked(&self.states);
        let apps = self.pod.spec.iter().flat_map(|spec| &spec.containers);
        apps.into_iter().all(|app| states.get(&app.name).is_some_and(|state| state.exit.is_some()))
    }

    /// True if a container ended with a code other than 0.
    async fn live(&self) -> bool {
        let Some(spec) = self.pod.spec.as_ref() else { return false };
        if let Some(files) = &self.files {
            self.write_progress().await;
            self.mount(files).await;
        }
        // Sidecars have their own token, because they stop once the app containers have ended, or with the pod.
        let apps_ended = self.stop.child_token();
        let mut sidecars = FuturesUnordered::new();
        for init in spec.init_containers.iter().flatten() {
            let run = self.start(init).await;
            self.write_progress().await;
            if init_role(init) == ContainerRole::Sidecar {
                sidecars.push(self.supervise(init, run, &apps_ended, |_| true));
                continue;
            }
            let end = self.supervise(init, run, &self.stop, |code| self.init_again(code));
            if beside(&mut sidecars, end).await != 0 {
                apps_ended.cancel();
                while sidecars.next().await.is_some() {}
                return true;
            }
        }
        let mut apps = Vec::new();
        for app in &spec.containers {
            let run = self.start(app).await;
            apps.push(self.supervise(app, run, &self.stop, |code| self.app_again(code)));
        }
        self.initialized.store(true, Ordering::Relaxed);
        self.write_progress().await;
        let codes = beside(&mut sidecars, join_all(apps)).await;
        apps_ended.cancel();
        while sidecars.next().await.is_some() {}
        codes.into_iter().any(|code| code != 0)
    }

    /// Starts a container, unless the pod must stop.
    async fn start(&self, container: &Container) -> Run {
        let log = self.core.logs.begin(&self.key, &container.name);
        let run = if !self.fresh || self.stop.is_cancelled() {
            Run::Pretended
        } else {
            self.start_process(container).await
        };
        if !matches!(run, Run::Failed | Run::Incomplete) && !self.stop.is_cancelled() {
            let is_probed = matches!(run, Run::Process(_)) && self.image(container).is_some();
            self.core.logs.began(&self.uid, &container.name, log);
            let mut states = locked(&self.states);
            let state = states.entry(container.name.clone()).or_default();
            state.started = Some(Timestamp::now());
            state.restarts += u32::from(state.exit.is_some());
            state.waiting = None;
            state.has_come_up = !is_probed || container.startup_probe.is_none();
            state.answers = !is_probed || container.readiness_probe.is_none();
        }
        run
    }

    async fn start_process(&self, container: &Container) -> Run {
        let devices = &self.core.devices;
        if let Err(error) = devices.before_start(&PodDemand::from_pod(&self.pod), &container.name).await {
            tracing::warn!(pod = %self.key, %error, "a container does not start, because its devices failed");
            return Run::Failed;
        }
        let granted = devices.grant(&self.uid, &container.name).unwrap_or_default();
        let logs = self.core.logs.folder();
        let program = if let Some(of_image) = self.of_image(container, &granted).await {
            let Some(program) = of_image else { return Run::Incomplete };
            program
        } else {
            let runs = self.core.options.run_commands;
            let environment = container::environment(container, &granted.environment);
            let program = container::program(&self.key, container, &environment, logs).filter(|_| runs);
            let Some(program) = program else { return Run::Pretended };
            program
        };
        match program.spawn_blocking().await {
            Ok(child) => Run::Process(child),
            Err(error) => {
                tracing::warn!(pod = %self.key, container = container.name, %error, "a container did not start");
                Run::Failed
            }
        }
    }

    /// The program of a container whose image is known here. The inner `None` means that a file it needs does
    /// not exist yet.
    async fn of_image(&self, container: &Container, granted: &Grant) -> Option<Option<Program>> {
        let (image, files) = (self.image(container)?, self.files.as_ref()?);
        let document = files.container(&self.core, &self.pod, container, image, granted).await;
        let program = document.map_err(anyhow::Error::from).and_then(|document| {
            let logs = self.core.logs.folder();
            Ok(container::program_of_image(&self.key, container, &document, logs)?)
        });
        let error = match program {
            Ok(program) => return Some(Some(program)),
            Err(error) => error.to_string(),
        };
        tracing::debug!(pod = %self.key, container = container.name, error, "a container does not start yet");
        self.warn("Failed", &format!("Error: {error}")).await;
        let mut states = locked(&self.states);
        let state = states.entry(container.name.clone()).or_default();
        state.waiting = Some(("CreateContainerConfigError", error));
        Some(None)
    }

    /// Waits for a container's end, and restarts it while `again` returns true. Returns its last exit code.
    async fn supervise(
        &self,
        container: &Container,
        mut run: Run,
        stop: &CancellationToken,
        again: impl Fn(i32) -> bool,
    ) -> i32 {
        let mut pause = FIRST_BACKOFF;
        loop {
            let code = match run {
                Run::Process(mut child) => {
                    let unhealthy = stop.child_token();
                    let process = child.id();
                    locked(&self.states).entry(container.name.clone()).or_default().process = Some(process);
                    tokio::select! {
                        code = container::exit_code(&mut child, &unhealthy, || self.grace()) => code,
                        never = self.probe(container, process, &unhealthy) => match never {},
                    }
                }
                Run::Incomplete => {
                    self.write_progress().await;
                    tokio::select! {
                        () = tokio::time::sleep(pause) => {}
                        () = stop.cancelled() => return 0,
                    }
                    pause = (pause * 2).min(BACKOFF_LIMIT);
                    run = self.start(container).await;
                    self.write_progress().await;
                    continue;
                }
                Run::Failed => CANNOT_RUN,
                Run::Pretended if self.pretends_to_end(container) => 0,
                Run::Pretended => {
                    stop.cancelled().await;
                    0
                }
            };
            self.note_exit(container, code);
            if stop.is_cancelled() || !again(code) {
                if self.others_run() {
                    self.write_progress().await;
                }
                return code;
            }
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = stop.cancelled() => return code,
            }
            pause = (pause * 2).min(BACKOFF_LIMIT);
            run = self.start(container).await;
            self.write_progress().await;
        }
    }

    /// An init container without a process counts as ended at once, because it would block the pod otherwise.
    fn pretends_to_end(&self, container: &Container) -> bool {
        let init = self.pod.spec.iter().filter_map(|spec| spec.init_containers.as_ref()).flatten();
        init.filter(|init| init_role(init) == ContainerRole::Init).any(|init| init.name == container.name)
    }

    fn note_exit(&self, container: &Container, code: i32) {
        self.core.logs.ended(&self.uid, &container.name);
        let mut states = locked(&self.states);
        let state = states.entry(container.name.clone()).or_default();
        state.process = None;
        if state.started.is_none() && self.stop.is_cancelled() {
            // The container never started, so it has no exit code.
            return;
        }
        state.started = None;
        state.exit = Some(code);
    }

    fn others_run(&self) -> bool {
        locked(&self.states).values().any(|state| state.started.is_some())
    }

    fn policy(&self) -> &str {
        let policy = self.pod.spec.as_ref().and_then(|spec| spec.restart_policy.as_deref());
        policy.unwrap_or("Always")
    }

    fn app_again(&self, code: i32) -> bool {
        match self.policy() {
            "Never" => false,
            "OnFailure" => code != 0,
            _ => true,
        }
    }

    fn init_again(&self, code: i32) -> bool {
        code != 0 && self.policy() != "Never"
    }

    fn grace(&self) -> Duration {
        if self.core.halted.is_cancelled() { Duration::ZERO } else { self.core.pods.grace(&self.uid) }
    }

    /// Writes the pod's progress, unless it ran before this kubelet started, which wrote it then.
    pub(super) async fn write_progress(&self) {
        if !self.fresh {
            return;
        }
        let _writing = self.writing.lock().await;
        let states = locked(&self.states).clone();
        let describe =
            if self.initialized.load(Ordering::Relaxed) { status::running } else { status::initializing };
        let shown = self.located(describe(&self.pod, &states, self.since));
        self.write(shown).await;
    }

    async fn write(&self, status: Value) {
        tokio::select! {
            _ = api::write_status(&self.core.options.client, &self.key, &self.uid, status) => {}
            () = self.stop.cancelled() => {}
        }
    }
}

/// Waits for `main` while the sidecars run beside it.
async fn beside<T>(
    sidecars: &mut FuturesUnordered<impl Future<Output = i32>>,
    main: impl Future<Output = T>,
) -> T {
    tokio::pin!(main);
    loop {
        tokio::select! {
            ended = &mut main => return ended,
            Some(_) = sidecars.next() => {}
        }
    }
}
