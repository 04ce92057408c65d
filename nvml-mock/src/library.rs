//! Finds the cdylib that Cargo built beside a program of the same workspace.

use std::path::{Path, PathBuf};

const FILE_NAME: &str = "libkerf_nvml_mock.so";

/// The mock's shared library in the target folder of `program`: its own folder (a test or a binary), the one above
/// (`deps/`), or `deps/` below. `None` if it was not built there.
#[must_use]
pub fn library_near(program: &Path) -> Option<PathBuf> {
    let folder = program.parent()?;
    let places = [Some(folder.to_owned()), Some(folder.join("deps")), folder.parent().map(Path::to_owned)];
    places.into_iter().flatten().map(|place| place.join(FILE_NAME)).find(|path| path.is_file())
}

/// The result of [`library_near`] for the running program.
#[must_use]
pub fn library_path() -> Option<PathBuf> {
    library_near(&std::env::current_exe().ok()?)
}
