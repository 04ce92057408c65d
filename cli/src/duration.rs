//! Times in flags.

use jiff::SignedDuration;
use std::time::Duration;

/// A time with its unit, above zero: `30s`, `6m`, `500ms`.
pub fn positive(text: &str) -> Result<Duration, String> {
    parse(text).filter(|read| !read.is_zero()).ok_or_else(|| refused(text))
}

/// A time with its unit, or whole seconds, as kubectl takes both; 0 is one too.
pub fn or_seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().map(Duration::from_secs);
    seconds.or_else(|| parse(text)).ok_or_else(|| refused(text))
}

fn parse(text: &str) -> Option<Duration> {
    text.parse::<SignedDuration>().ok().and_then(|read| Duration::try_from(read).ok())
}

fn refused(text: &str) -> String {
    format!("{text:?} is no duration; write it like 30s or 6m")
}

/// As people write it: `6m`, `1m 5s`. Parts of a second are left out.
#[must_use]
pub fn told(duration: Duration) -> String {
    let whole = Duration::from_secs(duration.as_secs());
    SignedDuration::try_from(whole)
        .map_or_else(|_| format!("{}s", whole.as_secs()), |whole| format!("{whole:#}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_a_unit() {
        assert_eq!(positive("6m"), Ok(Duration::from_mins(6)));
        assert_eq!(positive("1s"), Ok(Duration::from_secs(1)));
        for text in ["6", "0s", "-1s", ""] {
            assert!(positive(text).unwrap_err().contains("write it like"), "{text}");
        }
        assert_eq!(or_seconds("0"), Ok(Duration::ZERO));
        assert_eq!(or_seconds("5"), Ok(Duration::from_secs(5)));
        assert_eq!(or_seconds("500ms"), Ok(Duration::from_millis(500)));
        assert!(or_seconds("-1").is_err());
        assert_eq!(told(Duration::from_millis(65_400)), "1m 5s");
        assert_eq!(told(Duration::from_millis(400)), "0s");
    }
}
