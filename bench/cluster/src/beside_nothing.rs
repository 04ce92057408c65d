//! Compares the webhook's handler with one that allows everything: the same client sends both the same
//! reviews over TLS, in turns, at a steady rate. The API server is left out, because its own time is many
//! times that of the handlers.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kerf_tests::admission::{AdmissionScene, AllowingWebhook, asking, plain};
use kube::Client;
use kube::api::PostParams;
use kube::config::{Config, KubeConfigOptions, Kubeconfig};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

use crate::report::{Figure, Latency, print};

/// The bar of issue 23, which aims at 2.
const BAR: f64 = 3.0;
const UID: &str = "705ab4f5-6393-11e8-b7cc-42010a800002";

pub async fn measure(
    scene: &AdmissionScene,
    rate: u32,
    pairs: u32,
    round: Duration,
) -> anyhow::Result<Vec<Figure>> {
    let nothing = AllowingWebhook::start(&scene.plane().kubelet_serving()?)?;
    let replica = scene.replicas().first().context("no replica runs")?;
    let ours = Asked::new(replica.address(), &scene.trusted().await?.concat(), true).await?;
    let nothing =
        Asked::new(nothing.address(), scene.plane().ca_pem(), false).await.map(|to| (to, nothing))?;
    let question = question(scene).await?;
    // A first round opens the connections, so that no measured call pays for one.
    for to in [&ours, &nothing.0] {
        to.run(&question, rate, round).await?;
    }
    let (mut took, mut beside, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for pair in 0..pairs {
        let (mine, others);
        if pair % 2 == 0 {
            mine = ours.run(&question, rate, round).await?;
            others = nothing.0.run(&question, rate, round).await?;
        } else {
            others = nothing.0.run(&question, rate, round).await?;
            mine = ours.run(&question, rate, round).await?;
        }
        ratios
            .push(Latency::from_samples(mine.clone()).p99_ms / Latency::from_samples(others.clone()).p99_ms);
        took.extend(mine);
        beside.extend(others);
    }
    let (took, beside) = (Latency::from_samples(took), Latency::from_samples(beside));
    for (name, latency) in [("kerf's handler", &took), ("one that does nothing", &beside)] {
        print(&format!(
            "{name:<22} n {:>6}   p50 {:>7.3} ms   p99 {:>7.3} ms   max {:>7.3} ms",
            latency.count, latency.p50_ms, latency.p99_ms, latency.max_ms
        ));
    }
    ratios.sort_by(f64::total_cmp);
    let median = ratios.get(ratios.len() / 2).copied().unwrap_or(f64::NAN);
    print(&format!("# p99 of a round over its pair's: median {median:.2}, of {ratios:.2?}"));
    Ok(vec![Figure::at_most("handler, p99, over one that does nothing", took.p99_ms / beside.p99_ms, BAR)])
}

/// The `AdmissionReview` that the API server would send for a pod that asks for a slice.
async fn question(scene: &AdmissionScene) -> anyhow::Result<Value> {
    let dry_run = PostParams { dry_run: true, ..PostParams::default() };
    // The dry run makes the API server fill in its defaults, because a real review has them.
    let mut pod = scene.load(1).pods.create(&dry_run, &plain()).await?;
    pod.metadata.annotations = asking().metadata.annotations;
    pod.metadata.name = asking().metadata.name;
    (pod.metadata.uid, pod.metadata.creation_timestamp) = (None, None);
    Ok(json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {
            "uid": UID, "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "resource": {"group": "", "version": "v1", "resource": "pods"},
            "requestKind": {"group": "", "version": "v1", "kind": "Pod"},
            "requestResource": {"group": "", "version": "v1", "resource": "pods"},
            "name": pod.metadata.name, "namespace": "default", "operation": "CREATE",
            "userInfo": {"username": "admin", "groups": ["system:masters", "system:authenticated"]},
            "object": pod, "oldObject": null, "dryRun": true,
            "options": {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1", "dryRun": ["All"]},
        },
    }))
}

/// A client of a handler. Like the API server, it keeps its connections open.
struct Asked {
    client: Client,
    /// Whether the handler's answers have a patch.
    patches: bool,
}

impl Asked {
    async fn new(address: SocketAddr, authority: &str, patches: bool) -> anyhow::Result<Self> {
        let kubeconfig: Kubeconfig = serde_json::from_value(json!({
            "current-context": "bench",
            "clusters": [{"name": "bench", "cluster": {
                "server": format!("https://{address}"), "certificate-authority-data": STANDARD.encode(authority),
            }}],
            "users": [{"name": "bench", "user": {}}],
            "contexts": [{"name": "bench", "context": {"cluster": "bench", "user": "bench"}}],
        }))?;
        let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
        Ok(Self { client: kerf_runtime::args::client(config)?, patches })
    }

    /// Sends reviews at a steady rate, however slowly earlier ones are answered.
    async fn run(&self, question: &Value, rate: u32, time: Duration) -> anyhow::Result<Vec<Duration>> {
        let body = question.to_string().into_bytes();
        let end = Instant::now() + time;
        let mut ticks = tokio::time::interval(Duration::from_secs(1) / rate);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
        let mut running = JoinSet::new();
        while Instant::now() < end {
            ticks.tick().await;
            let request = http::Request::post("/mutate?timeout=10s")
                .header(http::header::CONTENT_TYPE, "application/json")
                .body(body.clone())?;
            let (client, patches) = (self.client.clone(), self.patches);
            running.spawn(async move {
                let begun = Instant::now();
                let answer: Value = client.request(request).await?;
                let took = begun.elapsed();
                let response = &answer["response"];
                let is_right = response["allowed"] == true && response["uid"] == UID;
                ensure!(is_right && response["patch"].is_string() == patches, "{answer}");
                anyhow::Ok(took)
            });
        }
        running.join_all().await.into_iter().collect()
    }
}
