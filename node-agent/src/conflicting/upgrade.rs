//! Reads two things about GPU Operator from the Node's labels: its driver upgrade, during which no process may hold the
//! driver, and which of its programs that hold GPU instances are deployed.
//!
//! Two of its programs take part in an upgrade (gpu-operator's upgrade controller with k8s-operator-libs `pkg/upgrade`,
//! and k8s-driver-manager `cmd/driver-manager`), and either may work without the other:
//!
//! - The upgrade controller keeps `nvidia.com/gpu-driver-upgrade-state`. In the states before `pod-restart-required` it
//!   cordons the node and evicts its GPU pods. In that state the driver's pod is replaced and the module reloaded, until
//!   the new pod is ready. The later states (`validation-required`, `uncordon-required`, `upgrade-done`) belong to the
//!   new driver, and `upgrade-failed` waits for an admin.
//! - The driver manager runs first in the driver's pod. It sets each `nvidia.com/gpu.deploy.*` that is `true` to
//!   `paused-for-driver-upgrade`, appends `_paused-for-driver-upgrade` to other values but `false`, waits until the
//!   operator's own pods are gone, and unloads the module. It restores the labels when it ends, before the new driver is
//!   loaded.
//!
//! An admin who reloads a driver without GPU Operator may set such a label too.

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Node;
use kerf_core::names::NodeName;
use kerf_core::nvidia_keys::{
    DEPLOY_CLIENTS, DEPLOY_PAUSED_FOR_DRIVER, DEPLOY_PREFIX, DEPLOYED, DRIVER_UPGRADE_STATE,
};
use kube::core::PartialObjectMeta;
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client};
use std::collections::{BTreeMap, BTreeSet};
use tokio_util::sync::CancellationToken;

/// The state in which the driver's pod is replaced.
const RESTARTS: &str = "pod-restart-required";

/// How long the API server may keep the watch, in seconds. kube rejects 295 and more.
const WATCH_SECONDS: u32 = 290;

/// What the Node's labels show of GPU Operator.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Shown {
    /// The evidence for an upgrade of the driver; `None` without one.
    pub(crate) upgrade: Option<String>,
    /// Which of [`DEPLOY_CLIENTS`] are deployed.
    pub(crate) clients: BTreeSet<String>,
}

/// Reports at each change of the Node until `stop`. A missing Node is not being upgraded. While the API server is
/// unreachable the last report holds.
pub(crate) async fn watch(client: Client, node: NodeName, report: impl Fn(Shown), stop: CancellationToken) {
    let config = watcher::Config::default().fields(&format!("metadata.name={node}")).timeout(WATCH_SECONDS);
    let stream = watcher(Api::<PartialObjectMeta<Node>>::all(client), config).default_backoff();
    let stream = stream.take_until(stop.cancelled_owned());
    tokio::pin!(stream);
    while let Some(event) = stream.next().await {
        match event {
            Ok(watcher::Event::Apply(node) | watcher::Event::InitApply(node)) => {
                report(shown(&node.metadata.labels.unwrap_or_default()));
            }
            Ok(watcher::Event::Delete(_)) => report(Shown::default()),
            Ok(watcher::Event::Init | watcher::Event::InitDone) => {}
            Err(error) => tracing::warn!(%error, "the watch of the Node failed"),
        }
    }
}

fn shown(labels: &BTreeMap<String, String>) -> Shown {
    let is_deployed = |key: &&str| labels.get(*key).is_some_and(|value| value == DEPLOYED);
    let clients = DEPLOY_CLIENTS.into_iter().filter(is_deployed).map(str::to_owned).collect();
    Shown { upgrade: upgrade(labels), clients }
}

fn upgrade(labels: &BTreeMap<String, String>) -> Option<String> {
    let is_paused = |(key, value): &(&String, &String)| {
        key.starts_with(DEPLOY_PREFIX) && value.contains(DEPLOY_PAUSED_FOR_DRIVER)
    };
    let restarts = |(key, value): &(&String, &String)| *key == DRIVER_UPGRADE_STATE && *value == RESTARTS;
    let (key, value) = labels.iter().find(|label| restarts(label) || is_paused(label))?;
    Some(format!("the node's label {key} is {value}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_states_in_which_the_module_is_replaced_are_an_upgrade() {
        let (state, client) = ("nvidia.com/gpu-driver-upgrade-state", "nvidia.com/gpu.deploy.client");
        let cases = [
            (state, "upgrade-required", false),
            (state, "cordon-required", false),
            (state, "wait-for-jobs-required", false),
            (state, "pod-deletion-required", false),
            (state, "drain-required", false),
            (state, "pod-restart-required", true),
            (state, "validation-required", false),
            (state, "uncordon-required", false),
            (state, "upgrade-done", false),
            (state, "upgrade-failed", false),
            (client, "true", false),
            (client, "false", false),
            (client, "paused-for-mig-change", false),
            (client, "paused-for-driver-upgrade", true),
            ("nvidia.com/gpu.deploy.driver", "pre-installed_paused-for-driver-upgrade", true),
            ("example.com/gpu.deploy.client", "paused-for-driver-upgrade", false),
        ];
        for (key, value, is) in cases {
            let labels =
                [("other", "x"), (key, value)].map(|(key, value)| (key.to_owned(), value.to_owned()));
            let found = upgrade(&labels.into());
            assert_eq!(found.is_some(), is, "{key}={value}");
            assert!(found.is_none_or(|text| text.contains(key) && text.contains(value)));
        }
    }

    #[test]
    fn only_programs_that_are_deployed_can_be_paused() {
        let labels = [("dcgm", "true"), ("dcgm-exporter", "false"), ("nvsm", ""), ("device-plugin", "true")];
        let labels = labels.map(|(name, value)| (format!("{DEPLOY_PREFIX}{name}"), value.to_owned()));
        assert_eq!(shown(&labels.into()).clients, ["nvidia.com/gpu.deploy.dcgm".to_owned()].into());
    }
}
