//! Finds the pods in manifests: Pods, Lists, and pod templates in objects of any kind.

use super::template::{Template, templates};
use kerf_core::request::Namespace;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt;

/// The label with its name that every Namespace has.
const NAME_LABEL: &str = "kubernetes.io/metadata.name";

/// Kubernetes' own kinds with a single pod template, whose path needs no mention.
const WORKLOADS: [&str; 7] =
    ["Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "ReplicationController", "Job", "CronJob"];

/// The explanation for a manifest in which no pod was found.
const LOOKED_FOR: &str = "looked for objects of kind Pod; for pod templates, which are mappings with a list of containers as \
     spec.containers, anywhere in an object; and for Argo's templates with container, script or containerSet";

/// A pod that was found in a manifest.
pub(crate) struct Found {
    /// The object: `Pod web/trainer`, `Deployment web/trainer`.
    pub object: String,
    /// The path of the template in the object, if it needs a mention: `spec.pytorchReplicaSpecs.Worker.template`.
    pub path: Option<String>,
    pub namespace: String,
    /// The Pod in JSON, as the webhook receives it.
    pub pod: Value,
    /// What is not known before the controller creates the pod.
    pub notes: Vec<String>,
}

/// The form is `PyTorchJob web/trainer: spec.pytorchReplicaSpecs.Worker.template`.
impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.path {
            Some(path) => write!(f, "{}: {path}", self.object),
            None => f.write_str(&self.object),
        }
    }
}

/// The labels of the Namespaces in a manifest, by the Namespaces' names.
#[derive(Debug, Default)]
pub(crate) struct Namespaces(BTreeMap<String, BTreeMap<String, String>>);

impl Namespaces {
    /// Collects the Namespaces of all documents.
    pub fn of(documents: &[Value]) -> Self {
        let mut all = Self::default();
        for document in documents {
            all.read(document);
        }
        all
    }

    /// The namespace of this name, with its labels if the manifest has it.
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
        // The API server adds this label, so a policy may select by it.
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

/// The name of an object in messages: kind, namespace and name.
fn named(document: &Value, namespace: &str) -> String {
    let text = |pointer: &str| document.pointer(pointer).and_then(Value::as_str);
    let kind = text("/kind").unwrap_or("an object without a kind");
    let namespace = text("/metadata/namespace").unwrap_or(namespace);
    let name = text("/metadata/name").or(text("/metadata/generateName")).unwrap_or("without a name");
    format!("{kind} {namespace}/{name}")
}

/// Why these documents have no pod.
pub(crate) fn no_pod(documents: &[Value], namespace: &str) -> String {
    let objects: Vec<String> = documents.iter().map(|document| named(document, namespace)).collect();
    let objects = if objects.is_empty() { "no object".to_owned() } else { objects.join(", ") };
    format!("there is no pod in it, and nothing that makes pods, but {objects}; {LOOKED_FOR}")
}

/// The pod as the webhook receives it: the API server has set the default service account.
fn as_it_comes(pod: &Value) -> Value {
    let mut pod = pod.clone();
    if let Some(spec) = pod.get_mut("spec").and_then(Value::as_object_mut) {
        let named = |key| spec.get(key).filter(|name| name.as_str().is_some_and(|name| !name.is_empty()));
        let account = named("serviceAccountName").or_else(|| named("serviceAccount")).cloned();
        spec.insert("serviceAccountName".to_owned(), account.unwrap_or_else(|| "default".into()));
    }
    pod
}
