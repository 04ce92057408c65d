//! The serialized form of a status. It has the MIG table of a model once and not with each GPU. Eight GPUs' tables were
//! a third of an idle node's object, and the API server's work on a write grows with the object.

use super::status::{Condition, GpuNodeStatus, GpuStatus, SliceStatus, Summary};
use crate::kind::Kind;
use crate::mig::MigTable;
use crate::units::SizeGb;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The serialized form of [`GpuNodeStatus`].
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct StatusWire {
    #[serde(rename = "neutralUpToGb", skip_serializing_if = "Option::is_none")]
    neutral_up_to: Option<SizeGb>,
    /// The MIG table of each model, by short model name.
    models: BTreeMap<String, MigTable>,
    gpus: Vec<GpuStatus>,
    slices: Vec<SliceStatus>,
    conditions: Vec<Condition>,
    summary: Summary,
}

impl From<GpuNodeStatus> for StatusWire {
    fn from(status: GpuNodeStatus) -> Self {
        let GpuNodeStatus { mut gpus, neutral_up_to, slices, conditions, summary } = status;
        let mut models = BTreeMap::new();
        for gpu in gpus.iter_mut().filter(|gpu| gpu.kinds.contains(&Kind::Mig)) {
            let table = std::mem::take(&mut gpu.profiles);
            let known = models.entry(gpu.model.clone()).or_insert_with(|| table.clone());
            // A GPU whose table differs from its model's keeps its own.
            if *known != table {
                gpu.profiles = table;
            }
        }
        Self { neutral_up_to, models, gpus, slices, conditions, summary }
    }
}

impl From<StatusWire> for GpuNodeStatus {
    fn from(wire: StatusWire) -> Self {
        let StatusWire { models, mut gpus, neutral_up_to, slices, conditions, summary } = wire;
        for gpu in gpus.iter_mut().filter(|gpu| gpu.kinds.contains(&Kind::Mig)) {
            // The filter keeps the table from GPUs of the same model whose MIG mode is off.
            if gpu.profiles.is_empty() {
                gpu.profiles = models.get(&gpu.model).cloned().unwrap_or_default();
            }
        }
        Self { neutral_up_to, gpus, slices, conditions, summary }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::node_status;

    #[test]
    fn a_models_table_is_written_once_and_read_for_each_of_its_gpus() {
        let status = node_status(&["H100-80GB", "H100-80GB", "A100-40GB", "T4-16GB"]);
        let written = serde_json::json!(status);
        assert_eq!(written["models"].as_object().map(serde_json::Map::len), Some(2));
        assert!(written["gpus"][1].get("profiles").is_none());
        assert_eq!(serde_json::from_value::<GpuNodeStatus>(written).unwrap(), status);
    }

    #[test]
    fn a_gpu_that_differs_from_its_model_keeps_its_own_table() {
        let mut status = node_status(&["H100-80GB", "H100-80GB"]);
        status.gpus[1].profiles = MigTable::new(status.gpus[1].profiles.entries()[..2].to_vec());
        assert_eq!(serde_json::from_value::<GpuNodeStatus>(serde_json::json!(status)).unwrap(), status);
    }
}
