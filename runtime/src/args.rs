//! Flag groups that the programs flatten into their own.

use clap::{Args, ValueEnum};
use std::path::PathBuf;
use std::str::FromStr;
use thiserror::Error;

/// How a program logs.
#[derive(Debug, Clone, Args)]
pub struct LogArgs {
    /// What to log: a level, and others for parts of the program: `info`, or `info,kerf_extender=debug`.
    #[arg(long, env = "KERF_LOG", default_value = "info")]
    pub log: String,
    /// How to write it.
    #[arg(long, env = "KERF_LOG_FORMAT", value_enum, default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,
}

/// A log's form.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Lines for people.
    Text,
    /// One JSON object a line.
    Json,
}

/// How a program finds the API server.
#[derive(Debug, Clone, Args)]
pub struct ClientArgs {
    /// A kubeconfig file. Without it those are taken that KUBECONFIG lists, or else `~/.kube/config`, or else the service account of the
    /// pod.
    // KUBECONFIG is no value of the flag: it may list several files, which are read as one.
    #[arg(long)]
    pub kubeconfig: Option<PathBuf>,
}

/// Why there is no client.
#[derive(Debug, Error)]
pub enum ClientError {
    /// The kubeconfig is bad.
    #[error("failed to read the kubeconfig")]
    Kubeconfig(#[from] kube::config::KubeconfigError),
    /// Nothing tells where the API server is.
    #[error("failed to find an API server; give --kubeconfig")]
    Infer(#[from] kube::config::InferConfigError),
    /// The client cannot be made.
    #[error("failed to make a client")]
    Client(#[from] kube::Error),
}

/// How a command of a user's finds the API server, of which a kubeconfig may have several.
#[derive(Debug, Clone, Args)]
pub struct ContextArgs {
    /// The kubeconfig's context; without it the current one.
    #[arg(long)]
    context: Option<String>,
    #[command(flatten)]
    client: ClientArgs,
}

impl ContextArgs {
    /// A client for the API server.
    pub async fn client(&self) -> Result<kube::Client, ClientError> {
        Ok(client(self.config().await?)?)
    }

    /// How the API server is reached.
    pub async fn config(&self) -> Result<kube::Config, ClientError> {
        self.client.config_in(self.context.as_deref()).await
    }
}

impl ClientArgs {
    /// A client for the API server.
    pub async fn client(&self) -> Result<kube::Client, ClientError> {
        Ok(client(self.config_in(None).await?)?)
    }

    async fn config_in(&self, context: Option<&str>) -> Result<kube::Config, ClientError> {
        let options = kube::config::KubeConfigOptions {
            context: context.map(str::to_owned),
            ..kube::config::KubeConfigOptions::default()
        };
        Ok(match &self.kubeconfig {
            Some(path) => {
                let kubeconfig = kube::config::Kubeconfig::read_from(path)?;
                kube::Config::from_custom_kubeconfig(kubeconfig, &options).await?
            }
            None if context.is_some() => kube::Config::from_kubeconfig(&options).await?,
            None => kube::Config::infer().await?,
        })
    }
}

/// A client for this API server. Its requests are not retried by the client itself: the callers know what may be.
pub fn client(mut config: kube::Config) -> Result<kube::Client, kube::Error> {
    config.default_retry = false;
    kube::Client::try_from(config)
}

/// Where a program serves `/livez`, `/readyz` and `/metrics`.
#[derive(Debug, Clone, Copy, Args)]
pub struct AdminArgs {
    /// Address of `/livez`, `/readyz` and `/metrics`, in plain HTTP.
    #[arg(long, default_value = "[::]:9090")]
    pub admin_address: std::net::SocketAddr,
}

/// The name of an object and its namespace, as the flag `namespace/name`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamespacedName {
    /// The namespace.
    pub namespace: String,
    /// The name.
    pub name: String,
}

/// A text that is no `namespace/name`.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{0:?} is no name in a namespace; write namespace/name")]
pub struct NoNamespacedName(String);

impl FromStr for NamespacedName {
    type Err = NoNamespacedName;

    fn from_str(text: &str) -> Result<Self, NoNamespacedName> {
        match text.split_once('/') {
            Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() && !name.contains('/') => {
                Ok(Self { namespace: namespace.to_owned(), name: name.to_owned() })
            }
            _ => Err(NoNamespacedName(text.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kubeconfig_is_a_list_of_files_and_not_the_flags_one() {
        let command = ClientArgs::augment_args(clap::Command::new("it"));
        assert!(command.get_arguments().all(|argument| argument.get_env().is_none()));
    }

    #[test]
    fn names_have_a_namespace() {
        assert_eq!("a/b".parse(), Ok(NamespacedName { namespace: "a".into(), name: "b".into() }));
        for text in ["a", "/b", "a/", "a/b/c"] {
            assert_eq!(text.parse::<NamespacedName>(), Err(NoNamespacedName(text.into())));
        }
    }
}
