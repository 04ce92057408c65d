//! Decides which content of which file is in force, without I/O.

use super::PolicyFileError;
use super::parse::{Content, Written};
use kerf_core::policy::{Finding, Policies, Policy, PolicyDraft, PolicyIndex};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A file, and the reason why its content is not in force.
pub(super) type Refused = (PathBuf, PolicyFileError);

/// The contents of all good files by path, without conflicts between them.
#[derive(Debug, Clone, Default)]
pub struct Contents(BTreeMap<PathBuf, File>);

/// The content of a file, and its policies for pods with everything that they inherit.
#[derive(Debug, Clone)]
struct File {
    content: Arc<Content>,
    pods: Arc<[Policy]>,
}

/// The policies of each file, or its mistakes.
type Resolved = BTreeMap<PathBuf, Result<Arc<[Policy]>, Vec<PolicyFileError>>>;

impl Contents {
    /// Joins these contents, or returns every reason why they cannot be in force together.
    pub(super) fn join(contents: Vec<Content>) -> Result<Self, Vec<PolicyFileError>> {
        let contents: Vec<Arc<Content>> = contents.into_iter().map(Arc::new).collect();
        let all = Self::default()
            .replaced(&contents)
            .map_err(|refused| refused.into_iter().map(|(_, error)| error).collect::<Vec<_>>())?;
        let conflicts = all.policies().conflicts();
        let errors: Vec<_> = conflicts.iter().filter_map(|finding| all.conflict(finding)).collect();
        if errors.is_empty() { Ok(all) } else { Err(errors) }
    }

    /// Whether no file is in force.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All policies, in the order of the paths and then of each file's documents.
    #[must_use]
    pub fn policies(&self) -> Policies {
        policies(self.0.values())
    }

    /// The files in the order of their paths, each with its policies for pods after inheritance.
    pub fn files(&self) -> impl Iterator<Item = (&Content, &[Policy])> {
        self.0.values().map(|file| (&*file.content, &*file.pods))
    }

    /// Doubts about the policies together, each with its place as `file:line:column`.
    #[must_use]
    pub fn findings(&self) -> Vec<(Finding, String)> {
        let placed = |finding: Finding| {
            let (content, mine) = self.of_file(&finding)?;
            let (line, column) = content.place(&mine);
            Some((finding, super::place(&content.path, line, column)))
        };
        self.policies().findings().into_iter().filter_map(placed).collect()
    }

    fn conflict(&self, finding: &Finding) -> Option<PolicyFileError> {
        let (content, mine) = self.of_file(finding)?;
        Some(content.conflict(mine))
    }

    /// The file of a finding, and the finding with the policy's index in that file.
    fn of_file(&self, finding: &Finding) -> Option<(&Content, Finding)> {
        let (mut pods, mut nodes) = (0, 0);
        for (content, policies) in self.files() {
            let policy = match finding.policy {
                PolicyIndex::Pod(index) if index - pods < policies.len() => PolicyIndex::Pod(index - pods),
                PolicyIndex::Node(index) if index - nodes < content.nodes.len() => {
                    PolicyIndex::Node(index - nodes)
                }
                _ => {
                    pods += policies.len();
                    nodes += content.nodes.len();
                    continue;
                }
            };
            return Some((content, Finding { policy, ..finding.clone() }));
        }
        None
    }

    /// The policies of each file, with what they inherit from policies of all files.
    fn resolve<'c>(contents: impl Iterator<Item = &'c Content> + Clone) -> Resolved {
        let mut drafts: BTreeMap<&str, &PolicyDraft> = BTreeMap::new();
        for Written { policy, .. } in contents.clone().flat_map(|content| &content.pods) {
            drafts.entry(policy.name()).or_insert(policy);
        }
        let named = |name: &str| drafts.get(name).copied();
        contents.map(|content| (content.path.clone(), content.resolve(named).map(Arc::from))).collect()
    }

    fn contents(&self) -> impl Iterator<Item = &Content> + Clone {
        self.0.values().map(|file| &*file.content)
    }

    /// These contents with new ones in place of the old, or the reasons against it. A file whose base has gone keeps
    /// its policies, because its own text has not become bad. A new content must not break another file that was good
    /// before.
    fn replaced(&self, new: &[Arc<Content>]) -> Result<Self, Vec<Refused>> {
        let is_new = |path: &Path| new.iter().any(|content| content.path == path);
        let kept = self.0.values().map(|file| &file.content).filter(|content| !is_new(&content.path));
        let all: Vec<&Arc<Content>> = kept.chain(new).collect();
        let before = Self::resolve(self.contents());
        let mut resolved = Self::resolve(all.iter().map(|content| &***content));
        let (mut files, mut refused) = (BTreeMap::new(), Vec::new());
        for content in all {
            let path = &content.path;
            let pods = match (resolved.remove(path), self.0.get(path)) {
                (Some(Ok(pods)), _) => pods,
                (Some(Err(_)), Some(file)) if !is_new(path) && matches!(before.get(path), Some(Err(_))) => {
                    file.pods.clone()
                }
                (Some(Err(errors)), _) if is_new(path) => {
                    refused.extend(errors.into_iter().map(|error| (path.clone(), error)));
                    continue;
                }
                (Some(Err(errors)), _) => {
                    refused.extend(new.iter().flat_map(|new| spoiling(&new.path, &errors)));
                    continue;
                }
                (None, _) => continue,
            };
            files.insert(path.clone(), File { content: Arc::clone(content), pods });
        }
        if refused.is_empty() { Ok(Self(files)) } else { Err(refused) }
    }

    fn add(&mut self, content: &Arc<Content>) -> Result<(), Vec<Refused>> {
        let path = &content.path;
        let next = self.replaced(std::slice::from_ref(content))?;
        // The conflict is reported for this file whatever its position, because the others are already in force.
        let others = policies(next.0.iter().filter(|(other, _)| *other != path).map(|(_, file)| file));
        let (pods, nodes) = (others.pods.len(), others.nodes.len());
        let together = join(others, policies(next.0.get(path)));
        let mine = |finding: Finding| {
            let policy = match finding.policy {
                PolicyIndex::Pod(index) => PolicyIndex::Pod(index.checked_sub(pods)?),
                PolicyIndex::Node(index) => PolicyIndex::Node(index.checked_sub(nodes)?),
            };
            Some(Finding { policy, ..finding })
        };
        if let Some(finding) = together.conflicts().into_iter().find_map(mine) {
            return Err(vec![(path.clone(), content.conflict(finding))]);
        }
        *self = next;
        Ok(())
    }

    pub(super) fn get(&self, path: &Path) -> Option<&Arc<Content>> {
        self.0.get(path).map(|file| &file.content)
    }

    /// Takes over as many new contents as can be in force together, and returns the rejected ones. It tries all at once
    /// first, so that a policy can move from one file to another. Otherwise it goes file by file, and no file displaces
    /// a policy that is in force.
    pub(super) fn settle(&mut self, new: &[Arc<Content>]) -> Vec<Refused> {
        if let Ok(all) = self.replaced(new)
            && all.policies().conflicts().is_empty()
        {
            *self = all;
            return Vec::new();
        }
        let mut waiting = new.to_vec();
        loop {
            let before = waiting.len();
            let mut refused = Vec::new();
            waiting.retain(|content| match self.add(content) {
                Ok(()) => false,
                Err(errors) => {
                    refused.extend(errors);
                    true
                }
            });
            // Another round, because a file may have released a name that another file needs.
            if waiting.len() == before || waiting.is_empty() {
                return refused;
            }
        }
    }

    /// The files whose former policies stay in force because the policy that they extend has gone.
    pub(super) fn stale(&self) -> Vec<Refused> {
        let resolved = Self::resolve(self.contents()).into_iter();
        let errors = resolved.filter_map(|(path, found)| Some((path, found.err()?)));
        errors.flat_map(|(path, errors)| errors.into_iter().map(move |error| (path.clone(), error))).collect()
    }

    /// The contents of the files that still exist.
    pub(super) fn of_files(&self, is_there: impl Fn(&Path) -> bool) -> Self {
        let there = self.0.iter().filter(|(path, _)| is_there(path));
        Self(there.map(|(path, file)| (path.clone(), file.clone())).collect())
    }

    /// Whether any policy is for pods.
    pub(super) fn has_pods(&self) -> bool {
        self.0.values().any(|file| !file.pods.is_empty())
    }
}

/// The errors for `path` if its new content breaks policies of other files.
fn spoiling(path: &Path, errors: &[PolicyFileError]) -> Vec<Refused> {
    let refused = |error: &PolicyFileError| {
        let error = PolicyFileError::Spoils { path: path.to_owned(), other: error.to_string() };
        (path.to_owned(), error)
    };
    errors.iter().map(refused).collect()
}

fn policies<'c>(files: impl IntoIterator<Item = &'c File>) -> Policies {
    let mut policies = Policies::default();
    for file in files {
        policies.pods.extend(file.pods.iter().cloned());
        policies.nodes.extend(file.content.nodes.iter().map(|written| written.policy.clone()));
    }
    policies
}

fn join(mut first: Policies, second: Policies) -> Policies {
    first.pods.extend(second.pods);
    first.nodes.extend(second.nodes);
    first
}
