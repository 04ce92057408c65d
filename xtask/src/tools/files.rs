//! Files of Go modules by which tests judge manifests: `OpenAPI` files of several versions of Kubernetes, and CRDs of
//! other programs. `<target>/<store>/<version>/` has the files of one version.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail, ensure};

use super::catalog::{FILES, ModuleFiles};
use super::redact::redact;
use crate::workspace::Workspace;

pub fn ensure(workspace: &Workspace) -> anyhow::Result<()> {
    for files in &FILES {
        let store = workspace.tools(files.store);
        let folder = store.join(files.version);
        fs::create_dir_all(&store).with_context(|| format!("failed to create {}", store.display()))?;
        let _lock = super::lock(&store)?;
        if folder.is_dir() {
            continue;
        }
        let unfinished = store.join(format!(".{}.unfinished", files.version));
        copy(&download(files, &store)?.join(files.folder), &unfinished, files.endings)?;
        fs::rename(&unfinished, &folder).context("failed to move a module's files into place")?;
        eprintln!("tools: files of {} {} in {}", files.module, files.version, folder.display());
    }
    Ok(())
}

/// The folder in which Go keeps the module. A module with another checksum than the pinned one is an error.
fn download(files: &ModuleFiles, folder: &Path) -> anyhow::Result<PathBuf> {
    let module = format!("{}@{}", files.module, files.version);
    let output = Command::new("go")
        .args(["mod", "download", "-json", &module])
        .current_dir(folder)
        .env("GOWORK", "off")
        .env("GO111MODULE", "on")
        .stdin(Stdio::null())
        .output()
        .context("failed to start `go mod download`")?;
    let said = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        bail!(
            "failed to download {module}: {}",
            redact(&format!("{said}{}", String::from_utf8_lossy(&output.stderr)))
        );
    }
    let sum = field(&said, "Sum").unwrap_or_default();
    ensure!(sum == files.sum, "{module} has the checksum {sum:?}, and {} was pinned", files.sum);
    field(&said, "Dir").map(PathBuf::from).context("`go mod download` does not say where the module is")
}

fn field(json: &str, name: &str) -> Option<String> {
    let start = format!("\"{name}\": \"");
    let line = json.lines().find_map(|line| line.trim().strip_prefix(&start))?;
    Some(line.trim_end_matches(',').trim_end_matches('"').to_owned())
}

fn copy(from: &Path, to: &Path, endings: &[&str]) -> anyhow::Result<()> {
    if to.exists() {
        fs::remove_dir_all(to).with_context(|| format!("failed to remove {}", to.display()))?;
    }
    fs::create_dir(to).with_context(|| format!("failed to create {}", to.display()))?;
    for entry in fs::read_dir(from).with_context(|| format!("failed to read {}", from.display()))? {
        let path = entry?.path();
        let Some(name) = path.file_name() else { continue };
        if !endings.iter().any(|ending| name.to_string_lossy().ends_with(ending)) {
            continue;
        }
        let content = fs::read(&path).with_context(|| format!("failed to read {}", path.display()))?;
        // The files are written and not copied, because Go's cache has them read-only.
        fs::write(to.join(name), content).context("failed to write a module's file")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gos_answer_has_a_modules_folder_and_checksum() {
        let json = "{\n\t\"Path\": \"p\",\n\t\"Dir\": \"/go/p\",\n\t\"Sum\": \"h1:a=\"\n}";
        assert_eq!(field(json, "Dir").as_deref(), Some("/go/p"));
        assert_eq!(field(json, "Sum").as_deref(), Some("h1:a="));
        assert_eq!(field(json, "Zip"), None);
    }
}
