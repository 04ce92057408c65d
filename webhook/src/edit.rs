//! Edits a JSON document, and returns the equivalent JSON patch (RFC 6902), so that callers state the result and not
//! the operations.

use json_patch::PatchOperation;
use serde_json::{Map, Value};

#[derive(Debug)]
pub(crate) struct Edit {
    document: Value,
}

impl Edit {
    pub fn new(document: &Value) -> Self {
        Self { document: document.clone() }
    }

    /// The patch that turns `before` into the edited document.
    pub fn finish(&self, before: &Value) -> Vec<PatchOperation> {
        json_patch::diff(before, &self.document).0
    }

    /// The value at `path`; `None` also for `null`, because Kubernetes writes that for absent values.
    pub fn get(&self, path: &[&str]) -> Option<&Value> {
        let value = path.iter().try_fold(&self.document, |at, key| match at {
            Value::Object(members) => members.get(*key),
            Value::Array(items) => items.get(key.parse::<usize>().ok()?),
            _ => None,
        })?;
        (!value.is_null()).then_some(value)
    }

    fn get_mut(&mut self, path: &[&str]) -> Option<&mut Value> {
        path.iter().try_fold(&mut self.document, |at, key| match at {
            Value::Object(members) => members.get_mut(*key),
            Value::Array(items) => items.get_mut(key.parse::<usize>().ok()?),
            _ => None,
        })
    }

    /// Sets the member at `path` to `value`, and creates missing objects on the way. Nothing is set inside a value that
    /// is neither an object nor absent.
    pub fn set(&mut self, path: &[&str], value: Value) {
        if self.get(path) == Some(&value) {
            return;
        }
        let there = (1..path.len()).take_while(|depth| self.get(&path[..*depth]).is_some()).count();
        let (there, missing) = path.split_at((there + 1).min(path.len()));
        let nested = missing
            .iter()
            .rev()
            .fold(value, |value, key| Value::Object(Map::from_iter([((*key).to_owned(), value)])));
        let Some((key, parent)) = there.split_last() else { return };
        if let Some(Value::Object(members)) = self.get_mut(parent) {
            members.insert((*key).to_owned(), nested);
        }
    }

    pub fn remove(&mut self, path: &[&str]) {
        let Some((key, parent)) = path.split_last().filter(|_| self.get(path).is_some()) else { return };
        match (self.get_mut(parent), key.parse()) {
            (Some(Value::Object(members)), _) => drop(members.remove(*key)),
            (Some(Value::Array(items)), Ok(index)) => drop(items.remove(index)),
            _ => {}
        }
    }

    /// Adds `value` to the end of the list at `path`, unless it is there.
    pub fn include(&mut self, path: &[&str], value: Value) {
        match self.get_mut(path) {
            Some(Value::Array(items)) if items.contains(&value) => {}
            Some(Value::Array(items)) => items.push(value),
            _ => self.set(path, Value::Array(vec![value])),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn edited(document: &Value, edits: impl FnOnce(&mut Edit)) -> (Value, Value) {
        let mut edit = Edit::new(document);
        edits(&mut edit);
        (edit.document.clone(), json!(edit.finish(document)))
    }

    #[test]
    fn missing_parents_are_created() {
        let (document, _) = edited(&json!({"a": null, "z": 1}), |edit| {
            edit.set(&["a", "b", "c"], json!(1));
            edit.set(&["a", "b", "d/e"], json!(2));
            edit.set(&["z"], json!(1));
        });
        assert_eq!(document, json!({"a": {"b": {"c": 1, "d/e": 2}}, "z": 1}));
    }

    /// The patched document equals the edited one.
    #[test]
    fn the_patch_turns_the_document_into_the_edited_one() {
        let before = json!({"list": [{"in": [1, 2, 3]}], "text": "t", "gone": {"a": 1, "b": null}});
        let (after, patch) = edited(&before, |edit| {
            edit.set(&["new", "a/b", "~"], json!(1));
            edit.set(&["list", "0", "x"], json!(2));
            edit.include(&["list", "0", "in"], json!(4));
            edit.remove(&["list", "0", "in", "1"]);
            edit.remove(&["gone", "a"]);
            edit.set(&["gone", "b"], json!(3));
            edit.include(&["gone", "c"], json!(4));
            edit.set(&["text", "below"], json!(5));
            edit.set(&["list", "7"], json!(6));
        });
        let mut patched = before;
        json_patch::patch(&mut patched, &serde_json::from_value::<json_patch::Patch>(patch).unwrap())
            .unwrap();
        assert_eq!(patched, after);
        assert_eq!((&after["text"], after["list"].as_array().unwrap().len()), (&json!("t"), 1));
    }

    #[test]
    fn an_equal_value_is_not_edited() {
        let before = json!({"list": [{"a": 1}], "x": {"y": "1"}});
        let (after, patch) = edited(&before, |edit| {
            edit.include(&["list"], json!({"a": 1}));
            edit.set(&["x", "y"], json!("1"));
            edit.remove(&["x", "z"]);
            edit.remove(&["q", "z"]);
        });
        assert_eq!((after, patch), (before, json!([])));
    }

    #[test]
    fn a_value_is_added_at_the_end_of_a_list() {
        let (after, _) = edited(&json!({"list": [{"in": [1]}]}), |edit| {
            edit.include(&["list", "0", "in"], json!(2));
            edit.include(&["new"], json!(3));
            edit.remove(&["list", "0", "in", "0"]);
        });
        assert_eq!(after, json!({"list": [{"in": [2]}], "new": [3]}));
    }
}
