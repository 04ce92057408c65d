//! Limits and requests: the chosen resource, without any of the names that asked for it.

use super::names;
use crate::edit::Edit;
use kerf_core::admission::CONTAINERS;
use kerf_core::contract::{ContainerRequest, RequestDocument};
use kerf_core::request::asks_by;
use serde_json::{Value, json};

/// Replaces the names by which the containers asked. Containers without a slice lose them too, because nothing would
/// serve a dialect's name.
pub(super) fn replace(edit: &mut Edit, document: &RequestDocument) {
    for list in CONTAINERS {
        for (index, name) in names(edit, list).iter().enumerate() {
            let request = document.containers.iter().find(|request| request.name == *name);
            container(edit, &["spec", list, &index.to_string(), "resources"], request);
        }
    }
}

fn container(edit: &mut Edit, resources: &[&str], request: Option<&ContainerRequest>) {
    let given = request.map(|request| (request.resource.to_string(), request.count.to_string()));
    let is_given = |key: &String| given.as_ref().is_some_and(|(resource, _)| resource == key);
    for map in ["limits", "requests"] {
        let path = [resources, &[map]].concat();
        let entries = edit.get(&path).and_then(Value::as_object).into_iter().flatten();
        let asks: Vec<String> =
            entries.map(|(key, _)| key).filter(|key| !is_given(key) && asks_by(key)).cloned().collect();
        for ask in asks {
            edit.remove(&[&path[..], &[&ask]].concat());
        }
        if let Some((resource, count)) = &given {
            edit.set(&[&path[..], &[resource]].concat(), json!(count));
        }
    }
}
