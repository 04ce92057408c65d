//! The files that the user names; `-` is standard input.

use clap::Args as ClapArgs;
use serde_json::Value;
use std::io;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Files, by a flag or, as earlier versions had them, by their place.
#[derive(Debug, Clone, ClapArgs)]
#[group(required = true, multiple = false)]
pub struct Files {
    /// A file, or a folder where the command takes one; `-` for standard input. The flag may be repeated.
    #[arg(short, long, value_name = "FILE", num_args = 1..)]
    filename: Vec<PathBuf>,
    #[arg(hide = true)]
    paths: Vec<PathBuf>,
}

impl Files {
    #[must_use]
    pub fn paths(&self) -> &[PathBuf] {
        if self.filename.is_empty() { &self.paths } else { &self.filename }
    }
}

#[derive(Debug, Error)]
pub enum InputError {
    #[error("failed to read {place}")]
    Read { place: String, source: io::Error },
    #[error("{0}")]
    Bad(String),
}

#[must_use]
pub fn place(path: &Path) -> String {
    if is_stdin(path) { "standard input".to_owned() } else { path.display().to_string() }
}

pub fn read(path: &Path) -> Result<String, InputError> {
    let text =
        if is_stdin(path) { io::read_to_string(io::stdin().lock()) } else { std::fs::read_to_string(path) };
    text.map_err(|source| InputError::Read { place: place(path), source })
}

pub fn documents(path: &Path) -> Result<Vec<Value>, InputError> {
    // The snippet is left out, because it may show a secret.
    serde_saphyr::from_multiple(&read(path)?).map_err(|error| {
        InputError::Bad(format!("{}: failed to parse: {}", place(path), error.without_snippet()))
    })
}

#[must_use]
pub fn is_stdin(path: &Path) -> bool {
    path == Path::new("-")
}
