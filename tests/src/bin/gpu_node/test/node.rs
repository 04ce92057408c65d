//! The node by the agent's account.

use anyhow::Context as _;
use kerf_core::contract::GpuNodeStatus;
use kerf_runtime::gpu_node::GpuNode;
use kube::{Api, Client};

/// The node's GpuNode.
pub struct Node {
    name: String,
    api: Api<GpuNode>,
}

impl Node {
    pub fn new(name: &str, client: Client) -> Self {
        Self { name: name.to_owned(), api: Api::all(client) }
    }

    /// The pods that hold a slice, in order.
    pub async fn holders(&self) -> anyhow::Result<Vec<String>> {
        let slices = self.status().await?.slices;
        let mut holders: Vec<String> =
            slices.into_iter().filter_map(|slice| Some(slice.holder?.pod)).collect();
        holders.sort();
        Ok(holders)
    }

    /// The memory of the first GPU.
    pub async fn gpu_mib(&self) -> anyhow::Result<u64> {
        Ok(self.status().await?.gpus.first().context("the node has no GPU")?.memory.0)
    }

    async fn status(&self) -> anyhow::Result<GpuNodeStatus> {
        Ok(self.api.get(&self.name).await?.read_status()?.unwrap_or_default())
    }
}
