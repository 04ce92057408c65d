//! Builds the pods of Argo Workflows as its controller does (argo-workflows `workflow/controller/workflowpod.go`),
//! because a workflow has no pod template of Kubernetes' form. Pure.

use super::template::{Template, join};
use kerf_core::keys;
use serde_json::{Map, Value, json};

const MAIN: &str = "main";

const WAIT: &str = "wait";

const RUNS: [&str; 3] = ["container", "script", "containerSet"];

/// Fields that the pod takes from the template, or else from the workflow's spec. `priorityClassName` has another name
/// in the spec.
const POD_FIELDS: [(&str, &str); 7] = [
    ("serviceAccountName", "serviceAccountName"),
    ("schedulerName", "schedulerName"),
    ("priorityClassName", "podPriorityClassName"),
    ("nodeSelector", "nodeSelector"),
    ("affinity", "affinity"),
    ("tolerations", "tolerations"),
    ("volumes", "volumes"),
];

/// The pod templates in a workflow's spec; `None` if the spec is not a workflow's. Templates of steps, of a DAG or of a
/// resource are skipped, because they create no pod that could ask for a GPU.
pub(super) fn templates(spec: &Value, path: &str) -> Option<Vec<Template>> {
    let templates = spec.get("templates")?.as_array()?;
    let makes_pod = |template: &Value| RUNS.iter().any(|field| template[field].is_object());
    let list = join(path, "templates");
    let found = templates.iter().enumerate().filter(|(_, template)| makes_pod(template));
    let found: Vec<Template> =
        found.map(|(index, template)| make(spec, template, format!("{list}[{index}]"))).collect();
    (!found.is_empty()).then_some(found)
}

fn make(spec: &Value, template: &Value, path: String) -> Template {
    let mut whole = spec.get("templateDefaults").cloned().unwrap_or_else(|| json!({}));
    merge(&mut whole, template);
    let mut pod = json!({"metadata": metadata(spec, &whole), "spec": pod_spec(spec, &whole)});
    let mut unknown = Vec::new();
    for (owner, fields) in [("the workflow", spec), ("the template", &whole)] {
        match fields["podSpecPatch"].as_str().map(read_patch) {
            None => {}
            Some(Some(changes)) => merge(&mut pod["spec"], &changes),
            // The pod is decided as far as it is known, and a note says what may be different.
            Some(None) => unknown.push(format!(
                "podSpecPatch of {owner} has variables or is no mapping, so what it changes is not known"
            )),
        }
    }
    let mut made = Template::new(path, pod);
    made.notes.extend(unknown);
    made
}

/// Parses a patch. One with variables is `None`, because they are known only when the workflow runs.
fn read_patch(text: &str) -> Option<Value> {
    let patch: Value = if text.contains("{{") { None } else { serde_saphyr::from_str(text).ok() }?;
    patch.is_object().then_some(patch)
}

fn metadata(spec: &Value, template: &Value) -> Value {
    let mut metadata = json!({"annotations": {(keys::DEFAULT_CONTAINER): default_container(template)}});
    for part in [&spec["podMetadata"], &template["metadata"]] {
        merge(&mut metadata, part);
    }
    metadata
}

fn default_container(template: &Value) -> Value {
    let containers = main_containers(template);
    let is_main = |container: &&Value| container["name"] == MAIN;
    containers
        .iter()
        .find(is_main)
        .or(containers.last())
        .map_or(Value::Null, |container| container["name"].clone())
}

fn main_containers(template: &Value) -> Vec<Value> {
    let named = |field: &str| {
        let mut container = template[field].as_object().cloned().unwrap_or_default();
        container.remove("source");
        container.insert("name".to_owned(), json!(MAIN));
        vec![Value::Object(container)]
    };
    match RUNS.into_iter().find(|field| template[field].is_object()) {
        Some("containerSet") => list(&template["containerSet"]["containers"]),
        Some(field) => named(field),
        None => Vec::new(),
    }
}

fn pod_spec(spec: &Value, template: &Value) -> Value {
    let mut containers = main_containers(template);
    containers.extend(list(&template["sidecars"]));
    containers.push(json!({"name": WAIT}));
    let mut pod = Map::from_iter([("containers".to_owned(), json!(containers))]);
    let init = list(&template["initContainers"]);
    if !init.is_empty() {
        pod.insert("initContainers".to_owned(), json!(init));
    }
    for (field, of_spec) in POD_FIELDS {
        let value = template.get(field).or_else(|| spec.get(of_spec));
        pod.extend(value.map(|value| (field.to_owned(), value.clone())));
    }
    Value::Object(pod)
}

fn list(value: &Value) -> Vec<Value> {
    value.as_array().cloned().unwrap_or_default()
}

/// Merges a patch like a strategic merge of `kubectl`, as far as pods need it: lists whose items have names are merged
/// by name, other lists are replaced.
fn merge(base: &mut Value, patch: &Value) {
    match (base, patch) {
        (Value::Object(base), Value::Object(patch)) => {
            for (key, value) in patch {
                if value.is_null() {
                    base.remove(key);
                } else {
                    merge(base.entry(key).or_insert(Value::Null), value);
                }
            }
        }
        (Value::Array(base), Value::Array(patch)) if has_names(base) && has_names(patch) => {
            for item in patch {
                match base.iter_mut().find(|found| found["name"] == item["name"]) {
                    Some(found) => merge(found, item),
                    None => base.push(item.clone()),
                }
            }
        }
        (_, Value::Null) => {}
        (base, patch) => base.clone_from(patch),
    }
}

fn has_names(items: &[Value]) -> bool {
    !items.is_empty() && items.iter().all(|item| item["name"].is_string())
}
