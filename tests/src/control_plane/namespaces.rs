//! Creates namespaces in which pods can be created at once.

use std::time::{Duration, Instant};

use anyhow::bail;
use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use kube::Api;
use kube::api::{ObjectMeta, PostParams};

use super::ControlPlane;

/// Timeout for the controller manager to create a service account, on a busy machine.
const TIMEOUT: Duration = Duration::from_mins(1);
const POLL_INTERVAL: Duration = Duration::from_millis(25);

impl ControlPlane {
    /// Creates a namespace, and returns when pods can be created in it.
    pub async fn create_namespace(&self, name: &str) -> anyhow::Result<()> {
        let metadata = ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };
        let namespace = Namespace { metadata, ..Namespace::default() };
        Api::all(self.client()).create(&PostParams::default(), &namespace).await?;
        if self.controller_manager { self.wait_for_default_service_account(name).await } else { Ok(()) }
    }

    /// The API server rejects pods in a namespace until the controller manager has created its service
    /// account `default`.
    pub(super) async fn wait_for_default_service_account(&self, namespace: &str) -> anyhow::Result<()> {
        let accounts = Api::<ServiceAccount>::namespaced(self.client(), namespace);
        let began = Instant::now();
        while accounts.get_opt("default").await?.is_none() {
            if began.elapsed() > TIMEOUT {
                bail!("no default service account in {namespace} after {} s", TIMEOUT.as_secs());
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        Ok(())
    }
}
