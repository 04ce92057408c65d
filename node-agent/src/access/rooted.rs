//! Resolves paths inside another root folder. Links are followed as a process with that root would follow them.

use std::ffi::OsString;
use std::fs;
use std::path::{Component, Path, PathBuf};

/// How many links are followed before a path counts as a loop, as in Linux (`path_resolution(7)`).
const LINKS: usize = 40;

/// Turns `path`, absolute inside `root`, into its path outside.
pub(super) fn outside(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

/// Returns the real path, inside `root`, to which `path` leads; `None` if it does not exist.
pub(super) fn resolve(root: &Path, path: &Path) -> Option<PathBuf> {
    let mut real = PathBuf::from("/");
    let mut ahead = parts(path);
    let mut links = 0;
    while let Some(part) = ahead.pop() {
        if part == ".." {
            real.pop();
            continue;
        }
        let next = real.join(part);
        let seen = outside(root, &next);
        if !fs::symlink_metadata(&seen).ok()?.is_symlink() {
            real = next;
            continue;
        }
        links += 1;
        let target = fs::read_link(&seen).ok().filter(|_| links <= LINKS)?;
        if target.is_absolute() {
            real = PathBuf::from("/");
        }
        ahead.extend(parts(&target));
    }
    Some(real)
}

/// The names on the path in reverse order, so that the first can be popped.
fn parts(path: &Path) -> Vec<OsString> {
    let parts = path.components().rev().filter(|c| matches!(c, Component::Normal(_) | Component::ParentDir));
    parts.map(|part| part.as_os_str().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn links_stay_inside_the_root() {
        let root = tempfile::tempdir().unwrap();
        let (lib, etc) = (root.path().join("usr/lib"), root.path().join("etc"));
        fs::create_dir_all(&lib).unwrap();
        fs::create_dir(&etc).unwrap();
        fs::write(lib.join("real"), "").unwrap();
        symlink("usr/lib", root.path().join("lib")).unwrap();
        symlink("/lib/real", etc.join("choice")).unwrap();
        symlink("../../../../etc/choice", lib.join("link")).unwrap();
        symlink("circle", lib.join("circle")).unwrap();
        symlink("gone", lib.join("dangling")).unwrap();
        let cases = [
            ("/lib/link", Some("/usr/lib/real")),
            ("/etc/choice", Some("/usr/lib/real")),
            ("/usr/lib/circle", None),
            ("/lib/dangling", None),
        ];
        for (path, real) in cases {
            assert_eq!(resolve(root.path(), Path::new(path)), real.map(PathBuf::from), "{path}");
        }
    }
}
