//! A stand-in for the API server in tests: objects by path, listed by folder. A started Job completes if its node
//! exists, and a node that is no longer managed loses its agent's pod.

use super::job::{AGENT, NAME_LABEL};
use kerf_core::keys;
use kerf_runtime::stand_in::{self, Asked, refusal};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

#[derive(Debug, Default)]
struct State {
    objects: BTreeMap<String, Value>,
    log: Vec<String>,
    left: Option<usize>,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct ApiStandIn(Arc<Mutex<State>>);

impl ApiStandIn {
    pub(crate) fn client(&self) -> kube::Client {
        let api = self.clone();
        stand_in::client(move |Asked { method, path, body, .. }| api.answer(&method, &path, body))
    }

    pub(crate) fn put(&self, path: &str, object: Value) {
        self.state().objects.insert(path.to_owned(), object);
    }

    pub(crate) fn remove(&self, path: &str) {
        self.state().objects.remove(path);
    }

    pub(crate) fn inside(&self, folder: &str) -> Vec<Value> {
        let state = self.state();
        let inside = state
            .objects
            .iter()
            .filter(|(path, _)| path.rsplit_once('/').is_some_and(|(parent, _)| parent == folder));
        inside.map(|(_, object)| object.clone()).collect()
    }

    /// Each requested change: the method, the last word of the path, and the version in its precondition.
    pub(crate) fn changes(&self) -> Vec<String> {
        self.state().log.clone()
    }

    pub(crate) fn end_after(&self, changes: Option<usize>) {
        self.state().left = changes;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    fn answer(&self, method: &str, path: &str, body: Value) -> (u16, Value) {
        if method == "GET" {
            return self.read(path);
        }
        match &mut self.state().left {
            Some(0) => return refusal(500, "InternalError"),
            Some(left) => *left -= 1,
            None => {}
        }
        let last = path.rsplit('/').next().unwrap_or_default();
        let as_of = body["preconditions"]["resourceVersion"].as_str();
        let as_of = as_of.map(|version| format!(" as of {version}")).unwrap_or_default();
        self.state().log.push(format!("{method} {last}{as_of}"));
        match method {
            "POST" => self.create(path, body),
            "PATCH" => self.patch(path, &body),
            _ => self.state().objects.remove(path).map_or_else(not_found, |found| (200, found)),
        }
    }

    fn read(&self, path: &str) -> (u16, Value) {
        let is_list = path.rsplit('/').next().is_some_and(|last| last.ends_with('s'));
        if is_list {
            return (200, json!({"metadata": {}, "items": self.inside(path)}));
        }
        self.state().objects.get(path).cloned().map_or_else(not_found, |found| (200, found))
    }

    fn create(&self, folder: &str, body: Value) -> (u16, Value) {
        let path = format!("{folder}/{}", body["metadata"]["name"].as_str().unwrap());
        if self.state().objects.contains_key(&path) {
            return refusal(409, "AlreadyExists");
        }
        self.put(&path, body.clone());
        (201, body)
    }

    fn patch(&self, path: &str, change: &Value) -> (u16, Value) {
        let mut state = self.state();
        let Some(mut found) = state.objects.get(path).cloned() else { return not_found() };
        json_patch::merge(&mut found, change);
        let node = found["spec"]["template"]["spec"]["nodeName"].as_str().unwrap_or_default();
        if state.objects.contains_key(&format!("/api/v1/nodes/{node}")) {
            found["status"] = json!({"conditions": [{"type": "Complete", "status": "True"}]});
        }
        if found["metadata"]["labels"][keys::MANAGED] == "false" {
            let is_agent = |object: &Value| {
                object["metadata"]["labels"][NAME_LABEL] == AGENT
                    && object["spec"]["nodeName"] == found["metadata"]["name"]
            };
            state.objects.retain(|_, object| !is_agent(object));
        }
        state.objects.insert(path.to_owned(), found.clone());
        (200, found)
    }
}

fn not_found() -> (u16, Value) {
    refusal(404, "NotFound")
}
