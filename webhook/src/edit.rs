//! Edits of a JSON document that are recorded as a JSON patch (RFC 6902). An edit that changes nothing records nothing,
//! so what has been edited once is not edited again.

use json_patch::{AddOperation, PatchOperation, RemoveOperation};
use jsonptr::PointerBuf;
use serde_json::{Map, Value};

/// A document as it is after the edits, and the edits.
#[derive(Debug)]
pub(crate) struct Edit {
    document: Value,
    operations: Vec<PatchOperation>,
}

impl Edit {
    /// Begins with `document`.
    pub fn new(document: &Value) -> Self {
        Self { document: document.clone(), operations: Vec::new() }
    }

    /// The edits.
    pub fn finish(self) -> Vec<PatchOperation> {
        self.operations
    }

    /// What is at `path` now; `None` for `null` too, which Kubernetes writes for what is absent.
    pub fn get(&self, path: &[&str]) -> Option<&Value> {
        let value = path.iter().try_fold(&self.document, |at, key| match at {
            Value::Object(members) => members.get(*key),
            Value::Array(items) => items.get(key.parse::<usize>().ok()?),
            _ => None,
        })?;
        (!value.is_null()).then_some(value)
    }

    /// Makes `path` hold `value`, with the objects on the way to it.
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
        self.record(PatchOperation::Add(AddOperation { path: pointer(there), value: nested }));
    }

    /// Makes nothing be at `path`.
    pub fn remove(&mut self, path: &[&str]) {
        if self.get(path).is_some() {
            self.record(PatchOperation::Remove(RemoveOperation { path: pointer(path) }));
        }
    }

    /// Makes the list at `path` have `value`, at its end if it is not there yet.
    pub fn include(&mut self, path: &[&str], value: Value) {
        match self.get(path).and_then(Value::as_array) {
            None => self.set(path, Value::Array(vec![value])),
            Some(items) if items.contains(&value) => {}
            Some(_) => {
                let path = pointer(&[path, &["-"]].concat());
                self.record(PatchOperation::Add(AddOperation { path, value }));
            }
        }
    }

    fn record(&mut self, operation: PatchOperation) {
        // Every operation is on a path that was looked up just now; one that failed would be left out, not half done.
        match json_patch::patch(&mut self.document, std::slice::from_ref(&operation)) {
            Ok(()) => self.operations.push(operation),
            Err(error) => tracing::error!(%error, %operation, "edit failed"),
        }
    }
}

fn pointer(path: &[&str]) -> PointerBuf {
    PointerBuf::from_tokens(path.iter().copied())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn edited(document: &Value, edits: impl FnOnce(&mut Edit)) -> (Value, Value) {
        let mut edit = Edit::new(document);
        edits(&mut edit);
        (edit.document.clone(), json!(edit.finish()))
    }

    #[test]
    fn parents_are_made_once() {
        let (document, patch) = edited(&json!({"a": null, "z": 1}), |edit| {
            edit.set(&["a", "b", "c"], json!(1));
            edit.set(&["a", "b", "d/e"], json!(2));
            edit.set(&["z"], json!(1));
        });
        assert_eq!(document, json!({"a": {"b": {"c": 1, "d/e": 2}}, "z": 1}));
        assert_eq!(
            patch,
            json!([
                {"op": "add", "path": "/a", "value": {"b": {"c": 1}}},
                {"op": "add", "path": "/a/b/d~1e", "value": 2},
            ])
        );
    }

    #[test]
    fn what_is_there_is_not_edited() {
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
    fn lists_grow_at_their_end() {
        let (after, patch) = edited(&json!({"list": [{"in": [1]}]}), |edit| {
            edit.include(&["list", "0", "in"], json!(2));
            edit.include(&["new"], json!(3));
            edit.remove(&["list", "0", "in", "0"]);
        });
        assert_eq!(after, json!({"list": [{"in": [2]}], "new": [3]}));
        assert_eq!(patch.as_array().unwrap().len(), 3);
    }
}
