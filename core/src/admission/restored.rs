//! Restores a pod to what it was before kerf wrote its fields into it.
//!
//! Such a pod is created for one of two reasons. Another webhook changed it after kerf, and the API server calls kerf
//! again. Or a user copied an admitted pod, or restored it from a backup. kerf cannot distinguish the two, and any
//! author of a pod can write these fields, so kerf trusts none of them. It removes its own names from the limits,
//! restores the limits that the request document records, and decides on the pod like on any other. A forged document
//! can only claim limits that its author could have written directly.

use super::CONTAINERS;
use crate::contract::RequestDocument;
use crate::keys;
use crate::request::{AskedLimits, Field, PodView, Role, asks_by};
use crate::resource::ResourceName;
use serde_json::{Map, Value, json};
use std::borrow::Cow;

/// A pod without the fields that only kerf writes.
#[derive(Debug)]
pub struct Restored<'p> {
    /// The pod's JSON; borrowed if it carried no such field.
    pub pod: Cow<'p, Value>,
    /// The request document that the pod carried; `None` if there was none or it cannot be read.
    pub former: Option<RequestDocument>,
    /// The fields of kerf's that the pod carried.
    pub carried: Vec<Field>,
}

/// Removes from `pod`, a Pod's JSON, the fields that only kerf writes.
#[must_use]
pub fn restored(pod: &Value) -> Restored<'_> {
    let carried = carried(pod);
    // Only pods with such a field are copied, because most pods carry none.
    if carried.is_empty() {
        return Restored { pod: Cow::Borrowed(pod), former: None, carried };
    }
    let former = pod["metadata"]["annotations"][keys::REQUEST].as_str();
    let former = former.and_then(|text| RequestDocument::parse(text).ok());
    let mut pod = pod.clone();
    // A copy of a bound pod names its node, so the name is removed. The scheduler decides again, like kerf.
    if carried.iter().any(is_assignment)
        && let Some(spec) = members(&mut pod, "spec")
    {
        spec.remove("nodeName");
    }
    for field in &carried {
        let (map, key) = match field {
            Field::Label(key) => ("labels", key),
            Field::Annotation(key) | Field::Limit { limit: key, .. } => ("annotations", key),
        };
        if let Some(members) = members(&mut pod["metadata"], map) {
            members.remove(key);
        }
    }
    if let Some(former) = &former {
        restore_limits(&mut pod, former);
    }
    Restored { pod: Cow::Owned(pod), former, carried }
}

fn carried(pod: &Value) -> Vec<Field> {
    let has = |map: &str, key: &str| pod["metadata"][map].get(key).is_some();
    let annotations = keys::RESERVED.iter().filter(|key| has("annotations", key));
    let annotations = annotations.map(|key| Field::Annotation((*key).to_owned()));
    let labels = keys::RESERVED.iter().chain([&keys::SLICED]).filter(|key| has("labels", key));
    annotations.chain(labels.map(|key| Field::Label((*key).to_owned()))).collect()
}

fn is_assignment(field: &Field) -> bool {
    matches!(field, Field::Annotation(key) if key == keys::ASSIGNMENT)
}

/// Restores the limits with which the pod asked. A document of an earlier version does not record them; then the names
/// in the limits are the request.
fn restore_limits(pod: &mut Value, former: &RequestDocument) {
    let Some(asked) = &former.asked else { return };
    for list in CONTAINERS {
        let containers = pod["spec"].get_mut(list).and_then(Value::as_array_mut);
        for container in containers.into_iter().flatten() {
            let name = container["name"].as_str().unwrap_or_default();
            let given = former.containers.iter().find(|request| request.name == name);
            let Some(given) = given.map(|request| request.resource) else { continue };
            let asked = asked.get(name).cloned().unwrap_or_default();
            if let Some(resources) = container.get_mut("resources") {
                restore(resources, given, &asked);
            }
        }
    }
}

fn restore(resources: &mut Value, given: ResourceName, asked: &AskedLimits) {
    let given = given.to_string();
    let is_given =
        |resources: &Value| ["limits", "requests"].iter().any(|map| resources[map].get(&given).is_some());
    // If kerf's name is gone, the request was removed from the pod on purpose.
    if !is_given(resources) {
        return;
    }
    for map in ["limits", "requests"] {
        if let Some(entries) = members(resources, map) {
            entries.remove(&given);
        }
    }
    // Other names are not restored; otherwise a forged document could change limits that kerf is not asked by.
    let asked = asked.iter().filter(|(name, _)| asks_by(name));
    let asked: Map<String, Value> = asked.map(|(name, amount)| (name.clone(), json!(amount))).collect();
    if let Some(limits) = members(resources, "limits") {
        limits.extend(asked);
    } else if !asked.is_empty() {
        resources["limits"] = Value::Object(asked);
    }
}

/// The members of an object in `parent`. Indexing is not used, because it would insert `null` where the object is
/// absent.
fn members<'v>(parent: &'v mut Value, key: &str) -> Option<&'v mut Map<String, Value>> {
    parent.get_mut(key)?.as_object_mut()
}

impl Restored<'_> {
    /// The pod with explicit names in its annotations without a container's name: those of the container that they
    /// meant at admission. Other containers may have been injected since. `None` if that changes nothing.
    pub(super) fn with_names(&self, view: &PodView) -> Option<PodView> {
        let only = self.former.as_ref().and_then(only_app)?;
        let is_there = view.spec.containers.iter().any(|container| container.name == only);
        let unnamed = keys::PER_CONTAINER.into_iter().filter(|base| *base != keys::COMPUTE);
        let unnamed: Vec<&str> =
            unnamed.filter(|base| view.metadata.annotations.contains_key(*base)).collect();
        if !is_there || unnamed.is_empty() {
            return None;
        }
        let mut named = view.clone();
        for base in unnamed {
            if let Some(text) = named.metadata.annotations.remove(base) {
                named.metadata.annotations.entry(format!("{base}.{only}")).or_insert(text);
            }
        }
        Some(named)
    }

    /// The warning about the fields that the pod loses. If the decision is `as_before`, the pod keeps its document.
    #[must_use]
    pub fn warning(&self, as_before: bool) -> Option<String> {
        let stays = |field: &Field| {
            matches!(field, Field::Annotation(key) if key == keys::REQUEST)
                || matches!(field, Field::Label(key) if key == keys::SLICED)
        };
        let lost = self.carried.iter().filter(|field| !(as_before && stays(field)));
        let lost = lost.map(ToString::to_string).collect::<Vec<_>>().join(", ");
        (!lost.is_empty()).then(|| {
            format!("{lost}: written by kerf for another pod, or for this one before it changed; kerf decides on the pod anew")
        })
    }
}

/// The only app container of a document; `None` if it has none or several.
fn only_app(document: &RequestDocument) -> Option<&str> {
    let mut apps = document.containers.iter().filter(|request| request.role == Role::App);
    match (apps.next(), apps.next()) {
        (Some(only), None) => Some(&only.name),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{Policies, Supply};
    use crate::testing::request;

    fn pod(limits: Value, document: &Value) -> Value {
        json!({
            "metadata": {
                "annotations": {keys::REQUEST: document.to_string(), keys::ASSIGNMENT: "{}", "note": "stays"},
                "labels": {keys::SLICED: "true", "app": "stays"},
            },
            "spec": {"containers": [{"name": "main", "resources": {"limits": limits, "requests": limits}}]},
        })
    }

    fn document(asked: Value) -> Value {
        let mut document = json!(request("nvidia.com/mig-1g.10gb", 1));
        document["asked"] = asked;
        document
    }

    #[test]
    fn a_pod_without_kerfs_fields_stays_unchanged() {
        let plain = json!({"metadata": {"annotations": {"kerf.dev/gpu-memory": "10Gi"}}});
        let restored = restored(&plain);
        assert!(matches!(restored.pod, Cow::Borrowed(_)));
        assert_eq!((restored.former, restored.carried.len()), (None, 0));
    }

    #[test]
    fn a_copy_of_a_bound_pod_loses_its_node_and_labels_of_kerfs() {
        let copied = json!({
            "metadata": {
                "annotations": {keys::ASSIGNMENT: "{}"}, "labels": {keys::REQUEST: "x", "kerf.dev/other": "stays"},
            },
            "spec": {"nodeName": "n1", "containers": []},
        });
        let pod = restored(&copied);
        assert_eq!(
            *pod.pod,
            json!({"metadata": {"annotations": {}, "labels": {"kerf.dev/other": "stays"}}, "spec": {"containers": []}})
        );
        let warning = pod.warning(true).unwrap_or_default();
        assert!(
            warning.contains(keys::ASSIGNMENT) && warning.contains("labels[kerf.dev/request]"),
            "{warning}"
        );
        let named = json!({"metadata": {"annotations": {keys::REQUEST: "{}"}}, "spec": {"nodeName": "n1"}});
        assert_eq!(
            restored(&named).pod["spec"]["nodeName"],
            "n1",
            "a pod that was never bound named it itself"
        );
    }

    #[test]
    fn limits_are_restored_from_the_document() {
        let given = json!({"cpu": "2", "nvidia.com/mig-1g.10gb": "1"});
        for (asked, limits) in [
            (json!({"main": {"gpu-10gb": "1"}}), json!({"cpu": "2", "gpu-10gb": "1"})),
            (json!({}), json!({"cpu": "2"})),
            (json!({"side": {"gpu-10gb": "1"}}), json!({"cpu": "2"})),
            // The document restores only names by which pods can ask kerf.
            (json!({"main": {"cpu": "64", "memory": "1Ti"}}), json!({"cpu": "2"})),
            (json!(null), given.clone()),
        ] {
            let pod = pod(given.clone(), &document(asked.clone()));
            let restored = restored(&pod);
            assert_eq!(restored.pod["spec"]["containers"][0]["resources"]["limits"], limits, "{asked}");
            assert_eq!(
                restored.pod["metadata"],
                json!({"annotations": {"note": "stays"}, "labels": {"app": "stays"}})
            );
        }
    }

    #[test]
    fn a_pod_loses_only_its_assignment_if_it_is_decided_as_before() {
        let pod = pod(json!({"nvidia.com/mig-1g.10gb": "1"}), &document(json!({"main": {"gpu-10gb": "1"}})));
        let restored = restored(&pod);
        let loses = |as_before| {
            let warning = restored.warning(as_before).unwrap();
            [keys::ASSIGNMENT, keys::REQUEST, keys::SLICED].map(|field| warning.contains(field))
        };
        assert_eq!(loses(true), [true, false, false]);
        assert_eq!(loses(false), [true; 3]);
    }

    #[test]
    fn annotations_get_the_name_of_the_container_that_they_meant_while_it_is_there() {
        let annotations = |containers: &[&str]| {
            let mut pod = pod(json!({}), &document(json!({})));
            pod["metadata"]["annotations"][keys::GPU_MEMORY] = json!("10Gi");
            pod["spec"]["containers"] = containers.iter().map(|name| json!({"name": name})).collect();
            let restored = restored(&pod);
            let view = serde_json::from_value(restored.pod.clone().into_owned()).unwrap();
            restored.with_names(&view).map(|named| json!(named.metadata.annotations))
        };
        let named = json!({"kerf.dev/gpu-memory.main": "10Gi", "note": "stays"});
        assert_eq!(annotations(&["injected", "main"]), Some(named));
        assert_eq!(annotations(&["renamed"]), None);
    }

    #[test]
    fn limits_are_restored_where_kerfs_name_is_only_in_the_requests() {
        for (asked, resources) in [
            (json!({"main": {"gpu-10gb": "1"}}), json!({"requests": {}, "limits": {"gpu-10gb": "1"}})),
            (json!({}), json!({"requests": {}})),
        ] {
            let mut pod = pod(json!({"nvidia.com/mig-1g.10gb": "1"}), &document(asked));
            members(&mut pod["spec"]["containers"][0], "resources").unwrap().remove("limits");
            assert_eq!(restored(&pod).pod["spec"]["containers"][0]["resources"], resources);
        }
    }

    /// A pod with an annotation for 10 GiB that was admitted with the container `main` only, decided on again with
    /// these annotations and with another container before `main`.
    fn again(annotations: Value, beside: &Value) -> Result<(bool, Vec<String>), String> {
        let policy = json!({
            "apiVersion": "kerf.dev/v1alpha1", "kind": "GpuPolicy", "metadata": {"name": "p"},
            "spec": {"defaultIsolation": "memory", "isolation": {"memory": ["mig"]}},
        });
        let policy: crate::policy::PolicyDocument = serde_json::from_value(policy).unwrap();
        let policies = Policies { pods: vec![policy.try_into().unwrap()], nodes: Vec::new() };
        let decide = |pod: &Value| {
            let decision = crate::admission::decide(pod, "web", &policies, &Supply::default());
            decision.map(Option::unwrap).map_err(|refusal| refusal.to_string())
        };
        let mut pod = json!({
            "metadata": {"annotations": {keys::GPU_MEMORY: "10Gi"}}, "spec": {"containers": [{"name": "main"}]},
        });
        let first = decide(&pod).unwrap().document;
        let given = first.containers[0].resource.to_string();
        pod["metadata"]["annotations"] = annotations;
        pod["metadata"]["annotations"][keys::REQUEST] = json!(first.to_json());
        pod["spec"]["containers"] = json!([beside, {"name": "main", "resources": {"limits": {given: "1"}}}]);
        decide(&pod).map(|admitted| (admitted.again, admitted.warnings))
    }

    #[test]
    fn a_container_that_was_injected_after_admission_changes_nothing_unless_it_asks_too() {
        let (notes, proxy) = (json!({keys::GPU_MEMORY: "10Gi"}), json!({"name": "proxy"}));
        assert_eq!(again(notes.clone(), &proxy), Ok((true, vec![])));
        let asking = json!({"name": "proxy", "resources": {"limits": {"gpu-20gb": "1"}}});
        let refusal = again(notes, &asking).unwrap_err();
        assert!(refusal.contains("the pod has several containers"), "{refusal}");
        let (is_again, warnings) = again(json!({keys::GPU_MEMORY: "20Gi"}), &proxy).unwrap();
        assert!(!is_again && warnings[0].contains("annotations[kerf.dev/request]"), "{warnings:?}");
    }

    #[test]
    fn a_limit_that_kerf_did_not_give_stays() {
        let limits = json!({"nvidia.com/mig-7g.80gb": "1"});
        for text in [document(json!({"main": {"gpu-10gb": "1"}})), json!({}), json!("no document")] {
            let pod = pod(limits.clone(), &text);
            assert_eq!(restored(&pod).pod["spec"]["containers"][0]["resources"]["limits"], limits, "{text}");
        }
    }
}
