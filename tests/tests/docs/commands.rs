//! Commands.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs::Permissions;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::manifests;
use anyhow::{Context as _, ensure};
use k8s_openapi::api::core::v1::Pod;
use kerf_nvml_mock::Model;
use kerf_tests::binaries;
use kerf_tests::cluster::{BareCluster, BareOptions, NAMESPACE, NodeSpec, root};
use kerf_tests::docs::{Page, Role, pages};
use kube::Api;
use kube::api::ListParams;

/// The pages whose commands run, in the order in which somebody reads them: the first installs kerf.
const IN_ORDER: [&str; 8] = [
    "docs/start.md",
    "README.md",
    "docs/install.md",
    "docs/policies.md",
    "docs/static-nodes.md",
    "docs/moving/from-nos.md",
    "docs/moving/from-time-slicing.md",
    "docs/troubleshooting.md",
];

/// Stands for cargo, by which what the commands make was made for this test already. Images have unoptimised programs.
const CARGO: &str = r#"#!/bin/bash
set -euo pipefail
case "$*" in
"install --locked --path cli") mkdir -p ~/.cargo/bin && ln -sf "$KERF" ~/.cargo/bin/kerf ;;
"xtask images "*) shift 2 && exec "$KERF_IMAGES" "$@" --profile=dev --output=target/images ;;
*) echo "this stand-in for cargo does not know: $*" >&2 && exit 1 ;;
esac
"#;

/// Stands for skopeo and the registry: looks whether the archive is one, and writes down where it goes.
const SKOPEO: &str = r#"#!/bin/bash
set -euo pipefail
[[ $# = 3 && $1 = copy && $2 = oci-archive:* && $3 = docker://* ]]
tar --list --file "${2#oci-archive:}" index.json > /dev/null
echo "${3#docker://}" >> ~/pushed
"#;

/// Made by GPU Operator.
const RUNTIME_CLASS: &str = r#"{"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "nvidia"}, "handler": "nvidia"}"#;

/// What a reader has in the `PATH` before the first page.
fn programs(folder: &Path) -> anyhow::Result<()> {
    std::fs::create_dir(folder)?;
    for (name, path) in [("kubectl", binaries::tool("kubectl")?), ("helm", binaries::admin_tool("helm")?)] {
        symlink(path, folder.join(name)).with_context(|| format!("failed to link {name}"))?;
    }
    for (name, script) in [("cargo", CARGO), ("skopeo", SKOPEO)] {
        let path = folder.join(name);
        std::fs::write(&path, script)?;
        std::fs::set_permissions(&path, Permissions::from_mode(0o755))?;
    }
    Ok(())
}

/// A checkout in which commands may make a target folder.
fn checkout(folder: &Path) -> anyhow::Result<()> {
    std::fs::create_dir(folder)?;
    for entry in std::fs::read_dir(root())? {
        let path = entry?.path();
        let name = path.file_name().context("an entry has a name")?;
        if name != "target" {
            symlink(&path, folder.join(name))?;
        }
    }
    Ok(())
}

/// The blocks of a page as one script, so that what one sets the next one has. Before each command it says where it stands.
fn script(page: &Page, role: Role) -> String {
    let mut script = "set -euo pipefail\n".to_owned();
    for block in page.blocks.iter().filter(|block| block.role == role) {
        let place = format!("{}:{}", page.path.display(), block.line);
        writeln!(script, "echo '== {place}' >&2\n{}", block.text).expect("a String takes all");
    }
    script
}

struct Reader {
    folder: PathBuf,
    kubeconfig: PathBuf,
}

impl Reader {
    /// Runs the commands as somebody at the root of a checkout does.
    async fn run(&self, script: String) -> anyhow::Result<()> {
        let folder = self.folder.display();
        let path = format!("{folder}/.cargo/bin:{folder}/bin:/usr/bin:/bin");
        let mut bash = Command::new("/bin/bash");
        bash.current_dir(self.folder.join("kerf")).env_clear();
        bash.env("PATH", path).env("KUBECONFIG", &self.kubeconfig);
        bash.env("KERF", binaries::ours("kerf")?).env("KERF_IMAGES", binaries::ours("kerf-images")?);
        bash.env("HOME", &self.folder).arg("-c").arg(script);
        let output = tokio::task::spawn_blocking(move || bash.output()).await??;
        let said =
            String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{}:\n{said}", output.status);
        Ok(())
    }
}

/// kerf's own pods name images that a node could pull, had the commands been typed on a real cluster.
async fn pods_have_images_that_were_pushed(cluster: &BareCluster, folder: &Path) -> anyhow::Result<()> {
    let pushed = std::fs::read_to_string(folder.join("pushed"))?;
    let pods =
        Api::<Pod>::namespaced(cluster.plane().client(), NAMESPACE).list(&ListParams::default()).await?;
    let containers = pods.items.into_iter().filter_map(|pod| pod.spec).flat_map(|spec| spec.containers);
    let images: BTreeSet<String> = containers.filter_map(|container| container.image).collect();
    let own: Vec<&String> = images.iter().filter(|image| image.contains("/kerf-")).collect();
    ensure!(own.len() >= 3, "kerf's own images are not among {images:?}");
    for image in own {
        ensure!(pushed.lines().any(|line| line == image), "{image} was not pushed:\n{pushed}");
    }
    Ok(())
}

#[test]
fn every_page_with_commands_is_run() -> anyhow::Result<()> {
    let runs =
        |page: &Page| page.blocks.iter().any(|block| matches!(block.role, Role::Run | Role::RunAtTheEnd));
    let pages = pages(&root())?;
    let with: BTreeSet<_> =
        pages.iter().filter(|page| runs(page)).map(|page| page.path.display().to_string()).collect();
    assert_eq!(with, IN_ORDER.map(str::to_owned).into());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_commands_of_the_documentation_run_and_its_manifests_are_taken() -> anyhow::Result<()> {
    let h100 = NodeSpec::new("h100", Model::H100, 1).with_gpu_operator_labels().with_mig_manager_labels();
    let nodes = vec![NodeSpec::without_gpus("cpu"), h100.with_gpu_taint()];
    let cluster = BareCluster::start(BareOptions::new(nodes)).await?;
    let folder = cluster.plane().dir().join("reader");
    std::fs::create_dir(&folder)?;
    cluster.plane().apply(RUNTIME_CLASS).await?;
    programs(&folder.join("bin"))?;
    checkout(&folder.join("kerf"))?;
    let reader = Reader { folder, kubeconfig: cluster.plane().kubeconfig().to_owned() };
    let pages = pages(&root())?;
    for role in [Role::Run, Role::RunAtTheEnd] {
        for name in IN_ORDER {
            let page = pages.iter().find(|page| page.path == Path::new(name)).context(name)?;
            reader.run(script(page, role)).await?;
            if role == Role::Run && name == IN_ORDER[0] {
                pods_have_images_that_were_pushed(&cluster, &reader.folder).await?;
            }
        }
        if role == Role::Run {
            manifests::are_taken(cluster.plane()).await?;
        }
    }
    cluster.stop().await
}

/// What cannot run here is at least spelled as its program wants it, and names files that are there.
#[test]
fn commands_for_elsewhere_have_flags_and_files_that_exist() -> anyhow::Result<()> {
    let (kerf, mut wrong) = (binaries::ours("kerf")?, Vec::new());
    for page in pages(&root())? {
        for block in page.blocks.iter().filter(|block| matches!(block.role, Role::Elsewhere(_))) {
            for command in block.commands() {
                let place = format!("{}:{}: {command}", page.path.display(), block.line);
                let shown = |word: &str| word.starts_with("deploy/") || word.starts_with("policies/");
                let lost = command.split_whitespace().find(|word| shown(word) && !root().join(word).exists());
                let said = command.strip_prefix("kubectl ").unwrap_or(&command).strip_prefix("kerf ");
                let unknown = said.is_some_and(|words| {
                    let words = words.split(" -- ").next().unwrap_or_default().split_whitespace();
                    let help = Command::new(&kerf).args(words).arg("--help").output();
                    !help.is_ok_and(|output| output.status.success())
                });
                if unknown || lost.is_some() {
                    wrong.push(place);
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}
