//! The fields that every object of an API server has.

use serde_json::{Map, Value, json};

/// The creation time of every object.
pub const CREATED: &str = "2026-01-01T00:00:00Z";

/// Conditions of these types that hold.
pub fn conditions(kinds: &[&str]) -> Vec<Value> {
    let holds = |kind: &&str| json!({"type": kind, "status": "True", "lastProbeTime": null, "lastTransitionTime": CREATED});
    kinds.iter().map(holds).collect()
}

/// Adds the fields' owner, which makes a good part of an object's text.
pub fn owned(mut object: Value, manager: &str) -> Value {
    let fields = fields(&object);
    object["metadata"]["managedFields"] = json!([{
        "manager": manager, "operation": "Update", "apiVersion": object["apiVersion"], "time": CREATED,
        "fieldsType": "FieldsV1", "fieldsV1": fields,
    }]);
    object
}

/// The fields of a value in the form of `managedFields`.
fn fields(value: &Value) -> Value {
    let named = |item: &Value| {
        let key = ["name", "type"].into_iter().find(|key| item.get(key).is_some())?;
        Some((format!("k:{}", json!({key: item[key]})), fields(item)))
    };
    match value {
        Value::Object(all) => all.iter().map(|(key, value)| (format!("f:{key}"), fields(value))).collect(),
        Value::Array(all) => all.iter().filter_map(named).collect::<Map<_, _>>().into(),
        _ => json!({}),
    }
}
