//! A stand-in for the API server in tests: objects by path, optimistic locking, and faults on order.

use http::{Method, Request, Response, StatusCode};
use http_body_util::BodyExt;
use kerf_core::contract::{GpuNodeSpec, GpuNodeStatus};
use kerf_core::names::NodeName;
use kerf_runtime::gpu_node::GpuNode;
use kube::client::Body;
use serde_json::{Value, json};
use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::sync::{Arc, Mutex};

/// What goes wrong with a writing request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// It is done, and the answer is an error.
    LoseReply,
    /// It is not done, and the answer is this.
    Answer(u16),
}

#[derive(Debug, Default)]
struct State {
    objects: BTreeMap<String, Value>,
    version: u64,
    faults: VecDeque<Fault>,
    /// Method and path of each request.
    log: Vec<String>,
    /// Runs before the next writing request.
    meddler: Option<fn(&ApiStandIn)>,
}

/// The stand-in.
#[derive(Debug, Default)]
pub struct ApiStandIn(Mutex<State>);

impl ApiStandIn {
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    pub fn client(self: &Arc<Self>) -> kube::Client {
        let api = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let api = api.clone();
            async move {
                let (head, body) = request.into_parts();
                let body = body.collect().await.unwrap().to_bytes();
                let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
                let (path, query) = (head.uri.path(), head.uri.query().unwrap_or_default());
                let (code, answer) = match (&head.method, api.list(path, query)) {
                    (&Method::GET, Some(list)) => (StatusCode::OK, list),
                    (method, _) => api.answer(method, path, body),
                };
                let response =
                    Response::builder().status(code).body(Body::from(answer.to_string().into_bytes()));
                Ok::<_, Infallible>(response.unwrap())
            }
        });
        kube::Client::new(service, "default")
    }

    /// Makes an object, or replaces it.
    pub fn put(&self, path: &str, mut object: Value) {
        let mut state = self.0.lock().unwrap();
        state.version += 1;
        object["metadata"]["resourceVersion"] = json!(state.version.to_string());
        state.objects.insert(path.to_owned(), object);
    }

    pub fn put_node(&self, name: &str, spec: &GpuNodeSpec, status: &GpuNodeStatus) {
        let mut node = GpuNode::new(&NodeName::new(name));
        node.metadata.uid = Some(format!("object-{name}"));
        node.spec = Some(json!(spec));
        node.status = Some(json!(status));
        self.put(&node_path(name), json!(node));
    }

    pub fn put_pod(&self, name: &str, node: Option<&str>) {
        let metadata = json!({"name": name, "namespace": "default", "uid": format!("uid-{name}")});
        self.put(&pod_path(name), json!({"metadata": metadata, "spec": {"nodeName": node}}));
    }

    pub fn get(&self, path: &str) -> Option<Value> {
        self.0.lock().unwrap().objects.get(path).cloned()
    }

    pub fn node(&self, name: &str) -> GpuNode {
        serde_json::from_value(self.get(&node_path(name)).unwrap()).unwrap()
    }

    pub fn spec(&self, name: &str) -> GpuNodeSpec {
        self.node(name).read_spec().unwrap()
    }

    pub fn delete(&self, path: &str) {
        self.0.lock().unwrap().objects.remove(path);
    }

    /// Lets the next writing requests go wrong, one after the other.
    pub fn fail(&self, faults: impl IntoIterator<Item = Fault>) {
        self.0.lock().unwrap().faults.extend(faults);
    }

    /// Does something just before the next writing request is looked at.
    pub fn meddle(&self, meddler: fn(&ApiStandIn)) {
        self.0.lock().unwrap().meddler = Some(meddler);
    }

    /// How many requests of this method there were.
    pub fn requests(&self, method: &Method) -> usize {
        self.0.lock().unwrap().log.iter().filter(|line| line.starts_with(method.as_str())).count()
    }

    /// What lies in a folder, by the labels that the query names; None if it names none.
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

    fn answer(&self, method: &Method, path: &str, body: Value) -> (StatusCode, Value) {
        self.0.lock().unwrap().log.push(format!("{method} {path}"));
        if *method == Method::GET {
            return self.get(path).map_or_else(not_found, |found| (StatusCode::OK, found));
        }
        let meddler = self.0.lock().unwrap().meddler.take();
        if let Some(meddler) = meddler {
            meddler(self);
        }
        let fault = self.0.lock().unwrap().faults.pop_front();
        if let Some(Fault::Answer(code)) = fault {
            return refuse(StatusCode::from_u16(code).unwrap(), "a fault on order");
        }
        let answer = match *method {
            Method::POST if path.ends_with("/binding") => self.bind(path, &body),
            Method::POST => self.create(path, body),
            Method::PUT => self.replace(path, body),
            Method::PATCH => self.patch(path, &body),
            _ => refuse(StatusCode::METHOD_NOT_ALLOWED, "no such method here"),
        };
        if fault == Some(Fault::LoseReply) {
            return refuse(StatusCode::GATEWAY_TIMEOUT, "the reply was lost");
        }
        answer
    }

    fn create(&self, path: &str, body: Value) -> (StatusCode, Value) {
        let metadata = &body["metadata"];
        let name = metadata["name"].as_str().or(metadata["generateName"].as_str()).unwrap();
        let path = format!("{path}/{name}");
        if self.get(&path).is_some() {
            return refuse(StatusCode::CONFLICT, "it exists");
        }
        self.put(&path, body);
        (StatusCode::CREATED, self.get(&path).unwrap())
    }

    fn replace(&self, path: &str, body: Value) -> (StatusCode, Value) {
        let Some(found) = self.get(path) else { return not_found() };
        if found["metadata"]["resourceVersion"] != body["metadata"]["resourceVersion"] {
            return refuse(StatusCode::CONFLICT, "the object has been modified");
        }
        self.put(path, body);
        (StatusCode::OK, self.get(path).unwrap())
    }

    fn patch(&self, path: &str, operations: &Value) -> (StatusCode, Value) {
        let Some(mut found) = self.get(path) else { return not_found() };
        if operations.is_object() {
            json_patch::merge(&mut found, operations);
        }
        for operation in operations.as_array().into_iter().flatten() {
            let (path, value) = (operation["path"].as_str().unwrap(), &operation["value"]);
            match operation["op"].as_str().unwrap() {
                "test" if found.pointer(path) == Some(value) => {}
                "test" => return refuse(StatusCode::UNPROCESSABLE_ENTITY, "the test failed"),
                "add" => {
                    let (parent, key) = path.rsplit_once('/').unwrap();
                    let Some(parent) = found.pointer_mut(parent).filter(|parent| parent.is_object()) else {
                        return refuse(StatusCode::UNPROCESSABLE_ENTITY, "no such parent");
                    };
                    parent[key] = value.clone();
                }
                other => panic!("no operation {other} here"),
            }
        }
        self.put(path, found);
        (StatusCode::OK, json!({"metadata": {}}))
    }

    fn bind(&self, path: &str, binding: &Value) -> (StatusCode, Value) {
        let path = path.trim_end_matches("/binding");
        let Some(mut pod) = self.get(path) else { return not_found() };
        if pod["metadata"]["uid"] != binding["metadata"]["uid"] {
            return refuse(StatusCode::CONFLICT, "another UID");
        }
        if !pod["spec"]["nodeName"].is_null() {
            return refuse(StatusCode::CONFLICT, "the pod is already assigned to a node");
        }
        pod["spec"]["nodeName"] = binding["target"]["name"].clone();
        pod["metadata"]["annotations"] = binding["metadata"]["annotations"].clone();
        self.put(path, pod);
        (StatusCode::CREATED, json!({"kind": "Status", "status": "Success"}))
    }
}

pub fn node_path(name: &str) -> String {
    format!("/apis/kerf.dev/v1alpha1/gpunodes/{name}")
}

pub fn pod_path(name: &str) -> String {
    format!("/api/v1/namespaces/default/pods/{name}")
}

fn not_found() -> (StatusCode, Value) {
    refuse(StatusCode::NOT_FOUND, "not found")
}

fn refuse(code: StatusCode, message: &str) -> (StatusCode, Value) {
    // Clients go by the reason as well as by the code.
    let reason = match code.as_u16() {
        404 => "NotFound",
        409 => "Conflict",
        422 => "Invalid",
        _ => "Unknown",
    };
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message,
        "reason": reason, "code": code.as_u16(),
    });
    (code, status)
}
