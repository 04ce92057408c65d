//! Reads which GPUs a pod selects by annotation: by kerf's keys, and by HAMi's of the same meaning, which hold in every
//! pod that asks.
//!
//! HAMi (`pkg/device/nvidia/device.go`: `checkGPUtype`, `CheckUUID`): `nvidia.com/use-gputype` and `nouse-gputype` are
//! lists of parts of product names, in any case; `nvidia.com/use-gpuuuid` and `nouse-gpuuuid` are lists of UUIDs.

use super::{AskError, GpuSelection, PodView};
use crate::keys;
use crate::mig::catalog;
use crate::names::GpuUuid;
use std::collections::BTreeSet;

const HAMI_TYPE: &str = "nvidia.com/use-gputype";
const HAMI_TYPE_NOT: &str = "nvidia.com/nouse-gputype";
const HAMI_UUID: &str = "nvidia.com/use-gpuuuid";
const HAMI_UUID_NOT: &str = "nvidia.com/nouse-gpuuuid";

/// The longest model name, in bytes, because a model name becomes a label's value, which has this limit.
const LONGEST_MODEL: usize = 63;

/// The GPUs that may serve the pod. If kerf's key and HAMi's have the same meaning, kerf's holds.
pub(super) fn selection(pod: &PodView) -> Result<GpuSelection, AskError> {
    let either = |ours, hamis| {
        Ok::<_, AskError>(list(pod, ours, hamis)?.map(|(_, models)| models).unwrap_or_default())
    };
    let either_uuid =
        |ours, hamis| Ok::<_, AskError>(uuids(pod, ours)?.or(uuids(pod, hamis)?).unwrap_or_default());
    Ok(GpuSelection {
        // HAMi's keys hold beside kerf's own requests too, regardless of the policy's dialects.
        models: either(keys::GPU_MODEL, HAMI_TYPE)?,
        not_models: either(keys::GPU_MODEL_NOT, HAMI_TYPE_NOT)?,
        uuids: either_uuid(keys::GPU_UUID, HAMI_UUID)?,
        not_uuids: either_uuid(keys::GPU_UUID_NOT, HAMI_UUID_NOT)?,
    })
}

/// The GPU models that the pod names; its policy is chosen by them. An annotation that cannot be read counts as none
/// here, because reading the request reports it.
#[must_use]
pub fn models_named(pod: &PodView) -> Vec<String> {
    selection(pod).map(|selection| selection.models).unwrap_or_default()
}

/// The models that the pod has under one of two keys of the same meaning, with the key.
fn list(
    pod: &PodView,
    ours: &'static str,
    hamis: &'static str,
) -> Result<Option<(&'static str, Vec<String>)>, AskError> {
    let (named, of_type) = (models(pod, ours)?, types(pod, hamis)?);
    Ok(named.map(|models| (ours, models)).or(of_type.map(|models| (hamis, models))))
}

/// One list of models in a pod.
pub(super) struct ModelList {
    /// Key of the annotation with the list.
    pub key: &'static str,
    pub models: Vec<String>,
    /// Whether these models may serve the pod; otherwise they must not.
    pub wanted: bool,
    /// Whether a part of a name means every model that contains it, as in HAMi.
    pub parts: bool,
}

/// All lists of models in the pod.
pub(super) fn model_lists(pod: &PodView) -> Result<Vec<ModelList>, AskError> {
    let model_list = |ours, hamis, wanted| {
        let found = list(pod, ours, hamis)?;
        Ok::<_, AskError>(found.map(|(key, models)| ModelList { key, models, wanted, parts: key == hamis }))
    };
    let wanted = model_list(keys::GPU_MODEL, HAMI_TYPE, true)?;
    Ok(wanted.into_iter().chain(model_list(keys::GPU_MODEL_NOT, HAMI_TYPE_NOT, false)?).collect())
}

fn items<'p>(pod: &'p PodView, key: &str) -> Option<(&'p str, impl Iterator<Item = &'p str>)> {
    let text = pod.metadata.annotations.get(key)?;
    Some((text, text.split(',').map(str::trim)))
}

fn models(pod: &PodView, key: &str) -> Result<Option<Vec<String>>, AskError> {
    let Some((text, items)) = items(pod, key) else { return Ok(None) };
    let model =
        |item| model(item).ok_or_else(|| AskError::Model { key: key.to_owned(), text: text.to_owned() });
    items.map(model).collect::<Result<BTreeSet<_>, _>>().map(|all| Some(all.into_iter().collect()))
}

/// The model's short name, in the catalog's spelling if the catalog has it.
fn model(text: &str) -> Option<String> {
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
    if text.is_empty() || text.len() > LONGEST_MODEL || !text.chars().all(legal) {
        return None;
    }
    let known = catalog::MODELS.iter().find(|model| model.name.eq_ignore_ascii_case(text));
    Some(known.map_or(text, |model| model.name).to_owned())
}

fn types(pod: &PodView, key: &str) -> Result<Option<Vec<String>>, AskError> {
    let Some((text, items)) = items(pod, key) else { return Ok(None) };
    let mut all = BTreeSet::new();
    for item in items {
        let found = models_of_type(item);
        if found.is_empty() {
            return Err(AskError::Model { key: key.to_owned(), text: text.to_owned() });
        }
        all.extend(found);
    }
    Ok(Some(all.into_iter().collect()))
}

/// The models whose product names contain this text, or are contained in it (`A100`, `NVIDIA A100-SXM4-40GB`). If there
/// is none, the text itself, in the form of a short name that a GPU outside the catalog would have.
fn models_of_type(part: &str) -> Vec<String> {
    let words = |text: &str| text.to_ascii_uppercase().replace('-', " ");
    let part = words(part);
    let part = part.trim().trim_start_matches("NVIDIA ").trim_start_matches("TESLA ").trim();
    if part.is_empty() {
        return Vec::new();
    }
    let names = |model: &catalog::GpuModel| {
        std::iter::once(model.name).chain(model.products.iter().copied()).map(words).collect::<Vec<_>>()
    };
    let having = catalog::MODELS.iter().filter(|model| names(model).iter().any(|name| name.contains(part)));
    let mut found: Vec<String> = having.map(|model| model.name.to_owned()).collect();
    if found.is_empty() {
        let within = |model: &catalog::GpuModel| {
            names(model).iter().filter(|n| part.contains(*n)).map(String::len).max()
        };
        let longest = catalog::MODELS.iter().filter_map(within).max();
        let longest = catalog::MODELS.iter().filter(|model| longest.is_some() && within(model) == longest);
        found = longest.map(|model| model.name.to_owned()).collect();
    }
    if found.is_empty() {
        found.extend(model(&part.replace(' ', "-")));
    }
    found
}

fn uuids(pod: &PodView, key: &str) -> Result<Option<Vec<GpuUuid>>, AskError> {
    let Some((text, items)) = items(pod, key) else { return Ok(None) };
    let legal = |c: char| c.is_ascii_alphanumeric() || c == '-';
    let is_uuid = |item: &str| {
        item.strip_prefix("GPU-")
            .is_some_and(|rest| !rest.is_empty() && rest.len() <= 64 && rest.chars().all(legal))
    };
    let bad = || AskError::Uuid { key: key.to_owned(), text: text.to_owned() };
    let uuid = |item: &str| if is_uuid(item) { Ok(GpuUuid::new(item)) } else { Err(bad()) };
    items.map(uuid).collect::<Result<BTreeSet<_>, _>>().map(|all| Some(all.into_iter().collect()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn selected(annotations: serde_json::Value) -> Result<GpuSelection, AskError> {
        selection(&serde_json::from_value(json!({"metadata": {"annotations": annotations}})).unwrap())
    }

    #[test]
    fn models_are_named_by_their_short_names_in_any_case() {
        let named = selected(json!({"kerf.dev/gpu-model": "h100-80gb, GeForce-RTX-4090"})).unwrap();
        assert_eq!(named.models, ["GeForce-RTX-4090", "H100-80GB"]);
        let except =
            selected(json!({"kerf.dev/gpu-model-not": "T4-16GB", "kerf.dev/gpu-uuid-not": "GPU-1,GPU-2"}))
                .unwrap();
        assert_eq!((except.not_models.len(), except.not_uuids.len(), except.models.len()), (1, 2, 0));
    }

    #[test]
    fn hamis_types_are_parts_of_product_names() {
        for (part, models) in [
            ("A100", vec!["A100-40GB", "A100-80GB"]),
            ("nvidia a30", vec!["A30-24GB"]),
            ("NVIDIA-NVIDIA A100-SXM4-40GB", vec!["A100-40GB"]),
            ("GeForce RTX 4090", vec!["GEFORCE-RTX-4090"]),
            ("A30,L40S", vec!["A30-24GB", "L40S-48GB"]),
        ] {
            assert_eq!(selected(json!({HAMI_TYPE: part})).unwrap().models, models, "{part}");
        }
        let both = json!({HAMI_TYPE: "A100", "kerf.dev/gpu-model": "H100-80GB"});
        assert_eq!(selected(both).unwrap().models, ["H100-80GB"], "kerf's own key holds");
    }

    #[test]
    fn a_malformed_selection_is_refused() {
        for bad in ["", "H100-80GB,", "H100 80GB", "a/b"] {
            assert!(
                matches!(selected(json!({"kerf.dev/gpu-model": bad})), Err(AskError::Model { .. })),
                "{bad}"
            );
        }
        for bad in ["", "MIG-1", "GPU-", "gpu-1", "GPU-1,,GPU-2"] {
            assert!(
                matches!(selected(json!({"kerf.dev/gpu-uuid": bad})), Err(AskError::Uuid { .. })),
                "{bad}"
            );
        }
    }
}
