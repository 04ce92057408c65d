//! The extender that is measured, as a process of its own.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kerf_tests::binaries;
use kerf_tests::cluster::{NAMESPACE, root, wait};
use kerf_tests::control_plane::ports;
use kerf_tests::leaders::{SchedulerClient, write_kubeconfig};
use kerf_tests::process::{Child, Program};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::api::Api;
use super::population::namespaces;
use crate::admission_metrics::scrape;

/// The DNS name in the extender's certificate, by which agents verify it.
pub const SERVICE: &str = "kerf-extender.kerf-system.svc";
const TIMEOUT: Duration = Duration::from_secs(30);
/// More slices than there are. With a quota the extender counts what namespaces hold.
const QUOTA: u32 = 1_000_000;

pub struct Extender {
    child: Child,
    folder: TempDir,
    admin: SocketAddr,
}

impl Extender {
    /// Starts the extender as the chart does, with the shipped policy and a quota.
    pub async fn start(api: &Api) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir()?;
        let (kubeconfig, policy) = (folder.path().join("kubeconfig"), folder.path().join("policy.yaml"));
        write_kubeconfig(&kubeconfig, &api.url())?;
        std::fs::write(&policy, with_quota()?)?;
        let [admin] = ports::free()?;
        let admin = SocketAddr::from(([127, 0, 0, 1], admin));
        let child = Program::new("kerf-extender", binaries::ours("kerf-extender")?, folder.path())
            .args(["--identity=measured", "--tls-name=127.0.0.1", &format!("--tls-name={SERVICE}")])
            .arg(format!("--admin-address={admin}"))
            .args(["--address=127.0.0.1:0", "--agents-address=127.0.0.1:0"])
            .arg("--address-file")
            .arg(folder.path().join("address"))
            .arg("--agents-address-file")
            .arg(folder.path().join("agents-address"))
            .arg("--kubeconfig")
            .arg(kubeconfig)
            .arg("--policy")
            .arg(policy)
            .spawn()?;
        let extender = Self { child, folder, admin };
        let serves = async || Ok(extender.address().is_ok() && extender.agents_address().is_ok());
        wait(TIMEOUT, "the extender to listen", serves).await.with_context(|| extender.log_tail())?;
        Ok(extender)
    }

    pub fn process(&self) -> u32 {
        self.child.id()
    }

    pub fn log(&self) -> &Path {
        self.child.log()
    }

    pub fn log_tail(&self) -> String {
        self.child.log_tail()
    }

    pub fn address(&self) -> anyhow::Result<SocketAddr> {
        self.read_address("address")
    }

    pub fn agents_address(&self) -> anyhow::Result<SocketAddr> {
        self.read_address("agents-address")
    }

    fn read_address(&self, file: &str) -> anyhow::Result<SocketAddr> {
        Ok(std::fs::read_to_string(self.folder.path().join(file))?.trim().parse()?)
    }

    /// Whether it leads and answers.
    pub async fn leads(&self) -> anyhow::Result<bool> {
        Ok(self.sum("kerf_extender_leader", "").await? > 0.0)
    }

    /// The sum of a metric's series whose labels contain this text.
    pub async fn sum(&self, metric: &str, labels: &str) -> anyhow::Result<f64> {
        let text = scrape(self.admin).await?;
        let values = text.lines().filter_map(|line| {
            let (series, value) = line.rsplit_once(' ')?;
            let (name, of) = series.split_once('{').unwrap_or((series, ""));
            (name == metric && of.contains(labels)).then(|| value.trim().parse::<f64>().ok())?
        });
        Ok(values.sum())
    }

    /// A client with kube-scheduler's certificate.
    pub async fn scheduler(&self, api: &Api) -> anyhow::Result<SchedulerClient> {
        SchedulerClient::new(self.address()?, self.scheduler_keys(api)?).await
    }

    /// A folder with kube-scheduler's certificate, which the extender has written into its Secret.
    pub fn scheduler_keys(&self, api: &Api) -> anyhow::Result<&Path> {
        let path = format!("/api/v1/namespaces/{NAMESPACE}/secrets/kerf-extender-tls");
        let secret = api.written(&path).context("the extender made no Secret")?;
        for key in ["ca.crt", "client.crt", "client.key"] {
            let data = secret["data"][key].as_str().with_context(|| format!("its Secret has no {key}"))?;
            std::fs::write(self.folder.path().join(key), STANDARD.decode(data)?)?;
        }
        Ok(self.folder.path())
    }
}

/// The shipped policy with a quota of slices for each namespace. The extender's metrics have those that a policy
/// names.
fn with_quota() -> anyhow::Result<String> {
    let shipped = root().join("policies/default.yaml");
    let mut policy: Value = serde_saphyr::from_str(&std::fs::read_to_string(shipped)?)?;
    policy["spec"]["match"] = json!({"namespaces": namespaces().collect::<Vec<_>>()});
    policy["spec"]["quota"] = json!({"slices": QUOTA});
    Ok(policy.to_string())
}
