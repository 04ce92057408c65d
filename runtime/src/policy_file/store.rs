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

/// How often the files are read again. By content and not by file events: a `ConfigMap` volume is renewed by swapping a
/// symlink, which is no event on the file.
const POLL: Duration = Duration::from_secs(1);

/// Why files' present contents are not in force, by file; for what concerns them all, by the folder.
pub type Errors = BTreeMap<PathBuf, String>;

/// The policies in force, of one file or of a folder's. Clones share them.
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

/// What the last reading found.
#[derive(Debug, Default)]
struct State {
    /// Each file's text as it was read last; `None` while it cannot be read.
    seen: BTreeMap<PathBuf, Option<String>>,
    /// Good contents that are not in force because of others.
    waiting: BTreeMap<PathBuf, Arc<Content>>,
    /// What is in force.
    contents: Contents,
    /// Why what was read is not.
    errors: Errors,
    /// What is told of files that are as they were, because what they extend is gone.
    stale: Errors,
    /// What was said about the policies in force.
    warnings: BTreeSet<String>,
    /// Whether the store was opened: what it finds then is no change.
    is_open: bool,
}

impl PolicyStore {
    /// Opens a file or a folder. Some policy for pods must be good now; files that are bad are told and left out.
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

    /// The policies in force: the last good ones.
    #[must_use]
    pub fn current(&self) -> Arc<Policies> {
        self.0.policies.borrow().clone()
    }

    /// The same, to be told of changes.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<Arc<Policies>> {
        self.0.policies.subscribe()
    }

    /// Why files' present contents are not in force, by file.
    #[must_use]
    pub fn errors(&self) -> Arc<Errors> {
        self.0.errors.borrow().clone()
    }

    /// The same, to be told of changes.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<Arc<Errors>> {
        self.0.errors.subscribe()
    }

    /// Why the first file with a mistake is not in force; `None` if all are.
    #[must_use]
    pub fn last_error(&self) -> Option<String> {
        self.errors().values().next().cloned()
    }

    /// How often a changed file was taken over since the store was opened.
    #[must_use]
    pub fn reloads(&self) -> u64 {
        self.0.metrics.counted(Outcome::Loaded)
    }

    /// Adds `kerf_policy_reloads_total` and `kerf_policy_files` to a program's metrics.
    pub fn register(&self, registry: &mut Registry) {
        self.0.metrics.register(registry);
    }

    /// Follows the files until `stop`.
    pub async fn watch(&self, stop: CancellationToken) {
        let mut ticks = tokio::time::interval(POLL);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                _ = ticks.tick() => {}
            }
            let path = self.0.path.clone();
            // A reading that failed is no reading.
            if let Ok(read) = tokio::task::spawn_blocking(move || folder::read(&path)).await {
                self.take(read);
            }
        }
    }

    /// Takes what the files hold now. A content is judged and logged once.
    fn take(&self, read: std::io::Result<Vec<Reading>>) {
        let Shared { path, policies, state, errors, metrics } = &*self.0;
        // A state that a panic left half-written at worst makes a file be read once more.
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
    /// Judges what changed since the last reading; whether anything did.
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
        // An error of the folder's may be over though no file has changed.
        let is_over = self.errors.contains_key(root) && !texts.contains_key(root);
        if texts == self.seen && !is_over {
            return false;
        }
        self.errors.retain(|path, _| path == root || texts.contains_key(path));
        self.waiting.retain(|path, _| texts.contains_key(path));
        for (path, text) in readings {
            let text = text.map_err(|source| PolicyFileError::Read { path: path.clone(), source });
            if self.seen.get(&path) != Some(&text.as_ref().ok().cloned()) {
                self.judge(&path, text, metrics);
            }
        }
        let folder = Some(root).filter(|root| !texts.contains_key(*root));
        self.settle(folder, self.contents.of_files(|path| texts.contains_key(path)), metrics);
        self.seen = texts;
        true
    }

    /// Takes a file's new text.
    fn judge(&mut self, path: &Path, text: Result<String, PolicyFileError>, metrics: &Metrics) {
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

    /// Takes over what can be in force beside `left`, which is in force and whose files are still there.
    ///
    /// Without a policy for pods no pod could ask for a GPU: as long as no other comes, the last ones outlive their files.
    fn settle(&mut self, folder: Option<&Path>, mut left: Contents, metrics: &Metrics) {
        let new: Vec<Arc<Content>> = self.waiting.values().cloned().collect();
        for (path, errors) in told(left.settle(&new)) {
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
        self.tell_stale(metrics);
    }

    /// Tells of files whose policies extend what is gone, and no more of those that have it again.
    fn tell_stale(&mut self, metrics: &Metrics) {
        let stale: Errors = told(self.contents.stale());
        for (path, error) in std::mem::take(&mut self.stale) {
            if !stale.contains_key(&path) && self.errors.get(&path) == Some(&error) {
                self.errors.remove(&path);
            }
        }
        for (path, error) in &stale {
            // What is wrong with a newer content of the file is told already.
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

    /// Says what is doubtful about the policies in force, once.
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

/// All that is wrong with each file, as one text.
fn told(refused: Vec<Refused>) -> Errors {
    let mut errors = Errors::new();
    for (path, error) in refused {
        let text = error.to_string();
        errors.entry(path).and_modify(|told| *told = format!("{told}; {text}")).or_insert(text);
    }
    errors
}

#[cfg(test)]
#[path = "store_tests.rs"]
mod tests;
