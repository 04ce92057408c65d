//! Logs: `tracing` to standard error, as text or JSON.

use crate::args::{LogArgs, LogFormat};
use tracing_subscriber::EnvFilter;

/// Why logging cannot start.
#[derive(Debug, thiserror::Error)]
#[error("--log: failed to read the filter")]
pub struct BadFilter(#[from] tracing_subscriber::filter::ParseError);

/// Starts logging. Called once, by `main`.
pub fn init(args: &LogArgs) -> Result<(), BadFilter> {
    let filter: EnvFilter = args.log.parse()?;
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match args.log_format {
        LogFormat::Text => builder.with_ansi(false).init(),
        LogFormat::Json => builder.json().init(),
    }
    Ok(())
}

/// An error's message with those of its sources behind it, for a log line.
#[must_use]
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let message = error.to_string();
        // Some errors quote their source themselves.
        if !text.ends_with(&message) {
            text = format!("{text}: {message}");
        }
        source = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_told_with_its_sources_once_each() {
        #[derive(Debug, thiserror::Error)]
        #[error("failed to read it: {source}")]
        struct Inner {
            source: std::fmt::Error,
        }
        #[derive(Debug, thiserror::Error)]
        #[error("failed to start")]
        struct Outer(#[source] Inner);

        let text = chain(&Outer(Inner { source: std::fmt::Error }));
        assert_eq!(text, format!("failed to start: failed to read it: {}", std::fmt::Error));
    }
}
