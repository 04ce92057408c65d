//! Commands.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::manifests;
use anyhow::{Context as _, ensure};
use kerf_nvml_mock::Model;
use kerf_tests::binaries;
use kerf_tests::cluster::{BareCluster, BareOptions, NodeSpec, root};
use kerf_tests::docs::{Page, Role, pages};

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

/// What a reader has in the `PATH`.
fn programs(folder: &Path) -> anyhow::Result<()> {
    std::fs::create_dir(folder)?;
    let kerf = binaries::ours("kerf")?;
    let found = [
        ("kubectl", binaries::tool("kubectl")?),
        ("helm", binaries::admin_tool("helm")?),
        ("kerf", kerf.clone()),
        ("kubectl-kerf", kerf),
    ];
    for (name, path) in found {
        symlink(path, folder.join(name)).with_context(|| format!("failed to link {name}"))?;
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
        let path = format!("{}:/usr/bin:/bin", self.folder.join("bin").display());
        let mut bash = Command::new("/bin/bash");
        bash.current_dir(root()).env_clear().env("PATH", path).env("KUBECONFIG", &self.kubeconfig);
        bash.env("HOME", &self.folder).arg("-c").arg(script);
        let output = tokio::task::spawn_blocking(move || bash.output()).await??;
        let said =
            String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{}:\n{said}", output.status);
        Ok(())
    }
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
    programs(&folder.join("bin"))?;
    let reader = Reader { folder, kubeconfig: cluster.plane().kubeconfig().to_owned() };
    let pages = pages(&root())?;
    for role in [Role::Run, Role::RunAtTheEnd] {
        for name in IN_ORDER {
            let page = pages.iter().find(|page| page.path == Path::new(name)).context(name)?;
            reader.run(script(page, role)).await?;
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
