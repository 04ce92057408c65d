//! A stand-in for the API server in tests: objects by path, optimistic locking, and faults on order.

use http::Method;
use kerf_runtime::stand_in::{self, Asked, refusal};
use serde_json::{Value, json};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};

/// How the next writing request fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The write is made, but the answer is an error.
    LoseReply,
    /// The write is not made, and the answer has this status code.
    Answer(u16),
    /// The write is not made, and no answer comes.
    NoReply,
}

#[derive(Debug, Default)]
struct State {
    objects: BTreeMap<String, Value>,
    version: u64,
    faults: VecDeque<Fault>,
    /// Method and path of each request, in order.
    log: Vec<String>,
    /// Runs once, before the next writing request.
    meddler: Option<fn(&ApiStandIn)>,
}

#[derive(Debug, Default)]
pub struct ApiStandIn(Mutex<State>);

impl ApiStandIn {
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    pub fn client(self: &Arc<Self>) -> kube::Client {
        let api = self.clone();
        stand_in::client(move |Asked { method, path, query, body }| match api.list(&path, &query) {
            Some(list) if method == "GET" => (200, list),
            _ => api.answer(&method, &path, body),
        })
    }

    /// Creates or replaces an object.
    pub fn put(&self, path: &str, mut object: Value) {
        let mut state = self.0.lock().unwrap();
        state.version += 1;
        object["metadata"]["resourceVersion"] = json!(state.version.to_string());
        state.objects.insert(path.to_owned(), object);
    }

    pub fn put_pod(&self, name: &str, node: Option<&str>) {
        let metadata = json!({"name": name, "namespace": "default", "uid": format!("uid-{name}")});
        self.put(&pod_path(name), json!({"metadata": metadata, "spec": {"nodeName": node}}));
    }

    pub fn get(&self, path: &str) -> Option<Value> {
        self.0.lock().unwrap().objects.get(path).cloned()
    }

    pub fn delete(&self, path: &str) {
        self.0.lock().unwrap().objects.remove(path);
    }

    /// Makes the next writing requests fail, one after the other.
    pub fn fail(&self, faults: impl IntoIterator<Item = Fault>) {
        self.0.lock().unwrap().faults.extend(faults);
    }

    /// Runs `meddler` just before the next writing request is handled.
    pub fn meddle(&self, meddler: fn(&ApiStandIn)) {
        self.0.lock().unwrap().meddler = Some(meddler);
    }

    /// The number of requests with this method so far.
    pub fn requests(&self, method: &Method) -> usize {
        self.0.lock().unwrap().log.iter().filter(|line| line.starts_with(method.as_str())).count()
    }

    /// The objects in a folder that match the query's label selector. `None` if the query has no selector.
    fn list(&self, folder: &str, query: &str) -> Option<Value> {
        let selector = query.split('&').find_map(|part| part.strip_prefix("labelSelector="))?;
        let selector = selector.replace("%3D", "=").replace("%2C", ",").replace("%2F", "/");
        let wanted: Vec<_> = selector.split(',').filter_map(|label| label.split_once('=')).collect();
        let state = self.0.lock().unwrap();
        let inside = state.objects.iter().filter(|(path, object)| {
            path.rsplit_once('/').is_some_and(|(parent, _)| parent == folder)
                && wanted.iter().all(|(key, value)| object["metadata"]["labels"][key] == **value)
        });
        let items: Vec<&Value> = inside.map(|(_, object)| object).collect();
        Some(
            json!({"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": items}),
        )
    }

    fn answer(&self, method: &str, path: &str, body: Value) -> (u16, Value) {
        self.0.lock().unwrap().log.push(format!("{method} {path}"));
        if method == "GET" {
            return self.get(path).map_or_else(not_found, |found| (200, found));
        }
        let meddler = self.0.lock().unwrap().meddler.take();
        if let Some(meddler) = meddler {
            meddler(self);
        }
        let fault = self.0.lock().unwrap().faults.pop_front();
        if let Some(Fault::Answer(code)) = fault {
            return refusal(code, "a fault on order");
        }
        if fault == Some(Fault::NoReply) {
            return (stand_in::NO_ANSWER, Value::Null);
        }
        let answer = match method {
            "POST" if path.ends_with("/binding") => self.bind(path, &body),
            "POST" => self.create(path, body),
            "PUT" => self.replace(path, body),
            "PATCH" => self.patch(path, &body),
            _ => refusal(405, "no such method here"),
        };
        if fault == Some(Fault::LoseReply) {
            return refusal(504, "the reply was lost");
        }
        answer
    }

    fn create(&self, path: &str, body: Value) -> (u16, Value) {
        let metadata = &body["metadata"];
        let name = metadata["name"].as_str().or(metadata["generateName"].as_str()).unwrap();
        let path = format!("{path}/{name}");
        if self.get(&path).is_some() {
            return refusal(409, "it exists");
        }
        self.put(&path, body);
        (201, self.get(&path).unwrap())
    }

    fn replace(&self, path: &str, body: Value) -> (u16, Value) {
        let Some(found) = self.get(path) else { return not_found() };
        if found["metadata"]["resourceVersion"] != body["metadata"]["resourceVersion"] {
            return refusal(409, "the object has been modified");
        }
        self.put(path, body);
        (200, self.get(path).unwrap())
    }

    fn patch(&self, path: &str, operations: &Value) -> (u16, Value) {
        let Some(mut found) = self.get(path) else { return not_found() };
        if operations.is_object() {
            json_patch::merge(&mut found, operations);
        }
        for operation in operations.as_array().into_iter().flatten() {
            let (path, value) = (operation["path"].as_str().unwrap(), &operation["value"]);
            match operation["op"].as_str().unwrap() {
                "test" if found.pointer(path) == Some(value) => {}
                "test" => return refusal(422, "the test failed"),
                "add" => {
                    let (parent, key) = path.rsplit_once('/').unwrap();
                    let Some(parent) = found.pointer_mut(parent).filter(|parent| parent.is_object()) else {
                        return refusal(422, "no such parent");
                    };
                    parent[key] = value.clone();
                }
                other => panic!("no operation {other} here"),
            }
        }
        self.put(path, found);
        (200, json!({"metadata": {}}))
    }

    fn bind(&self, path: &str, binding: &Value) -> (u16, Value) {
        let path = path.trim_end_matches("/binding");
        let Some(mut pod) = self.get(path) else { return not_found() };
        if pod["metadata"]["uid"] != binding["metadata"]["uid"] {
            return refusal(409, "another UID");
        }
        if !pod["spec"]["nodeName"].is_null() {
            return refusal(409, "the pod is already assigned to a node");
        }
        pod["spec"]["nodeName"] = binding["target"]["name"].clone();
        pod["metadata"]["annotations"] = binding["metadata"]["annotations"].clone();
        self.put(path, pod);
        (201, json!({"kind": "Status", "status": "Success"}))
    }
}

pub fn pod_path(name: &str) -> String {
    format!("/api/v1/namespaces/default/pods/{name}")
}

fn not_found() -> (u16, Value) {
    refusal(404, "not found")
}
