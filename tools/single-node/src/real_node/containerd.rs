//! containerd with runc, and the one image that a machine without a network needs.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use tokio::process::Command;

use super::{Places, RuntimeHandler, network};
use kerf_tests::binaries;
use kerf_tests::cluster::wait;
use kerf_tests::kubelet_rules::IMAGE;
use kerf_tests::process::{Child, Program};

/// The images and handlers that a node needs beside the default ones.
#[derive(Debug, Default)]
pub struct Setup<'a> {
    /// Images beside that of tests' pods.
    pub images: &'a [PathBuf],
    pub handlers: &'a [RuntimeHandler],
}

/// Starts containerd and imports the images.
pub async fn start(places: &Places, setup: &Setup<'_>) -> anyhow::Result<Child> {
    network::write(places)?;
    let path = places.state().join("containerd.toml");
    let runc = binaries::node_tool("runc")?;
    // The programs of CNI are in the same folder.
    let mut text = configuration(places, runc.parent().unwrap_or(Path::new("/")));
    text += &runtime("runc", &runc, "");
    for handler in setup.handlers {
        let spec = handler.write(places).await?;
        text += &runtime(handler.name, &runc, &format!("base_runtime_spec = \"{}\"", spec.display()));
    }
    fs::write(&path, text).context("failed to write containerd's configuration")?;
    let program = binaries::node_tool("containerd")?;
    // containerd finds its shim through PATH, so its own folder must be in it.
    let shims = search_path(program.parent())?;
    let child = Program::new("containerd", program, places.state())
        .arg("--config")
        .arg(&path)
        .env("PATH", shims)
        .spawn()?;
    let answers = async || Ok(ctr(places, &["version"]).await.is_ok());
    wait(Duration::from_secs(30), "containerd to answer", answers).await.with_context(|| child.log_tail())?;
    let image = binaries::node_tool("image.tar")?;
    for image in setup.images.iter().chain([&image]) {
        ctr(places, &["--namespace=k8s.io", "images", "import", &image.display().to_string()]).await?;
    }
    Ok(child)
}

/// The socket that the kubelet calls.
#[must_use]
pub fn socket(places: &Places) -> String {
    places.run().join("containerd.sock").display().to_string()
}

fn configuration(places: &Places, plugins: &Path) -> String {
    let (state, run) = (places.state().display(), places.run().display());
    format!(
        r#"version = 3
root = "{state}/containerd"
state = "{run}/containerd"

[grpc]
  address = "{socket}"

[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "{IMAGE}"

[plugins."io.containerd.cri.v1.runtime"]
  cdi_spec_dirs = ["{cdi}"]
  disable_apparmor = true
  # Machines that are lent may grant no CAP_SYS_RESOURCE, which lowering a score takes.
  restrict_oom_score_adj = true

[plugins."io.containerd.cri.v1.runtime".cni]
  conf_dir = "{state}/cni"
  bin_dirs = ["{plugins}"]
  use_internal_loopback = true
"#,
        socket = socket(places),
        cdi = places.cdi().display(),
        plugins = plugins.display(),
    )
}

/// A runtime of containerd that uses runc, with one more setting.
fn runtime(name: &str, runc: &Path, setting: &str) -> String {
    let table = format!(r#"plugins."io.containerd.cri.v1.runtime".containerd.runtimes.{name}"#);
    format!(
        r#"
[{table}]
  runtime_type = "io.containerd.runc.v2"
  {setting}

[{table}.options]
  BinaryName = "{runc}"
"#,
        runc = runc.display(),
    )
}

/// The inherited PATH with this folder before it.
pub fn search_path(folder: Option<&Path>) -> anyhow::Result<OsString> {
    let inherited = env::var_os("PATH").unwrap_or_default();
    let folders = folder.map(Path::to_owned).into_iter().chain(env::split_paths(&inherited));
    env::join_paths(folders).context("failed to make a search path")
}

/// The output of containerd's own client.
pub(super) async fn ctr(places: &Places, arguments: &[&str]) -> anyhow::Result<String> {
    let mut command = Command::new(binaries::node_tool("ctr")?);
    command.arg("--address").arg(socket(places)).args(arguments).kill_on_drop(true);
    let output = command.output().await.context("failed to start ctr")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "ctr {} failed: {}", arguments.join(" "), said.trim());
    String::from_utf8(output.stdout).context("ctr writes no text")
}
