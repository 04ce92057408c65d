//! A Secret's authority in a ConfigMap, for clients that must not read the Secret's keys.

use super::{TlsError, client_config, key};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, ObjectMeta, PostParams};
use rustls::ClientConfig;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A ConfigMap with the authority under `ca.crt`.
#[derive(Debug, Clone)]
pub struct PublishedAuthority {
    api: Api<ConfigMap>,
    name: String,
    /// `namespace/name`, as error messages have it.
    config_map: String,
}

/// The ConfigMap as it was before the Secret was read.
#[derive(Debug)]
pub struct Read(Option<ConfigMap>);

impl PublishedAuthority {
    /// Refers to the ConfigMap `namespace/name`; nothing is read yet.
    #[must_use]
    pub fn new(client: &kube::Client, namespace: &str, name: &str) -> Self {
        Self {
            api: Api::namespaced(client.clone(), namespace),
            name: name.to_owned(),
            config_map: format!("{namespace}/{name}"),
        }
    }

    /// A client that trusts the authority that is published now.
    pub async fn client_config(&self) -> Result<Arc<ClientConfig>, TlsError> {
        let found = self.read().await?;
        let authority = found.authority().ok_or_else(|| TlsError::NotPublished(self.config_map.clone()))?;
        client_config(authority)
    }

    /// Reads the ConfigMap. A publisher must read it before the Secret, so that a write of an older authority never
    /// replaces a newer one.
    pub async fn read(&self) -> Result<Read, TlsError> {
        self.api.get_opt(&self.name).await.map(Read).map_err(|source| self.failed("read", source))
    }

    /// Publishes the PEM text `authority`, unless it was already there. Returns false if another client has written
    /// since the read: then the authority may not be published.
    pub async fn write(&self, before: Read, authority: &str) -> Result<bool, TlsError> {
        if before.authority() == Some(authority) {
            return Ok(true);
        }
        let post = PostParams::default();
        let written = match before.0 {
            Some(mut found) => {
                found.data.get_or_insert_default().insert(key::CA_CERT.to_owned(), authority.to_owned());
                self.api.replace(&self.name, &post, &found).await
            }
            None => self.api.create(&post, &self.containing(authority)).await,
        };
        match written {
            Ok(_) => {
                tracing::info!(config_map = self.config_map, "authority published");
                Ok(true)
            }
            Err(kube::Error::Api(status)) if status.is_conflict() || status.is_already_exists() => Ok(false),
            Err(source) => Err(self.failed("write", source)),
        }
    }

    fn containing(&self, authority: &str) -> ConfigMap {
        let part_of = ("app.kubernetes.io/part-of".to_owned(), "kerf".to_owned());
        let metadata = ObjectMeta {
            name: Some(self.name.clone()),
            labels: Some(BTreeMap::from([part_of])),
            ..ObjectMeta::default()
        };
        let data = BTreeMap::from([(key::CA_CERT.to_owned(), authority.to_owned())]);
        ConfigMap { metadata, data: Some(data), ..ConfigMap::default() }
    }

    fn failed(&self, verb: &'static str, source: kube::Error) -> TlsError {
        TlsError::Published { verb, config_map: self.config_map.clone(), source: Box::new(source) }
    }
}

impl Read {
    fn authority(&self) -> Option<&str> {
        self.0.as_ref()?.data.as_ref()?.get(key::CA_CERT).map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stand_in::{self, Asked, refusal};
    use crate::tls::made_for_test;
    use serde_json::{Value, json};
    use std::sync::Mutex;

    /// An API server with one ConfigMap that rejects stale writes.
    fn authority(stored: &Arc<Mutex<Option<Value>>>) -> PublishedAuthority {
        let stored = Arc::clone(stored);
        let client = stand_in::client(move |Asked { method, mut body, .. }| {
            let mut stored = stored.lock().unwrap();
            let version = |object: &Value| object["metadata"]["resourceVersion"].as_str().map(str::to_owned);
            match (method.as_str(), &*stored) {
                ("GET", Some(found)) => return (200, found.clone()),
                ("GET", None) => return refusal(404, "not found"),
                ("POST", Some(_)) => return refusal(409, "it exists"),
                ("PUT", Some(found)) if version(found) != version(&body) => return refusal(409, "stale"),
                _ => {}
            }
            let last = stored.as_ref().and_then(version).and_then(|text| text.parse().ok()).unwrap_or(0);
            body["metadata"]["resourceVersion"] = json!((last + 1).to_string());
            *stored = Some(body.clone());
            (200, body)
        });
        PublishedAuthority::new(&client, "kerf-system", "ca")
    }

    #[tokio::test]
    async fn a_client_trusts_the_published_authority() {
        let stored = Arc::default();
        let published = authority(&stored);
        let error = published.client_config().await.unwrap_err().to_string();
        assert_eq!(error, "the config map kerf-system/ca has no ca.crt yet");
        let before = published.read().await.unwrap();
        assert!(published.write(before, &made_for_test().ca_pem).await.unwrap());
        assert_eq!(published.client_config().await.unwrap().alpn_protocols, [b"http/1.1"]);
        // Entries of other clients stay.
        stored.lock().unwrap().as_mut().unwrap()["data"]["note"] = json!("theirs");
        let before = published.read().await.unwrap();
        assert!(published.write(before, "another").await.unwrap());
        assert_eq!(
            stored.lock().unwrap().as_ref().unwrap()["data"],
            json!({"ca.crt": "another", "note": "theirs"})
        );
    }

    #[tokio::test]
    async fn an_older_authority_never_replaces_a_newer_one() {
        let stored = Arc::default();
        let published = authority(&stored);
        for newer in ["first", "second"] {
            let slow = published.read().await.unwrap();
            let quick = published.read().await.unwrap();
            assert!(published.write(quick, newer).await.unwrap());
            assert!(!published.write(slow, "older").await.unwrap());
            assert_eq!(stored.lock().unwrap().as_ref().unwrap()["data"]["ca.crt"], newer);
        }
        let version = stored.lock().unwrap().as_ref().unwrap()["metadata"]["resourceVersion"].clone();
        let before = published.read().await.unwrap();
        assert!(published.write(before, "second").await.unwrap());
        assert_eq!(stored.lock().unwrap().as_ref().unwrap()["metadata"]["resourceVersion"], version);
    }
}
