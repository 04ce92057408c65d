//! Loads a client's configuration from a kubeconfig, without its proxy, which `proxy` chooses.
//!
//! kube's own loader is not used, because it reads the proxy's environment variables, too, and rejects a `NO_PROXY`
//! with an entry that kubectl skips.

use kube::Config;
use kube::config::{AuthInfo, Cluster, ExecAuthCluster, KubeConfigOptions, Kubeconfig, KubeconfigError};

/// Loads the configuration of the chosen context. The cluster's `proxy-url` is returned beside it.
pub fn load(
    kubeconfig: &Kubeconfig,
    options: &KubeConfigOptions,
) -> Result<(Config, Option<String>), KubeconfigError> {
    let name = options.context.as_ref().or(kubeconfig.current_context.as_ref());
    let name = name.ok_or(KubeconfigError::CurrentContextNotSet)?;
    let context = kubeconfig.contexts.iter().find(|named| named.name == *name);
    let context = context
        .and_then(|named| named.context.as_ref())
        .ok_or_else(|| KubeconfigError::LoadContext(name.clone()))?;
    let name = options.cluster.as_ref().unwrap_or(&context.cluster);
    let cluster = kubeconfig.clusters.iter().find(|named| named.name == *name);
    let cluster = cluster
        .and_then(|named| named.cluster.as_ref())
        .ok_or_else(|| KubeconfigError::LoadClusterOfContext(name.clone()))?;
    let user = options.user.as_ref().or(context.user.as_ref());
    let user = user.and_then(|name| kubeconfig.auth_infos.iter().find(|named| named.name == *name));
    let user = user.and_then(|named| named.auth_info.clone()).unwrap_or_default();
    let mut config = configure(cluster, user)?;
    if let Some(namespace) = &context.namespace {
        config.default_namespace.clone_from(namespace);
    }
    Ok((config, cluster.proxy_url.clone()))
}

fn configure(cluster: &Cluster, mut user: AuthInfo) -> Result<Config, KubeconfigError> {
    let server = cluster.server.as_ref().ok_or(KubeconfigError::MissingClusterUrl)?;
    let mut config = Config::new(server.parse().map_err(KubeconfigError::ParseClusterUrl)?);
    // The conversion is for credential plugins. It is used here, because it also reads the authority's file or data.
    let read = ExecAuthCluster::try_from(cluster)?;
    config.root_cert = read.certificate_authority_data.as_deref().map(certificates).transpose()?;
    if let Some(plugin) = user.exec.as_mut().filter(|plugin| plugin.provide_cluster_info) {
        plugin.cluster = Some(read);
    }
    config.accept_invalid_certs = cluster.insecure_skip_tls_verify.unwrap_or_default();
    config.disable_compression = cluster.disable_compression.unwrap_or_default();
    config.tls_server_name.clone_from(&cluster.tls_server_name);
    config.auth_info = user;
    Ok(config)
}

fn certificates(bundle: &[u8]) -> Result<Vec<Vec<u8>>, KubeconfigError> {
    let blocks = pem::parse_many(bundle).map_err(KubeconfigError::ParseCertificates)?.into_iter();
    Ok(blocks.filter(|block| block.tag() == "CERTIFICATE").map(pem::Pem::into_contents).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;

    fn kubeconfig() -> Kubeconfig {
        let certificate = rcgen::generate_simple_self_signed(["api".to_owned()]).unwrap().cert.pem();
        let text = serde_json::json!({
            "current-context": "one",
            "contexts": [
                {"name": "one", "context": {"cluster": "c1", "user": "u1", "namespace": "team"}},
                {"name": "two", "context": {"cluster": "c2"}},
                {"name": "lost", "context": {"cluster": "gone"}},
            ],
            "clusters": [
                {"name": "c1", "cluster": {
                    "server": "https://one:6443", "certificate-authority-data": STANDARD.encode(certificate),
                    "tls-server-name": "api", "disable-compression": true, "proxy-url": "http://proxy:1",
                }},
                {"name": "c2", "cluster": {"server": "https://two:6443", "insecure-skip-tls-verify": true}},
                {"name": "c3", "cluster": {}},
            ],
            "users": [{"name": "u1", "user": {"exec": {
                "apiVersion": "client.authentication.k8s.io/v1", "command": "login", "provideClusterInfo": true,
                "interactiveMode": "Never",
            }}}],
        });
        Kubeconfig::from_yaml(&text.to_string()).unwrap()
    }

    fn chosen(context: Option<&str>, cluster: Option<&str>) -> KubeConfigOptions {
        let owned = |name: Option<&str>| name.map(str::to_owned);
        KubeConfigOptions { context: owned(context), cluster: owned(cluster), user: None }
    }

    /// The `Debug` output is compared, because it has all fields. The proxy is left out, because kube chooses it by
    /// this process' environment.
    #[tokio::test]
    async fn a_context_is_loaded_as_kube_loads_it() {
        let kubeconfig = kubeconfig();
        for options in [chosen(None, None), chosen(Some("two"), None), chosen(None, Some("c2"))] {
            let (config, proxy) = load(&kubeconfig, &options).unwrap();
            let mut expected = Config::from_custom_kubeconfig(kubeconfig.clone(), &options).await.unwrap();
            expected.proxy_url = None;
            assert_eq!(format!("{config:?}"), format!("{expected:?}"));
            let is_first = config.cluster_url.host() == Some("one");
            assert_eq!(proxy.as_deref(), is_first.then_some("http://proxy:1"));
        }
    }

    #[tokio::test]
    async fn missing_parts_give_the_same_errors_as_kube() {
        for options in [chosen(Some("three"), None), chosen(Some("lost"), None), chosen(None, Some("c3"))] {
            let error = load(&kubeconfig(), &options).unwrap_err().to_string();
            let expected = Config::from_custom_kubeconfig(kubeconfig(), &options).await.unwrap_err();
            assert_eq!(error, expected.to_string());
        }
        let none = Kubeconfig { current_context: None, ..kubeconfig() };
        let error = load(&none, &KubeConfigOptions::default()).unwrap_err();
        assert!(matches!(error, KubeconfigError::CurrentContextNotSet), "{error}");
    }
}
