//! The selection of GPUs that may serve a pod.

use crate::names::GpuUuid;
use serde::{Deserialize, Serialize};

/// The GPUs that may serve a pod, by short model name (`H100-80GB`) and by UUID. The default selects all GPUs.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GpuSelection {
    /// Only GPUs of these models; empty for any model.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub models: Vec<String>,
    /// No GPU of any of these models.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub not_models: Vec<String>,
    /// Only the GPUs with these UUIDs; empty for any GPU.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub uuids: Vec<GpuUuid>,
    /// None of the GPUs with these UUIDs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub not_uuids: Vec<GpuUuid>,
}

impl GpuSelection {
    /// Whether every GPU may serve the pod.
    #[must_use]
    pub fn is_all(&self) -> bool {
        *self == Self::default()
    }

    /// Whether a GPU of this model may serve the pod, if its UUID is not excluded.
    #[must_use]
    pub fn admits_model(&self, model: &str) -> bool {
        let names = |list: &[String]| list.iter().any(|named| named == model);
        (self.models.is_empty() || names(&self.models)) && !names(&self.not_models)
    }

    /// Whether the GPU with this UUID and model may serve the pod.
    #[must_use]
    pub fn admits(&self, uuid: &GpuUuid, model: &str) -> bool {
        self.admits_model(model)
            && (self.uuids.is_empty() || self.uuids.contains(uuid))
            && !self.not_uuids.contains(uuid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_must_be_selected_and_not_excluded() {
        let gpu = GpuUuid::new("GPU-1");
        let admits = |json: &str| {
            let selection: GpuSelection = serde_json::from_str(json).unwrap();
            selection.admits(&gpu, "T4-16GB")
        };
        for (json, expected) in [
            ("{}", true),
            (r#"{"models": ["T4-16GB", "L4-24GB"]}"#, true),
            (r#"{"models": ["L4-24GB"]}"#, false),
            (r#"{"notModels": ["T4-16GB"]}"#, false),
            (r#"{"models": ["T4-16GB"], "notUuids": ["GPU-1"]}"#, false),
            (r#"{"uuids": ["GPU-1"]}"#, true),
            (r#"{"uuids": ["GPU-2"]}"#, false),
        ] {
            assert_eq!(admits(json), expected, "{json}");
        }
    }
}
