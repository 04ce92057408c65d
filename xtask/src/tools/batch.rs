//! Go programs that one `go build` makes: those of one module with the same kind of linking. They are built together,
//! because they share loaded packages, and one is linked while another is compiled.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context as _;

use super::catalog::{C, Program};
use super::go;
use crate::workspace::Workspace;

#[derive(Debug)]
pub struct Batch {
    module: &'static str,
    c: C,
    programs: Vec<&'static Program>,
    folder: PathBuf,
}

pub fn group(programs: impl Iterator<Item = &'static Program>, folder: &Path) -> Vec<Batch> {
    let mut batches: Vec<Batch> = Vec::new();
    for program in programs {
        match batches.iter_mut().find(|batch| batch.module == program.module && batch.c == program.c) {
            Some(batch) => batch.programs.push(program),
            None => batches.push(Batch {
                module: program.module,
                c: program.c,
                programs: vec![program],
                folder: folder.to_owned(),
            }),
        }
    }
    batches
}

impl Batch {
    pub fn module(&self) -> &'static str {
        self.module
    }

    pub fn c(&self) -> C {
        self.c
    }

    pub fn packages(&self) -> impl Iterator<Item = &'static str> {
        self.programs.iter().map(|program| program.package)
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Builds the programs in a separate folder and moves them into place, so that an interrupted build leaves no
    /// partial program.
    pub fn build(&self, workspace: &Workspace, compiled: impl FnMut()) -> anyhow::Result<()> {
        let unfinished = self.folder.join(".unfinished");
        fs::create_dir_all(&unfinished)
            .with_context(|| format!("failed to create {}", unfinished.display()))?;
        go::build(workspace, self, &unfinished, compiled)?;
        for program in &self.programs {
            // Go names a program by its package, so the rename also gives it its own name.
            fs::rename(unfinished.join(go_name(program)), self.folder.join(program.name))
                .with_context(|| format!("failed to move the built {} into place", program.name))?;
        }
        Ok(())
    }
}

/// Go's name for a built program: the last part of its package's path that is no major version. A module's own package
/// has the module's name.
fn go_name(program: &Program) -> &'static str {
    let is_version = |part: &str| part.strip_prefix('v').is_some_and(|rest| rest.parse::<u32>().is_ok());
    match program.package {
        "." => program.module,
        package => package.rsplit('/').find(|part| !is_version(part)).unwrap_or(package),
    }
}

#[cfg(test)]
mod tests {
    use super::super::catalog::{ADMIN, CONTROL_PLANE, NODE, Set};
    use super::*;

    #[test]
    fn programs_of_a_module_are_built_together() {
        let batches = |set: &Set| -> Vec<(&str, usize)> {
            let batches = group(set.programs.iter(), Path::new("/t"));
            batches.iter().map(|batch| (batch.module, batch.programs.len())).collect()
        };
        assert_eq!(batches(&CONTROL_PLANE), [("kubernetes", 5)]);
        assert_eq!(
            batches(&NODE),
            [("kubelet", 1), ("containerd", 3), ("runc", 1), ("pause", 1), ("cni", 2)]
        );
    }

    #[test]
    fn go_names_programs_by_their_packages() {
        let names = |set: &Set| set.programs.iter().map(go_name).collect::<Vec<_>>();
        assert_eq!(names(&ADMIN), ["kustomize", "helm"]);
        assert_eq!(names(&CONTROL_PLANE)[..2], ["server", "kube-apiserver"]);
        assert_eq!(names(&NODE)[3..6], ["ctr", "runc", "pause"]);
    }
}
