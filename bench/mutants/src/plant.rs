//! Puts all mutants into the sources at once. Which of them is active is chosen when a program runs, so that all are
//! compiled once.

use std::collections::BTreeMap;
use std::fs;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};

use anyhow::Context as _;

use crate::sites::{self, Site};

/// The variable that names the active mutant.
pub const VARIABLE: &str = "KERF_MUTANT";

/// What answers, in the mutated core, whether a mutant is active.
const SWITCH: &str = r#"
/// Whether this mutant is active.
#[doc(hidden)]
#[must_use]
pub fn is_mutant(number: usize) -> bool {
    static ACTIVE: std::sync::OnceLock<Option<usize>> = std::sync::OnceLock::new();
    *ACTIVE.get_or_init(|| std::env::var("KERF_MUTANT").ok()?.parse().ok()) == Some(number)
}
"#;

/// A mutant of a file.
#[derive(Debug, Clone)]
pub struct Mutant {
    pub number: usize,
    /// The file's path from the root of the sources.
    pub file: String,
    /// The number of its site in the file.
    index: usize,
    pub site: Site,
}

/// The files whose decisions are changed, as paths from the root.
pub fn files(root: &Path, folders: &[&str]) -> anyhow::Result<Vec<String>> {
    let mut found = Vec::new();
    for folder in folders {
        add_files(&root.join(folder), &mut found)?;
    }
    let relative = found.iter().filter_map(|path| path.strip_prefix(root).ok());
    let mut names: Vec<String> = relative.map(|path| path.display().to_string()).collect();
    names.retain(|name| !name.contains("tests"));
    names.sort();
    Ok(names)
}

fn add_files(path: &Path, found: &mut Vec<PathBuf>) -> anyhow::Result<()> {
    if path.is_file() {
        found.push(path.to_owned());
        return Ok(());
    }
    for entry in fs::read_dir(path).with_context(|| format!("failed to read {}", path.display()))? {
        let path = entry?.path();
        if path.is_dir() || path.extension().is_some_and(|extension| extension == "rs") {
            add_files(&path, found)?;
        }
    }
    Ok(())
}

/// Draws mutants at random, with a seed.
pub fn draw(root: &Path, files: &[String], count: usize, seed: u64) -> anyhow::Result<Vec<Mutant>> {
    let mut candidates = Vec::new();
    for file in files {
        let text = fs::read_to_string(root.join(file))?;
        let found = sites::of_file(&text).with_context(|| format!("failed to parse {file}"))?;
        candidates.extend(found.into_iter().enumerate().map(|(index, site)| {
            let mut hasher = DefaultHasher::new();
            (seed, file, index, &site.before).hash(&mut hasher);
            (hasher.finish(), Mutant { number: 0, file: file.clone(), index, site })
        }));
    }
    candidates.sort_by_key(|(order, _)| *order);
    let drawn = candidates.into_iter().take(count).zip(1..);
    Ok(drawn.map(|((_, mutant), number)| Mutant { number, ..mutant }).collect())
}

/// Writes the mutated files below `root`.
pub fn write(root: &Path, originals: &BTreeMap<String, String>, mutants: &[Mutant]) -> anyhow::Result<()> {
    for (file, original) in originals {
        let own = mutants.iter().filter(|mutant| mutant.file == *file);
        let chosen: BTreeMap<usize, usize> = own.map(|mutant| (mutant.index, mutant.number)).collect();
        let is_core = file.starts_with("core/");
        let switch = if is_core { "crate::is_mutant" } else { "kerf_core::is_mutant" };
        let mut text = original.clone();
        if !chosen.is_empty() {
            text = sites::mutated(original, &chosen, switch)?;
        }
        if file == "core/src/lib.rs" {
            text.push_str(SWITCH);
        }
        fs::write(root.join(file), text).with_context(|| format!("failed to write {file}"))?;
    }
    Ok(())
}
