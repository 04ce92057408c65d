//! An outage of kerf's webhook affects only pods that ask kerf, and the policies in force decide which those are.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use k8s_openapi::api::core::v1::Pod;
use kerf_core::admission::MatchCondition;
use kerf_core::request::{Dialect, PodView};
use kerf_tests::admission::{
    AdmissionScene, HungWebhook, match_condition, of_kerf, of_others, pod_of, set_match_condition,
};
use kerf_tests::cluster::wait;
use kube::Api;
use kube::api::PostParams;
use serde_json::{Value, json};

const TIMEOUT: Duration = Duration::from_secs(30);
/// How soon the webhook must repair another program's change of its configuration. Until then pods pass unchanged.
const RESTORE_LIMIT: Duration = Duration::from_secs(5);

fn condition(dialects: &[Dialect]) -> MatchCondition {
    MatchCondition::for_dialects(&dialects.iter().copied().collect::<BTreeSet<_>>())
}

/// Whether the API server sent the pod to the webhook, which does not answer.
async fn met_the_webhook(scene: &AdmissionScene, pod: &Value) -> anyhow::Result<bool> {
    let dry_run = PostParams { dry_run: true, ..PostParams::default() };
    let pods = Api::<Pod>::default_namespaced(scene.plane().client());
    let Err(error) = pods.create(&dry_run, &pod_of(pod)?).await else { return Ok(false) };
    let met = error.to_string().contains("failed calling webhook \"pods.kerf.dev\"");
    // The API server itself refuses names without a group, and the guard refuses pods that bypass the scheduler.
    ensure!(met || !of_others().contains(pod), "{pod}: {error}");
    Ok(met)
}

/// The API server sees a changed configuration a moment later.
async fn in_force(scene: &AdmissionScene, condition: &MatchCondition) -> anyhow::Result<()> {
    set_match_condition(&scene.plane().client(), &condition.expression()).await?;
    let as_core_says = async || {
        for pod in of_others().iter().chain(&of_kerf()) {
            let view: PodView = serde_json::from_value(pod.clone())?;
            let (met, meets) = (met_the_webhook(scene, pod).await?, condition.matches(&view));
            ensure!(met == meets, "{pod}: met the webhook {met}, and core says {meets}");
        }
        Ok(true)
    };
    wait(TIMEOUT, "the API server to pick the pods that core picks", as_core_says).await
}

/// An address without a listener.
fn nowhere() -> std::io::Result<SocketAddr> {
    std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outage_affects_only_pods_that_ask_for_slices() -> anyhow::Result<()> {
    let scene = AdmissionScene::start().await?;
    scene.call(nowhere()?).await?;
    // The webhook is gone. The real API server evaluates each condition as core does.
    let dialects = Dialect::ALL.into_iter().map(|dialect| condition(&[dialect]));
    for condition in dialects.chain([MatchCondition::widest(), condition(&[])]) {
        in_force(&scene, &condition).await?;
    }
    // The webhook hangs, and no policy has a dialect. Only pods that ask kerf reach its port, so no other pod waits for
    // it.
    let hung = HungWebhook::start().await?;
    scene.call(hung.address()).await?;
    let asking = of_kerf().into_iter().next().context("no pod asks kerf")?;
    wait(TIMEOUT, "the API server to call the webhook that hangs", async || {
        ensure!(met_the_webhook(&scene, &asking).await?, "a pod that asks kerf was taken");
        Ok(hung.connections() > 0)
    })
    .await?;
    let before = hung.connections();
    for pod in of_others() {
        ensure!(!met_the_webhook(&scene, &pod).await?, "{pod} was sent to the webhook");
    }
    assert_eq!(hung.connections(), before, "somebody who asks nothing of kerf waited for its webhook");
    scene.stop().await
}

fn policy(dialects: &str) -> String {
    format!(
        "apiVersion: kerf.dev/v1alpha1\nkind: GpuPolicy\nmetadata: {{name: p}}\nspec:\n  defaultIsolation: memory\n  \
         isolation: {{memory: [mig]}}\n  dialects: [{dialects}]\n"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn the_webhook_keeps_the_match_condition_that_its_policies_need() -> anyhow::Result<()> {
    let mut scene = AdmissionScene::start().await?;
    let client = scene.plane().client();
    let found = async || match_condition(&client).await.map(|text| MatchCondition::parse(&text));
    assert_eq!(found().await?, Some(condition(&[Dialect::Mig])), "as the manifests have it");
    let file = scene.plane().dir().join("policy.yaml");
    std::fs::write(&file, policy("mig, nvidia"))?;
    let flag = format!("--policy={}", file.display());
    scene.add_replica(&[&flag]).await?;
    assert_eq!(found().await?, Some(condition(&[Dialect::Mig, Dialect::Nvidia])), "before it is ready");

    std::fs::write(&file, policy("mig, hami"))?;
    let wide = condition(&[Dialect::Mig, Dialect::Nvidia, Dialect::Hami]);
    let widened = async || Ok(found().await? == Some(wide.clone()));
    wait(TIMEOUT, "the condition to be widened, and to lose nothing yet", widened).await?;
    // Helm and kubectl apply their manifests over it without a conflict.
    let apply = async || {
        let conditions = json!([{"name": MatchCondition::NAME, "expression": condition(&[]).expression()}]);
        let manifest = json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration",
            "metadata": {"name": "kerf"},
            "webhooks": [{"name": MatchCondition::WEBHOOK, "matchConditions": conditions}],
        });
        let flags = ["apply", "--server-side", "--field-manager=gitops", "-f", "-"];
        let output = scene.plane().kubectl_output(&flags, &manifest.to_string()).await?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Ok(true)
    };
    wait(RESTORE_LIMIT, "the condition to be applied without a conflict", apply).await?;
    // A condition that is narrower than the policies need, or that kerf did not write, is replaced.
    let narrow = || condition(&[]).expression();
    for text in [narrow(), "has(object.spec)".to_owned(), narrow()] {
        set_match_condition(&client, &text).await?;
        let needed = condition(&[Dialect::Mig, Dialect::Hami]);
        let put_right = async || Ok(found().await?.is_some_and(|found| found.covers(&needed)));
        wait(RESTORE_LIMIT, "the condition to be put right", put_right).await?;
    }
    scene.end(0)?;
    // If another program owns the object, the webhook does not change it.
    set_match_condition(&client, &condition(&[]).expression()).await?;
    scene.add_replica(&[&flag, "--match-conditions=off"]).await?;
    assert_eq!(found().await?, Some(condition(&[])));
    scene.stop().await
}
