//! Pods in manifests: by themselves, in lists, and as templates.

use anyhow::Context as _;
use kerf_core::policy::Namespace;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;

/// The label that every Namespace has, with its name.
const NAME_LABEL: &str = "kubernetes.io/metadata.name";

/// A pod that a manifest has.
pub(super) struct Found {
    /// `Pod web/trainer`, `Deployment web/trainer`.
    pub what: String,
    /// Its namespace.
    pub namespace: String,
    /// The Pod's JSON, as it comes to the webhook.
    pub pod: Value,
}

/// The documents of a file, or of standard input for `-`.
pub(super) fn documents(path: &Path) -> anyhow::Result<Vec<Value>> {
    let text = if path == Path::new("-") {
        std::io::read_to_string(std::io::stdin())
    } else {
        std::fs::read_to_string(path)
    };
    let text = text.with_context(|| format!("failed to read {}", path.display()))?;
    let documents = serde_saphyr::from_multiple::<Value>(&text);
    documents.map_err(|error| anyhow::anyhow!("{}: {}", path.display(), error.without_snippet()))
}

/// The labels of the Namespaces in a manifest, by name.
#[derive(Debug, Default)]
pub(super) struct Namespaces(BTreeMap<String, BTreeMap<String, String>>);

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
pub(super) fn pods(document: &Value, namespace: &str) -> Vec<Found> {
    if let Some(items) = document.get("items").and_then(Value::as_array) {
        return items.iter().flat_map(|item| pods(item, namespace)).collect();
    }
    let kind = document.get("kind").and_then(Value::as_str).unwrap_or_default();
    let pod = match kind {
        "Pod" => Some(document),
        "CronJob" => document.pointer("/spec/jobTemplate/spec/template"),
        "Deployment" | "StatefulSet" | "DaemonSet" | "ReplicaSet" | "ReplicationController" | "Job" => {
            document.pointer("/spec/template")
        }
        _ => None,
    };
    let text = |pointer: &str| document.pointer(pointer).and_then(Value::as_str);
    let namespace = text("/metadata/namespace").unwrap_or(namespace).to_owned();
    let name = text("/metadata/name").or(text("/metadata/generateName")).unwrap_or("without a name");
    let what = format!("{kind} {namespace}/{name}");
    pod.map(|pod| Found { what, namespace, pod: as_it_comes(pod) }).into_iter().collect()
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
