//! kerf from Git, installed as Argo CD does it: from a render without a cluster and by server-side apply. It works, and
//! a second render does not differ from what runs. The installed manifests are those that `docs/gitops.md` shows.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use http::Request;
use kerf_core::keys;
use kerf_nvml_mock::Model;
use kerf_tests::chart::{by_name, name_of, template_with};
use kerf_tests::cluster::{BareCluster, BareOptions, NAMESPACE, NodeSpec, pod, root, wait};
use kerf_tests::control_plane::{Authority, ControlPlane};
use kerf_tests::docs::pages;
use kerf_tests::openapi::crds;
use kube::{Client, Config};
use serde_json::{Value, json};

const TIMEOUT: Duration = Duration::from_mins(2);

/// A document of `deploy/gitops`.
fn shown(file: &str, kind: &str) -> anyhow::Result<Value> {
    let text = std::fs::read_to_string(root().join("deploy/gitops").join(file))?;
    let mut documents: Vec<Value> = serde_saphyr::from_multiple(&text)?;
    let found = documents.iter().position(|document| document["kind"] == kind);
    Ok(documents.swap_remove(found.with_context(|| format!("{file} has no {kind}"))?))
}

/// Applies what was rendered, without hooks, as Argo CD does.
async fn apply(plane: &ControlPlane, yaml: &str, more: &[&str]) -> anyhow::Result<String> {
    let arguments =
        ["apply", "--server-side", "--force-conflicts", "--field-manager=argocd-controller", "-f", "-"];
    let output = plane.kubectl_output(&[&arguments, more].concat(), yaml).await?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?)
}

/// The objects of a list that kubectl wrote, without what the API server and controllers add to them.
fn stated(list: &str) -> anyhow::Result<BTreeMap<String, Value>> {
    let list: Value = serde_json::from_str(list)?;
    let items = list["items"].as_array().context("kubectl wrote no list")?;
    let stated = items.iter().map(|object| {
        let mut object = object.clone();
        for (part, field) in
            [("", "status"), ("/metadata", "managedFields"), ("/metadata", "resourceVersion")]
        {
            object.pointer_mut(part).and_then(Value::as_object_mut).map(|fields| fields.remove(field));
        }
        (name_of(&object), object)
    });
    Ok(stated.collect())
}

/// Finds rendered fields that differ in what runs, which a comparison of the two manifests would report.
fn differences(rendered: &Value, live: &Value, path: &str, found: &mut Vec<String>) {
    match (rendered, live) {
        (Value::Object(rendered), Value::Object(live)) => {
            for (name, value) in rendered {
                differences(value, live.get(name).unwrap_or(&Value::Null), &format!("{path}.{name}"), found);
            }
        }
        (Value::Array(rendered), Value::Array(live)) if rendered.len() == live.len() => {
            for (index, (rendered, live)) in rendered.iter().zip(live).enumerate() {
                differences(rendered, live, &format!("{path}[{index}]"), found);
            }
        }
        _ if rendered == live => {}
        _ => found.push(format!("{path} is {rendered} in Git, and {live} in the cluster")),
    }
}

/// Compares by server-side apply, and field by field.
async fn drift(plane: &ControlPlane, yaml: &str) -> anyhow::Result<Vec<String>> {
    let output = plane.kubectl_output(&["get", "-o", "json", "-f", "-"], yaml).await?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let live = stated(&String::from_utf8(output.stdout)?)?;
    let applied = stated(&apply(plane, yaml, &["--dry-run=server", "-o", "json"]).await?)?;
    let mut found = Vec::new();
    for (name, rendered) in by_name(yaml)? {
        let live = live.get(&name).with_context(|| format!("{name} does not run"))?;
        differences(&rendered, live, &name, &mut found);
        if applied.get(&name) != Some(live) {
            found.push(format!("{name} would be written: {}", json!(applied.get(&name))));
        }
    }
    Ok(found)
}

/// The render without its hooks, which Argo CD does not compare.
fn without_hooks(yaml: &str) -> anyhow::Result<String> {
    let objects = by_name(yaml)?.into_values();
    let objects = objects.filter(|object| object["metadata"]["annotations"]["helm.sh/hook"].is_null());
    let documents: Vec<String> = objects.map(|object| object.to_string()).collect();
    Ok(documents.join("\n---\n"))
}

/// Waits until the webhook and the extender have created their objects, and serve.
async fn settled(cluster: &BareCluster) -> anyhow::Result<()> {
    cluster.kerf_is_up(1, TIMEOUT).await?;
    let plane = cluster.plane();
    let bundles = [
        "get",
        "mutatingwebhookconfiguration",
        "kerf",
        "-o",
        "jsonpath={.webhooks[*].clientConfig.caBundle}",
    ];
    let all = async || Ok(plane.kubectl(&bundles).await?.split_whitespace().count() == 2);
    wait(TIMEOUT, "the webhook to write caBundle", all).await?;
    plane.kubectl(&["get", "secret", "kerf-webhook-tls", "kerf-extender-tls", "-n", NAMESPACE]).await?;
    Ok(())
}

/// Scrapes as Prometheus does by the chart's `PodMonitor`: without a name, and without trust in the certificate.
async fn the_scheduler_shows_its_metrics(plane: &ControlPlane) -> anyhow::Result<()> {
    let pods = ["get", "pods", "-n", NAMESPACE, "-l", "app.kubernetes.io/name=kerf-scheduler"];
    let address = plane.kubectl(&[&pods[..], &["-o", "jsonpath={.items[0].status.podIP}"]].concat()).await?;
    let mut config = Config::new(format!("https://{address}:10259").parse()?);
    config.accept_invalid_certs = true;
    let request = Request::get("/metrics").body(Vec::new())?;
    let text = Client::try_from(config)?.request_text(request).await?;
    ensure!(text.contains("scheduler_pending_pods"), "{text}");
    Ok(())
}

async fn cluster() -> anyhow::Result<BareCluster> {
    let nodes = vec![NodeSpec::without_gpus("cpu"), NodeSpec::new("h100", Model::H100, 1).left_to_kerf()];
    BareCluster::start(BareOptions::new(nodes)).await
}

async fn a_first_pod_runs(cluster: &BareCluster) -> anyhow::Result<()> {
    cluster.pods().create(&pod("first", &[(keys::GPU_MEMORY, "10Gi")])).await?;
    cluster.pods().running("first").await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn gitops_finds_no_difference_and_ignores_no_field() -> anyhow::Result<()> {
    let cluster = cluster().await?;
    let plane = cluster.plane();
    let application = shown("application.yaml", "Application")?;
    ensure!(
        application["spec"]["ignoreDifferences"].is_null(),
        "docs/gitops.md says that nothing is ignored"
    );
    plane.create_namespace(NAMESPACE).await?;
    for (label, value) in application["spec"]["syncPolicy"]["managedNamespaceMetadata"]["labels"]
        .as_object()
        .into_iter()
        .flatten()
    {
        plane
            .kubectl(&[
                "label",
                "namespace",
                NAMESPACE,
                &format!("{label}={}", value.as_str().unwrap_or_default()),
            ])
            .await?;
    }
    let of_git = application["spec"]["source"]["helm"]["valuesObject"].clone();
    // By default the webhook writes its match conditions itself.
    let mut by_itself = of_git.clone();
    by_itself["webhook"] =
        json!({"matchConditions": "auto", "excludedNamespaceLabel": "example.com/no-gpus"});
    by_itself["networkPolicy"] = json!({"enabled": true});
    by_itself["criticalPodsQuota"] = json!(true);
    for values in [&by_itself, &of_git] {
        let render = || without_hooks(&template_with(NAMESPACE, values)?);
        let first = render()?;
        apply(plane, &first, &[]).await?;
        settled(&cluster).await?;
        a_first_pod_runs(&cluster).await?;
        let second = render()?;
        ensure!(first == second, "two renders differ");
        let found = drift(plane, &second).await?;
        ensure!(found.is_empty(), "{}", found.join("\n"));
        plane.kubectl(&["delete", "pod", "first", "--force"]).await?;
    }
    the_scheduler_shows_its_metrics(plane).await?;
    let by_hand = ["scale", "deployment", "kerf-scheduler", "--replicas=1", "-n", NAMESPACE];
    plane.kubectl(&by_hand).await?;
    let found = drift(plane, &without_hooks(&template_with(NAMESPACE, &of_git)?)?).await?;
    ensure!(found.len() == 2 && found[0].contains("spec.replicas is 2 in Git, and 1"), "{found:?}");
    cluster.stop().await
}

/// Creates what cert-manager makes of the chart's Certificate: the Secret, and the authority in the webhook's
/// configuration, which its ca-injector writes.
async fn play_cert_manager(plane: &ControlPlane) -> anyhow::Result<()> {
    let authority = Authority::new("cert-manager")?;
    let pair = authority.server(&[&format!("kerf-webhook.{NAMESPACE}.svc")])?;
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls",
        "metadata": {"name": "kerf-webhook-cert-manager", "namespace": NAMESPACE},
        "stringData": {"ca.crt": authority.pem(), "tls.crt": pair.certificate, "tls.key": pair.key},
    });
    plane.apply(&secret.to_string()).await?;
    let bundle = BASE64_STANDARD.encode(authority.pem());
    let injected = [0, 1].map(|number| {
        json!({"op": "add", "path": format!("/webhooks/{number}/clientConfig/caBundle"), "value": bundle})
    });
    let patch = json!(injected).to_string();
    let object = ["patch", "mutatingwebhookconfiguration", "kerf", "--type=json", "--patch", &patch];
    plane.kubectl(&[&object[..], &["--field-manager=cert-manager-cainjector"]].concat()).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn gitops_tolerates_what_cert_manager_writes() -> anyhow::Result<()> {
    let cluster = cluster().await?;
    let plane = cluster.plane();
    let definitions = crds()?.join("cert-manager").display().to_string();
    plane.kubectl(&["apply", "--server-side", "--recursive", "-f", &definitions]).await?;
    plane.definitions_established().await?;
    plane.create_namespace(NAMESPACE).await?;
    let mut values =
        shown("application.yaml", "Application")?["spec"]["source"]["helm"]["valuesObject"].clone();
    values["webhook"]["certificates"] = json!("cert-manager");
    let render = || without_hooks(&template_with(NAMESPACE, &values)?);
    apply(plane, &render()?, &[]).await?;
    play_cert_manager(plane).await?;
    cluster.kerf_is_up(1, TIMEOUT).await?;
    a_first_pod_runs(&cluster).await?;
    let bundles = [
        "get",
        "mutatingwebhookconfiguration",
        "kerf",
        "-o",
        "jsonpath={.webhooks[*].clientConfig.caBundle}",
    ];
    let before = plane.kubectl(&bundles).await?;
    let found = drift(plane, &render()?).await?;
    ensure!(found.is_empty(), "{}", found.join("\n"));
    apply(plane, &render()?, &[]).await?;
    ensure!(before.split_whitespace().count() == 2, "no authority was injected: {before}");
    ensure!(plane.kubectl(&bundles).await? == before, "a sync changed what cert-manager injected");
    cluster.stop().await
}

/// The comparison itself must find differences.
#[test]
fn a_difference_is_reported_with_its_path() {
    let (mut found, live) = (Vec::new(), json!({"a": [{"b": 1, "more": 2}], "c": "d", "set": true}));
    differences(&json!({"a": [{"b": 1}], "c": "d"}), &live, "it", &mut found);
    assert_eq!(found, Vec::<String>::new());
    differences(&json!({"a": [{"b": 2}], "e": "f"}), &live, "it", &mut found);
    assert_eq!(
        found,
        ["it.a[0].b is 2 in Git, and 1 in the cluster", "it.e is \"f\" in Git, and null in the cluster"]
    );
    differences(&json!({"a": []}), &live, "it", &mut found);
    assert_eq!(found.len(), 3);
}

#[test]
fn the_page_shows_the_files() -> anyhow::Result<()> {
    let pages = pages(&root())?;
    let page = pages.iter().find(|page| page.path.ends_with("docs/gitops.md")).context("no page")?;
    for file in ["application.yaml", "helmrelease.yaml"] {
        let text = std::fs::read_to_string(root().join("deploy/gitops").join(file))?;
        ensure!(page.blocks.iter().any(|block| block.text == text), "docs/gitops.md does not show {file}");
    }
    let release = shown("helmrelease.yaml", "HelmRelease")?;
    template_with(NAMESPACE, &release["spec"]["values"]).map(drop)
}
