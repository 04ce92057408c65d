//! values.schema.json has each value of values.yaml and no others, and Helm reports the path of an unknown key.
#![expect(clippy::unwrap_used, reason = "tests")]

use kerf_tests::chart::template_with;
use kerf_tests::cluster::root;
use serde_json::{Value, json};

/// Paths where a parent chart may add keys.
const OPEN: [&str; 1] = ["/global"];

fn read(name: &str) -> Value {
    let text = std::fs::read_to_string(root().join("deploy/chart").join(name)).unwrap();
    serde_saphyr::from_str(&text).unwrap()
}

/// A node of the schema, after its reference is followed.
fn resolved<'a>(schema: &'a Value, node: &'a Value) -> &'a Value {
    node["$ref"].as_str().map_or(node, |reference| schema.pointer(reference.trim_start_matches('#')).unwrap())
}

/// Compares a value with its node, and returns the paths of the maps with known keys.
fn compare(schema: &Value, node: &Value, value: &Value, path: &str, wrong: &mut Vec<String>) -> Vec<String> {
    let node = resolved(schema, node);
    let Some(properties) = node["properties"].as_object() else {
        if !["type", "enum", "anyOf"].iter().any(|word| !node[word].is_null()) {
            wrong.push(format!("{path}: the schema says nothing of it"));
        }
        return Vec::new();
    };
    let Some(fields) = value.as_object() else {
        wrong.push(format!("{path}: the schema has a map there"));
        return Vec::new();
    };
    if node["additionalProperties"] != false && !OPEN.contains(&path) {
        wrong.push(format!("{path}: other keys are taken"));
    }
    let mut maps = vec![path.to_owned()];
    for (name, value) in fields {
        let path = format!("{path}/{name}");
        match properties.get(name) {
            Some(node) => maps.extend(compare(schema, node, value, &path, wrong)),
            None => wrong.push(format!("{path}: not in the schema")),
        }
    }
    // For fields that Kubernetes defines (resources, strategies) the default may omit some.
    let is_kerfs = fields.len() > 2 || path.is_empty();
    let stale = properties.keys().filter(|name| is_kerfs && !fields.contains_key(*name));
    wrong.extend(stale.map(|name| format!("{path}/{name}: not in values.yaml")));
    maps
}

#[test]
fn the_schema_has_each_value_and_rejects_an_unknown_key_with_its_path() {
    let (schema, values) = (read("values.schema.json"), read("values.yaml"));
    let mut wrong = Vec::new();
    let maps = compare(&schema, &schema, &values, "", &mut wrong);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(maps.len() > 30, "{maps:?}");

    let mut unknown = json!({});
    for path in &maps {
        let map = path.split('/').skip(1).fold(&mut unknown, |at, name| &mut at[name]);
        map["unknownKey"] = json!(1);
    }
    let refused = template_with("kerf-system", &unknown).unwrap_err().to_string();
    for path in maps.iter().filter(|path| !OPEN.contains(&path.as_str())) {
        let said = format!("at '{path}': additional properties 'unknownKey' not allowed");
        assert!(refused.contains(&said), "{said}\n{refused}");
    }
}
