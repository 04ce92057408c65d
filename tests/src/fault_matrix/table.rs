//! The table of calls and faults.

use std::collections::BTreeSet;

use super::cell::{Blow, Cell, Verdict};
use super::{Report, codes};

/// A row for each function, a column for each fault. A dot is a code that the function does not give, a question mark a
/// cell that was not played, two exclamation marks a broken cell, a blank an empty one.
pub(super) fn of(report: &Report) -> String {
    let codes: BTreeSet<_> = report.functions.iter().flat_map(|f| codes::of(f)).collect();
    let columns: Vec<Blow> =
        codes.into_iter().map(Blow::Code).chain([Blow::Hang, Blow::KillBefore, Blow::KillAfter]).collect();
    let width = report.functions.iter().map(String::len).max().unwrap_or_default();
    let heads: Vec<String> = columns.iter().map(ToString::to_string).collect();
    let mut text = format!("{:width$}", "");
    for head in &heads {
        text.push_str(&format!(" {head:>4}"));
    }
    for function in &report.functions {
        text.push_str(&format!("\n{function:width$}"));
        for blow in &columns {
            text.push_str(&format!(" {:>4}", mark(report, function, *blow)));
        }
    }
    text
}

fn mark(report: &Report, function: &str, blow: Blow) -> &'static str {
    if matches!(blow, Blow::Code(code) if !codes::of(function).contains(&code)) {
        return ".";
    }
    match report.cells.get(&Cell { function: function.to_owned(), blow }) {
        Some(Verdict::Sound(_)) => "ok",
        Some(Verdict::Broken(_)) => "!!",
        Some(Verdict::NotStruck) => "",
        None => "?",
    }
}
