//! Finds the pods in manifests: Pods, Lists, and pod templates in objects of any kind.

use super::template::{Template, templates};
use kerf_core::request::Namespace;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt;

const NAME_LABEL: &str = "kubernetes.io/metadata.name";

const WORKLOADS: [&str; 7] =
    ["Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "ReplicationController", "Job", "CronJob"];

const LOOKED_FOR: &str = "looked for objects of kind Pod; for pod templates, which are mappings with a list of containers as \
     spec.containers, anywhere in an object; and for Argo's templates with container, script or containerSet";

pub(crate) struct Found {
    pub object: String,
    /// The path of the template in the object, if it needs a mention: `spec.pytorchReplicaSpecs.Worker.template`.
    pub path: Option<String>,
    pub namespace: String,
    pub pod: Value,
    pub notes: Vec<String>,
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.path {
            Some(path) => write!(f, "{}: {path}", self.object),
            None => f.write_str(&self.object),
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Namespaces(BTreeMap<String, BTreeMap<String, String>>);

impl Namespaces {
    pub fn from_documents(documents: &[Value]) -> Self {
        let mut all = Self::default();
        for document in documents {
            all.read(document);
        }
        all
    }

    pub fn get<'n>(&'n self, name: &'n str) -> Namespace<'n> {
        Namespace { name, labels: self.0.get(name) }
    }

    fn read(&mut self, document: &Value) {
        if let Some(items) = document.get("items").and_then(Value::as_array) {
            return items.iter().for_each(|item| self.read(item));
        }
        let name = document.pointer("/metadata/name").and_then(Value::as_str);
        let (Some("Namespace"), Some(name)) = (document.get("kind").and_then(Value::as_str), name) else {
            return;
        };
        let written = document.pointer("/metadata/labels").and_then(Value::as_object).into_iter().flatten();
        let mut labels: BTreeMap<String, String> =
            written.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))).collect();
        // This label is added here, because the API server adds it and a policy may select by it.
        labels.insert(NAME_LABEL.to_owned(), name.to_owned());
        self.0.insert(name.to_owned(), labels);
    }
}

/// The pods of a document; empty if it has none. `namespace` is for objects that name none.
pub(crate) fn pods(document: &Value, namespace: &str) -> Vec<Found> {
    if let Some(items) = document.get("items").and_then(Value::as_array) {
        return items.iter().flat_map(|item| pods(item, namespace)).collect();
    }
    let object = named(document, namespace);
    let text = |pointer: &str| document.pointer(pointer).and_then(Value::as_str);
    let (kind, namespace) =
        (text("/kind").unwrap_or_default(), text("/metadata/namespace").unwrap_or(namespace));
    let found = match kind {
        "Pod" => vec![Template::new(String::new(), document.clone())],
        _ => templates(document),
    };
    let needs_path = |template: &Template| !template.path.is_empty() && !WORKLOADS.contains(&kind);
    let found = found.into_iter().map(|template| Found {
        object: object.clone(),
        path: needs_path(&template).then(|| template.path.clone()),
        namespace: namespace.to_owned(),
        pod: as_it_comes(&template.pod),
        notes: template.notes,
    });
    found.collect()
}

fn named(document: &Value, namespace: &str) -> String {
    let text = |pointer: &str| document.pointer(pointer).and_then(Value::as_str);
    let kind = text("/kind").unwrap_or("an object without a kind");
    let namespace = text("/metadata/namespace").unwrap_or(namespace);
    let name = text("/metadata/name").or(text("/metadata/generateName")).unwrap_or("without a name");
    format!("{kind} {namespace}/{name}")
}

pub(crate) fn no_pod(documents: &[Value], namespace: &str) -> String {
    let objects: Vec<String> = documents.iter().map(|document| named(document, namespace)).collect();
    let objects = if objects.is_empty() { "no object".to_owned() } else { objects.join(", ") };
    format!("there is no pod in it, and nothing that makes pods, but {objects}; {LOOKED_FOR}")
}

/// The pod as the webhook receives it. The default service account is set here, because the API server sets it before.
fn as_it_comes(pod: &Value) -> Value {
    let mut pod = pod.clone();
    if let Some(spec) = pod.get_mut("spec").and_then(Value::as_object_mut) {
        let named = |key| spec.get(key).filter(|name| name.as_str().is_some_and(|name| !name.is_empty()));
        let account = named("serviceAccountName").or_else(|| named("serviceAccount")).cloned();
        spec.insert("serviceAccountName".to_owned(), account.unwrap_or_else(|| "default".into()));
    }
    pod
}
