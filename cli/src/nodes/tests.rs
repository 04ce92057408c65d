use super::show::{Managed, Shown};
use super::*;
use clap::Parser;
use kerf_core::contract::SliceState;
use serde_json::{Value, json};

#[derive(Debug, Parser)]
struct Cli {
    #[command(flatten)]
    args: Args,
}

const MIG: &str = include_str!("../explain/testdata/h100.yaml");

fn object(value: Value) -> GpuNode {
    serde_json::from_value(value).unwrap()
}

fn from_yaml(text: &str) -> Managed {
    from_object(&serde_saphyr::from_str(text).unwrap())
}

fn shared(shares: usize, gb: u64) -> Managed {
    let slice = |number: usize| {
        let holder = json!({"namespace": "ml", "pod": format!("web-{number}"), "container": "main"});
        json!({"id": format!("s{number}"), "gpu": "GPU-2", "shape": {"kind": "mps", "sizeGb": gb}, "state": "Held",
            "memoryMib": gb * 1024, "holder": holder})
    };
    let reserved = json!({"id": "s99", "gpu": "GPU-2", "shape": {"kind": "mps", "sizeGb": 4}, "state": "Preparing", "memoryMib": 4096,
        "reservation": {"uid": "u", "namespace": "ml", "pod": "trainer-7d9f8b6c54-x2x2x", "container": "main", "resource": "nvidia.com/gpu-4gb"}});
    from_object(&object(json!({
        "metadata": {"name": "l4"},
        "status": {
            "summary": {},
            "gpus": [{"uuid": "GPU-2", "index": 0, "model": "L4-24GB", "memoryMib": 23034, "kinds": ["mps"], "outsideMib": 3000,
                "message": "XID 79: GPU has fallen off the bus"}],
            "slices": (0..shares).map(slice).chain([reserved]).collect::<Vec<_>>(),
            "conditions": [{"type": "Ready", "status": "False", "reason": "Starting", "message": "the kubelet does not answer", "lastTransitionTime": ""}],
        },
    })))
}

fn plugin() -> Vec<offered::Offered> {
    let machine: Machine = serde_json::from_value(json!({
        "metadata": {"name": "t4", "labels": {
            "nvidia.com/gpu.product": "Tesla-T4-SHARED", "nvidia.com/gpu.memory": "15360", "nvidia.com/gpu.count": "1",
            "nvidia.com/gpu.replicas": "4", "nvidia.com/gpu.sharing-strategy": "time-slicing",
        }},
        "status": {"allocatable": {"nvidia.com/gpu.shared": "4", "nvidia.com/gpu": "0", "cpu": "8"}},
    }))
    .unwrap();
    let pod = |name: &str, phase: &str| {
        let resources = json!({"requests": {"nvidia.com/gpu.shared": "1"}});
        let sidecar = json!({"name": "b", "restartPolicy": "Always", "resources": resources});
        serde_json::from_value(json!({
            "metadata": {"namespace": "ml", "name": name},
            "spec": {"nodeName": "t4", "initContainers": [sidecar], "containers": [{"name": "a", "resources": resources}]},
            "status": {"phase": phase},
        }))
        .unwrap()
    };
    let node = plugin_nodes::served(&machine).unwrap();
    let nodes = [("t4".to_owned(), node)].into();
    let nodes = plugin_nodes::with_pods(nodes, &[pod("llm", "Running"), pod("done", "Succeeded")]);
    offered::offered("t4", &nodes["t4"])
}

fn all() -> Shown {
    Shown { managed: vec![from_yaml(MIG), shared(2, 6)], device_plugin: plugin(), ..Shown::default() }
}

fn text(shown: Shown, format: Format, width: usize) -> String {
    let text = output::render(&Shown { width, ..shown }, format).unwrap();
    anstream::adapter::strip_str(&text).to_string()
}

fn managed(managed: Vec<Managed>) -> Shown {
    Shown { managed, ..Shown::default() }
}

#[tokio::test]
async fn the_api_server_applies_the_selector_to_both_kinds_of_nodes() {
    let client = kerf_runtime::stand_in::client(|asked| {
        let items = match (asked.path.as_str(), asked.query.contains("labelSelector=zone%3Da")) {
            ("/apis/kerf.dev/v1alpha1/gpunodes", false) => {
                vec![json!({"metadata": {"name": "n1"}}), json!({"metadata": {"name": "n2"}})]
            }
            ("/api/v1/nodes", true) => {
                let labels = json!({"nvidia.com/gpu.product": "Tesla-T4", "nvidia.com/gpu.count": "1",
                    "nvidia.com/gpu.memory": "15360", "zone": "a"});
                let plugin = json!({"metadata": {"name": "t4", "labels": labels},
                    "status": {"allocatable": {"nvidia.com/gpu": "1"}}});
                vec![json!({"metadata": {"name": "n2"}}), plugin]
            }
            ("/api/v1/pods", false) => Vec::new(),
            _ => return kerf_runtime::stand_in::refusal(403, &format!("{} {}", asked.path, asked.query)),
        };
        (200, json!({"metadata": {}, "items": items}))
    });
    let args = Cli::parse_from(["kerf", "-l", "zone=a"]).args;
    let shown = fetch(&client, &args).await.unwrap();
    assert_eq!(shown.managed.iter().map(|node| node.name.as_str()).collect::<Vec<_>>(), ["n2"]);
    let shown = serde_json::to_value(&shown).unwrap();
    assert_eq!(shown["devicePlugin"][0]["node"], "t4");
    assert_eq!(shown["devicePlugin"].as_array().map(Vec::len), Some(1));
    assert!(Cli::try_parse_from(["kerf", "n1", "-l", "zone=a"]).is_err());
}

#[test]
fn slices_are_drawn_at_their_placement_with_their_holders() {
    insta::assert_snapshot!(text(all(), Format::Text, draw::WIDTH));
}

#[test]
fn slices_too_narrow_for_a_name_are_listed() {
    let shown = managed(vec![shared(16, 1)]);
    insta::assert_snapshot!(text(shown, Format::Text, 40));
}

#[test]
fn a_table_has_one_row_per_slice() {
    insta::assert_snapshot!(text(all(), Format::Wide, draw::WIDTH));
}

#[test]
fn programs_read_json_and_yaml() {
    let json: Value = serde_json::from_str(&text(all(), Format::Json, 0)).unwrap();
    let yaml: Value = serde_saphyr::from_str(&text(all(), Format::Yaml, 0)).unwrap();
    assert_eq!(json, yaml);
    assert_eq!(json["devicePlugin"][0]["used"], 2);
    assert_eq!(json["managed"][0]["gpus"][0]["slices"][0]["pod"], "team-a/detector");
}

/// A neutral name does not imply the kind, but the shape does.
#[test]
fn a_slice_is_listed_by_its_name_and_a_neutral_one_also_by_its_kind() {
    let mut node: Value = serde_saphyr::from_str(MIG).unwrap();
    node["status"]["slices"][0]["resource"] = json!("kerf.dev/gpu-10gb");
    node["status"]["slices"][2]["reservation"]["resource"] = json!("kerf.dev/gpu-40gb");
    let shown = || managed(vec![from_object(&object(node.clone()))]);
    let table = text(shown(), Format::Wide, draw::WIDTH);
    let names = ["kerf.dev/gpu-10gb (mig)", " - ", "kerf.dev/gpu-40gb (mig)"];
    for (line, name) in table.lines().skip(1).zip(names) {
        assert!(line.contains(name), "{table}");
    }
    let json: Value = serde_json::from_str(&text(shown(), Format::Json, 0)).unwrap();
    let slice = &json["managed"][0]["gpus"][0]["slices"][2];
    assert_eq!((&slice["resource"], &slice["shape"]["kind"]), (&json!("kerf.dev/gpu-40gb"), &json!("mig")));
}

/// Compute instances share the width of their GPU instance by their parts of its compute.
#[test]
fn compute_instances_share_their_gpu_instance() {
    let mut node: Value = serde_saphyr::from_str(MIG).unwrap();
    let part = |id: &str, start: u8| {
        let shape = json!({"kind": "mig", "profile": "3g.40gb", "start": 4, "size": 4, "part": {"start": start, "compute": 1}});
        json!({"id": id, "gpu": "GPU-1", "shape": shape, "state": "Idle", "memoryMib": 40192})
    };
    node["status"]["slices"] = json!([part("s2", 0), part("s3", 2)]);
    let shown = managed(vec![from_object(&object(node))]);
    insta::assert_snapshot!(text(shown, Format::Text, draw::WIDTH));
}

/// Replicas share the width of their GPU instance equally.
#[test]
fn replicas_share_their_gpu_instance() {
    let mut node: Value = serde_saphyr::from_str(MIG).unwrap();
    let turn = |id: &str, replica: u8| {
        let shape =
            json!({"kind": "mig", "profile": "3g.40gb", "start": 4, "size": 4, "part": {"replica": replica}});
        json!({"id": id, "gpu": "GPU-1", "shape": shape, "state": "Idle", "memoryMib": 40192})
    };
    node["status"]["slices"] = json!([turn("s2", 0), turn("s3", 2)]);
    let shown = managed(vec![from_object(&object(node))]);
    insta::assert_snapshot!(text(shown, Format::Text, draw::WIDTH));
}

#[test]
fn every_line_of_a_gpu_has_the_requested_width() {
    for width in [40, 60, 88, 133, 240] {
        let node = from_yaml(MIG);
        let (spec, status) = node.read.unwrap();
        let lines = draw::node("n", &spec, &status, width, &draw::plain);
        let widths: BTreeSet<usize> = lines[1..].iter().map(|line| line.chars().count()).collect();
        let [only] = widths.iter().copied().collect::<Vec<_>>()[..] else {
            panic!("{widths:?}:\n{}", lines.join("\n"))
        };
        assert!(only.abs_diff(width) <= 2, "{only} of {width}");
    }
}

#[test]
fn a_node_that_cannot_be_read_says_why_and_an_empty_cluster_says_so() {
    let bad = from_object(&object(json!({"metadata": {"name": "x"}, "status": {"gpus": 1}})));
    let shown = managed(vec![bad]);
    assert!(text(shown, Format::Text, 88).starts_with("x: failed to read GpuNode.status"));
    assert!(text(Shown::default(), Format::Text, 88).starts_with("No node has GPUs"));
    let silent = from_object(&object(json!({"metadata": {"name": "y"}})));
    let shown = managed(vec![silent]);
    assert_eq!(text(shown, Format::Text, 88), "y: its agent has not reported yet\n");
}

#[test]
fn a_table_names_the_nodes_without_a_row_and_why() {
    let bad = || from_object(&object(json!({"metadata": {"name": "x"}, "status": {"gpus": 1}})));
    let silent = from_object(&object(json!({"metadata": {"name": "y"}})));
    let serving = json!({"type": "Ready", "status": "True", "reason": "Serving", "message": "", "lastTransitionTime": ""});
    let empty = json!({"summary": {}, "gpus": [], "slices": [], "conditions": [serving]});
    let empty = from_object(&object(json!({"metadata": {"name": "z"}, "status": empty})));
    let shown = managed(vec![bad(), silent, empty]);
    let said = text(shown, Format::Wide, 88);
    let lines: Vec<&str> = said.lines().collect();
    assert!(lines[0].starts_with("x: failed to read GpuNode.status"), "{said}");
    assert_eq!(lines[1..], ["y: its agent has not reported yet", "z: its agent reports no GPU"]);
    let said = text(managed(vec![shared(1, 1), bad()]), Format::Wide, 88);
    assert!(said.starts_with("NODE") && said.contains("\nx: failed to read"), "{said}");
}

#[test]
fn the_pods_of_a_deployment_are_distinguished_by_their_last_letters() {
    assert_eq!(short_name("web-7d9f8b6c54-x2x2x"), "web-x2x2x");
    for whole in
        ["trainer-0", "llama-inference-0", "llama-embedding-0", "web-frontend-x2x2x", "web-7d9f8b6c54-0"]
    {
        assert_eq!(short_name(whole), whole);
    }
    assert_eq!(draw::coloured(Some(SliceState::Held), "a"), "\x1b[30m\x1b[42ma\x1b[0m");
    assert_eq!(draw::coloured(None, "a"), "a");
}
