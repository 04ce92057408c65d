//! Access to the API server for several users: kubeconfigs, tokens and clients.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Node, ServiceAccount};
use kerf_runtime::tls::Material;
use kube::api::PostParams;
use kube::{Api, Client};
use rcgen::KeyPair;
use serde_json::Value;

use super::kubeconfig::{self, Credential};
use super::{ControlPlane, jwt, programs};

/// Requested lifetime of every service account token. The API server allows ten minutes to 2^32 seconds.
const TOKEN_SECONDS: i64 = 24 * 3600;

impl ControlPlane {
    /// The kubeconfig of a member of `system:masters`.
    #[must_use]
    pub fn kubeconfig(&self) -> &Path {
        &self.admin
    }

    /// A client of a member of `system:masters`, without a rate limit.
    #[must_use]
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// A client without a rate limit, for a kubeconfig that a method here wrote.
    pub async fn client_as(&self, kubeconfig: &Path) -> anyhow::Result<Client> {
        kubeconfig::client(kubeconfig).await
    }

    /// Signs a client certificate and writes a kubeconfig with it. It has at most one group beside
    /// `system:authenticated`. Service accounts use [`ControlPlane::kubeconfig_for_service_account`].
    pub fn kubeconfig_for(&self, user: &str, group: Option<&str>) -> anyhow::Result<PathBuf> {
        let pair = self.authority.client(user, group)?;
        kubeconfig::write(&self.folder, user, &self.url, &self.authority, &Credential::Certificate(pair))
    }

    /// Requests a token of an existing service account and writes a kubeconfig with it. Its user has exactly
    /// the account's rights.
    pub async fn kubeconfig_for_service_account(
        &self,
        namespace: &str,
        name: &str,
    ) -> anyhow::Result<PathBuf> {
        self.service_account(namespace, name, None).await
    }

    /// Writes such a kubeconfig for the pod of a `DaemonSet` on `node`, which must exist. The token is bound
    /// to the node and carries its name (`authentication.kubernetes.io/node-name` in the user's extra), which
    /// admission policies check.
    pub async fn kubeconfig_for_service_account_on_node(
        &self,
        namespace: &str,
        name: &str,
        node: &str,
    ) -> anyhow::Result<PathBuf> {
        let bound = self.reference_of(node).await?;
        self.service_account(namespace, name, Some(bound)).await
    }

    /// The token with which the agent on `node` authenticates to the extender. The node must exist.
    pub async fn agent_token(&self, namespace: &str, name: &str, node: &str) -> anyhow::Result<String> {
        let bound = self.reference_of(node).await?;
        self.token(namespace, name, "kerf-extender", Some(bound)).await
    }

    async fn reference_of(&self, node: &str) -> anyhow::Result<BoundObjectReference> {
        let found =
            Api::<Node>::all(self.client()).get(node).await.with_context(|| format!("no node {node}"))?;
        Ok(BoundObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Node".to_owned()),
            name: Some(node.to_owned()),
            uid: found.metadata.uid,
        })
    }

    /// A token of a service account for this audience. A kubelet requests one like it for a pod, bound to the
    /// pod.
    pub async fn token(
        &self,
        namespace: &str,
        name: &str,
        audience: &str,
        bound: Option<BoundObjectReference>,
    ) -> anyhow::Result<String> {
        let spec = TokenRequestSpec {
            audiences: vec![audience.to_owned()],
            bound_object_ref: bound,
            expiration_seconds: Some(TOKEN_SECONDS),
        };
        let request = TokenRequest { spec, ..TokenRequest::default() };
        let accounts = Api::<ServiceAccount>::namespaced(self.client(), namespace);
        let answer = accounts.create_token_request(name, &PostParams::default(), &request).await;
        let answer = answer.with_context(|| format!("failed to get a token of {namespace}/{name}"))?;
        Ok(answer.status.context("the API server answered without a token")?.token)
    }

    /// A copy of the API server's token with other claims, signed by the API server's key.
    pub fn resigned(&self, token: &str, change: impl FnOnce(&mut Value)) -> anyhow::Result<String> {
        let key = std::fs::read_to_string(self.folder.pki().join("service-accounts.key"))?;
        jwt::resigned(token, &KeyPair::from_pem(&key)?, change)
    }

    /// The serving certificate of a kubelet on this machine, and the authority by which it verifies the API
    /// server.
    pub fn kubelet_serving(&self) -> anyhow::Result<Material> {
        let pair = self.authority.server(&["127.0.0.1"])?;
        Ok(Material {
            ca_pem: self.authority.pem().to_owned(),
            server_cert_pem: pair.certificate,
            server_key_pem: pair.key,
            client_cert_pem: None,
            client_key_pem: None,
        })
    }

    async fn service_account(
        &self,
        namespace: &str,
        name: &str,
        bound: Option<BoundObjectReference>,
    ) -> anyhow::Result<PathBuf> {
        let file = match bound.as_ref().and_then(|object| object.name.as_deref()) {
            Some(node) => format!("{namespace}:{name}@{node}"),
            None => format!("{namespace}:{name}"),
        };
        let token = self.token(namespace, name, programs::SERVICE_ACCOUNT_ISSUER, bound).await?;
        kubeconfig::write(&self.folder, &file, &self.url, &self.authority, &Credential::Token(token))
    }
}
