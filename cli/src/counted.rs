//! Prints a number with its noun in the right form.

/// `1 rule`, `2 rules`, `3 copies`. The noun is given in the singular.
#[must_use]
pub fn counted(number: impl TryInto<u64>, noun: &str) -> String {
    // A number that does not fit needs the plural in any case.
    let number = number.try_into().unwrap_or(u64::MAX);
    format!("{number} {}", plural(number, noun))
}

/// The noun alone, in the singular or plural that the number needs.
#[must_use]
pub fn plural(number: u64, noun: &str) -> String {
    match noun.strip_suffix('y') {
        _ if number == 1 => noun.to_owned(),
        Some(stem) if !stem.ends_with(['a', 'e', 'o', 'u']) => format!("{stem}ies"),
        _ => format!("{noun}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_noun_agrees_with_the_number() {
        for (number, noun, text) in [
            (1_usize, "rule", "1 rule"),
            (0, "rule", "0 rules"),
            (2, "admission policy", "2 admission policies"),
            (1, "copy", "1 copy"),
            (3, "day", "3 days"),
        ] {
            assert_eq!(counted(number, noun), text);
        }
    }
}
