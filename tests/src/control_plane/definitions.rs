//! Waits until custom resources can be created.

use std::time::Duration;

use anyhow::Context as _;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::ListParams;
use kube::runtime::wait::{await_condition, conditions};
use kube::{Api, ResourceExt as _};

use super::ControlPlane;

/// Timeout for one definition, on a busy machine.
const TIMEOUT: Duration = Duration::from_mins(1);

impl ControlPlane {
    /// Returns when the API server serves every defined custom resource. `kubectl wait` is not used, because
    /// it fails for a new definition without conditions (kubernetes issue 66439).
    pub async fn definitions_established(&self) -> anyhow::Result<()> {
        let definitions: Api<CustomResourceDefinition> = Api::all(self.client());
        for definition in definitions.list(&ListParams::default()).await? {
            let name = definition.name_any();
            let established = await_condition(definitions.clone(), &name, conditions::is_crd_established());
            let in_time = tokio::time::timeout(TIMEOUT, established).await;
            in_time
                .with_context(|| format!("{name} is not Established after {} s", TIMEOUT.as_secs()))?
                .with_context(|| format!("failed to watch {name}"))?;
        }
        Ok(())
    }
}
