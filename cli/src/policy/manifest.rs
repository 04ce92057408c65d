//! Pods in manifests: by themselves, in lists, and as templates of any kind of object.

use super::template::{Template, templates};
use kerf_core::policy::Namespace;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt;

/// The label that every Namespace has, with its name.
const NAME_LABEL: &str = "kubernetes.io/metadata.name";

/// The kinds of Kubernetes' own that make pods of one template, which needs no name.
const WORKLOADS: [&str; 7] =
    ["Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "ReplicationController", "Job", "CronJob"];

/// What is looked for in a manifest.
const LOOKED_FOR: &str = "looked for objects of kind Pod; for pod templates, which are mappings with a list of containers as \
     spec.containers, anywhere in an object; and for Argo's templates with container, script or containerSet";

/// A pod that a manifest has.
pub(crate) struct Found {
    /// The object: `Pod web/trainer`, `Deployment web/trainer`.
    pub object: String,
    /// Where its template is in the object, if that needs a name: `spec.pytorchReplicaSpecs.Worker.template`.
    pub path: Option<String>,
    /// Its namespace.
    pub namespace: String,
    /// The Pod's JSON, as it comes to the webhook.
    pub pod: Value,
    /// What is not known of it before its controller makes it.
    pub notes: Vec<String>,
}

/// `PyTorchJob web/trainer: spec.pytorchReplicaSpecs.Worker.template`.
impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.path {
            Some(path) => write!(f, "{}: {path}", self.object),
            None => f.write_str(&self.object),
        }
    }
}

/// The labels of the Namespaces in a manifest, by name.
#[derive(Debug, Default)]
pub(crate) struct Namespaces(BTreeMap<String, BTreeMap<String, String>>);

impl Namespaces {
    /// Those of these documents.
    pub fn of(documents: &[Value]) -> Self {
        let mut all = Self::default();
        for document in documents {
            all.read(document);
        }
        all
    }

    /// A namespace by name, with its labels where the manifest has it.
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
        labels.insert(NAME_LABEL.to_owned(), name.to_owned());
        self.0.insert(name.to_owned(), labels);
    }
}

/// The pods of a document; `namespace` is that of objects that name none. What has no pod has none.
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

/// An object by its kind, namespace and name.
fn named(document: &Value, namespace: &str) -> String {
    let text = |pointer: &str| document.pointer(pointer).and_then(Value::as_str);
    let kind = text("/kind").unwrap_or("an object without a kind");
    let namespace = text("/metadata/namespace").unwrap_or(namespace);
    let name = text("/metadata/name").or(text("/metadata/generateName")).unwrap_or("without a name");
    format!("{kind} {namespace}/{name}")
}

/// Why there is no pod in these documents.
pub(crate) fn no_pod(documents: &[Value], namespace: &str) -> String {
    let objects: Vec<String> = documents.iter().map(|document| named(document, namespace)).collect();
    let objects = if objects.is_empty() { "no object".to_owned() } else { objects.join(", ") };
    format!("there is no pod in it, and nothing that makes pods, but {objects}; {LOOKED_FOR}")
}

/// The pod as it comes to the webhook: the API server names the service account of one that names none.
fn as_it_comes(pod: &Value) -> Value {
    let mut pod = pod.clone();
    if let Some(spec) = pod.get_mut("spec").and_then(Value::as_object_mut) {
        let named = |key| spec.get(key).filter(|name| name.as_str().is_some_and(|name| !name.is_empty()));
        let account = named("serviceAccountName").or_else(|| named("serviceAccount")).cloned();
        spec.insert("serviceAccountName".to_owned(), account.unwrap_or_else(|| "default".into()));
    }
    pod
}
