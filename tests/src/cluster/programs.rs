//! Starts kerf's programs as processes, each with its service account's token and on its own port.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use serde_json::{Value, json};

use super::{NAMESPACE, wait};
use crate::binaries;
use crate::control_plane::{ControlPlane, ports};
use crate::process::{Child, Program};

const TIMEOUT: Duration = Duration::from_secs(30);

const WEBHOOK: &str = "kerf-webhook";
const CONFIGURATION: &str = "kerf";
/// Entries of the webhook's configuration: pods and templates.
const WEBHOOKS: usize = 2;

/// Starts the webhook and points its configuration at it.
pub(super) async fn webhook(plane: &ControlPlane, policy: &Path) -> anyhow::Result<Child> {
    let (child, url) = replica(plane, policy, WEBHOOK).await?;
    let client = |webhook| {
        let path = format!("/webhooks/{webhook}/clientConfig");
        [
            json!({"op": "remove", "path": format!("{path}/service")}),
            json!({"op": "add", "path": format!("{path}/url"), "value": url}),
        ]
    };
    let patch = json!((0..WEBHOOKS).flat_map(client).collect::<Vec<_>>());
    patch_configuration(plane, &patch).await?;
    Ok(child)
}

/// Starts another replica of the webhook, for the pods with this label. A Service would spread the
/// connections of several API servers, but this API server has only one connection to each address.
pub(super) async fn webhook_for(
    plane: &ControlPlane,
    policy: &Path,
    label: (&str, &str),
) -> anyhow::Result<Child> {
    let (child, url) = replica(plane, policy, &format!("{WEBHOOK}-{}", label.1)).await?;
    let api = Api::<MutatingWebhookConfiguration>::all(plane.client());
    let pods = api.get(CONFIGURATION).await?.webhooks.unwrap_or_default().into_iter().next();
    let pods = json!(pods.context("the webhook's configuration is empty")?);
    let mut theirs = pods.clone();
    theirs["name"] = json!(format!("{}.pods.kerf.dev", label.1));
    theirs["clientConfig"]["url"] = json!(url);
    let requirement = |operator| json!({"key": label.0, "operator": operator, "values": [label.1]});
    theirs["objectSelector"] = json!({"matchExpressions": [requirement("In")]});
    // Conditions of earlier replicas stay, so that each pod goes to one replica.
    let of_others = pods["objectSelector"]["matchExpressions"].as_array().cloned().unwrap_or_default();
    let of_none = [of_others, vec![requirement("NotIn")]].concat();
    let of_none = json!({"matchExpressions": of_none});
    let patch = json!([
        {"op": "add", "path": "/webhooks/0/objectSelector", "value": of_none},
        {"op": "add", "path": "/webhooks/-", "value": theirs},
    ]);
    patch_configuration(plane, &patch).await?;
    Ok(child)
}

/// Starts a replica of the webhook that logs as `name`, and returns its URL.
async fn replica(plane: &ControlPlane, policy: &Path, name: &str) -> anyhow::Result<(Child, String)> {
    let flags = |p: Program| p.arg("--policy").arg(policy).arg("--tls-name").arg("127.0.0.1");
    let (child, address) = start_as(plane, WEBHOOK, name, flags).await?;
    Ok((child, format!("https://{address}/mutate")))
}

async fn patch_configuration(plane: &ControlPlane, patch: &Value) -> anyhow::Result<()> {
    let patch = patch.to_string();
    let configuration = ["mutatingwebhookconfiguration", CONFIGURATION];
    plane.kubectl(&[&["patch"], &configuration[..], &["--type=json", "-p", &patch]].concat()).await?;
    Ok(())
}

pub(super) async fn extender(plane: &ControlPlane, policy: &Path, flags: &[String]) -> anyhow::Result<Child> {
    let reported = flags.iter().any(|flag| flag.starts_with("--policy"));
    let policy = (!reported).then(|| format!("--policy={}", policy.display()));
    // The certificate needs both names, because the scheduler calls the extender by its address, and agents by its
    // Service's name.
    let tls = |p: Program| {
        p.args(["--tls-name=127.0.0.1", "--tls-name=kerf-extender.kerf-system.svc"]).args(policy).args(flags)
    };
    Ok(start(plane, "kerf-extender", tls).await?.0)
}

pub(super) async fn scheduler(plane: &mut ControlPlane) -> anyhow::Result<()> {
    let address = read_address(plane, "kerf-extender")?;
    start_scheduler(plane, "kerf-scheduler", &address).await
}

/// Starts a kube-scheduler of this name with the configuration that `kerf scheduler-config` prints for an extender at
/// `address`.
pub async fn start_scheduler(plane: &mut ControlPlane, name: &str, address: &str) -> anyhow::Result<()> {
    let tls = write_tls(plane).await?;
    let output = Command::new(binaries::ours("kerf")?)
        .arg("scheduler-config")
        .arg(format!("--extender-url=https://{address}/scheduler"))
        .arg(format!("--tls-dir={}", tls.display()))
        .arg(format!("--scheduler-name={name}"))
        .output()
        .context("failed to run kerf scheduler-config")?;
    ensure!(output.status.success(), "kerf scheduler-config: {}", String::from_utf8_lossy(&output.stderr));
    let path = plane.dir().join(format!("{name}-config.yaml"));
    std::fs::write(&path, output.stdout).context("failed to write the scheduler's configuration")?;
    plane.start_scheduler(name, &path).await
}

/// Writes the files of the extender's Secret that the scheduler's pod would mount, and returns their folder.
pub async fn write_tls(plane: &ControlPlane) -> anyhow::Result<PathBuf> {
    let folder = plane.dir().join("extender-tls");
    let secrets = Api::<Secret>::namespaced(plane.client(), NAMESPACE);
    let secret = secrets.get("kerf-extender-tls").await.context("the extender made no Secret")?;
    let data = secret.data.unwrap_or_default();
    std::fs::create_dir_all(&folder).context("failed to create the folder for the certificates")?;
    for key in ["ca.crt", "client.crt", "client.key"] {
        let value = data.get(key).with_context(|| format!("Secret kerf-extender-tls has no {key}"))?;
        std::fs::write(folder.join(key), &value.0).with_context(|| format!("failed to write {key}"))?;
    }
    Ok(folder)
}

/// Starts a program of kerf with its service account, and waits for its address.
async fn start(
    plane: &ControlPlane,
    program: &str,
    more: impl FnOnce(Program) -> Program,
) -> anyhow::Result<(Child, String)> {
    start_as(plane, program, program, more).await
}

/// Starts a program of kerf as a replica with its own name.
async fn start_as(
    plane: &ControlPlane,
    program: &str,
    name: &str,
    more: impl FnOnce(Program) -> Program,
) -> anyhow::Result<(Child, String)> {
    let kubeconfig = plane.kubeconfig_for_service_account(NAMESPACE, program).await?;
    // The port is fixed instead of 0, so that the program has the same one after a restart.
    let [port] = ports::free()?;
    let program = plane
        .program(name, binaries::ours(program)?)
        .arg("--kubeconfig")
        .arg(kubeconfig)
        .args(["--admin-address", "127.0.0.1:0", "--address", &format!("127.0.0.1:{port}"), "--address-file"])
        .arg(address_file(plane, name));
    let child = more(program).spawn()?;
    let file = address_file(plane, name);
    let ready = wait(TIMEOUT, &format!("{name} to listen"), async || Ok(file.exists())).await;
    ready.with_context(|| child.log_tail())?;
    let address = read_address(plane, name)?;
    Ok((child, address))
}

fn address_file(plane: &ControlPlane, name: &str) -> PathBuf {
    plane.dir().join(format!("{name}.address"))
}

fn read_address(plane: &ControlPlane, name: &str) -> anyhow::Result<String> {
    let file = address_file(plane, name);
    let address =
        std::fs::read_to_string(&file).with_context(|| format!("failed to read {}", file.display()))?;
    Ok(address.trim().to_owned())
}
