//! Feeds 20,000 random inputs to each reader of what users write; `cargo xtask bench fuzz` feeds ten million.

use anyhow::ensure;
use kerf_tests::fuzz::{Target, run};

const INPUTS: u64 = 20_000;
const SEED: u64 = 6;

fn feed(target: Target) -> anyhow::Result<()> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let report = run(target, SEED, INPUTS, threads, |_| ())?;
    if let Some(defect) = report.defects.first() {
        let input = String::from_utf8_lossy(&defect.input);
        anyhow::bail!("input {} of seed {SEED}: {}\n{input}", defect.number, defect.what);
    }
    ensure!(report.inputs == INPUTS, "only {} inputs were fed", report.inputs);
    // If all inputs were refused by the first check, the code behind it would not be tested.
    let accepted = report.accepted;
    ensure!(accepted > INPUTS / 100 && accepted < INPUTS, "{accepted} of {INPUTS} were accepted");
    Ok(())
}

#[test]
fn random_reviews_are_answered_and_admission_is_idempotent() -> anyhow::Result<()> {
    feed(Target::Review)
}

#[test]
fn random_quantities_are_read_or_refused() -> anyhow::Result<()> {
    feed(Target::Quantity)
}

#[test]
fn random_names_are_read_as_they_are_written_or_refused() -> anyhow::Result<()> {
    feed(Target::Names)
}

#[test]
fn random_policy_files_are_read_or_refused() -> anyhow::Result<()> {
    feed(Target::Policy)
}

#[test]
fn random_request_documents_are_read_as_they_are_written_or_refused() -> anyhow::Result<()> {
    feed(Target::Request)
}
