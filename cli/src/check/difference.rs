//! Compares two JSON documents field by field, so that a finding can name each field.

use serde_json::Value;
use std::fmt;

#[derive(Debug, Clone, PartialEq)]
pub struct Difference {
    /// The field's path, like `extenders[0].tlsConfig.caFile`. Items with a name are addressed by it:
    /// `managedResources[nvidia.com/gpu].name`.
    pub path: String,
    pub wanted: Option<Value>,
    pub found: Option<Value>,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = &self.path;
        match (&self.wanted, &self.found) {
            (Some(wanted), Some(found)) => {
                write!(f, "{path} is {} and should be {}", short(found), short(wanted))
            }
            (Some(wanted), None) => write!(f, "{path} is missing and should be {}", short(wanted)),
            (None, Some(found)) => write!(f, "{path} is {} and should not be there", short(found)),
            (None, None) => f.write_str(path),
        }
    }
}

fn short(value: &Value) -> String {
    const LENGTH_LIMIT: usize = 80;
    let text = value.to_string();
    match text.char_indices().nth(LENGTH_LIMIT) {
        None => text,
        Some((end, _)) => format!("{}…", &text[..end]),
    }
}

pub fn differences(wanted: &Value, found: &Value) -> Vec<Difference> {
    let mut all = Vec::new();
    compare(String::new(), Some(wanted), Some(found), &mut all);
    all
}

fn compare(path: String, wanted: Option<&Value>, found: Option<&Value>, all: &mut Vec<Difference>) {
    match (wanted, found) {
        (Some(wanted), Some(found)) if wanted == found => {}
        (Some(Value::Object(wanted)), Some(Value::Object(found))) => {
            let keys = wanted.keys().chain(found.keys().filter(|key| !wanted.contains_key(*key)));
            for key in keys {
                let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                compare(path, wanted.get(key), found.get(key), all);
            }
        }
        (Some(Value::Array(wanted)), Some(Value::Array(found))) => {
            if let (Some(wanted), Some(found)) = (by_name(wanted), by_name(found)) {
                let names = wanted.iter().map(|(name, _)| *name);
                let more = found.iter().map(|(name, _)| *name).filter(|name| get(&wanted, name).is_none());
                for name in names.chain(more) {
                    compare(format!("{path}[{name}]"), get(&wanted, name), get(&found, name), all);
                }
            } else {
                for index in 0..wanted.len().max(found.len()) {
                    compare(format!("{path}[{index}]"), wanted.get(index), found.get(index), all);
                }
            }
        }
        (wanted, found) => all.push(Difference { path, wanted: wanted.cloned(), found: found.cloned() }),
    }
}

type Named<'v> = Vec<(&'v str, &'v Value)>;

/// The items by their names; `None` unless every item has a name. Named items are compared by name, because their order
/// has no meaning.
fn by_name(items: &[Value]) -> Option<Named<'_>> {
    items.iter().map(|item| Some((item.get("name")?.as_str()?, item))).collect()
}

fn get<'v>(items: &Named<'v>, name: &str) -> Option<&'v Value> {
    items.iter().find(|(known, _)| *known == name).map(|(_, item)| *item)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn lines(wanted: &Value, found: &Value) -> Vec<String> {
        differences(wanted, found).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn each_field_that_differs_is_named_with_both_values() {
        let wanted = json!({"a": {"b": 1, "c": [1, 2]}, "d": "x"});
        let found = json!({"a": {"b": 2, "c": [1]}, "e": null});
        assert_eq!(
            lines(&wanted, &found),
            [
                "a.b is 2 and should be 1",
                "a.c[1] is missing and should be 2",
                "d is missing and should be \"x\"",
                "e is null and should not be there",
            ]
        );
        assert!(lines(&wanted, &wanted).is_empty());
    }

    #[test]
    fn items_with_names_are_compared_by_them_in_any_order() {
        let wanted = json!([{"name": "a", "n": 1}, {"name": "b", "n": 2}]);
        assert!(lines(&wanted, &json!([{"name": "b", "n": 2}, {"name": "a", "n": 1}])).is_empty());
        assert_eq!(
            lines(&wanted, &json!([{"name": "b", "n": 3}])),
            [r#"[a] is missing and should be {"n":1,"name":"a"}"#, "[b].n is 3 and should be 2"]
        );
    }

    #[test]
    fn a_long_value_is_cut() {
        let line = differences(&json!("x".repeat(200)), &json!("y"))[0].to_string();
        assert!(line.ends_with('…') && line.chars().count() < 120, "{line}");
    }
}
