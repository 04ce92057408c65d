//! Checks objects against the `OpenAPI` files of a Kubernetes version: every field must be known and have its
//! type, and no required field may be missing. It is stricter than the API server, which prunes unknown
//! fields.

mod check;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use serde_json::Value;

pub use check::Fault;

/// The schemas of one version.
#[derive(Debug)]
pub struct Schemas {
    version: String,
    /// Schemas by the names in `$ref`.
    by_name: BTreeMap<String, Value>,
    /// Names of schemas by apiVersion and kind.
    kinds: BTreeMap<(String, String), String>,
}

impl Schemas {
    /// All versions that `cargo xtask tools` has downloaded.
    pub fn all() -> anyhow::Result<Vec<Self>> {
        let store = store("openapi").context("there are no OpenAPI files: run `cargo xtask tools`")?;
        let entries = fs::read_dir(&store).with_context(|| format!("failed to read {}", store.display()))?;
        let mut folders = entries.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<_>>>()?;
        folders.retain(|folder| folder.is_dir() && name(folder).starts_with('v'));
        folders.sort();
        ensure!(!folders.is_empty(), "{} has no version: run `cargo xtask tools`", store.display());
        folders.iter().map(|folder| Self::read(folder)).collect()
    }

    fn read(folder: &Path) -> anyhow::Result<Self> {
        let mut all = Self { version: name(folder), by_name: BTreeMap::new(), kinds: BTreeMap::new() };
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            if !name(&path).ends_with("_openapi.json") {
                continue;
            }
            let text =
                fs::read_to_string(&path).with_context(|| format!("failed to read {}", path.display()))?;
            let document: Value =
                serde_json::from_str(&text).with_context(|| format!("failed to parse {}", path.display()))?;
            all.add(&document);
        }
        Ok(all)
    }

    fn add(&mut self, document: &Value) {
        let Some(schemas) = document["components"]["schemas"].as_object() else { return };
        for (name, schema) in schemas {
            // Options of a request are kinds of every group at once.
            for kind in schema["x-kubernetes-group-version-kind"].as_array().into_iter().flatten() {
                let text = |field: &str| kind[field].as_str().unwrap_or_default().to_owned();
                let (group, version) = (text("group"), text("version"));
                let api_version = if group.is_empty() { version } else { format!("{group}/{version}") };
                self.kinds.insert((api_version, text("kind")), name.clone());
            }
            self.by_name.insert(name.clone(), schema.clone());
        }
    }

    /// The version, such as `v1.36.4`.
    #[must_use]
    pub fn version(&self) -> &str {
        &self.version
    }

    /// The faults of an object. A kind that this version does not have is a fault.
    #[must_use]
    pub fn faults(&self, object: &Value) -> Vec<Fault> {
        let text = |field: &str| object[field].as_str().unwrap_or_default().to_owned();
        match self.kinds.get(&(text("apiVersion"), text("kind"))) {
            Some(name) => check::check(&self.by_name, name, object),
            None => vec![Fault::unknown_kind(&text("apiVersion"), &text("kind"))],
        }
    }
}

/// The folder of other projects' CRDs that `cargo xtask tools` has downloaded.
pub fn crds() -> anyhow::Result<PathBuf> {
    store("crds").context("there are no CRDs: run `cargo xtask tools`")
}

/// The folder `<target>/<name>` above the running executable.
fn store(name: &str) -> Option<PathBuf> {
    let executable = std::env::current_exe().ok()?;
    executable.ancestors().map(|folder| folder.join(name)).find(|folder| folder.is_dir())
}

fn name(path: &Path) -> String {
    path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}
