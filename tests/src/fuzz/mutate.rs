//! Makes an input from a corpus: a valid one with parts flipped, cut, repeated, exchanged or replaced.

use crate::random::Random;

/// The longest input. Parsers have limits of their own, and more inputs find more than longer ones.
const LONGEST: usize = 16 << 10;

/// Numbers at or near limits of parsers.
const NUMBERS: [&str; 16] = [
    "0",
    "-1",
    "1",
    "00",
    "0.5",
    "1e9",
    "7",
    "8",
    "255",
    "256",
    "65536",
    "4294967295",
    "4294967296",
    "9223372036854775807",
    "18446744073709551616",
    "99999999999999999999999999999999999999999",
];

pub struct Mutator<'a> {
    pub corpus: &'a [Vec<u8>],
    /// Words with a meaning for the parser.
    pub words: &'a [&'a str],
}

impl Mutator<'_> {
    pub fn input(&self, seed: u64, number: u64) -> Vec<u8> {
        let mut random = Random::new(mix(seed ^ mix(number)));
        let mut bytes = self.pick(&mut random).to_vec();
        // Mostly few changes, because nearly valid inputs get deepest into the code.
        let changes = 1 + below(&mut random, 3) * below(&mut random, 4);
        for _ in 0..changes {
            self.change(&mut bytes, &mut random);
            bytes.truncate(LONGEST);
        }
        bytes
    }

    fn pick(&self, random: &mut Random) -> &[u8] {
        self.corpus.get(below(random, self.corpus.len())).map(Vec::as_slice).unwrap_or_default()
    }

    fn change(&self, bytes: &mut Vec<u8>, random: &mut Random) {
        let at = below(random, bytes.len() + 1);
        let range = at..bytes.len().min(at + 1 + below(random, 16));
        match below(random, 10) {
            0 => bytes.iter_mut().skip(at).take(1).for_each(|byte| *byte ^= 1 << below(random, 8)),
            1 => drop(bytes.splice(range, [low(random)])),
            2 => drop(bytes.drain(range)),
            3 => {
                let repeated = bytes.get(range).unwrap_or_default().repeat(1 + below(random, 4));
                drop(bytes.splice(at..at, repeated));
            }
            4 => drop(bytes.splice(at..at, self.word(random).bytes())),
            5 => drop(bytes.splice(range, self.word(random).bytes())),
            6 => drop(bytes.splice(number_near(bytes, at), NUMBERS[below(random, NUMBERS.len())].bytes())),
            7 => {
                let other = self.pick(random);
                let from = below(random, other.len() + 1);
                let piece = &other[from..other.len().min(from + 1 + below(random, 64))];
                drop(bytes.splice(range, piece.iter().copied()));
            }
            8 => bytes.truncate(at),
            _ => drop(bytes.splice(quoted_near(bytes, at), self.word(random).bytes())),
        }
    }

    fn word(&self, random: &mut Random) -> &str {
        self.words.get(below(random, self.words.len())).copied().unwrap_or_default()
    }
}

/// The first run of digits at or after `at`.
fn number_near(bytes: &[u8], at: usize) -> std::ops::Range<usize> {
    let is_digit = |from: usize, wanted: bool| {
        bytes.iter().skip(from).position(|b| b.is_ascii_digit() == wanted).map_or(bytes.len(), |n| from + n)
    };
    let start = is_digit(at, true);
    start..is_digit(start, false)
}

/// The text between the next two quotation marks at or after `at`.
fn quoted_near(bytes: &[u8], at: usize) -> std::ops::Range<usize> {
    let quote = |from: usize| bytes.iter().skip(from).position(|b| *b == b'"').map(|n| from + n);
    match quote(at).and_then(|open| Some((open + 1, quote(open + 1)?))) {
        Some((start, end)) => start..end,
        None => at..at,
    }
}

/// A number below `end`; 0 if `end` is 0.
fn below(random: &mut Random, end: usize) -> usize {
    let high = usize::try_from(random.draw() >> 33).unwrap_or(0);
    high.checked_rem(end).unwrap_or(0)
}

fn low(random: &mut Random) -> u8 {
    u8::try_from(random.draw() >> 56).unwrap_or(0)
}

/// splitmix64's finalizer (Steele 2014), so that neighbouring numbers give unrelated seeds.
fn mix(number: u64) -> u64 {
    let a = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let b = (a ^ (a >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let c = (b ^ (b >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    c ^ (c >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_input_is_made_from_seed_and_number_alone() {
        let corpus = vec![b"{\"a\": 10}".to_vec(), b"10Gi".to_vec()];
        let mutator = Mutator { corpus: &corpus, words: &["Gi", "\"b\""] };
        let inputs: Vec<_> = (0..1000).map(|number| mutator.input(1, number)).collect();
        assert_eq!(inputs, (0..1000).map(|number| mutator.input(1, number)).collect::<Vec<_>>());
        assert_ne!(inputs, (0..1000).map(|number| mutator.input(2, number)).collect::<Vec<_>>());
        let distinct: std::collections::BTreeSet<_> = inputs.iter().collect();
        assert!(distinct.len() > 500, "only {} of 1000 differ", distinct.len());
    }

    #[test]
    fn numbers_and_quoted_texts_are_found() {
        assert_eq!(number_near(b"ab12c", 0), 2..4);
        assert_eq!(number_near(b"ab", 0), 2..2);
        assert_eq!(quoted_near(b"{\"key\": 1}", 0), 2..5);
        assert_eq!(quoted_near(b"none", 2), 2..2);
    }
}
