//! Random histories of one agent's offer to its kubelet: core's `offer_life` drives core's `offer`.
//!
//! The explorer's worlds have no lists of devices: there a slice is ready once it exists and the kubelet has listed it.
//! `offer` decides which pods wait for each other's slices. The history itself checks that no pod waits for nothing.

use crate::random::Dice;
use crate::trace::shortest;
use crate::until::Until;
use kerf_core::testing::offer_life::{Life, Step};
use std::fmt;

/// Steps of a life with faults. After them there are no faults, and each pod gets the slices that it has reserved.
const STEPS: usize = 150;

/// The number of lives so far, and the first fault.
#[derive(Debug, Default)]
pub struct Offered {
    lives: u64,
    pub found: Option<Fault>,
}

impl fmt::Display for Offered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "offers: {} lives of {STEPS} steps", self.lives)
    }
}

/// A fault, and the fewest steps that lead to it.
#[derive(Debug)]
pub struct Fault {
    seed: u64,
    what: String,
    /// Each by its number and by what it chooses.
    steps: Vec<Step>,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {}: VIOLATION Offer: {}", self.seed, self.what)?;
        write!(f, "after {} steps: {:?}", self.steps.len(), self.steps)
    }
}

/// Lives one life after the other until then, with these seeds.
pub fn live(seeds: impl Iterator<Item = u64>, until: Until<'_>) -> Offered {
    let mut offered = Offered::default();
    for seed in seeds {
        if until.is_over() {
            break;
        }
        let mut dice = Dice::new(seed);
        let steps: Vec<Step> = (0..STEPS).map(|_| (dice.next().to_be_bytes()[0], dice.next())).collect();
        offered.lives += 1;
        if life(&steps).is_some() {
            until.end_all();
            let steps = shortest(steps, |steps| life(steps).is_some());
            offered.found = life(&steps).map(|what| Fault { seed, what, steps });
            break;
        }
    }
    offered
}

/// What goes wrong in a life of these steps.
pub fn life(steps: &[Step]) -> Option<String> {
    let mut life = Life::default();
    steps.iter().try_for_each(|step| life.step(*step)).and_then(|()| life.finish()).err()
}
