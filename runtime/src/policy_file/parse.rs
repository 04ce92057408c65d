//! From a file's text to its policies.

use super::PolicyFileError;
use super::locate::locate;
use kerf_core::policy::{
    Field, Finding, NodePolicyDocument, NodeRules, Policy, PolicyDocument, PolicyDraft, PolicyError,
    PolicyFault, PolicyIndex,
};
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The policies of one good file, in the order in which they stand there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Content {
    /// The file.
    pub path: PathBuf,
    /// Its policies for pods, which may extend those of other files.
    pub pods: Vec<Written<PolicyDraft>>,
    /// Its policies for nodes.
    pub nodes: Vec<Written<NodeRules>>,
}

/// A policy with the text that it was read from, to point into.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Written<T> {
    /// The policy.
    pub policy: T,
    document: Document,
}

/// One document of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Document {
    text: String,
    /// The lines of the file that stand before it.
    lines_before: u64,
}

impl Document {
    fn locate(&self, field: &Field) -> (u64, u64) {
        self.in_file(locate(&self.text, field))
    }

    /// A place of the document as a place of the file.
    fn in_file(&self, (line, column): (u64, u64)) -> (u64, u64) {
        if line == 0 { (0, 0) } else { (line + self.lines_before, column) }
    }
}

impl Content {
    /// What was found about one of the policies, `finding.policy` being an index of this file's.
    pub(super) fn conflict(&self, finding: Finding) -> PolicyFileError {
        let (line, column) = self.place(&finding);
        PolicyFileError::Conflict { path: self.path.clone(), line, column, finding }
    }

    /// Where what was found stands in the file.
    pub(super) fn place(&self, finding: &Finding) -> (u64, u64) {
        let document = match finding.policy {
            PolicyIndex::Pod(index) => self.pods.get(index).map(|written| &written.document),
            PolicyIndex::Node(index) => self.nodes.get(index).map(|written| &written.document),
        };
        document.map_or((0, 0), |document| document.locate(&finding.field))
    }
}

/// What every document says of itself.
#[derive(Deserialize)]
struct Head {
    #[serde(default)]
    kind: String,
}

impl Content {
    /// The file's policies for pods, with all that they inherit; `named` are the drafts of all files by name. The error is
    /// everything that is wrong with them.
    pub(super) fn resolve<'d>(
        &'d self,
        named: impl Fn(&str) -> Option<&'d PolicyDraft>,
    ) -> Result<Vec<Policy>, Vec<PolicyFileError>> {
        let (mut policies, mut errors) = (Vec::new(), Vec::new());
        for Written { policy: draft, document } in &self.pods {
            match draft.resolve(&named) {
                Ok(policy) => policies.push(policy),
                Err(found) => {
                    errors.extend(
                        found.into_iter().map(|source| invalid_draft(&self.path, document, draft, source)),
                    );
                }
            }
        }
        if errors.is_empty() { Ok(policies) } else { Err(errors) }
    }
}

/// What of a `spec` is written; the values are read elsewhere.
#[derive(Deserialize)]
#[expect(clippy::zero_sized_map_values, reason = "a set is read from a list, and this is a map")]
struct Fields {
    #[serde(default)]
    spec: BTreeMap<String, IgnoredAny>,
}

/// Reads the text of a policy file; `path` is for messages. The error is everything that is wrong with it, at least one
/// thing.
pub fn parse(path: &Path, text: &str) -> Result<Content, Vec<PolicyFileError>> {
    let mut content = Content { path: path.to_owned(), pods: Vec::new(), nodes: Vec::new() };
    let mut errors = Vec::new();
    for document in documents(text) {
        if let Err(found) = content.take(document) {
            errors.extend(found);
        }
    }
    if errors.is_empty() && content.pods.is_empty() && content.nodes.is_empty() {
        errors.push(PolicyFileError::Empty(path.to_owned()));
    }
    if errors.is_empty() { Ok(content) } else { Err(errors) }
}

impl Content {
    fn take(&mut self, document: Document) -> Result<(), Vec<PolicyFileError>> {
        let path = &self.path;
        let head: Head = yaml(path, &document).map_err(|error| vec![error])?;
        match head.kind.as_str() {
            "GpuPolicy" => {
                let policy = draft(path, &document)?;
                self.pods.push(Written { policy, document });
            }
            "GpuNodePolicy" => {
                let policy = read(path, &document, NodePolicyDocument::problems)?;
                self.nodes.push(Written { policy, document });
            }
            _ => {
                let source = PolicyFault::Kind(head.kind).of(Field::of("kind"));
                return Err(vec![invalid(path, &document, source)]);
            }
        }
        Ok(())
    }
}

/// A policy for pods. One that extends no other can be judged by itself.
fn draft(path: &Path, document: &Document) -> Result<PolicyDraft, Vec<PolicyFileError>> {
    let of_one = |error| vec![error];
    let read: PolicyDocument = yaml(path, document).map_err(of_one)?;
    let Fields { spec } = yaml(path, document).map_err(of_one)?;
    let draft = PolicyDraft::new(read, spec.into_keys().collect());
    if !draft.is_extending() {
        let invalid = |source| invalid(path, document, source);
        draft.resolve(|_| None).map_err(|found| found.into_iter().map(invalid).collect::<Vec<_>>())?;
    }
    Ok(draft)
}

fn read<D: DeserializeOwned, T: TryFrom<D, Error = PolicyError>>(
    path: &Path,
    document: &Document,
    problems: impl Fn(&D) -> Vec<PolicyError>,
) -> Result<T, Vec<PolicyFileError>> {
    let read: D = yaml(path, document).map_err(|error| vec![error])?;
    let found = problems(&read);
    if found.is_empty() {
        return read.try_into().map_err(|source| vec![invalid(path, document, source)]);
    }
    Err(found.into_iter().map(|source| invalid(path, document, source)).collect())
}

fn yaml<T: DeserializeOwned>(path: &Path, document: &Document) -> Result<T, PolicyFileError> {
    serde_saphyr::from_str(&document.text).map_err(|error| {
        let place = error.location().map_or((0, 0), |place| (place.line(), place.column()));
        let (line, column) = document.in_file(place);
        let message = without_place(error.without_snippet().to_string());
        PolicyFileError::Parse { path: path.to_owned(), line, column, message }
    })
}

/// The message without the place that the parser puts behind it: ours counts the whole file's lines.
fn without_place(mut message: String) -> String {
    if let Some(end) = message.rfind(" at line ") {
        message.truncate(end);
    }
    message
}

fn invalid(path: &Path, document: &Document, source: PolicyError) -> PolicyFileError {
    let (line, column) = document.locate(&source.field);
    PolicyFileError::Invalid { path: path.to_owned(), line, column, source }
}

/// The same of a policy that extends another. A field that it inherits is not in its file: the mistake is where it names the other.
fn invalid_draft(
    path: &Path,
    document: &Document,
    draft: &PolicyDraft,
    source: PolicyError,
) -> PolicyFileError {
    let extends = Field::of("spec.extends");
    let field = if draft.has_written(&source.field) { &source.field } else { &extends };
    let (line, column) = document.locate(field);
    PolicyFileError::Invalid { path: path.to_owned(), line, column, source }
}

/// The documents of a text. In YAML `---` at a line's beginning divides documents whatever stands around it, in a block of
/// text too (YAML 1.2.2, 9.1.2). What has no content is none.
fn documents(text: &str) -> Vec<Document> {
    let new = |lines_before| Document { text: String::new(), lines_before };
    let mut documents = Vec::new();
    let mut last = new(0);
    for (line, number) in text.split_inclusive('\n').zip(0..) {
        let rest = line.strip_prefix("---");
        if rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(char::is_whitespace)) {
            documents.push(std::mem::replace(&mut last, new(number)));
        }
        last.text.push_str(line);
    }
    documents.push(last);
    documents.retain(|document| document.text.lines().any(has_content));
    documents
}

fn has_content(line: &str) -> bool {
    let line = line.trim_start_matches('\u{feff}').trim();
    let line = line.strip_prefix("---").unwrap_or(line).trim_start();
    !(line.is_empty() || line.starts_with('#') || line.starts_with('%') || line == "...")
}

#[cfg(test)]
#[path = "parse_tests.rs"]
mod tests;
