//! The Secret with a service's certificates: it is read, and written if it is not usable. If two replicas write at
//! once, the API server accepts one write; the other replica reads the winner's content.

use super::issue::step;
use super::{Content, Lifetimes, Material, Rotation, TlsError, Trust, Wanted};
use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, ObjectMeta, PostParams};
use std::collections::BTreeMap;

/// The number of attempts to write. Each lost one means that another replica has written, and then the content is
/// usually usable.
const ATTEMPTS: u32 = 5;

/// The Secret with a service's certificates.
#[derive(Debug, Clone, Copy)]
pub struct TlsSecret;

impl TlsSecret {
    /// Returns the material in the Secret `namespace/name`, and makes or renews it if it does not meet `wanted`. The
    /// ages are in years, and clients are taken to read the same Secret.
    pub async fn ensure(
        client: &kube::Client,
        namespace: &str,
        name: &str,
        wanted: &Wanted,
    ) -> Result<Material, TlsError> {
        let rotation = Rotation { ages: Lifetimes::YEARS, trust: Trust::AsRead, now: Timestamp::now() };
        Self::rotate(client, namespace, name, wanted, &rotation).await
    }

    /// Returns the material in the Secret `namespace/name` after the next step of its rotation, if one is due.
    pub async fn rotate(
        client: &kube::Client,
        namespace: &str,
        name: &str,
        wanted: &Wanted,
        rotation: &Rotation<'_>,
    ) -> Result<Material, TlsError> {
        let api: Api<Secret> = Api::namespaced(client.clone(), namespace);
        let secret = format!("{namespace}/{name}");
        for _ in 0..ATTEMPTS {
            let found = api.get_opt(name).await.map_err(failed("read", &secret))?;
            let content = found.as_ref().map(content).unwrap_or_default();
            let next = step(&content, wanted, rotation)?;
            let material = Material::from_content(&next.content, wanted);
            let material = material.map_err(|unfit| TlsError::Unserviceable(unfit.to_string()))?;
            if next.reasons.is_empty() {
                return Ok(material);
            }
            // A second step must find nothing to do: otherwise every call would renew the certificates again.
            if let Some(reason) = step(&next.content, wanted, rotation)?.reasons.first() {
                return Err(TlsError::Unserviceable(reason.clone()));
            }
            match write(&api, name, found, next.content).await {
                Ok(()) => {
                    tracing::info!(secret, reason = next.reasons.join("; "), "certificates renewed");
                    return Ok(material);
                }
                Err(kube::Error::Api(status)) if status.is_conflict() || status.is_already_exists() => {}
                Err(source) => return Err(failed("write", &secret)(source)),
            }
        }
        Err(TlsError::Contended(secret))
    }
}

fn failed(verb: &'static str, secret: &str) -> impl FnOnce(kube::Error) -> TlsError {
    move |source| TlsError::Api { verb, secret: secret.to_owned(), source: Box::new(source) }
}

/// The texts in a Secret. An entry that is no UTF-8 counts as missing.
fn content(secret: &Secret) -> Content {
    let data = secret.data.iter().flatten();
    data.filter_map(|(key, bytes)| Some((key.clone(), String::from_utf8(bytes.0.clone()).ok()?))).collect()
}

/// Creates the Secret, or replaces the one that was found, unless another client has changed it since.
async fn write(
    api: &Api<Secret>,
    name: &str,
    found: Option<Secret>,
    content: Content,
) -> Result<(), kube::Error> {
    let texts = content.into_iter().map(|(key, text)| (key, ByteString(text.into_bytes())));
    let post = PostParams::default();
    let Some(mut secret) = found else {
        let metadata = ObjectMeta {
            name: Some(name.to_owned()),
            labels: Some(BTreeMap::from([("app.kubernetes.io/part-of".to_owned(), "kerf".to_owned())])),
            ..ObjectMeta::default()
        };
        let type_ = Some("Opaque".to_owned());
        let secret = Secret { metadata, data: Some(texts.collect()), type_, ..Secret::default() };
        return api.create(&post, &secret).await.map(drop);
    };
    secret.data.get_or_insert_default().extend(texts);
    api.replace(name, &post, &secret).await.map(drop)
}

#[cfg(test)]
#[path = "secret_tests.rs"]
mod tests;
