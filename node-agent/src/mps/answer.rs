//! Parses the daemon's answers strictly, because it writes errors in place of answers and still exits with success.

use super::word::Word;
use kerf_core::units::MemoryMib;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerStatus {
    Initializing,
    Active,
    /// A client's fault ended the work of all clients; no new one is accepted until they have left. A server that is
    /// being shut down reports this too.
    Fault,
}

/// A part of the multiprocessors, as the daemon writes it: `14.0`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Percentage(pub f64);

impl Percentage {
    /// Whether it is the requested percentage. Hardware has steps, so a difference below one percent does not count.
    #[must_use]
    pub fn agrees(self, percent: u8) -> bool {
        (self.0 - f64::from(percent)).abs() < 1.0
    }
}

/// A memory limit, as the daemon writes it: an empty text if there is none, `1000M`, and from 1 GiB on whole GiB,
/// rounded down (`10G` for 10,241 MiB).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryReading {
    Unlimited,
    Limit { amount: u64, unit: MemoryMib },
}

impl MemoryReading {
    /// Whether it is the requested limit, as far as the rounded answer shows.
    #[must_use]
    pub fn agrees(self, limit: MemoryMib) -> bool {
        match self {
            Self::Unlimited => limit.is_zero(),
            Self::Limit { amount, unit } => limit.0 / unit.0 == amount,
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub enum Answer {
    Done,
    Servers(Vec<u32>),
    Status(ServerStatus),
    Clients(Vec<u32>),
    Threads(Percentage),
    Memory(MemoryReading),
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AnswerError {
    #[error("server {0} is gone")]
    ServerGone(u32),
    /// The daemon refused, or its answer has an unknown form.
    #[error("the daemon answered {0:?}")]
    Refused(String),
}

/// Parses the answer to a word.
///
/// # Errors
///
/// The word's server is gone, or the text is no answer to this word.
pub(super) fn parse(word: Word, text: &str) -> Result<Answer, AnswerError> {
    let text = text.trim();
    if let Some(server) = word.server()
        && is_gone(server, text)
    {
        return Err(AnswerError::ServerGone(server));
    }
    let answer = match word {
        Word::ServerList => process_ids(text).map(Answer::Servers),
        Word::ClientList(_) => process_ids(text).map(Answer::Clients),
        Word::ServerStatus(_) => status(text).map(Answer::Status),
        Word::Threads(_) => percentage(text).map(Answer::Threads),
        Word::Memory(_) => memory(text).map(Answer::Memory),
        // The answer is the percentage that holds now, which is the old one if the new one was refused.
        Word::SetThreads(..) => percentage(text).map(|_| Answer::Done),
        Word::SetMemory(..) => memory(text).map(|_| Answer::Done),
        // The list of servers will show whether it was done, so the wording may differ between drivers.
        Word::StartServer | Word::ShutdownServer(_) | Word::Quit { .. } => {
            (!is_refusal(text)).then_some(Answer::Done)
        }
    };
    answer.ok_or_else(|| AnswerError::Refused(text.to_owned()))
}

/// Whether the daemon reports that there is no such server: `Server 492 not found` with driver 580.
fn is_gone(server: u32, text: &str) -> bool {
    let text = text.to_ascii_lowercase();
    let mut words = text.split(|c: char| !c.is_ascii_alphanumeric());
    text.contains("not found") && words.any(|word| word == server.to_string())
}

/// Words of driver 580's refusals, and words that other drivers may use.
const REFUSALS: [&str; 8] =
    ["cannot", "denied", "error", "fail", "insufficient", "invalid", "not ", "unknown"];

fn is_refusal(text: &str) -> bool {
    let text = text.to_ascii_lowercase();
    REFUSALS.iter().any(|refusal| text.contains(refusal))
}

/// Parses one process id a line. Any other line may be an error, so it is not skipped.
fn process_ids(text: &str) -> Option<Vec<u32>> {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    lines.map(|line| line.parse().ok()).collect()
}

fn status(text: &str) -> Option<ServerStatus> {
    match text.to_ascii_uppercase().as_str() {
        "INITIALIZING" => Some(ServerStatus::Initializing),
        "ACTIVE" => Some(ServerStatus::Active),
        "FAULT" => Some(ServerStatus::Fault),
        _ => None,
    }
}

fn percentage(text: &str) -> Option<Percentage> {
    let percent: f64 = text.trim_end_matches('%').trim_end().parse().ok()?;
    (0.0..=100.0).contains(&percent).then_some(Percentage(percent))
}

fn memory(text: &str) -> Option<MemoryReading> {
    if text.is_empty() {
        return Some(MemoryReading::Unlimited);
    }
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let amount = text[..digits].parse().ok()?;
    // Units are strict, because a limit that is misread does not protect the neighbours.
    let unit = match text[digits..].trim_start().to_ascii_uppercase().as_str() {
        "M" | "MB" | "MIB" => MemoryMib(1),
        "G" | "GB" | "GIB" => MemoryMib(1024),
        _ => return None,
    };
    Some(MemoryReading::Limit { amount, unit })
}

#[cfg(test)]
mod tests {
    use super::super::word::Scope;
    use super::*;

    const SERVER: Scope = Scope::Server(492);

    fn refused<T>(text: &str) -> Result<T, AnswerError> {
        Err(AnswerError::Refused(text.to_owned()))
    }

    #[test]
    fn lists_have_one_process_id_in_a_line() {
        for (text, read) in [
            ("", Ok(vec![])),
            ("492\n", Ok(vec![492])),
            ("522\n521\n", Ok(vec![522, 521])),
            ("522\n\n521\n", Ok(vec![522, 521])),
            ("Unknown command \"x\"\n", refused("Unknown command \"x\"")),
            ("492\nx\n", refused("492\nx")),
        ] {
            assert_eq!(parse(Word::ServerList, text), read.clone().map(Answer::Servers), "{text:?}");
            assert_eq!(parse(Word::ClientList(492), text), read.map(Answer::Clients), "{text:?}");
        }
    }

    #[test]
    fn a_gone_server_is_distinguished_from_a_refusal() {
        let gone = "Server 492 not found\n";
        for word in
            [Word::ServerStatus(492), Word::ClientList(492), Word::Memory(SERVER), Word::Threads(SERVER)]
        {
            for gone in [gone, "server 492: not found.\n"] {
                assert_eq!(parse(word, gone), Err(AnswerError::ServerGone(492)), "{word}");
            }
        }
        assert_eq!(parse(Word::ServerStatus(7), gone), refused("Server 492 not found"));
        assert_eq!(parse(Word::ServerList, gone), refused("Server 492 not found"));
    }

    #[test]
    fn statuses_are_read() {
        for (text, status) in [
            ("INITIALIZING\n", Ok(ServerStatus::Initializing)),
            ("ACTIVE\n", Ok(ServerStatus::Active)),
            ("FAULT\n", Ok(ServerStatus::Fault)),
            ("Active", Ok(ServerStatus::Active)),
            ("", refused("")),
            ("Retired", refused("Retired")),
        ] {
            assert_eq!(parse(Word::ServerStatus(492), text), status.map(Answer::Status), "{text:?}");
        }
    }

    #[test]
    fn percentages_agree_within_the_hardwares_steps() {
        for (text, wanted, agrees) in [
            ("100.0", 100, true),
            ("14.0\n", 14, true),
            ("14.0 %", 14, true),
            ("13.6", 14, true),
            ("25.0", 14, false),
            ("13.0", 14, false),
        ] {
            let Ok(Answer::Threads(read)) = parse(Word::Threads(SERVER), text) else { panic!("{text}") };
            assert_eq!(read.agrees(wanted), agrees, "{text} for {wanted}");
        }
        for text in ["", "x", "-1", "101", "nan", "inf"] {
            assert_eq!(parse(Word::Threads(Scope::Default), text), refused(text), "{text:?}");
        }
    }

    #[test]
    fn memory_agrees_as_far_as_the_rounded_answer_shows() {
        for (text, wanted, agrees) in [
            ("", 0, true),
            ("", 10_240, false),
            ("10G\n", 10_240, true),
            ("10G", 10_241, true),
            ("10G", 11_264, false),
            ("10G", 1000, false),
            ("1000M", 1000, true),
            ("1000M", 1001, false),
            ("10240MB", 10_240, true),
            ("10 GiB", 10_240, true),
            ("0M", 0, true),
        ] {
            let Ok(Answer::Memory(read)) = parse(Word::Memory(SERVER), text) else { panic!("{text}") };
            assert_eq!(read.agrees(MemoryMib(wanted)), agrees, "{text} for {wanted}");
        }
        for text in ["G", "10", "10X", "-1G", "1.5G", "99999999999999999999G"] {
            assert_eq!(parse(Word::Memory(Scope::Default), text), refused(text), "{text:?}");
        }
    }

    #[test]
    fn answers_to_changing_words_are_done_or_refused() {
        let limit = MemoryMib(10_240);
        for (word, text, done) in [
            (Word::SetMemory(Scope::Default, limit), "", true),
            (Word::SetMemory(Scope::Default, limit), "Insufficient privileges for UID 1234.", false),
            (Word::SetThreads(SERVER, 25), "25.0\n", true),
            (Word::SetThreads(SERVER, 25), "", false),
            (Word::StartServer, "", true),
            (Word::StartServer, "Server 492 started", true),
            (Word::StartServer, "Insufficient privileges for UID 1234.", false),
            (Word::StartServer, "Unknown command \"start_server\"", false),
            (Word::ShutdownServer(492), "", true),
            (Word::Quit { within: 2 }, "", true),
        ] {
            assert_eq!(parse(word, text).is_ok(), done, "{word}: {text:?}");
        }
    }
}
