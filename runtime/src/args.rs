//! Flag groups that the programs flatten into their own.

use clap::{Args, ValueEnum};
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use std::io;
use std::path::{Path, PathBuf};
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
    /// A kubeconfig file. Without it those are taken that KUBECONFIG lists, or else `~/.kube/config`, or else the
    /// service account of the pod.
    // KUBECONFIG is not the flag's variable, because it may list several files, which are read as one.
    #[arg(long)]
    pub kubeconfig: Option<PathBuf>,
}

/// Why no client for the API server can be built.
#[derive(Debug, Error)]
pub enum ClientError {
    /// A kubeconfig file is unreadable or malformed.
    #[error("failed to read the kubeconfig")]
    Kubeconfig(#[from] KubeconfigError),
    /// Neither a kubeconfig nor a service account names an API server.
    #[error("failed to find an API server; give --kubeconfig")]
    Infer(#[from] kube::config::InferConfigError),
    /// The TLS or proxy settings do not make a client.
    #[error("failed to make a client")]
    Client(#[from] kube::Error),
}

impl ClientArgs {
    /// Builds a client for the API server that the flag, the environment or the pod names.
    pub async fn client(&self) -> Result<kube::Client, ClientError> {
        Ok(client(self.config().await?)?)
    }

    /// The settings of the API server: the kubeconfig's current context, or the pod's service account.
    pub async fn config(&self) -> Result<kube::Config, ClientError> {
        if self.kubeconfig.is_some() {
            return Ok(
                kube::Config::from_custom_kubeconfig(self.read()?, &KubeConfigOptions::default()).await?
            );
        }
        self.check_encoding()?;
        Ok(kube::Config::infer().await?)
    }

    /// The kubeconfig files, merged into one.
    pub fn read(&self) -> Result<Kubeconfig, KubeconfigError> {
        self.check_encoding()?;
        self.kubeconfig.as_ref().map_or_else(Kubeconfig::read, Kubeconfig::read_from)
    }

    fn check_encoding(&self) -> Result<(), KubeconfigError> {
        self.files().iter().try_for_each(|path| check_utf16(path))
    }

    fn files(&self) -> Vec<PathBuf> {
        match (&self.kubeconfig, std::env::var_os("KUBECONFIG")) {
            (Some(path), _) => vec![path.clone()],
            (None, Some(list)) => std::env::split_paths(&list).collect(),
            (None, None) => std::env::home_dir().map(|home| home.join(".kube/config")).into_iter().collect(),
        }
    }
}

/// Rejects a UTF-16 file that ends within a character, because kube panics on it. kube itself reports all other
/// mistakes.
fn check_utf16(path: &Path) -> Result<(), KubeconfigError> {
    let bytes = std::fs::read(path).unwrap_or_default();
    let is_utf16 = bytes.starts_with(&[0xFF, 0xFE]) || bytes.starts_with(&[0xFE, 0xFF]);
    if is_utf16 && bytes.len() % 2 == 1 {
        let cut = io::Error::new(io::ErrorKind::InvalidData, "UTF-16 that ends within a character");
        return Err(KubeconfigError::ReadConfig(cut, path.to_owned()));
    }
    Ok(())
}

/// Builds a client that never retries a request by itself, because only the caller can say which requests may be
/// repeated.
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

/// An object's namespace and name, given to a flag as `namespace/name`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamespacedName {
    /// The part before the slash, never empty.
    pub namespace: String,
    /// The part after the slash, never empty.
    pub name: String,
}

/// The text is not of the form `namespace/name`.
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
    fn the_flag_does_not_take_kubeconfig_from_the_environment() {
        let command = ClientArgs::augment_args(clap::Command::new("it"));
        assert!(command.get_arguments().all(|argument| argument.get_env().is_none()));
    }

    #[tokio::test]
    async fn a_kubeconfig_that_was_cut_within_a_character_is_refused() {
        for bytes in [[0xFF, 0xFE, b'a'], [0xFE, 0xFF, 0]] {
            let file = tempfile::NamedTempFile::new().unwrap();
            std::fs::write(file.path(), bytes).unwrap();
            let args = ClientArgs { kubeconfig: Some(file.path().to_owned()) };
            let error = args.client().await.map(drop).unwrap_err();
            assert!(
                matches!(&error, ClientError::Kubeconfig(KubeconfigError::ReadConfig(_, path)) if path == file.path())
            );
        }
    }

    #[test]
    fn names_have_a_namespace() {
        assert_eq!("a/b".parse(), Ok(NamespacedName { namespace: "a".into(), name: "b".into() }));
        for text in ["a", "/b", "a/", "a/b/c"] {
            assert_eq!(text.parse::<NamespacedName>(), Err(NoNamespacedName(text.into())));
        }
    }
}
