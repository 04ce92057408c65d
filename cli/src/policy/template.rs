//! Finds pod templates in objects of any kind by their shape, because a controller of any kind may create pods. Pure.

use super::argo;
use serde_json::Value;

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Template {
    /// The path in the object: `spec.pytorchReplicaSpecs.Worker.template`. Empty if the object itself is a template.
    pub path: String,
    pub pod: Value,
    pub notes: Vec<String>,
}

/// All templates of an object, in the order of its fields.
///
/// A mapping is a template if its `spec.containers` is a list of mappings. The templates of Argo Workflows have another
/// shape.
pub(super) fn templates(object: &Value) -> Vec<Template> {
    let mut found = Vec::new();
    walk(object, "", &mut found);
    found
}

fn walk(value: &Value, path: &str, found: &mut Vec<Template>) {
    if is_pod_template(value) {
        found.push(Template::new(path.to_owned(), value.clone()));
        return;
    }
    if let Some(of_argo) = argo::templates(value, path) {
        found.extend(of_argo);
        return;
    }
    match value {
        Value::Object(fields) => {
            for (key, field) in fields {
                walk(field, &join(path, key), found);
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                walk(item, &format!("{path}[{index}]"), found);
            }
        }
        _ => {}
    }
}

pub(super) fn join(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}

fn is_pod_template(value: &Value) -> bool {
    let containers = value.pointer("/spec/containers").and_then(Value::as_array);
    containers.is_some_and(|containers| !containers.is_empty() && containers.iter().all(Value::is_object))
}

impl Template {
    pub fn new(path: String, pod: Value) -> Self {
        let mut notes = Vec::new();
        if pod.to_string().contains("{{") {
            notes.push("it has variables ({{...}}), and is decided as it is written".to_owned());
        }
        Self { path, pod, notes }
    }
}

#[cfg(test)]
#[path = "template_tests.rs"]
mod tests;
