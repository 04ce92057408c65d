//! MIG under each strategy: resource names, device ids and labels.

use kerf_nvml_mock::Model;
use kerf_tests::nvidia_plugin::StaticNodeSpec;

use crate::nvidia_plugin::scene::{Scene, replicas, until_labels};

#[tokio::test(flavor = "multi_thread")]
async fn instances_are_offered_according_to_the_strategy() {
    let scene = Scene::start().await;
    let singles: Vec<(u32, &str)> = (0..7).map(|_| (0, "1g.5gb")).collect();
    let single =
        scene.node(StaticNodeSpec::new("s", Model::A100Gb40, 1).cut(&singles).layout("mig-single")).await;
    let mixed = [(0, "3g.40gb"), (0, "2g.20gb"), (0, "1g.10gb"), (0, "1g.10gb"), (1, "7g.80gb")];
    let mixed =
        scene.node(StaticNodeSpec::new("m", Model::A100Gb80, 2).cut(&mixed).layout("mig-mixed")).await;
    let hopper = [(0, "1g.10gb"), (0, "1g.10gb+me"), (0, "1g.20gb")];
    let hopper = scene.node(StaticNodeSpec::new("h", Model::H100, 1).cut(&hopper).layout("mig-mixed")).await;

    single.until_allocatable(&[("gpu", "7")]).await.unwrap();
    let mut uuids: Vec<String> =
        single.gpus().unwrap().slices().into_iter().flat_map(|s| s.mig_uuids).collect();
    uuids.sort();
    assert!(single.kubelet().healthy_devices()["nvidia.com/gpu"].iter().eq(uuids.iter()));
    until_labels(
        &single,
        &[
            ("gpu.product", "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb"),
            ("gpu.count", "7"),
            ("gpu.memory", "4864"),
            ("gpu.replicas", "1"),
            ("gpu.sharing-strategy", "none"),
            ("gpu.multiprocessors", "14"),
            ("gpu.slices.gi", "1"),
            ("gpu.slices.ci", "1"),
            ("mig.strategy", "single"),
            ("mps.capable", "false"),
        ],
    )
    .await;

    mixed
        .until_allocatable(&[
            ("mig-1g.10gb", "2"),
            ("mig-2g.20gb", "1"),
            ("mig-3g.40gb", "1"),
            ("mig-7g.80gb", "1"),
        ])
        .await
        .unwrap();
    until_labels(
        &mixed,
        &[
            ("gpu.product", "NVIDIA-A100-SXM4-80GB"),
            ("gpu.count", "2"),
            ("gpu.memory", "81920"),
            ("gpu.replicas", "0"),
            ("gpu.sharing-strategy", "none"),
            ("mig.strategy", "mixed"),
            ("mig-1g.10gb.count", "2"),
            ("mig-1g.10gb.product", "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb"),
            ("mig-1g.10gb.memory", "9728"),
            ("mig-1g.10gb.replicas", "1"),
            ("mig-1g.10gb.sharing-strategy", "none"),
            ("mig-3g.40gb.memory", "40192"),
            ("mig-3g.40gb.slices.gi", "3"),
            ("mig-7g.80gb.count", "1"),
        ],
    )
    .await;

    // This version of the plugin offers the instance with the media extension under the plain name
    // (k8s-device-plugin#1807); discovery distinguishes the two.
    hopper.until_allocatable(&[("mig-1g.10gb", "2"), ("mig-1g.20gb", "1")]).await.unwrap();
    until_labels(&hopper, &[("mig-1g.10gb.me.count", "1"), ("mig-1g.10gb.count", "1")]).await;

    mixed.choose(Some("mig-mixed-sliced")).await.unwrap();
    mixed
        .until_allocatable(&[
            ("mig-1g.10gb", "4"),
            ("mig-2g.20gb", "1"),
            ("mig-3g.40gb", "1"),
            ("mig-7g.80gb", "1"),
        ])
        .await
        .unwrap();
    assert!(
        replicas(&mixed, "nvidia.com/mig-1g.10gb")
            .into_iter()
            .all(|(id, n)| id.starts_with("MIG-") && n == 2)
    );
    until_labels(
        &mixed,
        &[
            ("mig-1g.10gb.product", "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb-SHARED"),
            ("mig-1g.10gb.count", "2"),
            ("mig-1g.10gb.replicas", "2"),
            ("mig-1g.10gb.sharing-strategy", "time-slicing"),
            ("mig-2g.20gb.replicas", "1"),
        ],
    )
    .await;
    mixed.choose(Some("default")).await.unwrap();
    mixed.until_allocatable(&[("gpu", "2")]).await.unwrap();
    until_labels(&mixed, &[("mig.strategy", "-"), ("mig-1g.10gb.count", "-"), ("gpu.replicas", "0")]).await;
    scene.end(vec![single, mixed, hopper]).await;
}

/// GPU Operator sets the variable for all nodes by its `ClusterPolicy`, and the layout's own strategy is then ignored.
#[tokio::test(flavor = "multi_thread")]
async fn a_strategy_given_as_a_variable_wins_over_the_layouts() {
    let scene = Scene::start().await;
    let mut spec = StaticNodeSpec::new("m", Model::A100Gb80, 1).cut(&[(0, "1g.10gb")]).layout("mig-single");
    spec.mig_strategy = Some("mixed".to_owned());
    let node = scene.node(spec).await;
    node.until_allocatable(&[("mig-1g.10gb", "1")]).await.unwrap();
    until_labels(&node, &[("mig.strategy", "mixed"), ("mig-1g.10gb.count", "1")]).await;
    scene.end(vec![node]).await;
}
