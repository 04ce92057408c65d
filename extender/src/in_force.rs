//! The admins' policies, as they are now: of the files that `--policy` names, or of a test.

use kerf_core::policy::Policies;
use kerf_runtime::policy_file::PolicyStore;
use std::sync::Arc;

/// The policies in force. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct InForce(Source);

#[derive(Debug, Clone)]
enum Source {
    /// Those of files that are followed.
    Files(PolicyStore),
    /// Those that never change: none, without `--policy`.
    Fixed(Arc<Policies>),
}

impl Default for Source {
    fn default() -> Self {
        Self::Fixed(Arc::default())
    }
}

impl InForce {
    /// Those of the files, or none without them.
    #[must_use]
    pub fn of(store: Option<PolicyStore>) -> Self {
        store.map(|store| Self(Source::Files(store))).unwrap_or_default()
    }

    /// The policies now. As long as they are the same, so is the pointer.
    #[must_use]
    pub fn current(&self) -> Arc<Policies> {
        match &self.0 {
            Source::Files(store) => store.current(),
            Source::Fixed(policies) => policies.clone(),
        }
    }

    /// Whether the content of some file is not in force, so that a policy that is missing may only be misspelt.
    #[must_use]
    pub fn has_bad_files(&self) -> bool {
        match &self.0 {
            Source::Files(store) => !store.errors().is_empty(),
            Source::Fixed(_) => false,
        }
    }

    /// Whether somebody names policies at all.
    #[must_use]
    pub fn are_given(&self) -> bool {
        matches!(self.0, Source::Files(_))
    }
}

#[cfg(test)]
impl From<Policies> for InForce {
    fn from(policies: Policies) -> Self {
        Self(Source::Fixed(Arc::new(policies)))
    }
}
