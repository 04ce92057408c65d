//! Policy files, and the policies in force: the last good content of each file. What a policy means is core's matter.
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
    #[error("{}: {message}", place(path, *line, *column))]
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
    #[error("{}: {source}", place(path, *line, *column))]
    Invalid {
        /// The file.
        path: PathBuf,
        /// The line of the field, from 1; 0 where none is known.
        line: u64,
        /// The column, from 1; 0 where none is known.
        column: u64,
        /// What is wrong.
        source: PolicyError,
    },
    /// It is a good policy that cannot be in force beside the others.
    #[error("{}: {finding}", place(path, *line, *column))]
    Conflict {
        /// The file.
        path: PathBuf,
        /// The line of the field, from 1; 0 where none is known.
        line: u64,
        /// The column, from 1; 0 where none is known.
        column: u64,
        /// What it is.
        finding: Finding,
    },
    /// It would spoil a policy of another file, which extends one of this file's.
    #[error("{}: with this content {other}; correct that first, or both at once", path.display())]
    Spoils {
        /// The file.
        path: PathBuf,
        /// What would be wrong, and where.
        other: String,
    },
    /// It says nothing.
    #[error("{}: there is no policy in it; write one (in a folder into a file *.yaml), or remove it", .0.display())]
    Empty(PathBuf),
    /// There is no policy for pods at all.
    #[error("{}: there is no GpuPolicy, without which no pod may ask for a GPU; write one in a file *.yaml", .0.display())]
    NoPodPolicy(PathBuf),
}

/// A place in a file, as editors and terminals make a link of it.
fn place(path: &Path, line: u64, column: u64) -> String {
    match line {
        0 => path.display().to_string(),
        _ => format!("{}:{line}:{column}", path.display()),
    }
}

/// Reads the policies of a file, or of a folder's files in the order of their names. All must be good, and one be for pods.
pub fn read(path: &Path) -> Result<Policies, PolicyFileError> {
    let contents = check(path).map_err(|mut errors| errors.remove(0))?;
    let policies = contents.policies();
    if policies.pods.is_empty() {
        return Err(PolicyFileError::NoPodPolicy(path.to_owned()));
    }
    Ok(policies)
}

/// Reads the policies of a file, or of a folder's files in the order of their names; or everything that is wrong with
/// them, at least one thing.
pub fn check(path: &Path) -> Result<Contents, Vec<PolicyFileError>> {
    let texts = folder::read(path).map_err(|source| vec![unreadable(path, source)])?;
    contents(
        path,
        texts
            .into_iter()
            .map(|(path, text)| (path.clone(), text.map_err(|source| unreadable(&path, source)))),
    )
}

/// Reads the policies of these texts as [`check`] reads files, as of the keys of a `ConfigMap` that is called `name`.
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
    // What a good file extends may be in one of those that cannot be read.
    match Contents::of(good) {
        Ok(contents) if errors.is_empty() => return Ok(contents),
        Err(found) if errors.is_empty() => errors = found,
        Ok(_) | Err(_) => {}
    }
    Err(errors)
}
