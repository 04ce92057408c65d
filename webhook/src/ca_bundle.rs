//! The caBundle by which the API server trusts this webhook: set in the webhooks of one configuration, and in nothing
//! else of it.

use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use thiserror::Error;

/// Why the caBundle is not set.
#[derive(Debug, Error)]
pub(crate) enum BundleError {
    /// There is no such configuration.
    #[error("there is no MutatingWebhookConfiguration {0}; apply kerf's manifests")]
    Absent(String),
    /// It cannot be read or written.
    #[error("failed to {verb} the MutatingWebhookConfiguration {name}")]
    Api {
        /// What was tried.
        verb: &'static str,
        /// The configuration.
        name: String,
        /// Why.
        source: Box<kube::Error>,
    },
}

/// Makes all webhooks of the configuration `name` trust `ca_pem`.
pub(crate) async fn ensure(client: &Client, name: &str, ca_pem: &str) -> Result<(), BundleError> {
    let api: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
    let failed =
        |verb| move |source| BundleError::Api { verb, name: name.to_owned(), source: Box::new(source) };
    let configuration = api.get_opt(name).await.map_err(failed("read"))?;
    let configuration = configuration.ok_or_else(|| BundleError::Absent(name.to_owned()))?;
    if let Some(patch) = patch(&configuration, ca_pem) {
        // A strategic patch merges webhooks by their names, whatever became of their order since they were read.
        let params = PatchParams::default();
        api.patch(name, &params, &Patch::Strategic(patch)).await.map_err(failed("patch"))?;
        tracing::info!(configuration = name, "caBundle set");
    }
    Ok(())
}

/// The patch that gives each webhook this caBundle; `None` if all have it.
fn patch(configuration: &MutatingWebhookConfiguration, ca_pem: &str) -> Option<Value> {
    let bundle = ByteString(ca_pem.as_bytes().to_vec());
    let others = configuration
        .webhooks
        .iter()
        .flatten()
        .filter(|w| w.client_config.ca_bundle.as_ref() != Some(&bundle));
    let webhooks: Vec<Value> =
        others.map(|webhook| json!({"name": webhook.name, "clientConfig": {"caBundle": bundle}})).collect();
    (!webhooks.is_empty()).then(|| json!({"webhooks": webhooks}))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn configuration(bundles: &[Option<&str>]) -> MutatingWebhookConfiguration {
        let webhook = |(index, bundle): (usize, Option<&str>)| {
            let bundle = bundle.map(|text| ByteString(text.as_bytes().to_vec()));
            json!({
                "name": format!("w{index}.kerf.dev"), "admissionReviewVersions": ["v1"], "sideEffects": "None",
                "clientConfig": {"url": "https://127.0.0.1:9443/mutate", "caBundle": bundle},
            })
        };
        let webhooks: Vec<Value> = bundles.iter().copied().enumerate().map(webhook).collect();
        serde_json::from_value(json!({"metadata": {"name": "kerf"}, "webhooks": webhooks})).unwrap()
    }

    #[test]
    fn every_webhook_that_trusts_another_is_patched() {
        let patch = patch(&configuration(&[None, Some("ours"), Some("other")]), "ours").unwrap();
        assert_eq!(
            patch,
            json!({"webhooks": [
                {"name": "w0.kerf.dev", "clientConfig": {"caBundle": "b3Vycw=="}},
                {"name": "w2.kerf.dev", "clientConfig": {"caBundle": "b3Vycw=="}},
            ]})
        );
    }

    #[test]
    fn a_configuration_that_trusts_us_is_left_alone() {
        assert_eq!(patch(&configuration(&[Some("ours")]), "ours"), None);
        assert_eq!(patch(&configuration(&[]), "ours"), None);
    }
}
