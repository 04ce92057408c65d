//! The crates that are linked into a program, as cargo resolves them, with their checksums from Cargo.lock.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, ensure};
use cargo_lock::Lockfile;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Crate {
    pub name: String,
    pub version: String,
    pub licence: Option<String>,
    /// The SHA-256 of its archive in the registry; `None` for the workspace's own crates.
    pub checksum: Option<String>,
}

/// The crates of a package's program for a target. Crates that only tests or the build use are left out, because they
/// are not in the program.
pub fn linked(root: &Path, package: &str, target: &str) -> anyhow::Result<Vec<Crate>> {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(root).args(["tree", "--locked", "--edges", "normal,no-proc-macro", "--prefix", "none"]);
    cargo.args(["--format", "{p}|{l}", "--package", package, "--target", target]);
    let output = cargo.output().context("failed to run cargo tree")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "cargo tree failed: {}", said.trim());
    let lock = Lockfile::load(root.join("Cargo.lock")).context("failed to read Cargo.lock")?;
    let checksums: BTreeMap<(String, String), String> = lock
        .packages
        .into_iter()
        .filter_map(|p| Some(((p.name.to_string(), p.version.to_string()), p.checksum?.to_string())))
        .collect();
    read(&String::from_utf8_lossy(&output.stdout), &checksums)
}

/// Parses lines such as `ring v0.17.14|Apache-2.0 AND ISC`, one for each place of a crate in the tree.
fn read(tree: &str, checksums: &BTreeMap<(String, String), String>) -> anyhow::Result<Vec<Crate>> {
    let mut crates = BTreeMap::new();
    for line in tree.lines().map(|line| line.trim_end_matches(" (*)")).filter(|line| !line.is_empty()) {
        let (package, licence) = line.split_once('|').with_context(|| format!("cargo tree said {line}"))?;
        let mut words = package.split_whitespace();
        let (Some(name), Some(version)) = (words.next(), words.next()) else {
            anyhow::bail!("cargo tree said {line}")
        };
        let key = (name.to_owned(), version.trim_start_matches('v').to_owned());
        // SPDX has no slash, but old crates write MIT/Apache-2.0.
        let licence = Some(licence.replace('/', " OR ")).filter(|licence| !licence.is_empty());
        let checksum = checksums.get(&key).cloned();
        crates.insert(key.clone(), Crate { name: key.0, version: key.1, licence, checksum });
    }
    Ok(crates.into_values().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crate_is_listed_once_with_its_licence_and_checksum() {
        let tree = "kerf v0.1.0 (/kerf/cli)|Apache-2.0\nlog v0.4.1|MIT/Apache-2.0\nlog v0.4.1|MIT/Apache-2.0 (*)\nodd v1.0.0|\n";
        let key = |name: &str, version: &str| (name.to_owned(), version.to_owned());
        let checksums = BTreeMap::from([(key("log", "0.4.1"), "12ab".to_owned())]);
        let crates = read(tree, &checksums).unwrap();
        let reported: Vec<_> = crates
            .iter()
            .map(|c| (&*c.name, &*c.version, c.licence.as_deref(), c.checksum.as_deref()))
            .collect();
        let wanted = [
            ("kerf", "0.1.0", Some("Apache-2.0"), None),
            ("log", "0.4.1", Some("MIT OR Apache-2.0"), Some("12ab")),
            ("odd", "1.0.0", None, None),
        ];
        assert_eq!(reported, wanted);
    }

    #[test]
    fn crates_for_tests_and_builds_are_left_out() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
        let crates = linked(root, "kerf-webhook", "x86_64-unknown-linux-musl").unwrap();
        let has = |name: &str| crates.iter().any(|c| c.name == name);
        assert!(has("kerf-core") && has("ring") && has("rustls"));
        assert!(!has("insta") && !has("cc") && !has("serde_derive"));
        let ring = crates.iter().find(|c| c.name == "ring").unwrap();
        assert_eq!(ring.checksum.as_ref().map(String::len), Some(64));
    }
}
