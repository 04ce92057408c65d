//! A reader of a page, who types the commands that it shows.

use std::fmt::Write as _;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, ensure};
use kerf_tests::binaries;
use kerf_tests::cluster::root;
use kerf_tests::control_plane::ControlPlane;
use kerf_tests::docs::{Page, Role};

/// The programs that a reader has in the `PATH` before the first page.
fn programs(folder: &Path) -> anyhow::Result<()> {
    std::fs::create_dir(folder)?;
    for (name, path) in [("kubectl", binaries::tool("kubectl")?), ("helm", binaries::admin_tool("helm")?)] {
        symlink(path, folder.join(name)).with_context(|| format!("failed to link {name}"))?;
    }
    let stand_ins = root().join("tests/tests/docs/programs");
    for name in ["cargo", "skopeo"] {
        symlink(stand_ins.join(name), folder.join(name)).with_context(|| format!("failed to link {name}"))?;
    }
    Ok(())
}

/// A checkout in which commands may create a target folder.
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

/// The blocks of a page as one script, so that later blocks see the variables of earlier ones. Before each command it
/// prints the command's place in the page.
pub fn script(page: &Page, role: Role) -> String {
    let mut script = "set -euo pipefail\n".to_owned();
    for block in page.blocks.iter().filter(|block| block.role == role) {
        let place = format!("{}:{}", page.path.display(), block.line);
        writeln!(script, "echo '== {place}' >&2\n{}", block.text).expect("a String takes all");
    }
    script
}

/// A reader with the rights of a cluster admin.
pub struct Reader {
    folder: PathBuf,
    kubeconfig: PathBuf,
}

impl Reader {
    /// A reader who is an admin of this cluster.
    pub fn new(plane: &ControlPlane) -> anyhow::Result<Self> {
        let folder = plane.dir().join("reader");
        std::fs::create_dir(&folder)?;
        programs(&folder.join("bin"))?;
        checkout(&folder.join("kerf"))?;
        Ok(Self { folder, kubeconfig: plane.kubeconfig().to_owned() })
    }

    /// A reader who has already installed the command line.
    pub fn with_kerf(plane: &ControlPlane) -> anyhow::Result<Self> {
        let reader = Self::new(plane)?;
        for name in ["kerf", "kubectl-kerf"] {
            let link = reader.folder.join("bin").join(name);
            symlink(binaries::ours("kerf")?, link).with_context(|| format!("failed to link {name}"))?;
        }
        Ok(reader)
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Runs the commands at the root of a checkout.
    pub async fn run(&self, script: String) -> anyhow::Result<()> {
        let folder = self.folder.display();
        let path = format!("{folder}/.cargo/bin:{folder}/bin:/usr/bin:/bin");
        let mut bash = Command::new("/bin/bash");
        bash.current_dir(self.folder.join("kerf")).env_clear();
        bash.env("PATH", path).env("KUBECONFIG", &self.kubeconfig);
        bash.env("KERF", binaries::ours("kerf")?).env("KERF_IMAGES", binaries::ours("kerf-images")?);
        for name in ["HOME", "PATH"] {
            bash.env(format!("BUILDER_{name}"), std::env::var_os(name).context("the environment is empty")?);
        }
        bash.env("HOME", &self.folder).arg("-c").arg(script);
        let output = tokio::task::spawn_blocking(move || bash.output()).await??;
        let said =
            String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{}:\n{said}", output.status);
        Ok(())
    }
}
