//! The node as its agent reports it in the GpuNode.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::ensure;
use kerf_core::contract::{GpuNodeStatus, GpuStatus, SliceStatus};
use kerf_core::names::GpuUuid;
use kerf_runtime::gpu_node::GpuNode;
use kerf_tests::cluster::wait;
use kube::{Api, Client};

/// Agents write a status at most once in five seconds.
const REPORT_TIMEOUT: Duration = Duration::from_secs(15);

pub struct Node {
    name: String,
    api: Api<GpuNode>,
}

impl Node {
    pub fn new(name: &str, client: Client) -> Self {
        Self { name: name.to_owned(), api: Api::all(client) }
    }

    /// The pods that hold a slice, sorted.
    pub async fn holders(&self) -> anyhow::Result<Vec<String>> {
        let slices = self.status().await?.slices;
        let mut holders: Vec<String> =
            slices.into_iter().filter_map(|slice| Some(slice.holder?.pod)).collect();
        holders.sort();
        Ok(holders)
    }

    pub async fn gpus(&self) -> anyhow::Result<Vec<GpuStatus>> {
        let gpus = self.status().await?.gpus;
        ensure!(!gpus.is_empty(), "the node has no GPU");
        Ok(gpus)
    }

    /// The GPUs of this pod's slices, sorted. The pod runs, so that the next report has them.
    pub async fn gpus_of(&self, pod: &str) -> anyhow::Result<Vec<GpuUuid>> {
        let held = |slice: &SliceStatus| slice.holder.as_ref().is_some_and(|holder| holder.pod == pod);
        let mut gpus = BTreeSet::new();
        let reported = async || {
            gpus = self.status().await?.slices.into_iter().filter(held).map(|slice| slice.gpu).collect();
            Ok(!gpus.is_empty())
        };
        wait(REPORT_TIMEOUT, &format!("the node to report the GPU of {pod}"), reported).await?;
        Ok(gpus.into_iter().collect())
    }

    async fn status(&self) -> anyhow::Result<GpuNodeStatus> {
        Ok(self.api.get(&self.name).await?.read_status()?.unwrap_or_default())
    }
}
