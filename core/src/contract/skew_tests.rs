//! Tests with documents of another version: they have fields, anywhere, that this version does not have.

use super::*;
use crate::kind::Kind;
use crate::names::{DeviceId, GpuUuid, SliceId};
use crate::packing::Fleet;
use crate::policy::{NodePolicyDocument, PolicyDocument};
use crate::testing::{node_status, owner_in_epoch, request, slice_status};
use crate::{ledger, request::GpuSelection};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

const NEW: &str = "aFieldOfTomorrow";

/// The places of objects in a document, each as a JSON pointer. Tables by name are left out, because their keys are no
/// fields.
fn objects(document: &Value, tables: &[&str]) -> Vec<String> {
    let (mut found, mut left) = (Vec::new(), vec![(String::new(), document)]);
    while let Some((at, value)) = left.pop() {
        match value {
            Value::Object(fields) => {
                let fields = fields.iter().filter(|(name, _)| !tables.contains(&name.as_str()));
                left.extend(fields.map(|(name, value)| (format!("{at}/{name}"), value)));
                found.push(at);
            }
            Value::Array(items) => {
                left.extend(items.iter().enumerate().map(|(index, value)| (format!("{at}/{index}"), value)));
            }
            _ => {}
        }
    }
    found
}

fn with_more(document: &Value, place: &str) -> Value {
    let mut more = document.clone();
    more.pointer_mut(place).unwrap()[NEW] = json!({"any": ["thing"]});
    more
}

/// Checks that `read` ignores one more field in each object of `document`, and returns the number of objects.
fn overlooks<D>(document: &D, tables: &[&str], read: impl Fn(Value) -> D) -> usize
where
    D: Serialize + PartialEq + std::fmt::Debug,
{
    let written = json!(document);
    let places = objects(&written, tables);
    for place in &places {
        assert_eq!(read(with_more(&written, place)), *document, "a field in {place:?}");
    }
    places.len()
}

/// Checks that an admin's document with one more field is refused, and that the message names the field.
fn refuses<D: DeserializeOwned + std::fmt::Debug>(document: &Value, tables: &[&str]) -> usize {
    serde_json::from_value::<D>(document.clone()).unwrap();
    let places = objects(document, tables);
    for place in &places {
        let refusal = serde_json::from_value::<D>(with_more(document, place)).unwrap_err().to_string();
        assert!(refusal.contains(NEW), "a field in {place:?}: {refusal}");
    }
    places.len()
}

/// A request document with every field set.
fn full_request() -> RequestDocument {
    let mut request = request("nvidia.com/gpu-10gb", 2);
    request.containers[0].distinct_gpus = true;
    RequestDocument {
        gpus: GpuSelection { models: vec!["T4-16GB".to_owned()], ..GpuSelection::default() },
        nodes: [("pool".to_owned(), "a".to_owned())].into(),
        asked: Some([("main".to_owned(), [("gpu-10gb".to_owned(), "1".to_owned())].into())].into()),
        chosen: Some(Chosen {
            policy: "default".to_owned(),
            dialect: Some("nvidia".to_owned()),
            named: vec!["main".to_owned()],
        }),
        root_processes: RootProcesses::Allowed,
        ..request
    }
}

/// A node with a MIG slice that is reserved and held.
fn node() -> (GpuNodeSpec, GpuNodeStatus) {
    let status = node_status(&["H100-80GB", "T4-16GB"]);
    let ask = request("nvidia.com/mig-1g.10gb", 1);
    let spec =
        ledger::reserve(&GpuNodeSpec::default(), &status, &ask, &owner_in_epoch("p"), &Fleet::default())
            .unwrap();
    let condition = Condition {
        kind: Condition::READY.to_owned(),
        status: ConditionStatus::True,
        reason: "Serving".to_owned(),
        message: String::new(),
        last_transition_time: "2026-01-01T00:00:00Z".to_owned(),
    };
    let holder =
        Holder { namespace: "default".to_owned(), pod: "p".to_owned(), container: "main".to_owned() };
    let device = Some(DeviceId::new("MIG-1"));
    let slice = SliceStatus { holder: Some(holder), device, ..slice_status(&spec.slices[0], true) };
    (spec, GpuNodeStatus { slices: vec![slice], conditions: vec![condition], ..status })
}

#[test]
fn an_unknown_field_of_another_program_is_ignored() {
    let (spec, status) = node();
    let from = |text: &Value| text.to_string();
    let slice = AssignedSlice {
        container: "main".to_owned(),
        id: SliceId::new("1"),
        gpu: GpuUuid::new("GPU-1"),
        shape: spec.slices[0].shape,
    };
    let passed = vec![PassedKind { full: 1, ..PassedKind::new(Kind::Mps) }];
    let assignment = AssignmentDocument { version: 1, slices: vec![slice], devices: Vec::new(), passed };
    let counts = [
        overlooks(&full_request(), &["asked", "nodes"], |value| {
            RequestDocument::parse(&from(&value)).unwrap()
        }),
        overlooks(&spec, &[], |value| serde_json::from_value(value).unwrap()),
        overlooks(&status, &["models"], |value| GpuNodeStatus::parse(value).unwrap()),
        overlooks(&assignment, &[], |value| serde_json::from_value(value).unwrap()),
    ];
    assert!(counts.iter().sum::<usize>() >= 20, "{counts:?}");
}

#[test]
fn an_unknown_field_of_an_admin_is_refused_by_name() {
    let rule = json!({
        "select": {"models": ["H100-80GB"]}, "kinds": ["mps"], "mps": {"strict": true},
        "timeSlicing": {"length": "short"}, "layout": [{"resource": "nvidia.com/gpu-10gb", "count": 2}],
    });
    let node = json!({"gpus": [rule], "warm": [{"resource": "nvidia.com/gpu-10gb", "count": 1}]});
    let mut of_nodes = node.clone();
    of_nodes["match"] = json!({"names": ["gpu-*"], "labels": {"a": "b"}});
    let of_pods = json!({
        "match": {"namespaces": ["a"], "labels": {"a": "b"}}, "defaultIsolation": "memory", "isolation": {"memory": ["mig"]},
        "tolerations": [{"key": "a"}], "sizes": {"minGb": 1}, "maxPerPod": {"slices": 1}, "quota": {"slices": 1},
        "waiting": {"then": "tell"}, "preemption": {"movesOthers": false}, "packing": {"weights": {"1g.10gb": 200}},
    });
    let document = |kind: &str, spec: &Value| json!({"apiVersion": "kerf.dev/v1alpha1", "kind": kind, "metadata": {"name": "p"}, "spec": spec});
    let tables = ["labels", "isolation", "weights"];
    let counts = [
        refuses::<PolicyDocument>(&document("GpuPolicy", &of_pods), &tables),
        refuses::<NodePolicyDocument>(&document("GpuNodePolicy", &of_nodes), &tables),
        refuses::<NodePolicy>(&node, &tables),
    ];
    assert!(counts.iter().sum::<usize>() > 20, "{counts:?}");
    // An admin may have written a GpuNode by hand, so unknown fields are refused there.
    let by_hand = json!({"policy": with_more(&node, "/gpus/0")});
    assert!(serde_json::from_value::<GpuNodeSpec>(by_hand).unwrap_err().to_string().contains(NEW));
}
