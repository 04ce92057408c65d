//! Parses the job list: one line `arrival duration profile` for each job.

use crate::counted::counted;
use kerf_core::mig::{MigTable, Profile};
use thiserror::Error;

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Job {
    pub arrival: f64,
    pub duration: f64,
    pub profile: Profile,
}

#[derive(Debug, Clone, PartialEq, Error)]
#[error("line {line}: {fault}")]
pub struct JobsError {
    pub line: usize,
    pub fault: JobFault,
}

#[derive(Debug, Clone, PartialEq, Error)]
pub enum JobFault {
    #[error("{}; write `arrival duration profile`", counted(*.0, "word"))]
    Words(usize),
    #[error("{field}: {text:?} is no finite number")]
    Number { field: &'static str, text: String },
    #[error("{field}: {value} is negative; write 0 or more")]
    Negative { field: &'static str, value: f64 },
    #[error("arrival: {arrival} is before the {previous} of the line above; sort the list by arrival")]
    Order { arrival: f64, previous: f64 },
    #[error("profile: {text:?} is none of this model's; it has {known}")]
    Profile { text: String, known: String },
}

/// Parses a job list for GPUs with this table. Empty lines are skipped, but count as lines, so that errors name the
/// file's line.
pub fn parse(text: &str, table: &MigTable) -> Result<Vec<Job>, JobsError> {
    let mut jobs: Vec<Job> = Vec::new();
    for (line, text) in (1..).zip(text.lines()).filter(|(_, text)| !text.trim().is_empty()) {
        let job = job(text, table).map_err(|fault| JobsError { line, fault })?;
        if let Some(previous) = jobs.last().map(|job| job.arrival).filter(|p| *p > job.arrival) {
            let fault = JobFault::Order { arrival: job.arrival, previous };
            return Err(JobsError { line, fault });
        }
        jobs.push(job);
    }
    Ok(jobs)
}

fn job(text: &str, table: &MigTable) -> Result<Job, JobFault> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let [arrival, duration, profile] = words[..] else { return Err(JobFault::Words(words.len())) };
    let known = || table.entries().iter().map(|e| e.profile.to_string()).collect::<Vec<_>>().join(", ");
    let profile = profile.parse().ok().filter(|p| table.entry(*p).is_some());
    Ok(Job {
        arrival: time("arrival", arrival)?,
        duration: time("duration", duration)?,
        profile: profile.ok_or_else(|| JobFault::Profile { text: words[2].to_owned(), known: known() })?,
    })
}

fn time(field: &'static str, text: &str) -> Result<f64, JobFault> {
    let number = text.parse().ok().filter(|n: &f64| n.is_finite());
    let value = number.ok_or_else(|| JobFault::Number { field, text: text.to_owned() })?;
    if value < 0.0 { Err(JobFault::Negative { field, value }) } else { Ok(value) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kerf_core::testing::mig_table;

    fn fault(text: &str) -> String {
        let table = mig_table("H100-80GB");
        parse(text, &table).unwrap_err().to_string()
    }

    #[test]
    fn a_bad_line_is_reported_with_its_fault() {
        let first = "0 1 1g.10gb\n\n";
        for (line, message) in [
            ("1 1", "line 3: 2 words; write `arrival duration profile`"),
            ("1 x 1g.10gb", "line 3: duration: \"x\" is no finite number"),
            ("nan 1 1g.10gb", "line 3: arrival: \"nan\" is no finite number"),
            ("1 -2 1g.10gb", "line 3: duration: -2 is negative; write 0 or more"),
        ] {
            assert_eq!(fault(&format!("{first}{line}\n")), message);
        }
        let late = fault("2 1 1g.10gb\n1 1 1g.10gb");
        assert_eq!(late, "line 2: arrival: 1 is before the 2 of the line above; sort the list by arrival");
        assert!(
            fault("0 1 5g.50gb")
                .starts_with("line 1: profile: \"5g.50gb\" is none of this model's; it has 1g.")
        );
    }
}
