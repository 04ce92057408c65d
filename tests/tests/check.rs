//! `kerf check` as an admin runs it: before kerf is installed, when it works, and with one thing after another broken.
//! The tests cover its exit code and its texts.

use anyhow::{Context as _, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod};
use kerf_nvml_mock::Model;
use kerf_tests::binaries;
use kerf_tests::cluster::{Cluster, ClusterOptions, NAMESPACE, NodeSpec, wait};
use kerf_tests::control_plane::{ControlPlane, ControlPlaneOptions};
use kerf_tests::pods::is_ready;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt as _};
use serde_json::{Value, json};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(30);

/// The exit code of `kerf check` with these flags, and its output.
fn check(kubeconfig: &Path, flags: &[&str]) -> anyhow::Result<(i32, String)> {
    kerf(kubeconfig, &[&["check"], flags].concat())
}

fn kerf(kubeconfig: &Path, command: &[&str]) -> anyhow::Result<(i32, String)> {
    let output =
        Command::new(binaries::ours("kerf")?).args(command).arg("--kubeconfig").arg(kubeconfig).output()?;
    let text = format!("{}{}", String::from_utf8(output.stdout)?, String::from_utf8_lossy(&output.stderr));
    Ok((output.status.code().context("killed")?, text))
}

#[track_caller]
fn says(found: &(i32, String), code: i32, words: &[&str]) {
    let (exit, text) = found;
    assert_eq!(*exit, code, "{text}");
    for words in words {
        assert!(text.contains(words), "{words:?} is not in:\n{text}");
    }
}

/// A copy of a kubeconfig with one field changed.
fn changed(
    kubeconfig: &Path,
    name: &str,
    change: impl FnOnce(&mut Value),
) -> anyhow::Result<std::path::PathBuf> {
    let mut document: Value = serde_json::from_str(&std::fs::read_to_string(kubeconfig)?)?;
    change(&mut document);
    let path = kubeconfig.with_file_name(name);
    std::fs::write(&path, document.to_string())?;
    Ok(path)
}

/// An expired client certificate, with its key.
fn ended() -> anyhow::Result<(String, String)> {
    let mut parameters = rcgen::CertificateParams::new(Vec::new())?;
    parameters.not_before = rcgen::date_time_ymd(2020, 1, 1);
    parameters.not_after = rcgen::date_time_ymd(2021, 1, 1);
    let key = rcgen::KeyPair::generate()?;
    Ok((parameters.self_signed(&key)?.pem(), key.serialize_pem()))
}

/// Adds a `ClusterPolicy` without the operator's defaults, which an admin may omit.
async fn beside_gpu_operator(plane: &ControlPlane) -> anyhow::Result<()> {
    let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let version =
        json!({"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}});
    let names = json!({"kind": "ClusterPolicy", "plural": "clusterpolicies", "singular": "clusterpolicy"});
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "clusterpolicies.nvidia.com"},
        "spec": {"group": "nvidia.com", "scope": "Cluster", "names": names, "versions": [version]},
    });
    plane.apply(&definition.to_string()).await?;
    plane.definitions_established().await?;
    let policy = json!({
        "apiVersion": "nvidia.com/v1", "kind": "ClusterPolicy", "metadata": {"name": "cluster-policy"},
        "spec": {"driver": {"enabled": false}, "cdi": {"enabled": true}},
    });
    plane.apply(&policy.to_string()).await?;
    let words = [
        "✓ ClusterPolicy cluster-policy: the nodes have the driver, GPU Operator installs the container toolkit, CDI is on",
        "✓ kerf's chart needs nodeAgent.driverRoot=/, nodeAgent.runtimeClassName=nvidia",
        "--create-namespace -f deploy/values/gpu-operator.yaml --set 'nodeAgent.driverRoot=/'",
    ];
    says(&check(plane.kubeconfig(), &["--pre"])?, 0, &words);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn check_passes_an_empty_cluster_and_explains_a_bad_kubeconfig() -> anyhow::Result<()> {
    let options =
        ControlPlaneOptions { scheduler: false, ..ControlPlaneOptions::without_controller_manager() };
    let plane = ControlPlane::start(options).await?;
    let nodes = Api::<Node>::all(plane.client());
    let labels = json!({"nvidia.com/gpu.present": "true"});
    nodes
        .create(
            &PostParams::default(),
            &serde_json::from_value(json!({"metadata": {"name": "h100", "labels": labels}}))?,
        )
        .await?;

    let found = check(plane.kubeconfig(), &["--pre"])?;
    says(
        &found,
        0,
        &[
            "✓ you may create everything that kerf consists of",
            "nodes with GPUs that stay as they are: h100",
            "All is well.",
        ],
    );
    let json: Value = serde_json::from_str(&check(plane.kubeconfig(), &["--pre", "-o", "json"])?.1)?;
    ensure!(
        json["good"] == true && json["groups"].as_array().is_some_and(|groups| groups.len() > 5),
        "{json:#}"
    );
    says(&check(plane.kubeconfig(), &[])?, 1, &["✗ kerf is not installed", "kerf check --pre"]);

    beside_gpu_operator(&plane).await?;

    let jane = plane.kubeconfig_for("jane", None)?;
    says(
        &check(&jane, &["--pre"])?,
        1,
        &["✗ you may not create namespaces, nor create customresourcedefinitions", "cluster admin"],
    );

    let (certificate, key) = ended()?;
    let old = changed(plane.kubeconfig(), "old.yaml", |document| {
        document["users"][0]["user"] = json!({"client-certificate-data": STANDARD.encode(certificate), "client-key-data": STANDARD.encode(key)});
    })?;
    says(
        &check(&old, &["--pre"])?,
        3,
        &[
            "✗ the client certificate in the kubeconfig ended at 2021-01-01T00:00:00Z",
            "fetch a new kubeconfig",
        ],
    );
    let token = changed(plane.kubeconfig(), "token.yaml", |document| {
        document["users"][0]["user"] = json!({"token": "none"});
    })?;
    says(&check(&token, &[])?, 3, &["✗ the API server does not accept the user of the kubeconfig"]);
    let other = kerf_tests::control_plane::Authority::new("another")?;
    let stranger = changed(plane.kubeconfig(), "stranger.yaml", |document| {
        document["clusters"][0]["cluster"]["certificate-authority-data"] =
            json!(STANDARD.encode(other.pem()));
    })?;
    says(
        &check(&stranger, &[])?,
        3,
        &["shows a certificate that the kubeconfig's authority has not signed", "the cluster was made anew"],
    );
    let gone = changed(plane.kubeconfig(), "gone.yaml", |document| {
        document["clusters"][0]["cluster"]["server"] = json!("https://127.0.0.1:1");
    })?;
    says(&check(&gone, &[])?, 3, &["✗ https://127.0.0.1:1/ does not answer"]);
    for command in [&["explain", "web"][..], &["nodes"], &["release", "n"]] {
        says(&kerf(&gone, command)?, 3, &["https://127.0.0.1:1/ does not answer", "fetch a new kubeconfig"]);
    }
    says(
        &check(plane.kubeconfig(), &["--context", "prod"])?,
        3,
        &["✗ the kubeconfig has no context \"prod\"", "kubectl config get-contexts"],
    );
    says(&check(&plane.dir().join("none.yaml"), &[])?, 3, &["none.yaml"]);
    says(&check(plane.kubeconfig(), &["--wait", "soon"])?, 2, &["--wait"]);
    plane.stop().await
}

/// Starts pods under the programs' names. The programs run as processes here and not in pods, so the checks of their
/// pods need others, which the stand-in kubelet starts.
async fn represent(client: &Client, node: &str) -> anyhow::Result<()> {
    let pods = Api::<Pod>::namespaced(client.clone(), NAMESPACE);
    for program in ["kerf-webhook", "kerf-extender", "kerf-scheduler", "kerf-node-agent"] {
        let pod = json!({
            "metadata": {"name": program, "labels": {"app.kubernetes.io/name": program}},
            "spec": {"nodeName": node, "terminationGracePeriodSeconds": 0, "containers": [{"name": "main", "image": format!("{program}:0.1.0")}]},
        });
        pods.create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
    }
    wait(TIMEOUT, "the pods to be ready", async || {
        Ok(pods.list(&ListParams::default()).await?.items.iter().filter(|pod| is_ready(pod)).count() == 4)
    })
    .await
}

/// The scheduler's configuration in the cluster.
async fn scheduler_config(client: &Client) -> anyhow::Result<(Api<ConfigMap>, ConfigMap)> {
    let maps = Api::<ConfigMap>::namespaced(client.clone(), NAMESPACE);
    let all = maps.list(&ListParams::default()).await?.items;
    let map = all
        .into_iter()
        .find(|map| map.name_any().starts_with("kerf-scheduler"))
        .context("no configuration")?;
    Ok((maps, map))
}

#[tokio::test(flavor = "multi_thread")]
async fn check_reports_each_fault_with_its_remedy_until_it_is_fixed() -> anyhow::Result<()> {
    let mut options = ClusterOptions::without_controller_manager(vec![NodeSpec::new("h", Model::H100, 1)]);
    // The scheduler's configuration in `deploy/` calls the extender by this name, so the certificate must have it.
    options.extender_flags.push("--tls-name=kerf-extender.kerf-system.svc".to_owned());
    let mut cluster = Cluster::start(options, |_| ()).await?;
    let (client, kubeconfig) = (cluster.plane().client(), cluster.plane().kubeconfig().to_owned());
    represent(&client, "h").await?;
    says(
        &check(&kubeconfig, &["--wait", "30s", "--strict"])?,
        0,
        &[
            "✓ it admits a pod that asks for GPU memory",
            "✓ kerf-extender-0 leads",
            "✓ h: agent ready, GPUs well",
            "All is well.",
        ],
    );

    // A running webhook would repair this at once.
    cluster.webhook().kill()?;
    let webhooks = Api::<MutatingWebhookConfiguration>::all(client.clone());
    let bundle = kerf_tests::control_plane::Authority::new("another")?;
    let patch: Vec<Value> = (0..2)
        .map(|index| json!({"op": "replace", "path": format!("/webhooks/{index}/clientConfig/caBundle"), "value": STANDARD.encode(bundle.pem())}))
        .collect();
    let patch = Patch::<()>::Json(serde_json::from_value(json!(patch))?);
    webhooks.patch("kerf", &PatchParams::default(), &patch).await?;
    says(
        &check(&kubeconfig, &[])?,
        1,
        &[
            "does not serve 127.0.0.1 for who trusts caBundle",
            "✗ the API server cannot reach it",
            "rollout restart deploy/kerf-webhook",
        ],
    );
    cluster.webhook().restart()?;
    says(&check(&kubeconfig, &["--wait", "60s", "-o", "short"])?, 0, &[]);

    let (maps, map) = scheduler_config(&client).await?;
    let text = map.data.as_ref().and_then(|data| data.get("config.yaml")).context("no text")?;
    let drift = |text: String| Patch::Merge(json!({"data": {"config.yaml": text}}));
    let worse = text
        .replace("httpTimeout: 5s", "httpTimeout: 9s")
        .replace("nodeCacheCapable: true", "nodeCacheCapable: false");
    maps.patch(&map.name_any(), &PatchParams::default(), &drift(worse)).await?;
    says(
        &check(&kubeconfig, &[])?,
        1,
        &[
            "is not what kerf scheduler-config prints: extenders[0].nodeCacheCapable is false and should be true",
        ],
    );
    maps.patch(&map.name_any(), &PatchParams::default(), &drift(text.replace("qps: 1000", "qps: 20")))
        .await?;
    says(
        &check(&kubeconfig, &[])?,
        0,
        &["! ConfigMap kerf-scheduler", "clientConnection.qps is 20", "It works, with 1 warning."],
    );
    says(&check(&kubeconfig, &["--strict"])?, 1, &["which --strict takes for failures"]);
    maps.patch(&map.name_any(), &PatchParams::default(), &drift(text.clone())).await?;

    Api::<Pod>::namespaced(client.clone(), NAMESPACE)
        .delete("kerf-node-agent", &DeleteParams::default())
        .await?;
    cluster.plane().apply("{apiVersion: resource.k8s.io/v1, kind: DeviceClass, metadata: {name: gpus}, spec: {extendedResourceName: nvidia.com/gpu}}").await?;
    cluster.plane().kubectl(&["delete", "clusterrolebinding", "kerf-extender"]).await?;
    says(
        &check(&kubeconfig, &["-o", "short"])?,
        1,
        &[
            "failure: nodes that kerf serves: h: there is no agent's pod",
            "warning: others that manage GPUs: DeviceClass gpus has nvidia.com/gpu served by dynamic resource allocation",
            "failure: rights of kerf's programs: service account kerf-system/kerf-extender may not get gpunodes.kerf.dev",
        ],
    );

    cluster.extender().kill()?;
    let seconds = wait(TIMEOUT, "the Lease to run out", async || {
        Ok(check(&kubeconfig, &["-o", "short"])?
            .1
            .contains("extender: no replica leads: kerf-extender-0 has not renewed its Lease"))
    });
    seconds.await?;
    cluster.stop().await
}
