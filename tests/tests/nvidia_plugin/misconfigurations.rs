//! Layouts that NVIDIA's programs refuse, and what is visible of that from outside.

use kerf_nvml_mock::Model;
use kerf_tests::nvidia_plugin::{NvidiaPod, StaticNode, StaticNodeSpec};

use crate::nvidia_plugin::scene::{LAYOUTS, Scene, until_labels};

/// Chooses a layout on which the plugin exits, returns its last message, and goes back to the default.
async fn refused(node: &StaticNode, layout: &str, count: &str) -> String {
    node.choose(Some(layout)).await.unwrap();
    let exit = node.until_exit("nvidia-device-plugin").await.unwrap();
    assert_eq!(exit.code, 1, "{layout}: {}", exit.log);
    node.until_allocatable(&[]).await.unwrap();
    node.choose(Some("default")).await.unwrap();
    node.until_allocatable(&[("gpu", count)]).await.unwrap();
    exit.log.lines().rev().find_map(|line| line.split_once("] ")).unwrap().1.to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rejected_layout_leaves_the_node_without_devices_until_another_is_chosen() {
    let bad = [
        (
            "replicas-1",
            "version: v1\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 1}]}}\n",
            "number of replicas must be >= 2",
        ),
        (
            "no-replicas",
            "version: v1\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replica: 4}]}}\n",
            "no replicas specified",
        ),
        (
            "no-resources",
            "version: v1\nsharing: {timeSlicing: {renameByDefault: true}}\n",
            "no resources specified",
        ),
        ("version-2", "version: v2\n", "unknown version: v2"),
        ("no-yaml", "version: [v1\n", "unmarshal error"),
        ("strategy", "version: v1\nflags: {migStrategy: some}\n", "unknown MIG strategy: some"),
        (
            "mps-and-mixed",
            "version: v1\nflags: {migStrategy: mixed}\nsharing: {mps: {resources: [{name: nvidia.com/gpu, replicas: 2}]}}\n",
            "using --mig-strategy=mixed is not supported with MPS",
        ),
    ];
    let scene = Scene::start().await;
    let node = scene.node(StaticNodeSpec::new("a", Model::A100Gb80, 1)).await;
    let layouts: Vec<(&str, &str)> = bad.iter().map(|(key, text, _)| (*key, *text)).chain(LAYOUTS).collect();
    node.until_allocatable(&[("gpu", "1")]).await.unwrap();
    node.write_layouts(&layouts).await.unwrap();
    node.may_end("gpu-feature-discovery");
    for pod in [NvidiaPod::Plugin, NvidiaPod::Discovery, NvidiaPod::MpsDaemon] {
        node.may_end(&pod.sidecar());
        node.may_end(pod.program());
    }
    node.until_layout_is_there("version-2").await.unwrap();
    for (layout, _, said) in bad {
        let last = refused(&node, layout, "1").await;
        assert!(last.contains(said), "{layout}: {last}");
    }
    scene.end(vec![node]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn instances_that_do_not_fit_the_strategy_are_rejected() {
    let scene = Scene::start().await;
    let different = [(0, "3g.40gb"), (0, "1g.10gb")];
    let different = scene.node(StaticNodeSpec::new("d", Model::A100Gb80, 1).cut(&different)).await;
    let empty = scene.node(StaticNodeSpec::new("e", Model::A100Gb80, 2).cut(&[(0, "7g.80gb")])).await;
    for (node, gpus, said) in [
        (&different, "1", "more than one MIG device type present on node"),
        (&empty, "2", "device 1 has no MIG devices configured"),
    ] {
        node.until_allocatable(&[("gpu", gpus)]).await.unwrap();
        // config-manager exits if it has to signal a program that does not run.
        node.may_end(&NvidiaPod::Plugin.sidecar());
        node.choose(Some("mig-single")).await.unwrap();
        let exit = node.until_exit("nvidia-device-plugin").await.unwrap();
        assert!(exit.code == 1 && exit.log.contains(said), "{}", exit.log);
        node.until_allocatable(&[]).await.unwrap();
        until_labels(
            node,
            &[
                ("gpu.product", "NVIDIA-A100-SXM4-80GB-MIG-INVALID"),
                ("gpu.count", "0"),
                ("gpu.replicas", "0"),
                ("gpu.memory", "0"),
                ("gpu.sharing-strategy", ""),
                ("mig.strategy", "single"),
            ],
        )
        .await;
    }
    // MPS over MIG: with strategy `none` the plugin treats the whole GPU as one that can be shared, and discovery
    // exits.
    different.choose(Some("default")).await.unwrap();
    different.until_allocatable(&[("gpu", "1")]).await.unwrap();
    different.choose(Some("mps-2")).await.unwrap();
    let exit = different.until_exit("gpu-feature-discovery").await.unwrap();
    assert!(
        exit.code == 1 && exit.log.contains("MPS sharing is not supported for mig devices"),
        "{}",
        exit.log
    );
    scene.end(vec![different, empty]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_label_that_names_no_layout_leaves_the_node_as_it_was() {
    let scene = Scene::start().await;
    let node = scene.node(StaticNodeSpec::new("a", Model::T4, 1).layout("time-sliced-4")).await;
    node.until_allocatable(&[("gpu", "4")]).await.unwrap();
    node.may_end(&NvidiaPod::Discovery.sidecar());
    node.may_end("gpu-feature-discovery");
    node.may_end("nvidia-device-plugin");
    node.choose(Some("nonesuch")).await.unwrap();
    let exit = node.until_exit(&NvidiaPod::Plugin.sidecar()).await.unwrap();
    assert_eq!(exit.code, 1);
    assert!(exit.log.contains("specified config nonesuch does not exist"), "{}", exit.log);
    // Its config-manager, once restarted, applies the default layout before it fails again.
    node.until_allocatable(&[("gpu", "1")]).await.unwrap();
    node.choose(Some("time-sliced-2")).await.unwrap();
    node.until_allocatable(&[("gpu", "2")]).await.unwrap();
    scene.end(vec![node]).await;
}

/// For this reason kerf's ConfigMap always has a key `default`.
#[tokio::test(flavor = "multi_thread")]
async fn without_a_default_layout_nothing_starts_even_on_a_node_with_a_label() {
    let scene = Scene::start().await;
    let node = kerf_tests::nvidia_plugin::StaticNode::start(
        &scene.plane,
        StaticNodeSpec::new("a", Model::T4, 1).layout("time-sliced-4"),
    )
    .await
    .unwrap();
    node.may_end(&NvidiaPod::Discovery.init());
    node.write_layouts(&LAYOUTS[1..]).await.unwrap();
    let exit = node.until_exit(&NvidiaPod::Plugin.init()).await.unwrap();
    assert_eq!(exit.code, 1);
    let said = "no config was set, no default was provided, and all fallbacks failed";
    assert!(exit.log.contains(said), "{}", exit.log);
    assert_eq!(node.starts("nvidia-device-plugin"), 0);
    node.write_layouts(&LAYOUTS).await.unwrap();
    node.until_allocatable(&[("gpu", "4")]).await.unwrap();
    scene.end(vec![node]).await;
}
