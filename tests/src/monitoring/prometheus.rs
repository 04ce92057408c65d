//! A Prometheus that scrapes kerf's programs as the `PodMonitors` of `deploy/monitoring` scrape their pods.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::binaries;
use crate::cluster::{Cluster, NAMESPACE, root, wait};
use crate::control_plane::ports;
use crate::process::{Child, Program};

const READY_TIMEOUT: Duration = Duration::from_secs(30);

/// Which buckets of histograms are scraped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Buckets {
    /// Classic buckets from the text format, Prometheus' default.
    Classic,
    /// Native buckets, for which Prometheus must scrape protobuf.
    Native,
}

/// A program whose metrics are scraped.
#[derive(Debug, Clone)]
pub struct Scraped {
    /// Its name, which is also that of its `PodMonitor` and of its job.
    pub program: &'static str,
    /// The address that serves `/metrics`.
    pub address: String,
    /// The node of an agent; `None` for other programs.
    pub node: Option<String>,
}

/// A series of a query's result. Times are seconds since 1970.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    pub labels: BTreeMap<String, String>,
    /// Times and values: one for an instant, several for a range. Values that are not numbers are left out.
    pub values: Vec<(f64, f64)>,
}

pub struct Prometheus {
    child: Child,
    address: String,
}

/// The programs of a cluster.
pub fn scraped(cluster: &mut Cluster) -> anyhow::Result<Vec<Scraped>> {
    let mut all = vec![
        Scraped { program: "kerf-webhook", address: admin_address(cluster.webhook().log())?, node: None },
        Scraped { program: "kerf-extender", address: admin_address(cluster.extender().log())?, node: None },
    ];
    for node in cluster.nodes_mut() {
        let (name, address) = (node.name().to_owned(), admin_address(node.agent().log())?);
        all.push(Scraped { program: "kerf-node-agent", address, node: Some(name) });
    }
    Ok(all)
}

impl Scraped {
    /// The text of its metrics.
    pub async fn metrics(&self) -> anyhow::Result<String> {
        get(&self.address, "/metrics").await
    }
}

/// The address of a program's metrics, from its log.
fn admin_address(log: &Path) -> anyhow::Result<String> {
    let text = std::fs::read_to_string(log)?;
    let line = text.lines().rfind(|line| line.contains("/metrics")).context("no line about /metrics")?;
    let (_, rest) = line.split_once("127.0.0.1:").context("no address")?;
    let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    Ok(format!("127.0.0.1:{}", &rest[..end]))
}

impl Prometheus {
    /// Starts a Prometheus that scrapes every second, and waits until it has scraped everything twice. Its
    /// files are in `folder`.
    pub async fn start(folder: &Path, targets: &[Scraped], buckets: Buckets) -> anyhow::Result<Self> {
        std::fs::create_dir_all(folder)?;
        let config = folder.join("prometheus.json");
        std::fs::write(&config, configuration(targets, buckets)?.to_string())?;
        let [port] = ports::free()?;
        let address = format!("127.0.0.1:{port}");
        let child = Program::new("prometheus", binaries::monitoring_tool("prometheus")?, folder)
            .arg(format!("--config.file={}", config.display()))
            .arg(format!("--storage.tsdb.path={}", folder.join("data").display()))
            .arg(format!("--web.listen-address={address}"))
            .spawn()?;
        let prometheus = Self { child, address };
        let all = f64::from(u32::try_from(targets.len())?);
        // Functions like `rate` need two samples of each series.
        let twice = "count(count_over_time(up[1m]) >= 2 and up == 1)";
        let is_ready = async || {
            let answer = prometheus.query(twice).await?;
            let count = answer.first().and_then(|series| series.values.first());
            Ok(count.is_some_and(|(_, count)| *count >= all))
        };
        let ready = wait(READY_TIMEOUT, "Prometheus to scrape everything twice", is_ready).await;
        ready.with_context(|| prometheus.child.log_tail())?;
        Ok(prometheus)
    }

    /// The result of a query now.
    pub async fn query(&self, expr: &str) -> anyhow::Result<Vec<Series>> {
        self.ask("query", &[("query", expr)]).await.with_context(|| expr.to_owned())
    }

    /// The result of a query from `start` to `end`, in seconds since 1970, with a step of two seconds.
    pub async fn query_range(&self, expr: &str, start: f64, end: f64) -> anyhow::Result<Vec<Series>> {
        let (start, end) = (start.to_string(), end.to_string());
        let parameters = [("query", expr), ("start", &start), ("end", &end), ("step", "2")];
        self.ask("query_range", &parameters).await.with_context(|| expr.to_owned())
    }

    async fn ask(&self, what: &str, parameters: &[(&str, &str)]) -> anyhow::Result<Vec<Series>> {
        let parameters: Vec<_> =
            parameters.iter().map(|(name, value)| format!("{name}={}", percent_encoded(value))).collect();
        let path = format!("/api/v1/{what}?{}", parameters.join("&"));
        let answer: Answer = serde_json::from_str(&get(&self.address, &path).await?)?;
        ensure!(answer.status == "success", "{}", answer.error);
        let raw = answer.data.context("no data")?.result.unwrap_or_default();
        Ok(raw.into_iter().map(Series::from).collect())
    }

    pub fn stop(mut self) -> anyhow::Result<()> {
        self.child.terminate(Duration::from_secs(10))?;
        Ok(())
    }
}

/// An answer of Prometheus' API.
#[derive(Deserialize)]
struct Answer {
    status: String,
    #[serde(default)]
    error: String,
    data: Option<Data>,
}

#[derive(Deserialize)]
struct Data {
    /// Go writes an empty list of series as null.
    result: Option<Vec<Raw>>,
}

#[derive(Deserialize)]
struct Raw {
    metric: BTreeMap<String, String>,
    value: Option<(f64, String)>,
    #[serde(default)]
    values: Vec<(f64, String)>,
}

impl From<Raw> for Series {
    fn from(Raw { metric: labels, value, values }: Raw) -> Self {
        let numbers =
            value.into_iter().chain(values).filter_map(|(at, value)| Some((at, value.parse().ok()?)));
        Self { labels, values: numbers.filter(|(_, value): &(f64, f64)| !value.is_nan()).collect() }
    }
}

/// The parts of a `PodMonitor` that define how its pods' labels and the metrics' labels are combined.
#[derive(Deserialize)]
struct PodMonitor {
    metadata: Metadata,
    spec: Spec,
}

#[derive(Deserialize)]
struct Metadata {
    name: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Spec {
    pod_metrics_endpoints: Vec<Endpoint>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Endpoint {
    path: String,
    #[serde(default)]
    honor_labels: bool,
    #[serde(default)]
    relabelings: Vec<Value>,
}

/// Prometheus' configuration: a job for each `PodMonitor`, with the labels that the operator adds to its
/// targets.
fn configuration(targets: &[Scraped], buckets: Buckets) -> anyhow::Result<Value> {
    let text = std::fs::read_to_string(root().join("deploy/monitoring/podmonitors.yaml"))?;
    let monitors: Vec<PodMonitor> = serde_saphyr::from_multiple(&text)?;
    let mut jobs = Vec::new();
    for PodMonitor { metadata, spec } in monitors {
        let endpoint = spec.pod_metrics_endpoints.first().context("a PodMonitor without an endpoint")?;
        let has_node = endpoint.relabelings.iter().any(|relabeling| relabeling["targetLabel"] == "node");
        let of_job = targets.iter().filter(|target| target.program == metadata.name).enumerate();
        let groups = of_job.map(|(number, target)| {
            let pod = format!("{}-{number}", target.program);
            let mut labels = json!({"namespace": NAMESPACE, "pod": pod, "container": target.program});
            if let (true, Some(node)) = (has_node, &target.node) {
                labels["node"] = json!(node);
            }
            json!({"targets": [target.address], "labels": labels})
        });
        jobs.push(json!({
            "job_name": metadata.name,
            "honor_labels": endpoint.honor_labels,
            "metrics_path": endpoint.path,
            "scrape_native_histograms": buckets == Buckets::Native,
            "static_configs": groups.collect::<Vec<_>>(),
        }));
    }
    Ok(json!({"global": {"scrape_interval": "1s", "scrape_timeout": "1s"}, "scrape_configs": jobs}))
}

/// The body of a server's answer. It uses HTTP/1.0, in which the answer ends with the connection.
async fn get(address: &str, path: &str) -> anyhow::Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes()).await?;
    let mut text = String::new();
    stream.read_to_string(&mut text).await?;
    let (_, body) = text.split_once("\r\n\r\n").context("no body")?;
    Ok(body.to_owned())
}

fn percent_encoded(text: &str) -> String {
    let encoded = text.bytes().map(|byte| match byte {
        b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' | b'_' | b'.' => char::from(byte).to_string(),
        byte => format!("%{byte:02X}"),
    });
    encoded.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_survives_the_address() {
        assert_eq!(percent_encoded("a{b=\"c\"} > 1"), "a%7Bb%3D%22c%22%7D%20%3E%201");
    }

    #[test]
    fn each_program_is_scraped_as_its_pod_monitor_says() {
        let agent = Scraped {
            program: "kerf-node-agent",
            address: "127.0.0.1:1".to_owned(),
            node: Some("h".to_owned()),
        };
        let configuration = configuration(&[agent], Buckets::Native).unwrap();
        let jobs = configuration["scrape_configs"].as_array().unwrap();
        let names: Vec<&Value> = jobs.iter().map(|job| &job["job_name"]).collect();
        assert_eq!(names, ["kerf-webhook", "kerf-extender", "kerf-node-agent", "kerf-scheduler"]);
        assert_eq!(jobs[2]["honor_labels"], true);
        assert_eq!(jobs[2]["static_configs"][0]["labels"]["node"], "h");
        assert_eq!(jobs[0]["static_configs"], json!([]));
    }
}
