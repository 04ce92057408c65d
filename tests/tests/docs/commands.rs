//! Runs the commands of the pages on a cluster, and checks the flags of those that cannot run.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use super::manifests;
use super::reader::{Reader, script};
use anyhow::{Context as _, ensure};
use k8s_openapi::api::core::v1::Pod;
use kerf_nvml_mock::Model;
use kerf_tests::binaries;
use kerf_tests::cluster::{BareCluster, BareOptions, NAMESPACE, NodeSpec, root};
use kerf_tests::docs::{Block, Page, Role, pages};
use kube::Api;
use kube::api::ListParams;

/// The pages whose commands run, in reading order: the first installs kerf.
const IN_ORDER: [&str; 14] = [
    "docs/start.md",
    "README.md",
    "docs/install.md",
    "docs/requests.md",
    "docs/policies.md",
    "docs/node-agent.md",
    "docs/static-nodes.md",
    "docs/moving/from-nos.md",
    "docs/moving/from-hami.md",
    "docs/moving/from-kai.md",
    "docs/moving/from-time-slicing.md",
    "docs/troubleshooting.md",
    "docs/runbooks.md",
    "docs/sharing.md",
];

/// The `RuntimeClass` that GPU Operator creates.
const RUNTIME_CLASS: &str = r#"{"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "nvidia"}, "handler": "nvidia"}"#;

/// kerf's own pods must name images that a node could pull if the commands were typed on a real cluster.
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
    cluster.plane().apply(RUNTIME_CLASS).await?;
    // deploy/values/gpu-operator.yaml sets `driverRoot` to this path, so it must exist on the node.
    std::fs::create_dir_all(cluster.node("h100")?.kubelet().locate(Path::new("/run/nvidia/driver")))?;
    let reader = Reader::new(cluster.plane())?;
    let pages = pages(&root())?;
    for role in [Role::Run, Role::RunAtTheEnd] {
        for name in IN_ORDER {
            let page = pages.iter().find(|page| page.path == Path::new(name)).context(name)?;
            reader.run(script(page, role)).await?;
            if role == Role::Run && name == IN_ORDER[0] {
                pods_have_images_that_were_pushed(&cluster, reader.folder()).await?;
            }
        }
        if role == Role::Run {
            manifests::are_taken(cluster.plane()).await?;
        }
    }
    cluster.stop().await
}

/// Commands that cannot run here have at least valid flags, and name existing files.
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

/// The module `untested` writes the page with those that do not run.
#[test]
fn many_commands_run() -> anyhow::Result<()> {
    let blocks = pages(&root())?.into_iter().flat_map(|page| page.blocks);
    let runs = |block: &Block| matches!(block.role, Role::Run | Role::RunAtTheEnd | Role::RunOnApiServer);
    let ran: usize = blocks.filter(runs).map(|block| block.commands().len()).sum();
    assert!(ran > 40, "only {ran} commands run");
    Ok(())
}
