//! A policy file, and the policy in force: the last good content of the file. What a policy means is core's matter.

use arc_swap::ArcSwap;
use kerf_core::policy::{Policy, PolicyDocument, PolicyError};
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};
use prometheus_client::metrics::{counter::Counter, family::Family};
use prometheus_client::registry::Registry;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use thiserror::Error;
use tokio_util::sync::CancellationToken;

/// How often the file is read again. By content and not by file events: a `ConfigMap` volume is renewed by swapping a
/// symlink, which is no event on the file.
const POLL: Duration = Duration::from_secs(1);

/// Why a policy file is not in force.
#[derive(Debug, Error)]
pub enum PolicyFileError {
    /// It cannot be read.
    #[error("{}: failed to read the policy: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// It is no policy document.
    #[error("{}:{line}:{column}: {message}", path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// The line of the mistake, from 1; 0 where none is known.
        line: u64,
        /// The column, from 1; 0 where none is known.
        column: u64,
        /// What is wrong there.
        message: String,
    },
    /// It is a policy document that contradicts itself.
    #[error("{}: {source}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: PolicyError,
    },
}

/// Reads a policy file.
pub fn read(path: &Path) -> Result<Policy, PolicyFileError> {
    parse(path, &std::fs::read_to_string(path).map_err(|source| unreadable(path, source))?)
}

fn unreadable(path: &Path, source: std::io::Error) -> PolicyFileError {
    PolicyFileError::Read { path: path.to_owned(), source }
}

/// Reads the text of a policy file; `path` is for messages.
fn parse(path: &Path, text: &str) -> Result<Policy, PolicyFileError> {
    let document: PolicyDocument = serde_saphyr::from_str(text).map_err(|error| {
        let place = error.location().map_or((0, 0), |place| (place.line(), place.column()));
        let message = error.without_snippet().to_string();
        PolicyFileError::Parse { path: path.to_owned(), line: place.0, column: place.1, message }
    })?;
    document.try_into().map_err(|source| PolicyFileError::Invalid { path: path.to_owned(), source })
}

/// The outcomes of reading a changed file, as the label of `kerf_policy_reloads_total`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Outcome {
    /// The content is in force.
    Loaded,
    /// The content is bad and the one before stays in force.
    Refused,
}

impl EncodeLabelValue for Outcome {
    fn encode(&self, encoder: &mut LabelValueEncoder) -> std::fmt::Result {
        let text = match self {
            Self::Loaded => "loaded",
            Self::Refused => "refused",
        };
        EncodeLabelValue::encode(&text, encoder)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReloadLabels {
    result: Outcome,
}

/// The policy in force. Clones share it.
#[derive(Debug, Clone)]
pub struct PolicyStore(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    path: PathBuf,
    policy: ArcSwap<Policy>,
    seen: Mutex<Seen>,
    reloads: Family<ReloadLabels, Counter>,
}

/// What the last reading found.
#[derive(Debug)]
struct Seen {
    /// The text; `None` while the file cannot be read.
    text: Option<String>,
    /// Why the text is not in force.
    error: Option<String>,
}

impl PolicyStore {
    /// Opens the file, which must be good now.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, PolicyFileError> {
        let path = path.into();
        let text = std::fs::read_to_string(&path).map_err(|source| unreadable(&path, source))?;
        let policy = ArcSwap::from_pointee(parse(&path, &text)?);
        let seen = Mutex::new(Seen { text: Some(text), error: None });
        let reloads = Family::default();
        for result in [Outcome::Loaded, Outcome::Refused] {
            drop(reloads.get_or_create(&ReloadLabels { result }));
        }
        Ok(Self(Arc::new(Shared { path, policy, seen, reloads })))
    }

    /// The policy in force: the last good one.
    #[must_use]
    pub fn current(&self) -> Arc<Policy> {
        self.0.policy.load_full()
    }

    /// Why the file's present content is not in force; `None` if it is.
    #[must_use]
    pub fn last_error(&self) -> Option<String> {
        self.seen().error.clone()
    }

    /// How often a changed file was taken over since the store was opened.
    #[must_use]
    pub fn reloads(&self) -> u64 {
        self.0.reloads.get_or_create(&ReloadLabels { result: Outcome::Loaded }).get()
    }

    /// Adds `kerf_policy_reloads_total` to a program's metrics.
    pub fn register(&self, registry: &mut Registry) {
        let help = "Changed policy files, by whether the new content is in force";
        registry.register("kerf_policy_reloads", help, self.0.reloads.clone());
    }

    /// Follows the file until `stop`.
    pub async fn watch(&self, stop: CancellationToken) {
        let mut ticks = tokio::time::interval(POLL);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                _ = ticks.tick() => self.take(tokio::fs::read_to_string(&self.0.path).await),
            }
        }
    }

    fn seen(&self) -> std::sync::MutexGuard<'_, Seen> {
        // A half-written `Seen` at worst makes the file be read once more.
        self.0.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes what the file holds now. A content is judged and logged once.
    fn take(&self, read: std::io::Result<String>) {
        let path = &self.0.path;
        let mut seen = self.seen();
        let (text, parsed) = match read {
            Ok(text) if seen.text.as_ref() == Some(&text) => return,
            Ok(text) => (Some(text.clone()), parse(path, &text)),
            Err(_) if seen.text.is_none() => return,
            Err(source) => (None, Err(unreadable(path, source))),
        };
        seen.text = text;
        let result = match parsed {
            Ok(policy) => {
                tracing::info!(path = %path.display(), policy = policy.name(), "policy loaded");
                seen.error = None;
                self.0.policy.store(Arc::new(policy));
                Outcome::Loaded
            }
            Err(error) => {
                tracing::error!(%error, "policy refused; the last good one stays in force");
                seen.error = Some(error.to_string());
                Outcome::Refused
            }
        };
        self.0.reloads.get_or_create(&ReloadLabels { result }).inc();
    }
}

#[cfg(test)]
#[path = "policy_file_tests.rs"]
mod tests;
