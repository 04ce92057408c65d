//! Tests of the README's table of names: which name a pod gets on which cluster, under the shipped policy.

use super::*;
use kerf_core::contract::GpuNodeSpec;
use kerf_core::kind::Kind;
use kerf_core::policy::{MappedNames, SupplyIndex};
use kerf_core::testing::{node_status, with_neutral_names};
use kerf_runtime::policy_file;
use serde_json::json;
use std::path::Path;
use std::sync::Arc;

const MARKS: [&str; 2] = ["<!-- names -->\n", "<!-- /names -->\n"];

/// The clusters with the models of their nodes, and the kinds if these differ from the model's.
#[expect(clippy::type_complexity, reason = "a table reads best in one piece")]
const CLUSTERS: [(&str, &[(&str, &[Kind])]); 5] = [
    ("MIG only", &[("H100-80GB", &[])]),
    ("MPS only", &[("L40S-48GB", &[Kind::Mps])]),
    ("time slices only", &[("L40S-48GB", &[Kind::TimeSlicing])]),
    ("all three", &[("H100-80GB", &[]), ("L40S-48GB", &[Kind::Mps]), ("L40S-48GB", &[Kind::TimeSlicing])]),
    ("no GPU yet", &[]),
];

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

fn supply(nodes: &[(&str, &[Kind])]) -> Supply {
    let mut index = SupplyIndex::default();
    for (number, (model, kinds)) in nodes.iter().enumerate() {
        let mut status = with_neutral_names(node_status(&[model]));
        if !kinds.is_empty() {
            status.gpus[0].kinds = kinds.to_vec();
        }
        index.show(format!("n{number}").as_str().into(), &GpuNodeSpec::default(), &status);
    }
    index.supply()
}

fn asking(limit: Option<&str>, isolation: Option<&str>) -> Value {
    let mut pod = json!({"metadata": {"annotations": {}}, "spec": {"containers": [{"name": "main"}]}});
    match limit {
        Some(limit) => pod["spec"]["containers"][0]["resources"] = json!({"limits": {limit: "1"}}),
        None => pod["metadata"]["annotations"]["kerf.dev/gpu-memory"] = json!("10Gi"),
    }
    if let Some(isolation) = isolation {
        pod["metadata"]["annotations"]["kerf.dev/isolation"] = json!(isolation);
    }
    pod
}

fn policies() -> Policies {
    policy_file::read(&root().join("policies/default.yaml")).unwrap()
}

/// The name that the pod gets, and whether a warning says that no GPU serves it yet.
fn named(pod: &Value, supply: &Supply) -> String {
    let admission = admit(pod, "default", &policies(), supply);
    let Admission::Patched { document, warnings, .. } = admission else { panic!("{admission:?}") };
    let unserved = warnings.iter().any(|warning| warning.contains("at present"));
    format!("`{}`{}", document.containers[0].resource, if unserved { " ¹" } else { "" })
}

fn row(first: &str, cells: impl Iterator<Item = String>) -> String {
    format!("| {first} | {} |\n", cells.collect::<Vec<_>>().join(" | "))
}

fn table() -> String {
    let ten = "`kerf.dev/gpu-10gb: 1` or `gpu-memory: 10Gi`";
    let mut table = row("the pod asks", CLUSTERS.iter().map(|(name, _)| (*name).to_owned()));
    table += &row("---", CLUSTERS.iter().map(|_| "---".to_owned())).replace(' ', "");
    for (text, isolation) in [
        (ten.to_owned(), None),
        ("the same, `isolation: hardware`".to_owned(), Some("hardware")),
        ("the same, `isolation: none`".to_owned(), Some("none")),
    ] {
        let cells = CLUSTERS.iter().map(|(cluster, nodes)| {
            let supply = supply(nodes);
            let [first, bare, noted] = [Some("kerf.dev/gpu-10gb"), Some("gpu-10gb"), None]
                .map(|limit| named(&asking(limit, isolation), &supply));
            assert_eq!([&bare, &noted], [&first; 2], "{cluster}: one request in three spellings");
            first
        });
        table += &row(&text, cells);
    }
    let mig = asking(Some("nvidia.com/mig-1g.10gb"), None);
    table + &row("`nvidia.com/mig-1g.10gb: 1`", CLUSTERS.iter().map(|(_, nodes)| named(&mig, &supply(nodes))))
}

#[test]
fn the_readmes_table_has_the_names_that_pods_get() {
    let page = root().join("README.md");
    let text = std::fs::read_to_string(&page).unwrap();
    let [begin, end] = MARKS;
    let (before, rest) = text.split_once(begin).expect("the mark before the table");
    let (found, after) = rest.split_once(end).expect("the mark behind it");
    let table = table();
    if std::env::var_os("KERF_UPDATE").is_some() {
        std::fs::write(&page, format!("{before}{begin}{table}{end}{after}")).unwrap();
    } else {
        assert_eq!(found, table, "KERF_UPDATE=1 writes it");
    }
}

#[test]
fn a_mapped_name_is_not_given() {
    let (_, nodes) = CLUSTERS[0];
    let names: MappedNames = [("nvidia.com/mig-1g.10gb".to_owned(), "mig.example".to_owned())].into();
    let supply = supply(nodes).mapped(Arc::new(names));
    for limit in [Some("kerf.dev/gpu-10gb"), Some("nvidia.com/mig-1g.10gb"), None] {
        let before = asking(limit, None);
        assert_eq!(named(&before, &supply), "`kerf.dev/gpu-10gb`", "{limit:?}");
        let mut after = before.clone();
        let Admission::Patched { ops, document, .. } = admit(&before, "default", &policies(), &supply) else {
            panic!("{limit:?}")
        };
        assert_eq!(document.containers[0].kinds, [Kind::Mig]);
        assert_eq!(document.containers[0].profile.is_some(), limit == Some("nvidia.com/mig-1g.10gb"));
        json_patch::patch(&mut after, &ops).unwrap();
        assert_eq!(admit(&after, "default", &policies(), &supply), Admission::Untouched);
    }
}

#[test]
fn without_neutral_names_the_first_kind_is_given() {
    let (_, nodes) = CLUSTERS[3];
    let supply = supply(nodes).with_concrete_names();
    let given = |isolation| named(&asking(None, isolation), &supply);
    assert_eq!(given(None), "`nvidia.com/mig-1g.10gb`");
    assert_eq!(given(Some("none")), "`nvidia.com/gpu-10gb.shared`");
}
