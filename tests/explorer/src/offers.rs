//! Random lives of what one agent offers to its kubelet: core's `offer`, lived by core's own `offer_life`.
//!
//! The worlds of the explorer have no lists of devices: there a slice that exists and that the kubelet knows is ready.
//! Which pods wait for each other's slices is decided by `offer`, and whether anybody waits for nothing is checked by
//! the life itself.

use crate::random::Dice;
use crate::trace::shortest;
use crate::until::Until;
use kerf_core::testing::offer_life::{Life, Step};
use std::fmt;

/// How many steps a life has, before everything goes well and each pod gets what it has reserved.
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
