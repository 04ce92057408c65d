//! Finds the API server by the pod's service account, or by a kubeconfig in JSON. YAML is not supported, because its
//! parser would take a megabyte of memory on every node and only a developer's agent has a kubeconfig.

use clap::Args;
use kerf_runtime::args::client;
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};
use std::path::{Path, PathBuf};
use thiserror::Error;

/// How the agent finds the API server.
#[derive(Debug, Clone, Args)]
pub struct ClientArgs {
    /// A kubeconfig file in JSON, as `kubectl config view --raw --flatten --output json` writes it. Without it the service
    /// account of the pod is used.
    // KUBECONFIG is no value of the flag: it may be empty, list several files, and those are mostly YAML.
    #[arg(long)]
    pub kubeconfig: Option<PathBuf>,
}

#[derive(Debug, Error)]
pub enum ClientError {
    #[error("failed to read {0}")]
    Read(PathBuf, #[source] std::io::Error),
    #[error("{0} is no kubeconfig in JSON; write it by `kubectl config view --raw --flatten --output json`")]
    Json(PathBuf, #[source] serde_json::Error),
    /// The kubeconfig lacks a cluster, a user or a field that the client needs.
    #[error("failed to use the kubeconfig")]
    Kubeconfig(#[from] KubeconfigError),
    /// The agent does not run in a pod, or its service account is not mounted.
    #[error("failed to find the pod's service account; give --kubeconfig")]
    ServiceAccount(#[from] kube::config::InClusterError),
    #[error("failed to make a client")]
    Client(#[from] kube::Error),
}

impl ClientArgs {
    pub async fn client(&self) -> Result<Client, ClientError> {
        let config = match &self.kubeconfig {
            Some(path) => Config::from_custom_kubeconfig(read(path)?, &KubeConfigOptions::default()).await?,
            None => Config::incluster()?,
        };
        Ok(client(config)?)
    }
}

fn read(path: &Path) -> Result<Kubeconfig, ClientError> {
    let text = std::fs::read_to_string(path).map_err(|error| ClientError::Read(path.to_owned(), error))?;
    serde_json::from_str(&text).map_err(|error| ClientError::Json(path.to_owned(), error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_flag_sets_the_kubeconfig() {
        let command = ClientArgs::augment_args(clap::Command::new("it"));
        assert!(command.get_arguments().all(|argument| argument.get_env().is_none()));
    }

    #[test]
    fn a_kubeconfig_that_is_not_json_is_an_error_with_the_remedy() {
        let folder = tempfile::tempdir().unwrap();
        let read = |text: &str| {
            let path = folder.path().join("config");
            std::fs::write(&path, text).unwrap();
            read(&path).map_err(|error| error.to_string())
        };
        let json = r#"{"apiVersion": "v1", "kind": "Config", "current-context": "c", "contexts": [], "clusters": [], "users": []}"#;
        assert_eq!(read(json).unwrap().current_context.as_deref(), Some("c"));
        let refused = read("apiVersion: v1\nkind: Config\n").unwrap_err();
        assert!(
            refused.ends_with("write it by `kubectl config view --raw --flatten --output json`"),
            "{refused}"
        );
    }
}
