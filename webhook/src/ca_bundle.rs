//! Sets the caBundle by which the API server trusts this webhook, in the webhooks of one configuration, and changes
//! nothing else of it.

use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use thiserror::Error;

#[derive(Debug, Error)]
pub(crate) enum BundleError {
    #[error("there is no MutatingWebhookConfiguration {0}; apply kerf's manifests")]
    Absent(String),
    #[error("the MutatingWebhookConfiguration {0} changed meanwhile; it is read again")]
    Changed(String),
    #[error("failed to {verb} the MutatingWebhookConfiguration {name}")]
    Api { verb: &'static str, name: String, source: Box<kube::Error> },
}

#[derive(Debug)]
pub(crate) struct Configuration {
    api: Api<MutatingWebhookConfiguration>,
    name: String,
    read: MutatingWebhookConfiguration,
}

impl Configuration {
    pub async fn read(client: &Client, name: &str) -> Result<Self, BundleError> {
        let api: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
        let read = api.get_opt(name).await.map_err(failed("read", name))?;
        let read = read.ok_or_else(|| BundleError::Absent(name.to_owned()))?;
        Ok(Self { api, name: name.to_owned(), read })
    }

    /// The caBundle of all its webhooks; `None` if they differ or have none.
    pub fn bundle(&self) -> Option<String> {
        let mut bundles = self.read.webhooks.iter().flatten().map(|w| w.client_config.ca_bundle.as_ref());
        let first = bundles.next()??;
        bundles.all(|bundle| bundle == Some(first)).then(|| String::from_utf8(first.0.clone()).ok())?
    }

    /// Makes all its webhooks trust `ca_pem`, unless the configuration has changed since it was read. Otherwise a
    /// replica with an older Secret would remove a new authority again.
    pub async fn trust(&self, ca_pem: &str) -> Result<(), BundleError> {
        let Some(patch) = patch(&self.read, ca_pem) else { return Ok(()) };
        // A strategic patch is used, because it merges webhooks by their names, even if their order has changed since
        // they were read.
        match self.api.patch(&self.name, &PatchParams::default(), &Patch::Strategic(patch)).await {
            Ok(_) => {
                tracing::info!(configuration = self.name, "caBundle set");
                Ok(())
            }
            Err(kube::Error::Api(status)) if status.is_conflict() => {
                Err(BundleError::Changed(self.name.clone()))
            }
            Err(source) => Err(failed("patch", &self.name)(source)),
        }
    }
}

fn failed(verb: &'static str, name: &str) -> impl FnOnce(kube::Error) -> BundleError {
    move |source| BundleError::Api { verb, name: name.to_owned(), source: Box::new(source) }
}

fn patch(configuration: &MutatingWebhookConfiguration, ca_pem: &str) -> Option<Value> {
    let bundle = ByteString(ca_pem.as_bytes().to_vec());
    let others = configuration
        .webhooks
        .iter()
        .flatten()
        .filter(|w| w.client_config.ca_bundle.as_ref() != Some(&bundle));
    let webhooks: Vec<Value> =
        others.map(|webhook| json!({"name": webhook.name, "clientConfig": {"caBundle": bundle}})).collect();
    let version = &configuration.metadata.resource_version;
    (!webhooks.is_empty()).then(|| json!({"metadata": {"resourceVersion": version}, "webhooks": webhooks}))
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
        serde_json::from_value(
            json!({"metadata": {"name": "kerf", "resourceVersion": "7"}, "webhooks": webhooks}),
        )
        .unwrap()
    }

    #[test]
    fn every_webhook_with_another_ca_bundle_is_patched() {
        let patch = patch(&configuration(&[None, Some("ours"), Some("other")]), "ours").unwrap();
        assert_eq!(
            patch,
            json!({"metadata": {"resourceVersion": "7"}, "webhooks": [
                {"name": "w0.kerf.dev", "clientConfig": {"caBundle": "b3Vycw=="}},
                {"name": "w2.kerf.dev", "clientConfig": {"caBundle": "b3Vycw=="}},
            ]})
        );
    }

    #[test]
    fn a_configuration_with_the_ca_bundle_is_not_patched() {
        assert_eq!(patch(&configuration(&[Some("ours")]), "ours"), None);
        assert_eq!(patch(&configuration(&[]), "ours"), None);
    }
}
