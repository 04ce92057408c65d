//! Findings as text or JSON. Pure.

use super::Output;
use super::finding::{Finding, Group, Report, Verdict};
use serde_json::{Value, json};
use std::fmt::Write;

/// Whether nothing has failed; with `strict`, nor is there a warning.
pub fn is_good(report: &Report, strict: bool) -> bool {
    !findings(report).any(|finding| finding.is_failure() || strict && finding.is_warning())
}

fn findings(report: &Report) -> impl Iterator<Item = &Finding> {
    report.iter().flat_map(|(_, findings)| findings)
}

/// What is printed.
pub fn render(report: &Report, output: Output, strict: bool) -> String {
    match output {
        Output::Text => text(report, strict),
        Output::Short => short(report),
        Output::Json => {
            format!(
                "{:#}\n",
                json!({"good": is_good(report, strict), "groups": report.iter().map(group).collect::<Vec<_>>()})
            )
        }
    }
}

fn text(report: &Report, strict: bool) -> String {
    let mut text = String::new();
    for (group, findings) in report.iter().filter(|(_, findings)| !findings.is_empty()) {
        let _infallible = writeln!(text, "{group}");
        for finding in findings {
            let sign = match finding.verdict {
                Verdict::Fine => '✓',
                Verdict::Warning { .. } => '!',
                Verdict::Failure { .. } => '✗',
            };
            let _infallible = writeln!(text, "  {sign} {}", finding.what);
            if let Some(remedy) = finding.remedy() {
                let _infallible = writeln!(text, "      → {remedy}");
            }
        }
        text.push('\n');
    }
    let count = |is: fn(&Finding) -> bool| findings(report).filter(|finding| is(finding)).count();
    let (failures, warnings) = (count(Finding::is_failure), count(Finding::is_warning));
    let end = match (failures, warnings) {
        (0, 0) => "All is well".to_owned(),
        (0, n) if strict => format!("{}, which --strict takes for failures", counted(n, "warning")),
        (0, n) => format!("It works, with {}", counted(n, "warning")),
        (n, 0) => counted(n, "failure"),
        (n, m) => format!("{}, {}", counted(n, "failure"), counted(m, "warning")),
    };
    text + &end + ".\n"
}

fn counted(number: usize, what: &str) -> String {
    if number == 1 { format!("1 {what}") } else { format!("{number} {what}s") }
}

/// A line for each finding that is not good, in ASCII.
fn short(report: &Report) -> String {
    let mut text = String::new();
    for (group, findings) in report {
        for finding in findings {
            let sign = match finding.verdict {
                Verdict::Fine => continue,
                Verdict::Warning { .. } => "warning",
                Verdict::Failure { .. } => "failure",
            };
            let remedy = finding.remedy().unwrap_or_default();
            let _infallible = writeln!(text, "{sign}: {group}: {}; {remedy}", finding.what);
        }
    }
    text.chars().map(|c| if c.is_ascii() { c } else { '?' }).collect()
}

fn group((group, findings): &(Group, Vec<Finding>)) -> Value {
    let finding = |finding: &Finding| {
        let verdict = match finding.verdict {
            Verdict::Fine => "fine",
            Verdict::Warning { .. } => "warning",
            Verdict::Failure { .. } => "failure",
        };
        json!({"verdict": verdict, "what": finding.what, "remedy": finding.remedy()})
    };
    json!({"group": group, "findings": findings.iter().map(finding).collect::<Vec<_>>()})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        vec![
            (Group::KubernetesApi, vec![Finding::fine("the API server answers")]),
            (Group::Policies, Vec::new()),
            (
                Group::Webhook,
                vec![
                    Finding::warning("its certificate ends soon…", "look at its log"),
                    Finding::failure("it does not answer", "restart it"),
                ],
            ),
        ]
    }

    #[test]
    fn everything_is_shown_in_groups_with_remedies() {
        insta::assert_snapshot!(render(&report(), Output::Text, false));
    }

    #[test]
    fn the_short_form_has_a_line_of_ascii_for_what_is_not_good() {
        insta::assert_snapshot!(render(&report(), Output::Short, false));
    }

    #[test]
    fn programs_read_json() {
        insta::assert_snapshot!(render(&report(), Output::Json, false));
    }

    #[test]
    fn a_warning_fails_only_where_that_is_asked_for() {
        let mut report = report();
        assert!(!is_good(&report, false));
        report[2].1.truncate(1);
        assert!(is_good(&report, false) && !is_good(&report, true));
        report[2].1.clear();
        assert!(is_good(&report, true));
        assert!(render(&report, Output::Text, true).ends_with("All is well.\n"));
    }
}
