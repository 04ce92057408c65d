//! `spec.plugin` of a policy for nodes as admins write it, and the layout made of it.

use super::document_fault::{PolicyError, PolicyFault};
use super::document_field::Field;
use super::document_names::label_value;
use crate::contract::MPS_REPLICAS_LIMIT;
use crate::plugin_layout::{MigStrategy, PluginLayout, Sharing, TIME_SLICES_LIMIT, cuts};
use serde::{Deserialize, Serialize};

/// The configuration of NVIDIA's device plugin on the nodes. If it is empty, the plugin offers every GPU as a whole.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct PluginDocument {
    /// Whether and how the plugin offers MIG devices.
    pub mig_strategy: MigStrategy,
    /// How NVIDIA's MIG manager cuts the GPUs: a name of its configuration, which becomes the node label
    /// `nvidia.com/mig.config`. If it is absent, GPUs stay as they are cut.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mig_config: Option<String>,
    /// Pods share GPUs or MIG devices by time slicing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time_slicing: Option<TimeSlicingDocument>,
    /// Pods share GPUs by MPS.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mps: Option<MpsDocument>,
}

/// `spec.plugin.timeSlicing`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TimeSlicingDocument {
    /// The number of pods that share a GPU or a MIG device.
    #[cfg_attr(feature = "schema", schemars(range(min = 2, max = TIME_SLICES_LIMIT)))]
    pub replicas: u32,
    /// Whether the resource's name ends in `.shared`.
    #[serde(default)]
    pub rename_by_default: bool,
    /// Whether the plugin rejects a container that asks for more than one, because it would get no more than for one.
    #[serde(default)]
    pub fail_requests_greater_than_one: bool,
}

/// `spec.plugin.mps`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MpsDocument {
    /// The number of pods that share a GPU. Each gets an equal part of its memory and compute.
    #[cfg_attr(feature = "schema", schemars(range(min = 2, max = MPS_REPLICAS_LIMIT)))]
    pub replicas: u32,
    /// Whether the resource's name ends in `.shared`.
    #[serde(default)]
    pub rename_by_default: bool,
}

impl PluginDocument {
    pub(super) fn problems(&self, field: &Field) -> Vec<PolicyError> {
        let (slicing, mps) = (field.key("timeSlicing"), field.key("mps"));
        let mut errors = Vec::new();
        let cuts = self.mig_config.as_deref().is_some_and(cuts);
        if cuts && self.mig_strategy == MigStrategy::None {
            errors.push(PolicyFault::MigConfigWithoutStrategy.at_field(field.key("migConfig")));
        }
        let config = self.mig_config.as_ref();
        errors.extend(config.and_then(|config| label_value(&field.key("migConfig"), config)));
        if let Some(TimeSlicingDocument { replicas: given, .. }) = self.time_slicing {
            errors.extend(replicas(&slicing, given, TIME_SLICES_LIMIT));
        }
        if let Some(MpsDocument { replicas: given, .. }) = self.mps {
            errors.extend(replicas(&mps, given, MPS_REPLICAS_LIMIT));
            if self.mig_strategy != MigStrategy::None {
                errors.push(PolicyFault::MpsWithMig.at_field(mps.clone()));
            }
            if self.time_slicing.is_some() {
                errors.push(PolicyFault::TwoSharings.at_field(mps));
            }
        }
        errors
    }

    /// The layout for NVIDIA's device plugin. It fails if the document has two ways of sharing.
    pub(super) fn layout(self) -> Result<PluginLayout, PolicyError> {
        let sharing = match (self.time_slicing, self.mps) {
            (Some(slicing), None) => Sharing::TimeSlicing {
                replicas: slicing.replicas,
                renamed: slicing.rename_by_default,
                fail_greater_than_one: slicing.fail_requests_greater_than_one,
            },
            (None, Some(mps)) => Sharing::Mps { replicas: mps.replicas, renamed: mps.rename_by_default },
            (None, None) => Sharing::None,
            (Some(_), Some(_)) => {
                return Err(PolicyFault::TwoSharings.at_field(Field::from_dotted("spec.plugin.mps")));
            }
        };
        Ok(PluginLayout { mig_strategy: self.mig_strategy, mig_config: self.mig_config, sharing })
    }
}

fn replicas(field: &Field, replicas: u32, most: u32) -> Option<PolicyError> {
    let fault = match replicas {
        0 | 1 => PolicyFault::FewReplicas(replicas),
        _ if replicas > most => PolicyFault::ManyReplicas { replicas, most },
        _ => return None,
    };
    Some(fault.at_field(field.key("replicas")))
}
