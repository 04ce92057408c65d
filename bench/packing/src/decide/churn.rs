//! A fleet in a steady state: the load fixes how many instances run on average, while jobs come and go.

use kerf_core::contract::ContainerRequest;
use kerf_core::mig::{MigTable, Profile};
use kerf_core::packing::{ClassId, Fleet, FleetGpu, PlaceId, Terms};

use crate::random::Random;
use crate::report::as_f64;

#[derive(Debug, Clone, Copy)]
pub enum Event {
    Arrival(ClassId),
    /// The running job with this number ends.
    Departure(usize),
}

/// A fleet whose jobs come and go.
#[derive(Debug)]
pub struct Churn {
    pub fleet: Fleet,
    running: Vec<(FleetGpu, PlaceId)>,
    classes: Vec<ClassId>,
    random: Random,
    /// Jobs that arrive in a mean life.
    rate: f64,
}

impl Churn {
    /// A fleet of GPUs with this table. `rate` jobs arrive in a mean life, with each of these profiles equally often.
    /// It starts uncut; `rate` jobs arrive at once, then jobs come and go at random for `lives` mean lives.
    pub fn new(table: &MigTable, gpus: usize, profiles: &[Profile], rate: f64, lives: f64) -> Self {
        let mut fleet = Fleet::new(Terms::default());
        for _ in 0..gpus {
            fleet.add(table, [], []);
        }
        let classes =
            profiles.iter().map(|profile| fleet.class(&ContainerRequest::exact(*profile))).collect();
        let mut churn = Self { fleet, running: Vec::new(), classes, random: Random::new(1), rate };
        let mut came = 0.0;
        while came < rate * (1.0 + lives) {
            let event = if came < rate { Event::Arrival(churn.class()) } else { churn.next() };
            came += f64::from(u8::from(matches!(event, Event::Arrival(_))));
            churn.run(event);
        }
        churn
    }

    /// Draws the next event. Lives are exponential, so every running job is equally likely to end next.
    pub fn next(&mut self) -> Event {
        let running = as_f64(self.running.len());
        if self.random.unit() * (self.rate + running) < running {
            Event::Departure(self.random.below(self.running.len()))
        } else {
            Event::Arrival(self.class())
        }
    }

    pub fn class(&mut self) -> ClassId {
        self.classes[self.random.below(self.classes.len())]
    }

    pub fn running(&self) -> usize {
        self.running.len()
    }

    /// Removes a running job. The caller still has to release its place.
    pub fn end(&mut self, job: usize) -> (FleetGpu, PlaceId) {
        self.running.swap_remove(job)
    }

    /// Adds a running job, whose place is taken already.
    pub fn begin(&mut self, gpu: FleetGpu, place: PlaceId) {
        self.running.push((gpu, place));
    }

    /// Draws a running job's number.
    pub fn any(&mut self) -> usize {
        self.random.below(self.running.len())
    }

    pub fn run(&mut self, event: Event) {
        match event {
            Event::Departure(job) => {
                let (gpu, place) = self.end(job);
                self.fleet.release(gpu, place);
            }
            Event::Arrival(class) => {
                if let Some((gpu, choice)) = self.fleet.best(class) {
                    self.fleet.take(gpu, choice);
                    self.begin(gpu, choice.place);
                }
            }
        }
    }
}
