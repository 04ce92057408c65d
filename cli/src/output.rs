//! Prints a command's result: text for people, and the same values as JSON or YAML for programs.

use anstream::AutoStream;
use clap::ValueEnum;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use serde::Serialize;
use std::error::Error;
use std::fmt::Display;
use std::io::{self, StdoutLock, Write};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// A table, a drawing or an account for people. It is the default, and hidden in the help.
    Text,
    Wide,
    /// Only what is not good, in ASCII.
    Short,
    Json,
    Yaml,
}

impl Format {
    const ALL: [Self; 5] = [Self::Json, Self::Yaml, Self::Wide, Self::Short, Self::Text];

    const fn name(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Wide => "wide",
            Self::Short => "short",
            Self::Json => "json",
            Self::Yaml => "yaml",
        }
    }

    #[must_use]
    pub fn parser(more: &[Self]) -> impl TypedValueParser<Value = Self> + use<> {
        let has =
            |format: &Self| matches!(format, Self::Json | Self::Yaml | Self::Text) || more.contains(format);
        let values = Self::ALL.into_iter().filter(has).map(|format| match format {
            // Earlier versions used these names, so they still work.
            Self::Text => PossibleValue::new("text").aliases(["table", "drawing"]).hide(true),
            format => PossibleValue::new(format.name()),
        });
        let parsed = |name: String| Self::ALL.into_iter().find(|format| format.name() == name);
        // clap returns an alias as it was typed. Every unknown name is `Text`, because only `Text` has aliases.
        PossibleValuesParser::new(values).map(move |name| parsed(name).unwrap_or(Self::Text))
    }
}

/// A form of a command that prints objects, which have no text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ObjectFormat {
    /// JSON.
    #[value(help = None::<&str>)]
    Json,
    /// YAML.
    #[value(help = None::<&str>)]
    Yaml,
}

impl ObjectFormat {
    pub fn render(self, object: &impl Serialize) -> anyhow::Result<String> {
        Ok(match self {
            Self::Json => serde_json::to_string_pretty(object)? + "\n",
            Self::Yaml => serde_saphyr::to_string(object)?,
        })
    }
}

pub trait Report: Serialize {
    fn text(&self, format: Format) -> String;
}

pub fn render(report: &impl Report, format: Format) -> anyhow::Result<String> {
    match format {
        Format::Json => ObjectFormat::Json.render(report),
        Format::Yaml => ObjectFormat::Yaml.render(report),
        format => Ok(report.text(format)),
    }
}

pub fn print(report: &impl Report, format: Format) -> anyhow::Result<()> {
    write(&render(report, format)?)
}

pub fn write(text: &str) -> anyhow::Result<()> {
    let mut out = stdout();
    out.write_all(text.as_bytes())?;
    // The buffer is flushed, because a closed pipe may show only then.
    Ok(out.flush()?)
}

pub fn line(text: impl AsRef<str>) -> anyhow::Result<()> {
    write(&format!("{}\n", text.as_ref()))
}

pub fn lines<T: Display>(all: impl IntoIterator<Item = T>) -> String {
    all.into_iter().fold(String::new(), |lines, one| lines + &one.to_string() + "\n")
}

#[must_use]
pub fn stdout() -> impl Write {
    Stdout(AutoStream::auto(io::stdout().lock()))
}

struct Stdout(AutoStream<StdoutLock<'static>>);

impl Write for Stdout {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes).map_err(mark_closed)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush().map_err(mark_closed)
    }
}

/// The reader of standard output has gone. It has a type of its own, because a broken connection to an API server has
/// the same kind of error.
#[derive(Debug, thiserror::Error)]
#[error("standard output is closed")]
struct Closed;

fn mark_closed(error: io::Error) -> io::Error {
    if error.kind() == io::ErrorKind::BrokenPipe { io::Error::new(error.kind(), Closed) } else { error }
}

#[must_use]
pub fn is_closed(error: &(dyn Error + 'static)) -> bool {
    let inner = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
    inner.is_some_and(<dyn Error + Send + Sync>::is::<Closed>)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{Arg, Command};

    #[derive(Serialize)]
    struct Two {
        a: u8,
    }

    impl Report for Two {
        fn text(&self, format: Format) -> String {
            format!("{format:?} {}", self.a)
        }
    }

    #[test]
    fn a_command_takes_only_its_own_formats_and_an_error_names_them() {
        let parse = |name: &str| {
            let output = Arg::new("output").long("output").value_parser(Format::parser(&[Format::Wide]));
            let found = Command::new("kerf").arg(output).try_get_matches_from(["kerf", "--output", name]);
            found.map(|found| found.get_one::<Format>("output").copied()).map_err(|error| error.to_string())
        };
        for (name, format) in [
            ("json", Format::Json),
            ("yaml", Format::Yaml),
            ("wide", Format::Wide),
            ("text", Format::Text),
            ("table", Format::Text),
        ] {
            assert_eq!(parse(name), Ok(Some(format)), "{name}");
        }
        let error = parse("short").unwrap_err();
        assert!(error.contains("[possible values: json, yaml, wide]"), "{error}");
    }

    #[test]
    fn an_object_has_json_and_yaml_and_no_text() {
        assert_eq!(ObjectFormat::Json.render(&Two { a: 1 }).unwrap(), "{\n  \"a\": 1\n}\n");
        assert_eq!(ObjectFormat::Yaml.render(&Two { a: 1 }).unwrap(), "a: 1\n");
        let names = ObjectFormat::value_variants().iter().filter_map(ObjectFormat::to_possible_value);
        assert_eq!(names.map(|value| value.get_name().to_owned()).collect::<Vec<_>>(), ["json", "yaml"]);
    }

    #[test]
    fn programs_and_people_get_the_same_values() {
        let render = |format| render(&Two { a: 1 }, format).unwrap();
        assert_eq!(render(Format::Json), "{\n  \"a\": 1\n}\n");
        assert_eq!(render(Format::Yaml), "a: 1\n");
        assert_eq!(render(Format::Wide), "Wide 1");
    }
}
