//! Compiles the tests of the mutated sources, without the mutants that do not compile.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail, ensure};
use serde_json::Value;

use crate::plant::{self, Mutant};

/// The crates whose tests run, each with the name of its library. Those that find most mutants come first.
const TESTED: [(&str, &str); 5] = [
    ("kerf-core", "kerf_core"),
    ("kerf-node-agent", "kerf_node_agent"),
    ("kerf-extender", "kerf_extender"),
    ("kerf-webhook", "kerf_webhook"),
    ("kerf", "kerf_cli"),
];

/// Compiles the tests and returns their programs. Mutants that the compiler rejects are removed from `mutants`.
pub fn tests(
    root: &Path,
    originals: &BTreeMap<String, String>,
    mutants: &mut Vec<Mutant>,
) -> anyhow::Result<Vec<PathBuf>> {
    loop {
        plant::write(root, originals, mutants)?;
        let output = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
            .current_dir(root)
            .env("CARGO_TARGET_DIR", root.join("target"))
            // The changes make conditions that lints and warnings object to.
            .env("RUSTFLAGS", "--cap-lints=allow")
            // Core decides faster in this profile, and the tests of a mutant are run up to 200 times.
            .args(["test", "--profile=explore", "--no-run", "--lib", "--message-format=json"])
            .args(TESTED.iter().flat_map(|(package, _)| ["--package", package]))
            .stderr(Stdio::inherit())
            .output()
            .context("failed to start cargo")?;
        let text = String::from_utf8(output.stdout)?;
        let messages: Vec<Value> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        if output.status.success() {
            return programs(&messages);
        }
        let rejected = rejected(root, &messages)?;
        ensure!(!rejected.is_empty(), "the mutated sources do not compile, but no mutant is to blame");
        eprintln!("mutants: {} do not compile and are left out", rejected.len());
        mutants.retain(|mutant| !rejected.contains(&mutant.number));
    }
}

fn programs(messages: &[Value]) -> anyhow::Result<Vec<PathBuf>> {
    let program = |(_, library): &(&str, &str)| {
        let of_it = messages
            .iter()
            .find(|message| message["target"]["name"] == *library && message["executable"].is_string());
        of_it.and_then(|message| message["executable"].as_str()).map(PathBuf::from)
    };
    let found: Vec<PathBuf> = TESTED.iter().filter_map(program).collect();
    if found.len() < TESTED.len() {
        bail!("cargo names {} programs of tests only", found.len())
    }
    Ok(found)
}

/// The mutants on the lines of the compiler's errors.
fn rejected(root: &Path, messages: &[Value]) -> anyhow::Result<BTreeSet<usize>> {
    let mut found = BTreeSet::new();
    for message in messages.iter().filter(|message| message["message"]["level"] == "error") {
        for span in message["message"]["spans"].as_array().into_iter().flatten() {
            let (Some(file), Some(first), Some(last)) =
                (span["file_name"].as_str(), span["line_start"].as_u64(), span["line_end"].as_u64())
            else {
                continue;
            };
            let text = fs::read_to_string(root.join(file))?;
            let (first, last) = (usize::try_from(first)?, usize::try_from(last)?);
            found.extend(blamed(&text, first, last));
        }
    }
    Ok(found)
}

/// The mutants on these lines, from 1, or else the last one before them: an expression may have several lines.
fn blamed(text: &str, first: usize, last: usize) -> Vec<usize> {
    let lines: Vec<&str> = text.lines().take(last).collect();
    let on_them: Vec<usize> = lines.iter().skip(first - 1).flat_map(|line| numbers(line)).collect();
    if on_them.is_empty() {
        let before = lines.iter().take(first - 1).rev().find_map(|line| numbers(line).pop());
        return before.into_iter().collect();
    }
    on_them
}

/// The numbers of the mutants on a line.
fn numbers(line: &str) -> Vec<usize> {
    let after = line.split("is_mutant(").skip(1);
    after.filter_map(|rest| rest.split("usize").next()?.parse().ok()).collect()
}
