//! The connection to an API server: the flags of every command that needs one, with kubectl's names.
//!
//! | module | what it does |
//! |---|---|
//! | `candidates` | names that complete a command line |
//! | `kubeconfig` | what a kubeconfig says about the connection |
//! | `proxy` | the proxy to use; pure |
//! | `question` | the first request, for the version and the time |
//! | `trouble` | what is wrong with the connection, and the remedy; pure |

pub(crate) mod candidates;
mod kubeconfig;
mod proxy;
mod question;
mod trouble;

pub use question::Connected;
pub use trouble::Trouble;

use clap::Args as ClapArgs;
use clap_complete::ArgValueCandidates;
use http::Uri;
use kerf_runtime::args::ClientArgs;
use kerf_runtime::duration;
use kube::config::{ExecInteractiveMode, KubeConfigOptions};
use kube::{Client, Config};
use std::path::PathBuf;
use std::time::Duration;

const KERF_NAMESPACE: &str = "kerf-system";

/// On each flag, because a heading for the next flags would also be that of the flags that a command has after
/// these.
const HEADING: &str = "Connection";

/// How the API server is reached.
#[derive(Debug, Clone, Default, ClapArgs)]
pub struct Connection {
    /// The kubeconfig file. The default is the files of KUBECONFIG, else `~/.kube/config`, else the service account of
    /// the pod.
    #[arg(help_heading = HEADING, long, value_name = "FILE", hide_short_help = true)]
    kubeconfig: Option<PathBuf>,
    /// The kubeconfig's context. The default is the current one.
    #[arg(
        help_heading = HEADING, long, hide_short_help = true,
        add = ArgValueCandidates::new(candidates::contexts),
    )]
    context: Option<String>,
    /// The kubeconfig's cluster, in place of the context's.
    #[arg(
        help_heading = HEADING, long, hide_short_help = true,
        add = ArgValueCandidates::new(candidates::clusters),
    )]
    cluster: Option<String>,
    /// The kubeconfig's user, in place of the context's.
    #[arg(
        help_heading = HEADING, long, hide_short_help = true,
        add = ArgValueCandidates::new(candidates::users),
    )]
    user: Option<String>,
    /// The user to impersonate.
    #[arg(help_heading = HEADING, long = "as", value_name = "USER", hide_short_help = true)]
    impersonate: Option<String>,
    /// A group to impersonate; the flag may be repeated.
    #[arg(
        help_heading = HEADING, long = "as-group", value_name = "GROUP", requires = "impersonate",
        hide_short_help = true,
    )]
    impersonate_groups: Vec<String>,
    /// The UID to impersonate.
    #[arg(
        help_heading = HEADING, long = "as-uid", value_name = "UID", requires = "impersonate",
        hide_short_help = true,
    )]
    impersonate_uid: Option<String>,
    /// The address of the API server, in place of the cluster's.
    #[arg(help_heading = HEADING, short, long, value_name = "URL", hide_short_help = true)]
    server: Option<Uri>,
    /// How long one request may take, like `30s`; 0 sets no limit. The default is 10s for the first request, and no
    /// limit for others.
    #[arg(
        help_heading = HEADING, long, value_name = "DURATION", value_parser = duration::or_seconds,
        hide_short_help = true,
    )]
    request_timeout: Option<Duration>,
    /// Whether no user can answer a credential plugin's questions, as in shell completion.
    #[arg(skip)]
    unattended: bool,
}

impl Connection {
    pub async fn client(&self) -> Result<Client, Trouble> {
        Ok(self.connect().await?.client)
    }

    /// For use without a terminal: credential plugins must not prompt or print.
    #[must_use]
    pub fn unattended(self) -> Self {
        Self { unattended: true, ..self }
    }

    pub async fn connect(&self) -> Result<Connected, Trouble> {
        question::ask(self.config().await?, self.request_timeout).await
    }

    async fn config(&self) -> Result<Config, Trouble> {
        let loaded = self.files().read().and_then(|read| kubeconfig::load(&read, &self.options()));
        let (mut config, proxy) = match (loaded, &self.server) {
            (Ok(loaded), _) => loaded,
            // The user asked for a kubeconfig, so nothing else may take its place.
            (Err(error), _) if self.names_kubeconfig() => return Err(Trouble::from_kubeconfig(&error)),
            (Err(_), Some(server)) => (Config::new(server.clone()), None),
            // A pod has no kubeconfig, but a service account, so that is tried last.
            (Err(_), None) => {
                (self.files().config().await.map_err(|error| Trouble::from_client(&error))?, None)
            }
        };
        config.cluster_url = self.server.clone().unwrap_or(config.cluster_url);
        let environment = |name: &str| std::env::var(name).ok();
        config.proxy_url =
            proxy::choose(proxy.as_deref(), &config.cluster_url, environment).map_err(Trouble::Proxy)?;
        self.impersonate(&mut config);
        if let Some(plugin) = config.auth_info.exec.as_mut().filter(|_| self.unattended) {
            // A completion must not prompt for a password in the middle of a command line.
            plugin.interactive_mode = Some(ExecInteractiveMode::Never);
        }
        if let Some(timeout) = self.request_timeout {
            let timeout = Some(timeout).filter(|timeout| !timeout.is_zero());
            (config.connect_timeout, config.read_timeout) = (timeout, timeout);
            config.reset_reader_on_write = true;
        }
        Ok(config)
    }

    pub(crate) fn files(&self) -> ClientArgs {
        ClientArgs { kubeconfig: self.kubeconfig.clone() }
    }

    fn options(&self) -> KubeConfigOptions {
        KubeConfigOptions {
            context: self.context.clone(),
            cluster: self.cluster.clone(),
            user: self.user.clone(),
        }
    }

    fn names_kubeconfig(&self) -> bool {
        self.kubeconfig.is_some() || self.context.is_some() || self.cluster.is_some() || self.user.is_some()
    }

    fn impersonate(&self, config: &mut Config) {
        if self.impersonate.is_some() {
            let user = &mut config.auth_info;
            user.impersonate.clone_from(&self.impersonate);
            user.impersonate_uid.clone_from(&self.impersonate_uid);
            user.impersonate_groups = Some(self.impersonate_groups.clone());
        }
    }
}

/// Where kerf itself is installed.
#[derive(Debug, Clone, ClapArgs)]
pub struct KerfNamespace {
    /// The namespace that kerf is installed in.
    #[arg(long = "kerf-namespace", value_name = "NAMESPACE", default_value = KERF_NAMESPACE,
        value_parser = namespace, add = ArgValueCandidates::new(candidates::namespaces))]
    pub name: String,
}

impl Default for KerfNamespace {
    fn default() -> Self {
        Self { name: KERF_NAMESPACE.to_owned() }
    }
}

/// Parses a namespace's name (RFC 1123).
fn namespace(text: &str) -> Result<String, String> {
    let is_inside = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '-';
    let is_label = (1..=63).contains(&text.len()) && text.chars().all(is_inside) && !text.starts_with('-');
    let is_label = is_label && !text.ends_with('-');
    is_label.then(|| text.to_owned()).ok_or_else(|| {
        format!(
            "{text:?} is no name of a namespace; write lower-case letters, digits and -, at most 63 of them"
        )
    })
}
