//! The contents of volumes that the API server fills: Secrets, `ConfigMap`s, tokens and the downward API.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{
    ConfigMap, Container, DownwardAPIVolumeFile, KeyToPath, Pod, Secret, ServiceAccount,
    ServiceAccountTokenProjection, VolumeProjection,
};
use kube::api::{Api, PostParams};

use super::atomic::Payload;
use super::{MountContext, MountError};
use crate::kubelet::downward;

/// The entries of a Secret or a ConfigMap, by key.
pub(in crate::kubelet) type Entries = BTreeMap<String, Vec<u8>>;

/// A token of a volume, and when it must be renewed.
#[derive(Debug, Clone)]
pub(super) struct Token {
    text: String,
    renew: Instant,
}

/// Tokens of a volume by their paths.
pub(super) type Tokens = BTreeMap<String, Token>;

/// A Secret's entries; empty if it is optional and missing.
pub(in crate::kubelet) async fn secret(
    context: &MountContext<'_>,
    name: &str,
    optional: bool,
) -> Result<Entries, MountError> {
    let api: Api<Secret> = Api::namespaced(context.client.clone(), &context.namespace());
    let found = api.get_opt(name).await.map_err(|error| MountError::Api(error.into()))?;
    match found {
        Some(secret) => {
            let data = secret.data.unwrap_or_default();
            Ok(data.into_iter().map(|(key, value)| (key, value.0)).collect())
        }
        None if optional => Ok(Entries::new()),
        None => Err(MountError::NotFound { kind: "secret", name: name.to_owned() }),
    }
}

/// A ConfigMap's entries; empty if it is optional and missing.
pub(in crate::kubelet) async fn config_map(
    context: &MountContext<'_>,
    name: &str,
    optional: bool,
) -> Result<Entries, MountError> {
    let api: Api<ConfigMap> = Api::namespaced(context.client.clone(), &context.namespace());
    let found = api.get_opt(name).await.map_err(|error| MountError::Api(error.into()))?;
    match found {
        Some(map) => {
            let text = map.data.unwrap_or_default().into_iter().map(|(key, text)| (key, text.into_bytes()));
            let binary = map.binary_data.unwrap_or_default().into_iter().map(|(key, value)| (key, value.0));
            Ok(text.chain(binary).collect())
        }
        None if optional => Ok(Entries::new()),
        None => Err(MountError::NotFound { kind: "configmap", name: name.to_owned() }),
    }
}

/// The files for entries: the listed ones, or all.
pub(super) fn selected(
    entries: Entries,
    items: Option<&Vec<KeyToPath>>,
    optional: bool,
) -> Result<Payload, MountError> {
    let Some(items) = items.filter(|items| !items.is_empty()) else { return Ok(entries) };
    let mut payload = Payload::new();
    for item in items {
        match entries.get(&item.key) {
            Some(value) => drop(payload.insert(item.path.clone(), value.clone())),
            None if optional => {}
            None => return Err(MountError::NoKey(item.key.clone())),
        }
    }
    Ok(payload)
}

/// The files of a downwardAPI volume.
pub(super) fn reported(
    context: &MountContext<'_>,
    items: Option<&Vec<DownwardAPIVolumeFile>>,
) -> Result<Payload, MountError> {
    let containers = containers(context.pod);
    let files = items.into_iter().flatten().map(|item| {
        let field = item.field_ref.as_ref();
        let field = field.and_then(|f| downward::field(context.pod, context.whereabouts, &f.field_path));
        let resource = item.resource_field_ref.as_ref();
        let resource = resource.and_then(|r| downward::resource(&containers, "", context.node, r));
        let text = field.or(resource).ok_or_else(|| MountError::NoKey(item.path.clone()))?;
        Ok((item.path.clone(), text.into_bytes()))
    });
    files.collect()
}

pub(in crate::kubelet) fn containers(pod: &Pod) -> Vec<&Container> {
    let spec = pod.spec.as_ref();
    let init = spec.and_then(|spec| spec.init_containers.as_ref()).into_iter().flatten();
    init.chain(spec.map(|spec| &spec.containers).into_iter().flatten()).collect()
}

/// The files of one source of a projected volume.
pub(super) async fn projected(
    context: &MountContext<'_>,
    source: &VolumeProjection,
    tokens: &mut Tokens,
) -> Result<Payload, MountError> {
    if let Some(source) = &source.secret {
        let optional = source.optional.unwrap_or_default();
        let entries = secret(context, &source.name, optional).await?;
        return selected(entries, source.items.as_ref(), optional);
    }
    if let Some(source) = &source.config_map {
        let optional = source.optional.unwrap_or_default();
        let entries = config_map(context, &source.name, optional).await?;
        return selected(entries, source.items.as_ref(), optional);
    }
    if let Some(source) = &source.downward_api {
        return reported(context, source.items.as_ref());
    }
    let Some(source) = &source.service_account_token else { return Err(MountError::Unsupported) };
    let kept = tokens.get(&source.path).filter(|token| Instant::now() < token.renew).cloned();
    let token = match kept {
        Some(token) => token,
        None => token(context, source).await?,
    };
    tokens.insert(source.path.clone(), token.clone());
    Ok([(source.path.clone(), token.text.into_bytes())].into())
}

/// A token of the pod's service account, bound to the pod, so that it carries the node's name too. It is
/// renewed after four fifths of its lifetime (kubernetes v1.36, `requiresRefresh` in
/// `pkg/kubelet/token/token_manager.go`).
async fn token(
    context: &MountContext<'_>,
    source: &ServiceAccountTokenProjection,
) -> Result<Token, MountError> {
    let metadata = &context.pod.metadata;
    let bound = BoundObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Pod".to_owned()),
        name: metadata.name.clone(),
        uid: metadata.uid.clone(),
    };
    let seconds = source.expiration_seconds.unwrap_or(3600);
    let spec = TokenRequestSpec {
        // An empty list is right if the volume names no audience: the token is then for the API server.
        audiences: source.audience.iter().cloned().collect(),
        bound_object_ref: Some(bound),
        expiration_seconds: Some(seconds),
    };
    let request = TokenRequest { spec, ..TokenRequest::default() };
    let account = context.pod.spec.as_ref().and_then(|spec| spec.service_account_name.as_deref());
    let accounts: Api<ServiceAccount> = Api::namespaced(context.client.clone(), &context.namespace());
    let (asked, parameters) = (Instant::now(), PostParams::default());
    let answer = accounts.create_token_request(account.unwrap_or("default"), &parameters, &request);
    let answer = answer.await.map_err(|error| MountError::Api(error.into()))?;
    let life = Duration::from_secs(u64::try_from(seconds).unwrap_or(3600));
    let text = answer.status.map(|status| status.token).unwrap_or_default();
    Ok(Token { text, renew: asked + life * 4 / 5 })
}
