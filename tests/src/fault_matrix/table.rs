//! Prints the matrix as tables of calls and faults.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::Report;
use super::cell::{Blow, Call, Cell, Verdict};

/// Two tables: NVML functions and MPS commands. Each call has a row, each fault a column. A dot marks a code
/// that the function does not return, a question mark a cell that was not played, two exclamation marks a
/// broken cell, and a blank an empty one.
pub(super) fn tables(report: &Report) -> String {
    let (nvml, mps): (Vec<_>, Vec<_>) = report.calls.iter().partition(|call| matches!(call, Call::Nvml(_)));
    format!("{}\n{}", table(report, &nvml), table(report, &mps))
}

fn table(report: &Report, calls: &[&Call]) -> String {
    let columns: BTreeSet<Blow> = calls.iter().flat_map(|call| call.blows()).collect();
    let width = calls.iter().map(|call| call.to_string().len()).max().unwrap_or_default();
    let heads: Vec<String> = columns.iter().map(ToString::to_string).collect();
    let mut text = format!("{:width$} {}", "", heads.join(" "));
    for call in calls {
        // Writing to a string does not fail.
        let _ = write!(text, "\n{:width$}", call.to_string());
        for (blow, head) in columns.iter().zip(&heads) {
            let _ = write!(text, " {:>1$}", mark(report, call, *blow), head.len());
        }
    }
    text
}

fn mark(report: &Report, call: &Call, blow: Blow) -> &'static str {
    if !call.blows().contains(&blow) {
        return ".";
    }
    match report.cells.get(&Cell { call: call.clone(), blow }) {
        Some(Verdict::Sound(_)) => "ok",
        Some(Verdict::Broken(_)) => "!!",
        Some(Verdict::NotStruck) => "",
        None => "?",
    }
}
