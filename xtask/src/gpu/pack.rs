//! Packs the bundles. Unpacked into one folder they have the layout of cargo's target folder, so that programs find
//! each other as they do here.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::Context as _;

use super::{Bundle, bundle, distribution, image};
use crate::workspace::Workspace;
use crate::{images, shipped, tools};

const CONTROL_PLANE: [&str; 5] =
    ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl"];

const NODE: [&str; 7] =
    ["containerd", "containerd-shim-runc-v2", "ctr", "host-local", "kubelet", "ptp", "runc"];

const OURS: [&str; 7] = [
    "kerf",
    "kerf-cdi-hook",
    "kerf-extender",
    "kerf-node-agent",
    "kerf-webhook",
    "die_with_parent",
    "single_node",
];

const FOLDERS: [&str; 2] = ["deploy", "policies"];

/// The name of the only set of Go programs in a bundle.
const SET: &str = "bundle";

pub fn pack(workspace: &Workspace, only: Option<Bundle>, python: Option<&Path>) -> anyhow::Result<()> {
    if only == Some(Bundle::Distribution) {
        let python = python.context("name the Python of the image: --python PREFIX")?;
        return pack_distribution(workspace, python);
    }
    let [control_plane, node, admin] = tools::of_a_node(workspace)?;
    let wants = |bundle| only.is_none_or(|only| only == bundle);
    let stage = workspace.gpu().join("stage");
    if stage.exists() {
        fs::remove_dir_all(&stage).with_context(|| format!("failed to remove {}", stage.display()))?;
    }
    if wants(Bundle::ControlPlane) {
        pack_control_plane(workspace, &control_plane, &stage.join("control-plane"))?;
    }
    if wants(Bundle::Node) {
        pack_node(workspace, &shipped::folder(workspace)?, &node, &stage)?;
    }
    if wants(Bundle::Install) {
        pack_install(workspace, &admin, &stage.join("install"))?;
    }
    Ok(())
}

/// The images have the programs of the node's bundle, built and linked as they ship.
fn pack_install(workspace: &Workspace, tools: &Path, folder: &Path) -> anyhow::Result<()> {
    images::run(workspace, &[])?;
    stage_tools(tools, &["helm"], &folder.join("admin-tools"))?;
    let archives = folder.join("images");
    fs::create_dir_all(&archives).context("failed to create the images' folder")?;
    for entry in fs::read_dir(workspace.images()).context("failed to list the images")? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "tar") {
            let name = path.file_name().context("a file has a name")?;
            fs::hard_link(&path, archives.join(name))
                .with_context(|| format!("failed to link {}", path.display()))?;
        }
    }
    report(workspace, "install")
}

fn pack_control_plane(workspace: &Workspace, tools: &Path, folder: &Path) -> anyhow::Result<()> {
    stage_tools(tools, &CONTROL_PLANE, &folder.join("k8s-tools"))?;
    for name in FOLDERS {
        copy_folder(&workspace.root().join(name), folder)?;
    }
    report(workspace, "control-plane")
}

fn pack_distribution(workspace: &Workspace, python: &Path) -> anyhow::Result<()> {
    let folder = workspace.gpu().join("stage/distribution/distribution");
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| format!("failed to remove {}", folder.display()))?;
    }
    fs::create_dir_all(&folder).with_context(|| format!("failed to create {}", folder.display()))?;
    distribution::make(python, &folder.join("root"))?;
    report(workspace, "distribution")
}

fn pack_node(workspace: &Workspace, ours: &Path, tools: &Path, stage: &Path) -> anyhow::Result<()> {
    let folder = stage.join("node");
    stage_tools(tools, &NODE, &folder.join("node-tools"))?;
    let image = tools.join("image.tar");
    image::write(&tools.join("pause"), &stage.join("image"), &image)?;
    fs::copy(&image, folder.join("node-tools").join(SET).join("image.tar"))
        .context("failed to copy the image")?;
    for name in OURS {
        strip(&ours.join(name), &folder.join("bin"))?;
    }
    report(workspace, "node")
}

fn report(workspace: &Workspace, name: &str) -> anyhow::Result<()> {
    let path = workspace.gpu().join(format!("{name}.tar.xz"));
    eprintln!("gpu: packing {}, which takes some minutes", path.display());
    let size = bundle::pack(&workspace.gpu().join("stage").join(name), &path)?;
    println!("{}: {:.1} MiB", path.display(), bundle::mebibytes(size));
    Ok(())
}

fn stage_tools(set: &Path, names: &[&str], store: &Path) -> anyhow::Result<()> {
    let folder = store.join(SET);
    fs::create_dir_all(&folder).with_context(|| format!("failed to create {}", folder.display()))?;
    for name in names {
        // Go's linker has removed the symbols already, so a link is enough.
        fs::hard_link(set.join(name), folder.join(name)).with_context(|| format!("failed to link {name}"))?;
    }
    fs::write(store.join("current"), format!("{SET}\n")).context("failed to name the set")
}

fn copy_folder(folder: &Path, into: &Path) -> anyhow::Result<()> {
    bundle::run(Command::new("cp").arg("--recursive").arg(folder).arg(into))
}

/// Copies a program into a folder, without symbols.
fn strip(program: &Path, into: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(into).with_context(|| format!("failed to create {}", into.display()))?;
    let name = program.file_name().context("a program has a name")?;
    bundle::run(Command::new("strip").arg("-o").arg(into.join(name)).arg(program))
}
