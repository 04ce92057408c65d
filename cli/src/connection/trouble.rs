//! Describes what is wrong with the connection to an API server, and the remedy. Each case has its own message, because
//! kubeconfigs age: certificates expire, clusters are recreated, contexts are renamed. Pure.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use kerf_runtime::args::ClientError;
use kerf_runtime::tls;
use kube::client::AuthError;
use kube::config::{AuthInfo, KubeconfigError};
use std::error::Error;
use std::fmt;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trouble {
    Kubeconfig(String),
    NoContext(String),
    Proxy(String),
    CertificateEnded(Timestamp),
    Unauthorized,
    /// The authority in the kubeconfig has not signed the API server's certificate.
    Stranger {
        url: String,
        text: String,
    },
    NoLogin {
        /// The plugin, if the kubeconfig names one.
        plugin: Option<String>,
        text: String,
    },
    NoAnswer {
        url: String,
        text: String,
    },
    Refused {
        url: String,
        text: String,
    },
}

impl Trouble {
    #[must_use]
    pub fn words(&self) -> (String, String) {
        let (what, remedy) = match self {
            Self::Kubeconfig(text) => (
                format!("no way to an API server: {text}"),
                "name a kubeconfig by --kubeconfig or KUBECONFIG; your provider's command writes one (for example: kind export kubeconfig, gcloud container clusters get-credentials, aws eks update-kubeconfig)",
            ),
            Self::NoContext(text) => (
                text.clone(),
                "name one of `kubectl config get-contexts` by --context, or choose it: kubectl config use-context NAME",
            ),
            Self::Proxy(text) => (
                format!("no way to an API server: {text}"),
                "correct the kubeconfig's proxy-url and HTTPS_PROXY",
            ),
            Self::CertificateEnded(end) => (
                format!("the client certificate in the kubeconfig ended at {end}"),
                "fetch a new kubeconfig from its author; with kubeadm: kubeadm certs renew admin.conf, then copy /etc/kubernetes/admin.conf",
            ),
            Self::Unauthorized => (
                "the API server does not accept the user of the kubeconfig (401 Unauthorized)".to_owned(),
                "log in again, or fetch a new kubeconfig: its token or certificate has ended, or is of another cluster",
            ),
            Self::Stranger { url, text } => (
                format!("{url} shows a certificate that the kubeconfig's authority has not signed: {text}"),
                "fetch a new kubeconfig: the cluster was made anew, or the address is another's",
            ),
            Self::NoLogin { plugin: Some(plugin), text } => {
                return (
                    format!("{plugin}, which the kubeconfig names, gives no credentials: {text}"),
                    format!(
                        "log in again, as your provider says; if {plugin} is not there, install it, and see that it is in PATH"
                    ),
                );
            }
            Self::NoLogin { plugin: None, text } => (
                format!("the kubeconfig's user has no credentials: {text}"),
                "log in again, or fetch a new kubeconfig",
            ),
            Self::NoAnswer { url, text } => (
                format!("{url} does not answer: {text}"),
                "look whether the cluster runs and whether a VPN or proxy is needed; if it moved, fetch a new kubeconfig",
            ),
            Self::Refused { url, text } => (
                format!("{url} answers with an error: {text}"),
                "look at the API server's log, and try again",
            ),
        };
        (what, remedy.to_owned())
    }

    pub(super) fn from_kubeconfig(error: &KubeconfigError) -> Self {
        // Only the first line is shown, because the others quote the file, which may contain secrets.
        let text = || error.to_string().lines().next().unwrap_or_default().to_owned();
        match error {
            KubeconfigError::LoadContext(name) => {
                Self::NoContext(format!("the kubeconfig has no context {name:?}"))
            }
            KubeconfigError::CurrentContextNotSet => {
                Self::NoContext("the kubeconfig has no current context".to_owned())
            }
            KubeconfigError::LoadClusterOfContext(name) => Self::NoContext(format!(
                "the kubeconfig's context names the cluster {name:?}, which is not in it"
            )),
            _ => Self::Kubeconfig(text()),
        }
    }

    pub(super) fn from_client(error: &ClientError) -> Self {
        let cause = match error {
            ClientError::Kubeconfig(error) => Some(error),
            ClientError::Infer(error) => error.source().and_then(|source| source.downcast_ref()),
            ClientError::Client(_) => None,
        };
        cause.map_or_else(|| Self::Kubeconfig(error.to_string()), Self::from_kubeconfig)
    }

    /// Why the first request failed. An expired certificate takes precedence, because it explains every other error.
    pub(super) fn from_failure(
        failed: Failed,
        ended: Option<Timestamp>,
        plugin: Option<String>,
        url: String,
    ) -> Self {
        match (failed, ended) {
            (_, Some(end)) => Self::CertificateEnded(end),
            (Failed::Login(text), None) => Self::NoLogin { plugin, text },
            (Failed::Status(401, _), None) => Self::Unauthorized,
            (Failed::Status(_, text), None) => Self::Refused { url, text },
            (Failed::Text(text), None) if text.contains("invalid peer certificate") => {
                Self::Stranger { url, text }
            }
            (Failed::Text(text), None) => Self::NoAnswer { url, text },
        }
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, remedy) = self.words();
        write!(f, "{what}; {remedy}")
    }
}

impl Error for Trouble {}

pub(super) enum Failed {
    /// With an HTTP status and the response's body.
    Status(u16, String),
    /// Before the request, because there are no credentials.
    Login(String),
    /// With a message that has all causes in one line.
    Text(String),
}

impl From<kube::Error> for Failed {
    fn from(error: kube::Error) -> Self {
        let login = match &error {
            kube::Error::Auth(login) => Some(login),
            // A plugin runs again when its credentials have expired, so its error may also come from a request.
            kube::Error::Service(error) => error.downcast_ref(),
            _ => None,
        };
        match login {
            Some(login) => Self::Login(login_text(login)),
            None => Self::Text(format!("{:#}", anyhow::Error::from(error))),
        }
    }
}

/// Why there are no credentials. The plugin's standard output is left out, because it may contain a secret.
fn login_text(error: &AuthError) -> String {
    let AuthError::AuthExecRun { out, .. } = error else { return error.to_string() };
    let stderr = String::from_utf8_lossy(&out.stderr);
    let last = stderr.lines().rfind(|line| !line.trim().is_empty());
    let last = last.map(|line| format!(": {}", line.trim())).unwrap_or_default();
    format!("it ended with {}{last}", out.status)
}

pub(super) fn ended(user: &AuthInfo, now: Timestamp) -> Option<Timestamp> {
    let pem = match (&user.client_certificate_data, &user.client_certificate) {
        (Some(data), _) => String::from_utf8(STANDARD.decode(data).ok()?).ok()?,
        (None, Some(path)) => std::fs::read_to_string(path).ok()?,
        (None, None) => return None,
    };
    let (_, end) = tls::life(tls::key::CLIENT_CERT, &pem).ok()?;
    (end < now).then_some(end)
}

#[cfg(test)]
#[path = "trouble_tests.rs"]
mod tests;
