//! Random lives of larger worlds. A seed determines a life completely.

use crate::event::Event;
use crate::setting::Setting;
use crate::trace::Trace;
use crate::until::Until;
use crate::world::World;
use std::fmt;

/// How many events a life has, before the world comes to rest.
const EVENTS: usize = 200;

/// The number of lives and events, and what was found.
#[derive(Debug, Default)]
pub struct Lived {
    lives: u64,
    events: u64,
    /// The seed of the life with a violation, and its trace.
    pub found: Option<(u64, Trace)>,
}

impl fmt::Display for Lived {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "random: {} lives to their rest, {} events", self.lives, self.events)
    }
}

/// Plays one life after the other with these seeds, until the given end.
pub fn live(seeds: impl Iterator<Item = u64>, until: Until<'_>) -> Lived {
    let mut lived = Lived::default();
    for seed in seeds {
        if until.is_over() {
            break;
        }
        let mut dice = Dice::new(seed);
        let setting = Setting::large(1 + dice.below(3), 2 + dice.below(11), 1 + dice.below(3));
        let (events, is_well) = life(&setting, &mut dice);
        lived.lives += 1;
        lived.events += events.len() as u64;
        if !is_well {
            until.end_all();
            lived.found = Trace::from_events(&setting, &events).map(|trace| (seed, trace));
            break;
        }
    }
    lived
}

/// The events of a life, and whether nothing was violated.
fn life(setting: &Setting, dice: &mut Dice) -> (Vec<Event>, bool) {
    let weights = Weights::new(dice);
    let (mut world, mut events) = (World::new(setting), Vec::new());
    while events.len() < EVENTS {
        let Some(event) = weights.choose(&world.enabled(), dice) else { break };
        events.push(event);
        if world.apply(event).is_err() {
            return (events, false);
        }
    }
    let is_well = world.rest().is_ok();
    (events, is_well)
}

/// How likely each kind of event is in a life. They differ between lives, so that some have no faults of some kinds,
/// and many of others.
struct Weights([usize; Event::KINDS]);

impl Weights {
    fn new(dice: &mut Dice) -> Self {
        let mut weights = [0; Event::KINDS];
        for weight in &mut weights {
            *weight = [0, 1, 1, 4][dice.below(4)];
        }
        Self(weights)
    }

    fn weight(&self, event: Event) -> usize {
        let chance = self.0[event.kind()];
        match event {
            // Many such events are possible at each moment, so each of them gets a small weight.
            Event::Bind { .. } | Event::Pass => 4 + 4 * chance,
            Event::Release { .. } | Event::Dial { .. } => 1 + 4 * chance,
            Event::Stray { .. } => 4 * chance,
            upset if upset.is_upset() => chance,
            _ => 24,
        }
    }

    fn choose(&self, events: &[Event], dice: &mut Dice) -> Option<Event> {
        let all: usize = events.iter().map(|event| self.weight(*event)).sum();
        let mut left = dice.below(all.max(1));
        events.iter().copied().find(|event| {
            let weight = self.weight(*event);
            let is_it = left < weight;
            left = left.saturating_sub(weight);
            is_it
        })
    }
}

/// Random numbers that follow from a seed.
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.next() >> 33).unwrap_or_default() % limit
    }

    /// Any number, by `SplitMix64`.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}
