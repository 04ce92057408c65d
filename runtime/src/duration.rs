//! Durations in flags, in jiff's friendly format: `30s`, `6m`, `1m 30s`, `500ms`, `2h`.

use jiff::SignedDuration;
use std::time::Duration;

const REMEDY: &str = "write it like 30s or 6m";

/// Parses a duration above zero; the error is a message for the flag.
pub fn positive(text: &str) -> Result<Duration, String> {
    let positive = parse(text).filter(|parsed| !parsed.is_zero());
    positive.ok_or_else(|| format!("{text:?} is no duration; {REMEDY}"))
}

/// Parses a duration of at least 100 ms, because a shorter timeout is a mistake in the unit.
pub fn timeout(text: &str) -> Result<Duration, String> {
    let long = parse(text).filter(|parsed| *parsed >= Duration::from_millis(100));
    long.ok_or_else(|| format!("{text:?} is no duration of at least 100ms; {REMEDY}"))
}

/// Parses a duration, or whole seconds without a unit, because kubectl accepts both. Zero is allowed, because it means
/// no timeout there.
pub fn or_seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().map(Duration::from_secs);
    seconds.or_else(|| parse(text)).ok_or_else(|| format!("{text:?} is no duration; {REMEDY}"))
}

fn parse(text: &str) -> Option<Duration> {
    text.parse::<SignedDuration>().ok().and_then(|parsed| Duration::try_from(parsed).ok())
}

/// Formats a duration for people, as `6m` or `1m 5s`, without fractions of a second.
#[must_use]
pub fn friendly(duration: Duration) -> String {
    let whole = Duration::from_secs(duration.as_secs());
    SignedDuration::try_from(whole)
        .map_or_else(|_| format!("{}s", whole.as_secs()), |whole| format!("{whole:#}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_a_unit() {
        let ms = |ms| Some(Duration::from_millis(ms));
        for (text, expected) in [
            ("30s", ms(30_000)),
            ("2m", ms(120_000)),
            ("6m", ms(360_000)),
            ("500ms", ms(500)),
            ("1500ms", ms(1500)),
            ("1m 30s", ms(90_000)),
            ("4h", ms(14_400_000)),
            ("", None),
            ("4", None),
            ("0", None),
            ("s", None),
            ("0s", None),
            ("-1s", None),
            ("1d", None),
            ("99999999999999999999s", None),
        ] {
            assert_eq!(positive(text).ok(), expected, "{text}");
            assert_eq!(timeout(text).ok(), expected, "{text}");
        }
        for (error, start) in [
            (positive("6").unwrap_err(), "\"6\" is no duration; write it like"),
            (timeout("50ms").unwrap_err(), "\"50ms\" is no duration of at least 100ms; write it like"),
        ] {
            assert!(error.starts_with(start), "{error}");
        }
        assert_eq!(positive("50ms").ok(), ms(50));
    }

    #[test]
    fn a_timeout_may_be_seconds_without_a_unit() {
        assert_eq!(or_seconds("0"), Ok(Duration::ZERO));
        assert_eq!(or_seconds("5"), Ok(Duration::from_secs(5)));
        assert_eq!(or_seconds("500ms"), Ok(Duration::from_millis(500)));
        assert!(or_seconds("-1").is_err());
    }

    #[test]
    fn durations_are_shown_in_whole_seconds() {
        assert_eq!(friendly(Duration::from_millis(65_400)), "1m 5s");
        assert_eq!(friendly(Duration::from_millis(400)), "0s");
    }
}
