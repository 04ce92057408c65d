//! Kubernetes quantities as users write them for memory, and the nominal size of each.
//!
//! The grammar is that of k8s.io/apimachinery `resource.Quantity`: a signed decimal number and a binary (`Ki`…`Ei`) or
//! decimal (`m`, `k`…`E`, or an exponent) suffix.

use crate::units::{LARGEST_SIZE, MemoryMib, SizeGb};
use thiserror::Error;

/// Why a text is not an amount of GPU memory. Each message says what to write instead.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SizeError {
    /// The text is not a Kubernetes quantity.
    #[error("{0:?} is not an amount of memory; write it like 10Gi, 10G or 10240Mi")]
    Malformed(String),
    /// The number is below zero.
    #[error("{0:?} is negative; write a positive amount like 10Gi")]
    Negative(String),
    /// The amount is zero, or so small that a unit must be missing.
    #[error("{0:?} is less than 1Mi; a unit is missing or the amount is zero: write it like 10Gi")]
    TooSmall(String),
    /// The amount is more than any GPU has.
    #[error("{0:?} is more than any GPU has; the largest size is {max}Gi", max = LARGEST_SIZE.0)]
    TooLarge(String),
}

/// Parses an amount of GPU memory and returns its nominal size: `10Gi`, `10G`, `10240Mi` and `gpu-10gb` are all 10 GB.
///
/// A binary amount counts in GiB and a decimal one in GB of 10^9 bytes, each rounded up, so that "ten gigabytes" means
/// the same in every spelling.
pub fn parse_size(text: &str) -> Result<SizeGb, SizeError> {
    parse_memory(text).map(|(size, _)| size)
}

/// Parses an amount of GPU memory and returns its nominal size and the memory in MiB, rounded up: `10G` is 10 GB and
/// 9,537 MiB.
pub fn parse_memory(text: &str) -> Result<(SizeGb, MemoryMib), SizeError> {
    let trimmed = text.trim();
    if let Some(size) = trimmed.strip_prefix("gpu-").and_then(|rest| rest.strip_suffix("gb")) {
        return named_size(trimmed, size).map(|size| (size, size.share_memory()));
    }
    let (number, suffix) = split_number(trimmed);
    let malformed = || SizeError::Malformed(text.to_owned());
    let (multiplier, unit) = multiplier(suffix).ok_or_else(malformed)?;
    let (negative, micros) = micros(number).ok_or_else(malformed)?;
    if negative && micros > 0 {
        return Err(SizeError::Negative(text.to_owned()));
    }
    let bytes = micros.checked_mul(multiplier).ok_or_else(|| SizeError::TooLarge(text.to_owned()))?;
    let bytes = bytes.div_ceil(MICROS * MILLI);
    if bytes < 1 << 20 {
        return Err(SizeError::TooSmall(text.to_owned()));
    }
    let size = bounded(text, bytes.div_ceil(unit))?;
    // The conversion never saturates, because sizes within the bound are less than 2^64 bytes.
    Ok((size, MemoryMib(u64::try_from(bytes.div_ceil(1 << 20)).unwrap_or(u64::MAX))))
}

/// Parses a whole number that is written as a quantity: `3`, or `3k`, as the API server writes 3000. `None` if it is
/// negative or not whole.
#[must_use]
pub fn parse_count(text: &str) -> Option<u64> {
    let (number, suffix) = split_number(text.trim());
    let (negative, micros) = micros(number)?;
    let (multiplier, _) = multiplier(suffix)?;
    let all = micros.checked_mul(multiplier)?;
    if negative && all > 0 || all % (MICROS * MILLI) != 0 {
        return None;
    }
    u64::try_from(all / (MICROS * MILLI)).ok()
}

/// Parses a decimal number and returns it in millionths, rounded up. `None` if it is negative or no such number.
#[must_use]
pub fn parse_millionths(text: &str) -> Option<u128> {
    let text = text.trim();
    // The API server writes 0.5 as `500m` in a quantity.
    if let Some(thousandths) = text.strip_suffix('m') {
        return parse_count(thousandths).map(|count| u128::from(count) * 1_000);
    }
    let (number, rest) = split_number(text);
    let (negative, micros) = micros(number)?;
    (rest.is_empty() && !(negative && micros > 0)).then_some(micros)
}

/// Parses the digits of `gpu-<digits>gb`; `text` is the whole name, for the error message.
pub fn named_size(text: &str, digits: &str) -> Result<SizeGb, SizeError> {
    let canonical = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    if !canonical || (digits.len() > 1 && digits.starts_with('0')) {
        return Err(SizeError::Malformed(text.to_owned()));
    }
    match digits.parse::<u128>() {
        Ok(0) => Err(SizeError::TooSmall(text.to_owned())),
        Ok(size) => bounded(text, size),
        Err(_) => Err(SizeError::TooLarge(text.to_owned())),
    }
}

fn bounded(text: &str, size: u128) -> Result<SizeGb, SizeError> {
    match u32::try_from(size) {
        Ok(size) if size <= LARGEST_SIZE.0 => Ok(SizeGb(size)),
        _ => Err(SizeError::TooLarge(text.to_owned())),
    }
}

const MICROS: u128 = 1_000_000;
/// Multipliers are in thousandths of a byte, so that the suffix `m` has a whole one.
const MILLI: u128 = 1_000;

fn split_number(text: &str) -> (&str, &str) {
    let end = text
        .char_indices()
        .find(|(i, c)| !(c.is_ascii_digit() || *c == '.' || (*i == 0 && (*c == '-' || *c == '+'))))
        .map_or(text.len(), |(i, _)| i);
    text.split_at(end)
}

/// The number in millionths, rounded up, and whether it is negative. `None` if it is no decimal number.
fn micros(number: &str) -> Option<(bool, u128)> {
    let (negative, digits) = match number.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, number.strip_prefix('+').unwrap_or(number)),
    };
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    if whole.is_empty() && fraction.is_empty() || fraction.contains('.') {
        return None;
    }
    let whole = if whole.is_empty() { 0 } else { whole.parse::<u128>().ok()? };
    let mut value = whole.checked_mul(MICROS)?;
    for (place, digit) in fraction.bytes().enumerate() {
        let digit = u128::from(digit - b'0');
        match u32::try_from(place).ok().filter(|p| *p < 6) {
            Some(place) => value = value.checked_add(digit * 10_u128.pow(5 - place))?,
            None if digit > 0 => return Some((negative, value.checked_add(1)?)),
            None => {}
        }
    }
    Some((negative, value))
}

/// The suffix's multiplier in thousandths of a byte, and the number of bytes in the GB of its family.
fn multiplier(suffix: &str) -> Option<(u128, u128)> {
    const GIB: u128 = 1 << 30;
    const GB: u128 = 1_000_000_000;
    let binary = |power: u32| Some((MILLI << (10 * power), GIB));
    let decimal = |power: u32| Some((MILLI * 10_u128.pow(power), GB));
    match suffix {
        "Ki" => binary(1),
        "Mi" => binary(2),
        "Gi" => binary(3),
        "Ti" => binary(4),
        "Pi" => binary(5),
        "Ei" => binary(6),
        "m" => Some((1, GB)),
        "" => decimal(0),
        "k" => decimal(3),
        "M" => decimal(6),
        "G" => decimal(9),
        "T" => decimal(12),
        "P" => decimal(15),
        "E" => decimal(18),
        _ => decimal(suffix.strip_prefix(['e', 'E'])?.parse::<u32>().ok().filter(|power| *power <= 18)?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_spelling_of_ten_gigabytes_is_ten_gigabytes() {
        for text in ["10Gi", "10G", "10240Mi", "10000M", "gpu-10gb", "1e10", "9.5Gi", "10000000000", " 10Gi "]
        {
            assert_eq!(parse_size(text), Ok(SizeGb(10)), "{text}");
        }
    }

    #[test]
    fn a_part_of_a_gigabyte_is_rounded_up() {
        for (text, gb) in [("500Mi", 1), ("1025Mi", 2), ("10.000001Gi", 11), ("20G", 20), ("20Gi", 20)] {
            assert_eq!(parse_size(text), Ok(SizeGb(gb)), "{text}");
        }
    }

    #[test]
    fn bad_amounts_are_named_with_their_remedy() {
        let text = |s: &str| parse_size(s).unwrap_err().to_string();
        insta::assert_snapshot!(
            ["10", "0", "gpu-0gb", "gpu-999gb", "10Ti", "-1Gi", "ten", "", ".", "1.2.3Gi", "10GiB", "gpu-010gb", "1e40", "99999999999999999999999999Gi"]
                .map(text).join("\n"),
            @r#"
        "10" is less than 1Mi; a unit is missing or the amount is zero: write it like 10Gi
        "0" is less than 1Mi; a unit is missing or the amount is zero: write it like 10Gi
        "gpu-0gb" is less than 1Mi; a unit is missing or the amount is zero: write it like 10Gi
        "gpu-999gb" is more than any GPU has; the largest size is 278Gi
        "10Ti" is more than any GPU has; the largest size is 278Gi
        "-1Gi" is negative; write a positive amount like 10Gi
        "ten" is not an amount of memory; write it like 10Gi, 10G or 10240Mi
        "" is not an amount of memory; write it like 10Gi, 10G or 10240Mi
        "." is not an amount of memory; write it like 10Gi, 10G or 10240Mi
        "1.2.3Gi" is not an amount of memory; write it like 10Gi, 10G or 10240Mi
        "10GiB" is not an amount of memory; write it like 10Gi, 10G or 10240Mi
        "gpu-010gb" is not an amount of memory; write it like 10Gi, 10G or 10240Mi
        "1e40" is not an amount of memory; write it like 10Gi, 10G or 10240Mi
        "99999999999999999999999999Gi" is more than any GPU has; the largest size is 278Gi
        "#
        );
    }

    #[test]
    fn the_memory_in_mib_is_returned_too() {
        for (text, gb, mib) in
            [("10Gi", 10, 10_240), ("10G", 10, 9_537), ("gpu-10gb", 10, 10_240), ("9.5Gi", 10, 9_728)]
        {
            assert_eq!(parse_memory(text), Ok((SizeGb(gb), MemoryMib(mib))), "{text}");
        }
    }

    #[test]
    fn whole_numbers_are_read_as_the_api_server_writes_them() {
        for (text, count) in
            [("3", Some(3)), ("3k", Some(3_000)), ("2Ki", Some(2_048)), ("3000m", Some(3)), ("0", Some(0))]
        {
            assert_eq!(parse_count(text), count, "{text}");
        }
        for text in ["500m", "0.5", "-1", "", "three", "1e30"] {
            assert_eq!(parse_count(text), None, "{text}");
        }
        for (text, millionths) in [
            ("0.5", Some(500_000)),
            ("500m", Some(500_000)),
            (".25", Some(250_000)),
            ("-0.5", None),
            ("half", None),
        ] {
            assert_eq!(parse_millionths(text), millionths, "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_a_number_or_none(text in "[-+.0-9a-zA-Z]{0,48}") {
            let (_, _) = (parse_count(&text), parse_millionths(&text));
        }

        #[test]
        fn any_text_gets_a_size_or_an_error_and_never_a_panic(text in "[-+.0-9a-zA-Z]{0,24}") {
            if let Ok(size) = parse_size(&text) {
                prop_assert!(size.0 >= 1 && size <= LARGEST_SIZE);
            }
        }

        #[test]
        fn whole_gibibytes_are_themselves(gb in 1_u32..=278) {
            prop_assert_eq!(parse_size(&format!("{gb}Gi")), Ok(SizeGb(gb)));
            prop_assert_eq!(parse_size(&format!("{}Mi", u64::from(gb) * 1024)), Ok(SizeGb(gb)));
            prop_assert_eq!(parse_size(&format!("{gb}G")), Ok(SizeGb(gb)));
        }
    }
}
