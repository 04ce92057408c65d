//! Feeds a target from all cores, and collects its defects.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use super::mutate::Mutator;
use super::targets::{Reader, Target};

/// How many inputs a thread takes at once.
const CHUNK: u64 = 500;
/// A target is stopped after this many defects, because the first few are enough.
const MOST_DEFECTS: usize = 10;

/// An input that was handled wrongly.
#[derive(Debug, Clone)]
pub struct Defect {
    /// The input's number, which reproduces it with the seed.
    pub number: u64,
    pub input: Vec<u8>,
    /// The panic's message, or the violated property.
    pub what: String,
}

#[derive(Debug, Clone)]
pub struct Report {
    /// How many inputs the target got.
    pub inputs: u64,
    /// How many of them it accepted as valid.
    pub accepted: u64,
    /// The defects, in order of their numbers.
    pub defects: Vec<Defect>,
}

/// Feeds `target` with `inputs` inputs on `threads` threads. `progress` gets the count of finished inputs
/// after each chunk.
pub fn run(
    target: Target,
    seed: u64,
    inputs: u64,
    threads: usize,
    progress: impl Fn(u64) + Sync,
) -> anyhow::Result<Report> {
    let reader = target.reader()?;
    let (next, done, accepted) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let defects = Mutex::new(Vec::new());
    let found = || defects.lock().unwrap_or_else(PoisonError::into_inner);
    let work = || {
        let mutator = Mutator { corpus: &reader.corpus, words: reader.words };
        loop {
            let start = next.fetch_add(CHUNK, Ordering::Relaxed);
            if start >= inputs || found().len() >= MOST_DEFECTS {
                return;
            }
            let end = inputs.min(start + CHUNK);
            for number in start..end {
                let input = mutator.input(seed, number);
                match feed(&reader, &input) {
                    Ok(good) => drop(accepted.fetch_add(u64::from(good), Ordering::Relaxed)),
                    Err(what) => found().push(Defect { number, input, what }),
                }
            }
            progress(done.fetch_add(end - start, Ordering::Relaxed) + end - start);
        }
    };
    thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(work);
        }
    });
    let mut defects = defects.into_inner().unwrap_or_else(PoisonError::into_inner);
    defects.sort_by_key(|defect| defect.number);
    Ok(Report { inputs: done.into_inner(), accepted: accepted.into_inner(), defects })
}

/// Whether the input is valid. The error is a defect.
fn feed(reader: &Reader, input: &[u8]) -> Result<bool, String> {
    // A panic leaves no state behind, because a target keeps none.
    catch_unwind(AssertUnwindSafe(|| (reader.feed)(input))).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        Err(format!("panic: {}", text.unwrap_or("without a text")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_reported_with_its_input() {
        let read = |input: &[u8]| {
            assert!(!input.contains(&b'7'), "there is a 7");
            Ok(!input.is_empty())
        };
        let reader = Reader { corpus: vec![b"7".to_vec()], words: &["7"], feed: Box::new(read) };
        assert_eq!(feed(&reader, b"6"), Ok(true));
        assert_eq!(feed(&reader, b""), Ok(false));
        assert_eq!(feed(&reader, b"17"), Err("panic: there is a 7".to_owned()));
    }

    #[test]
    fn every_input_is_fed_once_on_any_number_of_threads() {
        let one = run(Target::Quantity, 7, 1700, 1, |_| ()).unwrap();
        let many = run(Target::Quantity, 7, 1700, 4, |_| ()).unwrap();
        assert_eq!((one.inputs, one.accepted), (1700, many.accepted));
        assert_eq!(many.inputs, 1700);
        assert!(one.accepted > 0 && one.accepted < 1700);
    }
}
