//! Which content of which file is in force. Pure: nothing is read here.

use super::PolicyFileError;
use super::parse::Content;
use kerf_core::policy::{Finding, Policies, PolicyIndex};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The contents of good files, by name. They can be in force together.
#[derive(Debug, Clone, Default)]
pub struct Contents(BTreeMap<PathBuf, Arc<Content>>);

impl Contents {
    /// Whether there is no file.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The policies, in the order of the files' names and in that of each file.
    #[must_use]
    pub fn policies(&self) -> Policies {
        policies(self.0.values().map(AsRef::as_ref))
    }

    /// The files, in the order of their names.
    pub fn files(&self) -> impl Iterator<Item = &Content> {
        self.0.values().map(AsRef::as_ref)
    }

    /// What is to be said about the policies together, each with the file, the line and the column.
    #[must_use]
    pub fn findings(&self) -> Vec<(Finding, String)> {
        let (mut pods, mut nodes) = (Vec::new(), Vec::new());
        for content in self.files() {
            pods.extend((0..content.pods.len()).map(|index| (content, index)));
            nodes.extend((0..content.nodes.len()).map(|index| (content, index)));
        }
        let placed = |finding: Finding| {
            let found = match finding.policy {
                PolicyIndex::Pod(index) => pods.get(index).map(|(c, at)| (*c, PolicyIndex::Pod(*at))),
                PolicyIndex::Node(index) => nodes.get(index).map(|(c, at)| (*c, PolicyIndex::Node(*at))),
            };
            let (content, policy) = found?;
            let (line, column) = content.place(&Finding { policy, ..finding.clone() });
            Some((finding, super::place(&content.path, line, column)))
        };
        self.policies().findings().into_iter().filter_map(placed).collect()
    }

    /// Puts a file's content in the place of what it had. What cannot be in force beside the other files is refused.
    pub(super) fn add(&mut self, content: impl Into<Arc<Content>>) -> Result<(), PolicyFileError> {
        let content = content.into();
        let others = self.0.iter().filter(|(path, _)| **path != content.path).map(|(_, content)| &**content);
        // Whatever its place is, what is wrong is told of this file: the others are in force already.
        let others = policies(others);
        let (pods, nodes) = (others.pods.len(), others.nodes.len());
        let together = join(others, policies([&*content]));
        let mine = |finding: Finding| {
            let policy = match finding.policy {
                PolicyIndex::Pod(index) => PolicyIndex::Pod(index.checked_sub(pods)?),
                PolicyIndex::Node(index) => PolicyIndex::Node(index.checked_sub(nodes)?),
            };
            Some(Finding { policy, ..finding })
        };
        if let Some(finding) = together.conflicts().into_iter().find_map(mine) {
            return Err(content.conflict(finding));
        }
        self.0.insert(content.path.clone(), content);
        Ok(())
    }

    /// A file's content.
    pub(super) fn get(&self, path: &Path) -> Option<&Arc<Content>> {
        self.0.get(path)
    }

    /// Takes the new contents over, as many as can be in force together: all at once if that is possible, so that a
    /// policy may move from one file to another, and else file by file, where none pushes out what is in force.
    ///
    /// What comes back is refused.
    pub(super) fn settle(&mut self, new: Vec<Arc<Content>>) -> Vec<PolicyFileError> {
        let mut all = self.clone();
        all.0.extend(new.iter().map(|content| (content.path.clone(), Arc::clone(content))));
        if all.policies().conflicts().is_empty() {
            *self = all;
            return Vec::new();
        }
        let mut waiting = new;
        loop {
            let before = waiting.len();
            let mut refused = Vec::new();
            waiting.retain(|content| match self.add(Arc::clone(content)) {
                Ok(()) => false,
                Err(error) => {
                    refused.push(error);
                    true
                }
            });
            // What one file gave up another may have.
            if waiting.len() == before || waiting.is_empty() {
                return refused;
            }
        }
    }

    /// The contents of those files that are there.
    pub(super) fn of(&self, is_there: impl Fn(&Path) -> bool) -> Self {
        let there = self.0.iter().filter(|(path, _)| is_there(path));
        Self(there.map(|(path, content)| (path.clone(), Arc::clone(content))).collect())
    }

    /// Whether one of the policies is for pods.
    pub(super) fn has_pods(&self) -> bool {
        self.0.values().any(|content| !content.pods.is_empty())
    }
}

fn policies<'c>(contents: impl IntoIterator<Item = &'c Content>) -> Policies {
    let mut policies = Policies::default();
    for content in contents {
        policies.pods.extend(content.pods.iter().map(|written| written.policy.clone()));
        policies.nodes.extend(content.nodes.iter().map(|written| written.policy.clone()));
    }
    policies
}

fn join(mut first: Policies, second: Policies) -> Policies {
    first.pods.extend(second.pods);
    first.nodes.extend(second.nodes);
    first
}
