//! Locates the output of each container's runs. A container has one log file for all its runs.
//!
//! Real runtimes have a file for each run. Here positions in the file separate the runs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};

use super::demand::PodKey;
use super::devices::locked;

#[derive(Debug)]
pub(super) struct RunLog {
    /// The container's log file, which its first process creates.
    pub(super) file: PathBuf,
    /// The byte at which the run's output begins.
    pub(super) begin: u64,
    /// The byte before which the run's output ends.
    end: OnceLock<u64>,
}

impl RunLog {
    /// The end of the output; `None` while the container runs.
    pub(super) fn end(&self) -> Option<u64> {
        self.end.get().copied()
    }
}

/// The last two runs of a container.
struct Runs {
    last: Arc<RunLog>,
    previous: Option<Arc<RunLog>>,
}

/// The runs of all containers of a node.
pub(super) struct LogBook {
    folder: PathBuf,
    /// By pod UID and container.
    runs: Mutex<BTreeMap<String, BTreeMap<String, Runs>>>,
}

impl LogBook {
    pub(super) fn new(folder: PathBuf) -> Self {
        Self { folder, runs: Mutex::default() }
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    pub(super) fn file(&self, pod: &PodKey, container: &str) -> PathBuf {
        self.folder.join(format!("{}.log", name(pod, container)))
    }

    /// Prepares a run that is about to start.
    pub(super) fn begin(&self, pod: &PodKey, container: &str) -> RunLog {
        let file = self.file(pod, container);
        // A restarted container appends to the same file, so its run begins at the end.
        RunLog { begin: length(&file), file, end: OnceLock::new() }
    }

    /// Records that the run has started.
    pub(super) fn began(&self, uid: &str, container: &str, run: RunLog) {
        let mut runs = locked(&self.runs);
        let pod = runs.entry(uid.to_owned()).or_default();
        let previous = pod.remove(container).map(|runs| runs.last);
        pod.insert(container.to_owned(), Runs { last: Arc::new(run), previous });
    }

    /// Records that the run has ended. It does nothing for a run that never started.
    pub(super) fn ended(&self, uid: &str, container: &str) {
        if let Some(run) = self.find(uid, container, false) {
            run.end.get_or_init(|| length(&run.file));
        }
    }

    /// A container's last run or the one before it; `None` if there was none.
    pub(super) fn find(&self, uid: &str, container: &str, previous: bool) -> Option<Arc<RunLog>> {
        let runs = locked(&self.runs);
        let runs = runs.get(uid)?.get(container)?;
        if previous { runs.previous.clone() } else { Some(Arc::clone(&runs.last)) }
    }

    /// Forgets the runs of a deleted pod.
    pub(super) fn forget(&self, uid: &str) {
        locked(&self.runs).remove(uid);
    }
}

/// The name of a container's process and of its log.
pub(super) fn name(pod: &PodKey, container: &str) -> String {
    format!("{}_{}_{container}", pod.namespace, pod.name)
}

/// A file's length; 0 if it does not exist.
fn length(file: &Path) -> u64 {
    std::fs::metadata(file).map_or(0, |metadata| metadata.len())
}
