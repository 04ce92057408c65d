//! The policies in force while a program runs: the last good content of each file.

use super::folder::{self, Reading};
use super::metrics::{Metrics, Outcome};
use super::parse::{Content, parse};
use super::settle::{Contents, Refused};
use super::{PolicyFileError, check};
use kerf_core::policy::{Policies, Policy};
use prometheus_client::registry::Registry;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// The interval at which the files are read. Contents are compared instead of watching file events, because the kubelet
/// renews a `ConfigMap` volume by swapping a symlink, which is no event on the file.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// The reasons why present contents are not in force, by file. A reason that concerns all files is under the folder's
/// path.
pub type Errors = BTreeMap<PathBuf, String>;

/// The policies in force, from one file or a folder. Clones share them.
#[derive(Debug, Clone)]
pub struct PolicyStore(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    path: PathBuf,
    policies: watch::Sender<Arc<Policies>>,
    state: Mutex<State>,
    errors: watch::Sender<Arc<Errors>>,
    metrics: Metrics,
}

/// The result of the last reading.
#[derive(Debug, Default)]
struct State {
    /// Each file's text as it was last read; `None` if it was unreadable.
    seen: BTreeMap<PathBuf, Option<String>>,
    /// Good contents that are not in force because of other files.
    waiting: BTreeMap<PathBuf, Arc<Content>>,
    /// The contents that are in force.
    contents: Contents,
    errors: Errors,
    /// Errors of files that keep their former policies because their base has gone.
    stale: Errors,
    /// Warnings about the policies in force that were already logged.
    warnings: BTreeSet<String>,
    /// False during the first reading, whose contents count as no changes in the metrics.
    is_open: bool,
}

impl PolicyStore {
    /// Opens a file or a folder. At least one policy for pods must be good; bad files are logged and left out.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, PolicyFileError> {
        let path = path.into();
        let read = folder::read(&path);
        let store = Self(Arc::new(Shared {
            path,
            policies: watch::Sender::default(),
            state: Mutex::default(),
            errors: watch::Sender::default(),
            metrics: Metrics::new(),
        }));
        store.take(read);
        let path = &store.0.path;
        if store.current().pods.is_empty() {
            let error = check(path).err().map(|mut errors| errors.remove(0));
            return Err(error.unwrap_or_else(|| PolicyFileError::NoPodPolicy(path.clone())));
        }
        Ok(store)
    }

    /// The policies in force, which are the last good ones.
    #[must_use]
    pub fn current(&self) -> Arc<Policies> {
        self.0.policies.borrow().clone()
    }

    /// A receiver for the policies in force and their changes.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<Arc<Policies>> {
        self.0.policies.subscribe()
    }

    /// The reasons why present contents are not in force, by file.
    #[must_use]
    pub fn errors(&self) -> Arc<Errors> {
        self.0.errors.borrow().clone()
    }

    /// A receiver for those reasons and their changes.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<Arc<Errors>> {
        self.0.errors.subscribe()
    }

    /// The reason for the first bad file by name; `None` if all are good.
    #[must_use]
    pub fn last_error(&self) -> Option<String> {
        self.errors().values().next().cloned()
    }

    /// The number of changed files taken over since the store was opened.
    #[must_use]
    pub fn reloads(&self) -> u64 {
        self.0.metrics.counted(Outcome::Loaded)
    }

    /// Adds `kerf_policy_reloads_total` and `kerf_policy_files` to a program's metrics.
    pub fn register(&self, registry: &mut Registry) {
        self.0.metrics.register(registry);
    }

    /// Reads the files once a second until `stop`, and takes over good changes.
    pub async fn watch(&self, stop: CancellationToken) {
        let mut ticks = tokio::time::interval(POLL_INTERVAL);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                _ = ticks.tick() => {}
            }
            let path = self.0.path.clone();
            // A reading whose task panicked changes nothing; the next poll reads again.
            if let Ok(read) = tokio::task::spawn_blocking(move || folder::read(&path)).await {
                self.take(read);
            }
        }
    }

    /// Takes over the present texts of the files. Each content is checked and logged once.
    fn take(&self, read: std::io::Result<Vec<Reading>>) {
        let Shared { path, policies, state, errors, metrics } = &*self.0;
        // The lock may be poisoned: a half-written state only makes a file be read once more.
        let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
        let before = state.errors.clone();
        if state.read(path, read, metrics) {
            let current = state.contents.policies();
            if **policies.borrow() != current {
                let names: Vec<&str> = current.pods.iter().map(Policy::name).collect();
                let nodes: Vec<&str> = current.nodes.iter().map(|rules| rules.name.as_str()).collect();
                let (pods, nodes) = (names.join(", "), nodes.join(", "));
                tracing::info!(path = %path.display(), pods, nodes, "policies in force");
                policies.send_replace(Arc::new(current));
            }
            state.warn();
            metrics.files(state.seen.len() - state.bad_files(), state.bad_files());
        }
        state.is_open = true;
        if state.errors != before {
            errors.send_replace(Arc::new(state.errors.clone()));
        }
    }
}

impl State {
    /// Checks the texts that changed since the last reading, and returns whether any did.
    fn read(&mut self, root: &Path, read: std::io::Result<Vec<Reading>>, metrics: &Metrics) -> bool {
        let readings = match read {
            Ok(readings) => readings,
            Err(source) => {
                self.refuse(root, &PolicyFileError::Read { path: root.to_owned(), source }, metrics);
                return false;
            }
        };
        let texts = readings.iter().map(|(path, text)| (path.clone(), text.as_ref().ok().cloned()));
        let texts: BTreeMap<PathBuf, Option<String>> = texts.collect();
        // An error of the folder itself can end without a change of any file.
        let is_over = self.errors.contains_key(root) && !texts.contains_key(root);
        if texts == self.seen && !is_over {
            return false;
        }
        self.errors.retain(|path, _| path == root || texts.contains_key(path));
        self.waiting.retain(|path, _| texts.contains_key(path));
        for (path, text) in readings {
            let text = text.map_err(|source| PolicyFileError::Read { path: path.clone(), source });
            if self.seen.get(&path) != Some(&text.as_ref().ok().cloned()) {
                self.parse_text(&path, text, metrics);
            }
        }
        let folder = Some(root).filter(|root| !texts.contains_key(*root));
        self.settle(folder, self.contents.of_files(|path| texts.contains_key(path)), metrics);
        self.seen = texts;
        true
    }

    /// Parses a file's new text. A good content waits for [`Self::settle`].
    fn parse_text(&mut self, path: &Path, text: Result<String, PolicyFileError>, metrics: &Metrics) {
        self.waiting.remove(path);
        match text.map_err(|error| vec![error]).and_then(|text| parse(path, &text)) {
            Ok(content) => {
                self.waiting.insert(path.to_owned(), Arc::new(content));
            }
            Err(errors) => {
                let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
                self.refuse_text(path, errors.join("; "), metrics);
            }
        }
    }

    /// Takes over the waiting contents that can be in force beside `left`, the contents in force whose files still
    /// exist.
    ///
    /// Without a policy for pods no pod could ask for a GPU. Therefore the last policies stay in force after their
    /// files have gone, until another policy for pods appears.
    fn settle(&mut self, folder: Option<&Path>, mut left: Contents, metrics: &Metrics) {
        let new: Vec<Arc<Content>> = self.waiting.values().cloned().collect();
        for (path, errors) in joined(left.settle(&new)) {
            self.refuse_text(&path, errors, metrics);
        }
        if !left.has_pods() {
            if let Some(folder) = folder {
                self.refuse(folder, &PolicyFileError::NoPodPolicy(folder.to_owned()), metrics);
            }
            return;
        }
        if let Some(folder) = folder {
            self.errors.remove(folder);
        }
        let loaded = self.waiting.extract_if(.., |path, content| left.get(path) == Some(content));
        for (path, _) in loaded.collect::<Vec<_>>() {
            tracing::info!(path = %path.display(), "policy file loaded");
            self.errors.remove(&path);
            if self.is_open {
                metrics.count(Outcome::Loaded);
            }
        }
        self.contents = left;
        self.report_stale(metrics);
    }

    fn report_stale(&mut self, metrics: &Metrics) {
        let stale: Errors = joined(self.contents.stale());
        for (path, error) in std::mem::take(&mut self.stale) {
            if !stale.contains_key(&path) && self.errors.get(&path) == Some(&error) {
                self.errors.remove(&path);
            }
        }
        for (path, error) in &stale {
            // The mistake in the file's newer content stays, because it is already reported and takes precedence.
            if !self.errors.contains_key(path) {
                self.refuse_text(path, error.clone(), metrics);
            }
        }
        self.stale = stale;
    }

    fn refuse(&mut self, path: &Path, error: &PolicyFileError, metrics: &Metrics) {
        self.refuse_text(path, error.to_string(), metrics);
    }

    fn refuse_text(&mut self, path: &Path, error: String, metrics: &Metrics) {
        if self.errors.get(path) != Some(&error) {
            tracing::error!(error, "policy refused; the last good one stays in force");
            if self.is_open {
                metrics.count(Outcome::Refused);
            }
            self.errors.insert(path.to_owned(), error);
        }
    }

    /// Logs each doubt about the policies in force once.
    fn warn(&mut self) {
        let found = self.contents.findings();
        let warnings: BTreeSet<String> =
            found.into_iter().map(|(finding, place)| format!("{place}: {finding}")).collect();
        for warning in warnings.difference(&self.warnings) {
            tracing::warn!(warning, "doubtful policy");
        }
        self.warnings = warnings;
    }

    fn bad_files(&self) -> usize {
        self.seen.keys().filter(|path| self.errors.contains_key(*path)).count()
    }
}

fn joined(refused: Vec<Refused>) -> Errors {
    let mut errors = Errors::new();
    for (path, error) in refused {
        let text = error.to_string();
        errors.entry(path).and_modify(|joined| *joined = format!("{joined}; {text}")).or_insert(text);
    }
    errors
}

#[cfg(test)]
#[path = "store_tests.rs"]
mod tests;
