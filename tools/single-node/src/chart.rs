//! `--chart`: the chart installs kerf as pods of its own images; no program of kerf is started by hand. Then
//! the cluster's own scheduler is configured to call the extender, by the commands of docs/install.md.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::real_node::{BareNode, Gpus, NVIDIA, serves, service_addresses};
use anyhow::{Context as _, ensure};
use k8s_openapi::api::core::v1::Secret;
use kerf_tests::binaries;
use kerf_tests::chart::{folder, helm_on, said};
use kerf_tests::cluster::NAMESPACE;
use kerf_tests::control_plane::{ControlPlane, ControlPlaneOptions};
use kube::Api;
use serde_json::{Value, json};
use tokio::process::Command;

use crate::args::Args;
use crate::{driver, lent, node_policy};

/// The cluster IP of the extender's Service. It is fixed, because a scheduler in the host's network cannot
/// resolve the Service's name.
const EXTENDER: &str = "10.96.0.44";

pub struct Installed {
    plane: ControlPlane,
    node: BareNode,
}

impl Installed {
    pub async fn start(args: &Args, gpus: &Gpus, say: impl Fn(&str)) -> anyhow::Result<Self> {
        let options =
            ControlPlaneOptions { services: Some(service_addresses()), ..ControlPlaneOptions::default() };
        let mut plane = ControlPlane::start(options).await?;
        say("the control plane is up");
        let places = args.places();
        places.create()?;
        let handlers = [driver::handler(args, gpus)?, lent::handler(args)];
        let node = BareNode::start(&plane, &args.name, &places, &images()?, &handlers, &say).await?;
        install(&plane, args, gpus).await?;
        say("helm install has ended");
        scheduler(&mut plane, &args.state).await?;
        say("the cluster's scheduler asks the extender");
        serves(&plane, &args.name).await?;
        say("the agent serves the node");
        Ok(Self { plane, node })
    }

    /// The kubeconfig of an administrator.
    pub fn kubeconfig(&self) -> PathBuf {
        self.plane.kubeconfig().to_owned()
    }

    /// Uninstalls kerf, checks that it leaves no object that could hinder a pod, and ends the rest.
    pub async fn stop(self, say: impl Fn(&str)) -> anyhow::Result<()> {
        let uninstalled = self.uninstall().await;
        say("helm uninstall has ended");
        let stopped = self.node.stop(&self.plane).await;
        self.plane.stop().await?;
        uninstalled.and(stopped)
    }

    async fn uninstall(&self) -> anyhow::Result<()> {
        let arguments = ["uninstall", "kerf", "--namespace", NAMESPACE, "--wait", "--timeout", "60s"];
        said(&helm_on(&self.plane, &arguments).await?).context("helm uninstall failed")?;
        let left = self.plane.kubectl(&[
            "get",
            "mutatingwebhookconfigurations,daemonsets,deployments",
            "-A",
            "-o",
            "name",
        ]);
        let left = left.await?;
        ensure!(left.trim().is_empty(), "left after helm uninstall:\n{left}");
        Ok(())
    }
}

/// The archives of kerf's images, from the folder `images` beside this program's folder.
fn images() -> anyhow::Result<Vec<PathBuf>> {
    let program = env::current_exe().context("failed to find this program")?;
    let folder = program.ancestors().nth(2).unwrap_or(Path::new("/")).join("images");
    let read = fs::read_dir(&folder).with_context(|| {
        format!("no images in {}: run `cargo xtask images`, or unpack the bundle `install`", folder.display())
    })?;
    let mut images = read.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<_>>>()?;
    images.retain(|path| path.extension().is_some_and(|extension| extension == "tar"));
    images.sort();
    Ok(images)
}

/// The values that an admin of this node sets. No mode of the GPU is switched.
fn values(args: &Args, gpus: &Gpus) -> anyhow::Result<Value> {
    let policy = node_policy::text(args, true);
    Ok(json!({
        "scheduler": {"mode": "main"},
        "extender": {"clusterIP": EXTENDER},
        "policies": {"files": {node_policy::OWN: policy}},
        "nodeAgent": {"runtimeClassName": NVIDIA, "extraArgs": driver::flags(gpus)?},
    }))
}

async fn install(plane: &ControlPlane, args: &Args, gpus: &Gpus) -> anyhow::Result<()> {
    let path = args.state.join("values.json");
    fs::write(&path, values(args, gpus)?.to_string()).context("failed to write the chart's values")?;
    let (chart, values) = (folder(), path.display().to_string());
    let what = ["install", "kerf", &chart, "--namespace", NAMESPACE, "--create-namespace"];
    let how = ["--values", &values, "--wait", "--timeout", "60s"];
    let installed = said(&helm_on(plane, &[&what[..], &how].concat()).await?);
    let Err(error) = installed else { return Ok(()) };
    let pods = plane.kubectl(&["describe", "pods", "-n", NAMESPACE]).await.unwrap_or_default();
    let logs = ["logs", "-n", NAMESPACE, "-l", "app.kubernetes.io/instance=kerf", "--prefix", "--tail=20"];
    let logs = plane.kubectl(&logs).await.unwrap_or_default();
    Err(error.context(format!("helm install failed; the pods:\n{pods}\n{logs}")))
}

/// Replaces the cluster's scheduler by one with the configuration that `kerf scheduler-config` prints.
async fn scheduler(plane: &mut ControlPlane, state: &Path) -> anyhow::Result<()> {
    let tls = state.join("scheduler-tls");
    write_secret(plane, &tls).await?;
    let mut kerf = Command::new(binaries::ours("kerf")?);
    kerf.args(["scheduler-config", "--scheduler-name", "default-scheduler", "--leader-elect"]);
    kerf.args(["--lease", "kube-system/kube-scheduler", "--kubeconfig", "/etc/kubernetes/scheduler.conf"]);
    kerf.args(["--extender-url", &format!("https://{EXTENDER}:9444/scheduler")]).arg("--tls-dir").arg(&tls);
    let configuration = said(&kerf.output().await.context("failed to start kerf")?)?;
    let path = state.join("scheduler.yaml");
    fs::write(&path, configuration).context("failed to write the scheduler's configuration")?;
    // It must end first, because two schedulers of one name would bind the same pods.
    plane.child("kube-scheduler")?.terminate(Duration::from_secs(5))?;
    plane.start_scheduler("kube-scheduler-asking-kerf", &path).await
}

/// Writes the Secret with which the scheduler authenticates to the extender into files.
async fn write_secret(plane: &ControlPlane, folder: &Path) -> anyhow::Result<()> {
    let secrets = Api::<Secret>::namespaced(plane.client(), NAMESPACE);
    let secret = secrets.get("kerf-extender-tls").await.context("failed to read the extender's Secret")?;
    fs::create_dir_all(folder).with_context(|| format!("failed to create {}", folder.display()))?;
    let data = secret.data.unwrap_or_default();
    for name in ["ca.crt", "client.crt", "client.key"] {
        let content = data.get(name).with_context(|| format!("the extender's Secret has no {name}"))?;
        fs::write(folder.join(name), &content.0).with_context(|| format!("failed to write {name}"))?;
    }
    Ok(())
}
