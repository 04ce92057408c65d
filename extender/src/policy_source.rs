//! The admins' policies in their current version: those of the files that `--policy` names, or of a test.

use kerf_core::policy::Policies;
use kerf_runtime::policy_file::PolicyStore;
use std::sync::Arc;

/// The source of the policies that apply now. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct PolicySource(Source);

#[derive(Debug, Clone)]
enum Source {
    /// Policy files, which are reloaded when they change.
    Files(PolicyStore),
    /// Policies that never change: none without `--policy`, or those of a test.
    Fixed(Arc<Policies>),
}

impl Default for Source {
    fn default() -> Self {
        Self::Fixed(Arc::default())
    }
}

impl PolicySource {
    /// Takes the policies of the files, or none without a store.
    #[must_use]
    pub fn from_store(store: Option<PolicyStore>) -> Self {
        store.map(|store| Self(Source::Files(store))).unwrap_or_default()
    }

    /// The policies that apply now. The pointer stays the same until they change, so callers can compare pointers.
    #[must_use]
    pub fn current(&self) -> Arc<Policies> {
        match &self.0 {
            Source::Files(store) => store.current(),
            Source::Fixed(policies) => policies.clone(),
        }
    }

    /// Whether some file could not be loaded. A missing policy may then merely be in that file, and must not count as
    /// deleted.
    #[must_use]
    pub fn has_bad_files(&self) -> bool {
        match &self.0 {
            Source::Files(store) => !store.errors().is_empty(),
            Source::Fixed(_) => false,
        }
    }

    /// Whether `--policy` is set, even if its files are empty.
    #[must_use]
    pub fn are_given(&self) -> bool {
        matches!(self.0, Source::Files(_))
    }
}

#[cfg(test)]
impl From<Policies> for PolicySource {
    fn from(policies: Policies) -> Self {
        Self(Source::Fixed(Arc::new(policies)))
    }
}
