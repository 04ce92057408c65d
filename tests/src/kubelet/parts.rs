//! The parts of one kubelet that its tasks share, and the tasks: watching, admission and status ticks.

use std::collections::BTreeSet;
use std::sync::atomic::AtomicU16;
use std::sync::{Arc, Mutex};

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::api::Api;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event, watcher};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::admission::{self, Rejection};
use super::api;
use super::demand::PodKey;
use super::devices::{DeviceManager, locked};
use super::lifecycle::PodRun;
use super::log_book::LogBook;
use super::observed::{FailedAdmission, Observed};
use super::options::{KubeletOptions, PODS_DELAY};
use super::pods::{Admission, PodTable, Step};
use super::servers::SocketPaths;
use super::volumes::NodeFiles;

/// The state that survives a restart of the kubelet's process: settings, the pods' processes, and
/// observations.
pub(super) struct Core {
    pub(super) options: KubeletOptions,
    pub(super) paths: SocketPaths,
    pub(super) files: NodeFiles,
    pub(super) devices: Arc<DeviceManager>,
    pub(super) pods: Arc<PodTable>,
    pub(super) logs: LogBook,
    /// The port of the log server; 0 without one.
    pub(super) log_port: AtomicU16,
    pub(super) observed: Mutex<Observed>,
    /// Whether the API server holds back the list of pods.
    pub(super) holds_pods_back: watch::Sender<bool>,
    /// The machine is gone: every process is killed, and nothing more is written.
    pub(super) halted: CancellationToken,
    tasks: Mutex<JoinSet<()>>,
}

impl Core {
    pub(super) fn new(options: KubeletOptions) -> Self {
        let halted = CancellationToken::new();
        let pods = Arc::new(PodTable::new(halted.clone()));
        let (paths, files) = (SocketPaths::below(&options.dir), NodeFiles::new(&options.dir));
        let active: Arc<PodTable> = Arc::clone(&pods);
        let devices = Arc::new(DeviceManager::new(&options.node_name, &paths.device_plugin_dir(), active));
        let logs = LogBook::new(options.dir.join("logs"));
        let (observed, tasks) = (Mutex::default(), Mutex::default());
        Self {
            options,
            paths,
            files,
            devices,
            pods,
            logs,
            log_port: AtomicU16::new(0),
            observed,
            holds_pods_back: watch::Sender::new(false),
            halted,
            tasks,
        }
    }

    /// Runs a task for as long as the pods run; see [`Core::join`].
    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = locked(&self.tasks);
        // Finished tasks are removed, so that the set does not grow.
        while tasks.try_join_next().is_some() {}
        tasks.spawn(task);
    }

    /// Waits for all tasks of [`Core::spawn`].
    pub(super) async fn join(&self) {
        let mut tasks = std::mem::take(&mut *locked(&self.tasks));
        while tasks.join_next().await.is_some() {}
    }

    /// Watches the node's pods until the kubelet stops.
    pub(super) async fn watch(self: &Arc<Self>, line: UnboundedSender<String>) {
        tokio::time::sleep(PODS_DELAY).await;
        let mut held_back = self.holds_pods_back.subscribe();
        // The sender is in `self`, so waiting cannot fail.
        drop(held_back.wait_for(|held_back| !held_back).await);
        let api: Api<Pod> = Api::all(self.options.client.clone());
        let config = watcher::Config::default().fields(&format!("spec.nodeName={}", self.options.node_name));
        // Managed fields are dropped, because they are large and nothing here reads them.
        let trimmed = watcher(api, config).default_backoff().modify(|pod| pod.metadata.managed_fields = None);
        let mut events = std::pin::pin!(trimmed);
        let mut listed = Vec::new();
        while let Some(event) = events.next().await {
            match event {
                Ok(Event::Init) => listed.clear(),
                Ok(Event::InitApply(pod)) => listed.push(Arc::new(pod)),
                Ok(Event::InitDone) => self.relisted(std::mem::take(&mut listed), &line),
                Ok(Event::Apply(pod)) => self.seen(Arc::new(pod), &line),
                Ok(Event::Delete(pod)) => self.pods.gone(&pod.metadata.uid.unwrap_or_default()),
                Err(error) => tracing::debug!(%error, "the stand-in kubelet's watch starts again"),
            }
        }
    }

    /// Admits a full list in order of creation, as the kubelet does with the pods that it finds at its start.
    fn relisted(self: &Arc<Self>, mut pods: Vec<Arc<Pod>>, line: &UnboundedSender<String>) {
        let uids: BTreeSet<String> = pods.iter().filter_map(|pod| pod.metadata.uid.clone()).collect();
        self.pods.keep_only(&uids);
        pods.sort_by_key(|pod| (pod.metadata.creation_timestamp.clone(), PodKey::from_pod(pod)));
        for pod in pods {
            self.seen(pod, line);
        }
        self.pods.became_known();
    }

    fn seen(self: &Arc<Self>, pod: Arc<Pod>, line: &UnboundedSender<String>) {
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        match self.pods.observe(Arc::clone(&pod)) {
            Step::Nothing => {}
            // A send fails only when the kubelet ends, and the next one lists the pod again.
            Step::Admit => drop(line.send(uid)),
            Step::Adopt => {
                let stop = self.pods.start(&uid);
                self.spawn(PodRun::new(Arc::clone(self), pod, stop, false).run());
            }
            Step::Remove => {
                let core = Arc::clone(self);
                self.spawn(async move {
                    api::remove(&core.options.client, &PodKey::from_pod(&pod), &uid).await;
                    core.logs.forget(&uid);
                });
            }
        }
    }

    /// Admits pod after pod until the kubelet stops.
    pub(super) async fn admit(self: &Arc<Self>, mut line: UnboundedReceiver<String>) {
        while let Some(uid) = line.recv().await {
            let Some(Admission { pod, running }) = self.pods.begin_admission(&uid) else { continue };
            let ran = running.is_some();
            match admission::admit(self, &pod, &running.unwrap_or_default()).await {
                Ok(without) if !ran => self.admitted(pod, &uid, &without),
                Ok(_) => {}
                Err(rejection) => self.rejected(pod, uid, rejection, ran),
            }
        }
    }

    fn admitted(self: &Arc<Self>, pod: Arc<Pod>, uid: &str, without: &BTreeSet<String>) {
        let key = PodKey::from_pod(&pod);
        let mut observed = locked(&self.observed);
        observed.admitted += 1;
        if !without.is_empty() {
            tracing::warn!(pod = %key, resources = ?without, "a pod runs without a device of an unregistered name");
            observed.started_without_device.push(key);
        }
        drop(observed);
        let stop = self.pods.start(uid);
        self.spawn(PodRun::new(Arc::clone(self), pod, stop, true).run());
    }

    /// Rejects a pod. One that `ran` already is stopped, and its own task writes its status.
    fn rejected(self: &Arc<Self>, pod: Arc<Pod>, uid: String, rejection: Rejection, ran: bool) {
        let key = PodKey::from_pod(&pod);
        let reported = rejection.reported().to_owned();
        let Rejection { reason, message } = rejection.clone();
        tracing::warn!(pod = %key, reason, message, "a pod was refused on the node");
        let failed = FailedAdmission {
            pod: key.clone(),
            uid: uid.clone(),
            reason: reason.clone(),
            message: message.clone(),
        };
        locked(&self.observed).failed_admissions.push(failed);
        let status = rejection.status();
        let deleting = if ran {
            self.pods.refuse(&uid, rejection);
            false
        } else {
            self.pods.ended(&uid)
        };
        let core = Arc::clone(self);
        self.spawn(async move {
            let client = &core.options.client;
            if !ran && api::write_status(client, &key, &uid, status).await {
                locked(&core.observed).failed_admissions.retain(|failed| failed.uid != uid);
            }
            if deleting {
                api::remove(client, &key, &uid).await;
            }
            api::warn_about(client, &core.options.node_name, &pod, &reason, &reported).await;
        });
    }
}
