//! The check itself. It supports the few keywords that Kubernetes' own schemas use: `$ref`, `allOf` around
//! one schema, `oneOf` of plain types, `type`, `enum`, `properties`, `additionalProperties`, `items`,
//! `required`. An unknown keyword is a fault too.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::Value;

/// A fault of an object, with the field's path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    path: String,
    what: String,
}

impl Fault {
    fn new(path: &str, what: impl Into<String>) -> Self {
        Self { path: path.to_owned(), what: what.into() }
    }

    pub(super) fn unknown_kind(api_version: &str, kind: &str) -> Self {
        Self::new("", format!("{api_version} {kind} is no kind of this version"))
    }
}

/// Prints a fault like `spec.replicas: string, which must be integer`.
impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path.trim_start_matches('.'), self.what)
    }
}

/// Keywords that [`check`] handles, or that do not restrict a value.
const KNOWN: [&str; 13] = [
    "$ref",
    "allOf",
    "oneOf",
    "type",
    "properties",
    "additionalProperties",
    "items",
    "required",
    "description",
    "default",
    "format",
    "enum",
    "nullable",
];

const REFERENCE: &str = "#/components/schemas/";

/// The faults of `object` by the schema of this name.
pub(super) fn check(schemas: &BTreeMap<String, Value>, name: &str, object: &Value) -> Vec<Fault> {
    let mut faults = Vec::new();
    let mut checker = Checker { schemas, faults: &mut faults };
    checker.named(name, object, "");
    faults
}

struct Checker<'a> {
    schemas: &'a BTreeMap<String, Value>,
    faults: &'a mut Vec<Fault>,
}

impl Checker<'_> {
    fn named(&mut self, name: &str, value: &Value, path: &str) {
        match self.schemas.get(name) {
            Some(schema) => self.value(schema, value, path),
            None => self.fault(path, format!("its schema {name} is not there")),
        }
    }

    fn fault(&mut self, path: &str, what: impl Into<String>) {
        self.faults.push(Fault::new(path, what));
    }

    fn value(&mut self, schema: &Value, value: &Value, path: &str) {
        let words = schema.as_object().into_iter().flat_map(|schema| schema.keys());
        for word in words.filter(|word| !KNOWN.contains(&word.as_str()) && !word.starts_with("x-kubernetes-"))
        {
            self.fault(path, format!("its schema says {word}, which is not checked here"));
        }
        if let Some(name) = schema["$ref"].as_str().and_then(|name| name.strip_prefix(REFERENCE)) {
            return self.named(name, value, path);
        }
        schema["allOf"].as_array().into_iter().flatten().for_each(|part| self.value(part, value, path));
        if let Some(ways) = schema["oneOf"].as_array()
            && !ways.iter().any(|way| is_a(value, way["type"].as_str().unwrap_or_default()))
        {
            self.fault(path, format!("{}, which none of its types is", kind(value)));
        }
        if let Some(allowed) = schema["enum"].as_array()
            && !allowed.contains(value)
        {
            self.fault(path, format!("{value} is none of the values that it may have"));
        }
        match schema["type"].as_str() {
            Some(expected) if !is_a(value, expected) => {
                self.fault(path, format!("{}, which must be {expected}", kind(value)));
            }
            Some("object") => self.object(schema, value, path),
            Some("array") => {
                for (index, item) in value.as_array().into_iter().flatten().enumerate() {
                    self.value(&schema["items"], item, &format!("{path}[{index}]"));
                }
            }
            _ => {}
        }
    }

    fn object(&mut self, schema: &Value, value: &Value, path: &str) {
        let Some(fields) = value.as_object() else { return };
        for name in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            if !fields.contains_key(name) {
                self.fault(path, format!("{name} is missing"));
            }
        }
        for (name, field) in fields {
            let path = format!("{path}.{name}");
            match (schema["properties"].get(name), schema.get("additionalProperties")) {
                (Some(known), _) | (None, Some(known @ Value::Object(_))) => self.value(known, field, &path),
                (None, Some(Value::Bool(true))) => {}
                // Some objects have any fields: a schema's default, a managed field's set.
                (None, _) if schema.get("properties").is_none() => {}
                (None, _) => self.fault(&path, "no such field"),
            }
        }
    }
}

fn is_a(value: &Value, expected: &str) -> bool {
    match expected {
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        expected => kind(value) == expected,
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn faults(value: &Value) -> Vec<String> {
        let schemas = json!({
            "Pod": {"type": "object", "required": ["spec"], "properties": {
                "spec": {"allOf": [{"$ref": "#/components/schemas/Spec"}], "default": {}},
                "labels": {"type": "object", "additionalProperties": {"type": "string"}},
                "raw": {"type": "object"},
            }},
            "Spec": {"type": "object", "properties": {
                "replicas": {"type": "integer"},
                "port": {"oneOf": [{"type": "integer"}, {"type": "string"}]},
                "items": {"type": "array", "items": {"$ref": "#/components/schemas/Spec"}},
                "strange": {"not": {}},
            }},
        });
        let schemas = serde_json::from_value(schemas).unwrap();
        check(&schemas, "Pod", value).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_known_field_of_its_type_is_valid() {
        let good = json!({
            "spec": {"replicas": 1, "port": "https", "items": [{"port": 1}]}, "labels": {"any": "x"}, "raw": {"a": 1},
        });
        assert_eq!(faults(&good), Vec::<String>::new());
    }

    #[test]
    fn each_fault_is_named_by_its_field() {
        let cases = [
            (json!({}), ": spec is missing"),
            (json!({"spec": {}, "specs": {}}), "specs: no such field"),
            (json!({"spec": {"replicas": "1"}}), "spec.replicas: string, which must be integer"),
            (json!({"spec": {"replicas": 1.5}}), "spec.replicas: number, which must be integer"),
            (json!({"spec": {"port": null}}), "spec.port: null, which none of its types is"),
            (json!({"spec": {"items": [{"prot": 1}]}}), "spec.items[0].prot: no such field"),
            (json!({"spec": {}, "labels": {"a": true}}), "labels.a: boolean, which must be string"),
            (json!({"spec": {"strange": 1}}), "spec.strange: its schema says not, which is not checked here"),
        ];
        for (object, expected) in cases {
            assert_eq!(faults(&object), [expected]);
        }
    }
}
