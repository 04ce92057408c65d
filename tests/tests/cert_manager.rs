//! What `deploy/cert-manager` renders to: the webhook's flag, the mount and the Secret agree.

use std::process::Command;

use anyhow::{Context as _, ensure};
use kerf_tests::binaries;
use kerf_tests::cluster::root;
use serde_json::{Value, json};

fn rendered() -> anyhow::Result<Vec<Value>> {
    let folder = root().join("deploy/cert-manager");
    let output = Command::new(binaries::tool("kubectl")?).arg("kustomize").arg(folder).output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout)?;
    text.split("\n---\n").map(|document| Ok(serde_saphyr::from_str(document)?)).collect()
}

fn find<'o>(objects: &'o [Value], kind: &str, name: &str) -> anyhow::Result<&'o Value> {
    let found = objects.iter().find(|object| object["kind"] == kind && object["metadata"]["name"] == name);
    found.with_context(|| format!("there is no {kind} {name}"))
}

#[test]
fn the_certificate_of_cert_manager_reaches_the_webhook() -> anyhow::Result<()> {
    let objects = rendered()?;
    let certificate = find(&objects, "Certificate", "kerf-webhook")?;
    let namespace = &certificate["metadata"]["namespace"];
    assert_eq!(certificate["spec"]["dnsNames"], json!(["kerf-webhook.kerf-system.svc"]));

    let pod = &find(&objects, "Deployment", "kerf-webhook")?["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    let args = container["args"].as_array().context("the webhook has no flags")?;
    assert!(args.contains(&json!("--tls-dir=/etc/kerf/tls")), "{args:?}");
    let mounts = container["volumeMounts"].as_array().context("nothing is mounted")?;
    let mount = mounts.iter().find(|mount| mount["mountPath"] == "/etc/kerf/tls").context("no mount")?;
    let volumes = pod["volumes"].as_array().context("there are no volumes")?;
    let volume = volumes.iter().find(|volume| volume["name"] == mount["name"]).context("no volume")?;
    assert_eq!(volume["secret"]["secretName"], certificate["spec"]["secretName"]);

    let configuration = find(&objects, "MutatingWebhookConfiguration", "kerf")?;
    let injected = &configuration["metadata"]["annotations"]["cert-manager.io/inject-ca-from"];
    assert_eq!(injected, &json!(format!("{}/kerf-webhook", namespace.as_str().unwrap_or_default())));
    Ok(())
}
