//! Logs: `tracing` to standard error, as text or JSON.

use crate::args::{LogArgs, LogFormat};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// The value of `--log` does not parse as a filter.
#[derive(Debug, thiserror::Error)]
#[error("--log: failed to read the filter")]
pub struct BadFilter(#[from] tracing_subscriber::filter::ParseError);

/// Starts logging to standard error. `main` calls it once; a second call panics.
pub fn init(args: &LogArgs) -> Result<(), BadFilter> {
    let filter: Targets = args.log.parse()?;
    let (all, lines) =
        (tracing_subscriber::registry().with(filter), fmt::layer().with_writer(std::io::stderr));
    match args.log_format {
        LogFormat::Text => all.with(lines.with_ansi(false)).init(),
        LogFormat::Json => all.with(lines.json()).init(),
    }
    Ok(())
}

/// Formats an error with all its sources for a log line.
#[must_use]
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let message = error.to_string();
        // The source is left out if the text ends with it, because some errors already print their source.
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
    fn an_error_is_formatted_with_each_source_once() {
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
