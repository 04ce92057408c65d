//! Whole GPUs and time-slicing replicas: resource names, device ids and labels of each layout, chosen by the node's
//! label.

use kerf_nvml_mock::Model;
use kerf_tests::nvidia_plugin::StaticNodeSpec;

use crate::nvidia_plugin::scene::{Scene, replicas, until_labels};

const PRODUCT: &str = "NVIDIA-A100-SXM4-80GB";

#[tokio::test(flavor = "multi_thread")]
async fn a_label_takes_a_node_through_the_layouts_of_whole_gpus() {
    let scene = Scene::start().await;
    let node = scene.node(StaticNodeSpec::new("a", Model::A100Gb80, 2)).await;
    let uuids: Vec<String> = node.gpus().unwrap().gpus.into_iter().map(|gpu| gpu.uuid).collect();
    let base = [("gpu.count", "2"), ("gpu.memory", "81920"), ("mig.capable", "true"), ("mig.strategy", "-")];

    node.until_allocatable(&[("gpu", "2")]).await.unwrap();
    assert!(
        node.kubelet().healthy_devices()["nvidia.com/gpu"].iter().eq({
            let mut sorted = uuids.clone();
            sorted.sort();
            sorted
        }
        .iter())
    );
    until_labels(&node, &base).await;
    until_labels(
        &node,
        &[
            ("gpu.product", PRODUCT),
            ("gpu.replicas", "1"),
            ("gpu.sharing-strategy", "none"),
            ("gpu.family", "ampere"),
            ("gpu.mode", "compute"),
        ],
    )
    .await;

    for (layout, count, each) in [("time-sliced-4", "8", 4), ("time-sliced-2", "4", 2)] {
        node.choose(Some(layout)).await.unwrap();
        node.until_allocatable(&[("gpu", count)]).await.unwrap();
        let found = replicas(&node, "nvidia.com/gpu");
        assert!(
            found.values().all(|number| *number == each) && uuids.iter().all(|uuid| found.contains_key(uuid))
        );
        let shared = format!("{PRODUCT}-SHARED");
        let number = each.to_string();
        until_labels(
            &node,
            &[("gpu.product", &shared), ("gpu.replicas", &number), ("gpu.sharing-strategy", "time-slicing")],
        )
        .await;
        until_labels(&node, &base).await;
    }

    node.choose(Some("renamed-4")).await.unwrap();
    node.until_allocatable(&[("gpu.shared", "8")]).await.unwrap();
    assert_eq!(replicas(&node, "nvidia.com/gpu.shared").len(), 2);
    assert_eq!(node.allocatable().await.unwrap()["gpu"], "0");
    assert_eq!(node.capacity().await.unwrap()["gpu"], "4", "for five minutes after the plugin is gone");
    until_labels(
        &node,
        &[("gpu.product", PRODUCT), ("gpu.replicas", "4"), ("gpu.sharing-strategy", "time-slicing")],
    )
    .await;

    node.choose(None).await.unwrap();
    node.until_allocatable(&[("gpu", "2")]).await.unwrap();
    assert_eq!(node.allocatable().await.unwrap()["gpu.shared"], "0");
    until_labels(&node, &[("gpu.product", PRODUCT), ("gpu.replicas", "1"), ("gpu.sharing-strategy", "none")])
        .await;
    scene.end(vec![node]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_model_is_labelled_with_its_product_and_memory() {
    let models = [
        (Model::T4, "Tesla-T4", "turing", "false"),
        (Model::L4, "NVIDIA-L4", "ada-lovelace", "false"),
        (Model::A10G, "NVIDIA-A10G", "ampere", "false"),
        (Model::A100Gb40, "NVIDIA-A100-SXM4-40GB", "ampere", "true"),
        (Model::H100, "NVIDIA-H100-80GB-HBM3", "hopper", "true"),
    ];
    let scene = Scene::start().await;
    let mut nodes = Vec::new();
    for (number, (model, ..)) in models.iter().enumerate() {
        let spec = StaticNodeSpec::new(&format!("n{number}"), *model, 1).layout("time-sliced-4");
        nodes.push(scene.node(spec).await);
    }
    for (node, (model, product, family, mig)) in nodes.iter().zip(models) {
        let product = format!("{product}-SHARED");
        let memory = model.total_mib().to_string();
        until_labels(
            node,
            &[
                ("gpu.product", &product),
                ("gpu.memory", &memory),
                ("gpu.family", family),
                ("mig.capable", mig),
                ("gpu.count", "1"),
                ("gpu.replicas", "4"),
            ],
        )
        .await;
        node.until_allocatable(&[("gpu", "4")]).await.unwrap();
    }
    scene.end(nodes).await;
}

/// config-manager compares the link's target, not the content, so a changed layout needs a new key.
#[tokio::test(flavor = "multi_thread")]
async fn the_plugin_ignores_a_layout_that_changes_under_its_key() {
    let scene = Scene::start().await;
    let node = scene.node(StaticNodeSpec::new("a", Model::T4, 1).layout("time-sliced-4")).await;
    node.until_allocatable(&[("gpu", "4")]).await.unwrap();
    let before = node.reloads();
    let changed = ("time-sliced-4", crate::nvidia_plugin::scene::LAYOUTS[1].1);
    let anew = ("time-sliced-4-b", crate::nvidia_plugin::scene::LAYOUTS[1].1);
    node.write_layouts(&[crate::nvidia_plugin::scene::LAYOUTS[0], changed, anew]).await.unwrap();
    // The new key is chosen after the volume shows it, with the old one's new content beside it.
    node.until_layout_is_there("time-sliced-4-b").await.unwrap();
    tokio::time::sleep(std::time::Duration::from_millis(500)).await;
    assert_eq!((node.reloads(), node.allocatable().await.unwrap()["gpu"].as_str()), (before, "4"));
    node.choose(Some("time-sliced-4-b")).await.unwrap();
    node.until_allocatable(&[("gpu", "2")]).await.unwrap();
    assert_eq!(node.reloads(), before + 1);
    scene.end(vec![node]).await;
}
