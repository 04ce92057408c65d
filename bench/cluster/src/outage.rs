//! Measures what an outage of the webhook does to pods that request nothing from kerf: creations that fail or
//! are delayed, beside a cluster without kerf.

use std::net::SocketAddr;
use std::time::Duration;

use clap::Args as ClapArgs;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::core::v1::Pod;
use kerf_core::admission::MatchCondition;
use kerf_core::request::PodView;
use kerf_tests::admission::{
    AdmissionScene, HungWebhook, Sample, asking, failures, of_others, pod_of, set_match_condition,
};
use kerf_tests::cluster::wait;
use kube::Api;
use kube::api::DeleteParams;

use crate::report::{Figure, Latency, print, print_figures};

/// A creation that takes longer has waited for the webhook, whose timeout is 5 s.
const CREATION_LIMIT: Duration = Duration::from_secs(2);
const TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Debug, ClapArgs)]
pub struct Args {
    /// Creations a second.
    #[arg(long, default_value_t = 100)]
    rate: u32,
    /// How long each pod is created, in milliseconds.
    #[arg(long, default_value_t = 500)]
    round_ms: u64,
}

pub async fn run(args: &Args) -> anyhow::Result<()> {
    let scene = AdmissionScene::start().await?;
    let mut figures = Vec::new();
    let hung = HungWebhook::start().await?;
    // The listener is dropped at once, so that connections to its port are refused.
    let gone = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    // The match condition of the shipped policy, and that of policies without dialects.
    let default =
        MatchCondition::parse(&kerf_tests::admission::match_condition(&scene.plane().client()).await?);
    let narrow = MatchCondition::for_dialects(&[].into());
    let mut samples = Vec::new();
    for (policy, condition) in
        [("default", default.unwrap_or_else(MatchCondition::widest)), ("no dialects", narrow)]
    {
        set_match_condition(&scene.plane().client(), &condition.expression()).await?;
        let pods = pods(&condition)?;
        for (outage, address) in [("gone", gone), ("hung", hung.address())] {
            out(&scene, address).await?;
            let name = format!("webhook {outage}, policy {policy}");
            let before = hung.connections();
            let round = create(&scene, &pods, args).await;
            let calls = hung.connections() - before;
            figures.push(Figure::at_most(
                &format!("{name}: creates that wait or fail"),
                show(&name, &round),
                0.0,
            ));
            print(&format!("# connections to the webhook meanwhile: {calls}"));
            samples.push((name, round));
        }
    }
    let api: Api<MutatingWebhookConfiguration> = Api::all(scene.plane().client());
    api.delete("kerf", &DeleteParams::default()).await?;
    let pods = pods(&MatchCondition::for_dialects(&[].into()))?;
    // Only errors of the webhook count, because the guard still denies pods that ask kerf, with another error.
    let free = async || {
        let samples = scene.load(20).run_for(&asking(), false, Duration::from_millis(50)).await;
        Ok(!failures(&samples).iter().any(|(reason, _)| reason.contains("calling webhook")))
    };
    wait(TIMEOUT, "the API server to forget the webhook", free).await?;
    let control = create(&scene, &pods, args).await;
    show("control: no webhook", &control);
    for (name, round) in &samples {
        let ratio = median(round) / median(&control);
        print(&format!("# {name}: median {ratio:.2} of the control's"));
    }
    print_figures(&figures);
    scene.stop().await
}

/// The pods that do not match the condition.
fn pods(condition: &MatchCondition) -> anyhow::Result<Vec<Pod>> {
    let mut pods = Vec::new();
    for pod in of_others() {
        let view: PodView = serde_json::from_value(pod.clone())?;
        if !condition.matches(&view) {
            pods.push(pod_of(&pod)?);
        }
    }
    Ok(pods)
}

/// Points the configuration at an address that does not answer, and waits until a pod that addresses kerf
/// fails because of it.
async fn out(scene: &AdmissionScene, address: SocketAddr) -> anyhow::Result<()> {
    scene.call(address).await?;
    let fails = async || {
        let samples = scene.load(20).run_for(&asking(), true, Duration::from_millis(50)).await;
        Ok(!samples.is_empty() && samples.iter().all(|sample| sample.error.is_some()))
    };
    wait(TIMEOUT, "pods that ask kerf to fail", fails).await
}

async fn create(scene: &AdmissionScene, pods: &[Pod], args: &Args) -> Vec<Sample> {
    let load = scene.load(args.rate);
    let mut samples = Vec::new();
    for pod in pods {
        samples.extend(load.run_for(pod, false, Duration::from_millis(args.round_ms)).await);
    }
    samples
}

/// Prints a round, and returns how many creations failed or waited.
fn show(name: &str, samples: &[Sample]) -> f64 {
    let latency = Latency::from_samples(samples.iter().map(|sample| sample.took).collect());
    let bad = samples.iter().filter(|sample| sample.error.is_some() || sample.took > CREATION_LIMIT).count();
    print(&format!(
        "{name:<36} n {:>6}   failed or waited {bad:>4}   p50 {:>6.2} ms   p99 {:>6.2} ms",
        latency.count, latency.p50_ms, latency.p99_ms
    ));
    for (reason, count) in failures(samples) {
        print(&format!("# failed {count} times: {reason}"));
    }
    u32::try_from(bad).map_or(f64::MAX, f64::from)
}

fn median(samples: &[Sample]) -> f64 {
    Latency::from_samples(samples.iter().map(|sample| sample.took).collect()).p50_ms
}
