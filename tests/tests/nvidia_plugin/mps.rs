//! MPS replicas, with NVIDIA's MPS control daemon over the stand-in for `nvidia-cuda-mps-control`.

use kerf_nvml_mock::Model;
use kerf_tests::mps::Event;
use kerf_tests::nvidia_plugin::{MPS_CAPABLE_LABEL, NvidiaPod, StaticNode, StaticNodeSpec};

use crate::nvidia_plugin::scene::{Scene, replicas, until_labels};

/// The words that the daemons received, in order.
fn words(node: &StaticNode) -> Vec<String> {
    let events = node.mps("gpu").events().unwrap();
    let words = events.into_iter().filter_map(|event| match event {
        Event::Word { word, .. } => Some(word),
        _ => None,
    });
    words.collect()
}

fn compute_modes(node: &StaticNode) -> Vec<u32> {
    node.gpus().unwrap().gpus.into_iter().map(|gpu| gpu.compute_mode).collect()
}

/// `NVML_COMPUTEMODE_DEFAULT` and `NVML_COMPUTEMODE_EXCLUSIVE_PROCESS`.
const DEFAULT: u32 = 0;
const EXCLUSIVE_PROCESS: u32 = 3;

#[tokio::test(flavor = "multi_thread")]
async fn replicas_under_mps_are_offered_once_the_daemon_has_its_limits() {
    let scene = Scene::start().await;
    let node = scene.node(StaticNodeSpec::new("a", Model::A100Gb80, 2)).await;
    // The chart names a program that does not exist, so config-manager on this node never signals the daemon.
    let mut spec = StaticNodeSpec::new("b", Model::T4, 1);
    spec.mps_daemon_is_called = "/usr/bin/mps-control-daemon";
    let unshown = scene.node(spec).await;
    unshown.may_end(&NvidiaPod::MpsDaemon.sidecar());
    node.until_allocatable(&[("gpu", "2")]).await.unwrap();
    unshown.until_allocatable(&[("gpu", "1")]).await.unwrap();
    // Its daemon starts before a layout is chosen. Otherwise config-manager in its init container may already read
    // the chosen one, and nothing is left to signal.
    until_labels(&unshown, &[("mps.capable", "false")]).await;
    unshown.set_label(MPS_CAPABLE_LABEL, Some("true")).await.unwrap();
    unshown.until_says(NvidiaPod::MpsDaemon.program(), "No devices are configured for MPS").await.unwrap();

    node.choose(Some("mps-4")).await.unwrap();
    unshown.choose(Some("mps-4")).await.unwrap();
    // The plugin starts before its daemon, serves nothing, and retries after 30 s.
    let said = node.until_says("nvidia-device-plugin", "Retrying in 30s").await.unwrap();
    assert!(
        said.contains(
            "Failed to start plugin: error waiting for MPS daemon: error checking MPS daemon health"
        ),
        "{said}"
    );
    node.until_allocatable(&[]).await.unwrap();
    until_labels(
        &node,
        &[
            ("mps.capable", "true"),
            ("gpu.sharing-strategy", "mps"),
            ("gpu.replicas", "4"),
            ("gpu.product", "NVIDIA-A100-SXM4-80GB-SHARED"),
            ("gpu.memory", "81920"),
        ],
    )
    .await;
    node.until_allocatable(&[("gpu", "8")]).await.unwrap();
    assert!(replicas(&node, "nvidia.com/gpu").into_values().all(|number| number == 4));
    let reported = words(&node);
    for word in [
        "set_default_device_pinned_mem_limit 0 20480M",
        "set_default_device_pinned_mem_limit 1 20480M",
        "set_default_active_thread_percentage 25",
        "get_default_active_thread_percentage",
    ] {
        assert!(reported.iter().any(|said| said == word), "{word} is not among {reported:?}");
    }
    assert_eq!(compute_modes(&node), [EXCLUSIVE_PROCESS, EXCLUSIVE_PROCESS]);

    // The other node's daemon runs with the default layout, without any server, and its plugin serves nothing.
    let exit = unshown.exits(&NvidiaPod::MpsDaemon.sidecar()).into_iter().next().unwrap();
    assert_eq!(exit.code, 1);
    assert!(exit.log.contains("error finding pid: no process found"), "{}", exit.log);
    assert!(words(&unshown).is_empty());
    assert_eq!(unshown.allocatable().await.unwrap()["gpu"], "0");

    node.choose(Some("mps-2")).await.unwrap();
    node.until_allocatable(&[("gpu", "4")]).await.unwrap();
    // The plugin may have asked the old daemon and be ready before the new one is.
    node.until("the daemon to have the new limits", async || {
        let reported = words(&node);
        let has = |word: &str| reported.iter().any(|said| said == word);
        if has("set_default_device_pinned_mem_limit 1 40960M")
            && has("set_default_active_thread_percentage 50")
        {
            Ok(())
        } else {
            anyhow::bail!("the daemon received {reported:?}")
        }
    })
    .await
    .unwrap();

    node.choose(Some("time-sliced-2")).await.unwrap();
    node.until_allocatable(&[("gpu", "4")]).await.unwrap();
    until_labels(&node, &[("mps.capable", "false"), ("gpu.sharing-strategy", "time-slicing")]).await;
    node.until("the GPUs to be in the default mode", async || {
        if compute_modes(&node) == [DEFAULT, DEFAULT] {
            Ok(())
        } else {
            anyhow::bail!("{:?}", compute_modes(&node))
        }
    })
    .await
    .unwrap();
    scene.end(vec![node, unshown]).await;
}
