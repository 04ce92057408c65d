//! Changes decisions at random and runs the tests, which must notice: `cargo xtask bench mutants`.
//!
//! A mutant is one changed operator, literal or method in the code that decides. All mutants are compiled into one copy
//! of the sources, and an environment variable chooses the active one.
#![forbid(unsafe_code)]

mod build;
mod plant;
mod sites;
mod trial;

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::ensure;
use clap::Parser;

use crate::plant::Mutant;
use crate::trial::Verdict;

/// The code that decides: core's decisions and what the agent offers.
const FOLDERS: [&str; 12] = [
    "core/src/accounting.rs",
    "core/src/admission",
    "core/src/capacity",
    "core/src/closeness.rs",
    "core/src/ledger",
    "core/src/mig",
    "core/src/offer",
    "core/src/packing",
    "core/src/planner",
    "core/src/policy",
    "core/src/quota.rs",
    "node-agent/src/node/offering.rs",
];

/// The bar: caught mutants in a hundred.
const BAR: usize = 95;

/// Measures how many changed decisions the tests notice.
#[derive(Debug, Parser)]
struct Args {
    /// A copy of the sources, which is changed.
    #[arg(long)]
    sources: PathBuf,
    /// How many mutants are drawn.
    #[arg(long, default_value_t = 200)]
    count: usize,
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

fn main() -> anyhow::Result<()> {
    let Args { sources, count, seed } = Args::parse();
    let files = plant::files(&sources, &FOLDERS)?;
    let mut mutants = plant::draw(&sources, &files, count, seed)?;
    let mut originals = BTreeMap::new();
    for file in mutants.iter().map(|mutant| mutant.file.as_str()).chain(["core/src/lib.rs"]) {
        originals.insert(file.to_owned(), fs::read_to_string(sources.join(file))?);
    }
    let programs = build::tests(&sources, &originals, &mut mutants)?;

    let began = Instant::now();
    let untouched = trial::run(&programs, None, Duration::from_mins(20))?;
    ensure!(untouched == Verdict::Survives, "without a mutant: {untouched:?}");
    let timeout = began.elapsed() * 3 + Duration::from_secs(30);
    let survivors = survivors(&programs, &mutants, timeout)?;

    let caught = mutants.len() - survivors.len();
    println!("{caught} of {} mutants caught (seed {seed}; bar: {BAR} %)", mutants.len());
    ensure!(caught * 100 >= mutants.len() * BAR, "fewer than {BAR} % are caught");
    Ok(())
}

/// Tries all mutants and reports each.
fn survivors<'m>(
    programs: &[PathBuf],
    mutants: &'m [Mutant],
    timeout: Duration,
) -> anyhow::Result<Vec<&'m Mutant>> {
    let mut survivors = Vec::new();
    for (index, mutant) in mutants.iter().enumerate() {
        let verdict = trial::run(programs, Some(mutant.number), timeout)?;
        let Mutant { file, site, .. } = mutant;
        let change = format!("{file}, {}: `{}` → `{}`", site.function, site.before, site.after);
        let of = mutants.len();
        match verdict {
            Verdict::Caught(test) => println!("{}/{of} caught: {change} by {test}", index + 1),
            Verdict::Hangs => println!("{}/{of} caught: {change}, which does not end", index + 1),
            Verdict::Survives => {
                println!("{}/{of} SURVIVES: {change}", index + 1);
                survivors.push(mutant);
            }
        }
    }
    Ok(survivors)
}
