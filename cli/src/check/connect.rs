//! The way to the API server, and what is wrong with it. Kubeconfigs grow old: their certificates end, their cluster is made
//! anew, their context is renamed; each is told by its name.

use super::finding::Finding;
use anyhow::anyhow;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::fmt::rfc2822::DateTimeParser;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::version::Info;
use kerf_runtime::args::{ClientError, ContextArgs, client};
use kerf_runtime::tls;
use kube::Config;
use kube::client::{AuthError, Body};
use kube::config::{AuthInfo, KubeconfigError};
use std::time::Duration;

/// How long the first answer may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// An API server that answers.
pub struct Connected {
    /// For further questions.
    pub client: kube::Client,
    /// Its address.
    pub url: String,
    /// Its version.
    pub version: String,
    /// Its time.
    pub now: Timestamp,
    /// How much this machine's clock is before it.
    pub skew: SignedDuration,
}

/// Why there is none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trouble {
    /// The kubeconfig does not say where one is.
    Kubeconfig(String),
    /// It has no such context.
    NoContext(String),
    /// The user's certificate has ended.
    CertificateEnded(Timestamp),
    /// The API server does not know the user.
    Unauthorized,
    /// The API server's certificate is not one of the authority in the kubeconfig.
    Stranger {
        /// Its address.
        url: String,
        /// What the verifier says.
        text: String,
    },
    /// No credentials are to be had: a plugin of the kubeconfig's is not there, or its login has ended.
    NoLogin {
        /// The plugin, where the kubeconfig names one.
        plugin: Option<String>,
        /// What went wrong.
        text: String,
    },
    /// Nobody answers.
    Silent {
        /// The address.
        url: String,
        /// What the system says.
        text: String,
    },
    /// It answers with an error.
    Refused {
        /// The address.
        url: String,
        /// The error.
        text: String,
    },
}

impl Trouble {
    /// As a line of the report.
    pub fn finding(&self) -> Finding {
        match self {
            Self::Kubeconfig(text) => Finding::failure(
                format!("no way to an API server: {text}"),
                "name a kubeconfig by --kubeconfig or KUBECONFIG; your provider's command writes one (for example: kind export kubeconfig, gcloud container clusters get-credentials, aws eks update-kubeconfig)",
            ),
            Self::NoContext(text) => Finding::failure(
                text.clone(),
                "name one of `kubectl config get-contexts` by --context, or choose it: kubectl config use-context NAME",
            ),
            Self::CertificateEnded(end) => Finding::failure(
                format!("the client certificate in the kubeconfig ended at {end}"),
                "fetch a new kubeconfig from whoever made it; with kubeadm: kubeadm certs renew admin.conf, then copy /etc/kubernetes/admin.conf",
            ),
            Self::Unauthorized => Finding::failure(
                "the API server does not accept the user of the kubeconfig (401 Unauthorized)",
                "log in again, or fetch a new kubeconfig: its token or certificate has ended, or is of another cluster",
            ),
            Self::Stranger { url, text } => Finding::failure(
                format!("{url} shows a certificate that the kubeconfig's authority has not signed: {text}"),
                "fetch a new kubeconfig: the cluster was made anew, or the address is another's",
            ),
            Self::NoLogin { plugin: Some(plugin), text } => Finding::failure(
                format!("{plugin}, which the kubeconfig names, gives no credentials: {text}"),
                format!(
                    "log in again, as your provider says; if {plugin} is not there, install it, and see that it is in PATH"
                ),
            ),
            Self::NoLogin { plugin: None, text } => Finding::failure(
                format!("the kubeconfig's user has no credentials: {text}"),
                "log in again, or fetch a new kubeconfig",
            ),
            Self::Silent { url, text } => Finding::failure(
                format!("{url} does not answer: {text}"),
                "look whether the cluster runs and whether a VPN or proxy is needed; if it moved, fetch a new kubeconfig",
            ),
            Self::Refused { url, text } => Finding::failure(
                format!("{url} answers with an error: {text}"),
                "look at the API server's log, and try again",
            ),
        }
    }
}

/// Asks the API server for its version and its time.
pub async fn connect(args: &ContextArgs) -> Result<Connected, Trouble> {
    let config = args.config().await.map_err(|error| of_configuration(&error))?;
    let url = config.cluster_url.to_string();
    let ended = ended(&config.auth_info, Timestamp::now());
    let plugin = config.auth_info.exec.as_ref().and_then(|exec| exec.command.clone());
    let answer = tokio::time::timeout(PATIENCE, ask(config)).await;
    let answer =
        answer.unwrap_or_else(|_| Err(Failed::Text(format!("no answer in {} s", PATIENCE.as_secs()))));
    answer
        .map(|connected| Connected { url: url.clone(), ..connected })
        .map_err(|failed| judge(failed, ended, plugin, url))
}

/// The API server for a command that can do nothing without it; the error has the remedy.
pub async fn reach(args: &ContextArgs) -> anyhow::Result<kube::Client> {
    connect(args).await.map(|connected| connected.client).map_err(|trouble| {
        let finding = trouble.finding();
        anyhow!("{}; {}", finding.what, finding.remedy().unwrap_or_default())
    })
}

/// How a question failed.
enum Failed {
    /// With this status of HTTP's.
    Status(u16, String),
    /// Before it was asked, for want of credentials.
    Login(String),
    /// With this text, all causes in a line.
    Text(String),
}

impl From<kube::Error> for Failed {
    fn from(error: kube::Error) -> Self {
        let login = match &error {
            kube::Error::Auth(login) => Some(login),
            // A plugin is asked again when what it gave has run out.
            kube::Error::Service(error) => error.downcast_ref(),
            _ => None,
        };
        match login {
            Some(login) => Self::Login(of_login(login)),
            None => Self::Text(format!("{:#}", anyhow::Error::from(error))),
        }
    }
}

/// Why there are no credentials. What a plugin wrote to its standard output is left out: it may be a secret.
fn of_login(error: &AuthError) -> String {
    let AuthError::AuthExecRun { out, .. } = error else { return error.to_string() };
    let told = String::from_utf8_lossy(&out.stderr);
    let last = told.lines().rfind(|line| !line.trim().is_empty());
    let last = last.map(|line| format!(": {}", line.trim())).unwrap_or_default();
    format!("it ended with {}{last}", out.status)
}

async fn ask(config: Config) -> Result<Connected, Failed> {
    let client = client(config)?;
    let request = http::Request::get("/version").body(Body::empty());
    let request = request.map_err(|error| Failed::Text(error.to_string()))?;
    let response = client.send(request).await?;
    let here = Timestamp::now();
    let status = response.status();
    let date =
        response.headers().get(http::header::DATE).and_then(|date| date.to_str().ok()).map(str::to_owned);
    let body = response.into_body().collect_bytes().await?;
    if !status.is_success() {
        return Err(Failed::Status(status.as_u16(), String::from_utf8_lossy(&body).into_owned()));
    }
    let info: Info = serde_json::from_slice(&body).map_err(|error| Failed::Text(error.to_string()))?;
    let now = date.and_then(|date| time_of(&date)).unwrap_or(here);
    Ok(Connected { client, url: String::new(), version: info.git_version, now, skew: skew(here, now) })
}

/// The time of a Date header.
fn time_of(date: &str) -> Option<Timestamp> {
    DateTimeParser::new().parse_zoned(date).ok().map(|zoned| zoned.timestamp())
}

/// How much `here` is before `there`, which is given in whole seconds.
fn skew(here: Timestamp, there: Timestamp) -> SignedDuration {
    let ahead = here.duration_since(there);
    if (SignedDuration::ZERO..SignedDuration::from_secs(1)).contains(&ahead) {
        SignedDuration::ZERO
    } else {
        ahead
    }
}

fn of_configuration(error: &ClientError) -> Trouble {
    let kubeconfig = match error {
        ClientError::Kubeconfig(error) => Some(error),
        ClientError::Infer(error) => {
            std::error::Error::source(error).and_then(|source| source.downcast_ref())
        }
        ClientError::Client(_) => None,
    };
    match kubeconfig {
        Some(KubeconfigError::LoadContext(name)) => {
            Trouble::NoContext(format!("the kubeconfig has no context {name:?}"))
        }
        Some(KubeconfigError::CurrentContextNotSet) => {
            Trouble::NoContext("the kubeconfig has no current context".to_owned())
        }
        Some(KubeconfigError::LoadClusterOfContext(name)) => Trouble::NoContext(format!(
            "the kubeconfig's context names the cluster {name:?}, which is not in it"
        )),
        // What follows the first line shows what stands in the file, which may be a secret.
        Some(error) => Trouble::Kubeconfig(error.to_string().lines().next().unwrap_or_default().to_owned()),
        // In a pod without a service account, and without a kubeconfig.
        None => Trouble::Kubeconfig(error.to_string()),
    }
}

/// The end of the user's certificate, where that is over.
fn ended(user: &AuthInfo, now: Timestamp) -> Option<Timestamp> {
    let pem = match (&user.client_certificate_data, &user.client_certificate) {
        (Some(data), _) => String::from_utf8(STANDARD.decode(data).ok()?).ok()?,
        (None, Some(path)) => std::fs::read_to_string(path).ok()?,
        (None, None) => return None,
    };
    let (_, end) = tls::life(tls::key::CLIENT_CERT, &pem).ok()?;
    (end < now).then_some(end)
}

/// What is wrong, by how the question failed.
fn judge(failed: Failed, ended: Option<Timestamp>, plugin: Option<String>, url: String) -> Trouble {
    match (failed, ended) {
        (_, Some(end)) => Trouble::CertificateEnded(end),
        (Failed::Login(text), None) => Trouble::NoLogin { plugin, text },
        (Failed::Status(401, _), None) => Trouble::Unauthorized,
        (Failed::Status(_, text), None) => Trouble::Refused { url, text },
        (Failed::Text(text), None) if text.contains("invalid peer certificate") => {
            Trouble::Stranger { url, text }
        }
        (Failed::Text(text), None) => Trouble::Silent { url, text },
    }
}

#[cfg(test)]
#[path = "connect_tests.rs"]
mod tests;
