//! Checks that the extender's index is complete: memory saved by leaving something out would be worthless.

use std::time::Duration;

use anyhow::ensure;
use k8s_openapi::api::core::v1::Pod;
use kerf_core::testing::request;
use kerf_tests::cluster::wait;
use kerf_tests::leaders::SchedulerClient;
use kerf_tests::pods::admitted;
use serde_json::json;

use super::api::Api;
use super::extender::Extender;
use super::population::{Population, node_name};
use crate::report::print;

const TIMEOUT: Duration = Duration::from_secs(30);
/// Nodes that are asked for one by one.
const SAMPLES: usize = 50;
/// A name of which a GPU has one slice if nothing else is cut there.
const WHOLE: &str = "nvidia.com/mig-7g.80gb";

/// Every pod is charged to its namespace's quota. Without agents this is by what its Binding wrote into it.
pub async fn pods_are_known(extender: &Extender, population: Population) -> anyhow::Result<()> {
    equals(extender, "kerf_extender_quota_used", "slices", population.pods()).await
}

/// Every agent is connected, every pod has its slice, and filters find exactly the GPUs that are not cut.
pub async fn nodes_are_known(extender: &Extender, population: Population, api: &Api) -> anyhow::Result<()> {
    equals(extender, "kerf_gpunode_condition", r#"condition="Ready",status="True""#, population.nodes)
        .await?;
    equals(extender, "kerf_extender_reservations", "accepted", population.pods()).await?;
    equals(extender, "kerf_extender_quota_used", "slices", population.pods()).await?;
    let scheduler = extender.scheduler(api).await?;
    let all: Vec<String> = (0..population.nodes).map(node_name).collect();
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    let free = population.whole_gpus();
    let found = fitting(&scheduler, free, &all).await?;
    ensure!(!found.is_empty() || free == 0, "no node has {free} whole GPUs");
    let found = fitting(&scheduler, free + 1, &all).await?;
    ensure!(found.is_empty(), "{found:?} have {} whole GPUs", free + 1);
    for node in all.iter().step_by(all.len().div_ceil(SAMPLES)) {
        let found = fitting(&scheduler, free, &[node]).await?;
        ensure!(found == [*node] || free == 0, "{node} has no {free} whole GPUs");
        ensure!(fitting(&scheduler, free + 1, &[node]).await?.is_empty(), "{node} has more than {free}");
    }
    print(&format!("# filters find {free} whole GPUs and not one more, on all nodes and on single ones"));
    Ok(())
}

/// Waits until a metric has this value.
async fn equals(extender: &Extender, metric: &str, labels: &str, count: usize) -> anyhow::Result<()> {
    let count = f64::from(u32::try_from(count)?);
    let is_so = async || {
        let sum = extender.sum(metric, labels).await?;
        ensure!((sum - count).abs() < 0.5, "{metric} with {labels:?} is {sum}");
        Ok(true)
    };
    wait(TIMEOUT, &format!("{metric} to be {count}"), is_so).await?;
    print(&format!("# {metric} {labels} is {count}"));
    Ok(())
}

/// The nodes that pass the filter for a pod with so many whole GPUs.
async fn fitting(scheduler: &SchedulerClient, gpus: usize, nodes: &[&str]) -> anyhow::Result<Vec<String>> {
    if gpus == 0 {
        return Ok(Vec::new());
    }
    scheduler.filter(&pod(&format!("asks-{gpus}"), WHOLE, u32::try_from(gpus)?)?, nodes).await
}

/// A pod that asks for so many slices of a name.
pub fn pod(uid: &str, name: &str, count: u32) -> anyhow::Result<Pod> {
    let mut pod = admitted("asks", "kerf-scheduler", name, &request(name, count));
    pod["metadata"]["namespace"] = json!("default");
    pod["metadata"]["uid"] = json!(uid);
    Ok(serde_json::from_value(pod)?)
}
