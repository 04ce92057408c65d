//! Counts the NVML calls of an observation, because each costs time on a busy node.

use crate::node::{Node, instance, open};
use kerf_nvml::GpuBackend as _;
use kerf_nvml_mock::MockControl;
use std::collections::BTreeMap;

fn since(node: &Node, before: &BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    let calls = node.state().calls.into_iter();
    let new = calls.map(|(call, count)| (before.get(&call).map_or(count, |before| count - before), call));
    new.filter(|(count, _)| *count > 0).map(|(count, call)| (call, count)).collect()
}

pub fn an_observation_without_changes_repeats_no_query(node: &Node) {
    let mut nvml = open();
    for gpu in nvml.observe().unwrap() {
        for start in [0, 1] {
            nvml.create(&gpu.uuid, instance("1g.10gb", start, 1), None).unwrap();
        }
    }
    nvml.observe().unwrap();
    nvml.observe().unwrap();
    node.control(&MockControl::new().count_calls());
    let before = node.state().calls;
    let seen = nvml.observe().unwrap();
    assert!(seen.iter().all(|gpu| gpu.instances.len() == 2 && gpu.attributes.len() == 2));
    let calls = since(node, &before);
    // It was 449 when each observation read the tables and the MIG devices' attributes.
    assert!(calls.values().sum::<u64>() <= 209, "{calls:#?}");
    for once in [
        "nvmlDeviceGetGpuInstanceProfileInfoV",
        "nvmlDeviceGetGpuInstancePossiblePlacements_v2",
        "nvmlDeviceGetHandleByUUID",
        "nvmlDeviceGetAttributes_v2",
    ] {
        assert_eq!(calls.get(once), None, "{once}");
    }
}
