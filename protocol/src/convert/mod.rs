//! Converts messages to core's types and back. A parsed message is within all [limits](crate::limits).

mod change;
mod hello;
mod order;
mod slice;

pub use change::{read_change, write_change};
pub use hello::{Hello, Role, read_hello, read_role, write_hello};
pub use order::{read_answer, read_order, write_answer, write_order};

use crate::limits::{NAME, TEXT};
use std::fmt::Display;
use thiserror::Error;

/// Why a message cannot be parsed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{field} {problem}")]
pub struct Unreadable {
    /// The field's path from its message on: `change.slices[3].shape.mig.profile`.
    field: String,
    problem: String,
    is_over_limit: bool,
}

impl Unreadable {
    /// The field has an invalid value, or one that this version lacks.
    pub fn broken(field: impl Into<String>, problem: impl Into<String>) -> Self {
        Self { field: field.into(), problem: problem.into(), is_over_limit: false }
    }

    pub fn over_limit(field: impl Into<String>, size: impl Display, limit: usize) -> Self {
        let problem = format!("has {size}; at most {limit} are read");
        Self { field: field.into(), problem, is_over_limit: true }
    }

    /// Whether a limit is exceeded, which ends the connection.
    #[must_use]
    pub fn is_over_limit(&self) -> bool {
        self.is_over_limit
    }

    /// Prefixes the path with the field that contains the message.
    #[must_use]
    pub fn within(self, field: impl Display) -> Self {
        Self { field: format!("{field}.{}", self.field), ..self }
    }
}

fn list_of<T>(field: &str, list: Vec<T>, limit: usize) -> Result<Vec<T>, Unreadable> {
    if list.len() > limit {
        return Err(Unreadable::over_limit(field, format_args!("{} entries", list.len()), limit));
    }
    Ok(list)
}

fn each<T, U>(
    field: &str,
    list: Vec<T>,
    limit: usize,
    read: impl Fn(T) -> Result<U, Unreadable>,
) -> Result<Vec<U>, Unreadable> {
    let entry = |(n, entry)| read(entry).map_err(|refusal| refusal.within(format_args!("{field}[{n}]")));
    list_of(field, list, limit)?.into_iter().enumerate().map(entry).collect()
}

fn names(field: &str, list: Vec<String>, limit: usize) -> Result<Vec<String>, Unreadable> {
    let entry = |(n, entry)| name(&format!("{field}[{n}]"), entry);
    list_of(field, list, limit)?.into_iter().enumerate().map(entry).collect()
}

/// A text of one to [`NAME`] bytes.
fn name(field: &str, name: String) -> Result<String, Unreadable> {
    if name.is_empty() {
        return Err(Unreadable::broken(field, "is missing"));
    }
    bytes(field, name, NAME)
}

fn optional_name(field: &str, optional: Option<String>) -> Result<Option<String>, Unreadable> {
    optional.map(|text| name(field, text)).transpose()
}

fn text(field: &str, text: String) -> Result<String, Unreadable> {
    bytes(field, text, TEXT)
}

fn bytes(field: &str, text: String, limit: usize) -> Result<String, Unreadable> {
    if text.len() > limit {
        return Err(Unreadable::over_limit(field, format_args!("{} bytes", text.len()), limit));
    }
    Ok(text)
}

fn parsed<T: TryFrom<String, Error: Display>>(field: &str, text: String) -> Result<T, Unreadable> {
    T::try_from(name(field, text)?)
        .map_err(|error| Unreadable::broken(field, format!("is unreadable: {error}")))
}

fn present<T>(field: &str, value: Option<T>) -> Result<T, Unreadable> {
    value.ok_or_else(|| Unreadable::broken(field, "is missing or of an unknown kind"))
}

fn unknown<T>(field: &str, value: i32) -> Result<T, Unreadable> {
    Err(Unreadable::broken(field, format!("has the unknown value {value}")))
}

fn byte(field: &str, value: u32) -> Result<u8, Unreadable> {
    u8::try_from(value).map_err(|_| Unreadable::broken(field, format!("is {value}; at most 255 can be")))
}

/// Cuts a text for people to the length that the other end accepts, because a longer one would end the connection.
fn cut(text: &str) -> String {
    text[..text.floor_char_boundary(TEXT)].to_owned()
}

#[cfg(test)]
#[path = "convert_tests.rs"]
mod tests;
