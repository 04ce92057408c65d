//! The JSON schemas of the policy documents, made from their types. They need the feature `schema`, because programs read no schema.

use super::{NodePolicyDocument, PolicyDocument};
use crate::keys;
use crate::kind::{IsolationClass, Kind};
use crate::mig::Profile;
use crate::names::{GpuUuid, PciBusId};
use crate::resource::ResourceName;
use crate::units::SizeGb;
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::Value;
use std::borrow::Cow;

/// The schema of a `GpuPolicy`, in JSON Schema's draft 7, which editors read.
#[must_use]
pub fn gpu_policy() -> Value {
    root::<PolicyDocument>("GpuPolicy")
}

/// The schema of a `GpuNodePolicy`, in the same draft.
#[must_use]
pub fn gpu_node_policy() -> Value {
    root::<NodePolicyDocument>("GpuNodePolicy")
}

fn root<T: JsonSchema>(title: &str) -> Value {
    let mut schema = SchemaSettings::draft07().into_generator().into_root_schema_for::<T>();
    schema.insert("title".to_owned(), Value::from(title));
    schema.to_value()
}

pub(super) fn api_version(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"const": keys::API_VERSION})
}

pub(super) fn pod_kind(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"const": "GpuPolicy"})
}

pub(super) fn node_kind(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"const": "GpuNodePolicy"})
}

pub(super) fn class_names() -> Value {
    serde_json::json!({"enum": IsolationClass::ALL.map(|class| class.to_string())})
}

/// A policy for pods needs classes, or a policy to extend, or a reason to deny.
pub(super) fn complete() -> Value {
    serde_json::json!([
        {"required": ["defaultIsolation", "isolation"]}, {"required": ["extends"]}, {"required": ["deny"]},
    ])
}

/// Implements the schema of a type that is one JSON string or number.
macro_rules! scalar {
    ($type:ty, $name:literal, $($schema:tt)+) => {
        impl JsonSchema for $type {
            fn schema_name() -> Cow<'static, str> {
                Cow::Borrowed($name)
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!($($schema)+)
            }
        }
    };
}

scalar!(SizeGb, "SizeGb", {
    "type": "integer", "minimum": 1,
    "description": "A nominal size in GB: the N of gpu-Ngb and of a MIG profile's name."
});
scalar!(Profile, "Profile", {
    "type": "string", "pattern": r"^[1-9][0-9]*g\.[1-9][0-9]*gb(\+me|\+me\.all|-me|\+gfx)?$",
    "description": "A MIG profile, as in 1g.10gb."
});
scalar!(ResourceName, "ResourceName", {
    "type": "string", "pattern": r"^nvidia\.com/(gpu|gpu\.shared|gpu-[0-9]+gb(\.shared)?|mig-.+)$",
    "description": "A resource name that admitted pods carry, as in nvidia.com/mig-1g.10gb."
});
scalar!(GpuUuid, "GpuUuid", {
    "type": "string", "pattern": "^GPU-", "description": "A GPU's UUID as NVML reports it (GPU-…)."
});
scalar!(PciBusId, "PciBusId", {
    "type": "string", "pattern": r"^[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f]$",
    "description": "A GPU's address on the PCI bus, as the kernel (0000:65:00.0) or NVML writes it (00000000:65:00.0)."
});
scalar!(Kind, "Kind", {
    "enum": Kind::ALL.map(Kind::as_str),
    "description": "The technology that makes a slice of a GPU."
});
scalar!(IsolationClass, "IsolationClass", {
    "enum": IsolationClass::ALL.map(|class| class.to_string()),
    "description": "The isolation of a pod from its neighbours."
});
