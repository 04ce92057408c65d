//! A copy of the sources, in which bugs are planted to test whether they are found.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, ensure};

use crate::workspace::Workspace;

/// Updates the copy of the sources. It has a target folder of its own, so that later runs use its builds again.
pub fn copy(workspace: &Workspace, copy: &Path) -> anyhow::Result<()> {
    let listed = Command::new("git").current_dir(workspace.root()).args(["ls-files", "-z"]).output()?;
    ensure!(listed.status.success(), "git ls-files failed");
    let listed = String::from_utf8(listed.stdout)?;
    let mut files = BTreeSet::new();
    for file in listed.split_terminator('\0').map(Path::new) {
        let (from, to) = (workspace.root().join(file), copy.join(file));
        // A missing file is skipped, because git also lists files that are deleted but not committed.
        let Ok(content) = fs::read(&from) else { continue };
        files.insert(file);
        // An unchanged file keeps its time, so that cargo does not rebuild its crate.
        if fs::read(&to).ok().as_ref() != Some(&content) {
            fs::create_dir_all(to.parent().context("a file lies in a folder")?)?;
            fs::write(&to, content).with_context(|| format!("failed to write {}", to.display()))?;
        }
        // Tests run scripts.
        fs::set_permissions(&to, fs::metadata(&from)?.permissions())?;
    }
    remove_others(copy, Path::new(""), &files)
}

/// Removes files that the sources no longer have: rustc rejects a module that has two files.
fn remove_others(copy: &Path, folder: &Path, files: &BTreeSet<&Path>) -> anyhow::Result<()> {
    for entry in fs::read_dir(copy.join(folder))? {
        let entry = entry?;
        let path = folder.join(entry.file_name());
        if path == Path::new("target") {
            continue;
        }
        if entry.file_type()?.is_dir() {
            remove_others(copy, &path, files)?;
        } else if !files.contains(path.as_path()) {
            fs::remove_file(copy.join(&path))
                .with_context(|| format!("failed to remove {}", path.display()))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_was_moved_is_gone_and_builds_stay() {
        let copy = tempfile::tempdir().unwrap();
        for file in ["a/b.rs", "a/b/mod.rs", "target/debug/a"] {
            fs::create_dir_all(copy.path().join(file).parent().unwrap()).unwrap();
            fs::write(copy.path().join(file), "").unwrap();
        }
        remove_others(copy.path(), Path::new(""), &BTreeSet::from([Path::new("a/b/mod.rs")])).unwrap();
        assert!(copy.path().join("a/b/mod.rs").exists() && copy.path().join("target/debug/a").exists());
        assert!(!copy.path().join("a/b.rs").exists());
    }
}
