//! Makes kube-scheduler's calls to the extender, for tests that choose the moment of each.

use std::net::SocketAddr;
use std::path::Path;

use anyhow::Context as _;
use k8s_openapi::api::core::v1::Pod;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config, ResourceExt as _};
use serde_json::{Value, json};

/// A client with kube-scheduler's certificate. It keeps its connections open.
pub struct SchedulerClient(Client);

impl SchedulerClient {
    /// A client of the replica at `address`. `tls` is a folder with the keys of the extender's Secret as
    /// files.
    pub async fn new(address: SocketAddr, tls: &Path) -> anyhow::Result<Self> {
        let kubeconfig: Kubeconfig = serde_json::from_value(json!({
            "current-context": "test",
            "clusters": [{"name": "test", "cluster": {
                "server": format!("https://{address}"), "certificate-authority": tls.join("ca.crt"),
            }}],
            "users": [{"name": "test", "user": {
                "client-certificate": tls.join("client.crt"), "client-key": tls.join("client.key"),
            }}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        }))?;
        let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
        Ok(Self(kerf_runtime::args::client(config)?))
    }

    /// The nodes of `offered` that pass the filter.
    pub async fn filter(&self, pod: &Pod, offered: &[&str]) -> anyhow::Result<Vec<String>> {
        let answer = self.call("filter", &json!({"Pod": pod, "NodeNames": offered})).await?;
        Ok(serde_json::from_value(answer["NodeNames"].clone())?)
    }

    /// Binds a pod. Returns the error's text, which is empty on success.
    pub async fn bind(&self, pod: &Pod, node: &str) -> anyhow::Result<String> {
        let args = json!({
            "PodName": pod.name_any(), "PodNamespace": pod.namespace(), "PodUID": pod.uid(), "Node": node,
        });
        let answer = self.call("bind", &args).await?;
        answer["Error"].as_str().map(ToOwned::to_owned).with_context(|| format!("no Error in {answer}"))
    }

    async fn call(&self, verb: &str, args: &Value) -> anyhow::Result<Value> {
        let request = http::Request::post(format!("/scheduler/{verb}"))
            .header(http::header::CONTENT_TYPE, "application/json")
            .body(args.to_string().into_bytes())?;
        Ok(self.0.request(request).await?)
    }
}
