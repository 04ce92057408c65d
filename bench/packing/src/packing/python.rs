//! Compares the replay with the judge in Python, which makes its own job lists and judges kerf's decisions on them.
//! Both must agree.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, ensure};

use super::measure::{JOBS, on_threads};
use super::policy::{MOVES, kerf};
use crate::jobs::{MIXES, Mix, Scenario, read};
use crate::oracle;
use crate::profile::Profile;
use crate::replay::{Verdict, judge};
use crate::report::{Progress, as_f64, mean, print};

/// Moves for each job in the two runs.
const MOVES_OF_A_RUN: [f64; 2] = [0.0, MOVES];

/// Runs the judge on lists of all mixes and of seeds from 1, without moves and with them. It fails if a line differs.
pub fn compare(script: &Path, scenario: &Scenario, seeds: u64) -> anyhow::Result<()> {
    let folder = tempfile::tempdir().context("failed to make a temporary folder")?;
    let python = Python { script, folder: folder.path(), scenario };
    let lists: Vec<(&Mix, u64)> =
        MIXES.iter().flat_map(|mix| (1..=seeds).map(move |seed| (mix, seed))).collect();
    let progress = Progress::new("packing, the judge in Python: lists of jobs", lists.len());
    let judged = on_threads(&lists, |(mix, seed)| {
        let judged = python.judged(mix, *seed);
        progress.step();
        judged
    });
    let judged: Vec<[Lines; 2]> = judged.into_iter().collect::<anyhow::Result<_>>()?;
    let differing: Vec<&Lines> = judged.iter().flatten().filter(|lines| lines.ours != lines.theirs).collect();
    print("");
    print(&format!(
        "The judge in Python, {} job lists of its own: {} of {} lines differ from the replay's",
        lists.len(),
        differing.len(),
        judged.len() * MOVES_OF_A_RUN.len()
    ));
    for (at, moves) in MOVES_OF_A_RUN.iter().enumerate() {
        let below = mean(judged.iter().map(|lines| lines[at].below));
        print(&format!("  kerf with {moves} moves per job: {below:.2} pt below the oracle"));
    }
    ensure!(differing.is_empty(), "ours:   {}\ntheirs: {}", differing[0].ours, differing[0].theirs);
    Ok(())
}

/// Both verdicts on the same decisions.
struct Lines {
    ours: String,
    theirs: String,
    below: f64,
}

/// The judge, and the files that it reads.
struct Python<'a> {
    script: &'a Path,
    folder: &'a Path,
    scenario: &'a Scenario,
}

impl Python<'_> {
    /// Both verdicts on kerf's decisions for one of the judge's lists, without moves and with them.
    fn judged(&self, mix: &Mix, seed: u64) -> anyhow::Result<[Lines; 2]> {
        let (gpus, load) = (self.scenario.gpus.to_string(), self.scenario.load.to_string());
        let (count, seed) = (JOBS.to_string(), seed.to_string());
        let flags =
            ["gen", "--mix", mix.name, "--load", &load, "--gpus", &gpus, "--jobs", &count, "--seed", &seed];
        let text = output(Command::new("python3").arg(self.script).args(flags))?;
        let jobs = read(&text).context("the judge's job list")?;
        let path = |kind: &str| self.folder.join(format!("{}-{seed}.{kind}", mix.name));
        std::fs::write(path("jobs"), &text)?;
        let oracle = oracle::accepted(&jobs, self.scenario.gpus);
        let lines = |moves: f64| {
            let decisions = kerf(&jobs, self.scenario.gpus, moves);
            std::fs::write(path("decisions"), &decisions)?;
            let mut command = Command::new("python3");
            command.arg(self.script).args(["judge", "--gpus", &gpus]).args([path("jobs"), path("decisions")]);
            let theirs = output(&mut command)?.trim_end().to_owned();
            let verdict = judge(&jobs, self.scenario.gpus, &decisions);
            let ours = line(&verdict, verdict.part(&oracle));
            anyhow::Ok(Lines { ours, theirs, below: verdict.below(&oracle) })
        };
        let [without, with] = MOVES_OF_A_RUN.map(lines);
        Ok([without?, with?])
    }
}

/// The command's standard output. The exit code is ignored: it reports illegal decisions, which the text does as well.
fn output(command: &mut Command) -> anyhow::Result<String> {
    let output = command.output().with_context(|| format!("failed to start {command:?}"))?;
    ensure!(!output.stdout.is_empty(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?)
}

/// The line that the judge would print.
fn line(verdict: &Verdict, oracle: f64) -> String {
    let mine = verdict.part(&verdict.accepted);
    format!(
        "illegal {}  accepted {mine:.4}  oracle {oracle:.4}  below_oracle_pt {:.2}  accepted_7g {:.3}  no_create {:.3}  \
         moves_per_request {:.4}",
        verdict.illegal.len(),
        100.0 * (oracle - mine),
        verdict.accepted_of(Profile::Seven),
        verdict.no_create(),
        f64::from(verdict.moved) / as_f64(verdict.jobs),
    )
}
