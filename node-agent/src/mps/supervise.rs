//! One task for each desired target, and for each whose daemon or compute mode an earlier agent has left.

use super::target::Target;
use super::{ComputeModes, Observed, Paths, Targets, Timings, Wanted, folder};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tokio::sync::watch;
use tokio::task::{Id, JoinSet};
use tokio_util::sync::CancellationToken;
use tracing::error;

/// Reconciles the daemons until `stop`, and publishes their state in `observed`.
///
/// Nothing happens before the first `Some`, because only that lists which of an earlier agent's daemons must stay. At
/// `stop` all daemons stay as they are, because clients run on them.
pub async fn supervise(
    paths: Paths,
    timings: Timings,
    mut wanted: watch::Receiver<Option<Targets>>,
    observed: watch::Sender<Observed>,
    modes: impl ComputeModes,
    stop: CancellationToken,
) {
    let mut reconcilers = Reconcilers::new(paths, timings, observed, modes);
    let supervise = async {
        loop {
            let now_wanted = wanted.borrow_and_update().clone();
            if let Some(now_wanted) = now_wanted {
                reconcilers.want(now_wanted);
            }
            tokio::select! {
                Ok(()) = wanted.changed() => {}
                () = reconcilers.one_ended() => {}
            }
        }
    };
    tokio::select! {
        () = supervise => {}
        () = stop.cancelled() => {}
    }
}

/// Ends all daemons but those of the spared targets, restores the compute modes and removes the folders, when the agent
/// leaves the node for good.
///
/// Failures are retried without a limit.
pub async fn leave(paths: Paths, timings: Timings, modes: impl ComputeModes, spared: &BTreeSet<String>) {
    let mut reconcilers = Reconcilers::new(paths, timings, watch::Sender::default(), modes);
    reconcilers.want(Targets { spared: spared.clone(), ..Targets::default() });
    while !reconcilers.running.is_empty() {
        reconcilers.one_ended().await;
    }
}

struct Reconcilers {
    paths: Arc<Paths>,
    timings: Timings,
    modes: Arc<dyn ComputeModes>,
    observed: watch::Sender<Observed>,
    /// The last desired state; `None` before the first.
    targets: Option<Targets>,
    tasks: JoinSet<()>,
    /// Each target's task, and the channel for its desired daemon.
    running: BTreeMap<String, (Id, watch::Sender<Option<Wanted>>)>,
}

impl Reconcilers {
    fn new(
        paths: Paths,
        timings: Timings,
        observed: watch::Sender<Observed>,
        modes: impl ComputeModes,
    ) -> Self {
        Self {
            paths: Arc::new(paths),
            timings,
            modes: Arc::new(modes),
            observed,
            targets: None,
            tasks: JoinSet::new(),
            running: BTreeMap::new(),
        }
    }

    fn want(&mut self, targets: Targets) {
        // A target that is no longer spared may exist without a task.
        if self.targets.as_ref().map(|before| &before.spared) != Some(&targets.spared) {
            self.find_left(&targets);
        }
        // A spared target keeps its last desired daemon.
        for (target, (_, sender)) in self.running.iter().filter(|(name, _)| !targets.spared.contains(*name)) {
            let now_wanted = targets.wanted.get(target).cloned();
            sender.send_if_modified(|wanted| {
                let changed = *wanted != now_wanted;
                *wanted = now_wanted;
                changed
            });
        }
        for (target, wanted) in &targets.wanted {
            if !self.running.contains_key(target) {
                self.keep(target, Some(wanted.clone()));
            }
        }
        self.targets = Some(targets);
    }

    /// Finds targets that have a folder. They had a daemon or were about to get one, so their compute mode may differ.
    fn find_left(&mut self, Targets { wanted, spared }: &Targets) {
        match folder::targets(&self.paths.root) {
            Ok(left) => {
                for target in left.iter().filter(|target| !spared.contains(*target)) {
                    if !self.running.contains_key(target) {
                        self.keep(target, wanted.get(target).cloned());
                    }
                }
            }
            Err(error) => {
                error!(root = %self.paths.root.display(), %error, "the MPS daemons' folders cannot be listed");
            }
        }
    }

    fn keep(&mut self, target: &str, wanted: Option<Wanted>) {
        let (sender, receiver) = watch::channel(wanted);
        let kept =
            Target::new(target, Arc::clone(&self.paths), self.timings.clone(), Arc::clone(&self.modes));
        let task = self.tasks.spawn(kept.keep(receiver, self.observed.clone()));
        self.running.insert(target.to_owned(), (task.id(), sender));
    }

    /// Waits until a target's task ends, and starts another if the target is desired.
    async fn one_ended(&mut self) {
        let Some(ended) = self.tasks.join_next_with_id().await else { return std::future::pending().await };
        let id = match ended {
            Ok((id, ())) => id,
            Err(error) => {
                error!(%error, "a supervisor of an MPS daemon broke down; the next one adopts the daemon");
                error.id()
            }
        };
        let Some(target) =
            self.running.iter().find(|(_, (task, _))| *task == id).map(|(name, _)| name.clone())
        else {
            return;
        };
        self.running.remove(&target);
        match self.targets.as_ref().and_then(|targets| targets.wanted.get(&target)).cloned() {
            Some(wanted) => self.keep(&target, Some(wanted)),
            None => {
                self.observed.send_modify(|all| {
                    all.remove(&target);
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::ComputeMode;
    use futures::FutureExt as _;
    use futures::future::BoxFuture;
    use kerf_core::units::MemoryMib;
    use std::path::Path;
    use std::sync::Mutex;
    use std::time::Duration;
    use tokio::sync::Notify;

    const GPU: &str = "GPU-1";

    /// The GPUs in `EXCLUSIVE_PROCESS` mode. A caller that sets it is blocked there.
    #[derive(Clone, Default)]
    struct Modes {
        exclusive: Arc<Mutex<BTreeSet<String>>>,
        was_set: Arc<Notify>,
    }

    impl ComputeModes for Modes {
        fn mode(&self, _: &str) -> BoxFuture<'_, Result<ComputeMode, String>> {
            std::future::ready(Ok(ComputeMode::Default)).boxed()
        }

        fn set(&self, target: &str, mode: ComputeMode) -> BoxFuture<'_, Result<(), String>> {
            let mut modes = self.exclusive.lock().unwrap();
            if mode != ComputeMode::ExclusiveProcess {
                modes.remove(target);
                return std::future::ready(Ok(())).boxed();
            }
            modes.insert(target.to_owned());
            self.was_set.notify_one();
            std::future::pending().boxed()
        }
    }

    fn agent(root: &Path, modes: &Modes, targets: Targets) -> tokio::task::JoinHandle<()> {
        let paths = Paths {
            root: root.to_owned(),
            program: "/none".into(),
            launcher: "/none".into(),
            cgroup: None,
            private_shm: false,
        };
        let (wants, modes) = (watch::Sender::new(Some(targets)).subscribe(), modes.clone());
        let stop = CancellationToken::new();
        tokio::spawn(supervise(paths, Timings::default(), wants, watch::Sender::default(), modes, stop))
    }

    #[tokio::test]
    async fn the_next_agent_restores_the_mode_if_an_agent_is_killed_before_the_daemon_starts() {
        let root = tempfile::tempdir().unwrap();
        let modes = Modes::default();
        let wanted = Wanted { limit: MemoryMib(1024), threads: 100, exclusive: true, in_use: false };
        let wanted = [(GPU.to_owned(), wanted)].into();
        let first = agent(root.path(), &modes, Targets { wanted, ..Targets::default() });
        modes.was_set.notified().await;
        first.abort();
        drop(first.await);
        assert_eq!(modes.exclusive.lock().unwrap().len(), 1);
        let next = agent(root.path(), &modes, Targets::default());
        let gone = async {
            while root.path().join(GPU).exists() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), gone).await.unwrap();
        assert!(modes.exclusive.lock().unwrap().is_empty());
        next.abort();
    }

    #[tokio::test]
    async fn spared_targets_of_an_earlier_agent_are_not_touched() {
        let root = tempfile::tempdir().unwrap();
        let left = [GPU, "GPU-2"].map(|target| root.path().join(target));
        for folder in &left {
            std::fs::create_dir(folder).unwrap();
        }
        let paths = Paths {
            root: root.path().to_owned(),
            program: "/none".into(),
            launcher: "/none".into(),
            cgroup: None,
            private_shm: false,
        };
        let spared = |targets: &[&str]| {
            let spared = targets.iter().map(|target| (*target).to_owned()).collect();
            Some(Targets { spared, ..Targets::default() })
        };
        let (orders, wants) = watch::channel(spared(&[GPU]));
        let (says, stop) = (watch::Sender::default(), CancellationToken::new());
        let supervising =
            tokio::spawn(supervise(paths, Timings::default(), wants, says, Modes::default(), stop));
        let gone = async |folder: &Path| {
            while folder.exists() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), gone(&left[1])).await.unwrap();
        assert!(left[0].exists());
        // Once the desired state is known and has no daemon, what an earlier agent left may be removed.
        orders.send(spared(&[])).unwrap();
        tokio::time::timeout(Duration::from_secs(30), gone(&left[0])).await.unwrap();
        supervising.abort();
    }
}
