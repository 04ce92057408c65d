//! Which policy files there are: one, or those of a folder.

use std::io;
use std::path::{Path, PathBuf};

/// How often a folder is read anew because a `ConfigMap` volume was renewed meanwhile.
const TRIES: usize = 3;

/// A file and its text, or why it cannot be read.
pub(super) type Reading = (PathBuf, io::Result<String>);

/// The texts of the file, or of the folder's policy files in the order of their names.
///
/// A file that is named and gone when it is opened is no part of the folder: it was being removed.
pub(super) fn read(path: &Path) -> io::Result<Vec<Reading>> {
    // A path that cannot be looked at is opened as a file, which says why.
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
        // Files of two generations are not read together.
        if before == generation(path) || tries == TRIES {
            return Ok(readings);
        }
    }
}

/// What a `ConfigMap` volume's files lead to now: the kubelet renews them all at once by swapping one symlink.
fn generation(folder: &Path) -> Option<PathBuf> {
    std::fs::read_link(folder.join("..data")).ok()
}

/// The policy files of a folder by name. Hidden entries are the kubelet's and editors'.
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

/// Whether a file of this name in a folder of policies is read as one. A kustomization says how they become a `ConfigMap`.
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
    fn a_name_that_leads_nowhere_is_no_file_of_the_folder_and_a_file_that_is_none_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("..data/a.yaml", folder.path().join("a.yaml")).unwrap();
        assert!(read(folder.path()).unwrap().is_empty());
        assert!(read(&folder.path().join("b.yaml")).unwrap()[0].1.is_err());
    }
}
