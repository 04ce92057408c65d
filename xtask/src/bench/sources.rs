//! A copy of the sources, in which bugs are planted to test whether they are found.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, ensure};

use crate::workspace::Workspace;

/// Updates the copy of the sources. It has a target folder of its own, so that later runs use its builds again.
pub fn copy(workspace: &Workspace, copy: &Path) -> anyhow::Result<()> {
    let listed = Command::new("git").current_dir(workspace.root()).args(["ls-files", "-z"]).output()?;
    ensure!(listed.status.success(), "git ls-files failed");
    for file in String::from_utf8(listed.stdout)?.split_terminator('\0') {
        let (from, to) = (workspace.root().join(file), copy.join(file));
        // A missing file is skipped, because git also lists files that are deleted but not committed.
        let Ok(content) = fs::read(&from) else { continue };
        // An unchanged file keeps its time, so that cargo does not rebuild its crate.
        if fs::read(&to).ok().as_ref() != Some(&content) {
            fs::create_dir_all(to.parent().context("a file lies in a folder")?)?;
            fs::write(&to, content).with_context(|| format!("failed to write {}", to.display()))?;
        }
    }
    Ok(())
}
