//! Policy files, and the policies in force: the last good content of each file. Core decides what a policy means.
//!
//! | module | what it does |
//! |---|---|
//! | `folder` | which files there are, and their texts |
//! | `parse`, `locate` | from a text to policies, or to mistakes with line and column |
//! | `settle` | which content of which file is in force: pure |
//! | `store` | the policies in force, followed while the program runs |

mod folder;
mod locate;
mod metrics;
mod parse;
mod settle;
mod store;

pub use folder::is_policy_name;
pub use parse::{Content, parse};
pub use settle::Contents;
pub use store::{Errors, PolicyStore};

use kerf_core::policy::{Finding, Policies, PolicyError};
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Why the content of a policy file is not in force.
#[derive(Debug, Error)]
pub enum PolicyFileError {
    /// The file or folder is unreadable.
    #[error("{}: failed to read the policy: {source}", path.display())]
    Read {
        /// The path of the file or folder.
        path: PathBuf,
        /// The error of the file system.
        source: std::io::Error,
    },
    /// The text is not a policy document.
    #[error("{}: {message}", place(path, *line, *column))]
    Parse {
        /// The path of the file, or the key of a `ConfigMap`.
        path: PathBuf,
        /// The line of the mistake from 1; 0 if unknown.
        line: u64,
        /// The column of the mistake from 1; 0 if unknown.
        column: u64,
        /// The parser's message without its own place.
        message: String,
    },
    /// The document parses and breaks a rule.
    #[error("{}: {source}", place(path, *line, *column))]
    Invalid {
        /// The path of the file, or the key of a `ConfigMap`.
        path: PathBuf,
        /// The line of the field from 1; 0 if unknown.
        line: u64,
        /// The column of the field from 1; 0 if unknown.
        column: u64,
        /// The rule that the document breaks.
        source: PolicyError,
    },
    /// The policy is good by itself and conflicts with another policy.
    #[error("{}: {finding}", place(path, *line, *column))]
    Conflict {
        /// The path of the file, or the key of a `ConfigMap`.
        path: PathBuf,
        /// The line of the field from 1; 0 if unknown.
        line: u64,
        /// The column of the field from 1; 0 if unknown.
        column: u64,
        /// The conflict with the other policy.
        finding: Finding,
    },
    /// The content would break a policy of another file that extends one of this file.
    #[error("{}: with this content {other}; correct that first, or both at once", path.display())]
    Spoils {
        /// The path of the file, or the key of a `ConfigMap`.
        path: PathBuf,
        /// The mistake in the other file, with its place.
        other: String,
    },
    /// The file or folder contains no policy.
    #[error("{}: there is no policy in it; write one (in a folder into a file *.yaml), or remove it", .0.display())]
    Empty(PathBuf),
    /// No policy is for pods.
    #[error("{}: there is no GpuPolicy, without which no pod may ask for a GPU; write one in a file *.yaml", .0.display())]
    NoPodPolicy(PathBuf),
}

/// A place in a file in the form from which editors and terminals make a link.
fn place(path: &Path, line: u64, column: u64) -> String {
    match line {
        0 => path.display().to_string(),
        _ => format!("{}:{line}:{column}", path.display()),
    }
}

/// Reads the policies of a file, or of a folder's files in the order of their names. All must be good, and at least one
/// must be for pods.
pub fn read(path: &Path) -> Result<Policies, PolicyFileError> {
    let contents = check(path).map_err(|mut errors| errors.remove(0))?;
    let policies = contents.policies();
    if policies.pods.is_empty() {
        return Err(PolicyFileError::NoPodPolicy(path.to_owned()));
    }
    Ok(policies)
}

/// Reads the policies of a file, or of a folder's files in the order of their names. The error lists every mistake, at
/// least one.
pub fn check(path: &Path) -> Result<Contents, Vec<PolicyFileError>> {
    let texts = folder::read(path).map_err(|source| vec![unreadable(path, source)])?;
    contents(
        path,
        texts
            .into_iter()
            .map(|(path, text)| (path.clone(), text.map_err(|source| unreadable(&path, source)))),
    )
}

/// Like [`check`], but for texts instead of files: those of a `ConfigMap` that is called `name`.
pub fn check_texts(
    name: &Path,
    texts: impl IntoIterator<Item = (PathBuf, String)>,
) -> Result<Contents, Vec<PolicyFileError>> {
    contents(name, texts.into_iter().map(|(path, text)| (path, Ok(text))))
}

fn unreadable(path: &Path, source: std::io::Error) -> PolicyFileError {
    PolicyFileError::Read { path: path.to_owned(), source }
}

fn contents(
    path: &Path,
    texts: impl Iterator<Item = (PathBuf, Result<String, PolicyFileError>)>,
) -> Result<Contents, Vec<PolicyFileError>> {
    let (mut good, mut errors) = (Vec::new(), Vec::new());
    for (path, text) in texts {
        match text.map_err(|error| vec![error]).and_then(|text| parse(&path, &text)) {
            Ok(content) => good.push(content),
            Err(found) => errors.extend(found),
        }
    }
    if errors.is_empty() && good.is_empty() {
        errors.push(PolicyFileError::Empty(path.to_owned()));
    }
    // With a bad file no conflict is reported: the policy that a good file extends may be in the bad one.
    match Contents::join(good) {
        Ok(contents) if errors.is_empty() => return Ok(contents),
        Err(found) if errors.is_empty() => errors = found,
        Ok(_) | Err(_) => {}
    }
    Err(errors)
}
