//! Runs the same clients without Kubernetes, by `deploy/examples/sharing/by_hand.py`.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::real_node::search_path;
use anyhow::{Context as _, ensure};
use kerf_cli::bench::Results;
use kerf_tests::cluster::root;

use crate::args::Args;

/// Mean seconds per iteration, by number of copies.
pub type Means = BTreeMap<u32, f64>;

/// Measures the same workload, copies and durations as kerf did.
pub fn run(args: &Args, technology: &str, kerf: &Results, out: &Path) -> anyhow::Result<Means> {
    let copies: Vec<String> = kerf.points.iter().map(|point| point.copies.to_string()).collect();
    let mut command = Command::new(&args.python);
    command.arg(root().join("deploy/examples/sharing/by_hand.py"));
    command.args(["--workload", &kerf.workload, "--technologies", technology, "--copies", &copies.join(",")]);
    command.args(["--warm-up", &kerf.warm_up_seconds.to_string()]);
    command.args(["--seconds", &kerf.measure_seconds.to_string()]);
    command.env("LD_LIBRARY_PATH", &args.libraries).env("PATH", search_path(args.mps_control()?.parent())?);
    let output = command.stderr(Stdio::inherit()).output().context("failed to run by_hand.py")?;
    let reported = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "by_hand.py failed ({}):\n{reported}", output.status);
    fs::write(out.join("by-hand.csv"), reported.as_bytes()).context("failed to write by-hand.csv")?;
    means(&reported)
}

/// Parses lines `technology,copies,mean,…` below a header.
fn means(reported: &str) -> anyhow::Result<Means> {
    let read = |line: &str| {
        let mut fields = line.split(',').skip(1);
        Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
    };
    let lines = reported.lines().skip(1);
    lines.map(|line| read(line).with_context(|| format!("by_hand.py printed {line:?}"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_the_copies_and_their_mean() {
        let reported = "technology,copies,mean,p50\nmps,1,0.05012,0.05\nmps,7,0.09474,0.09\n";
        assert_eq!(means(reported).unwrap(), Means::from([(1, 0.05012), (7, 0.09474)]));
        assert!(means("technology,copies,mean\nmps,nothing,0.1\n").is_err());
    }
}
