use super::*;
use crate::bench::Technology;
use crate::bench::plan::Target;
use kerf_core::contract::GpuNodeSpec;
use kerf_core::inventory::NodeInventory;
use kerf_core::testing::node_status;
use kerf_core::units::{ComputePercent, SizeGb};

fn planned(technology: Technology, threads: Option<u8>) -> Planned {
    let status = node_status(&["L4-24GB"]);
    let gpu = NodeInventory::from_spec(&GpuNodeSpec::default(), &status).gpus.remove(0);
    let target = Target { node: "n".to_owned(), gpu };
    Planned {
        technology,
        copies: 3,
        threads: threads.and_then(ComputePercent::new),
        size: SizeGb(10),
        target,
    }
}

#[test]
fn a_point_is_a_deployment_whose_pods_ask_for_slices_of_one_gpu() {
    let template = serde_json::json!({"metadata": {"labels": {"team": "a"}}, "spec": {"containers": [{"name": "client"}]}});
    let subject = Subject {
        template: serde_json::from_value(template).unwrap(),
        container: "client".to_owned(),
        files: true,
    };
    let asks = asks(&planned(Technology::MpsLimited, Some(14)), "client");
    insta::assert_yaml_snapshot!(deployment("run-1", "kerf-sharing-mps-limited-3", &subject, 3, &asks));
}

#[test]
fn each_technology_asks_for_the_class_that_brings_its_kind() {
    let class = |technology| asks(&planned(technology, None), "c")[keys::ISOLATION].clone();
    assert_eq!(
        Technology::ALL.map(class),
        ["none", "memory", "memory", "hardware", "hardware"].map(str::to_owned)
    );
}

/// The client imports its other files, so the ConfigMap needs all of them.
#[test]
fn the_config_map_has_every_file_of_the_client() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/examples/sharing/client");
    let there =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let there: std::collections::BTreeSet<String> =
        there.filter(|name| !matches!(name.as_str(), "__pycache__" | "kustomization.yaml")).collect();
    let brought = config_map("run-1");
    assert_eq!(brought.data.unwrap().into_keys().collect::<std::collections::BTreeSet<_>>(), there);
    assert_eq!(brought.metadata.labels.unwrap()["app.kubernetes.io/instance"], "run-1");
}
