//! Parses a file's text into its policies.

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

/// The policies of one good file, in the order of its documents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Content {
    /// The path of the file, or the key of a `ConfigMap`.
    pub path: PathBuf,
    /// The policies for pods; they may extend policies of other files.
    pub pods: Vec<Written<PolicyDraft>>,
    /// The policies for nodes in this file.
    pub nodes: Vec<Written<NodeRules>>,
}

/// A policy with the text from which it was parsed, so that errors can name line and column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Written<T> {
    /// The policy as its type has it.
    pub policy: T,
    document: Document,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Document {
    text: String,
    /// The number of lines before it in the file.
    lines_before: u64,
}

impl Document {
    fn locate(&self, field: &Field) -> (u64, u64) {
        self.in_file(locate(&self.text, field))
    }

    /// Converts a place in the document into a place in the file.
    fn in_file(&self, (line, column): (u64, u64)) -> (u64, u64) {
        if line == 0 { (0, 0) } else { (line + self.lines_before, column) }
    }
}

impl Content {
    /// The error for a finding about one of this file's policies; `finding.policy` is an index into this file.
    pub(super) fn conflict(&self, finding: Finding) -> PolicyFileError {
        let (line, column) = self.place(&finding);
        PolicyFileError::Conflict { path: self.path.clone(), line, column, finding }
    }

    pub(super) fn place(&self, finding: &Finding) -> (u64, u64) {
        let document = match finding.policy {
            PolicyIndex::Pod(index) => self.pods.get(index).map(|written| &written.document),
            PolicyIndex::Node(index) => self.nodes.get(index).map(|written| &written.document),
        };
        document.map_or((0, 0), |document| document.locate(&finding.field))
    }
}

/// The field that decides the type of a document.
#[derive(Deserialize)]
struct Head {
    #[serde(default)]
    kind: String,
}

impl Content {
    /// The file's policies for pods, with everything that they inherit. `named` finds a draft of any file by name. The
    /// error lists every mistake.
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

/// The names of the fields that are present in a `spec`, without their values.
#[derive(Deserialize)]
#[expect(clippy::zero_sized_map_values, reason = "a set is read from a list, and this is a map")]
struct Fields {
    #[serde(default)]
    spec: BTreeMap<String, IgnoredAny>,
}

/// Parses the text of a policy file. `path` is for messages. The error lists every mistake, at least one.
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
                let source = PolicyFault::Kind(head.kind).at_field(Field::from_dotted("kind"));
                return Err(vec![invalid(path, &document, source)]);
            }
        }
        Ok(())
    }
}

/// Parses a policy for pods. A policy that extends no other is checked at once. The others must wait until all files
/// are known.
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

/// Removes the place that the parser appends, because it counts lines of the document and not of the file.
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

/// Like [`invalid`], for a policy that extends another. An inherited field is not in its file, so the place is then
/// that of `spec.extends`.
fn invalid_draft(
    path: &Path,
    document: &Document,
    draft: &PolicyDraft,
    source: PolicyError,
) -> PolicyFileError {
    let extends = Field::from_dotted("spec.extends");
    let field = if draft.has_written(&source.field) { &source.field } else { &extends };
    let (line, column) = document.locate(field);
    PolicyFileError::Invalid { path: path.to_owned(), line, column, source }
}

/// Splits a text into its documents. In YAML a line that begins with `---` separates documents wherever it is, in a
/// block of text too (YAML 1.2.2, 9.1.2). Documents without content are dropped.
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
