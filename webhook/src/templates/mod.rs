//! Pod templates. The API server accepts the bare `gpu-10gb` only in Pods, because a webhook renames it there. In the
//! template of a Deployment or a Job it becomes `kerf.dev/gpu-10gb`. Nothing else changes, because the kind is chosen
//! for each Pod when it is created. A template is never denied here.

use crate::edit::Edit;
use json_patch::PatchOperation;
use kerf_core::keys::{GROUP, SIZE_PREFIX};
use kerf_core::resource::asked_size;
use serde_json::{Map, Value};

const TEMPLATES: [(&str, &str, &[&str]); 6] = [
    ("apps", "deployments", &["spec", "template"]),
    ("apps", "statefulsets", &["spec", "template"]),
    ("apps", "daemonsets", &["spec", "template"]),
    ("apps", "replicasets", &["spec", "template"]),
    ("batch", "jobs", &["spec", "template"]),
    ("batch", "cronjobs", &["spec", "jobTemplate", "spec", "template"]),
];

pub(crate) fn template_of(group: &str, resource: &str) -> Option<&'static [&'static str]> {
    TEMPLATES.iter().find(|(g, r, _)| (*g, *r) == (group, resource)).map(|(.., path)| *path)
}

/// The patch that qualifies the bare names in the pod template at `template`.
///
/// A bare name replaces the qualified ones beside it. Both exist if a manifest with bare names is applied again: a
/// client-side apply adds the manifest's entries to the stored ones, so the stored size is the older one.
pub(crate) fn qualify(object: &Value, template: &[&str]) -> Vec<PatchOperation> {
    let mut edit = Edit::new(object);
    for list in ["initContainers", "containers"] {
        let containers = [template, &["spec", list]].concat();
        let count = edit.get(&containers).and_then(Value::as_array).map_or(0, Vec::len);
        for index in 0..count {
            for map in ["limits", "requests"] {
                qualify_map(&mut edit, &[&containers[..], &[&index.to_string(), "resources", map]].concat());
            }
        }
    }
    edit.finish(object)
}

fn qualify_map(edit: &mut Edit, path: &[&str]) {
    let Some(entries) = edit.get(path).and_then(Value::as_object) else { return };
    let bare: Map<String, Value> = entries.clone().into_iter().filter(|(name, _)| is_bare(name)).collect();
    // A template without bare names is not touched, so that its qualified names stay.
    if bare.is_empty() {
        return;
    }
    let wanted: Map<String, Value> =
        bare.iter().map(|(name, count)| (format!("{GROUP}/{name}"), count.clone())).collect();
    let earlier = entries.keys().filter(|name| name.starts_with(SIZE_PREFIX) && !wanted.contains_key(*name));
    for name in earlier.cloned().chain(bare.into_iter().map(|(name, _)| name)).collect::<Vec<_>>() {
        edit.remove(&[path, &[&name]].concat());
    }
    for (name, count) in wanted {
        edit.set(&[path, &[&name]].concat(), count);
    }
}

/// Whether this is the bare name of a size. The API server itself rejects other bare names at once, so kerf ignores
/// them.
fn is_bare(name: &str) -> bool {
    !name.contains('/') && matches!(asked_size(name), Some(Ok(_)))
}

#[cfg(test)]
mod tests;
