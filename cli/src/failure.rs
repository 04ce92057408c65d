//! How errors are printed, and the errors that several commands share.

use thiserror::Error;

#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{what}; {remedy}")]
pub struct NotFound {
    what: String,
    remedy: String,
}

impl NotFound {
    pub fn new(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { what: what.into(), remedy: remedy.into() }
    }
}

/// The text of an error and its causes. A cause whose text the line already ends with is left out, because some errors
/// repeat their source.
#[must_use]
pub fn with_causes(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if text.is_empty() {
            text = cause;
        } else if !text.ends_with(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::anyhow;

    #[test]
    fn each_cause_is_printed_once() {
        let error = anyhow!("no such file").context("p.yaml: no such file").context("--policy");
        assert_eq!(with_causes(&error), "--policy: p.yaml: no such file");
    }
}
