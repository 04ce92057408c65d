//! The objects that the extender writes: its Lease, Secret, `ConfigMaps` and Events.

use std::collections::BTreeMap;

use axum::http::Method;
use serde_json::{Value, json};

/// Objects by path.
#[derive(Debug, Default)]
pub struct Stored {
    objects: BTreeMap<String, Value>,
    version: u64,
}

impl Stored {
    pub fn get(&self, path: &str) -> Option<Value> {
        self.objects.get(path).cloned()
    }

    /// The list of the objects in a folder.
    pub fn list(&self, folder: &str) -> Value {
        let inside = |path: &str| path.rsplit_once('/').is_some_and(|(parent, _)| parent == folder);
        let items: Vec<&Value> =
            self.objects.iter().filter(|(path, _)| inside(path)).map(|(_, object)| object).collect();
        json!({"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": items})
    }

    /// Answers a request with a code and a document.
    pub fn answer(&mut self, method: &Method, path: &str, body: &[u8]) -> (u16, Value) {
        let body: Value = serde_json::from_slice(body).unwrap_or_default();
        let found = self.get(path);
        match (method.as_str(), found) {
            ("POST", _) => self.create(path, body),
            // An applied object is made where it is absent.
            ("PATCH", None) if body["metadata"]["name"].is_string() => (201, self.put(path.to_owned(), body)),
            (_, None) => refusal(404, "not found"),
            ("GET", Some(found)) => (200, found),
            ("PUT", Some(found)) if is_older(&body, &found) => refusal(409, "the object has been modified"),
            ("PUT", Some(_)) => (200, self.put(path.to_owned(), body)),
            ("PATCH", Some(mut found)) if body.is_object() => {
                json_patch::merge(&mut found, &body);
                (200, self.put(path.to_owned(), found))
            }
            _ => refusal(405, "no such method here"),
        }
    }

    fn create(&mut self, folder: &str, body: Value) -> (u16, Value) {
        let name = body["metadata"]["name"].as_str().or(body["metadata"]["generateName"].as_str());
        let path = format!("{folder}/{}", name.unwrap_or_default());
        if self.objects.contains_key(&path) {
            return refusal(409, "it exists");
        }
        (201, self.put(path, body))
    }

    /// Creates or replaces an object, and returns it as it is now.
    fn put(&mut self, path: String, mut object: Value) -> Value {
        self.version += 1;
        let metadata = &mut object["metadata"];
        metadata["resourceVersion"] = json!(self.version.to_string());
        if metadata["uid"].is_null() {
            metadata["uid"] = json!(format!("6b1d8a52-0000-4000-8000-{:012x}", self.version));
        }
        self.objects.insert(path, object.clone());
        object
    }
}

fn is_older(body: &Value, found: &Value) -> bool {
    let version = |object: &Value| object["metadata"]["resourceVersion"].clone();
    !version(body).is_null() && version(body) != version(found)
}

/// A failed response with this code. It also has the reason, because clients read both.
pub fn refusal(code: u16, message: &str) -> (u16, Value) {
    let reason = match code {
        404 => "NotFound",
        409 => "Conflict",
        _ => "Unknown",
    };
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message,
        "reason": reason, "code": code,
    });
    (code, status)
}
