//! The forms of Kubernetes names, labels and tolerations that a policy document may contain.
//!
//! The rules are the API server's (apimachinery `pkg/util/validation`, core `validation.go`). What the API server would
//! refuse in every admitted pod, kerf refuses in the policy already.

use super::Toleration;
use super::document_fault::{PolicyError, PolicyFault};
use super::document_field::Field;
use std::collections::BTreeMap;

/// The longest name of an object in Kubernetes, in bytes.
const NAME_LENGTH_LIMIT: usize = 253;
const LABEL_LENGTH_LIMIT: usize = 63;

/// Whether `text` is a valid object name: a DNS subdomain.
fn is_name(text: &str) -> bool {
    let letter = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let part = |part: &str| {
        let bytes = part.as_bytes();
        has_ends(bytes, letter) && bytes.iter().all(|b| letter(b) || *b == b'-')
    };
    text.len() <= NAME_LENGTH_LIMIT && text.split('.').all(part)
}

/// Whether a text may begin with its first byte and end with its last one; false for an empty text.
fn has_ends(bytes: &[u8], may_be_end: impl Fn(&u8) -> bool) -> bool {
    [bytes.first(), bytes.last()].into_iter().all(|end| end.is_some_and(&may_be_end))
}

/// Whether `text` is a valid label value that is not empty. A label key without its prefix has the same form.
fn is_word(text: &str) -> bool {
    let bytes = text.as_bytes();
    text.len() <= LABEL_LENGTH_LIMIT
        && has_ends(bytes, u8::is_ascii_alphanumeric)
        && bytes.iter().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
}

fn is_label_key(key: &str) -> bool {
    match key.split_once('/') {
        Some((prefix, word)) => is_name(prefix) && is_word(word),
        None => is_word(key),
    }
}

/// Whether `text` is an object name, or the beginning of one followed by `*`.
fn is_pattern(text: &str) -> bool {
    match text.strip_suffix('*') {
        None => is_name(text),
        // A prefix may end in a character that a name may not end in, as in `team-*`.
        Some(beginning) => beginning.is_empty() || is_name(&format!("{beginning}x")),
    }
}

pub(super) fn name(field: &Field, text: &str) -> Option<PolicyError> {
    (!is_name(text)).then(|| PolicyFault::Name(text.to_owned()).at_field(field.clone()))
}

/// The mistakes of a list of names. Each name may end in `*`.
pub(super) fn patterns(field: &Field, list: &[String]) -> Vec<PolicyError> {
    let bad = |(index, text): (usize, &String)| {
        (!is_pattern(text)).then(|| PolicyFault::Pattern(text.clone()).at_field(field.item(index)))
    };
    list.iter().enumerate().filter_map(bad).chain(twice(field, list)).collect()
}

/// The mistakes of a list of texts whose form kerf does not check.
pub(super) fn words(field: &Field, list: &[String]) -> Vec<PolicyError> {
    let blank = list.iter().position(|text| text.trim().is_empty());
    blank
        .map(|index| PolicyFault::Blank.at_field(field.item(index)))
        .into_iter()
        .chain(twice(field, list))
        .collect()
}

/// The first item that a list has twice.
pub(super) fn twice<T: PartialEq + ToString>(field: &Field, list: &[T]) -> Option<PolicyError> {
    let (again, item) = list.iter().enumerate().find(|(index, item)| list[..*index].contains(item))?;
    Some(PolicyFault::Twice(item.to_string()).at_field(field.item(again)))
}

pub(super) fn label_key(field: &Field, key: &str) -> Option<PolicyError> {
    (!is_label_key(key)).then(|| PolicyFault::LabelKey(key.to_owned()).at_field(field.clone()))
}

/// The mistake of a label value. An empty value is a mistake too.
pub(super) fn label_value(field: &Field, text: &str) -> Option<PolicyError> {
    (!is_word(text)).then(|| PolicyFault::LabelValue(text.to_owned()).at_field(field.clone()))
}

pub(super) fn labels(field: &Field, labels: &BTreeMap<String, String>) -> Vec<PolicyError> {
    let mut errors = Vec::new();
    for (key, value) in labels {
        if !is_label_key(key) {
            errors.push(PolicyFault::LabelKey(key.clone()).at_field(field.key(key)));
        } else if !value.is_empty() && !is_word(value) {
            errors.push(PolicyFault::LabelValue(value.clone()).at_field(field.key(key)));
        }
    }
    errors
}

/// The mistakes of a toleration for which the API server would refuse every pod.
pub(super) fn toleration(field: &Field, toleration: &Toleration) -> Vec<PolicyError> {
    let Toleration { key, operator, value, effect } = toleration;
    let mut errors = Vec::new();
    let exists = match operator.as_deref() {
        Some("Exists") => true,
        None | Some("Equal") => false,
        Some(other) => {
            errors.push(PolicyFault::Operator(other.to_owned()).at_field(field.key("operator")));
            return errors;
        }
    };
    match key.as_deref().filter(|key| !key.is_empty()) {
        None if !exists => errors.push(PolicyFault::NoKey.at_field(field.clone())),
        Some(key) if !is_label_key(key) => {
            errors.push(PolicyFault::LabelKey(key.to_owned()).at_field(field.key("key")));
        }
        None | Some(_) => {}
    }
    if let Some(value) = value.as_deref().filter(|value| !value.is_empty()) {
        if exists {
            errors.push(PolicyFault::ValueWithExists.at_field(field.key("value")));
        } else if !is_word(value) {
            errors.push(PolicyFault::LabelValue(value.to_owned()).at_field(field.key("value")));
        }
    }
    let unknown =
        |effect: &&String| !["NoSchedule", "PreferNoSchedule", "NoExecute"].contains(&effect.as_str());
    if let Some(effect) = effect.as_ref().filter(unknown) {
        errors.push(PolicyFault::Effect(effect.clone()).at_field(field.key("effect")));
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_beginnings_of_names_have_the_form_of_kubernetes() {
        for (text, is_a_name, is_a_pattern) in [
            ("team-a", true, true),
            ("a.b-1", true, true),
            ("team-*", false, true),
            ("*", false, true),
            ("team-", false, false),
            ("-team", false, false),
            ("Team", false, false),
            ("", false, false),
            ("*-a", false, false),
            ("a..b", false, false),
        ] {
            assert_eq!((is_name(text), is_pattern(text)), (is_a_name, is_a_pattern), "{text}");
        }
        assert!(is_name(&"a".repeat(253)) && !is_name(&"a".repeat(254)));
    }

    #[test]
    fn label_keys_may_have_a_prefix() {
        for (key, good) in
            [("team", true), ("example.com/team", true), ("a/b/c", false), ("/team", false), ("-x", false)]
        {
            assert_eq!(is_label_key(key), good, "{key}");
        }
    }

    #[test]
    fn a_label_value_begins_and_ends_with_a_letter_or_digit() {
        for (value, good) in
            [("a-_.1", true), ("a", true), ("-a", false), ("a-", false), ("a b", false), ("", false)]
        {
            assert_eq!(is_word(value), good, "{value}");
        }
        assert!(is_word(&"a".repeat(63)) && !is_word(&"a".repeat(64)));
    }
}
