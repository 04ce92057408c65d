//! The policy files of a path: one file, or those of a folder.

use std::io;
use std::path::{Path, PathBuf};

/// How often a folder is read if the kubelet renews its `ConfigMap` volume meanwhile. The number is limited so that a
/// reading ends.
const TRIES: usize = 3;

/// A file with its text, or with the error of reading it.
pub(super) type Reading = (PathBuf, io::Result<String>);

/// Reads the file, or the folder's policy files in the order of their names.
///
/// A file that vanishes between listing and opening does not count, because somebody was removing it.
pub(super) fn read(path: &Path) -> io::Result<Vec<Reading>> {
    // A path without access is opened as a file, because that gives the error.
    if !path.is_dir() {
        return Ok(vec![(path.to_owned(), std::fs::read_to_string(path))]);
    }
    let mut tries = 0;
    loop {
        let before = generation(path);
        let files = files(path)?.into_iter().map(|file| {
            let text = std::fs::read_to_string(&file);
            (file, text)
        });
        let is_there = |(_, text): &Reading| !matches!(text, Err(e) if e.kind() == io::ErrorKind::NotFound);
        let readings = files.filter(is_there).collect();
        tries += 1;
        // Files of two generations must not be mixed. Only the last attempt is returned in any case, because the next
        // poll reads again.
        if before == generation(path) || tries == TRIES {
            return Ok(readings);
        }
    }
}

/// The generation of a `ConfigMap` volume: the kubelet renews all its files at once by swapping one symlink.
fn generation(folder: &Path) -> Option<PathBuf> {
    std::fs::read_link(folder.join("..data")).ok()
}

/// The policy files of a folder, sorted by name. Hidden entries do not count, because they belong to the kubelet and to
/// editors.
fn files(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if is_policy_name(&path) && !path.is_dir() {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// Whether a file of this name in a policy folder contains policies. A kustomization does not, because it only makes a
/// `ConfigMap` of the folder.
#[must_use]
pub fn is_policy_name(path: &Path) -> bool {
    let extension = path.extension().and_then(|extension| extension.to_str());
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    matches!(extension, Some("yaml" | "yml" | "json"))
        && !name.starts_with('.')
        && !matches!(name, "kustomization.yaml" | "kustomization.yml")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_folders_policy_files_are_read_in_the_order_of_their_names() {
        let folder = tempfile::tempdir().unwrap();
        for name in
            ["b.yaml", "a.yml", "10-c.json", ".hidden.yaml", "..data", "notes.txt", "kustomization.yaml"]
        {
            fs::write(folder.path().join(name), name).unwrap();
        }
        fs::create_dir(folder.path().join("d.yaml")).unwrap();
        let texts = read(folder.path()).unwrap().into_iter().map(|(_, text)| text.unwrap());
        assert_eq!(texts.collect::<Vec<_>>(), ["10-c.json", "a.yml", "b.yaml"]);
    }

    #[test]
    fn a_dangling_link_in_a_folder_is_skipped_and_a_missing_file_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("..data/a.yaml", folder.path().join("a.yaml")).unwrap();
        assert!(read(folder.path()).unwrap().is_empty());
        assert!(read(&folder.path().join("b.yaml")).unwrap()[0].1.is_err());
    }
}
