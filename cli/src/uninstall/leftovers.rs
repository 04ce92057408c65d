//! Deletes what kerf's programs have created for themselves, once kerf's objects are gone.

use super::{LeftoversArgs, deleted};
use crate::output::line;
use anyhow::Context as _;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kerf_core::contract::{NodePolicy, SliceState};
use kerf_core::keys;
use kerf_runtime::gpu_node::GpuNode;
use kube::api::{DeleteParams, ListParams};
use kube::{Api, Client};
use serde_json::Value;
use std::fmt::Debug;

pub(super) async fn delete(client: Client, args: &LeftoversArgs) -> anyhow::Result<()> {
    let namespace = &args.kerf.name;
    let secrets = Api::<Secret>::namespaced(client.clone(), namespace);
    one(&secrets, "kerf-webhook-tls").await?;
    one(&secrets, "kerf-extender-tls").await?;
    let leases = Api::<Lease>::namespaced(client.clone(), namespace);
    one(&leases, "kerf-extender").await?;
    one(&leases, &args.scheduler_lease).await?;
    let config_maps = Api::<ConfigMap>::namespaced(client.clone(), namespace);
    one(&config_maps, keys::DEMAND).await?;
    one(&config_maps, keys::EXTENDER_AUTHORITY).await?;
    gpu_nodes(&Api::all(client)).await
}

async fn one<K>(api: &Api<K>, name: &str) -> anyhow::Result<()>
where
    K: kube::Resource + Clone + serde::de::DeserializeOwned + Debug,
{
    deleted(api.delete(name, &DeleteParams::default()).await)
        .with_context(|| format!("failed to delete {name}"))?;
    Ok(())
}

async fn gpu_nodes(api: &Api<GpuNode>) -> anyhow::Result<()> {
    let list = match api.list(&ListParams::default()).await {
        Ok(list) => list,
        // This is no error, because the resource may have been deleted with the chart.
        Err(kube::Error::Api(status)) if status.code == 404 => return Ok(()),
        Err(error) => return Err(error).context("failed to list the GpuNodes"),
    };
    for node in list {
        let name = node.name();
        match keep_reason(&node) {
            Some(why) => line(format!("GpuNode {name} stays: {why}"))?,
            None => one(api, name.as_str()).await?,
        }
    }
    Ok(())
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
enum KeepReason {
    #[error("pods hold slices of it")]
    Held,
    #[error("pods have reservations on it")]
    Reserved,
    #[error("an admin has written its spec.policy")]
    Policy,
    #[error("it cannot be read, so pods may hold slices of it")]
    Unreadable,
}

fn keep_reason(node: &GpuNode) -> Option<KeepReason> {
    let Ok(status) = node.read_status() else { return Some(KeepReason::Unreadable) };
    let slices = status.map(|status| status.slices).unwrap_or_default();
    if slices.iter().any(|s| s.holder.is_some() || s.state == SliceState::Held) {
        return Some(KeepReason::Held);
    }
    if slices.iter().any(|slice| slice.reservation.is_some()) {
        return Some(KeepReason::Reserved);
    }
    admins_policy(node).map(|_| KeepReason::Policy)
}

/// The policy that an admin has written into `spec.policy`. A policy that the extender copied there from a policy file
/// does not count, because the file still has it.
pub(crate) fn admins_policy(node: &GpuNode) -> Option<&Value> {
    let policy = node.spec.as_ref()?.get("policy")?;
    let copied = node.metadata.annotations.as_ref().is_some_and(|a| a.contains_key(keys::NODE_POLICY));
    let is_empty = || node.read_spec().is_ok_and(|spec| spec.policy == NodePolicy::default());
    (!copied && !is_empty()).then_some(policy)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kerf_core::contract::GpuNodeSpec;
    use kerf_core::ledger;
    use kerf_core::names::NodeName;
    use kerf_core::packing::Fleet;
    use kerf_core::testing::{node_status, owner_in_epoch, request, slice_status};
    use serde_json::json;

    fn node(spec: Value, status: Value) -> GpuNode {
        GpuNode { spec: Some(spec), status: Some(status), ..GpuNode::new(&NodeName::new("n")) }
    }

    #[test]
    fn a_gpu_node_with_holders_reservations_or_an_admins_policy_stays() {
        let mut status = node_status(&["H100-80GB"]);
        let request = request("nvidia.com/mig-1g.10gb", 1);
        let reserved = ledger::reserve(
            &GpuNodeSpec::default(),
            &status,
            &request,
            &owner_in_epoch("a"),
            &Fleet::default(),
        );
        let reserved = reserved.unwrap();
        let free = json!(status);
        let mut reason_with = |slices| {
            status.slices = slices;
            keep_reason(&node(json!({}), json!(status)))
        };
        assert_eq!(reason_with(Vec::new()), None);
        let slice = |is_held| reserved.slices.iter().map(|s| slice_status(s, is_held)).collect();
        assert_eq!(reason_with(slice(false)), Some(KeepReason::Reserved));
        assert_eq!(reason_with(slice(true)), Some(KeepReason::Held));
        assert_eq!(keep_reason(&node(json!({}), json!({"slices": 1}))), Some(KeepReason::Unreadable));
        let policy = json!({"policy": {"removeRejectedPods": true}});
        let mut node = node(policy, free);
        assert_eq!(keep_reason(&node), Some(KeepReason::Policy));
        node.metadata.annotations = Some([(keys::NODE_POLICY.to_owned(), "p".to_owned())].into());
        assert_eq!(keep_reason(&node), None);
    }
}
