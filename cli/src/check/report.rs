//! Prints findings as text, in short form and as data. Pure.

use super::finding::{Finding, Findings, Group, Verdict};
use crate::counted::counted;
use crate::output::{self, Format};
use anstyle::{AnsiColor, Style};
use serde::Serialize;
use std::fmt::Write;

#[derive(Debug, Serialize)]
pub struct Report {
    pub good: bool,
    groups: Vec<GroupReport>,
    #[serde(skip)]
    strict: bool,
}

#[derive(Debug, Serialize)]
struct GroupReport {
    group: Group,
    findings: Vec<Finding>,
}

impl Report {
    /// Builds the report; with `strict` a warning counts as a failure.
    pub fn new(findings: Findings, strict: bool) -> Self {
        let good = is_good(&findings, strict);
        let groups = findings.into_iter().map(|(group, findings)| GroupReport { group, findings });
        Self { good, groups: groups.collect(), strict }
    }

    fn count(&self, is: fn(&Finding) -> bool) -> usize {
        self.groups.iter().flat_map(|group| &group.findings).filter(|finding| is(finding)).count()
    }

    fn whole(&self) -> String {
        let mut text = String::new();
        let bold = Style::new().bold();
        for GroupReport { group, findings } in self.groups.iter().filter(|group| !group.findings.is_empty()) {
            let _infallible = writeln!(text, "{bold}{group}{bold:#}");
            for finding in findings {
                let (sign, colour) = match finding.verdict {
                    Verdict::Fine => ('✓', AnsiColor::Green),
                    Verdict::Warning { .. } => ('!', AnsiColor::Yellow),
                    Verdict::Failure { .. } => ('✗', AnsiColor::Red),
                };
                let colour = colour.on_default();
                let _infallible = writeln!(text, "  {colour}{sign}{colour:#} {}", finding.what);
                if let Some(remedy) = finding.remedy() {
                    let _infallible = writeln!(text, "      → {remedy}");
                }
            }
            text.push('\n');
        }
        text + &self.end() + ".\n"
    }

    fn end(&self) -> String {
        let (failures, warnings) = (self.count(Finding::is_failure), self.count(Finding::is_warning));
        match (failures, warnings) {
            (0, 0) => "All is well".to_owned(),
            (0, n) if self.strict => format!("{}, which --strict takes for failures", counted(n, "warning")),
            (0, n) => format!("It works, with {}", counted(n, "warning")),
            (n, 0) => counted(n, "failure"),
            (n, m) => format!("{}, {}", counted(n, "failure"), counted(m, "warning")),
        }
    }

    fn short(&self) -> String {
        let mut text = String::new();
        for GroupReport { group, findings } in &self.groups {
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
        // Messages quote names and texts of the cluster, so they may have other characters.
        text.chars().map(|c| if c.is_ascii() { c } else { '?' }).collect()
    }
}

impl output::Report for Report {
    fn text(&self, format: Format) -> String {
        if format == Format::Short { self.short() } else { self.whole() }
    }
}

pub fn is_good(findings: &Findings, strict: bool) -> bool {
    let mut all = findings.iter().flat_map(|(_, findings)| findings);
    !all.any(|finding| finding.is_failure() || strict && finding.is_warning())
}

#[cfg(test)]
pub fn render(findings: &Findings, format: Format, strict: bool) -> String {
    let text = output::render(&Report::new(findings.clone(), strict), format).unwrap();
    anstream::adapter::strip_str(&text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Findings {
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
    fn the_report_lists_all_findings_in_groups_with_remedies() {
        insta::assert_snapshot!(render(&report(), Format::Text, false));
    }

    #[test]
    fn the_short_form_has_an_ascii_line_for_each_problem() {
        insta::assert_snapshot!(render(&report(), Format::Short, false));
    }

    #[test]
    fn programs_read_json() {
        insta::assert_snapshot!(render(&report(), Format::Json, false));
    }

    #[test]
    fn a_warning_fails_only_in_strict_mode() {
        let mut report = report();
        assert!(!is_good(&report, false));
        report[2].1.truncate(1);
        assert!(is_good(&report, false) && !is_good(&report, true));
        report[2].1.clear();
        assert!(is_good(&report, true));
        assert!(render(&report, Format::Text, true).ends_with("All is well.\n"));
    }
}
