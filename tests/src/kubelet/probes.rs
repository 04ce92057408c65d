//! The kubelet's probes of a running container (kubernetes v1.36, `pkg/kubelet/prober/worker.go`).

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, ExecAction, HTTPGetAction, Probe};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use tokio::net::TcpStream;
use tokio::process::Command;

use crate::binaries;

/// The container that is probed.
pub(super) struct Target<'a> {
    pub(super) container: &'a Container,
    pub(super) address: Ipv4Addr,
    /// The container's process and its document; `None` if a command cannot be run in it.
    pub(super) process: Option<(u32, PathBuf)>,
}

/// A probe's settings with the API's defaults, and its last results.
pub(super) struct Asking<'a> {
    probe: &'a Probe,
    last: bool,
    /// How many results in a row equal the last one.
    alike: usize,
}

/// The state that a probe has reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It has succeeded often enough.
    Passed,
    /// It has failed often enough.
    Failed,
}

impl<'a> Asking<'a> {
    pub(super) fn new(probe: &'a Probe) -> Self {
        Self { probe, last: false, alike: 0 }
    }

    /// Delay of the first probe after the container's start.
    pub(super) fn first(&self) -> Duration {
        seconds(self.probe.initial_delay_seconds, 0)
    }

    pub(super) fn period(&self) -> Duration {
        seconds(self.probe.period_seconds, 10)
    }

    /// Probes once. There is a verdict once the equal results in a row reach the threshold. The result has
    /// the reason of a failure.
    pub(super) async fn ask(&mut self, target: &Target<'_>) -> (Option<Verdict>, Result<(), String>) {
        let answer =
            tokio::time::timeout(seconds(self.probe.timeout_seconds, 1), ask(self.probe, target)).await;
        let answer = answer.unwrap_or_else(|_| Err("no answer in time".to_owned()));
        (self.count(answer.is_ok()), answer)
    }

    fn count(&mut self, passed: bool) -> Option<Verdict> {
        self.alike = if passed == self.last { self.alike + 1 } else { 1 };
        self.last = passed;
        let (threshold, verdict) = if passed {
            (self.probe.success_threshold.unwrap_or(1), Verdict::Passed)
        } else {
            (self.probe.failure_threshold.unwrap_or(3), Verdict::Failed)
        };
        let threshold = usize::try_from(threshold).unwrap_or(1).max(1);
        (self.alike >= threshold).then_some(verdict)
    }
}

fn seconds(given: Option<i32>, default: u64) -> Duration {
    let given = given.and_then(|seconds| u64::try_from(seconds).ok()).filter(|seconds| *seconds > 0);
    Duration::from_secs(given.unwrap_or(default))
}

async fn ask(probe: &Probe, target: &Target<'_>) -> Result<(), String> {
    if let Some(get) = &probe.http_get {
        return http_get(get, target).await;
    }
    if let Some(socket) = &probe.tcp_socket {
        let host = socket.host.clone().unwrap_or_else(|| target.address.to_string());
        let connected = TcpStream::connect((host, port(&socket.port, target.container)?)).await;
        return connected.map(drop).map_err(|error| error.to_string());
    }
    match &probe.exec {
        Some(action) => exec(action, target).await,
        None => Err("the stand-in kubelet asks by httpGet, tcpSocket and exec".to_owned()),
    }
}

/// A port by its number, or by its name among the container's ports.
fn port(port: &IntOrString, container: &Container) -> Result<u16, String> {
    let number = match port {
        IntOrString::Int(number) => Some(*number),
        IntOrString::String(name) => {
            let mut ports = container.ports.iter().flatten();
            let named = ports.find(|port| port.name.as_ref() == Some(name)).map(|port| port.container_port);
            named.or_else(|| name.parse().ok())
        }
    };
    let number = number.and_then(|number| u16::try_from(number).ok());
    number.ok_or_else(|| format!("couldn't find port {port:?} in container {}", container.name))
}

/// Any status from 200 to 399 passes, and the certificate is not verified.
async fn http_get(get: &HTTPGetAction, target: &Target<'_>) -> Result<(), String> {
    let scheme = get.scheme.as_deref().unwrap_or("HTTP").to_lowercase();
    let host = get.host.clone().unwrap_or_else(|| target.address.to_string());
    let url = format!("{scheme}://{host}:{}", port(&get.port, target.container)?);
    let mut config = kube::Config::new(url.parse().map_err(|_| format!("{url} is no URL"))?);
    config.accept_invalid_certs = true;
    // A retry would hide a failed probe.
    config.default_retry = false;
    let client = kube::Client::try_from(config).map_err(|error| error.to_string())?;
    let mut request = http::Request::get(get.path.as_deref().unwrap_or("/"));
    for header in get.http_headers.iter().flatten() {
        request = request.header(&header.name, &header.value);
    }
    let request = request.body(kube::client::Body::empty()).map_err(|error| error.to_string())?;
    let status = client.send(request).await.map_err(|error| error.to_string())?.status();
    let passes = status.is_success() || status.is_redirection();
    if passes { Ok(()) } else { Err(format!("HTTP probe failed with statuscode: {}", status.as_u16())) }
}

async fn exec(action: &ExecAction, target: &Target<'_>) -> Result<(), String> {
    let (process, document) = target.process.as_ref().ok_or("the container has no file system of its own")?;
    let mut command = beside(*process, document, action.command.as_deref().unwrap_or_default())?;
    let output = command.output().await.map_err(|error| error.to_string())?;
    let said = || String::from_utf8_lossy(&[output.stdout.as_slice(), &output.stderr].concat()).into_owned();
    if output.status.success() { Ok(()) } else { Err(said()) }
}

/// A command that runs beside a container's process, in its file system and with its environment.
fn beside(process: u32, document: &Path, command: &[String]) -> Result<Command, String> {
    let program = binaries::ours("container_stand_in").map_err(|error| error.to_string())?;
    let mut beside = Command::new(program);
    beside.arg(document).arg(process.to_string()).args(command);
    beside.stdin(Stdio::null()).kill_on_drop(true);
    Ok(beside)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn verdicts(probe: &serde_json::Value, answers: &[bool]) -> Vec<Option<Verdict>> {
        let probe: Probe = serde_json::from_value(probe.clone()).unwrap();
        let mut asking = Asking::new(&probe);
        answers.iter().map(|answer| asking.count(*answer)).collect()
    }

    #[test]
    fn one_answer_passes_and_three_failures_in_a_row_fail() {
        use Verdict::{Failed, Passed};
        let (yes, no) = (true, false);
        let reported = verdicts(&json!({}), &[no, no, yes, no, no, no, no, yes]);
        let expected = [None, None, Some(Passed), None, None, Some(Failed), Some(Failed), Some(Passed)];
        assert_eq!(reported, expected);
        let reported =
            verdicts(&json!({"successThreshold": 2, "failureThreshold": 1}), &[yes, no, yes, yes, yes]);
        assert_eq!(reported, [None, Some(Failed), None, Some(Passed), Some(Passed)]);
    }

    #[test]
    fn ports_have_numbers_or_the_containers_names() {
        let container = json!({"name": "c", "ports": [{"name": "admin", "containerPort": 9090}]});
        let container: Container = serde_json::from_value(container).unwrap();
        assert_eq!(port(&IntOrString::Int(80), &container), Ok(80));
        assert_eq!(port(&IntOrString::String("admin".to_owned()), &container), Ok(9090));
        assert_eq!(port(&IntOrString::String("8080".to_owned()), &container), Ok(8080));
        assert!(port(&IntOrString::String("https".to_owned()), &container).is_err());
    }

    #[test]
    fn missing_fields_have_the_apis_defaults() {
        let probe: Probe =
            serde_json::from_value(json!({"initialDelaySeconds": 0, "periodSeconds": 2})).unwrap();
        let asking = Asking::new(&probe);
        assert_eq!((asking.first(), asking.period()), (Duration::ZERO, Duration::from_secs(2)));
    }
}
