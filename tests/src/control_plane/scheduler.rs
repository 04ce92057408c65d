//! Starts kube-schedulers: the default one, and further ones with their own configurations.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use serde_json::{Map, Value, json};

use super::readiness::Probe;
use super::{ControlPlane, kubeconfig, ports, programs};
use crate::binaries;

/// The name of the default scheduler's program. Pods use `default-scheduler`.
pub const DEFAULT: &str = "kube-scheduler";

/// Requests per second and burst. The scheduler's defaults of 50 and 100 would limit every measurement.
const RATE: u32 = 5000;

impl ControlPlane {
    /// Starts another kube-scheduler and waits until it is ready. `configuration` is the path of a
    /// `KubeSchedulerConfiguration`. Its client connection is added, and leader election is off unless the
    /// file sets it. `name` is its name for [`ControlPlane::child`] and the log; the `schedulerName` of pods
    /// comes from the file.
    pub async fn start_scheduler(&mut self, name: &str, configuration: &Path) -> anyhow::Result<()> {
        self.spawn_scheduler(name, Some(configuration)).await?;
        self.servers.ready().await
    }

    pub(super) async fn spawn_scheduler(&mut self, name: &str, given: Option<&Path>) -> anyhow::Result<()> {
        let configuration = self.write_configuration(name, given)?;
        let [port] = ports::free()?;
        let program = self.program(name, binaries::tool("kube-scheduler")?);
        let program = programs::serving(program, &self.folder.pki(), port)
            .args(programs::open_paths())
            .arg(programs::flag("config", configuration.display()))
            // Go would call an extender on loopback through a proxy that the environment names.
            .env("NO_PROXY", "127.0.0.1,localhost");
        let client = kubeconfig::client_to(&self.admin, &format!("https://127.0.0.1:{port}")).await?;
        self.servers.spawn(program, Probe::Answers(client, "/readyz"))
    }

    fn write_configuration(&self, name: &str, given: Option<&Path>) -> anyhow::Result<PathBuf> {
        let kubeconfig = self.kubeconfig_for("system:kube-scheduler", None)?;
        let given = match given {
            None => {
                json!({ "apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration" })
            }
            Some(path) => {
                let text =
                    fs::read_to_string(path).with_context(|| format!("failed to read {}", path.display()))?;
                serde_saphyr::from_str(&text).with_context(|| format!("{} is not YAML", path.display()))?
            }
        };
        let path = self.folder.documents().join(format!("{name}.yaml"));
        let document =
            completed(given, &kubeconfig).context("the scheduler's configuration is not a mapping")?;
        fs::write(&path, format!("{document:#}\n"))
            .with_context(|| format!("failed to write {}", path.display()))?;
        Ok(path)
    }
}

/// Adds what belongs to this control plane and not to a shipped configuration: the kubeconfig always, rates
/// and disabled leader election if they are not set. `None` unless the document is a mapping of mappings.
fn completed(mut document: Value, kubeconfig: &Path) -> Option<Value> {
    let connection = section(&mut document, "clientConnection")?;
    connection.insert("kubeconfig".to_owned(), json!(kubeconfig));
    connection.entry("qps").or_insert(json!(RATE));
    connection.entry("burst").or_insert(json!(RATE));
    section(&mut document, "leaderElection")?.entry("leaderElect").or_insert(json!(false));
    Some(document)
}

fn section<'a>(document: &'a mut Value, name: &str) -> Option<&'a mut Map<String, Value>> {
    document.as_object_mut()?.entry(name).or_insert_with(|| json!({})).as_object_mut()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shipped_configuration_keeps_what_it_says() {
        let given = json!({ "profiles": [{ "schedulerName": "kerf" }], "clientConnection": { "qps": 7 } });
        let document = completed(given, Path::new("/k")).unwrap();
        assert_eq!(
            document,
            json!({
                "profiles": [{ "schedulerName": "kerf" }],
                "clientConnection": { "kubeconfig": "/k", "qps": 7, "burst": RATE },
                "leaderElection": { "leaderElect": false },
            })
        );
    }

    #[test]
    fn a_document_that_is_no_mapping_is_refused() {
        assert_eq!(completed(json!(["no", "mapping"]), Path::new("/k")), None);
        assert_eq!(completed(json!({ "leaderElection": 1 }), Path::new("/k")), None);
    }
}
