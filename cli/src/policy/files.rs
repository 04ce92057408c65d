//! Finds the policy files of a path, and says why the other files are none, so that no file is skipped unseen.

use kerf_core::keys;
use kerf_runtime::policy_file::{PolicyFileError, is_policy_name};
use serde_json::Value;
use std::io;
use std::path::{Path, PathBuf};

#[derive(Debug, Default)]
pub(super) struct Files {
    pub texts: Vec<(PathBuf, String)>,
    pub skipped: Vec<(PathBuf, String)>,
    pub errors: Vec<PolicyFileError>,
}

impl Files {
    /// Reads the files of a folder, or the one file that the path names; `-` is standard input. Hidden files of a
    /// folder are left out, because the kubelet and editors create them.
    pub fn read(path: &Path) -> Self {
        let mut files = Self::default();
        if path == Path::new("-") {
            match io::read_to_string(io::stdin()) {
                Ok(text) => files.texts.push((PathBuf::from("standard input"), text)),
                Err(source) => files.errors.push(PolicyFileError::Read { path: path.to_owned(), source }),
            }
            return files;
        }
        if !path.is_dir() {
            files.take(path.to_owned());
            return files;
        }
        match entries(path) {
            Ok(entries) => entries.into_iter().for_each(|entry| files.take(entry)),
            Err(source) => files.errors.push(PolicyFileError::Read { path: path.to_owned(), source }),
        }
        files
    }

    fn take(&mut self, path: PathBuf) {
        if path.is_dir() {
            self.skipped.push((path, "a folder; give it by itself".to_owned()));
            return;
        }
        if let Some(why) = no_policy_name(&path) {
            self.skipped.push((path, why.to_owned()));
            return;
        }
        match std::fs::read_to_string(&path) {
            Ok(text) => match no_policies(&text) {
                Some(why) => self.skipped.push((path, why)),
                None => self.texts.push((path, text)),
            },
            Err(source) => self.errors.push(PolicyFileError::Read { path, source }),
        }
    }
}

/// The visible entries of a folder, sorted by name. A dangling link is left out, because its file is being removed.
fn entries(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut entries = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if !name.starts_with('.') && path.exists() {
            entries.push(path);
        }
    }
    entries.sort();
    Ok(entries)
}

fn no_policy_name(path: &Path) -> Option<&'static str> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    if name.ends_with(".expected.yaml") {
        return Some("what a case of kerf policy test expects");
    }
    if is_policy_name(path) || name.starts_with('.') || !path.exists() {
        return None;
    }
    let is_kustomization = name.starts_with("kustomization.");
    Some(if is_kustomization { "a kustomization" } else { "its name does not end in .yaml, .yml or .json" })
}

/// Why the text of a file with a policy file's name has no policies. It is `None` if the text may be meant as a policy,
/// so that its errors are reported.
fn no_policies(text: &str) -> Option<String> {
    let documents: Vec<Value> = serde_saphyr::from_multiple(text).ok()?;
    let is_of_kerf = |document: &Value| {
        let version = document["apiVersion"].as_str().unwrap_or_default();
        version.starts_with(keys::GROUP)
            || matches!(document["kind"].as_str(), Some("GpuPolicy" | "GpuNodePolicy"))
    };
    if documents.is_empty() || documents.iter().any(is_of_kerf) {
        return None;
    }
    if documents.iter().any(|document| document.get("expect").is_some()) {
        return Some("a case of kerf policy test; the webhook would refuse it among its policies".to_owned());
    }
    if documents.iter().any(|document| document.get("$schema").is_some()) {
        return Some("a JSON schema".to_owned());
    }
    let named = |document: &Value| {
        Some(format!("{} of {}", document["kind"].as_str()?, document["apiVersion"].as_str()?))
    };
    let kinds: Option<Vec<String>> = documents.iter().map(named).collect();
    Some(format!(
        "it has no policy, but {}; the webhook would refuse it among its policies",
        kinds?.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    const POLICY: &str = "apiVersion: kerf.dev/v1alpha1\nkind: GpuPolicy\nmetadata: {name: a}\n";
    const POD: &str = "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\n";

    #[test]
    fn only_files_that_are_certainly_no_policies_are_skipped() {
        for (text, skipped) in [
            (POLICY.to_owned(), false),
            (format!("{POD}---\n{POLICY}"), false),
            (POLICY.replace("GpuPolicy", "GpuPolcy"), false),
            (POLICY.replace("kerf.dev/v1alpha1", "kerf.example/v1"), false),
            ("spec: {defaultIsolation: memory}\n".to_owned(), false),
            (String::new(), false),
            ("kind: [\n".to_owned(), false),
            (POD.to_owned(), true),
            (format!("{POD}---\nexpect: {{policy: a}}\n"), true),
            ("{\"$schema\": \"https://json-schema.org/draft/2020-12/schema\"}\n".to_owned(), true),
        ] {
            assert_eq!(no_policies(&text).is_some(), skipped, "{text}");
        }
    }

    #[test]
    fn a_folders_files_are_policies_or_skipped_with_the_reason_or_hidden() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        write("b.yaml", POLICY);
        write("a.json", "{\"apiVersion\": \"kerf.dev/v1alpha1\", \"kind\": \"GpuPolicy\"}");
        write(".hidden.yaml", POLICY);
        write("README.md", "text");
        write("kustomization.yaml", "resources: []");
        write("pod.yaml", POD);
        write("pod.expected.yaml", "policy: a");
        fs::create_dir(folder.path().join("more")).unwrap();
        std::os::unix::fs::symlink("..data/gone.yaml", folder.path().join("gone.yaml")).unwrap();
        let files = Files::read(folder.path());
        let names = |paths: Vec<&PathBuf>| -> Vec<String> {
            paths.iter().map(|path| path.file_name().unwrap().to_string_lossy().into_owned()).collect()
        };
        assert_eq!(names(files.texts.iter().map(|(path, _)| path).collect()), ["a.json", "b.yaml"]);
        assert_eq!(
            names(files.skipped.iter().map(|(path, _)| path).collect()),
            ["README.md", "kustomization.yaml", "more", "pod.expected.yaml", "pod.yaml"]
        );
        assert!(files.errors.is_empty());
        assert_eq!(Files::read(&folder.path().join("absent.yaml")).errors.len(), 1);
        assert_eq!(Files::read(&folder.path().join("README.md")).skipped.len(), 1);
    }
}
