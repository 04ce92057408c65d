//! A ConfigMap as the kubelet shows it in a folder: each key a link into a folder that is changed as one.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::Path;

/// Makes the folder show these files. `serial` must not have been used before.
pub(super) fn project(folder: &Path, files: &BTreeMap<String, String>, serial: u32) -> io::Result<()> {
    let (data, next) = (folder.join("..data"), folder.join("..data_tmp"));
    let version = format!("..{serial}");
    fs::create_dir_all(folder.join(&version))?;
    for (name, text) in files {
        fs::write(folder.join(&version).join(name), text)?;
    }
    let before = fs::read_link(&data).ok();
    symlink(&version, &next)?;
    fs::rename(&next, &data)?;
    for name in files.keys() {
        if fs::symlink_metadata(folder.join(name)).is_err() {
            symlink(Path::new("..data").join(name), folder.join(name))?;
        }
    }
    for entry in fs::read_dir(folder)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if !name.starts_with("..") && !files.contains_key(&name) {
            fs::remove_file(folder.join(name))?;
        }
    }
    before.map_or(Ok(()), |before| fs::remove_dir_all(folder.join(before)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_come_change_and_go() {
        let folder = tempfile::tempdir().unwrap();
        let read = |name: &str| fs::read_to_string(folder.path().join(name)).ok();
        let files = |pairs: &[(&str, &str)]| {
            pairs
                .iter()
                .map(|(name, text)| ((*name).to_owned(), (*text).to_owned()))
                .collect::<BTreeMap<_, _>>()
        };
        project(folder.path(), &files(&[("a", "1"), ("b", "1")]), 1).unwrap();
        project(folder.path(), &files(&[("b", "2"), ("c", "2")]), 2).unwrap();
        let seen = ["a", "b", "c"].map(read);
        assert_eq!(seen, [None, Some("2".to_owned()), Some("2".to_owned())]);
        assert!(!folder.path().join("..1").exists());
    }
}
