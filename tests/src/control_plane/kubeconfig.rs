//! Writes kubeconfig files, and makes clients from them. They are JSON, which every YAML parser accepts.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::{Value, json};

use super::certificates::{Authority, KeyAndCertificate};
use super::folder::Folder;

/// The credential of a user.
pub enum Credential {
    Certificate(KeyAndCertificate),
    Token(String),
}

/// Writes the kubeconfig of one user with all data inline, readable by this machine's user only.
pub fn write(
    folder: &Folder,
    user: &str,
    url: &str,
    authority: &Authority,
    credential: &Credential,
) -> anyhow::Result<PathBuf> {
    let path = folder.kubeconfigs().join(format!("{}.yaml", user.replace(['/', ':'], "-")));
    let document = document(url, authority.pem(), credential);
    // The file is renamed into place, because a program of the same user may be reading it.
    let mut file = tempfile::NamedTempFile::new_in(folder.kubeconfigs())?;
    writeln!(file, "{document:#}").with_context(|| format!("failed to write {}", path.display()))?;
    file.as_file().set_permissions(fs::Permissions::from_mode(0o600))?;
    file.persist(&path).with_context(|| format!("failed to write {}", path.display()))?;
    Ok(path)
}

fn document(url: &str, ca: &str, credential: &Credential) -> Value {
    let user = match credential {
        Credential::Certificate(pair) => json!({
            "client-certificate-data": STANDARD.encode(&pair.certificate),
            "client-key-data": STANDARD.encode(&pair.key),
        }),
        Credential::Token(token) => json!({ "token": token }),
    };
    json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{ "name": "test", "cluster": { "server": url, "certificate-authority-data": STANDARD.encode(ca) } }],
        "users": [{ "name": "test", "user": user }],
        "contexts": [{ "name": "test", "context": { "cluster": "test", "user": "test" } }],
        "current-context": "test",
    })
}

/// A client for the server that a kubeconfig names.
pub async fn client(kubeconfig: &Path) -> anyhow::Result<Client> {
    Ok(Client::try_from(config(kubeconfig).await?)?)
}

/// A client with a kubeconfig's authority and user for another server.
pub async fn client_to(kubeconfig: &Path, url: &str) -> anyhow::Result<Client> {
    let mut config = config(kubeconfig).await?;
    config.cluster_url = url.parse().with_context(|| format!("{url} is no URL"))?;
    Ok(Client::try_from(config)?)
}

async fn config(kubeconfig: &Path) -> anyhow::Result<Config> {
    let read = Kubeconfig::read_from(kubeconfig)?;
    let config = Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await;
    config.with_context(|| format!("failed to use {}", kubeconfig.display()))
}
